"""Rate limit per caller, and the headers that report it on every reply."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from a2a_fabric.core.errors import RateLimited
from a2a_fabric.core.limits import TokenBuckets
from a2a_fabric.doors.edge.replies import HeaderList

_WINDOW_SECONDS = 60


class RequestRateLimit:
    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._buckets = None if per_minute is None else TokenBuckets(per_minute, clock)

    def take(self, caller: str) -> HeaderList:
        """Count one request. Returns the headers that report what is left, or raises RequestRateExceeded with them."""
        if self._buckets is None:
            return []
        bucket, wait = self._buckets.take(caller)
        per_minute = self._buckets.per_minute
        headers = _build_headers(per_minute, bucket.tokens)
        if wait:
            message = f"More than {per_minute} requests a minute; try again in {wait:.1f} s"
            raise RequestRateExceeded(message, wait, headers)
        return headers


class RequestRateExceeded(RateLimited):
    def __init__(self, message: str, retry_after: float, headers: HeaderList) -> None:
        super().__init__(message, retry_after)
        self.headers = headers


def _build_headers(per_minute: int, tokens: float) -> HeaderList:
    """`reset` is when the whole allowance is there again; the old names and those of the IETF's draft."""
    remaining, reset = int(tokens), math.ceil((per_minute - tokens) * _WINDOW_SECONDS / per_minute)
    return [
        (b"x-ratelimit-limit", b"%d" % per_minute),
        (b"x-ratelimit-remaining", b"%d" % remaining),
        (b"x-ratelimit-reset", b"%d" % reset),
        (b"ratelimit-policy", b'"default";q=%d;w=%d' % (per_minute, _WINDOW_SECONDS)),
        (b"ratelimit", b'"default";r=%d;t=%d' % (remaining, reset)),
    ]
