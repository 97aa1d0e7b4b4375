"""The registry of agents: one interface over layered sources, and the routing plans that follow from it.

Each source provides manifests; earlier sources win over later ones. A source that
fails keeps its last good manifests, and its error is reported. Listeners are called
after every swap of the catalog; `RegistryChanges` lets remote readers wait for the next one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from a2a_fabric.core.agent import (
    LOGIN_CAPABILITY,
    MAX_CAPABILITY_NAME,
    Capability,
    Manifest,
    Status,
    is_imported,
    normalize_name,
)
from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.errors import AgentNotFound, FabricError
from a2a_fabric.core.logins import PersonalListings, find_login_owner
from a2a_fabric.core.policy import check_agent_name, find_refusal_of_unknown, is_limited, narrow_manifest, refuse_call
from a2a_fabric.core.ports import AgentSource
from a2a_fabric.core.propagation import new_id
from a2a_fabric.core.registration import Registration
from a2a_fabric.core.routing import RoutePlan, RouteRequest, RoutingPolicy, plan_route
from a2a_fabric.registry.agent_tools import AgentToolReport, AgentTools
from a2a_fabric.registry.catalog import Catalog, PersonalCatalogs
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


class RegistryChanges:
    """`revision` is different after each change and after each start of the node."""

    def __init__(self) -> None:
        self._start_id = new_id()[:8]
        self._count = 0
        self._signal = asyncio.Event()
        self._is_stopped = False

    @property
    def revision(self) -> str:
        return f"{self._start_id}.{self._count}"

    def notify(self) -> None:
        """Something changed."""
        self._count += 1
        signal, self._signal = self._signal, asyncio.Event()
        signal.set()

    async def wait(self, revision: str, timeout: float) -> None:
        """Wait until this revision is outdated, at most `timeout` seconds."""
        if revision == self.revision and timeout > 0 and not self._is_stopped:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._signal.wait()

    def stop(self) -> None:
        """The node stops: end all waiting requests."""
        self._is_stopped = True
        self._signal.set()


class UnaskedAgents:
    """The operator's agents whose capabilities are not known, because they were not asked yet.

    `has_any` is False nearly always; then nothing waits.
    """

    def __init__(self, timeout: float) -> None:
        self.has_any = False
        self._timeout = timeout
        self._agents: set[str] = set()
        self._reported: set[str] = set()
        self._all_asked = asyncio.Event()

    def update(self, agents: Iterable[str]) -> None:
        self._agents = set(agents)
        self.has_any = bool(self._agents)
        if self.has_any:
            self._all_asked.clear()
        else:
            self._all_asked.set()

    def discard(self, agent_id: str) -> None:
        self.update(self._agents - {agent_id})

    def includes(self, agent_id: str) -> bool:
        return agent_id in self._agents

    async def wait(self) -> None:
        """Wait until each of them was asked, but not longer than the time-out; then the log names the others."""
        if not self.has_any:
            return
        try:
            async with asyncio.timeout(self._timeout):
                await self._all_asked.wait()
        except TimeoutError:
            silent = sorted(self._agents - self._reported)
            self._reported.update(silent)
            if silent:
                _log.warning(
                    "listed without what these agents offer, because they did not answer within %g s: %s",
                    self._timeout,
                    ", ".join(silent[:20]),
                )


_log = logging.getLogger(__name__)
_SWAP_DELAY = 0.05
_DECLARED_ONLY_FIELDS = (
    "agent_id", "endpoint", "runtime", "node_id", "trust_tier", "audience", "fallbacks", "pool", "category",
)  # fmt: skip


class RegistrationSource(AgentSource, Protocol):
    """The source of registered agents, which knows who registered them."""

    def get(self, agent_id: str) -> Registration | None: ...


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
        first_list_timeout: float = 5.0,
    ) -> None:
        """`registrations` is the one among the sources whose agents registered themselves."""
        self.health = health
        self.changes = RegistryChanges()
        self.errors: dict[str, str] = {}
        self._sources = sources
        self._tools = tuple(tools)
        self._manifests_by_source: dict[str, tuple[Manifest, ...]] = {source.name: () for source in sources}
        self._ids_by_source: dict[str, frozenset[str]] = {}
        self._added_agents: dict[str, Manifest] = {}
        self._completions: dict[str, tuple[Manifest, Manifest]] = {}
        self._declarations: dict[str, Manifest] = {}
        self._probed: dict[str, Manifest] = {}  # the declarations of agents that were asked about themselves
        self.unasked = UnaskedAgents(first_list_timeout)
        self._tools_by_agent = AgentTools(memory, pin_tools=pin_tools)
        self._memory = memory
        self._detected_runtimes: dict[str, tuple[dict[str, Any], str]] = {}
        self._listeners: list[Callable[[Catalog], None]] = []
        self._swap_timer: asyncio.TimerHandle | None = None
        self._registrations = registrations
        self._reserved = reserved or ReservedNames()
        self._taken_names = TakenNames()
        self._hidden: frozenset[str] = frozenset()
        self._name_checks: dict[str, tuple[Manifest, bool]] = {}  # whether each may be called so, by the agents below
        self._checked_against: list[Manifest] = []
        self._declared_ids = self._collect_declared_ids()
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
        try:
            manifests = tuple(await source.load())
        except FabricError as error:
            self.errors[source.name] = error.message
            _log.error("agents of %s not reloaded: %s", source.name, error.message)
            return
        self.errors.pop(source.name, None)
        if manifests != self._manifests_by_source[source.name]:
            self._manifests_by_source[source.name] = manifests
            self._ids_by_source[source.name] = frozenset(manifest.agent_id for manifest in manifests)
            self._swap_catalog()

    def catalog_for(self, principal: Principal) -> Catalog:
        """The catalog with what agents offer this caller, whether it may call them or not.

        It is the same object for as long as nothing changes, and another one for callers with logins of their own.
        """
        return self._personal_catalogs.catalog_for(self.catalog, principal) if self.has_logins else self.catalog

    def visible_to(self, principal: Principal) -> Catalog:
        """The catalog as this caller sees it: the agents, tools and capabilities that it may call."""
        return self.catalog_for(principal).view_for(principal)

    async def wait_for_lists(self, principal: Principal) -> None:
        """Wait, for a short time, until what this caller is to be shown is known."""
        await self.unasked.wait()
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
            raise AgentNotFound(agent_id, [each.agent_id for each in self.visible_to(principal).agents])
        return manifest

    def find_agent_for(self, principal: Principal, agent_id: str) -> Manifest:
        """The same for agents only, without tools."""
        manifest = self.find_for(principal, agent_id)
        if manifest.is_tool:
            raise AgentNotFound(agent_id, [each.agent_id for each in self.visible_to(principal).agents])
        return manifest

    # the five verbs

    def list_agents(self, filters: CatalogFilter | None = None, among: Catalog | None = None) -> list[Manifest]:
        filters, catalog = filters or CatalogFilter(), self.catalog if among is None else among
        manifests: Sequence[Manifest] = catalog.agents
        if filters.capability is not None:
            manifests = catalog.find_by_capability(normalize_name(filters.capability))
        elif filters.tag is not None:
            manifests = [m for m in catalog.find_by_tag(filters.tag) if not m.is_tool]
        return [manifest for manifest in manifests if self._matches(manifest, filters)]

    def get_agent(self, agent_id: str) -> Manifest:
        manifest = self.catalog.get(agent_id)
        if manifest is None or manifest.is_tool:
            raise AgentNotFound(agent_id, [m.agent_id for m in self.catalog.agents])
        return manifest

    def register_agent(self, manifest: Manifest) -> None:
        """Add an agent at run time; it takes precedence over a declared agent with the same id."""
        self._added_agents[manifest.agent_id] = manifest
        self._swap_catalog()

    def is_declared(self, agent_id: str, *, excluding: AgentSource) -> bool:
        """Whether the id is taken by a built-in tool or by another source than this one."""
        manifest = self.catalog.get(agent_id)
        if manifest is None or manifest.is_tool or agent_id in self._added_agents:
            return manifest is not None
        return any(agent_id in ids for name, ids in self._ids_by_source.items() if name != excluding.name)

    def is_registered(self, agent_id: str) -> bool:
        """Whether the agent with this id was registered at run time, not declared by the operator."""
        return agent_id not in self._declared_ids and self._find_owner(agent_id) is not None

    def is_hidden(self, agent_id: str) -> bool:
        """Whether an agent registered under a name that the operator has given to another since."""
        return agent_id in self._hidden

    def check_name(self, manifest: Manifest, principal: Principal) -> None:
        """Raises Conflict if the id or the display name is reserved, or looks like that of another owner's agent."""
        refuse_reserved_name(manifest, principal, self._reserved)
        owner = owner_from_principal(principal)

        def rule_for(existing: Manifest) -> LookalikeRule:
            if existing.agent_id in self._declared_ids:
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
        if self.unasked.has_any:
            if self._swap_timer is not None:
                self._swap_catalog()  # what it said is listed before the next list
            self.unasked.discard(declared.agent_id)

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
            self._swap_catalog()
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
            if self._swap_timer is None:
                self._swap_timer = asyncio.get_running_loop().call_later(_SWAP_DELAY, self._swap_catalog)

    def _apply_declared_fields(self, declared: Manifest, completed: Manifest) -> Manifest:
        declared_fields = {name: getattr(declared, name) for name in _DECLARED_ONLY_FIELDS}
        metadata = {**completed.metadata, **declared.metadata}
        completed = msgspec.structs.replace(completed, metadata=metadata, tools=None, pin_tools=None, **declared_fields)
        if not self._may_use_name(completed):
            completed = msgspec.structs.replace(completed, display_name=declared.display_name)
        return completed

    def _matches(self, manifest: Manifest, filters: CatalogFilter) -> bool:
        if filters.tag is not None and filters.tag not in manifest.tags:
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
        return filters.status is None or self.health.get(manifest.agent_id).status == filters.status

    def _swap_catalog(self) -> None:
        if self._swap_timer is not None:
            self._swap_timer.cancel()
            self._swap_timer = None
        declared = [*self._added_agents.values(), *(m for source in self._manifests_by_source.values() for m in source)]
        self._declared_ids = self._collect_declared_ids()
        unique: dict[str, Manifest] = {}
        for manifest in declared:
            if unique.setdefault(manifest.agent_id, manifest) is manifest:
                self._recall(manifest)
        described = [self._complete(manifest) for manifest in declared]
        discovered = {
            declaration.agent_id
            for declaration, completion in zip(declared, described, strict=True)
            if _is_discovered(declaration, completion)
        }
        completed = [
            self._tools_by_agent.select(declaration, completion, is_discovered=declaration.agent_id in discovered)
            if unique[declaration.agent_id] is declaration
            else completion
            for declaration, completion in zip(declared, described, strict=True)
        ]
        self.has_logins = any(manifest.wants_login for manifest in completed)
        if self.has_logins:
            completed = [_add_login_hint(manifest) for manifest in completed]
        self._declarations = {
            declaration.agent_id: self._completions[declaration.agent_id][0]
            if completion is not declaration
            else declaration
            for declaration, completion in zip(reversed(declared), reversed(described), strict=True)
        }
        self._taken_names.update((*self._tools, *completed))
        self._tools_by_agent.keep_only(unique)
        catalog = Catalog(
            [*self._hide_lookalikes(completed), *self._tools], discovered, self._tools_by_agent.translations
        )
        for removed_id in {m.agent_id for m in self.catalog} - {m.agent_id for m in catalog}:
            self.health.forget(removed_id)
            self._completions.pop(removed_id, None)
            self._detected_runtimes.pop(removed_id, None)
            self._probed.pop(removed_id, None)
        self.catalog = catalog
        self.unasked.update(
            agent_id
            for agent_id, declaration in unique.items()
            if agent_id in self._declared_ids
            and not declaration.capabilities
            and agent_id not in self._completions
            and not is_imported(agent_id)
            and not self._was_probed(declaration)
        )
        self.changes.notify()
        for listener in self._listeners:
            listener(catalog)

    def _hide_lookalikes(self, manifests: list[Manifest]) -> list[Manifest]:
        """Remove registered agents whose names the operator has since given to others or reserved."""
        if self._registrations is None:
            return manifests
        declared = [manifest for manifest in manifests if manifest.agent_id in self._declared_ids]
        if declared != self._checked_against:
            self._checked_against, self._name_checks = declared, {}
        previous_checks, self._name_checks = self._name_checks, {}
        for manifest in manifests:
            name_check = previous_checks.get(manifest.agent_id)
            if name_check is None or name_check[0] is not manifest:
                name_check = manifest, self._may_use_name(manifest)
            self._name_checks[manifest.agent_id] = name_check
        hidden = frozenset(agent_id for agent_id, (_, is_allowed) in self._name_checks.items() if not is_allowed)
        for agent_id in hidden - self._hidden:
            _log.warning(
                "agent %s, registered by %s, is hidden: its name is reserved or looks like a declared agent's",
                agent_id,
                self._find_owner(agent_id),
            )
        self._hidden = hidden
        return [manifest for manifest in manifests if manifest.agent_id not in hidden] if hidden else manifests

    def _may_use_name(self, manifest: Manifest) -> bool:
        owner, terms = self._find_owner(manifest.agent_id), read_terms(manifest)
        is_operator_owned = manifest.agent_id in self._declared_ids or (terms is not None and terms.by_operator)
        if owner is None or is_operator_owned:
            return True
        if is_reserved(manifest, owner, self._reserved):
            return False
        return self._taken_names.find_lookalike(manifest, self._declared_rule_for) is None

    def _declared_rule_for(self, existing: Manifest) -> LookalikeRule:
        return "all" if existing.agent_id in self._declared_ids else "free"

    def _find_owner(self, agent_id: str) -> str | None:
        registration = None if self._registrations is None else self._registrations.get(agent_id)
        return None if registration is None else registration.owner

    def _collect_declared_ids(self) -> frozenset[str]:
        """The ids of the operator's own agents and of the built-in tools."""
        ids = [
            self._ids_by_source.get(source.name, frozenset())
            for source in self._sources
            if source is not self._registrations
        ]
        return frozenset().union(self._added_agents, (tool.agent_id for tool in self._tools), *ids)

    def _complete(self, declared: Manifest) -> Manifest:
        completion = self._completions.get(declared.agent_id)
        is_valid = completion is not None and _is_same_declaration(completion[0], declared)
        return completion[1] if completion is not None and is_valid else declared

    def _select_personal(self, manifest: Manifest, capabilities: tuple[Capability, ...]) -> Manifest:
        """An agent as a caller sees it that is signed in there. What the operator declared is the same for all."""
        declared = self.find_declaration(manifest)
        if declared.capabilities:
            return manifest
        return self._tools_by_agent.select_personal(declared, manifest, capabilities)

    def _recall(self, declared: Manifest) -> None:
        """An agent that was not asked since the start is listed as it described itself before."""
        if self._memory is None or not _is_remembered(declared) or self._complete(declared) is not declared:
            return
        remembered = self._memory.recall(declared)
        if remembered is not None:
            self._completions[declared.agent_id] = declared, self._apply_declared_fields(declared, remembered)

    def _was_probed(self, declared: Manifest) -> bool:
        asked = self._probed.get(declared.agent_id)
        return asked is not None and _is_same_declaration(asked, declared)


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
    return not declared.capabilities and declared.runtime != "python" and not is_imported(declared.agent_id)


def _add_login_hint(manifest: Manifest) -> Manifest:
    """An agent that shows nothing to callers without a login is listed with a way to sign in."""
    if not manifest.wants_login or manifest.capabilities:
        return manifest
    return msgspec.structs.replace(manifest, capabilities=(LOGIN_CAPABILITY,))


def _is_discovered(declared: Manifest, completed: Manifest) -> bool:
    """Whether the agent published its capabilities itself. Those of a Python agent count as declared."""
    if is_imported(declared.agent_id):
        return True
    return not declared.capabilities and bool(completed.capabilities) and declared.runtime != "python"


_MAX_PLANS = 20_000


class Planner:
    def __init__(self, registry: Registry, policy: RoutingPolicy) -> None:
        self._registry = registry
        self._policy = policy
        self._plans: dict[tuple[object, ...], RoutePlan] = {}
        self._valid_for: tuple[object, int] = (None, -1)

    def __call__(
        self, agent_id: str, capability: str, principal: Principal, stream: bool, any_agent: bool = False
    ) -> RoutePlan:
        """Raises AgentNotFound, CapabilityNotFound or Forbidden."""
        catalog, health = self._registry.catalog, self._registry.health
        own_catalog = self._registry.catalog_for(principal) if self._registry.has_logins else catalog
        if self._valid_for[0] is not catalog or self._valid_for[1] != health.epoch:
            self._plans.clear()
            self._valid_for = (catalog, health.epoch)
        who = (principal.trust, principal.scp, principal.cap, principal.views)
        key = (agent_id, capability, stream, any_agent, *who, None if own_catalog is catalog else own_catalog)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._build_plan(
                RouteRequest(
                    agent_id=agent_id,
                    capability=capability,
                    principal=principal,
                    stream=stream,
                    any_agent=any_agent,
                ),
                own_catalog,
            )
            if len(self._plans) > _MAX_PLANS:
                self._plans.clear()
            if len(capability) <= MAX_CAPABILITY_NAME:
                self._plans[key] = plan
        return plan

    def _build_plan(self, route_request: RouteRequest, catalog: Catalog) -> RoutePlan:
        try:
            return plan_route(route_request, catalog, self._registry.health, self._policy)
        except AgentNotFound:
            reason = find_refusal_of_unknown(route_request.principal, route_request.agent_id, route_request.capability)
            if reason is not None:
                raise refuse_call(
                    route_request.principal, reason, route_request.agent_id, route_request.capability
                ) from None
            visible = self._registry.visible_to(route_request.principal)
            raise AgentNotFound(route_request.agent_id, [m.agent_id for m in visible.agents]) from None
