"""Limits that hold over all processes of a node; for a node of one process they are those of `limits.py`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.limits import ANONYMOUS_CALLER, DEFAULT_SHARE, FairLimit, Share, TokenBuckets
from a2a_fabric.core.shared_counts import SharedCounts, SharedRate, SharedUsage

# Of a limit: what a process may keep that its callers do not hold, what all may keep together, and for how long.
_SPARE_PART, _SPARE_PART_OF_ALL = 100, 20
_SPARE_SECONDS = 0.5


class NodeLimit(FairLimit):
    """A fair limit of which other processes use their part. `capacity` is that of all, `in_use` is of this process.

    A process reserves what its callers hold, and for a moment keeps up to a hundredth of the capacity reserved that
    they hold no longer: so most calls touch nothing that is shared. All processes together keep at most a twentieth, so
    limits below a hundred are exact, and below twenty for each process. Two processes that reserve the last place at
    one moment may both be refused; never do both get it.
    """

    __slots__ = ("_reserved", "_reserved_by_caller", "_spare", "_spare_timer", "_usage")

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
        self._spare = self._compute_spare()
        self._spare_timer: asyncio.TimerHandle | None = None
        self._reserved = 0
        self._reserved_by_caller: dict[str, int] = {}

    @property
    def processes(self) -> int:
        return self._usage.processes

    def resize(self, capacity: int) -> None:
        super().resize(capacity)
        self._spare = self._compute_spare()
        self._give_back_spare()  # of a larger capacity it may be more than the new one

    def _compute_spare(self) -> int:
        return min(self.capacity // _SPARE_PART, self.capacity // (_SPARE_PART_OF_ALL * self.processes))

    def acquire(self, principal_id: str | None) -> None:
        """Raises RateLimited."""
        caller, callers, reserved = principal_id or ANONYMOUS_CALLER, self._held_by_caller, self._reserved_by_caller
        held = callers[caller] if caller in callers else 0  # noqa: SIM401  # cheaper than `get`
        if caller not in reserved or held >= reserved[caller]:
            self._reserve_one(caller, held)
        callers[caller] = held + 1
        self._free -= 1

    def release(self, principal_id: str | None) -> None:
        caller, callers = principal_id or ANONYMOUS_CALLER, self._held_by_caller
        held = callers[caller] - 1
        if held:
            callers[caller] = held
        else:
            del callers[caller]
        self._free += 1
        if self._reserved + self._free - self.capacity > self._spare:
            self._set_reserved(caller, held)
        elif self._spare_timer is None:
            loop = asyncio.get_running_loop()
            self._spare_timer = loop.call_later(_SPARE_SECONDS, self._end_spare)

    def can_acquire(self, principal_id: str | None) -> bool:
        caller = principal_id or ANONYMOUS_CALLER
        if self._held_by_caller.get(caller, 0) < self._reserved_by_caller.get(caller, 0):
            return True
        self._give_back_spare()
        return self.count_held_by(principal_id) < self._multiple * self._count_free()

    def check(self, principal_id: str | None) -> None:
        """Raises RateLimited."""
        if not self.can_acquire(principal_id):
            raise self._make_refusal(self.count_held_by(principal_id), self._count_free())

    def count_held_by(self, principal_id: str | None) -> int:
        caller = principal_id or ANONYMOUS_CALLER
        return self._held_by_caller.get(caller, 0) + self._usage.count_others(caller)

    def _reserve_one(self, caller: str, held: int) -> None:
        """Raises RateLimited."""
        self._set_reserved(caller, held + 1)  # before the others are looked at
        free = self._count_free() + 1
        if free > self._scarce:
            return
        self._give_back_spare(caller)
        free = self._count_free() + 1
        held_by_all = held + self._usage.count_others(caller)
        if held_by_all >= self._multiple * free:
            self._set_reserved(caller, held)
            raise self._make_refusal(held_by_all, free)

    def _count_free(self) -> int:
        """What no process has reserved."""
        return self.capacity - self._reserved - self._usage.count_others()

    def _end_spare(self) -> None:
        """A process without calls would keep its spare part from the others for good."""
        self._spare_timer = None
        self._give_back_spare()

    def _give_back_spare(self, reserving: str = "") -> None:
        """What callers do not hold any more, except for the one that is about to. Most often there is nothing, and then
        no caller is looked at: there may be thousands.
        """
        if self._reserved - self.in_use <= bool(reserving):
            return
        for caller, number in tuple(self._reserved_by_caller.items()):
            held = self._held_by_caller.get(caller, 0)
            if number > held and caller != reserving:
                self._set_reserved(caller, held)

    def _set_reserved(self, caller: str, number: int) -> None:
        reserved = self._reserved_by_caller
        self._reserved += number - reserved.get(caller, 0)
        if number:
            reserved[caller] = number
        else:
            reserved.pop(caller, None)
        self._usage.publish(caller, number, self._reserved)


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
