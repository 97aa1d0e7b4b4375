"""Which way `/agents/ID/mcp` leads: straight through to an MCP server, or to a room with the agent's capabilities."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.policy import refusal
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.mcp.http import Serving
from a2a_fabric.doors.mcp.passthrough import Passthrough
from a2a_fabric.doors.mcp.rooms import Rooms
from a2a_fabric.outbound.tunnel import Address, Program

if TYPE_CHECKING:
    from a2a_fabric.doors.mcp.passthrough_stdio import Programs

_VERSION = b"mcp-protocol-version"
_STATELESS_SINCE = b"2026"


class Ways:
    """Entered before the door serves, left after."""

    def __init__(self, context: DoorContext, rooms: Rooms, *, idle: float) -> None:
        self._context = context
        self._rooms = rooms
        self._idle = idle
        self._through = Passthrough(context, context.http) if context.http is not None else None
        self._programs: Programs | None = None

    async def __aenter__(self) -> None:
        await self._rooms.__aenter__()

    async def __aexit__(self, *exc: object) -> None:
        if self._programs is not None:
            await self._programs.aclose()
        await self._rooms.__aexit__(*exc)

    def stop(self) -> None:
        self._rooms.stop()
        if self._through is not None:
            self._through.stop()
        if self._programs is not None:
            self._programs.stop()

    async def to_agent(self, scope: Any, principal: Principal) -> Serving:
        """Raises AgentNotFound, or AgentOffline if there is no way to it."""
        manifest = self._rooms.agent(scope["path_params"]["agent_id"], principal)
        return await self._straight(manifest, scope, principal) or await self._rooms.of_agent(
            manifest.agent_id, principal
        )

    async def _straight(self, manifest: Manifest, scope: Any, principal: Principal) -> Serving | None:
        """Not for who may use only some of its capabilities: what goes through is not looked into."""
        if refusal(principal, manifest, "*") is not None:
            return None
        tunnel = self._context.tunnel(manifest)
        if isinstance(tunnel, Address) and self._through is not None:
            return self._through.to(manifest, tunnel)
        if isinstance(tunnel, Program) and not _is_stateless(scope):
            return (await self._of_programs()).to(manifest, tunnel)
        return None

    async def _of_programs(self) -> Programs:
        """Imports the SDK, like the rooms do."""
        if self._programs is None:
            module = await asyncio.to_thread(importlib.import_module, "a2a_fabric.doors.mcp.passthrough_stdio")
            if self._programs is None:
                self._programs = module.Programs(idle=self._idle)
        return self._programs


def _is_stateless(scope: Any) -> bool:
    """Requests of that era belong to no session, so there is no program that they belong to."""
    version: bytes | None = dict(scope["headers"]).get(_VERSION)
    return version is not None and version[:4] >= _STATELESS_SINCE
