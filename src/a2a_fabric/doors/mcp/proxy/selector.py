"""Chooses what serves /agents/{id}/mcp: a proxy to the agent's MCP server, or an MCP server of the node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.policy import find_refusal
from a2a_fabric.core.ports import AgentIndex, load_module
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.edge import RequestHead, head_from_scope
from a2a_fabric.doors.mcp.fast_path import FastPath
from a2a_fabric.doors.mcp.http import McpRequestServer
from a2a_fabric.doors.mcp.proxy.endpoint import AgentProxy, LongLivedStreams, ProxiedCall, ProxyEndpoint, parse_call
from a2a_fabric.doors.mcp.proxy.http import HttpProxies, HttpProxy
from a2a_fabric.doors.mcp.request import DirectRequestContext
from a2a_fabric.doors.mcp.servers import McpServers
from a2a_fabric.protocols.mcp.runtime_ports import HTTPTunnel, Tunnel
from a2a_fabric.protocols.mcp.wire import SESSION_HEADER_BYTES

if TYPE_CHECKING:
    from a2a_fabric.doors.mcp.proxy.era_bridge import EraBridge


_MAX_PRINCIPALS = 1024


class _Access(NamedTuple):
    """How an agent is reached, and which principals were found to be allowed to use all of it."""

    manifest: Manifest
    tunnel: Tunnel
    http_proxy: HttpProxy | None
    principals: dict[int, Principal]  # by `id`, which is theirs alone as long as they are kept here


class ProxySelector:
    """The lifetime of the door: entered before it serves, left after."""

    def __init__(
        self,
        context: DoorContext,
        servers: McpServers,
        find_open_session: Callable[[str], object],
        build_fast_path: Callable[[Manifest], FastPath],
        *,
        idle_timeout: float,
        unused_timeout: float,
        max_sessions: int,
    ) -> None:
        self._context = context
        self._find_open_session = find_open_session  # with a server of the node itself
        self._servers = servers
        self._build_fast_path = build_fast_path
        self._fast_paths: dict[str, FastPath] = {}  # by agent: to the tools that the node's own server has for it
        self._idle_timeout = idle_timeout
        self._unused_timeout = unused_timeout
        self._max_sessions = max_sessions  # per agent
        self._streams = LongLivedStreams()
        self._http_proxies = HttpProxies(context, context.http) if context.http is not None else None
        self._bridge: EraBridge | None = None
        self._access: dict[str, _Access] = {}  # by agent
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
        self._access.clear()
        self._fast_paths = {agent_id: each for agent_id, each in self._fast_paths.items() if catalog.get(agent_id)}
        if self._bridge is not None:
            self._bridge.drop_missing_agents(catalog)

    async def find_server(self, scope: Any, principal: Principal) -> McpRequestServer:
        """Raises AgentNotFound, Forbidden or AgentOffline."""
        manifest = self._servers.find_agent(scope["path_params"]["agent_id"], principal)
        return await self._find_endpoint(manifest, scope, principal) or await self._servers.get_agent_server(
            manifest.agent_id, principal
        )

    async def _find_endpoint(self, manifest: Manifest, scope: Any, principal: Principal) -> ProxyEndpoint | None:
        """None for a caller who may use only some capabilities: proxied requests are not checked one by one."""
        if find_refusal(principal, manifest, "*") is not None:
            return None
        tunnel = self._context.tunnel(manifest, principal)
        if tunnel is None or (tunnel.owner is not None and self._is_node_session(scope)):
            return None
        proxy: AgentProxy
        if not isinstance(tunnel, HTTPTunnel) or self._http_proxies is None or self._is_bridge_session(scope):
            proxy = await self._make_bridge_proxy(manifest, tunnel)
        else:
            proxy = self._make_http_proxy(self._http_proxies, manifest, tunnel)
        return ProxyEndpoint(self._context, manifest, proxy, self._streams, tunnel.signer)

    def find_fast_path(self, scope: Any, principal: Principal) -> FastPath | None:
        """The fast path to an agent that the node's own server serves; None for an agent with a proxy."""
        try:
            manifest = self._servers.find_agent(scope["path_params"]["agent_id"], principal)
            is_whole = find_refusal(principal, manifest, "*") is None
            if is_whole and self._context.tunnel(manifest, principal) is not None:
                return None
        except FabricError:
            return None  # `find_server` reports it
        fast_path = self._fast_paths.get(manifest.agent_id)
        if fast_path is None:
            fast_path = self._fast_paths[manifest.agent_id] = self._build_fast_path(manifest)
        return fast_path

    def serve_direct(
        self, scope: Any, receive: Receive, send: Send, request_context: DirectRequestContext, body: bytes
    ) -> Awaitable[None] | None:
        """Serve a call that needs no more than forwarding. None for any other request."""
        head, principal = head_from_scope(scope), request_context.principal
        message = parse_call(head, body)
        if message is None:
            return None
        try:
            access = self._find_access(scope["path_params"]["agent_id"], principal)
        except FabricError:
            return None  # `find_server` reports it
        proxy = None if access is None else self._find_direct_proxy(access, head, message.id, principal)
        if access is None or proxy is None:
            return None
        endpoint = ProxyEndpoint(self._context, access.manifest, proxy, self._streams, access.tunnel.signer)
        return endpoint.serve_call(ProxiedCall(scope, receive, send, request_context, body, message), receive)

    def _find_direct_proxy(
        self, access: _Access, head: RequestHead, request_id: str | int, principal: Principal
    ) -> AgentProxy | None:
        session_id = head.get(SESSION_HEADER_BYTES)
        if session_id is not None and self._bridge is not None and self._bridge.owns_session(session_id):
            session = self._bridge.sessions.find(session_id, access.manifest.agent_id, principal)
            return session if session is not None and session.can_call(request_id, head) else None
        http_proxy = access.http_proxy
        return http_proxy if http_proxy and http_proxy.can_forward(head, session_id, principal) else None

    def _find_access(self, agent_id: str, principal: Principal) -> _Access | None:
        """None if `find_server` has to look closer. Raises AgentNotFound, Forbidden or AgentOffline.

        It is kept until the catalog changes or the agent's runtime is replaced.
        """
        access = self._access.get(agent_id)
        if access is None or access.principals.get(id(principal)) is not principal:
            access = self._add_access(agent_id, principal)
        if access is None or self._context.tunnel(access.manifest, principal) is not access.tunnel:
            self._access.pop(agent_id, None)
            return None
        return access

    def _add_access(self, agent_id: str, principal: Principal) -> _Access | None:
        manifest = self._servers.find_agent(agent_id, principal)
        tunnel = self._context.tunnel(manifest, principal)
        if tunnel is None or tunnel.owner is not None or find_refusal(principal, manifest, "*") is not None:
            return None
        access = self._access.get(agent_id)
        if access is None or access.tunnel is not tunnel:
            http_proxy = None
            if isinstance(tunnel, HTTPTunnel) and self._http_proxies is not None:
                http_proxy = self._make_http_proxy(self._http_proxies, manifest, tunnel)
            access = self._access[agent_id] = _Access(manifest, tunnel, http_proxy, {})
        if len(access.principals) >= _MAX_PRINCIPALS:
            access.principals.clear()
        access.principals[id(principal)] = principal
        return access

    def _make_http_proxy(self, proxies: HttpProxies, manifest: Manifest, tunnel: HTTPTunnel) -> HttpProxy:
        return HttpProxy(proxies, manifest.agent_id, tunnel, partial(self._make_bridge_proxy, manifest, tunnel))

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
            module = await asyncio.to_thread(load_module, "a2a_fabric.doors.mcp.proxy.era_bridge")
            if self._bridge is None:
                self._bridge = module.EraBridge(
                    self._context,
                    idle_timeout=self._idle_timeout,
                    unused_timeout=self._unused_timeout,
                    max_sessions=self._max_sessions,
                )
        return self._bridge.make_proxy(manifest, tunnel)
