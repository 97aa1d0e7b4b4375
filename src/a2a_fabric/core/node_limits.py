"""Limits that hold over all processes of a node; for a node of one process they are those of `limits.py`."""

from __future__ import annotations

import time
from collections.abc import Callable

from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.limits import ANONYMOUS_CALLER, DEFAULT_SHARE, FairLimit, Share, TokenBuckets
from a2a_fabric.core.shared_counts import SharedCounts, SharedRate, SharedUsage


class NodeLimit(FairLimit):
    """A fair limit of which other processes use their part. `capacity` is that of all, `in_use` is of this process.

    Two processes that take the last place at one moment may both be refused; never do both get it.
    """

    __slots__ = ("_usage",)

    def __init__(
        self,
        counts: SharedCounts,
        resource_name: str,
        capacity: int,
        share: Share = DEFAULT_SHARE,
        *,
        retry_after: float = 1.0,
        used_up: Callable[[], FabricError] | None = None,
    ) -> None:
        super().__init__(resource_name, capacity, share, retry_after=retry_after, used_up=used_up)
        self._usage = SharedUsage(counts, resource_name)

    @property
    def processes(self) -> int:
        return self._usage.processes

    def acquire(self, principal_id: str | None) -> None:
        """Raises RateLimited."""
        caller, callers, usage = principal_id or ANONYMOUS_CALLER, self._held_by_caller, self._usage
        held, used = callers.get(caller, 0), self.capacity - self._free
        usage.publish(caller, held + 1, used + 1)  # before the others are looked at
        free = self._free - usage.count_others()
        if free <= self._scarce:
            held_by_all = held + usage.count_others(caller)
            if held_by_all >= self._multiple * free:
                usage.publish(caller, held, used)
                raise self._make_refusal(held_by_all, free)
        callers[caller] = held + 1
        self._free -= 1

    def release(self, principal_id: str | None) -> None:
        super().release(principal_id)
        caller = principal_id or ANONYMOUS_CALLER
        self._usage.publish(caller, self._held_by_caller.get(caller, 0), self.capacity - self._free)

    def can_acquire(self, principal_id: str | None) -> bool:
        return self.count_held_by(principal_id) < self._multiple * self._count_free()

    def check(self, principal_id: str | None) -> None:
        """Raises RateLimited."""
        if not self.can_acquire(principal_id):
            raise self._make_refusal(self.count_held_by(principal_id), self._count_free())

    def count_held_by(self, principal_id: str | None) -> int:
        caller = principal_id or ANONYMOUS_CALLER
        return self._held_by_caller.get(caller, 0) + self._usage.count_others(caller)

    def _count_free(self) -> int:
        return self._free - self._usage.count_others()


def build_limit(
    counts: SharedCounts | None,
    resource_name: str,
    capacity: int,
    share: Share = DEFAULT_SHARE,
    *,
    retry_after: float = 1.0,
    used_up: Callable[[], FabricError] | None = None,
) -> FairLimit:
    """`resource_name` is the same in all processes; limits of one name are one."""
    if counts is None:
        return FairLimit(resource_name, capacity, share, retry_after=retry_after, used_up=used_up)
    return NodeLimit(counts, resource_name, capacity, share, retry_after=retry_after, used_up=used_up)


class NodeBuckets(TokenBuckets):
    """A bucket for each caller, from which all processes take. `name` tells it from other limits."""

    def __init__(
        self, counts: SharedCounts, name: str, per_minute: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(per_minute, clock)
        self._rate = SharedRate(counts, name, per_minute)

    def take(self, caller: str | None, count: int = 1) -> tuple[float, float]:
        return self._rate.take(caller or ANONYMOUS_CALLER, count, self._clock())


def build_buckets(
    counts: SharedCounts | None, name: str, per_minute: int, clock: Callable[[], float] = time.monotonic
) -> TokenBuckets:
    """The clock counts from one moment in all processes, as that of the system does."""
    return TokenBuckets(per_minute, clock) if counts is None else NodeBuckets(counts, name, per_minute, clock)
