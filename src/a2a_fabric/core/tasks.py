"""What asyncio tasks share: deadlines, cancel and wait, signals that wake a waiting task, the loop that prunes stores.

A timer per call is what `asyncio.timeout` spends most on. Here only short deadlines get a
timer; long ones are entries in a dict that is checked ten times a second, so they may fire
late by that much and cost next to nothing."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from math import inf
from types import TracebackType
from typing import Any, Protocol, TypeVar

from a2a_fabric.core.call import Call, Emit, Handler
from a2a_fabric.core.errors import STORE_AWAY, CallTimeout, StoreError
from a2a_fabric.core.result import Result

T = TypeVar("T")

SLICE = 32  # agents that are handled between two turns of the event loop
_SHORT_TIMEOUT = 2.0  # seconds; below this a late deadline would be noticed
_SWEEP_INTERVAL = 0.1


async def iterate_in_slices(items: Iterable[T], size: int = SLICE) -> AsyncIterator[tuple[T, ...]]:
    """The items, a few at a time. Other tasks run after each slice, so a long list never holds the event loop.

    The items must not change meanwhile.
    """
    iterator = iter(items)
    while part := tuple(islice(iterator, size)):
        yield part
        await asyncio.sleep(0)


async def run_in_turns(steps: Generator[None, None, T], size: int = SLICE) -> T:
    """The result of work in small steps, with other tasks after every few of them."""
    while True:
        for _ in range(size):
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
        await asyncio.sleep(0)


class Expirable(Protocol):
    """Something with at most one deadline at a time. `timer` belongs to the sweep."""

    timer: asyncio.TimerHandle | None

    def expire(self) -> None: ...


class DeadlineSweep:
    """Expires what is due, in one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._expires_at: dict[Expirable, float] = {}
        self._is_scheduled = False

    def start(self, target: Expirable, timeout: float) -> None:
        """An infinite timeout never expires, and costs nothing."""
        if timeout == inf:
            return
        if timeout < _SHORT_TIMEOUT:
            target.timer = self.loop.call_later(max(0.0, timeout), target.expire)
            return
        self._expires_at[target] = self.loop.time() + timeout
        if not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_later(_SWEEP_INTERVAL, self._expire_due)

    def stop(self, target: Expirable) -> None:
        if target.timer is not None:
            target.timer.cancel()
            target.timer = None
        else:
            self._expires_at.pop(target, None)

    def _expire_due(self) -> None:
        now = self.loop.time()
        for target in [target for target, expires_at in self._expires_at.items() if expires_at <= now]:
            if self._expires_at.pop(target, None) is not None:  # else an earlier `expire` has stopped it
                target.expire()
        self._is_scheduled = bool(self._expires_at)
        if self._is_scheduled:
            self.loop.call_later(_SWEEP_INTERVAL, self._expire_due)


class _ThreadSweep(threading.local):
    """The sweep of the thread's event loop; a thread runs one loop at a time."""

    sweep: DeadlineSweep | None = None


_thread = _ThreadSweep()


class Deadline:
    """Cancels the block when its time is up and raises CallTimeout; a cancellation from outside passes through."""

    __slots__ = ("_cancel_requests", "_expired", "_sweep", "_task", "seconds", "timer")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.timer: asyncio.TimerHandle | None = None
        self._expired = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "a deadline needs a running task"  # noqa: S101
        self._task = task
        self._cancel_requests = task.cancelling()
        loop, sweep = asyncio.get_running_loop(), _thread.sweep
        if sweep is None or sweep.loop is not loop:
            sweep = _thread.sweep = DeadlineSweep(loop)
        self._sweep = sweep
        sweep.start(self, self.seconds)

    def expire(self) -> None:
        self._expired = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._sweep.stop(self)
        if self._expired and self._task.uncancel() <= self._cancel_requests and kind is asyncio.CancelledError:
            raise CallTimeout(self.seconds) from exc


def enforce_deadline(inner: Handler) -> Handler:
    """A step: each attempt has the time that its call's target says."""

    async def handle(call: Call, emit: Emit) -> Result:
        with Deadline(call.target.timeout_ms / 1000):
            return await inner(call, emit)

    return handle


_PRUNE_PAUSE = 0.05  # seconds between batches, in which others may write


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks and wait until all have ended; what they raise is dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Signal:
    """Wakes one waiting task. A wake-up that comes before the wait is remembered, several count as one."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        self._event.set()

    async def wait(self, timeout: float) -> bool:
        """Wait for a wake-up and consume it; False if none came in time."""
        try:
            with Deadline(timeout):
                await self._event.wait()
        except CallTimeout:
            return False
        self._event.clear()
        return True


class TopicSignals:
    """The waiting tasks of one process, by topic. Belongs to one event loop."""

    def __init__(self) -> None:
        self._signals: dict[str, set[Signal]] = {}

    @contextmanager
    def watch(self, topic: str) -> Iterator[Signal]:
        """A signal that wakes up for each `post` of the topic, while the block lasts."""
        signal = Signal()
        self._signals.setdefault(topic, set()).add(signal)
        try:
            yield signal
        finally:
            signals = self._signals[topic]
            signals.discard(signal)
            if not signals:
                del self._signals[topic]

    def post(self, topic: str) -> None:
        for signal in self._signals.get(topic, ()):
            signal.wake()

    def post_all(self, topics: Iterable[str] | None = None) -> None:
        """Post these topics, or all of them: for changes of which the topics are not known."""
        for topic in list(self._signals) if topics is None else topics:
            self.post(topic)

    @property
    def watched_topics(self) -> list[str]:
        return list(self._signals)


async def repeat_forever(
    work: Callable[[], Awaitable[None]], interval: float, max_pause: float, log: logging.Logger, what: str
) -> None:
    """Do the work every `interval` seconds; less often, up to `max_pause`, while the store is unavailable."""
    pause = interval
    while True:
        await asyncio.sleep(pause)
        try:
            await work()
            pause = interval
        except (StoreError, TimeoutError) as error:
            if pause == interval:
                log.warning("%s is not possible now: %s", what, error or "no answer in time", extra=STORE_AWAY)
            pause = min(pause * 2, max_pause)
        except Exception:
            log.exception("%s failed; it is tried again", what)


async def prune_forever(
    prune_batch: Callable[[], Awaitable[bool]],
    interval: float,
    log: logging.Logger,
    what: str,
    is_due: Signal | None = None,
) -> None:
    """Remove old rows about every `interval` seconds. `prune_batch` removes some, and says whether none are left.

    The interval varies at random, so that the nodes that share a store do not prune it at the same moment. `is_due`
    wakes it earlier.
    """
    while True:
        pause = interval * (0.5 + random.random())
        await (asyncio.sleep(pause) if is_due is None else is_due.wait(pause))
        try:
            while not await prune_batch():  # noqa: ASYNC110  # the pause is for other writers; nothing is polled
                await asyncio.sleep(_PRUNE_PAUSE)  # a pause for other writers, not a poll
        except StoreError as error:
            log.warning("%s could not be pruned and stay longer: %s", what, error.message, extra=STORE_AWAY)
        except Exception:
            log.exception("pruning %s failed; it is tried again later", what)
