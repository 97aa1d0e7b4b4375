"""The registry of document 001: one interface over layered sources.

Each source brings its manifests; earlier sources win over later ones. A source
that fails keeps its last good manifests and its error is shown. Listeners are
told after every swap of the catalog.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from a2a_fabric.core.agent import Manifest, Status, fold
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentNotFound, FabricError
from a2a_fabric.core.job import owner_of
from a2a_fabric.core.listing import is_imported
from a2a_fabric.core.policy import check_named, is_limited, narrowed
from a2a_fabric.core.ports import AgentSource
from a2a_fabric.core.registration import Registration
from a2a_fabric.registry.catalog import Catalog
from a2a_fabric.registry.health import HealthBook
from a2a_fabric.registry.names import (
    Likeness,
    ReservedNames,
    TakenNames,
    is_reserved,
    refusal,
    refuse_reserved_name,
)
from a2a_fabric.registry.news import News
from a2a_fabric.registry.terms import terms_of
from a2a_fabric.registry.visible import VisibleCatalogs

_log = logging.getLogger(__name__)
_SWAP_AFTER = 0.05
_NEVER_THE_AGENTS_TO_SAY = (
    "agent_id", "endpoint", "runtime", "node_id", "trust_tier", "audience", "fallbacks", "pool", "category",
)  # fmt: skip


class Registrations(AgentSource, Protocol):
    """The source of registered agents, which knows who registered them."""

    def get(self, agent_id: str) -> Registration | None: ...


class AgentFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What is None does not narrow; `query` is words that all stand in the agent's name or description."""

    capability: str | None = None
    tag: str | None = None
    status: Status | None = None
    trust_tier: str | None = None
    audience: str | None = None
    runtime: str | None = None
    transport: str | None = None
    node_id: str | None = None
    version: str | None = None
    realm: str | None = None
    cog_id: str | None = None
    delegate_id: str | None = None
    query: str | None = None


_SAME = ("trust_tier", "audience", "node_id", "version", "realm", "cog_id", "delegate_id")


class Registry:
    """Owns the catalog and the book of health; sources feed it, calls read it, and `news` tells of every change."""

    def __init__(
        self,
        sources: Sequence[AgentSource],
        tools: Iterable[Manifest],
        health: HealthBook,
        registrations: Registrations | None = None,
        reserved: ReservedNames | None = None,
    ) -> None:
        """`registrations` is the one among the sources whose agents registered themselves."""
        self.health = health
        self.news = News()
        self.errors: dict[str, str] = {}
        self._sources = sources
        self._tools = tuple(tools)
        self._loaded: dict[str, tuple[Manifest, ...]] = {source.name: () for source in sources}
        self._ids: dict[str, frozenset[str]] = {}
        self._registered: dict[str, Manifest] = {}
        self._described: dict[str, tuple[Manifest, Manifest]] = {}
        self._turned_out: dict[str, tuple[dict[str, Any], str]] = {}
        self._listeners: list[Callable[[Catalog], None]] = []
        self._swap_due: asyncio.TimerHandle | None = None
        self._registrations = registrations
        self._reserved = reserved or ReservedNames()
        self._names = TakenNames()
        self._hidden: frozenset[str] = frozenset()
        self._judged: dict[str, tuple[Manifest, bool]] = {}  # whether each may be called so, by the agents below
        self._judged_by: list[Manifest] = []
        self._declared = self._declared_ids()
        self.catalog = Catalog(self._tools)
        self._visible = VisibleCatalogs()
        health.listen(lambda *_: self.news.ring())

    def listen(self, listener: Callable[[Catalog], None]) -> None:
        """Be called after every change of the catalog."""
        self._listeners.append(listener)

    async def load(self, source: AgentSource) -> None:
        """Read one source anew. A broken one keeps what it last gave, and says why."""
        try:
            manifests = tuple(await source.load())
        except FabricError as error:
            self.errors[source.name] = error.message
            _log.error("agents of %s not reloaded: %s", source.name, error.message)
            return
        self.errors.pop(source.name, None)
        if manifests != self._loaded[source.name]:
            self._loaded[source.name] = manifests
            self._ids[source.name] = frozenset(manifest.agent_id for manifest in manifests)
            self._swap()

    def seen_by(self, principal: Principal) -> Catalog:
        """What this caller may know of: agents and tools that it may call, with the capabilities that it may call."""
        return self._visible.of(self.catalog, principal)

    def get_for(self, principal: Principal, agent_id: str) -> Manifest | None:
        """One agent or tool as this caller sees it, without looking at the others."""
        manifest = self.catalog.get(agent_id)
        return manifest if manifest is None or not is_limited(principal) else narrowed(principal, manifest)

    def find_for(self, principal: Principal, agent_id: str) -> Manifest:
        """An agent or a tool as this caller sees it. Raises AgentNotFound, or Forbidden for what its scopes exclude.

        Whether there is such an agent makes no difference to a caller who may not call it.
        """
        manifest = self.get_for(principal, agent_id)
        if manifest is None:
            check_named(principal, agent_id)
            raise AgentNotFound(agent_id, [each.agent_id for each in self.seen_by(principal).agents])
        return manifest

    def agent_for(self, principal: Principal, agent_id: str) -> Manifest:
        """The same for agents only; a tool is none."""
        manifest = self.find_for(principal, agent_id)
        if manifest.is_tool:
            raise AgentNotFound(agent_id, [each.agent_id for each in self.seen_by(principal).agents])
        return manifest

    # the five verbs

    def list_agents(self, wanted: AgentFilter | None = None, among: Catalog | None = None) -> list[Manifest]:
        wanted, catalog = wanted or AgentFilter(), self.catalog if among is None else among
        found: Sequence[Manifest] = catalog.agents
        if wanted.capability is not None:
            found = catalog.offering(fold(wanted.capability))
        elif wanted.tag is not None:
            found = [m for m in catalog.tagged(wanted.tag) if not m.is_tool]
        return [manifest for manifest in found if self._fits(manifest, wanted)]

    def get_agent(self, agent_id: str) -> Manifest:
        manifest = self.catalog.get(agent_id)
        if manifest is None or manifest.is_tool:
            raise AgentNotFound(agent_id, [m.agent_id for m in self.catalog.agents])
        return manifest

    def register_agent(self, manifest: Manifest) -> None:
        """Add an agent at run time, in front of what the sources declare under the same id."""
        self._registered[manifest.agent_id] = manifest
        self._swap()

    def is_declared(self, agent_id: str, *, besides: AgentSource) -> bool:
        """Whether the id is taken by a built-in tool or by another source than this one."""
        known = self.catalog.get(agent_id)
        if known is None or known.is_tool or agent_id in self._registered:
            return known is not None
        return any(agent_id in ids for name, ids in self._ids.items() if name != besides.name)

    def is_registered(self, agent_id: str) -> bool:
        """Whether the agent that is found under this id came by registering, not from the operator's files."""
        return agent_id not in self._declared and self._owner(agent_id) is not None

    def is_hidden(self, agent_id: str) -> bool:
        """Whether an agent registered under a name that the operator has given to another since."""
        return agent_id in self._hidden

    def refuse_name(self, manifest: Manifest, principal: Principal) -> None:
        """Raises Conflict if the id or the display name is reserved, or looks like that of somebody else's agent."""
        refuse_reserved_name(manifest, principal, self._reserved)
        owner = owner_of(principal)

        def judge(other: Manifest) -> Likeness:
            if other.agent_id in self._declared:
                return "all"
            return "free" if self._owner(other.agent_id) == owner else "id"

        found = self._names.find_lookalike(manifest, judge)
        if found is not None:
            raise refusal(manifest, *found, principal)

    def update_health(self, agent_id: str, status: Status, error: str | None = None) -> None:
        self.get_agent(agent_id)
        self.health.set_status(agent_id, status, error)

    def find_by_capability(self, capability: str) -> Sequence[Manifest]:
        return self.catalog.offering(fold(capability))

    # what agents say of themselves

    def turned_out(self, agent_id: str, runtime: str) -> None:
        """An agent of which nobody said so is reached by this runtime, for as long as it stays where it is."""
        manifest = self.catalog.get(agent_id)
        if manifest is not None:
            self._turned_out[agent_id] = (manifest.endpoint, runtime)
            self.news.ring()

    def runtime_of(self, manifest: Manifest) -> str | None:
        """As declared, or as it turned out, or as its endpoint implies; None while nobody knows."""
        if manifest.runtime is not None:
            return manifest.runtime
        endpoint, runtime = self._turned_out.get(manifest.agent_id, (None, None))
        return runtime if endpoint == manifest.endpoint else manifest.implied_runtime

    def declaration_of(self, manifest: Manifest) -> Manifest:
        """The manifest as its source gave it, before the agent was asked about itself."""
        known = self._described.get(manifest.agent_id)
        return known[0] if known is not None and known[1] is manifest else manifest

    def described(self, declared: Manifest, completed: Manifest) -> None:
        """Keep what an agent published about itself, for as long as its declaration stays the same.

        Who it is, where it is and who may reach it is never the agent's to say.
        Many agents answer at about the same time; they share one swap of the catalog.
        """
        own = {name: getattr(declared, name) for name in _NEVER_THE_AGENTS_TO_SAY}
        metadata = {**completed.metadata, **declared.metadata}
        completed = msgspec.structs.replace(completed, metadata=metadata, **own)
        if not self._may_be_called_so(completed):
            completed = msgspec.structs.replace(completed, display_name=declared.display_name)
        if self._completed(declared) != completed:
            self._described[declared.agent_id] = (declared, completed)
            if self._swap_due is None:
                self._swap_due = asyncio.get_running_loop().call_later(_SWAP_AFTER, self._swap)

    def _fits(self, manifest: Manifest, wanted: AgentFilter) -> bool:
        if wanted.tag is not None and wanted.tag not in manifest.tags:
            return False
        asked = ((getattr(wanted, name), getattr(manifest, name)) for name in _SAME)
        if any(value is not None and value != has for value, has in asked):
            return False
        if wanted.runtime is not None and wanted.runtime != self.runtime_of(manifest):
            return False
        if wanted.transport is not None and wanted.transport != manifest.transport:
            return False
        if wanted.query is not None and not _mentions(manifest, wanted.query):
            return False
        return wanted.status is None or self.health.of(manifest.agent_id).status == wanted.status

    def _swap(self) -> None:
        if self._swap_due is not None:
            self._swap_due.cancel()
            self._swap_due = None
        declared = [*self._registered.values(), *(m for source in self._loaded.values() for m in source)]
        completed = [self._completed(manifest) for manifest in declared]
        learnt = {own.agent_id for own, known in zip(declared, completed, strict=True) if _is_learnt(own, known)}
        self._declared = self._declared_ids()
        self._names.follow((*self._tools, *completed))
        catalog = Catalog([*self._without_lookalikes(completed), *self._tools], learnt)
        for gone in {m.agent_id for m in self.catalog} - {m.agent_id for m in catalog}:
            self.health.forget(gone)
            self._described.pop(gone, None)
            self._turned_out.pop(gone, None)
        self.catalog = catalog
        self.news.ring()
        for listener in self._listeners:
            listener(catalog)

    def _without_lookalikes(self, manifests: list[Manifest]) -> list[Manifest]:
        """Without registered agents whose names the operator has given to others or reserved since they registered."""
        if self._registrations is None:
            return manifests
        own = [manifest for manifest in manifests if manifest.agent_id in self._declared]
        if own != self._judged_by:
            self._judged_by, self._judged = own, {}
        judged, self._judged = self._judged, {}
        for manifest in manifests:
            known = judged.get(manifest.agent_id)
            if known is None or known[0] is not manifest:
                known = manifest, self._may_be_called_so(manifest)
            self._judged[manifest.agent_id] = known
        hidden = frozenset(agent_id for agent_id, (_, is_shown) in self._judged.items() if not is_shown)
        for agent_id in hidden - self._hidden:
            _log.warning(
                "agent %s, registered by %s, is hidden: its name is reserved or looks like a declared agent's",
                agent_id,
                self._owner(agent_id),
            )
        self._hidden = hidden
        return [manifest for manifest in manifests if manifest.agent_id not in hidden] if hidden else manifests

    def _may_be_called_so(self, manifest: Manifest) -> bool:
        owner, terms = self._owner(manifest.agent_id), terms_of(manifest)
        is_operators = manifest.agent_id in self._declared or (terms is not None and terms.by_operator)
        if owner is None or is_operators:
            return True
        if is_reserved(manifest, owner, self._reserved):
            return False
        return self._names.find_lookalike(manifest, self._judge_declared) is None

    def _judge_declared(self, other: Manifest) -> Likeness:
        return "all" if other.agent_id in self._declared else "free"

    def _owner(self, agent_id: str) -> str | None:
        known = None if self._registrations is None else self._registrations.get(agent_id)
        return None if known is None else known.owner

    def _declared_ids(self) -> frozenset[str]:
        """Of the operator's own agents and of the built-in tools."""
        ids = [self._ids.get(source.name, frozenset()) for source in self._sources if source is not self._registrations]
        return frozenset().union(self._registered, (tool.agent_id for tool in self._tools), *ids)

    def _completed(self, declared: Manifest) -> Manifest:
        known = self._described.get(declared.agent_id)
        return known[1] if known is not None and known[0] == declared else declared


def _is_learnt(declared: Manifest, completed: Manifest) -> bool:
    """A Python agent's functions are the operator's own words, however they were found."""
    if is_imported(declared.agent_id):
        return True
    return not declared.capabilities and bool(completed.capabilities) and declared.runtime != "python"


def _mentions(manifest: Manifest, query: str) -> bool:
    text = f"{manifest.agent_id} {manifest.display_name} {manifest.description}".lower()
    return all(word in text for word in query.lower().split())
