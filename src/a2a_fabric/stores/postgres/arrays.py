"""Many rows in one statement: one array per column, which `unnest` makes rows of again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def arrays(types: Sequence[str], first: int = 1) -> str:
    """The parameters for `unnest`."""
    return ", ".join(f"${at}::{kind}[]" for at, kind in enumerate(types, first))


def columns_of(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """Their values: one list per column."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
