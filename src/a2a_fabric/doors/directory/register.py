"""Registration of agents: `a2a/register`, `a2a/heartbeat` and `a2a/unregister`.

Registering again is a heartbeat, too. Owner, lease and lifecycle are the same as for agents registered elsewhere."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Raw

from a2a_fabric.core.agent import Status, TrustTier, normalize_name
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.pipeline import ignore_event
from a2a_fabric.core.result import Result
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.directory.discover import DIRECTORY_ID_KEY, MAX_ID_LENGTH, RPC_RUNTIME, to_agent_id
from a2a_fabric.doors.directory.request_context import DirectoryRequestContext
from a2a_fabric.operations import OperationRequest

DirectoryId = Annotated[str, Meta(min_length=1, max_length=MAX_ID_LENGTH, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]
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
        await self._run_operation("fabric.agent.register", manifest, context)
        return {"status": "registered", "agentId": params.agent_id}

    async def heartbeat(self, params: HeartbeatParams, context: DirectoryRequestContext) -> dict[str, Any]:
        fields = {"lease_seconds": params.lease_seconds, "status": params.status, "error": params.error}
        await self._run_operation(
            "fabric.agent.heartbeat", {"agent_id": to_agent_id(params.agent_id), **fields}, context
        )
        return {"status": "renewed", "agentId": params.agent_id}

    async def unregister(self, params: UnregisterParams, context: DirectoryRequestContext) -> dict[str, Any]:
        await self._run_operation("fabric.agent.unregister", {"agent_id": to_agent_id(params.agent_id)}, context)
        return {"status": "unregistered", "agentId": params.agent_id}

    async def _run_operation(
        self, operation: str, arguments: dict[str, Any], context: DirectoryRequestContext
    ) -> Result:
        prepared = self._operations.prepare(operation, Raw(msgspec.json.encode(arguments)), context.principal)
        return await prepared.run(OperationRequest(trace=context.trace, principal=context.principal), ignore_event)


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
