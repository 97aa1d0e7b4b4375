"""Proxies for agents that plain HTTP forwarding cannot reach: programs, and servers of the other era.

Importing this module imports the SDK, which takes most of a second."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.deadline import DeadlineSweep
from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.core.pending_questions import PendingQuestions
from a2a_fabric.core.ports import AgentIndex
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.mcp.proxy.endpoint import AgentProxy, ProxiedRequest
from a2a_fabric.doors.mcp.proxy.sessions import ProxySessions, SessionProxy
from a2a_fabric.doors.mcp.proxy.stateless import StatelessProxy, UpstreamExchange
from a2a_fabric.doors.mcp.proxy.upstream import UpstreamPool
from a2a_fabric.doors.mcp.request_context import is_stateless_request
from a2a_fabric.protocols.mcp.runtime_ports import OpenTunnel, StdioTunnel, Tunnel
from a2a_fabric.protocols.mcp.versions import Era

_ANSWER_TIMEOUT = 600.0  # seconds; a person may have to answer
_CANCEL_TIMEOUT = 5.0
_MAX_TIMEOUT_MS = 1 << 31  # milliseconds; the node's own limit is smaller
_POOL_IDLE_TIMEOUT = 300.0  # seconds until an unused session of a pool is closed


class EraBridge:
    """All sessions, session pools and pending exchanges of a node. Made in the event loop that it serves."""

    def __init__(self, context: DoorContext, *, idle_timeout: float, max_sessions: int) -> None:
        self._context = context
        self._idle_timeout = idle_timeout
        self._max_sessions = max_sessions
        self._sessions = ProxySessions(
            idle_timeout=idle_timeout,
            timeout=context.gateway.clamp_timeout(_MAX_TIMEOUT_MS) / 1000,
            max_sessions=max_sessions,
        )
        self._pending = PendingQuestions[UpstreamExchange](
            "MCP proxy", _ANSWER_TIMEOUT, lambda exchange: self._run_in_background(exchange.cancel())
        )
        self._ping_timers = DeadlineSweep(asyncio.get_running_loop())
        self._pools: dict[str, UpstreamPool] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def make_proxy(self, manifest: Manifest, tunnel: Tunnel) -> AgentProxy:
        """A proxy to a program, or to an HTTP server of the other era than its caller's. Raises AgentOffline."""
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
            return StatelessProxy(self._context, pool, self._pending, self._ping_timers)
        return SessionProxy(self._sessions, agent_id, connect, has_handshake=is_program)

    def drop_missing_agents(self, catalog: AgentIndex) -> None:
        """End the sessions with agents that have left the catalog."""
        self._sessions.end_where(lambda agent_id: catalog.get(agent_id) is None)
        for agent_id in [each for each in self._pools if catalog.get(each) is None]:
            self._run_in_background(self._pools.pop(agent_id).aclose())

    def stop(self) -> None:
        self._sessions.stop()

    async def aclose(self) -> None:
        self._pending.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CANCEL_TIMEOUT)
        await self._sessions.aclose()
        await asyncio.gather(*(pool.aclose() for pool in self._pools.values()), *self._tasks)

    def _get_pool(self, agent_id: str, connect: OpenTunnel, era: Era | None) -> UpstreamPool:
        """The pool of an agent; a new one if the agent is reached in another way than before."""
        pool = self._pools.get(agent_id)
        if pool is None or pool.connect is not connect:
            if pool is not None:
                self._run_in_background(pool.aclose())
            pool = UpstreamPool(
                agent_id,
                connect,
                idle_timeout=min(self._idle_timeout, _POOL_IDLE_TIMEOUT),
                max_sessions=self._max_sessions,
                era=era,
            )
            self._pools[agent_id] = pool
        return pool

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _EraDispatcher:
    """Chooses the proxy by the era of each request."""

    def __init__(self, bridge: EraBridge, agent_id: str, connect: OpenTunnel, *, is_program: bool) -> None:
        self._bridge = bridge
        self._agent_id = agent_id
        self._connect = connect
        self._is_program = is_program

    async def forward(self, proxied: ProxiedRequest) -> None:
        proxied.write_chain()
        proxy = self._bridge.choose_proxy(self._agent_id, self._connect, proxied, is_program=self._is_program)
        await proxy.forward(proxied)
