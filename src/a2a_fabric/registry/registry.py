"""The registry of agents: one interface over layered sources, and the routing plans that follow from it.

Each source provides manifests; earlier sources win over later ones. A source that
fails keeps its last good manifests, and its error is reported. Listeners are called
after every swap of the catalog; `RegistryChanges` lets remote readers wait for the next one.

A change costs work for the agents that changed, not for all others: the rest of the catalog is carried over. Many
changes at once are applied in parts, so that calls go on meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, filterfalse
from operator import attrgetter, is_not, not_
from typing import Any, Protocol

import msgspec

from a2a_fabric.core.agent import LOGIN_CAPABILITY, Capability, Manifest, Status, is_elsewhere, normalize_name
from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.disclosure import acts_as_operator
from a2a_fabric.core.errors import STORE_AWAY, AgentNotFound, FabricError, Forbidden, StoreUnavailable
from a2a_fabric.core.federation import WordRouting, merge_word_routing
from a2a_fabric.core.logins import PersonalListing, PersonalListings, find_login_owner
from a2a_fabric.core.policy import check_agent_name, find_verdict, is_limited, narrow_manifest
from a2a_fabric.core.ports import AgentSource, ReportsProblems, RoutesByWords
from a2a_fabric.core.registration import Registration
from a2a_fabric.core.tasks import iterate_in_slices
from a2a_fabric.core.view import EVERY_CAPABILITY
from a2a_fabric.registry.agent_tools import AgentToolReport, AgentTools, InjectionMarks
from a2a_fabric.registry.catalog import Catalog, PersonalCatalogs
from a2a_fabric.registry.changes import PendingDescriptions, RegistryChanges
from a2a_fabric.registry.health import HealthTracker
from a2a_fabric.registry.memory import AgentMemory
from a2a_fabric.registry.names import (
    LookalikeRule,
    ReservedNames,
    TakenNames,
    is_reserved,
    name_conflict,
    refuse_reserved_name,
)
from a2a_fabric.registry.registration_policy import read_terms
from a2a_fabric.registry.statuses import AgentStatuses

_log = logging.getLogger(__name__)
_SWAP_DELAY = 0.05
_MAX_CHANGES = 128  # agents that one swap of the catalog changes, except at the start
_COMPARED_AT_ONCE = 512
_agent_id = attrgetter("agent_id")
_is_enabled = attrgetter("enabled")
_DECLARED_ONLY_FIELDS = (
    "agent_id", "endpoint", "runtime", "node_id", "trust_tier", "audience", "fallbacks", "pool", "category",
    "dependencies", "coordination", "origin",
)  # fmt: skip


class RegistrationSource(AgentSource, Protocol):
    """The source of registered agents, which knows who registered them."""

    def get(self, agent_id: str) -> Registration | None: ...


def _index_manifests(manifests: Sequence[Manifest]) -> dict[str, Manifest]:
    """Of two manifests with the same id the first."""
    by_id = dict(zip(map(_agent_id, manifests), manifests, strict=True))
    if len(by_id) != len(manifests):
        by_id = {}
        for manifest in manifests:
            by_id.setdefault(manifest.agent_id, manifest)
    return by_id


class CatalogFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A field that is None does not filter; all words of `query` must be in the agent's name or description."""

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

    @property
    def is_exact(self) -> bool:
        """Whether the candidates of an index are what it includes."""
        return all(getattr(self, name) is None for name in self.__struct_fields__ if name != "capability")


_EXACT_FIELDS = ("trust_tier", "audience", "node_id", "version", "realm", "cog_id", "delegate_id")


class Registry:
    """Owns the catalog and the health of agents. Sources feed it, calls read it, and `changes` reports every change."""

    def __init__(
        self,
        sources: Sequence[AgentSource],
        tools: Iterable[Manifest],
        health: HealthTracker,
        registrations: RegistrationSource | None = None,
        reserved: ReservedNames | None = None,
        memory: AgentMemory | None = None,
        *,
        pin_tools: bool = False,
        injection_marks: InjectionMarks = "off",
        first_list_timeout: float = 5.0,
    ) -> None:
        """`registrations` is the one among the sources whose agents registered themselves."""
        self.health = health
        self.statuses = AgentStatuses(health)  # as the whole node knows them
        self.changes = RegistryChanges()
        self.errors: dict[str, str] = {}
        self.word_routing = WordRouting()  # of all sources, the earlier before the later
        self._switched_off: dict[str, dict[str, Manifest]] = {}
        self._left_out: dict[str, Mapping[str, str]] = {}  # by source: agents that could not be read, and why
        self._sources = sources
        self._tools = tuple(tools)
        self._tools_by_id = {tool.agent_id: tool for tool in self._tools}
        self._manifests_by_source: dict[str, dict[str, Manifest]] = {source.name: {} for source in sources}
        self._load_locks = {source.name: asyncio.Lock() for source in sources}
        self._added_agents: dict[str, Manifest] = {}
        self._completions: dict[str, tuple[Manifest, Manifest]] = {}
        self._declarations: dict[str, Manifest] = {}
        self._listed: dict[str, Manifest] = {}  # as the catalog has them, and those that are hidden
        self._discovered: set[str] = set()
        self._login_agents: set[str] = set()
        self._registered_ids: set[str] = set()  # of the agents that are not the operator's
        self._changed: set[str] = set()  # what the next swap changes
        self._probed: dict[str, Manifest] = {}  # the declarations of agents that were asked about themselves
        self.pending_descriptions = PendingDescriptions(first_list_timeout)
        self._tools_by_agent = AgentTools(memory, pin_tools=pin_tools, injection_marks=injection_marks)
        self._memory = memory
        self._detected_runtimes: dict[str, tuple[dict[str, Any], str]] = {}
        self._listeners: list[Callable[[Catalog], None]] = []
        self._swap_timer: asyncio.TimerHandle | None = None
        self._registrations = registrations
        self._reserved = reserved or ReservedNames()
        self._taken_names = TakenNames()
        for tool in self._tools:
            self._taken_names.replace(tool.agent_id, tool)
        self._hidden: set[str] = set()
        self.catalog = Catalog(self._tools)
        self.has_logins = False  # whether callers sign in to an agent of the catalog
        self.load_listings: Callable[[str], Awaitable[None]] | None = None  # of one owner; bounded in time
        self.listings = PersonalListings()  # what agents at which callers sign in offer each of them
        self._personal_catalogs = PersonalCatalogs(self.listings, self._select_personal)
        health.add_listener(lambda *_: self.changes.notify())

    def add_listener(self, listener: Callable[[Catalog], None]) -> None:
        """Be called after every change of the catalog."""
        self._listeners.append(listener)

    async def load(self, source: AgentSource) -> None:
        """Read one source again. If that fails, its last agents stay, and the problem is reported."""
        async with self._load_locks[source.name]:
            try:
                manifests = await source.load()
            except FabricError as error:
                self.errors[source.name] = error.message
                extra = STORE_AWAY if isinstance(error, StoreUnavailable) else None
                _log.error("agents of %s not reloaded: %s", source.name, error.message, extra=extra)
                return
            self.errors.pop(source.name, None)
            if isinstance(source, ReportsProblems):
                self._record_problems(source.name, source.problems)
            if isinstance(source, RoutesByWords):
                blocks = (each.word_routing for each in self._sources if isinstance(each, RoutesByWords))
                self.word_routing = merge_word_routing(blocks)
            are_enabled = [*map(_is_enabled, manifests)]  # not one by one: there may be many
            self._switched_off[source.name] = _index_manifests([*compress(manifests, map(not_, are_enabled))])
            if self._switched_off[source.name]:
                manifests = [*compress(manifests, are_enabled)]
            await self._apply_source(source.name, _index_manifests(manifests))

    @property
    def switched_off(self) -> dict[str, Manifest]:
        """Agents that are declared with `enabled: false`."""
        return {key: manifest for manifests in self._switched_off.values() for key, manifest in manifests.items()}

    def _record_problems(self, name: str, problems: Mapping[str, str]) -> None:
        before = self._left_out.get(name, {})
        for key, problem in problems.items():
            if before.get(key) != problem:
                _log.error("an agent of %s is left out: %s", name, problem)
        self._left_out[name] = dict(problems)

    @property
    def left_out(self) -> dict[str, str]:
        """Agents that are declared and could not be read, by file or address, and why. The others are there."""
        return {key: problem for problems in self._left_out.values() for key, problem in problems.items()}

    async def _apply_source(self, name: str, manifests: dict[str, Manifest]) -> None:
        """Change the agents of one source that differ. Those that are the same object as before cost nothing."""
        before = self._manifests_by_source[name]
        changed = list(before.keys() - manifests.keys())
        different = compress(manifests, map(is_not, map(before.get, manifests), manifests.values()))
        async for agent_ids in iterate_in_slices(tuple(different), _COMPARED_AT_ONCE):
            for agent_id in agent_ids:
                if before.get(agent_id) == manifests[agent_id]:
                    manifests[agent_id] = before[agent_id]
                else:
                    changed.append(agent_id)
        is_first = not before
        while len(changed) > _MAX_CHANGES and not is_first:
            part, changed = changed[:_MAX_CHANGES], changed[_MAX_CHANGES:]
            before = {**before, **{each: manifests[each] for each in part if each in manifests}}
            for agent_id in part:
                if agent_id not in manifests:
                    del before[agent_id]
            self._manifests_by_source[name] = before
            self._swap_catalog(part)
            await asyncio.sleep(0)
        if changed or list(before) != list(manifests):
            self._manifests_by_source[name] = manifests
            self._swap_catalog(changed)

    def catalog_for(self, principal: Principal) -> Catalog:
        """The catalog with what agents offer this caller, whether it may call them or not.

        It is the same object for as long as nothing changes, and another one for callers with logins of their own.
        """
        return self._personal_catalogs.catalog_for(self.catalog, principal) if self.has_logins else self.catalog

    def visible_to(self, principal: Principal) -> Catalog:
        """The catalog as this caller sees it: the agents, tools and capabilities that it may call."""
        return self.catalog_for(principal).view_for(principal)

    async def prepare_view(self, principal: Principal) -> Catalog:
        """As `visible_to`, but a view that is not known yet is built in slices, with other requests in between."""
        catalog = self.catalog_for(principal)
        await catalog.prepare_view(principal)
        return catalog.view_for(principal)

    async def wait_for_lists(self, principal: Principal) -> None:
        """Wait, for a short time, until what this caller is to be shown is known."""
        await self.pending_descriptions.wait()
        if self.has_logins and self.load_listings is not None:
            owner = find_login_owner(principal)
            if owner is not None:
                await self.load_listings(owner)

    def get_for(self, principal: Principal, agent_id: str) -> Manifest | None:
        """One agent or tool as this caller sees it, without looking at the others."""
        manifest = self.catalog_for(principal).get(agent_id)
        return manifest if manifest is None or not is_limited(principal) else narrow_manifest(principal, manifest)

    def find_for(self, principal: Principal, agent_id: str) -> Manifest:
        """An agent or a tool as this caller sees it. Raises AgentNotFound, or Forbidden for what its scopes exclude.

        Whether there is such an agent makes no difference to a caller who may not call it.
        """
        manifest = self.get_for(principal, agent_id)
        if manifest is None:
            check_agent_name(principal, agent_id)
            self._tell_operator_of_rule(principal, agent_id)
            raise AgentNotFound(agent_id, self.list_hints(principal, agent_id))
        return manifest

    def _tell_operator_of_rule(self, principal: Principal, agent_id: str) -> None:
        """Raises Forbidden if there is such an agent, which a rule of the operator hides from the operator, too."""
        hidden = self.catalog_for(principal).get(agent_id) if acts_as_operator(principal) else None
        verdict = None if hidden is None else find_verdict(principal, hidden, EVERY_CAPABILITY)
        if verdict is not None and verdict.effect == "deny":
            raise Forbidden(
                f"Refused by policy: rule '{verdict.rule}' keeps agent '{agent_id}' from this caller",
                agent_id=agent_id,
                rule=verdict.rule,
            )

    def list_hints(self, principal: Principal, near: str) -> Iterator[str]:
        """Ids of agents that this caller may see, to name the nearest in an error."""
        return map(_agent_id, self.catalog_for(principal).list_for_hints(principal, near))

    def find_agent_for(self, principal: Principal, agent_id: str) -> Manifest:
        """The same for agents only, without tools."""
        manifest = self.find_for(principal, agent_id)
        if manifest.is_tool:
            raise AgentNotFound(agent_id, self.list_hints(principal, agent_id))
        return manifest

    # the five verbs

    def list_agents(self, filters: CatalogFilter | None = None, among: Catalog | None = None) -> list[Manifest]:
        filters, catalog = filters or CatalogFilter(), self.catalog if among is None else among
        return [each for each in self.find_candidates(filters, catalog) if self.matches(each, filters)]

    def find_candidates(self, filters: CatalogFilter, catalog: Catalog) -> Sequence[Manifest]:
        """The agents that an index finds; `matches` decides which of them the filters include."""
        if filters.capability is not None:
            return catalog.find_by_capability(normalize_name(filters.capability))
        if filters.tag is not None:
            return catalog.find_by_tag(filters.tag)
        return catalog.agents

    def get_agent(self, agent_id: str) -> Manifest:
        manifest = self.catalog.get(agent_id)
        if manifest is None or manifest.is_tool:
            raise AgentNotFound(agent_id, map(_agent_id, self.catalog.agents))
        return manifest

    def register_agent(self, manifest: Manifest) -> None:
        """Add an agent at run time; it takes precedence over a declared agent with the same id."""
        self._added_agents[manifest.agent_id] = manifest
        self._swap_catalog([manifest.agent_id])

    def is_declared(self, agent_id: str, *, excluding: AgentSource) -> bool:
        """Whether the id is taken by a built-in tool or by another source than this one."""
        manifest = self.catalog.get(agent_id)
        if manifest is None or manifest.is_tool or agent_id in self._added_agents:
            return manifest is not None
        return any(agent_id in ids for name, ids in self._manifests_by_source.items() if name != excluding.name)

    def is_registered(self, agent_id: str) -> bool:
        """Whether the agent with this id was registered at run time, not declared by the operator."""
        return self._find_owner(agent_id) is not None and not self._is_operators(agent_id)

    def is_hidden(self, agent_id: str) -> bool:
        """Whether an agent registered under a name that the operator has given to another since."""
        return agent_id in self._hidden

    def check_name(self, manifest: Manifest, principal: Principal) -> None:
        """Raises Conflict if the id or the display name is reserved, or looks like that of another owner's agent."""
        refuse_reserved_name(manifest, principal, self._reserved)
        owner = owner_from_principal(principal)

        def rule_for(existing: Manifest) -> LookalikeRule:
            if self._is_operators(existing.agent_id):
                return "all"
            return "free" if self._find_owner(existing.agent_id) == owner else "id"

        lookalike = self._taken_names.find_lookalike(manifest, rule_for)
        if lookalike is not None:
            raise name_conflict(manifest, *lookalike, principal)

    def update_health(self, agent_id: str, status: Status, error: str | None = None) -> None:
        self.get_agent(agent_id)
        self.health.set_status(agent_id, status, error)

    def find_by_capability(self, capability: str) -> Sequence[Manifest]:
        return self.catalog.find_by_capability(normalize_name(capability))

    # Descriptions that agents publish.

    def set_detected_runtime(self, agent_id: str, runtime: str) -> None:
        """Note the detected runtime of an agent without a declared one, for as long as its endpoint stays the same."""
        manifest = self.catalog.get(agent_id)
        if manifest is not None:
            self._detected_runtimes[agent_id] = (manifest.endpoint, runtime)
            self.changes.notify()

    def find_runtime_kind(self, manifest: Manifest) -> str | None:
        """The runtime that is declared, detected, or implied by the endpoint; None while it is unknown."""
        if manifest.runtime is not None:
            return manifest.runtime
        endpoint, runtime = self._detected_runtimes.get(manifest.agent_id, (None, None))
        return runtime if endpoint == manifest.endpoint else manifest.implied_runtime

    def find_declaration(self, manifest: Manifest) -> Manifest:
        """The manifest as its source gave it, before the agent was asked about itself."""
        return self._declarations.get(manifest.agent_id, manifest)

    def record_probe(self, declared: Manifest) -> None:
        """The agent was asked about itself, whether it answered or not."""
        self._probed[declared.agent_id] = declared
        if self.pending_descriptions.has_any:
            if self._swap_timer is not None and self.pending_descriptions.is_last(declared.agent_id):
                self._swap_catalog()  # what all of them said is listed before the list that waits for it
            self.pending_descriptions.discard(declared.agent_id)

    def describe_tools(self, agent_id: str) -> AgentToolReport:
        """What the operator should know of an agent's tools."""
        return self._tools_by_agent.report(agent_id)

    def list_tool_notices(self) -> list[str]:
        """What the operator should know of the tools of all agents: changed ones, and choices that cannot be done."""
        return self._tools_by_agent.list_notices()

    def approve_tools(self, agent_id: str, patterns: Sequence[str]) -> list[str]:
        """Accept what changed tools say now; the names of those that had changed."""
        approved = self._tools_by_agent.approve(agent_id, patterns)
        if approved:
            self._swap_catalog([agent_id])
        return approved

    def apply_description(self, declared: Manifest, completed: Manifest) -> None:
        """Keep what an agent published about itself, for as long as its declaration stays the same.

        The agent cannot change its id, its address or its access rules.
        Many agents answer at about the same time; they share one swap of the catalog.
        """
        completed = self._apply_declared_fields(declared, completed)
        if self._memory is not None and _is_remembered(declared):
            self._memory.record(declared, completed)
        if self._complete(declared) != completed:
            self._completions[declared.agent_id] = (declared, completed)
            self._changed.add(declared.agent_id)
            if self._swap_timer is None:
                self._swap_timer = asyncio.get_running_loop().call_later(_SWAP_DELAY, self._swap_catalog)

    def _apply_declared_fields(self, declared: Manifest, completed: Manifest) -> Manifest:
        declared_fields = {name: getattr(declared, name) for name in _DECLARED_ONLY_FIELDS}
        metadata = {**completed.metadata, **declared.metadata}
        completed = msgspec.structs.replace(completed, metadata=metadata, tools=None, pin_tools=None, **declared_fields)
        if not self._may_use_name(completed):
            completed = msgspec.structs.replace(completed, display_name=declared.display_name)
        return completed

    def matches(self, manifest: Manifest, filters: CatalogFilter) -> bool:
        if manifest.is_tool or (filters.tag is not None and filters.tag not in manifest.tags):
            return False
        pairs = ((getattr(filters, name), getattr(manifest, name)) for name in _EXACT_FIELDS)
        if any(expected is not None and expected != actual for expected, actual in pairs):
            return False
        if filters.runtime is not None and filters.runtime != self.find_runtime_kind(manifest):
            return False
        if filters.transport is not None and filters.transport != manifest.transport:
            return False
        if filters.query is not None:
            text = f"{manifest.agent_id} {manifest.display_name} {manifest.description}".lower()
            if not all(word in text for word in filters.query.lower().split()):
                return False
        return filters.status is None or self.statuses.get(manifest.agent_id).status == filters.status

    def _swap_catalog(self, changed: Collection[str] = ()) -> None:
        """Replace the catalog by one in which these agents are as they are now."""
        if self._swap_timer is not None:
            self._swap_timer.cancel()
            self._swap_timer = None
        changed, self._changed = {*changed, *self._changed}, set()
        renamed: set[str] = set()
        for agent_id in changed:
            renamed |= self._update_agent(agent_id)
        changed |= self._hide_lookalikes(changed | renamed)
        previous = self.catalog
        ids = dict.fromkeys(chain(self._added_agents, *self._manifests_by_source.values()))
        shown = map(self._listed.__getitem__, filterfalse(self._hidden.__contains__, ids) if self._hidden else ids)
        catalog = Catalog(
            chain(shown, self._tools),
            self._discovered,
            self._tools_by_agent.translations,
            previous=previous,
            changed=[each for each in changed if previous.get(each) is not self._find_shown(each)],
        )
        self.catalog = catalog
        for agent_id in changed:
            if catalog.get(agent_id) is None and previous.get(agent_id) is not None:
                self.health.forget(agent_id)
                self._completions.pop(agent_id, None)
                self._detected_runtimes.pop(agent_id, None)
                self._probed.pop(agent_id, None)
            (
                self.pending_descriptions.add
                if self._is_description_pending(agent_id)
                else self.pending_descriptions.discard
            )(agent_id)
        self.has_logins = bool(self._login_agents)
        self.changes.notify()
        for listener in self._listeners:
            listener(catalog)

    def _update_agent(self, agent_id: str) -> set[str]:
        """Take over what is known of one agent now; the ids of other agents whose names are to be checked again."""
        declared = self._find_declared(agent_id)
        was_operators = agent_id in self._declarations and agent_id not in self._registered_ids
        if declared is None:
            listed = None
            self._tools_by_agent.forget(agent_id)
            self._declarations.pop(agent_id, None)
            self._listed.pop(agent_id, None)
            self._discovered.discard(agent_id)
            self._login_agents.discard(agent_id)
            self._registered_ids.discard(agent_id)
        else:
            self._recall(declared)
            described = self._complete(declared)
            self._declarations[agent_id] = declared if described is declared else self._completions[agent_id][0]
            is_discovered = _is_discovered(declared, described)
            (self._discovered.add if is_discovered else self._discovered.discard)(agent_id)
            listed = self._tools_by_agent.select(declared, described, is_discovered=is_discovered)
            (self._login_agents.add if listed.wants_login else self._login_agents.discard)(agent_id)
            listed = self._listed[agent_id] = _add_login_hint(listed)
            (self._registered_ids.discard if self._is_operators(agent_id) else self._registered_ids.add)(agent_id)
        forms = self._taken_names.replace(agent_id, listed or self._tools_by_id.get(agent_id))
        is_operators = declared is not None and agent_id not in self._registered_ids
        if was_operators != is_operators:
            forms |= self._taken_names.list_forms(agent_id)
        return self._taken_names.find_sharing(forms) if forms and (was_operators or is_operators) else set()

    def _find_declared(self, agent_id: str) -> Manifest | None:
        """The manifest of an agent as the first source has it."""
        added = self._added_agents.get(agent_id)
        if added is not None:
            return added
        found = (manifests.get(agent_id) for manifests in self._manifests_by_source.values())
        return next((manifest for manifest in found if manifest is not None), None)

    def _find_shown(self, agent_id: str) -> Manifest | None:
        """The agent or tool of this id that the next catalog has."""
        listed = None if agent_id in self._hidden else self._listed.get(agent_id)
        return listed or self._tools_by_id.get(agent_id)

    def _is_description_pending(self, agent_id: str) -> bool:
        declared = self._find_declared(agent_id)
        if declared is None or declared.capabilities or agent_id in self._completions or is_elsewhere(declared):
            return False
        return self._is_operators(agent_id) and not self._was_probed(declared)

    def _hide_lookalikes(self, agent_ids: Iterable[str]) -> set[str]:
        """Hide registered agents whose names the operator has since given to others or reserved.

        Returns those that are hidden now and were not, or the reverse.
        """
        changed: set[str] = set()
        for agent_id in () if self._registrations is None else agent_ids:
            manifest = self._listed.get(agent_id)
            is_hidden = manifest is not None and not self._may_use_name(manifest)
            if is_hidden != (agent_id in self._hidden):
                changed.add(agent_id)
                (self._hidden.add if is_hidden else self._hidden.discard)(agent_id)
                if is_hidden:
                    _log.warning(
                        "agent %s, registered by %s, is hidden: its name is reserved or looks like a declared agent's",
                        agent_id,
                        self._find_owner(agent_id),
                    )
        return changed

    def _may_use_name(self, manifest: Manifest) -> bool:
        owner, terms = self._find_owner(manifest.agent_id), read_terms(manifest)
        is_operator_owned = self._is_operators(manifest.agent_id) or (terms is not None and terms.by_operator)
        if owner is None or is_operator_owned:
            return True
        if is_reserved(manifest, owner, self._reserved):
            return False
        return self._taken_names.find_lookalike(manifest, self._declared_rule_for) is None

    def _declared_rule_for(self, existing: Manifest) -> LookalikeRule:
        return "all" if self._is_operators(existing.agent_id) else "free"

    def _find_owner(self, agent_id: str) -> str | None:
        registration = None if self._registrations is None else self._registrations.get(agent_id)
        return None if registration is None else registration.owner

    def _is_operators(self, agent_id: str) -> bool:
        """Whether it is an agent of the operator's own, or a built-in tool."""
        if agent_id in self._added_agents or agent_id in self._tools_by_id:
            return True
        registrations = None if self._registrations is None else self._registrations.name
        return any(agent_id in ids for name, ids in self._manifests_by_source.items() if name != registrations)

    def _complete(self, declared: Manifest) -> Manifest:
        completion = self._completions.get(declared.agent_id)
        is_valid = completion is not None and _is_same_declaration(completion[0], declared)
        return completion[1] if completion is not None and is_valid else declared

    def find_own_name(self, manifest: Manifest, capability: Capability) -> str | None:
        """The agent's own name of a tool in the catalog; None for a tool that the operator made from another one."""
        translation = self.catalog.translations.get(manifest.agent_id)
        return capability.name if translation is None else translation.find_own_name(capability.name)

    def holds_back_from(self, owner: str, manifest: Manifest) -> bool:
        """Whether tools are held back because they changed since this caller, which is signed in, was offered them."""
        listing = self.listings.get(owner, manifest.agent_id)
        return listing is not None and bool(self._tools_by_agent.list_held(self.find_declaration(manifest), listing))

    def _select_personal(self, manifest: Manifest, listing: PersonalListing) -> Manifest:
        """An agent as a caller sees it that is signed in there. What the operator declared is the same for all."""
        declared = self.find_declaration(manifest)
        if declared.capabilities:
            return manifest
        return self._tools_by_agent.select_personal(declared, manifest, listing)

    def _recall(self, declared: Manifest) -> None:
        """An agent that was not asked since the start is listed as it described itself before."""
        if self._memory is None or not _is_remembered(declared) or self._complete(declared) is not declared:
            return
        remembered = self._memory.recall(declared)
        if remembered is not None:
            self._completions[declared.agent_id] = declared, self._apply_declared_fields(declared, remembered)

    def _was_probed(self, declared: Manifest) -> bool:
        probed = self._probed.get(declared.agent_id)
        return probed is not None and _is_same_declaration(probed, declared)


def _is_same_declaration(first: Manifest, second: Manifest) -> bool:
    """Whether both declare the same agent; which of its tools are listed may differ."""
    if first is second or first == second:
        return True
    if first.tools == second.tools and first.pin_tools == second.pin_tools:
        return False
    return msgspec.structs.replace(first, tools=second.tools, pin_tools=second.pin_tools) == second


def _is_remembered(declared: Manifest) -> bool:
    """An agent that says itself what it offers, outside this process and not behind another node.

    One that wants logins tells callers apart, unless the operator has a token for its list.
    """
    auth = declared.endpoint.get("auth")
    if auth is not None and not (isinstance(auth, dict) and auth.get("service_token")):
        return False
    return not declared.capabilities and declared.runtime != "python" and not is_elsewhere(declared)


def _add_login_hint(manifest: Manifest) -> Manifest:
    """An agent that shows nothing to callers without a login is listed with a way to sign in."""
    if not manifest.wants_login or manifest.capabilities:
        return manifest
    return msgspec.structs.replace(manifest, capabilities=(LOGIN_CAPABILITY,))


def _is_discovered(declared: Manifest, completed: Manifest) -> bool:
    """Whether the agent published its capabilities itself. Those of a Python agent count as declared."""
    if is_elsewhere(declared):
        return True
    return not declared.capabilities and bool(completed.capabilities) and declared.runtime != "python"
