"""`@requirement("001-40")` ties a test to what it proves; the closing lines of a run count them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T", bound=Callable[..., object])


def requirement(*ids: str) -> Callable[[T], T]:
    """Mark a test as the proof of these requirements."""
    return pytest.mark.requirement(*ids)
