"""What cannot go through as bytes: programs on pipes, and callers of another era than the server's.

Importing this module imports the SDK, which takes most of a second.
"""

from __future__ import annotations

import asyncio

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.core.ports import AgentIndex
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.mcp.exchange import Parking
from a2a_fabric.doors.mcp.lines import Era, Lines
from a2a_fabric.doors.mcp.passing import Passing, Way
from a2a_fabric.doors.mcp.passthrough_stdio import Sessions, SessionWay
from a2a_fabric.doors.mcp.probe import is_stateless
from a2a_fabric.doors.mcp.stateless import StatelessWay
from a2a_fabric.outbound.tunnel import Open, Program, Tunnel

_LONGEST = 1 << 31  # milliseconds; the node's own limit is smaller
_UNUSED_FOR = 300.0  # seconds until a line that no session owns is closed


class Bridge:
    """All sessions, lines and parked exchanges of a node."""

    def __init__(self, context: DoorContext, *, idle: float, most: int) -> None:
        self._context = context
        self._idle = idle
        self._most = most
        self._sessions = Sessions(idle=idle, timeout=context.gateway.time_for(_LONGEST) / 1000, most=most)
        self._parking = Parking()
        self._lines: dict[str, Lines] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def to(self, manifest: Manifest, tunnel: Tunnel) -> Way:
        """For a server over HTTP: one that does not speak the era of whoever comes here. Raises AgentOffline."""
        if tunnel.open is None:
            raise AgentOffline("The MCP server speaks another era of the protocol", agent_id=manifest.agent_id)
        return _Fork(self, manifest.agent_id, tunnel.open, is_program=isinstance(tunnel, Program))

    def owns(self, session_id: str | None) -> bool:
        return session_id in self._sessions

    def way(self, agent_id: str, open_: Open, passing: Passing, *, is_program: bool) -> Way:
        if is_stateless(passing.head):
            lines = self._lines_to(agent_id, open_, None if is_program else "handshake")
            return StatelessWay(self._context, lines, self._parking)
        return SessionWay(self._sessions, agent_id, open_, shakes_hands=is_program)

    def follow(self, catalog: AgentIndex) -> None:
        """Nobody goes on talking with an agent that has left."""
        self._sessions.end_with(lambda agent_id: catalog.get(agent_id) is None)
        for agent_id in [each for each in self._lines if catalog.get(each) is None]:
            self._let_go(self._lines.pop(agent_id))

    def stop(self) -> None:
        self._sessions.stop()

    async def aclose(self) -> None:
        await self._parking.aclose()
        await self._sessions.aclose()
        await asyncio.gather(*(lines.aclose() for lines in self._lines.values()), *self._leaving)

    def _lines_to(self, agent_id: str, open_: Open, era: Era | None) -> Lines:
        """An agent that is reached in another way now gets new ones."""
        lines = self._lines.get(agent_id)
        if lines is None or lines.opens is not open_:
            if lines is not None:
                self._let_go(lines)
            lines = Lines(agent_id, open_, idle=min(self._idle, _UNUSED_FOR), most=self._most, era=era)
            self._lines[agent_id] = lines
        return lines

    def _let_go(self, lines: Lines) -> None:
        task = asyncio.ensure_future(lines.aclose())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


class _Fork:
    """Each era has its own way."""

    def __init__(self, bridge: Bridge, agent_id: str, open_: Open, *, is_program: bool) -> None:
        self._bridge = bridge
        self._agent_id = agent_id
        self._open = open_
        self._is_program = is_program

    async def go(self, passing: Passing) -> None:
        passing.write_chain()
        way = self._bridge.way(self._agent_id, self._open, passing, is_program=self._is_program)
        await way.go(passing)
