"""Operations on agents (list, describe, preview a route, register, heartbeat, unregister) and on health."""

from __future__ import annotations

import time
from pathlib import PurePath
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from a2a_fabric.core.agent import MESH_RUNTIME, AgentId, Audience, Capability, Manifest, Status, TrustTier
from a2a_fabric.core.call import Emit, Principal
from a2a_fabric.core.disclosure import acts_as_operator, administers, redact_health_reason, reveal_to_operator
from a2a_fabric.core.errors import BadInput, Forbidden
from a2a_fabric.core.limits import FairLimit
from a2a_fabric.core.node_health import NodeCheck, is_well
from a2a_fabric.core.policy import find_verdict, is_limited
from a2a_fabric.core.ports import AgentIndex
from a2a_fabric.core.result import Result
from a2a_fabric.core.routing import share_load
from a2a_fabric.core.scopes import REGISTER_SCOPE
from a2a_fabric.core.tasks import iterate_in_slices
from a2a_fabric.gateway import Gateway
from a2a_fabric.operations.operation import OBJECT_SCHEMA, Operation, OperationRequest, TracedArguments, TraceRef
from a2a_fabric.operations.pages import MAX_ITEMS, Page, PageCursor, PageLimit
from a2a_fabric.operations.views import (
    flag_changed_tools,
    render_agent,
    render_agent_item,
    render_health_check,
    render_plan,
    render_registration,
)
from a2a_fabric.registry.registration import Registrar
from a2a_fabric.registry.registration_policy import TERMS_KEY
from a2a_fabric.registry.registry import CatalogFilter
from a2a_fabric.version import PROTOCOL_VERSION, __version__


class AgentFilterArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Its names are those of `registry.AgentFilter`, and `owner`."""

    capability: Annotated[str | None, Meta(description="Only agents with this capability.")] = None
    tag: Annotated[str | None, Meta(description="Only agents with this tag.")] = None
    status: Annotated[Status | None, Meta(description="Only agents in this state.")] = None
    trust_tier: Annotated[TrustTier | None, Meta(description="Only agents of this trust tier.")] = None
    audience: Annotated[Audience | None, Meta(description="Only agents for this audience.")] = None
    runtime: Annotated[str | None, Meta(description="Only agents reached by this runtime.")] = None
    transport: Annotated[str | None, Meta(description="Only agents with this transport.")] = None
    node_id: Annotated[str | None, Meta(description="Only agents of this machine or site.")] = None
    version: Annotated[str | None, Meta(description="Only agents of this version.")] = None
    realm: Annotated[str | None, Meta(description="Only agents of this realm.")] = None
    cog_id: Annotated[str | None, Meta(description="Only agents of this cog.")] = None
    delegate_id: Annotated[str | None, Meta(description="Only agents of this delegate.")] = None
    owner: Annotated[str | None, Meta(description="Only agents registered by this caller, as `psk:NAME`.")] = None
    query: Annotated[str | None, Meta(description="Only agents whose name or description has all these words.")] = None


class AgentListArguments(AgentFilterArguments, frozen=True, kw_only=True):
    filter: Annotated[AgentFilterArguments | None, Meta(description="The same filters, nested.")] = None
    details: Annotated[bool, Meta(description="Show each agent as fabric.agent.describe does.")] = False
    known: Annotated[
        str | None, Meta(description="A `revision` from before: if it still holds, nothing is listed.")
    ] = None
    wait_ms: Annotated[int, Meta(ge=0, le=60_000, description="While that holds, wait so long for a change.")] = 0
    limit: PageLimit = None
    cursor: PageCursor = None
    trace: Annotated[TraceRef | None, Meta(description="Continue this trace.")] = None


class DescribeArguments(TracedArguments, frozen=True, kw_only=True):
    agent_id: Annotated[str, Meta(description="Which agent.")]


class PreviewArguments(TracedArguments, frozen=True, kw_only=True):
    agent_id: Annotated[str, Meta(description="Which agent would be asked.")]
    capability: Annotated[str, Meta(description="For what.")]
    stream: Annotated[bool, Meta(description="Whether events would be wanted.")] = False


class AgentOperations:
    def __init__(self, gateway: Gateway, registrar: Registrar, waiting_requests: FairLimit) -> None:
        self._gateway = gateway
        self._waiting_requests = waiting_requests
        self._registrar = registrar

    def all(self) -> list[Operation[Any]]:
        fields = {"count": "integer", "total": "integer", "next_cursor": "string"}
        properties = {"agents": {"type": "array"}, **{name: {"type": kind} for name, kind in fields.items()}}
        list_schema = {"type": "object", "properties": properties}
        agent_schema = {"type": "object", "properties": {"agent": OBJECT_SCHEMA}, "required": ["agent"]}
        return [
            Operation("fabric.agent.list", "List the agents and what each can do.", AgentListArguments, self.list,
                      output=list_schema, scopes=()),
            Operation("fabric.agent.describe", "Describe one agent: capabilities with their schemas, health, trust.",
                      DescribeArguments, self.describe, output=agent_schema, scopes=()),
            Operation("fabric.route.preview", "Show who would answer a call, in which order, and why.",
                      PreviewArguments, self.preview, scopes=()),
        ]  # fmt: skip

    async def list(self, arguments: AgentListArguments, request: OperationRequest, emit: Emit) -> Result:
        changes = self._gateway.registry.changes
        if arguments.known is not None:
            with self._waiting_requests.hold(request.principal.principal_id):
                await changes.wait(arguments.known, arguments.wait_ms / 1000)
        revision = changes.revision
        if arguments.known == revision:
            return Result(data={"agents": [], "count": 0, "revision": revision, "unchanged": True})
        page = await self._collect_page(arguments, request)
        return Result(data={**page.render("agents"), "revision": revision, "node_id": self._gateway.node_id})

    async def _collect_page(self, arguments: AgentListArguments, request: OperationRequest) -> Page:
        """In slices, with other requests in between."""
        fields = arguments.filter or arguments
        registry, owner = self._gateway.registry, fields.owner
        filters = CatalogFilter(**{name: getattr(fields, name) for name in CatalogFilter.__struct_fields__})
        page = Page(arguments.limit, arguments.cursor)
        await registry.statuses.refresh()
        visible = await registry.prepare_view(request.principal)
        candidates = registry.find_candidates(filters, visible)
        is_filtered = owner is not None or not filters.is_exact
        if arguments.cursor is not None or len(candidates) > (arguments.limit or MAX_ITEMS):
            after = page.after[0] if page.after is not None and not is_filtered else None
            candidates = visible.sort_by_id(candidates, after)
        async for manifests in iterate_in_slices(candidates):
            for manifest in manifests:
                if is_filtered and not registry.matches(manifest, filters):
                    continue
                if owner is not None and self._registrar.find_owner(manifest.agent_id) != owner:
                    continue
                page.total += 1
                if page.wants((manifest.agent_id, 0)):
                    page.add((manifest.agent_id, 0), self._render_agent(manifest, visible, arguments, request))
            if page.is_full and not is_filtered:
                break
        if not is_filtered:
            page.total = len(registry.find_candidates(filters, visible))
        return page

    def _render_agent(
        self, manifest: Manifest, visible: AgentIndex, arguments: AgentListArguments, request: OperationRequest
    ) -> dict[str, Any]:
        registry, principal = self._gateway.registry, request.principal
        render = render_agent if arguments.details else render_agent_item
        if visible is not registry.catalog:
            manifest = _hide_fallbacks(visible, manifest)
        health = registry.statuses.get(manifest.agent_id)
        item = render(manifest, health, principal, registry.find_runtime_kind(manifest))
        if administers(principal):
            flag_changed_tools(item, registry.describe_tools(manifest.agent_id))
        return item

    async def describe(self, arguments: DescribeArguments, request: OperationRequest, emit: Emit) -> Result:
        registry = self._gateway.registry
        manifest = registry.find_agent_for(request.principal, arguments.agent_id)
        visible = await registry.prepare_view(request.principal)
        if visible is not registry.catalog:
            manifest = _hide_fallbacks(visible, manifest)
        await registry.statuses.refresh()
        health = registry.statuses.get(manifest.agent_id)
        details = render_agent(manifest, health, request.principal, registry.find_runtime_kind(manifest))
        if administers(request.principal):
            flag_changed_tools(details, registry.describe_tools(manifest.agent_id))
        registration = await self._registrar.find_registration(manifest.agent_id)
        if registration is not None:
            details["registration"] = render_registration(registration)
        return Result(data={"agent": details})

    async def preview(self, arguments: PreviewArguments, request: OperationRequest, emit: Emit) -> Result:
        try:
            plan = self._gateway.plan(arguments.agent_id, arguments.capability, request.principal, arguments.stream)
            if plan.replicas:
                plan = share_load(plan, self._gateway.count_calls)
            data = render_plan(plan, self._gateway.registry.find_runtime_kind, request.principal)
            return Result(data={**data, **self._find_node(plan.candidates[0].manifest)})
        except Forbidden as error:
            reveal_to_operator(error, request.principal)
            refusal: dict[str, Any] = {"selected_runtime": None, "fallbacks": [], "refused": []}
            verdict = {"reason": error.message, "rule": self._find_rule(arguments, request, error)}
            return Result(
                data={**refusal, "policy": {"allowed": False} | {k: v for k, v in verdict.items() if v is not None}}
            )

    def _find_node(self, manifest: Manifest) -> dict[str, str]:
        """The node of the mesh to which the call would go."""
        nodes = self._gateway.nodes
        if nodes is None:
            return {}
        if manifest.runtime != MESH_RUNTIME:
            return {"node": self._gateway.node_id, "node_reason": "this node holds the agent"}
        node = nodes.find_node(manifest.agent_id)
        reason = "of the nodes that hold the agent: those of this site first, then the least busy"
        return {} if node is None else {"node": node, "node_reason": reason}

    def _find_rule(self, arguments: PreviewArguments, request: OperationRequest, error: Forbidden) -> Any:
        """The rule that refuses the call: for the operator exactly, for others as the refusal names it."""
        manifest = self._gateway.registry.catalog.get(arguments.agent_id)
        if manifest is None or not acts_as_operator(request.principal):
            return error.details.get("rule")
        verdict = find_verdict(request.principal, manifest, arguments.capability)
        return None if verdict is None else verdict.rule


def _hide_fallbacks(visible: AgentIndex, manifest: Manifest) -> Manifest:
    """Without those of its fallbacks that the caller may not know of."""
    fallbacks = tuple(each for each in manifest.fallbacks if visible.get(each) is not None)
    return manifest if fallbacks == manifest.fallbacks else msgspec.structs.replace(manifest, fallbacks=fallbacks)


LeaseSeconds = Annotated[
    float | None,
    Meta(description="Seconds until it is gone unless a heartbeat comes. Unset: it stays while it passes its checks."),
]


class RegisterArguments(TracedArguments, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A manifest, with the short forms that clients use: an address alone, capabilities by name."""

    agent_id: AgentId
    endpoint: Annotated[dict[str, Any] | str, Meta(description="Where it is: `{uri: …}`, or the address alone.")]
    runtime: Annotated[str | None, Meta(description="How it is spoken to: http if unset, or mcp.")] = None
    capabilities: Annotated[
        tuple[dict[str, Any] | str, ...],
        Meta(description="What it does, each as an object or a name; asked of the agent if empty."),
    ] = ()
    display_name: Annotated[str, Meta(description="Name for people.")] = ""
    description: Annotated[str, Meta(description="What it is for.")] = ""
    version: Annotated[str, Meta(description="The agent's own version.")] = ""
    node_id: Annotated[str, Meta(description="The machine or site it runs on.")] = "local"
    trust_tier: Annotated[TrustTier, Meta(description="Who may reach it.")] = "org"
    audience: Annotated[Audience | None, Meta(description="For whom the agent is.")] = None
    tags: Annotated[tuple[str, ...], Meta(description="Free words for filtering.")] = ()
    fallbacks: Annotated[tuple[str, ...], Meta(description="Agents of yours to try when this one fails.")] = ()
    pool: Annotated[
        Annotated[str, Meta(min_length=1, max_length=128)] | None,
        Meta(description="Agents of yours with the same pool are replicas and share the calls."),
    ] = None
    delegate_id: Annotated[str | None, Meta(description="Delegate that the agent acts as.")] = None
    cog_id: Annotated[str | None, Meta(description="Cog that the agent belongs to.")] = None
    realm: Annotated[str | None, Meta(description="Realm that the agent belongs to.")] = None
    metadata: Annotated[dict[str, Any], Meta(description="Anything else.")] = field(default_factory=dict)
    lease_seconds: LeaseSeconds = None

    def to_manifest(self) -> Manifest:
        """Raises BadInput."""
        fields = msgspec.structs.asdict(self)
        del fields["trace"], fields["lease_seconds"]
        if isinstance(self.endpoint, str):
            fields["endpoint"] = {"transport": "http", "uri": self.endpoint}
        fields["metadata"] = {key: value for key, value in self.metadata.items() if key != TERMS_KEY}
        fields["capabilities"] = tuple(_parse_capability(each) for each in self.capabilities)
        return Manifest(**fields)


class UnregisterArguments(TracedArguments, frozen=True, kw_only=True):
    agent_id: Annotated[str, Meta(max_length=128, description="Which agent, registered with these credentials.")]


class HeartbeatArguments(UnregisterArguments, frozen=True, kw_only=True):
    lease_seconds: Annotated[float | None, Meta(description="From now on; unset: as when it registered.")] = None
    status: Annotated[Status | None, Meta(description="How the agent says it is.")] = None
    error: Annotated[Annotated[str, Meta(max_length=500)] | None, Meta(description="Why it is not online.")] = None


class AgentHealthArguments(TracedArguments, frozen=True, kw_only=True):
    agent_id: Annotated[str, Meta(description="Which agent.")]
    hours: Annotated[float, Meta(gt=0, le=8784, description="How far back uptime is counted.")] = 24.0
    limit: Annotated[int, Meta(ge=0, le=1000, description="How many of the newest checks to show.")] = 20


class RegistrationOperations:
    def __init__(self, gateway: Gateway, registrar: Registrar) -> None:
        self._gateway = gateway
        self._registrar = registrar

    def all(self) -> list[Operation[Any]]:
        done_schema: dict[str, Any] = {
            "type": "object",
            "properties": {"success": {"type": "boolean"}, "agent_id": {"type": "string"}},
            "required": ["success", "agent_id"],
        }
        health_schema = {"type": "object", "properties": {"uptime": {"type": "object"}, "checks": {"type": "array"}}}
        return [
            Operation("fabric.agent.register", "Register an agent, or register it anew: any caller can then reach it.",
                      RegisterArguments, self.register, output=done_schema, scopes=(REGISTER_SCOPE,), read_only=False),
            Operation("fabric.agent.heartbeat", "Renew the lease of an agent that you registered.", HeartbeatArguments,
                      self.heartbeat, output=done_schema, scopes=(REGISTER_SCOPE,), read_only=False),
            Operation("fabric.agent.unregister", "Take back an agent that you registered; the node's own key: any.",
                      UnregisterArguments, self.unregister, output=done_schema, scopes=(REGISTER_SCOPE,),
                      read_only=False),
            Operation("fabric.agent.health", "Show an agent's uptime and its latest health checks.",
                      AgentHealthArguments, self.health, output=health_schema, scopes=()),
        ]  # fmt: skip

    async def register(self, arguments: RegisterArguments, request: OperationRequest, emit: Emit) -> Result:
        registration = await self._registrar.register(
            arguments.to_manifest(), request.principal, arguments.lease_seconds
        )
        return Result(
            data={**_success(registration.agent_id, "registered"), "registration": render_registration(registration)}
        )

    async def heartbeat(self, arguments: HeartbeatArguments, request: OperationRequest, emit: Emit) -> Result:
        agent_id = arguments.agent_id
        registration = await self._registrar.renew(agent_id, request.principal, arguments.lease_seconds)
        if arguments.status is not None:
            self._registrar.report_health(agent_id, arguments.status, arguments.error)
        return Result(data={**_success(agent_id, "renewed"), "registration": render_registration(registration)})

    async def unregister(self, arguments: UnregisterArguments, request: OperationRequest, emit: Emit) -> Result:
        await self._registrar.remove(arguments.agent_id, request.principal)
        return Result(data=_success(arguments.agent_id, "unregistered"))

    async def health(self, arguments: AgentHealthArguments, request: OperationRequest, emit: Emit) -> Result:
        registry = self._gateway.registry
        manifest = registry.find_agent_for(request.principal, arguments.agent_id)
        window = arguments.hours * 3600
        await registry.statuses.refresh()
        uptime, checks = await self._registrar.read_history(manifest.agent_id, window, arguments.limit)
        return Result(
            data={
                "agent_id": manifest.agent_id,
                "status": registry.statuses.get(manifest.agent_id).status,
                "uptime": {
                    "window_seconds": window,
                    "observed_seconds": round(uptime.observed, 3),
                    "up_seconds": round(uptime.up, 3),
                    "ratio": None if uptime.ratio is None else round(uptime.ratio, 6),
                },
                "checks": [render_health_check(check, request.principal) for check in checks],
                "count": len(checks),
            }
        )


def _success(agent_id: str, status: str) -> dict[str, Any]:
    return {"success": True, "agent_id": agent_id, "status": status}


def _parse_capability(value: dict[str, Any] | str) -> Capability:
    try:
        return msgspec.convert({"name": value} if isinstance(value, str) else value, Capability)
    except msgspec.ValidationError as exc:
        raise BadInput(f"Bad capability: {exc}", field="capabilities") from exc


_HIDDEN_PROBLEM = "The operator sees why"
_MAX_ERRORS = 100  # agents whose errors are shown; `fabric.agent.list` shows all


class NoArguments(TracedArguments, frozen=True, kw_only=True):
    pass


class HealthOperations:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def all(self) -> list[Operation[Any]]:
        text = "Show how the node, its registry and its agents are."
        return [Operation("fabric.health", text, NoArguments, self.health, scopes=())]

    def by_people(self) -> list[Operation[Any]]:
        """Operations that are no tools."""
        return [Operation("fabric.node.list", "List the nodes of the mesh.", NoArguments, self.list_nodes, scopes=())]

    async def list_nodes(self, arguments: NoArguments, request: OperationRequest, emit: Emit) -> Result:
        if not acts_as_operator(request.principal):
            raise Forbidden("Only the operator of a node may list the nodes of its mesh")
        nodes = () if self._gateway.nodes is None else self._gateway.nodes.list_nodes()
        return Result(data={"nodes": msgspec.to_builtins(list(nodes)), "count": len(nodes)})

    async def health(self, arguments: NoArguments, request: OperationRequest, emit: Emit) -> Result:
        return Result(data=await render_health(self._gateway, request.principal))


async def render_health(gateway: Gateway, principal: Principal) -> dict[str, Any]:
    """Counts only the agents and tools that this caller may call. Only the operator reads problems in detail."""
    registry = gateway.registry
    await registry.statuses.refresh()
    catalog = await registry.prepare_view(principal)
    counts = {"online": 0, "offline": 0, "degraded": 0, "unknown": 0}
    offline: dict[str, str | None] = {}
    error_count = 0
    async for manifests in iterate_in_slices(catalog.agents):
        for manifest in manifests:
            health = registry.statuses.get(manifest.agent_id)
            counts[health.status] += 1
            if health.error is not None:
                error_count += 1
                if len(offline) < _MAX_ERRORS:
                    offline[manifest.agent_id] = redact_health_reason(health, principal)
    more = {"more_errors": error_count - len(offline)} if error_count > len(offline) else {}
    checks = await gateway.node_health.check_all()
    problems, notices = {**registry.errors, **registry.left_out}, gateway.list_notices(principal)
    return {
        **({"notices": notices} if notices else {}),
        "ok": True,
        "status": "ok" if is_well(checks) else "degraded",
        "checks": {name: _render_check(result, principal) for name, result in checks.items()},
        "registry": "degraded" if problems else "ok",
        "runtimes": counts,
        "tools": {
            "builtin_count": len(catalog.tools),
            "available": [m.agent_id for m in catalog.tools if m.metadata.get("enabled", True)],
        },
        "agents": {"count": len(catalog.agents), "errors": offline, **more},
        "problems": _visible_problems(problems, principal),
        "version": PROTOCOL_VERSION,
        "software_version": __version__,
        "node_id": gateway.node_id,
        **_render_nodes(gateway, principal),
        "uptime_seconds": round(time.time() - gateway.started_at, 3),
    }


def _render_check(result: NodeCheck, principal: Principal) -> dict[str, str]:
    """The operator reads names and errors, other callers a sentence without them."""
    reason = (result.detail or result.reason) if acts_as_operator(principal) else result.reason
    return {"status": result.status, **({"reason": reason} if reason else {})}


def _render_nodes(gateway: Gateway, principal: Principal) -> dict[str, Any]:
    if gateway.nodes is None or not acts_as_operator(principal):
        return {}
    nodes = gateway.nodes.list_nodes()
    count = len({each.node for each in nodes})  # each worker of a node is a member
    return {"mesh": {"nodes": count, "members": [each.member for each in nodes], "problem": nodes[0].problem}}


def _visible_problems(problems: dict[str, str], principal: Principal) -> dict[str, str]:
    """The operator reads all problems, other callers only that there are some, and callers with scopes none."""
    if acts_as_operator(principal):
        return problems
    return {} if is_limited(principal) else {PurePath(name).name: _HIDDEN_PROBLEM for name in problems}
