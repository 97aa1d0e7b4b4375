"""Rate limit per caller, and the headers that report it on every reply."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from a2a_fabric.core.errors import RateLimited
from a2a_fabric.doors.edge import HeaderList

_MAX_CALLERS = 10_000
_WINDOW_SECONDS = 60


class _Bucket:
    """Tokens that refill evenly."""

    __slots__ = ("at", "tokens")

    def __init__(self, tokens: float, at: float) -> None:
        self.tokens = tokens
        self.at = at


class RequestRateLimit:
    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, caller: str) -> HeaderList:
        """One request more. The headers that tell what is left; RateLimited holds the same as `headers`."""
        if self._per_minute is None:
            return []
        bucket = self._refill_bucket(caller, self._per_minute)
        is_allowed = bucket.tokens >= 1
        if is_allowed:
            bucket.tokens -= 1
        headers = _build_headers(self._per_minute, bucket.tokens)
        if is_allowed:
            return headers
        retry_after = (1 - bucket.tokens) * _WINDOW_SECONDS / self._per_minute
        raise RequestRateExceeded(
            f"More than {self._per_minute} requests a minute; try again in {retry_after:.1f} s", retry_after, headers
        )

    def _refill_bucket(self, caller: str, per_minute: int) -> _Bucket:
        now = self._clock()
        bucket = self._buckets.get(caller)
        if bucket is None:
            bucket = self._buckets[caller] = _Bucket(float(per_minute), now)
            if len(self._buckets) > _MAX_CALLERS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(caller)
        bucket.tokens = min(float(per_minute), bucket.tokens + (now - bucket.at) * per_minute / _WINDOW_SECONDS)
        bucket.at = now
        return bucket


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
