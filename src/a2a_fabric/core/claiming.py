"""Which of the waiting jobs a worker gets, given how many of each agent's already run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from a2a_fabric.core.job import ClaimWish

T = TypeVar("T")


class Room:
    """How many more jobs of each agent may run now."""

    def __init__(self, wish: ClaimWish, running: Mapping[str, int]) -> None:
        self._limits = wish.limits
        self._default = wish.default_limit
        self._running = dict(running)

    def of(self, agent_id: str) -> int | None:
        """None means without limit."""
        limit = self._limits.get(agent_id, self._default)
        return None if limit is None else max(0, limit - self._running.get(agent_id, 0))

    def take(self, agent_id: str) -> bool:
        """Take one place, if there is one."""
        if self.of(agent_id) == 0:
            return False
        self._running[agent_id] = self._running.get(agent_id, 0) + 1
        return True

    def choose(self, candidates: Iterable[tuple[str, T]], limit: int) -> Iterator[T]:
        """The first `limit` of (agent, candidate), in their order, that find room."""
        for agent_id, candidate in candidates:
            if limit <= 0:
                return
            if self.take(agent_id):
                limit -= 1
                yield candidate


def counts_matter(wish: ClaimWish) -> bool:
    """Whether anything is limited at all; else nobody need count what runs."""
    return wish.default_limit is not None or bool(wish.limits)
