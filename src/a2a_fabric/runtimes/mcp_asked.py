"""One call under way: what was heard of it and not yet passed on to the caller."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

from a2a_fabric.core.events import Event
from a2a_fabric.core.pipeline import Emit

T = TypeVar("T")

_KEPT = 256  # events for a slow reader; then the oldest are dropped, for progress is only worth its newest
_CANCEL_TIMEOUT = 6.0  # for telling the server


class Asked:
    """Many calls share one session, so a slow reader must not hold it up: `hear` never waits."""

    __slots__ = ("_events", "_is_done", "_wake")

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=_KEPT)
        self._wake = asyncio.Event()
        self._is_done = False

    def hear(self, event: Event) -> None:
        self._events.append(event)
        self._wake.set()

    async def answered(self, request: Coroutine[Any, Any, T], emit: Emit) -> T:
        """Run the request, emit what is heard meanwhile, in order; cancelling cancels the request."""
        task = asyncio.ensure_future(request)
        task.add_done_callback(self._finish)
        try:
            while not self._is_done or self._events:
                await self._wake.wait()
                self._wake.clear()
                while self._events:
                    await emit(self._events.popleft())
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=_CANCEL_TIMEOUT)

    def _finish(self, task: asyncio.Task[Any]) -> None:
        self._is_done = True
        self._wake.set()
