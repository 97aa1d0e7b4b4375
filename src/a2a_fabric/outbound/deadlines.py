"""The deadlines of requests under way, without a timer for each.

Short ones get a timer of the event loop; long ones are looked through ten times
a second, so they may be late by that much and cost next to nothing.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

SHORT = 2.0  # seconds; below this a late deadline would be noticed
LOOK_EVERY = 0.1


class Expiring(Protocol):
    timer: asyncio.TimerHandle | None

    def expire(self) -> None: ...


class Deadlines:
    """Of one event loop. Each one has at most one deadline at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ends: dict[Expiring, float] = {}
        self._is_looking = False

    def start(self, each: Expiring, timeout: float) -> None:
        if timeout < SHORT:
            each.timer = self._loop.call_later(timeout, each.expire)
            return
        self._ends[each] = self._loop.time() + timeout
        if not self._is_looking:
            self._is_looking = True
            self._loop.call_later(LOOK_EVERY, self._look)

    def stop(self, each: Expiring) -> None:
        if each.timer is not None:
            each.timer.cancel()
            each.timer = None
        else:
            self._ends.pop(each, None)

    def _look(self) -> None:
        now = self._loop.time()
        for each in [each for each, ends_at in self._ends.items() if ends_at <= now]:
            each.expire()
        self._is_looking = bool(self._ends)
        if self._is_looking:
            self._loop.call_later(LOOK_EVERY, self._look)
