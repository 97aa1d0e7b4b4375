"""The immutable index of all known agents. Calls read it without locks; a change builds a new one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property

from a2a_fabric.core.agent import Manifest, fold


class Catalog:
    """Lookups by id, capability, pool and tag in constant time; each index is made when it is first needed.

    `learnt` are the agents whose capabilities were found out by asking them. A pool is
    told apart by who declared it too, so that nobody joins the pool of another owner.
    """

    def __init__(self, manifests: Iterable[Manifest] = (), learnt: Collection[str] = ()) -> None:
        self._learnt = frozenset(learnt)
        self._by_id: dict[str, Manifest] = {}
        for manifest in manifests:
            self._by_id.setdefault(manifest.agent_id, manifest)
        self.get: Callable[[str], Manifest | None] = self._by_id.get  # by id; every call comes this way several times
        self.agents: tuple[Manifest, ...] = tuple(m for m in self._by_id.values() if not m.is_tool)
        self.tools: tuple[Manifest, ...] = tuple(m for m in self._by_id.values() if m.is_tool)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Manifest]:
        return iter(self._by_id.values())

    @cached_property
    def _by_capability(self) -> dict[str, list[Manifest]]:
        found: dict[str, list[Manifest]] = {}
        for manifest in self.agents:
            for name in dict.fromkeys(fold(c.name) for c in manifest.capabilities):
                found.setdefault(name, []).append(manifest)
        return found

    @cached_property
    def _by_tag(self) -> dict[str, list[Manifest]]:
        found: dict[str, list[Manifest]] = {}
        for manifest in self._by_id.values():
            for tag in dict.fromkeys(manifest.tags):
                found.setdefault(tag, []).append(manifest)
        return found

    @cached_property
    def _pools(self) -> dict[tuple[str | None, str], list[Manifest]]:
        found: dict[tuple[str | None, str], list[Manifest]] = {}
        for manifest in self._by_id.values():
            if manifest.pool is not None:
                found.setdefault((manifest.registered_by, manifest.pool), []).append(manifest)
        return found

    def offering(self, capability: str) -> Sequence[Manifest]:
        return self._by_capability.get(fold(capability), ())

    def replicas(self, manifest: Manifest) -> Sequence[Manifest]:
        return () if manifest.pool is None else self._pools.get((manifest.registered_by, manifest.pool), ())

    def is_learnt(self, agent_id: str) -> bool:
        return agent_id in self._learnt

    def tagged(self, tag: str) -> Sequence[Manifest]:
        return self._by_tag.get(tag, ())
