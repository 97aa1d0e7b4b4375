"""What background tasks share: cancel and wait, signals that wake a waiting task, and the loop that prunes stores."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.errors import CallTimeout, StoreError

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

    @property
    def watcher_count(self) -> int:
        return sum(map(len, self._signals.values()))


async def prune_forever(
    prune_batch: Callable[[], Awaitable[bool]], interval: float, log: logging.Logger, what: str
) -> None:
    """Remove old rows about every `interval` seconds. `prune_batch` removes some, and says whether none are left.

    The interval varies at random, so that the nodes that share a store do not prune it at the same moment.
    """
    while True:
        await asyncio.sleep(interval * (0.5 + random.random()))
        try:
            while not await prune_batch():  # noqa: ASYNC110  # the pause is for other writers; nothing is polled
                await asyncio.sleep(_PRUNE_PAUSE)  # a pause for other writers, not a poll
        except StoreError as error:
            log.warning("%s could not be pruned and stay longer: %s", what, error.message)
        except Exception:
            log.exception("pruning %s failed; it is tried again later", what)
