"""Operations of agents that join at run time: register, heartbeat, leave; and the history of anybody's health."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from a2a_fabric.core.agent import AgentId, Audience, Capability, Manifest, Status, TrustTier
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.policy import REGISTER
from a2a_fabric.core.result import Result
from a2a_fabric.gateway import Gateway
from a2a_fabric.operations.operation import Operation, Request, Traced
from a2a_fabric.operations.views import check_view, registration_view
from a2a_fabric.registry.registrar import Registrar
from a2a_fabric.registry.terms import KEY

Lease = Annotated[
    float | None,
    Meta(description="Seconds until it is gone unless a heartbeat comes. Unset: it stays while it passes its checks."),
]


class RegisterArguments(Traced, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    audience: Annotated[Audience | None, Meta(description="Whose agent it is.")] = None
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
    lease_seconds: Lease = None

    def manifest(self) -> Manifest:
        """Raises BadInput."""
        given = msgspec.structs.asdict(self)
        del given["trace"], given["lease_seconds"]
        if isinstance(self.endpoint, str):
            given["endpoint"] = {"transport": "http", "uri": self.endpoint}
        given["metadata"] = {key: value for key, value in self.metadata.items() if key != KEY}
        given["capabilities"] = tuple(_capability(each) for each in self.capabilities)
        return Manifest(**given)


class LeaveArguments(Traced, frozen=True, kw_only=True):
    agent_id: Annotated[str, Meta(max_length=128, description="Which agent, registered with these credentials.")]


class HeartbeatArguments(LeaveArguments, frozen=True, kw_only=True):
    lease_seconds: Annotated[float | None, Meta(description="From now on; unset: as when it registered.")] = None
    status: Annotated[Status | None, Meta(description="How the agent says it is.")] = None
    error: Annotated[Annotated[str, Meta(max_length=500)] | None, Meta(description="Why it is not online.")] = None


class AgentHealthArguments(Traced, frozen=True, kw_only=True):
    agent_id: Annotated[str, Meta(description="Which agent.")]
    hours: Annotated[float, Meta(gt=0, le=8784, description="How far back uptime is counted.")] = 24.0
    limit: Annotated[int, Meta(ge=0, le=1000, description="How many of the newest checks to show.")] = 20


class RegisterOperations:
    def __init__(self, gateway: Gateway, registrar: Registrar) -> None:
        self._gateway = gateway
        self._registrar = registrar

    def all(self) -> list[Operation[Any]]:
        done: dict[str, Any] = {
            "type": "object",
            "properties": {"success": {"type": "boolean"}, "agent_id": {"type": "string"}},
            "required": ["success", "agent_id"],
        }
        health = {"type": "object", "properties": {"uptime": {"type": "object"}, "checks": {"type": "array"}}}
        return [
            Operation("fabric.agent.register", "Register an agent, or register it anew: any caller can then reach it.",
                      RegisterArguments, self.register, output=done, scopes=(REGISTER,), read_only=False),
            Operation("fabric.agent.heartbeat", "Renew the lease of an agent that you registered.",
                      HeartbeatArguments, self.heartbeat, output=done, scopes=(REGISTER,), read_only=False),
            Operation("fabric.agent.unregister", "Take back an agent that you registered; the node's own key: any.",
                      LeaveArguments, self.unregister, output=done, scopes=(REGISTER,), read_only=False),
            Operation("fabric.agent.health", "Show an agent's uptime and its latest health checks.",
                      AgentHealthArguments, self.health, output=health, scopes=()),
        ]  # fmt: skip

    async def register(self, arguments: RegisterArguments, request: Request, emit: Emit) -> Result:
        made = await self._registrar.register(arguments.manifest(), request.principal, arguments.lease_seconds)
        return Result(data={**_done(made.agent_id, "registered"), "registration": registration_view(made)})

    async def heartbeat(self, arguments: HeartbeatArguments, request: Request, emit: Emit) -> Result:
        agent_id = arguments.agent_id
        renewed = await self._registrar.renew(agent_id, request.principal, arguments.lease_seconds)
        if arguments.status is not None:
            self._registrar.tell_health(agent_id, arguments.status, arguments.error)
        return Result(data={**_done(agent_id, "renewed"), "registration": registration_view(renewed)})

    async def unregister(self, arguments: LeaveArguments, request: Request, emit: Emit) -> Result:
        await self._registrar.remove(arguments.agent_id, request.principal)
        return Result(data=_done(arguments.agent_id, "unregistered"))

    async def health(self, arguments: AgentHealthArguments, request: Request, emit: Emit) -> Result:
        registry = self._gateway.registry
        manifest = registry.agent_for(request.principal, arguments.agent_id)
        window = arguments.hours * 3600
        uptime, checks = await self._registrar.history(manifest.agent_id, window, arguments.limit)
        return Result(
            data={
                "agent_id": manifest.agent_id,
                "status": registry.health.of(manifest.agent_id).status,
                "uptime": {
                    "window_seconds": window,
                    "observed_seconds": round(uptime.observed, 3),
                    "up_seconds": round(uptime.up, 3),
                    "ratio": None if uptime.ratio is None else round(uptime.ratio, 6),
                },
                "checks": [check_view(check, request.principal) for check in checks],
                "count": len(checks),
            }
        )


def _done(agent_id: str, status: str) -> dict[str, Any]:
    return {"success": True, "agent_id": agent_id, "status": status}


def _capability(given: dict[str, Any] | str) -> Capability:
    try:
        return msgspec.convert({"name": given} if isinstance(given, str) else given, Capability)
    except msgspec.ValidationError as exc:
        raise BadInput(f"Bad capability: {exc}", field="capabilities") from exc
