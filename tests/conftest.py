"""What all tests share: the requirement mark."""

from __future__ import annotations
