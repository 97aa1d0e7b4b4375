"""Deadlines of requests without a timer for each.

Short deadlines get a timer of the event loop. Long ones are checked ten times a second, so they may be late
by that much and cost next to nothing."""

from __future__ import annotations

import asyncio
from typing import Protocol

SHORT_TIMEOUT = 2.0  # seconds; below this a late deadline would be noticed
CHECK_INTERVAL = 0.1


class Expirable(Protocol):
    timer: asyncio.TimerHandle | None

    def expire(self) -> None: ...


class Deadlines:
    """Of one event loop. Each one has at most one deadline at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._expires_at: dict[Expirable, float] = {}
        self._is_checking = False

    def start(self, target: Expirable, timeout: float) -> None:
        if timeout < SHORT_TIMEOUT:
            target.timer = self._loop.call_later(timeout, target.expire)
            return
        self._expires_at[target] = self._loop.time() + timeout
        if not self._is_checking:
            self._is_checking = True
            self._loop.call_later(CHECK_INTERVAL, self._check)

    def stop(self, target: Expirable) -> None:
        if target.timer is not None:
            target.timer.cancel()
            target.timer = None
        else:
            self._expires_at.pop(target, None)

    def _check(self) -> None:
        now = self._loop.time()
        for target in [target for target, ends_at in self._expires_at.items() if ends_at <= now]:
            target.expire()
        self._is_checking = bool(self._expires_at)
        if self._is_checking:
            self._loop.call_later(CHECK_INTERVAL, self._check)
