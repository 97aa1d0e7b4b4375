"""All that a node keeps for agents that plain HTTP forwarding cannot reach: sessions, session pools, pending exchanges.

Importing this module imports the SDK, which takes most of a second."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.core.pending_questions import PendingQuestions
from a2a_fabric.core.ports import AgentIndex
from a2a_fabric.core.tasks import DeadlineSweep
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.mcp.proxy.endpoint import AgentProxy, ProxiedRequest
from a2a_fabric.doors.mcp.proxy.era_translator import ANSWER_TIMEOUT
from a2a_fabric.doors.mcp.proxy.sessions import ProxySession, ProxySessions
from a2a_fabric.doors.mcp.proxy.stateless import StatelessProxy, UpstreamExchange
from a2a_fabric.doors.mcp.proxy.upstream import UpstreamPool
from a2a_fabric.doors.mcp.request import is_stateless_request
from a2a_fabric.protocols import jsonrpc
from a2a_fabric.protocols.mcp.runtime_ports import OpenTunnel, StdioTunnel, Tunnel
from a2a_fabric.protocols.mcp.wire import SESSION_HEADER_BYTES, Era, McpProtocolError

_MAX_PERSONAL_POOLS = 100
_CANCEL_TIMEOUT = 5.0
_POOL_IDLE_TIMEOUT = 300.0  # seconds until an unused session of a pool is closed


class EraBridge:
    """All sessions, session pools and pending exchanges of a node. Made in the event loop that it serves."""

    def __init__(self, context: DoorContext, *, idle_timeout: float, unused_timeout: float, max_sessions: int) -> None:
        self._context = context
        self._idle_timeout = idle_timeout
        self._max_sessions = max_sessions
        self._ping_timers = DeadlineSweep(asyncio.get_running_loop())
        self.sessions = ProxySessions(
            idle_timeout=idle_timeout,
            unused_timeout=unused_timeout,
            timeout=context.gateway.longest_timeout,
            max_sessions=max_sessions,
            share=context.caller_share,
            ping_timers=self._ping_timers,
            owner_tag=context.owner_tag,
        )
        self._pending = PendingQuestions[UpstreamExchange](
            "MCP proxy",
            ANSWER_TIMEOUT,
            lambda exchange: self._run_in_background(exchange.cancel()),
            owner_tag=context.owner_tag,
        )
        # By the agent, and by the principal with whose login it is called; the least recently used one first.
        self._pools: OrderedDict[tuple[str, str | None], UpstreamPool] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def make_proxy(self, manifest: Manifest, tunnel: Tunnel) -> AgentProxy:
        """A proxy to a program, or to an HTTP server of the other era than its caller's. Raises AgentOffline."""
        if tunnel.open is None:
            raise AgentOffline("The MCP server speaks another era of the protocol", agent_id=manifest.agent_id)
        return _BridgeProxy(self, manifest.agent_id, tunnel, tunnel.open)

    def owns_session(self, session_id: str | None) -> bool:
        return session_id in self.sessions

    def make_stateless_proxy(
        self, agent_id: str, owner: str | None, connect: OpenTunnel, era: Era | None
    ) -> StatelessProxy:
        pool = self._get_pool((agent_id, owner), connect, era)
        return StatelessProxy(self._context, pool, self._pending, self._ping_timers)

    def drop_missing_agents(self, catalog: AgentIndex) -> None:
        """End the sessions with agents that have left the catalog."""
        self.sessions.end_where(lambda agent_id: catalog.get(agent_id) is None)
        for key in [each for each in self._pools if catalog.get(each[0]) is None]:
            self._run_in_background(self._pools.pop(key).aclose())

    def stop(self) -> None:
        self.sessions.stop()

    async def aclose(self) -> None:
        self._pending.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CANCEL_TIMEOUT)
        await self.sessions.aclose()
        await asyncio.gather(*(pool.aclose() for pool in self._pools.values()), *self._tasks)

    def _get_pool(self, key: tuple[str, str | None], connect: OpenTunnel, era: Era | None) -> UpstreamPool:
        """The pool of an agent; a new one if the agent is reached in another way than before."""
        pool = self._pools.get(key)
        if pool is None or pool.connect is not connect:
            if pool is not None:
                self._run_in_background(pool.aclose())
            pool = UpstreamPool(
                key[0],
                connect,
                idle_timeout=min(self._idle_timeout, _POOL_IDLE_TIMEOUT),
                max_sessions=self._max_sessions,
                share=self._context.caller_share if key[1] is None else 1.0,
                era=era,
            )
            self._pools[key] = pool
        if key[1] is not None:
            self._pools.move_to_end(key)
            self._close_idlest_pool()
        return pool

    def _close_idlest_pool(self) -> None:
        """Pools of single principals are bounded; each has a few connections at most."""
        personal = [key for key in self._pools if key[1] is not None]
        if len(personal) > _MAX_PERSONAL_POOLS:
            self._run_in_background(self._pools.pop(personal[0]).aclose())

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _BridgeProxy:
    """Proxies to one agent, by the era of each request. A program may know the handshake; an HTTP server does not."""

    def __init__(self, bridge: EraBridge, agent_id: str, tunnel: Tunnel, connect: OpenTunnel) -> None:
        self._bridge = bridge
        self._agent_id = agent_id
        self._owner = tunnel.owner
        self._connect = connect
        self._is_program = isinstance(tunnel, StdioTunnel)

    async def forward(self, proxied: ProxiedRequest) -> None:
        """Raises FabricError or McpProtocolError."""
        proxied.write_chain()
        if is_stateless_request(proxied.head):
            era: Era | None = None if self._is_program else "handshake"
            await self._bridge.make_stateless_proxy(self._agent_id, self._owner, self._connect, era).forward(proxied)
            return
        session_id = proxied.head.get(SESSION_HEADER_BYTES)
        session = await self._find_or_open(session_id, proxied.principal)
        await session.serve(proxied, is_first=session_id is None)

    async def _find_or_open(self, session_id: str | None, principal: Principal) -> ProxySession:
        sessions = self._bridge.sessions
        if session_id is None:
            return await sessions.open(self._agent_id, self._connect, principal, has_handshake=self._is_program)
        session = sessions.find(session_id, self._agent_id, principal)
        if session is None:
            raise McpProtocolError(jsonrpc.INVALID_REQUEST, "Session not found", status=404)
        return session
