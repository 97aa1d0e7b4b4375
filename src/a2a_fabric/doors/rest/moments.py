"""Moments as the document writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(moment: float) -> str:
    """2025-05-25T14:25:00.000Z"""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
