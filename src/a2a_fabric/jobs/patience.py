"""A store that cannot be reached right now is waited for, briefly or as long as it takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from a2a_fabric.core.store_errors import StoreFull, StoreUnavailable

T = TypeVar("T")

BRIEFLY = 3.0
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


async def patiently(ask: Callable[[], Awaitable[T]], within: float = BRIEFLY) -> T:
    """What `ask` returns, asked again while the store is away. Only for what may be repeated without harm."""
    ends_at = time.monotonic() + within
    pause = _FIRST_PAUSE
    while True:
        try:
            return await ask()
        except StoreFull:
            raise
        except StoreUnavailable:
            if time.monotonic() + pause >= ends_at:
                raise
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
