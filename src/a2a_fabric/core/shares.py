"""How much of something limited each caller holds, and how much more it may take.

One rule for calls, streams, subscriptions, threads: a caller may hold at most a fixed multiple of what is still
free. Alone it gets `share` of the whole (three quarters, unless the operator says otherwise), the next one as much of
what is left, and so on. So one greedy caller, or a few, never use up everything, and whoever comes next finds a place.

A principal is one caller, with whichever connection and at whichever door. Callers without an identity are one
caller together. Callers that hold nothing any more are forgotten when there are many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from a2a_fabric.core.errors import FabricError, RateLimited

SHARE = 0.75
ANONYMOUS = "anonymous"
_IDLE_KEPT = 1024  # callers, at least
_EVERYTHING = 1e18  # times what is free; times nothing is still nothing


class Shares:
    """`take` before, `give_back` after: every call does both, twice. `many` names what is shared: "open streams".

    `used_up` makes the error for when nothing at all is free; else that is RateLimited too.
    """

    __slots__ = ("_free", "_held", "_kept", "_many", "_multiple", "_retry_after", "_scarce", "_used_up", "most")

    def __init__(
        self,
        many: str,
        most: int,
        share: float = SHARE,
        *,
        retry_after: float = 1.0,
        used_up: Callable[[], FabricError] | None = None,
    ) -> None:
        self.most = most
        self._free = most
        self._many = many
        self._multiple = multiple_of(share)
        # With more than this free nobody can hold that many times as much, which is quickly seen.
        self._scarce = int(most / (1 + self._multiple)) + 1
        self._retry_after = retry_after
        self._used_up = used_up
        self._held: dict[str, int] = {}
        self._kept = _IDLE_KEPT

    def take(self, principal_id: str | None) -> None:
        """Raises RateLimited."""
        caller, callers, free = principal_id or ANONYMOUS, self._held, self._free
        held = callers[caller] if caller in callers else self._first()
        if free <= self._scarce and held >= self._multiple * free:
            raise self._refusal(held, free)
        callers[caller] = held + 1
        self._free = free - 1

    def give_back(self, principal_id: str | None) -> None:
        self._held[principal_id or ANONYMOUS] -= 1  # and stays, if it is 0: most come again at once
        self._free += 1

    @property
    def total(self) -> int:
        return self.most - self._free

    def has_room(self, principal_id: str | None) -> bool:
        return self.held_by(principal_id) < self._multiple * self._free

    def check(self, principal_id: str | None) -> None:
        """As `take`, without taking: for those who must refuse before they begin. Raises RateLimited."""
        if not self.has_room(principal_id):
            raise self._refusal(self.held_by(principal_id), self._free)

    def held_by(self, principal_id: str | None) -> int:
        return self._held.get(principal_id or ANONYMOUS, 0)

    @contextmanager
    def held(self, principal_id: str | None) -> Iterator[None]:
        """Raises RateLimited."""
        self.take(principal_id)
        try:
            yield
        finally:
            self.give_back(principal_id)

    def _first(self) -> int:
        """What a caller holds that nobody remembers."""
        if len(self._held) >= self._kept:
            for idle in [each for each, held in self._held.items() if not held]:
                del self._held[idle]
            self._kept = 2 * len(self._held) + _IDLE_KEPT
        return 0

    def _refusal(self, held: int, free: int) -> FabricError:
        after = self._retry_after
        if free <= 0 and self._used_up is not None:
            return self._used_up()
        if free <= 0:
            return RateLimited(f"The node is busy with {self.most} {self._many}; try again in {after:g} s", after)
        which = f"{held} of the node's {self.most} {self._many}"
        return RateLimited(f"This caller has {which}, which is its share; try again in {after:g} s", after)


def multiple_of(share: float) -> float:
    """How many times what is free a caller may hold, so that alone it holds `share` of everything."""
    return share / (1 - share) if share < 1 else _EVERYTHING
