"""Proxies for agents that plain HTTP forwarding cannot reach: programs, and servers of the other era.

Importing this module imports the SDK, which takes most of a second."""

from __future__ import annotations

import asyncio

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.core.ports import AgentIndex
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.mcp.proxy.endpoint import AgentProxy, ProxiedRequest
from a2a_fabric.doors.mcp.proxy.sessions import ProxySessions, SessionProxy
from a2a_fabric.doors.mcp.proxy.stateless import PendingExchanges, StatelessProxy
from a2a_fabric.doors.mcp.proxy.upstream import Era, UpstreamPool
from a2a_fabric.doors.mcp.request_context import is_stateless_request
from a2a_fabric.protocols.mcp.runtime_ports import OpenTunnel, StdioTunnel, Tunnel

_MAX_TIMEOUT_MS = 1 << 31  # milliseconds; the node's own limit is smaller
_POOL_IDLE_TIMEOUT = 300.0  # seconds until a line that no session owns is closed


class EraBridge:
    """All sessions, lines and parked exchanges of a node."""

    def __init__(self, context: DoorContext, *, idle_timeout: float, max_sessions: int) -> None:
        self._context = context
        self._idle_timeout = idle_timeout
        self._max_sessions = max_sessions
        self._sessions = ProxySessions(
            idle_timeout=idle_timeout,
            timeout=context.gateway.clamp_timeout(_MAX_TIMEOUT_MS) / 1000,
            max_sessions=max_sessions,
        )
        self._pending = PendingExchanges()
        self._pools: dict[str, UpstreamPool] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def make_proxy(self, manifest: Manifest, tunnel: Tunnel) -> AgentProxy:
        """For a server over HTTP: one that does not speak the era of whoever comes here. Raises AgentOffline."""
        if tunnel.open is None:
            raise AgentOffline("The MCP server speaks another era of the protocol", agent_id=manifest.agent_id)
        return _EraDispatcher(self, manifest.agent_id, tunnel.open, is_program=isinstance(tunnel, StdioTunnel))

    def owns_session(self, session_id: str | None) -> bool:
        return session_id in self._sessions

    def choose_proxy(
        self, agent_id: str, connect: OpenTunnel, proxied: ProxiedRequest, *, is_program: bool
    ) -> AgentProxy:
        if is_stateless_request(proxied.head):
            pool = self._get_pool(agent_id, connect, None if is_program else "handshake")
            return StatelessProxy(self._context, pool, self._pending)
        return SessionProxy(self._sessions, agent_id, connect, has_handshake=is_program)

    def drop_missing_agents(self, catalog: AgentIndex) -> None:
        """Nobody goes on talking with an agent that has left."""
        self._sessions.end_where(lambda agent_id: catalog.get(agent_id) is None)
        for agent_id in [each for each in self._pools if catalog.get(each) is None]:
            self._close_in_background(self._pools.pop(agent_id))

    def stop(self) -> None:
        self._sessions.stop()

    async def aclose(self) -> None:
        await self._pending.aclose()
        await self._sessions.aclose()
        await asyncio.gather(*(pool.aclose() for pool in self._pools.values()), *self._closing)

    def _get_pool(self, agent_id: str, connect: OpenTunnel, era: Era | None) -> UpstreamPool:
        """An agent that is reached in another way now gets new ones."""
        pool = self._pools.get(agent_id)
        if pool is None or pool.connect is not connect:
            if pool is not None:
                self._close_in_background(pool)
            pool = UpstreamPool(
                agent_id,
                connect,
                idle_timeout=min(self._idle_timeout, _POOL_IDLE_TIMEOUT),
                max_sessions=self._max_sessions,
                era=era,
            )
            self._pools[agent_id] = pool
        return pool

    def _close_in_background(self, pool: UpstreamPool) -> None:
        task = asyncio.ensure_future(pool.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class _EraDispatcher:
    """Each era has its own way."""

    def __init__(self, bridge: EraBridge, agent_id: str, connect: OpenTunnel, *, is_program: bool) -> None:
        self._bridge = bridge
        self._agent_id = agent_id
        self._connect = connect
        self._is_program = is_program

    async def forward(self, proxied: ProxiedRequest) -> None:
        proxied.write_chain()
        proxy = self._bridge.choose_proxy(self._agent_id, self._connect, proxied, is_program=self._is_program)
        await proxy.forward(proxied)
