"""The immutable index of all agents, and the filtered view of it that each kind of caller sees.

Calls read a catalog without locks; a change makes a new one from it. A view is a catalog of
its own with only the agents and capabilities that the caller may call, so code that
lists, counts or suggests agents cannot disclose others. Callers with the same trust tier
and scopes share one view, built on first use.

A catalog knows which agents changed since those before it, so indexes and views are carried over: the change of one
agent among 10,000 costs the copy of a few tables, but no look at the other agents.

An agent at which callers sign in offers each of them something else. So a caller that is signed in somewhere has a
catalog of its own, in which such agents have what they offer this caller."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress, islice, repeat
from operator import attrgetter, is_, is_not, methodcaller, not_
from types import MappingProxyType
from typing import TypeVar

from a2a_fabric.core.agent import Manifest, normalize_name
from a2a_fabric.core.call import Principal
from a2a_fabric.core.logins import PersonalListing, PersonalListings, find_login_owner
from a2a_fabric.core.policy import AccessKey, is_limited, make_access_key, narrow_manifest
from a2a_fabric.core.tasks import iterate_in_slices
from a2a_fabric.registry.tool_choice import ToolTranslation

_MAX_VIEWS = 64
_MAX_PERSONAL = 256
_MAX_KNOWN_CHANGES = 512  # catalogs whose changes are remembered
_MAX_HINTS = 200
_MAX_CARRIED = 1000  # changed agents, after which a view is built anew

Key = TypeVar("Key", bound=str | tuple[str | None, str])
Index = dict[Key, dict[str, Manifest]]  # manifests by id, for each key

_agent_id = attrgetter("agent_id")
_category = attrgetter("category")


class Catalog:
    """Lookups by id, capability, pool and tag in constant time; each index is made when it is first needed.

    `discovered` are the agents whose capabilities were learnt by asking them. A pool belongs to
    its owner, so that no agent joins the pool of another owner. `changed` are the ids of all agents that differ
    from those of `previous`.
    """

    def __init__(
        self,
        manifests: Iterable[Manifest] = (),
        discovered: Collection[str] = (),
        translations: Mapping[str, ToolTranslation] = MappingProxyType({}),
        *,
        previous: Catalog | None = None,
        changed: Collection[str] = (),
    ) -> None:
        self._discovered = frozenset(discovered)
        self.translations = translations  # of the agents whose tools are listed under other names, or not all
        self._views: OrderedDict[AccessKey, Catalog] = OrderedDict()
        self._by_id = _index_by_id(tuple(manifests))
        self.get: Callable[[str], Manifest | None] = self._by_id.get  # by id; every call does several such lookups
        values = tuple(self._by_id.values())
        are_agents = tuple(map(is_, map(_category, values), repeat(None)))
        self.agents: tuple[Manifest, ...] = tuple(compress(values, are_agents))
        self.tools: tuple[Manifest, ...] = (
            () if len(self.agents) == len(values) else tuple(compress(values, map(not_, are_agents)))
        )
        self._by_capability: Index[str] | None = None
        self._found: dict[str, tuple[Manifest, ...]] = {}  # by capability, as far as it was asked for
        self._by_tag: Index[str] | None = None
        self._pools: Index[tuple[str | None, str]] | None = None
        self._sorted_ids: list[str] | None = None
        self._old_views: dict[AccessKey, tuple[Catalog, frozenset[str]]] = {}  # and what changed since then
        self._number = 0
        self._history: deque[tuple[int, frozenset[str]]] = deque(maxlen=_MAX_KNOWN_CHANGES)
        if previous is not None:
            self._carry_over(previous, frozenset(changed))

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Manifest]:
        return iter(self._by_id.values())

    def find_by_capability(self, capability: str) -> Sequence[Manifest]:
        name = normalize_name(capability)
        found = self._found.get(name)
        if found is None:
            if self._by_capability is None:
                self._by_capability = _build_index(self.agents, _list_capability_keys)
            if name not in self._by_capability:
                return ()
            found = self._found[name] = tuple(self._by_capability[name].values())
        return found

    def list_replicas(self, manifest: Manifest) -> Sequence[Manifest]:
        if manifest.pool is None:
            return ()
        if self._pools is None:
            self._pools = _build_index(self, _list_pool_keys)
        return tuple(self._pools.get((manifest.registered_by, manifest.pool), {}).values())

    @cached_property
    def capability_count(self) -> int:
        """How many capabilities all its agents have."""
        return sum(map(len, map(attrgetter("capabilities"), self.agents)))

    def is_discovered(self, agent_id: str) -> bool:
        return agent_id in self._discovered

    def find_by_tag(self, tag: str) -> Sequence[Manifest]:
        if self._by_tag is None:
            self._by_tag = _build_index(self, _list_tags)
        return tuple(self._by_tag.get(tag, {}).values())

    def sort_by_id(self, agents: Sequence[Manifest], after: str | None = None) -> Sequence[Manifest]:
        """Some or all of the agents of this catalog in the order of their ids, from the first after this one."""
        if agents is not self.agents:
            ordered = sorted(agents, key=_agent_id)
            return ordered if after is None else ordered[bisect_right(ordered, after, key=_agent_id) :]
        if self._sorted_ids is None:
            self._sorted_ids = sorted(map(_agent_id, agents))
        start = 0 if after is None else bisect_right(self._sorted_ids, after)
        return [*map(self._by_id.__getitem__, islice(self._sorted_ids, start, None))]

    def changes_since(self, previous: Catalog) -> Collection[str]:
        """The ids of all agents and tools that differ from those of an earlier catalog."""
        if previous is self:
            return ()
        is_known = self._history is previous._history and previous._number < self._number
        if is_known and self._history[0][0] <= previous._number + 1:
            recent = [ids for number, ids in self._history if previous._number < number <= self._number]
            return recent[0] if len(recent) == 1 else frozenset[str]().union(*recent)
        return _compare(previous._by_id, self._by_id)

    def view_for(self, principal: Principal) -> Catalog:
        """The part of the catalog that this caller may see; the catalog itself for an unlimited caller."""
        if not is_limited(principal):
            return self
        access_key = make_access_key(principal)
        view = self._views.get(access_key)
        if view is None:
            visible = self._narrow(principal, self._by_id)
            return self._add_view(principal, visible)
        self._views.move_to_end(access_key)
        return view

    def list_for_hints(self, principal: Principal, near: str) -> Iterator[Manifest]:
        """Agents that this caller may see, to name the nearest in an error. Of very many only some are looked at."""
        view = self if not is_limited(principal) else self._views.get(make_access_key(principal))
        if view is not None:
            return iter(view.agents)
        agents: Iterable[Manifest] = self.agents
        if len(self.agents) > _MAX_HINTS:
            agents = islice(
                compress(agents, map(methodcaller("startswith", near[:3]), map(_agent_id, agents))), _MAX_HINTS
            )
        return (each for each in agents if narrow_manifest(principal, each) is not None)

    async def prepare_view(self, principal: Principal) -> None:
        """Build the view of this caller in slices, so that `view_for` returns at once."""
        if not is_limited(principal) or make_access_key(principal) in self._views:
            return
        if make_access_key(principal) in self._old_views:
            self.view_for(principal)
            return
        visible: dict[str, Manifest] = {}
        async for agent_ids in iterate_in_slices(self._by_id):
            visible |= self._narrow(principal, agent_ids)
        if make_access_key(principal) not in self._views:
            view = self._add_view(principal, visible)
            if view is not self:
                await view.build_indexes()

    async def build_indexes(self) -> None:
        """In slices, with other tasks in between; else each index is built when it is first needed."""
        by_capability: Index[str] = {}
        by_tag: Index[str] = {}
        async for manifests in iterate_in_slices(tuple(self)):
            _add_to_index(by_capability, manifests, _list_capability_keys)
            _add_to_index(by_tag, manifests, _list_tags)
        self._by_capability, self._by_tag = by_capability, by_tag

    def replace_manifests(self, replacements: Mapping[str, Manifest]) -> Catalog:
        """The same catalog with other manifests of some agents."""
        manifests = self._by_id | {key: value for key, value in replacements.items() if key in self._by_id}
        return Catalog(manifests.values(), self._discovered, self.translations)

    def _narrow(self, principal: Principal, agent_ids: Iterable[str]) -> dict[str, Manifest]:
        """Those of the agents that the caller may see; taken over from an earlier view where they did not change."""
        access_key = make_access_key(principal)
        view, changed = self._old_views.pop(access_key, (None, None))
        if view is None or changed is None:
            narrowed = ((each, narrow_manifest(principal, self._by_id[each])) for each in agent_ids)
            return {agent_id: manifest for agent_id, manifest in narrowed if manifest is not None}
        visible = dict(view._by_id)
        order_changed = False
        for agent_id in changed:
            manifest = self._by_id.get(agent_id)
            narrowed_manifest = None if manifest is None else narrow_manifest(principal, manifest)
            if narrowed_manifest is None:
                visible.pop(agent_id, None)
            else:
                order_changed |= agent_id not in visible
                visible[agent_id] = narrowed_manifest
        if not order_changed:
            return visible
        ordered = list(filter(visible.__contains__, self._by_id))
        return dict(zip(ordered, map(visible.__getitem__, ordered), strict=True))

    def _add_view(self, principal: Principal, visible: Mapping[str, Manifest]) -> Catalog:
        is_whole = len(visible) == len(self) and all(map(is_, visible.values(), self._by_id.values()))
        view = self._views[make_access_key(principal)] = self if is_whole else Catalog(visible.values())
        if len(self._views) > _MAX_VIEWS:
            self._views.popitem(last=False)
        return view

    def _carry_over(self, previous: Catalog, changed: frozenset[str]) -> None:
        self._number = previous._number + 1
        self._history = previous._history
        self._history.append((self._number, changed))
        old_views = {key: (view, changed) for key, view in previous._views.items()}
        for key, (view, changed_before) in previous._old_views.items():
            old_views.setdefault(key, (view, changed_before | changed))
        self._old_views = {key: pair for key, pair in old_views.items() if len(pair[1]) <= _MAX_CARRIED}
        if len(changed) > _MAX_CARRIED:
            return
        before = {agent_id: previous.get(agent_id) for agent_id in changed}
        if previous._by_capability is not None:
            self._by_capability = self._update_index(previous._by_capability, before, _list_capability_keys)
        if previous._by_tag is not None:
            self._by_tag = self._update_index(previous._by_tag, before, _list_tags)
        if previous._pools is not None:
            self._pools = self._update_index(previous._pools, before, _list_pool_keys)
        if previous._sorted_ids is not None:
            self._sorted_ids = self._update_sorted_ids(previous._sorted_ids, before)

    def _update_index(
        self, index: Index[Key], before: Mapping[str, Manifest | None], list_keys: Callable[[Manifest], Iterable[Key]]
    ) -> Index[Key]:
        """A copy of the index; of its entries only those are copied that have a changed agent."""
        updated, copied = dict(index), set[Key]()

        def get_entry(key: Key) -> dict[str, Manifest]:
            if key not in copied:
                updated[key] = dict(updated.get(key, {}))
                copied.add(key)
            return updated[key]

        for agent_id, old in before.items():
            new = self._by_id.get(agent_id)
            old_keys = () if old is None else tuple(list_keys(old))
            new_keys = () if new is None else tuple(list_keys(new))
            for key in old_keys:
                if key not in new_keys:
                    get_entry(key).pop(agent_id, None)
            if new is not None:
                for key in new_keys:
                    get_entry(key)[agent_id] = new
        for key in copied:
            if not updated[key]:
                del updated[key]
        return updated

    def _update_sorted_ids(self, ids: list[str], before: Mapping[str, Manifest | None]) -> list[str]:
        updated = list(ids)
        for agent_id, old in before.items():
            new = self._by_id.get(agent_id)
            was_listed, is_listed = old is not None and not old.is_tool, new is not None and not new.is_tool
            if is_listed and not was_listed:
                insort(updated, agent_id)
            elif was_listed and not is_listed:
                del updated[bisect_left(updated, agent_id)]
        return updated


def _index_by_id(manifests: tuple[Manifest, ...]) -> dict[str, Manifest]:
    """Of two manifests with the same id the first."""
    by_id = dict(zip(map(_agent_id, manifests), manifests, strict=True))
    if len(by_id) != len(manifests):
        by_id = {}
        for manifest in manifests:
            by_id.setdefault(manifest.agent_id, manifest)
    return by_id


def _compare(before: Mapping[str, Manifest], after: Mapping[str, Manifest]) -> frozenset[str]:
    differ = map(is_not, map(before.get, after), after.values())
    return frozenset(compress(after, differ)) | (before.keys() - after.keys())


def _build_index(manifests: Iterable[Manifest], list_keys: Callable[[Manifest], Iterable[Key]]) -> Index[Key]:
    index: Index[Key] = {}
    _add_to_index(index, manifests, list_keys)
    return index


def _add_to_index(
    index: Index[Key], manifests: Iterable[Manifest], list_keys: Callable[[Manifest], Iterable[Key]]
) -> None:
    for manifest in manifests:
        for key in list_keys(manifest):
            index.setdefault(key, {})[manifest.agent_id] = manifest


def _list_capability_keys(manifest: Manifest) -> Iterable[str]:
    return () if manifest.is_tool else (normalize_name(each.name) for each in manifest.capabilities)


def _list_tags(manifest: Manifest) -> Iterable[str]:
    return manifest.tags


def _list_pool_keys(manifest: Manifest) -> Iterable[tuple[str | None, str]]:
    return () if manifest.pool is None else ((manifest.registered_by, manifest.pool),)


class PersonalCatalogs:
    """`select` makes the manifest of an agent for a caller that it offers this."""

    def __init__(self, listings: PersonalListings, select: Callable[[Manifest, PersonalListing], Manifest]) -> None:
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
                    agent_id: self._select(manifest, listing)
                    for agent_id, listing in listings.items()
                    if (manifest := shared.get(agent_id)) is not None and manifest.wants_login
                }
            )
            self._catalogs[owner] = shared, listings, catalog
            if len(self._catalogs) > _MAX_PERSONAL:
                self._catalogs.popitem(last=False)
        self._catalogs.move_to_end(owner)
        return catalog
