"""Which of the waiting jobs a worker gets, given how many of each agent's already run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from a2a_fabric.core.job import ClaimWish

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
