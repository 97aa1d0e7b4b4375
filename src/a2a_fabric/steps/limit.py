"""Step: limits concurrent calls (shared fairly among principals) and calls per minute of each principal.

A job is counted per minute when it is accepted, so that its caller is told at once when it is over the limit; when
the job runs, it takes a slot among the concurrent calls like any other call."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import RateLimited
from a2a_fabric.core.fair_limit import ANONYMOUS_CALLER, FairLimit
from a2a_fabric.core.pipeline import Emit, Handler, Step
from a2a_fabric.core.result import Result

_MAX_PRINCIPALS = 10_000


class TokenBucket:
    """Tokens that refill evenly; `wait` is the time until the next one."""

    __slots__ = ("_rate", "_size", "_tokens", "_updated_at")

    def __init__(self, per_minute: int, now: float) -> None:
        self._rate = per_minute / 60
        self._size = float(per_minute)
        self._tokens = self._size
        self._updated_at = now

    def take(self, now: float, count: int = 1) -> float:
        """Zero if the tokens were taken, else the seconds until they are there. A minute's worth is never too many."""
        self._tokens = min(self._size, self._tokens + (now - self._updated_at) * self._rate)
        self._updated_at = now
        tokens = min(count, self._size)
        if self._tokens >= tokens:
            self._tokens -= tokens
            return 0.0
        return (tokens - self._tokens) / self._rate


class CallRateLimit:
    """Calls of each principal per minute; None: as many as it likes."""

    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def count(self, principal_id: str | None, calls: int = 1) -> None:
        """Raises RateLimited."""
        if self.per_minute is None:
            return
        caller = principal_id or ANONYMOUS_CALLER
        bucket = self._buckets.get(caller)
        if bucket is None:
            bucket = self._buckets[caller] = TokenBucket(self.per_minute, self._clock())
            if len(self._buckets) > _MAX_PRINCIPALS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(caller)
        wait = bucket.take(self._clock(), calls)
        if wait:
            raise RateLimited(f"More than {self.per_minute} calls a minute; try again in {wait:.1f} s", wait)


def limit(calls: FairLimit, rate: CallRateLimit | None = None) -> Step:
    """`rate` is left out for calls that were counted before."""
    has_rate_limit = rate is not None and rate.per_minute is not None

    def step(inner: Handler) -> Handler:
        async def handle(call: Call, emit: Emit) -> Result:
            caller = call.auth.principal_id
            calls.acquire(caller)
            try:
                if has_rate_limit:
                    rate.count(caller)  # type: ignore[union-attr]  # there is one
                return await inner(call, emit)
            finally:
                calls.release(caller)

        return handle

    return step
