"""A deadline around a piece of work: `asyncio.timeout` at a quarter of its cost, raising our own error."""

from __future__ import annotations

import asyncio
from types import TracebackType

from a2a_fabric.core.errors import CallTimeout


class Deadline:
    """Cancels the block when its time is up and raises CallTimeout; a cancellation from outside passes through."""

    __slots__ = ("_expired", "_handle", "_requests", "_task", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._expired = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "a deadline needs a running task"  # noqa: S101
        self._task = task
        self._requests = task.cancelling()
        self._handle = asyncio.get_running_loop().call_later(max(0.0, self.seconds), self._expire)

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._handle.cancel()
        if self._expired and self._task.uncancel() <= self._requests and kind is asyncio.CancelledError:
            raise CallTimeout(self.seconds) from exc
