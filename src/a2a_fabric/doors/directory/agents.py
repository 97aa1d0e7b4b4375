"""Agents in the directory: discovery (which agents a caller sees, in which order), and registration with a lease.

Clients take the first agent of the list, so the order matters: health, then trust tier, then time of registration.
An id is any text in the directory and a plain name elsewhere: an id that is not a plain name is kept in the agent's
metadata, and the agent id is derived from it. Registering again is a heartbeat, too. Owner, lease and lifecycle are the
same as for agents registered elsewhere."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import (
    AGENT_ID_PATTERN,
    HEALTH_RANK,
    LINE_PATTERN,
    TRUST_RANK,
    Manifest,
    Status,
    TrustTier,
    normalize_name,
)
from a2a_fabric.core.call import Input, Principal, has_rules, owner_from_principal
from a2a_fabric.core.capability_choice import choose_unnamed_capability
from a2a_fabric.core.errors import (
    AgentNotFound,
    BadInput,
    CapabilityNotFound,
    OutOfScope,
    error_from_code,
    suggest_nearest,
)
from a2a_fabric.core.policy import check_agent_name, is_limited, is_scoped
from a2a_fabric.core.ports import AgentIndex
from a2a_fabric.core.result import format_timestamp
from a2a_fabric.core.routing import may_answer_unnamed
from a2a_fabric.core.tasks import iterate_in_slices
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.directory.jsonrpc import DirectoryRequestContext
from a2a_fabric.messages.delivery import split_input
from a2a_fabric.operations.pages import MAX_ITEMS, decode_cursor, encode_cursor

DIRECTORY_ID_KEY = "directory_id"  # in the metadata
MAX_ID_LENGTH = 256

_PLAIN_ID = re.compile(AGENT_ID_PATTERN)
_MAX_PLAIN_LENGTH = 128
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")
_READABLE_LENGTH = 64


def to_agent_id(directory_id: str) -> str:
    """The agent id for an id of the directory; every node derives the same one."""
    if len(directory_id) <= _MAX_PLAIN_LENGTH and _PLAIN_ID.match(directory_id):
        return directory_id
    readable = _UNSAFE_CHARACTERS.sub("-", directory_id).strip("._-")[:_READABLE_LENGTH] or "agent"
    return f"{readable}-{hashlib.sha256(directory_id.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def to_directory_id(manifest: Manifest) -> str:
    """The id as it was registered. Callers write metadata, so it counts only if it leads to this agent."""
    stored = manifest.metadata.get(DIRECTORY_ID_KEY)
    return stored if isinstance(stored, str) and to_agent_id(stored) == manifest.agent_id else manifest.agent_id


RPC_RUNTIME = "rpc"  # the runtime of agents that register here

_MAX_ECHO = 64  # characters of the caller's text in an error

Limit = Annotated[int, Meta(ge=1)] | None


class DiscoverParams(msgspec.Struct, frozen=True, kw_only=True):
    """Without capabilities, all agents are listed. `cursor` is `nextCursor` of a reply that could not hold all."""

    capabilities: tuple[str, ...] = ()
    limit: Limit = None
    cursor: Annotated[str, Meta(max_length=1000)] | None = None


class DirectoryAgentParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    agent_id: str


class ChosenTarget(msgspec.Struct, frozen=True, kw_only=True):
    """`reason` is None if there was nothing to choose from."""

    agent_id: str
    action: str
    reason: str | None


class AgentDirectory:
    """`direct`: the agents that are shown with their own address. All others are shown with an address of this node."""

    def __init__(self, context: DoorContext, direct: Iterable[str]) -> None:
        self._registry = context.gateway.registry
        self._started_at = context.gateway.started_at
        self._operations = context.operations
        self._direct = frozenset(direct)

    async def discover(self, params: DiscoverParams, context: DirectoryRequestContext) -> dict[str, Any]:
        """The best agents first. Of more than fit into a reply the rest comes with the cursor.

        Ranks change with health, so the pages of a cursor are in the order of ids, from the first: they have all
        agents, also those of the first reply.
        """
        visible = await self._registry.prepare_view(context.principal)
        agents = _find_offering(visible, params.capabilities) if params.capabilities else visible.agents
        limit = min(params.limit or MAX_ITEMS, MAX_ITEMS)
        listed = (
            await self._sort_in_slices(agents)
            if params.cursor is None
            else visible.sort_by_id(agents, decode_cursor(params.cursor)[0])
        )
        entries: list[dict[str, Any]] = []
        async for manifests in iterate_in_slices(listed[:limit]):
            entries += [self.render_entry(manifest, context.base_url) for manifest in manifests]
        if len(listed) <= limit or (params.limit == limit and params.cursor is None):
            return {"agents": entries}  # all, or as many of the best as the caller wants
        last = "" if params.cursor is None else listed[limit - 1].agent_id
        return {"agents": entries, "total": len(agents), "nextCursor": encode_cursor((last, 0))}

    async def _sort_in_slices(self, agents: Iterable[Manifest]) -> list[Manifest]:
        ranked: list[tuple[tuple[int, int, float, str], Manifest]] = []
        async for manifests in iterate_in_slices(agents):
            ranked += [(self._rank(manifest), manifest) for manifest in manifests]
        ranked.sort(key=itemgetter(0))
        return [*map(itemgetter(1), ranked)]

    async def get_agent(self, params: DirectoryAgentParams, context: DirectoryRequestContext) -> dict[str, Any]:
        manifest = self.find_agent(params.agent_id, context.principal)
        if manifest.is_tool:
            raise AgentNotFound(params.agent_id)
        return self.render_entry(manifest, context.base_url)

    def render_entry(self, manifest: Manifest, base_url: str) -> dict[str, Any]:
        """Exactly the keys of the protocol: strict clients refuse any other."""
        return {
            "agentId": to_directory_id(manifest),
            "name": manifest.display_name or manifest.agent_id,
            "capabilities": [capability.name for capability in manifest.capabilities],
            "endpoint": self._choose_endpoint(manifest, base_url),
            "registeredAt": format_timestamp(self._get_registration_time(manifest), "seconds"),
        }

    def find_agent(self, directory_id: str, principal: Principal) -> Manifest:
        """Find an agent by its id in the directory, or by its agent id. Raises AgentNotFound, Forbidden."""
        manifest = self._registry.get_for(principal, to_agent_id(directory_id))
        if manifest is None:
            check_agent_name(principal, to_agent_id(directory_id))
            hints = self._registry.catalog_for(principal).list_for_hints(principal, directory_id)
            raise AgentNotFound(directory_id, map(to_directory_id, hints))
        return manifest

    async def choose_best_agent(self, action: str, principal: Principal) -> Manifest:
        """The best agent with this capability that this caller may call. Raises CapabilityNotFound or Forbidden."""
        caller, visible = owner_from_principal(principal), await self._registry.prepare_view(principal)
        best: list[Manifest] = []
        async for manifests in iterate_in_slices(_find_offering(visible, [action])):
            allowed = [*best, *(each for each in manifests if may_answer_unnamed(each, caller))]
            best = [min(allowed, key=self._rank)] if allowed else []
        if not best and is_limited(principal) and (is_scoped(principal) or principal.views or has_rules(principal)):
            message = f"Refused by policy: these credentials allow no agent with the capability '{action[:_MAX_ECHO]}'"
            raise OutOfScope(message, f"capability:{action}", capability=action[:_MAX_ECHO])
        if not best:
            raise self._capability_not_found_error(action, principal)
        return best[0]

    async def find_target(self, agent_id: str | None, action: str, principal: Principal) -> Manifest:
        """The named agent, else the best one for this action. Raises AgentNotFound, CapabilityNotFound or Forbidden."""
        if agent_id is None:
            return await self.choose_best_agent(action, principal)
        return self.find_agent(agent_id, principal)

    async def choose_target(
        self, agent_id: str | None, arguments: dict[str, Any], principal: Principal
    ) -> ChosenTarget:
        """The agent and the action of a task that names no action. Raises AgentNotFound, Forbidden, BadInput."""
        call_input = split_input(Input(context=arguments), None)
        reasons: list[str | None] = []
        if agent_id is None:
            routing = self._operations.routing
            await routing.take_switch(principal, call_input.task, None)  # this door has no conversations
            agent_choice = await routing.choose_agent(principal, call_input.task, None)
            manifest = agent_choice.manifest
            reasons.append(agent_choice.reason)
        else:
            manifest = self.find_agent(agent_id, principal)
        is_learnt = self._registry.catalog.is_discovered(manifest.agent_id)
        choice = choose_unnamed_capability(manifest.capabilities, call_input, is_learnt=is_learnt)
        reasons.append(choice.reason)
        reason = " ".join(filter(None, reasons)) or None
        return ChosenTarget(agent_id=to_directory_id(manifest), action=choice.capability.name, reason=reason)

    def _rank(self, manifest: Manifest) -> tuple[int, int, float, str]:
        health = self._registry.health.get(manifest.agent_id).status
        registered_at = self._get_registration_time(manifest)
        return HEALTH_RANK[health], TRUST_RANK[manifest.trust_tier], registered_at, manifest.agent_id

    def _get_registration_time(self, manifest: Manifest) -> float:
        """An agent that a file declares counts as registered when the node started."""
        registration = self._operations.find_registration(manifest.agent_id)
        return self._started_at if registration is None else registration.registered_at

    def _choose_endpoint(self, manifest: Manifest, base_url: str) -> str:
        uri = manifest.endpoint.get("uri")
        is_direct = manifest.runtime == RPC_RUNTIME and not self._direct.isdisjoint((manifest.agent_id, "*"))
        if is_direct and isinstance(uri, str):
            return uri
        return f"{base_url}/a2a/agents/{manifest.agent_id}/rpc"

    def _capability_not_found_error(self, action: str, principal: Principal) -> CapabilityNotFound:
        agents = self._registry.visible_to(principal).agents
        capability_names = {capability.name for manifest in agents for capability in manifest.capabilities}
        message = f"No agent has the capability '{action[:_MAX_ECHO]}'{suggest_nearest(action, capability_names)}"
        error = error_from_code(CapabilityNotFound.code, message, {"capability": action[:_MAX_ECHO]})
        assert isinstance(error, CapabilityNotFound)  # noqa: S101  # its own code
        return error


def _find_offering(catalog: AgentIndex, capabilities: Iterable[str]) -> Sequence[Manifest]:
    """The agents with at least one of these capabilities."""
    found: dict[str, Manifest] = {}
    for name in capabilities:
        manifests = catalog.find_by_capability(normalize_name(name))
        found |= zip(map(attrgetter("agent_id"), manifests), manifests, strict=True)
    return tuple(found.values())


DirectoryId = Annotated[str, Meta(min_length=1, max_length=MAX_ID_LENGTH, pattern=LINE_PATTERN)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]


class RegisterParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The first four fields are those of the protocol, all of them required. The rest are extensions of Fabric."""

    agent_id: DirectoryId
    name: Name
    capabilities: tuple[Name, ...]
    endpoint: Annotated[str, Meta(pattern="^https?://", max_length=4096)]
    description: str = ""
    version: str = ""
    tags: tuple[str, ...] = ()
    streaming: bool = False  # whether the agent speaks a2a/stream
    trust_tier: TrustTier | None = None
    lease_seconds: float | None = None


class UnregisterParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    agent_id: DirectoryId


class HeartbeatParams(UnregisterParams, frozen=True, kw_only=True, rename="camel"):
    lease_seconds: float | None = None
    status: Status | None = None
    error: Annotated[str, Meta(max_length=500)] | None = None


class DirectoryRegistration:
    def __init__(self, context: DoorContext) -> None:
        self._operations = context.operations

    async def register(self, params: RegisterParams, context: DirectoryRequestContext) -> dict[str, Any]:
        agent_id = to_agent_id(params.agent_id)
        # Of two spellings of a name the first stays.
        names = {normalize_name(name): name for name in reversed(params.capabilities)}
        manifest: dict[str, Any] = {
            "agent_id": agent_id,
            "runtime": RPC_RUNTIME,
            "endpoint": {"transport": "http", "uri": _check_endpoint(params.endpoint)},
            "capabilities": [{"name": name, "streaming": params.streaming} for name in reversed(names.values())],
            "display_name": params.name,
            "description": params.description,
            "version": params.version,
            "tags": params.tags,
            "trust_tier": params.trust_tier or ("public" if context.principal.trust == "public" else "org"),
            "metadata": {} if agent_id == params.agent_id else {DIRECTORY_ID_KEY: params.agent_id},
            "lease_seconds": params.lease_seconds,
        }
        await self._operations.run("fabric.agent.register", manifest, context.principal, context.trace)
        return {"status": "registered", "agentId": params.agent_id}

    async def heartbeat(self, params: HeartbeatParams, context: DirectoryRequestContext) -> dict[str, Any]:
        fields = {**msgspec.structs.asdict(params), "agent_id": to_agent_id(params.agent_id)}
        await self._operations.run("fabric.agent.heartbeat", fields, context.principal, context.trace)
        return {"status": "renewed", "agentId": params.agent_id}

    async def unregister(self, params: UnregisterParams, context: DirectoryRequestContext) -> dict[str, Any]:
        await self._operations.run(
            "fabric.agent.unregister", {"agent_id": to_agent_id(params.agent_id)}, context.principal, context.trace
        )
        return {"status": "unregistered", "agentId": params.agent_id}


def _check_endpoint(endpoint: str) -> str:
    """Raises BadInput. An address is shown and logged, so it must not contain a password."""
    try:
        parts = urlsplit(endpoint)
        is_valid = bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise BadInput(
            "endpoint: not the URL of a server. Give one with a host, and without user name and password.",
            field="endpoint",
        )
    return endpoint
