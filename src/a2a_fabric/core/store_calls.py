"""Store calls with a time limit, repeated while the store is unavailable.

Stores report by themselves, after a few seconds, that they are unavailable. A store
that does not answer at all (a frozen server, a locked file) is given up after
`STORE_TIMEOUT`, because callers have deadlines of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.errors import CallTimeout, StoreFull, StoreUnavailable

T = TypeVar("T")

RETRY_SECONDS = 3.0
STORE_TIMEOUT = 12.0
_FIRST_PAUSE = 0.05
_MAX_PAUSE = 1.0


async def retry_store_call(
    operation: Callable[[], Awaitable[T]], retry_seconds: float = RETRY_SECONDS, timeout: float = STORE_TIMEOUT
) -> T:
    """Repeat `operation` while the store is unavailable. Only for operations that may be repeated without harm."""
    ends_at = time.monotonic() + retry_seconds
    pause = _FIRST_PAUSE
    while True:
        try:
            return await call_store(operation, timeout)
        except StoreFull:
            raise
        except StoreUnavailable:
            if time.monotonic() + pause >= ends_at:
                raise
        await asyncio.sleep(pause)
        pause = min(pause * 2, _MAX_PAUSE)


async def call_store(operation: Callable[[], Awaitable[T]], timeout: float = STORE_TIMEOUT) -> T:
    """Raises StoreUnavailable if the store does not answer within `timeout` seconds."""
    try:
        with Deadline(timeout):
            return await operation()
    except CallTimeout as exc:
        raise StoreUnavailable(
            f"The store did not answer within {timeout:g} s; a change that was requested may have been made"
        ) from exc
