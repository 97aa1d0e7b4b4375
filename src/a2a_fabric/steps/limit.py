"""Step: no more calls at a time than the node can bear, of which each principal has its share, and no more per
minute than a principal may make.

A job is counted per minute when it is accepted, so that its caller hears at once that it asks too often; when it
runs it takes its place among the calls like any other.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import RateLimited
from a2a_fabric.core.pipeline import Emit, Handler, Step
from a2a_fabric.core.result import Result
from a2a_fabric.core.shares import ANONYMOUS, Shares

_PRINCIPALS_REMEMBERED = 10_000


class Bucket:
    """Tokens that refill evenly; `wait` is the time until the next one."""

    __slots__ = ("_at", "_rate", "_size", "_tokens")

    def __init__(self, per_minute: int, now: float) -> None:
        self._rate = per_minute / 60
        self._size = float(per_minute)
        self._tokens = self._size
        self._at = now

    def take(self, now: float, wanted: int = 1) -> float:
        """Zero if the tokens were taken, else the seconds until they are there. A minute's worth is never too many."""
        self._tokens = min(self._size, self._tokens + (now - self._at) * self._rate)
        self._at = now
        tokens = min(wanted, self._size)
        if self._tokens >= tokens:
            self._tokens -= tokens
            return 0.0
        return (tokens - self._tokens) / self._rate


class CallRate:
    """Calls of each principal per minute; None: as many as it likes."""

    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def count(self, principal_id: str | None, calls: int = 1) -> None:
        """Raises RateLimited."""
        if self.per_minute is None:
            return
        caller = principal_id or ANONYMOUS
        bucket = self._buckets.get(caller)
        if bucket is None:
            bucket = self._buckets[caller] = Bucket(self.per_minute, self._clock())
            if len(self._buckets) > _PRINCIPALS_REMEMBERED:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(caller)
        wait = bucket.take(self._clock(), calls)
        if wait:
            raise RateLimited(f"More than {self.per_minute} calls a minute; try again in {wait:.1f} s", wait)


def limit(calls: Shares, rate: CallRate | None = None) -> Step:
    """`rate` is left out for calls that were counted before."""
    counts = rate is not None and rate.per_minute is not None

    def step(inner: Handler) -> Handler:
        async def handle(call: Call, emit: Emit) -> Result:
            caller = call.auth.principal_id
            calls.take(caller)
            try:
                if counts:
                    rate.count(caller)  # type: ignore[union-attr]  # there is one
                return await inner(call, emit)
            finally:
                calls.give_back(caller)

        return handle

    return step
