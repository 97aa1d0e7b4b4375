"""The immutable index of all agents, and the filtered view of it that each kind of caller sees.

Calls read a catalog without locks; a change builds a new one. A view is a catalog of
its own with only the agents and capabilities that the caller may call, so code that
lists, counts or suggests agents cannot disclose others. Callers with the same trust tier
and scopes share one view, built on first use after each change of the catalog.

An agent at which callers sign in offers each of them something else. So a caller that is signed in somewhere has a
catalog of its own, in which such agents have what they offer this caller."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

from a2a_fabric.core.agent import Capability, Manifest, normalize_name
from a2a_fabric.core.call import Principal
from a2a_fabric.core.logins import PersonalListing, PersonalListings, find_login_owner
from a2a_fabric.core.policy import AccessKey, is_limited, make_access_key, narrow_manifests
from a2a_fabric.registry.tool_choice import ToolTranslation

_MAX_VIEWS = 64
_MAX_PERSONAL = 256


class Catalog:
    """Lookups by id, capability, pool and tag in constant time; each index is made when it is first needed.

    `discovered` are the agents whose capabilities were learnt by asking them. A pool belongs to
    its owner, so that no agent joins the pool of another owner.
    """

    def __init__(
        self,
        manifests: Iterable[Manifest] = (),
        discovered: Collection[str] = (),
        translations: Mapping[str, ToolTranslation] = MappingProxyType({}),
    ) -> None:
        self._discovered = frozenset(discovered)
        self.translations = translations  # of the agents whose tools are listed under other names, or not all
        self._views: OrderedDict[AccessKey, Catalog] = OrderedDict()
        self._by_id: dict[str, Manifest] = {}
        for manifest in manifests:
            self._by_id.setdefault(manifest.agent_id, manifest)
        self.get: Callable[[str], Manifest | None] = self._by_id.get  # by id; every call does several such lookups
        self.agents: tuple[Manifest, ...] = tuple(m for m in self._by_id.values() if not m.is_tool)
        self.tools: tuple[Manifest, ...] = tuple(m for m in self._by_id.values() if m.is_tool)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Manifest]:
        return iter(self._by_id.values())

    @cached_property
    def _by_capability(self) -> dict[str, list[Manifest]]:
        index: dict[str, list[Manifest]] = {}
        for manifest in self.agents:
            for name in dict.fromkeys(normalize_name(c.name) for c in manifest.capabilities):
                index.setdefault(name, []).append(manifest)
        return index

    @cached_property
    def _by_tag(self) -> dict[str, list[Manifest]]:
        index: dict[str, list[Manifest]] = {}
        for manifest in self._by_id.values():
            for tag in dict.fromkeys(manifest.tags):
                index.setdefault(tag, []).append(manifest)
        return index

    @cached_property
    def _pools(self) -> dict[tuple[str | None, str], list[Manifest]]:
        pools: dict[tuple[str | None, str], list[Manifest]] = {}
        for manifest in self._by_id.values():
            if manifest.pool is not None:
                pools.setdefault((manifest.registered_by, manifest.pool), []).append(manifest)
        return pools

    def find_by_capability(self, capability: str) -> Sequence[Manifest]:
        return self._by_capability.get(normalize_name(capability), ())

    def list_replicas(self, manifest: Manifest) -> Sequence[Manifest]:
        return () if manifest.pool is None else self._pools.get((manifest.registered_by, manifest.pool), ())

    def is_discovered(self, agent_id: str) -> bool:
        return agent_id in self._discovered

    def find_by_tag(self, tag: str) -> Sequence[Manifest]:
        return self._by_tag.get(tag, ())

    def view_for(self, principal: Principal) -> Catalog:
        """The part of the catalog that this caller may see; the catalog itself for an unlimited caller."""
        if not is_limited(principal):
            return self
        access_key = make_access_key(principal)
        view = self._views.get(access_key)
        if view is None:
            visible = narrow_manifests(principal, self)
            is_whole = len(visible) == len(self) and all(a is b for a, b in zip(visible, self, strict=True))
            view = self._views[access_key] = self if is_whole else Catalog(visible)
            if len(self._views) > _MAX_VIEWS:
                self._views.popitem(last=False)
        else:
            self._views.move_to_end(access_key)
        return view

    def replace_manifests(self, replacements: Mapping[str, Manifest]) -> Catalog:
        """The same catalog with other manifests of some agents."""
        manifests = (replacements.get(manifest.agent_id, manifest) for manifest in self)
        return Catalog(manifests, self._discovered, self.translations)


class PersonalCatalogs:
    """`select` makes the manifest of an agent that offers these capabilities to a caller."""

    def __init__(
        self, listings: PersonalListings, select: Callable[[Manifest, tuple[Capability, ...]], Manifest]
    ) -> None:
        self._listings = listings
        self._select = select
        self._catalogs: OrderedDict[str, tuple[Catalog, Mapping[str, PersonalListing], Catalog]] = OrderedDict()

    def catalog_for(self, shared: Catalog, principal: Principal) -> Catalog:
        """The caller's own catalog; the shared one for a caller that is not signed in to any agent."""
        owner = find_login_owner(principal)
        listings = None if owner is None else self._listings.find(owner)
        if owner is None or listings is None:
            return shared
        source, made_from, catalog = self._catalogs.get(owner, (None, None, shared))
        if source is not shared or made_from is not listings:
            catalog = shared.replace_manifests(
                {
                    agent_id: self._select(manifest, listing.capabilities)
                    for agent_id, listing in listings.items()
                    if (manifest := shared.get(agent_id)) is not None and manifest.wants_login
                }
            )
            self._catalogs[owner] = shared, listings, catalog
            if len(self._catalogs) > _MAX_PERSONAL:
                self._catalogs.popitem(last=False)
        self._catalogs.move_to_end(owner)
        return catalog
