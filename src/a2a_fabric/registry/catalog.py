"""The immutable index of all known agents. Calls read it without locks; a change builds a new one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from a2a_fabric.core.agent import Manifest, fold


class Catalog:
    """Lookups by id, capability, pool and tag in constant time.

    `learnt` are the agents whose capabilities were found out by asking them. A pool is
    told apart by who declared it too, so that nobody joins the pool of another owner.
    """

    def __init__(self, manifests: Iterable[Manifest] = (), learnt: Collection[str] = ()) -> None:
        self._learnt = frozenset(learnt)
        self._pools: dict[tuple[str | None, str], list[Manifest]] = {}
        self._by_id: dict[str, Manifest] = {}
        self._by_capability: dict[str, list[Manifest]] = {}
        self._by_tag: dict[str, list[Manifest]] = {}
        for manifest in manifests:
            self._by_id.setdefault(manifest.agent_id, manifest)
        for manifest in self._by_id.values():
            for name in dict.fromkeys(fold(c.name) for c in manifest.capabilities):
                if not manifest.is_tool:
                    self._by_capability.setdefault(name, []).append(manifest)
            if manifest.pool is not None:
                self._pools.setdefault((manifest.registered_by, manifest.pool), []).append(manifest)
            for tag in dict.fromkeys(manifest.tags):
                self._by_tag.setdefault(tag, []).append(manifest)
        self.get: Callable[[str], Manifest | None] = self._by_id.get  # by id; every call comes this way several times
        self.agents: tuple[Manifest, ...] = tuple(m for m in self._by_id.values() if not m.is_tool)
        self.tools: tuple[Manifest, ...] = tuple(m for m in self._by_id.values() if m.is_tool)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Manifest]:
        return iter(self._by_id.values())

    def offering(self, capability: str) -> Sequence[Manifest]:
        return self._by_capability.get(fold(capability), ())

    def replicas(self, manifest: Manifest) -> Sequence[Manifest]:
        return () if manifest.pool is None else self._pools.get((manifest.registered_by, manifest.pool), ())

    def is_learnt(self, agent_id: str) -> bool:
        return agent_id in self._learnt

    def tagged(self, tag: str) -> Sequence[Manifest]:
        return self._by_tag.get(tag, ())
