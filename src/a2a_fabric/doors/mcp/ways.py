"""Which way `/agents/ID/mcp` leads: straight through to an MCP server, or to a room with the agent's capabilities."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.modules import load
from a2a_fabric.core.policy import refusal
from a2a_fabric.core.ports import AgentIndex
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.mcp.checkpoint import Checkpoint, Standing
from a2a_fabric.doors.mcp.http import Serving
from a2a_fabric.doors.mcp.passing import Way
from a2a_fabric.doors.mcp.passthrough import Passthrough
from a2a_fabric.doors.mcp.rooms import Rooms
from a2a_fabric.outbound.tunnel import Address, Tunnel

if TYPE_CHECKING:
    from a2a_fabric.doors.mcp.bridge import Bridge

_SESSION = b"mcp-session-id"


class Ways:
    """Entered before the door serves, left after."""

    def __init__(self, context: DoorContext, rooms: Rooms, *, idle: float, most: int) -> None:
        self._context = context
        self._rooms = rooms
        self._idle = idle
        self._most = most  # conversations with one agent
        self._standing = Standing()
        self._through = Passthrough(context, context.http) if context.http is not None else None
        self._bridge: Bridge | None = None
        context.gateway.registry.listen(self._follow)

    async def __aenter__(self) -> None:
        await self._rooms.__aenter__()

    async def __aexit__(self, *exc: object) -> None:
        if self._bridge is not None:
            await self._bridge.aclose()
        await self._rooms.__aexit__(*exc)

    def stop(self) -> None:
        self._rooms.stop()
        self._standing.stop()
        if self._bridge is not None:
            self._bridge.stop()

    def _follow(self, catalog: AgentIndex) -> None:
        if self._bridge is not None:
            self._bridge.follow(catalog)

    async def to_agent(self, scope: Any, principal: Principal) -> Serving:
        """Raises AgentNotFound, or AgentOffline if there is no way to it."""
        manifest = self._rooms.agent(scope["path_params"]["agent_id"], principal)
        way = await self._straight(manifest, scope, principal)
        if way is not None:
            return Checkpoint(self._context, manifest, way, self._standing)
        return await self._rooms.of_agent(manifest.agent_id, principal)

    async def _straight(self, manifest: Manifest, scope: Any, principal: Principal) -> Way | None:
        """Not for who may use only some of its capabilities: what goes through is not looked into."""
        if refusal(principal, manifest, "*") is not None:
            return None
        tunnel = self._context.tunnel(manifest)
        if tunnel is None:
            return None
        over_the_bridge = partial(self._over_the_bridge, manifest, tunnel)
        if not isinstance(tunnel, Address) or self._through is None or self._is_bridged(scope):
            return await over_the_bridge()
        return self._through.to(manifest, tunnel, over_the_bridge)

    def _is_bridged(self, scope: Any) -> bool:
        """Whether the request belongs to a session that the server itself does not know."""
        session: bytes | None = dict(scope["headers"]).get(_SESSION)
        return self._bridge is not None and session is not None and self._bridge.owns(session.decode("latin-1"))

    async def _over_the_bridge(self, manifest: Manifest, tunnel: Tunnel) -> Way:
        """Imports the SDK, like the rooms do."""
        if self._bridge is None:
            module = await asyncio.to_thread(load, "a2a_fabric.doors.mcp.bridge")
            if self._bridge is None:
                self._bridge = module.Bridge(self._context, idle=self._idle, most=self._most)
        return self._bridge.to(manifest, tunnel)
