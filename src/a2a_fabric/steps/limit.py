"""Step: limits concurrent calls (shared fairly among principals) and calls per minute of each principal.

A job is counted per minute when it is accepted, so that its caller is told at once when it is over the limit; when
the job runs, it takes a slot among the concurrent calls like any other call."""

from __future__ import annotations

import time
from collections.abc import Callable

from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import RateLimited
from a2a_fabric.core.limits import FairLimit, TokenBuckets
from a2a_fabric.core.pipeline import Emit, Handler, Step
from a2a_fabric.core.result import Result


class CallRateLimit:
    """How many calls each principal may make in a minute; None means no limit."""

    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._buckets = None if per_minute is None else TokenBuckets(per_minute, clock)

    def count(self, principal_id: str | None, calls: int = 1) -> None:
        """Raises RateLimited."""
        if self._buckets is not None:
            _, wait = self._buckets.take(principal_id, calls)
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
