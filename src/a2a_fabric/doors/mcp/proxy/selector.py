"""Chooses what serves /agents/{id}/mcp: a proxy to the agent's MCP server, or an MCP server of the node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.policy import find_refusal
from a2a_fabric.core.ports import AgentIndex, load_module
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.mcp.http import McpRequestServer
from a2a_fabric.doors.mcp.proxy.endpoint import AgentProxy, LongLivedStreams, ProxyEndpoint
from a2a_fabric.doors.mcp.proxy.http import HttpProxies, HttpProxy
from a2a_fabric.doors.mcp.servers import McpServers
from a2a_fabric.protocols.mcp.runtime_ports import HTTPTunnel, Tunnel
from a2a_fabric.protocols.mcp.wire import SESSION_HEADER_BYTES

if TYPE_CHECKING:
    from a2a_fabric.doors.mcp.proxy.sessions import EraBridge


class ProxySelector:
    """The lifetime of the door: entered before it serves, left after."""

    def __init__(
        self,
        context: DoorContext,
        servers: McpServers,
        find_open_session: Callable[[str], object],
        *,
        idle_timeout: float,
        max_sessions: int,
    ) -> None:
        self._context = context
        self._find_open_session = find_open_session  # with a server of the node itself
        self._servers = servers
        self._idle_timeout = idle_timeout
        self._max_sessions = max_sessions  # per agent
        self._streams = LongLivedStreams()
        self._http_proxies = HttpProxies(context, context.http) if context.http is not None else None
        self._bridge: EraBridge | None = None
        context.gateway.registry.add_listener(self._on_catalog_change)

    async def __aenter__(self) -> None:
        await self._servers.__aenter__()

    async def __aexit__(self, *exc: object) -> None:
        if self._bridge is not None:
            await self._bridge.aclose()
        await self._servers.__aexit__(*exc)

    def stop(self) -> None:
        self._servers.stop()
        self._streams.stop()
        if self._bridge is not None:
            self._bridge.stop()

    def _on_catalog_change(self, catalog: AgentIndex) -> None:
        if self._bridge is not None:
            self._bridge.drop_missing_agents(catalog)

    async def find_server(self, scope: Any, principal: Principal) -> McpRequestServer:
        """Raises AgentNotFound, Forbidden or AgentOffline."""
        manifest = self._servers.find_agent(scope["path_params"]["agent_id"], principal)
        proxy = await self._find_proxy(manifest, scope, principal)
        if proxy is not None:
            return ProxyEndpoint(self._context, manifest, proxy, self._streams)
        return await self._servers.get_agent_server(manifest.agent_id, principal)

    async def _find_proxy(self, manifest: Manifest, scope: Any, principal: Principal) -> AgentProxy | None:
        """None for a caller who may use only some capabilities: proxied requests are not checked one by one."""
        if find_refusal(principal, manifest, "*") is not None:
            return None
        tunnel = self._context.tunnel(manifest, principal)
        if tunnel is None or (tunnel.owner is not None and self._is_node_session(scope)):
            return None
        make_bridge_proxy = partial(self._make_bridge_proxy, manifest, tunnel)
        if not isinstance(tunnel, HTTPTunnel) or self._http_proxies is None or self._is_bridge_session(scope):
            return await make_bridge_proxy()
        return HttpProxy(self._http_proxies, manifest.agent_id, tunnel, make_bridge_proxy)

    def _is_bridge_session(self, scope: Any) -> bool:
        """Whether the request belongs to a session of the bridge, which the server itself does not know."""
        session_id: bytes | None = dict(scope["headers"]).get(SESSION_HEADER_BYTES)
        return (
            self._bridge is not None
            and session_id is not None
            and self._bridge.owns_session(session_id.decode("latin-1"))
        )

    def _is_node_session(self, scope: Any) -> bool:
        """Whether the node's own server has this session: the caller has signed in since it was opened."""
        session_id: bytes | None = dict(scope["headers"]).get(SESSION_HEADER_BYTES)
        return session_id is not None and self._find_open_session(session_id.decode("latin-1")) is not None

    async def _make_bridge_proxy(self, manifest: Manifest, tunnel: Tunnel) -> AgentProxy:
        """Make the bridge on first use, because it imports the SDK."""
        if self._bridge is None:
            module = await asyncio.to_thread(load_module, "a2a_fabric.doors.mcp.proxy.sessions")
            if self._bridge is None:
                self._bridge = module.EraBridge(
                    self._context, idle_timeout=self._idle_timeout, max_sessions=self._max_sessions
                )
        return self._bridge.make_proxy(manifest, tunnel)
