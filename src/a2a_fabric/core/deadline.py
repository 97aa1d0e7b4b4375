"""Deadlines: a context manager, and a step that gives each attempt its timeout. Both raise CallTimeout.

A timer per call is what `asyncio.timeout` spends most on. Here only short deadlines get a
timer; long ones are entries in a dict that is checked ten times a second, so they may fire
late by that much and cost next to nothing."""

from __future__ import annotations

import asyncio
from types import TracebackType
from weakref import WeakKeyDictionary

from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import CallTimeout
from a2a_fabric.core.pipeline import Emit, Handler
from a2a_fabric.core.result import Result

_TIMER_LIMIT = 2.0  # seconds; below this a late deadline would be noticed
_SWEEP_INTERVAL = 0.1


class Deadline:
    """Cancels the block when its time is up and raises CallTimeout; a cancellation from outside passes through."""

    __slots__ = ("_cancel_requests", "_expired", "_handle", "_sweep", "_task", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._expired = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "a deadline needs a running task"  # noqa: S101
        self._task = task
        self._cancel_requests = task.cancelling()
        loop = asyncio.get_running_loop()
        if self.seconds < _TIMER_LIMIT:
            self._sweep = None
            self._handle = loop.call_later(max(0.0, self.seconds), self.expire)
        else:
            self._sweep = _get_sweep(loop)
            self._sweep.add(self, loop.time() + self.seconds)

    def expire(self) -> None:
        self._expired = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._sweep is None:
            self._handle.cancel()
        else:
            self._sweep.remove(self)
        if self._expired and self._task.uncancel() <= self._cancel_requests and kind is asyncio.CancelledError:
            raise CallTimeout(self.seconds) from exc


class _DeadlineSweep:
    """The long deadlines of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._expiry_times: dict[Deadline, float] = {}
        self._is_scheduled = False

    def add(self, deadline: Deadline, ends_at: float) -> None:
        self._expiry_times[deadline] = ends_at
        if not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_later(_SWEEP_INTERVAL, self._expire_due)

    def remove(self, deadline: Deadline) -> None:
        self._expiry_times.pop(deadline, None)

    def _expire_due(self) -> None:
        now = self.loop.time()
        for deadline in [each for each, ends_at in self._expiry_times.items() if ends_at <= now]:
            del self._expiry_times[deadline]
            deadline.expire()
        self._is_scheduled = bool(self._expiry_times)
        if self._is_scheduled:
            self.loop.call_later(_SWEEP_INTERVAL, self._expire_due)


_sweeps: WeakKeyDictionary[asyncio.AbstractEventLoop, _DeadlineSweep] = WeakKeyDictionary()


def _get_sweep(loop: asyncio.AbstractEventLoop) -> _DeadlineSweep:
    sweep = _sweeps.get(loop)
    if sweep is None:
        sweep = _sweeps[loop] = _DeadlineSweep(loop)
    return sweep


def enforce_deadline(inner: Handler) -> Handler:
    async def handle(call: Call, emit: Emit) -> Result:
        with Deadline(call.target.timeout_ms / 1000):
            return await inner(call, emit)

    return handle
