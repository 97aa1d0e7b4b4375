"""Which of the waiting jobs a worker gets, given how many of each agent's and of each owner's already run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from a2a_fabric.core.job import ClaimWish
from a2a_fabric.core.shares import multiple_of

T = TypeVar("T")


class Room:
    """How many more jobs of each agent may run now. `count` is asked once per agent, and only where a limit is."""

    def __init__(self, wish: ClaimWish, count: Callable[[str], int]) -> None:
        self._limits = wish.limits
        self._default = wish.default_limit
        self._count = count
        self._free: dict[str, int | None] = {}

    def of(self, agent_id: str) -> int | None:
        """None means without limit."""
        if agent_id not in self._free:
            limit = self._limits.get(agent_id, self._default)
            self._free[agent_id] = max(0, limit - self._count(agent_id)) if limit else limit
        return self._free[agent_id]

    def take(self, agent_id: str) -> bool:
        """Take one place, if there is one."""
        free = self.of(agent_id)
        if free is not None:
            self._free[agent_id] = free - 1 if free else 0
        return free != 0

    def choose(self, candidates: Iterable[tuple[str, T]], limit: int) -> Iterator[T]:
        """The first `limit` of (agent, candidate), in their order, that find room."""
        for agent_id, candidate in candidates:
            if limit <= 0:
                return
            if self.take(agent_id):
                limit -= 1
                yield candidate


class Places:
    """A worker's places and who has them, by the rule of `core.shares`: at most a multiple of what is free.

    `held` is how many jobs of each owner run. Calls that became jobs while they ran may be more than an owner's share
    of the places; what is more takes no place from others.
    """

    def __init__(self, most: int, share: float, held: Mapping[str, int]) -> None:
        self._multiple = multiple_of(share)
        self._held = held
        alone = max(1, math.ceil(most * share))
        self._free = most - sum(min(number, alone) for number in held.values())

    def held_back(self) -> tuple[str, ...]:
        """Owners of whom no further job may begin now."""
        if self._free <= 0:
            return tuple(self._held)
        return tuple(owner for owner, number in self._held.items() if number >= self._multiple * self._free)

    def at_once(self) -> int:
        """How many jobs may begin now even if all of them are one owner's."""
        if self._free <= 0:
            return 0
        most_held = max((n for n in self._held.values() if n < self._multiple * self._free), default=0)
        return max(1, math.ceil((self._multiple * self._free - most_held) / (1 + self._multiple)))
