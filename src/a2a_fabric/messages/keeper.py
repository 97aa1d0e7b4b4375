"""Removes messages that have been remembered long enough, and what waited in inboxes in vain, a little at a time.

Both in the background. Inboxes are looked after more often: whoever counts or
searches one goes through all that is in it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from a2a_fabric.core.store_errors import StoreError
from a2a_fabric.core.stores import Messages

_log = logging.getLogger(__name__)
_EVERY = 300.0
_INBOXES_EVERY = 15.0
_AT_ONCE = 500
_BREATH = 0.05


class MessageKeeper:
    def __init__(self, store: Messages, keep_seconds: float, inboxes_every: float = _INBOXES_EVERY) -> None:
        self._store = store
        self._keep_seconds = keep_seconds
        self._inboxes_every = inboxes_every

    async def run(self) -> None:
        await asyncio.gather(
            _again_and_again(self._prune, _EVERY), _again_and_again(self._store.expire, self._inboxes_every)
        )

    async def _prune(self, limit: int) -> int:
        return await self._store.prune(time.time() - self._keep_seconds, limit)


async def _again_and_again(remove: Callable[[int], Awaitable[int]], every: float) -> None:
    while True:
        await asyncio.sleep(every * (0.5 + random.random()))  # several nodes need not meet
        try:
            removed = _AT_ONCE
            while removed == _AT_ONCE:
                removed = await remove(_AT_ONCE)
                await asyncio.sleep(_BREATH)
        except StoreError as error:
            _log.warning("old messages are kept longer than they should: %s", error.message)
        except Exception:
            _log.exception("removing old messages failed; it is tried again")
