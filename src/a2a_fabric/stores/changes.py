"""What the stores share about changes: which topics changed since the last poll, and what a waiting writer is told."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from a2a_fabric.core.errors import STORE_AWAY
from a2a_fabric.core.tasks import TopicSignals


class ChangedTopics:
    """Posts the topics whose signature (a version, a revision) differs from the one of the last poll."""

    def __init__(self, signals: TopicSignals) -> None:
        self._signals = signals
        self._last: dict[str, object] = {}

    def update(self, signatures: dict[str, object]) -> None:
        unknown = object()
        self._signals.post_all(topic for topic, each in signatures.items() if each != self._last.get(topic, unknown))
        self._last = signatures


def ids_from_topics(topics: Iterable[str], prefix: str) -> list[str]:
    return [topic[len(prefix) :] for topic in topics if topic.startswith(prefix)]


def set_outcome(future: asyncio.Future[Any], outcome: Any) -> None:
    """Resolve the future with a result or an error; a caller that was cancelled is left alone."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


_LOG_INTERVAL = 30.0


class LogThrottle:
    """Logs a warning at most every 30 seconds; for loops that repeat a failing operation."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._logged_at = float("-inf")

    def warn(self, message: str) -> None:
        now = self._clock()
        if now - self._logged_at >= _LOG_INTERVAL:
            self._logged_at = now
            self._log.warning("%s", message, extra=STORE_AWAY)
