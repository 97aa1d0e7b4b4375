"""The tools of all agents by each of their names, brought up to date as the catalog of agents changes.

A change of one agent costs work for the tools of that agent. An update runs in small steps, so that other requests go
on while the tools of 10,000 agents are taken over. The table is not to be read until the update is complete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import attrgetter
from typing import Protocol

import msgspec

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.policy import find_refusal
from a2a_fabric.core.ports import AgentCatalog
from a2a_fabric.doors.mcp.tool_list import MAX_RECENT_TOOLS, ToolList, ToolListSettings
from a2a_fabric.doors.mcp.tool_names import ToolKey, ToolNames
from a2a_fabric.operations import CallableTool, PlainToolCalls
from a2a_fabric.protocols.mcp.apps import find_ui_uri, may_app_call

_get_id = attrgetter("agent_id")


class CatalogTool(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A capability of an agent, or a built-in tool, with its names at this door."""

    name: str
    canonical_name: str
    tool: CallableTool
    is_registered: bool = False  # its agent registered itself; the operator did not declare it

    @property
    def manifest(self) -> Manifest:
        return self.tool.manifest

    @property
    def capability(self) -> Capability:
        return self.tool.capability

    @property
    def key(self) -> ToolKey:
        return self.manifest.agent_id, self.capability.name

    def is_visible_to(self, principal: Principal) -> bool:
        return find_refusal(principal, self.manifest, self.capability.name) is None


class ToolOwners(Protocol):
    """What the table asks the registry of agents."""

    def is_registered(self, agent_id: str) -> bool: ...

    def find_own_name(self, manifest: Manifest, capability: Capability) -> str | None: ...


class ToolTable:
    """`catalog` is the one whose tools it has; None before the first update."""

    def __init__(self, settings: ToolListSettings, names: ToolNames, registry: ToolOwners) -> None:
        self.catalog: AgentCatalog | None = None
        self.by_name: dict[str, CatalogTool] = {}
        self.lists: dict[tuple[object, ...], ToolList] = {}
        self.encoded: dict[ToolKey, bytes] = {}  # tools as lists show them
        self.without_header_params: dict[str, bool] = {}
        self.allowed: dict[tuple[int, str], Principal] = {}  # callers that may call a tool, by their identity
        # Of callers that last, by their identity. Each with the key of the tool, if its uses are noted.
        self.plain_calls: dict[tuple[int, str], tuple[PlainToolCalls, ToolKey | None]] = {}
        self._settings = settings
        self._pinned_view = settings.pinned_view
        self._names = names
        self._registry = registry
        self._by_agent: dict[str, tuple[CatalogTool, ...]] = {}
        self._shadowed: dict[str, list[CatalogTool]] = {}  # by canonical names that other tools have, too
        self._pinned: dict[ToolKey, CatalogTool] = {}
        self._agents_with_ui: set[str] = set()
        self._by_own_name: dict[str, list[CatalogTool]] | None = {}
        self._listable_count = 0
        self._always_listed: frozenset[ToolKey] | None = None

    def copy(self) -> ToolTable:
        """For a catalog that differs from this one in a few agents."""
        twin = ToolTable(self._settings, self._names.copy(), self._registry)
        twin.catalog, twin.encoded = self.catalog, dict(self.encoded)
        twin.by_name, twin._by_agent = dict(self.by_name), dict(self._by_agent)
        twin._shadowed = {name: list(items) for name, items in self._shadowed.items()}
        twin._pinned, twin._agents_with_ui = dict(self._pinned), set(self._agents_with_ui)
        twin._by_own_name, twin._listable_count = None, self._listable_count
        return twin

    def update(self, catalog: AgentCatalog) -> Iterator[None]:
        """Take over what is different in this catalog, in small steps."""
        self._forget_derived()
        previous = self.catalog
        changed = set(map(_get_id, chain(catalog.agents, catalog.tools)))
        if previous is not None:
            changed = {*catalog.changes_since(previous)}
        words_by_key: dict[ToolKey, str] = {}
        registered: set[ToolKey] = set()
        for agent_id in changed:
            manifest = catalog.get(agent_id)
            before = {item.key: item for item in self._by_agent.get(agent_id, ())}
            offered = {} if manifest is None else {(agent_id, each.name): each for each in manifest.capabilities}
            if before:
                self._names.release(before.keys() - offered.keys())
            is_registered = self._registry.is_registered(agent_id)
            yield
            for position, (key, capability) in enumerate(offered.items()):
                if position:
                    yield
                was_registered = before[key].is_registered if key in before else None
                if manifest is not None and was_registered is not is_registered:
                    words_by_key[key] = _name_words(manifest, capability)
                    if is_registered:
                        registered.add(key)
        renamed = yield from self._names.assign(words_by_key, registered)
        for agent_id in changed.union(agent_id for agent_id, _ in renamed):
            yield from self._replace_tools(agent_id, catalog.get(agent_id))
        self.catalog = catalog
        self._forget_derived()  # also what a request has added meanwhile, from the tools before

    def _forget_derived(self) -> None:
        self.lists.clear()
        self.without_header_params.clear()
        self.allowed.clear()
        self.plain_calls.clear()
        self._by_own_name = self._always_listed = None

    def iterate(self, agents: Iterable[Manifest]) -> Iterator[CatalogTool]:
        """The tools of these agents. A manifest with fewer capabilities than in the catalog stands for these only."""
        for manifest in agents:
            items = self._by_agent.get(manifest.agent_id, ())
            if items and items[0].manifest is not manifest:
                names = {capability.name for capability in manifest.capabilities}
                items = tuple(item for item in items if item.capability.name in names)
            yield from items

    def find(self, key: ToolKey) -> CatalogTool | None:
        return next((item for item in self._by_agent.get(key[0], ()) if item.capability.name == key[1]), None)

    @property
    def pinned(self) -> Iterable[CatalogTool]:
        return self._pinned.values()

    def find_by_own_name(self, name: str) -> Sequence[CatalogTool]:
        """A user interface calls the tools of its own server, and knows them by the server's names only."""
        if self._by_own_name is None:
            self._by_own_name = {}
            ids = map(_get_id, () if self.catalog is None else self.catalog.agents)
            with_ui = filter(self._agents_with_ui.__contains__, ids)
            for item in chain.from_iterable(map(self._by_agent.__getitem__, with_ui)):
                own_name = self._registry.find_own_name(item.manifest, item.capability)
                if own_name is not None and may_app_call(item.capability.metadata):
                    self._by_own_name.setdefault(own_name, []).append(item)
        return self._by_own_name.get(name, ())

    @property
    def may_hide_tools(self) -> bool:
        """Whether there are more tools than are listed. Only then uses are noted."""
        return self._listable_count > self._settings.max_listed

    def is_always_listed(self, item: CatalogTool) -> bool:
        """Whether it is listed whatever a caller used last."""
        if self._always_listed is None:
            agents = () if self.catalog is None else self.catalog.agents
            keys = chain(self._pinned, (each.key for each in self.iterate(agents)))
            self._always_listed = frozenset(islice(keys, max(0, self._settings.max_listed - MAX_RECENT_TOOLS)))
        return item.key in self._always_listed

    def _replace_tools(self, agent_id: str, manifest: Manifest | None) -> Iterator[None]:
        for item in self._by_agent.pop(agent_id, ()):
            self._remove(item)
            yield
        self._agents_with_ui.discard(agent_id)
        if manifest is None:
            return
        items: dict[str, CatalogTool] = {}
        is_registered = self._registry.is_registered(agent_id)
        for capability in manifest.capabilities:
            items[capability.name] = CatalogTool(
                name=self._names[agent_id, capability.name],
                canonical_name=make_canonical_name(manifest, capability),
                tool=CallableTool(manifest=manifest, capability=capability),
                is_registered=is_registered,
            )
            if capability.metadata and find_ui_uri(capability.metadata) is not None:
                self._agents_with_ui.add(agent_id)
            yield
        self._by_agent[agent_id] = tuple(items.values())
        for position, item in enumerate(items.values()):
            if position:
                yield
            self._add(item)

    def _add(self, item: CatalogTool) -> None:
        """Agent ids may hold dots. Of two tools with the same dotted name the one with the longer agent id wins, as in
        `operations`; but an agent that registered itself never wins over one that the operator declared.
        """
        self._count(item, 1)
        self.by_name[item.name] = item
        rival = self.by_name.get(item.canonical_name)
        winner = item if rival is None or _rank(item) >= _rank(rival) else rival
        if rival is not None:
            self._shadowed.setdefault(item.canonical_name, []).append(rival if winner is item else item)
        self.by_name[item.canonical_name] = winner

    def _remove(self, item: CatalogTool) -> None:
        self._count(item, -1)
        self.encoded.pop(item.key, None)
        if self.by_name.get(item.name) is item:
            del self.by_name[item.name]
        shadowed = self._shadowed.get(item.canonical_name, [])
        if self.by_name.get(item.canonical_name) is not item:
            shadowed.remove(item)
        elif shadowed:
            winner = max(shadowed, key=_rank)
            shadowed.remove(winner)
            self.by_name[item.canonical_name] = winner
        else:
            del self.by_name[item.canonical_name]
        if not shadowed:
            self._shadowed.pop(item.canonical_name, None)

    def _count(self, item: CatalogTool, number: int) -> None:
        """Count it among the tools that can be listed."""
        manifest = item.manifest
        if manifest.is_tool and not (self._settings.builtin_tools and manifest.metadata.get("enabled", True)):
            return
        self._listable_count += number
        if self._settings.pinned and self._pinned_view.includes(manifest, item.capability.name):
            if number > 0:
                self._pinned[item.key] = item
            else:
                self._pinned.pop(item.key, None)


def make_canonical_name(manifest: Manifest, capability: Capability) -> str:
    """The canonical name, as `/mcp/call` accepts it."""
    if manifest.is_tool:
        return f"fabric.tool.{manifest.agent_id}"
    return f"fabric.tool.agent.{manifest.agent_id}.{capability.name}"


def _rank(item: CatalogTool) -> tuple[bool, int]:
    return not item.is_registered, len(item.manifest.agent_id)


def _name_words(manifest: Manifest, capability: Capability) -> str:
    return make_canonical_name(manifest, capability) if manifest.is_tool else f"{manifest.agent_id}.{capability.name}"
