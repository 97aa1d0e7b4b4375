"""Limits how often the pollers of a store log that they fail."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

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
