"""Agents come, stay and go: `a2a/register`, and beside the document `a2a/heartbeat` and `a2a/unregister`.

To register again is a heartbeat too. What becomes of an agent, whose it is and how
long it stays is the same as for agents that register anywhere else.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Raw

from a2a_fabric.core.agent import Status, TrustTier, fold
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.pipeline import ignore
from a2a_fabric.core.result import Result
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.directory.entries import RUNTIME
from a2a_fabric.doors.directory.names import KEY, LONGEST, agent_id_of
from a2a_fabric.doors.directory.visit import Visit
from a2a_fabric.operations import Request

AgentText = Annotated[str, Meta(min_length=1, max_length=LONGEST, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]
Name = Annotated[str, Meta(min_length=1, max_length=256)]


class RegisterParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The four fields of the document, all of them needed; the rest is ours."""

    agent_id: AgentText
    name: Name
    capabilities: tuple[Name, ...]
    endpoint: Annotated[str, Meta(pattern="^https?://", max_length=4096)]
    description: str = ""
    version: str = ""
    tags: tuple[str, ...] = ()
    streaming: bool = False  # whether the agent speaks a2a/stream
    trust_tier: TrustTier | None = None
    lease_seconds: float | None = None


class LeaveParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    agent_id: AgentText


class HeartbeatParams(LeaveParams, frozen=True, kw_only=True, rename="camel"):
    lease_seconds: float | None = None
    status: Status | None = None
    error: Annotated[str, Meta(max_length=500)] | None = None


class Joining:
    def __init__(self, context: DoorContext) -> None:
        self._operations = context.operations

    async def register(self, params: RegisterParams, visit: Visit) -> dict[str, Any]:
        agent_id = agent_id_of(params.agent_id)
        names = {fold(name): name for name in reversed(params.capabilities)}  # of two spellings the first stays
        manifest: dict[str, Any] = {
            "agent_id": agent_id,
            "runtime": RUNTIME,
            "endpoint": {"transport": "http", "uri": _checked(params.endpoint)},
            "capabilities": [{"name": name, "streaming": params.streaming} for name in reversed(names.values())],
            "display_name": params.name,
            "description": params.description,
            "version": params.version,
            "tags": params.tags,
            "trust_tier": params.trust_tier or ("public" if visit.principal.trust == "public" else "org"),
            "metadata": {} if agent_id == params.agent_id else {KEY: params.agent_id},
            "lease_seconds": params.lease_seconds,
        }
        await self._run("fabric.agent.register", manifest, visit)
        return {"status": "registered", "agentId": params.agent_id}

    async def heartbeat(self, params: HeartbeatParams, visit: Visit) -> dict[str, Any]:
        given = {"lease_seconds": params.lease_seconds, "status": params.status, "error": params.error}
        await self._run("fabric.agent.heartbeat", {"agent_id": agent_id_of(params.agent_id), **given}, visit)
        return {"status": "renewed", "agentId": params.agent_id}

    async def unregister(self, params: LeaveParams, visit: Visit) -> dict[str, Any]:
        await self._run("fabric.agent.unregister", {"agent_id": agent_id_of(params.agent_id)}, visit)
        return {"status": "unregistered", "agentId": params.agent_id}

    async def _run(self, operation: str, arguments: dict[str, Any], visit: Visit) -> Result:
        prepared = self._operations.prepare(operation, Raw(msgspec.json.encode(arguments)), visit.principal)
        return await prepared.run(Request(trace=visit.trace, principal=visit.principal), ignore)


def _checked(endpoint: str) -> str:
    """Raises BadInput. An address is shown and logged, so nobody's password stands in it."""
    try:
        parts = urlsplit(endpoint)
        is_good = bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise BadInput("endpoint: not an address of a server, without user name and password", field="endpoint")
    return endpoint
