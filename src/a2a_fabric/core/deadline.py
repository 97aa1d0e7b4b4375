"""A deadline around a piece of work, raising our own error when time is up.

A timer per call is what `asyncio.timeout` spends most on. Here only short
deadlines get one; long ones are entries in a dict that is looked through ten
times a second, so they may be late by that much and cost next to nothing.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from weakref import WeakKeyDictionary

from a2a_fabric.core.errors import CallTimeout

_SHORT = 2.0  # seconds; below this a late deadline would be noticed
_LOOK_EVERY = 0.1


class Deadline:
    """Cancels the block when its time is up and raises CallTimeout; a cancellation from outside passes through."""

    __slots__ = ("_expired", "_handle", "_requests", "_sweep", "_task", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._expired = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "a deadline needs a running task"  # noqa: S101
        self._task = task
        self._requests = task.cancelling()
        loop = asyncio.get_running_loop()
        if self.seconds < _SHORT:
            self._sweep = None
            self._handle = loop.call_later(max(0.0, self.seconds), self.expire)
        else:
            self._sweep = _sweep_of(loop)
            self._sweep.add(self, loop.time() + self.seconds)

    def expire(self) -> None:
        self._expired = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._sweep is None:
            self._handle.cancel()
        else:
            self._sweep.remove(self)
        if self._expired and self._task.uncancel() <= self._requests and kind is asyncio.CancelledError:
            raise CallTimeout(self.seconds) from exc


class _Sweep:
    """The long deadlines of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ends: dict[Deadline, float] = {}
        self._is_looking = False

    def add(self, deadline: Deadline, ends_at: float) -> None:
        self._ends[deadline] = ends_at
        if not self._is_looking:
            self._is_looking = True
            self.loop.call_later(_LOOK_EVERY, self._look)

    def remove(self, deadline: Deadline) -> None:
        self._ends.pop(deadline, None)

    def _look(self) -> None:
        now = self.loop.time()
        for deadline in [each for each, ends_at in self._ends.items() if ends_at <= now]:
            del self._ends[deadline]
            deadline.expire()
        self._is_looking = bool(self._ends)
        if self._is_looking:
            self.loop.call_later(_LOOK_EVERY, self._look)


_sweeps: WeakKeyDictionary[asyncio.AbstractEventLoop, _Sweep] = WeakKeyDictionary()


def _sweep_of(loop: asyncio.AbstractEventLoop) -> _Sweep:
    sweep = _sweeps.get(loop)
    if sweep is None:
        sweep = _sweeps[loop] = _Sweep(loop)
    return sweep
