"""Step: no more calls at a time than the node can bear, no more per minute than a principal may make."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import RateLimited
from a2a_fabric.core.pipeline import Emit, Handler, Step
from a2a_fabric.core.result import Result

_PRINCIPALS_REMEMBERED = 10_000


class Bucket:
    """Tokens that refill evenly; `wait` is the time until the next one."""

    __slots__ = ("_at", "_rate", "_size", "_tokens")

    def __init__(self, per_minute: int, now: float) -> None:
        self._rate = per_minute / 60
        self._size = float(per_minute)
        self._tokens = self._size
        self._at = now

    def take(self, now: float) -> float:
        """Zero if a token was taken, else the seconds until there is one."""
        self._tokens = min(self._size, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self._rate


def limit(concurrent: int, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> Step:
    buckets: OrderedDict[str, Bucket] = OrderedDict()
    running = 0

    def admit(principal: str, per_minute: int) -> None:
        bucket = buckets.get(principal)
        if bucket is None:
            bucket = buckets[principal] = Bucket(per_minute, clock())
            if len(buckets) > _PRINCIPALS_REMEMBERED:
                buckets.popitem(last=False)
        buckets.move_to_end(principal)
        wait = bucket.take(clock())
        if wait:
            raise RateLimited(f"More than {per_minute} calls a minute; try again in {wait:.1f} s", wait)

    def step(inner: Handler) -> Handler:
        async def handle(call: Call, emit: Emit) -> Result:
            nonlocal running
            if running >= concurrent:
                raise RateLimited(f"The node is busy with {concurrent} calls; try again in a second", 1.0)
            if per_minute is not None:
                admit(call.auth.principal_id or "anonymous", per_minute)
            running += 1
            try:
                return await inner(call, emit)
            finally:
                running -= 1

        return handle

    return step
