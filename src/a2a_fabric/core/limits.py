"""Limits of what callers use and send: fair shares of what they hold at a time, and token buckets.

One rule holds for calls, streams, subscriptions and threads: a caller may hold at most a fixed multiple of what is
still free. A single caller gets `share` of the whole (three quarters by default), the next one the same share of the
rest, and so on. So no caller, and no small group of callers, can use up everything.

A principal is one caller, whichever connections and doors it uses. Callers without an identity count as one caller
together. Only callers that hold something, and those that acted last, are remembered."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import WeakSet

from a2a_fabric.core.errors import FabricError, RateLimited

DEFAULT_SHARE = 0.75
ANONYMOUS_CALLER = "anonymous"
_UNLIMITED = 1e18  # a multiple; of nothing it is still nothing
_MAX_BUCKETS = 10_000


class FollowsShare(Protocol):
    def set_share(self, share: float) -> None: ...


class CallerShare:
    """The share of one caller, for limits that follow it while the node runs."""

    def __init__(self, value: float) -> None:
        self.value = value
        self._followers: WeakSet[FollowsShare] = WeakSet()

    def follow(self, follower: FollowsShare) -> None:
        self._followers.add(follower)

    def set(self, value: float) -> None:
        self.value = value
        for follower in tuple(self._followers):
            follower.set_share(value)


Share = float | CallerShare


def follow_share(share: Share, follower: FollowsShare) -> float:
    """The share as it is; `follower` is told when it changes."""
    if isinstance(share, CallerShare):
        share.follow(follower)
    return read_share(share)


def read_share(share: Share) -> float:
    return share.value if isinstance(share, CallerShare) else share


class BodyLimit:
    """How many bytes the body of a request may have. All that read bodies share it, and it follows the settings."""

    __slots__ = ("bytes", "listeners")

    def __init__(self, bytes: int) -> None:
        self.bytes = bytes
        self.listeners: list[Callable[[int], None]] = []  # told of each change

    def at_least(self, least: int) -> BodyLimit:
        """The limit of a door that allows `least` bytes in any case."""
        derived = BodyLimit(max(least, self.bytes))
        self.listeners.append(lambda bytes: derived.set(max(least, bytes)))
        return derived

    def set(self, bytes: int) -> None:
        if bytes != self.bytes:
            self.bytes = bytes
            for listener in self.listeners:
                listener(bytes)


class FairLimit:
    """Call `acquire` before and `release` after; every call does both twice, so both are short.

    `resource_name` appears in error messages, for example "open streams". `used_up` builds the error for the case
    that nothing at all is free; without it that is RateLimited, too.
    """

    __slots__ = (
        "__weakref__",
        "_free",
        "_held_by_caller",
        "_multiple",
        "_resource_name",
        "_retry_after",
        "_scarce",
        "_used_up",
        "capacity",
    )

    def __init__(
        self,
        resource_name: str,
        capacity: int,
        share: Share = DEFAULT_SHARE,
        *,
        retry_after: float = 1.0,
        used_up: Callable[[], FabricError] | None = None,
    ) -> None:
        self.capacity = capacity
        self._free = capacity
        self._resource_name = resource_name
        self._multiple = share_to_multiple(follow_share(share, self))
        # With more than this free no caller can hold the multiple of it, so one comparison is enough.
        self._scarce = int(capacity / (1 + self._multiple)) + 1
        self._retry_after = retry_after
        self._used_up = used_up
        self._held_by_caller: dict[str, int] = {}

    @property
    def used(self) -> int:
        return self.capacity - self._free

    def resize(self, capacity: int) -> None:
        """What is in use stays in use, even if it is more than the new capacity."""
        self._free += capacity - self.capacity
        self.capacity = capacity
        self._scarce = int(capacity / (1 + self._multiple)) + 1

    def set_share(self, share: float) -> None:
        self._multiple = share_to_multiple(share)
        self._scarce = int(self.capacity / (1 + self._multiple)) + 1

    def acquire(self, principal_id: str | None) -> None:
        """Raises RateLimited."""
        caller, callers, free = principal_id or ANONYMOUS_CALLER, self._held_by_caller, self._free
        held = callers[caller] if caller in callers else 0  # noqa: SIM401  # cheaper than `get`
        if free <= self._scarce and held >= self._multiple * free:
            raise self._make_refusal(held, free)
        callers[caller] = held + 1
        self._free = free - 1

    def release(self, principal_id: str | None) -> None:
        caller, callers = principal_id or ANONYMOUS_CALLER, self._held_by_caller
        held = callers[caller]
        if held == 1:
            del callers[caller]
        else:
            callers[caller] = held - 1
        self._free += 1

    @property
    def processes(self) -> int:
        """How many processes of the node share the capacity."""
        return 1

    @property
    def in_use(self) -> int:
        return self.capacity - self._free

    def can_acquire(self, principal_id: str | None) -> bool:
        return self.count_held_by(principal_id) < self._multiple * self._free

    def check(self, principal_id: str | None) -> None:
        """Like `acquire`, without acquiring: for callers that must be refused before they begin. Raises RateLimited."""
        if not self.can_acquire(principal_id):
            raise self._make_refusal(self.count_held_by(principal_id), self._free)

    def count_held_by(self, principal_id: str | None) -> int:
        return self._held_by_caller.get(principal_id or ANONYMOUS_CALLER, 0)

    @contextmanager
    def hold(self, principal_id: str | None) -> Iterator[None]:
        """Raises RateLimited."""
        self.acquire(principal_id)
        try:
            yield
        finally:
            self.release(principal_id)

    def _make_refusal(self, held: int, free: int) -> FabricError:
        retry_after = self._retry_after
        if free <= 0 and self._used_up is not None:
            return self._used_up()
        if free <= 0:
            return RateLimited(
                f"The node is busy with {self.capacity} {self._resource_name}; try again in {retry_after:g} s",
                retry_after,
            )
        usage = f"{held} of the node's {self.capacity} {self._resource_name}"
        return RateLimited(f"This caller has {usage}, which is its share; try again in {retry_after:g} s", retry_after)


class TokenBucket:
    """Tokens that refill evenly, up to the number for one minute."""

    __slots__ = ("_rate", "_size", "_updated_at", "tokens")

    def __init__(self, per_minute: int, now: float) -> None:
        self._rate = per_minute / 60
        self._size = float(per_minute)
        self._updated_at = now
        self.tokens = self._size

    def take(self, now: float, count: int = 1) -> float:
        """Take tokens and return 0, or return the seconds until they are there. A full bucket is always enough."""
        self.tokens = min(self._size, self.tokens + (now - self._updated_at) * self._rate)
        self._updated_at = now
        tokens = min(count, self._size)
        if self.tokens >= tokens:
            self.tokens -= tokens
            return 0.0
        return (tokens - self.tokens) / self._rate


class TokenBuckets:
    """A bucket for each of the callers that acted last."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._by_caller: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, caller: str | None, count: int = 1) -> tuple[float, float]:
        """The tokens that the caller has left, and the seconds that it has to wait: 0 if the tokens were taken."""
        caller, now = caller or ANONYMOUS_CALLER, self._clock()
        bucket = self._by_caller.get(caller)
        if bucket is None:
            bucket = self._by_caller[caller] = TokenBucket(self.per_minute, now)
            if len(self._by_caller) > _MAX_BUCKETS:
                self._by_caller.popitem(last=False)
        self._by_caller.move_to_end(caller)
        wait = bucket.take(now, count)
        return bucket.tokens, wait


def share_to_multiple(share: float) -> float:
    """How many times what is free a caller may hold, so that alone it holds `share` of everything."""
    return share / (1 - share) if share < 1 else _UNLIMITED
