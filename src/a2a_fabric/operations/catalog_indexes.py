"""Indexes of the catalog, one for each set of agents that callers may see; each is brought up to date when it is used.

An update reads only agents that changed, and lets other requests run in between."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from typing import Generic, Protocol, TypeVar

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.logins import find_login_owner
from a2a_fabric.core.policy import AccessKey, make_access_key
from a2a_fabric.core.tasks import run_in_turns
from a2a_fabric.registry.registry import Registry

_MAX_INDEXES = 16  # for callers with limited access, one for each kind of access, and for callers with logins
_STEPS_PER_TURN = 20  # steps of an update before other tasks may run


class UpdatableIndex(Protocol):
    def update(self, agents: Sequence[Manifest]) -> Generator[None]:
        """Update in small steps; between two of them the index can be read."""
        ...


I = TypeVar("I", bound=UpdatableIndex)  # noqa: E741  # an index


class _IndexEntry(Generic[I]):
    """An index and the agents that it contains."""

    def __init__(self, index: I) -> None:
        self.index = index
        self._agents: tuple[Manifest, ...] | None = None

    async def update(self, agents: tuple[Manifest, ...]) -> I:
        if agents is not self._agents:
            await run_in_turns(self.index.update(agents), _STEPS_PER_TURN)
            self._agents = agents
        return self.index


class CatalogIndexes(Generic[I]):
    """`sees_all` says whether a caller may use the index of the whole catalog."""

    def __init__(self, registry: Registry, make_index: Callable[[], I], sees_all: Callable[[Principal], bool]) -> None:
        self._registry = registry
        self._make_index = make_index
        self._sees_all = sees_all
        self._whole = _IndexEntry(make_index())
        self._by_access_key: OrderedDict[tuple[AccessKey, str | None], _IndexEntry[I]] = OrderedDict()
        self._lock = asyncio.Lock()

    async def find(self, principal: Principal) -> I:
        """The index of the agents that this caller may see."""
        registry = self._registry
        async with self._lock:
            is_shared = registry.catalog_for(principal) is registry.catalog
            if is_shared and self._sees_all(principal):
                return await self._whole.update(registry.catalog.agents)
            access_key = make_access_key(principal), None if is_shared else find_login_owner(principal)
            entry = self._by_access_key.setdefault(access_key, _IndexEntry(self._make_index()))
            self._by_access_key.move_to_end(access_key)
            if len(self._by_access_key) > _MAX_INDEXES:
                self._by_access_key.popitem(last=False)
            return await entry.update((await registry.prepare_view(principal)).agents)
