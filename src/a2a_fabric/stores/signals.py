"""Signals inside one process: a task that waits for a topic is woken when the topic changes.

Every store has one `TopicSignals`. What learns of changes elsewhere (a poll, a
NOTIFY of the database) wakes the same waiters through `post`. The pollers log
their errors through `LogThrottle`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.errors import CallTimeout


class Signal:
    """Remembers that it rang until somebody has waited for it."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        self._event.set()

    async def wait(self, timeout: float) -> bool:
        try:
            with Deadline(timeout):
                await self._event.wait()
        except CallTimeout:
            return False
        self._event.clear()
        return True


class TopicSignals:
    """The bells of one process, by topic. Belongs to one event loop."""

    def __init__(self) -> None:
        self._signals: dict[str, set[Signal]] = {}

    @contextmanager
    def watch(self, topic: str) -> Iterator[Signal]:
        signal = Signal()
        self._signals.setdefault(topic, set()).add(signal)
        try:
            yield signal
        finally:
            topic_signals = self._signals[topic]
            topic_signals.discard(signal)
            if not topic_signals:
                del self._signals[topic]

    def post(self, topic: str) -> None:
        for signal in self._signals.get(topic, ()):
            signal.wake()

    def post_all(self, topics: Iterable[str] | None = None) -> None:
        """Ring these, or everything: for when all that is known is that something happened."""
        for topic in list(self._signals) if topics is None else topics:
            self.post(topic)

    @property
    def watched_topics(self) -> list[str]:
        return list(self._signals)


_LOG_INTERVAL = 30.0


class LogThrottle:
    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._logged_at = float("-inf")

    def warn(self, message: str) -> None:
        now = self._clock()
        if now - self._logged_at >= _LOG_INTERVAL:
            self._logged_at = now
            self._log.warning("%s", message)
