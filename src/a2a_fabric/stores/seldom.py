"""A complaint that would be made many times a minute is made twice a minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_EVERY = 30.0


class Seldom:
    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._told_at = float("-inf")

    def warn(self, words: str) -> None:
        now = self._clock()
        if now - self._told_at >= _EVERY:
            self._told_at = now
            self._log.warning("%s", words)
