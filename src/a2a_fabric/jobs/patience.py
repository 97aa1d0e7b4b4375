"""A store that cannot be reached right now is waited for, briefly or as long as it takes.

Stores say by themselves, after a few seconds, that they are away. One that says
nothing at all (a server that is frozen, a file that somebody keeps locked) is not
waited for much longer: callers have patience of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.errors import CallTimeout
from a2a_fabric.core.store_errors import StoreFull, StoreUnavailable

T = TypeVar("T")

BRIEFLY = 3.0
SILENCE = 12.0
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


async def patiently(ask: Callable[[], Awaitable[T]], within: float = BRIEFLY, silence: float = SILENCE) -> T:
    """What `ask` returns, asked again while the store is away. Only for what may be repeated without harm."""
    ends_at = time.monotonic() + within
    pause = _FIRST_PAUSE
    while True:
        try:
            return await once(ask, silence)
        except StoreFull:
            raise
        except StoreUnavailable:
            if time.monotonic() + pause >= ends_at:
                raise
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)


async def once(ask: Callable[[], Awaitable[T]], silence: float = SILENCE) -> T:
    """What `ask` returns. Raises StoreUnavailable if the store says nothing for so many seconds."""
    try:
        with Deadline(silence):
            return await ask()
    except CallTimeout as exc:
        raise StoreUnavailable(
            f"The store did not answer within {silence:g} s; a change that was asked for may have been made"
        ) from exc
