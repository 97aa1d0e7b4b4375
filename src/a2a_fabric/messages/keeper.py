"""Removes messages that have been remembered long enough, a little at a time, in the background."""

from __future__ import annotations

import asyncio
import logging
import random
import time

from a2a_fabric.core.store_errors import StoreError
from a2a_fabric.core.stores import Conversations

_log = logging.getLogger(__name__)
_EVERY = 300.0
_AT_ONCE = 500
_BREATH = 0.05


class MessageKeeper:
    def __init__(self, store: Conversations, keep_seconds: float) -> None:
        self._store = store
        self._keep_seconds = keep_seconds

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY * (0.5 + random.random()))  # several nodes need not meet
            try:
                removed = _AT_ONCE
                while removed == _AT_ONCE:
                    removed = await self._store.prune(time.time() - self._keep_seconds, _AT_ONCE)
                    await asyncio.sleep(_BREATH)
            except StoreError as error:
                _log.warning("old messages are kept longer than they should: %s", error.message)
            except Exception:
                _log.exception("pruning messages failed; it is tried again")
