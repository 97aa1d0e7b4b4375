"""Sessions of the handshake era with an agent that cannot be tunnelled to: each has a conversation of its own.

The SDK's transport speaks HTTP with the client. Between it and a program messages go to and
fro as they are (`straight`); a server that does not shake hands gets an interpreter.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import anyio
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.shared.message import SessionMessage

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentOffline, FabricError
from a2a_fabric.doors.mcp import jsonrpc
from a2a_fabric.doors.mcp.interpreter import Interpreter
from a2a_fabric.doors.mcp.jsonrpc import RPCError
from a2a_fabric.doors.mcp.line import CLOSE_TIMEOUT, START_TIMEOUT, Line
from a2a_fabric.doors.mcp.open_sessions import OpenSession, OpenSessions
from a2a_fabric.doors.mcp.passing import Passing
from a2a_fabric.doors.mcp.straight import NoHandshake, Straight
from a2a_fabric.outbound.tunnel import Open

_log = logging.getLogger(__name__)

_LAST_WORDS = 5.0
_SESSION = b"mcp-session-id"


class Sessions:
    """All of them, with all agents."""

    def __init__(self, *, idle: float, timeout: float, most: int) -> None:
        self.timeout = timeout
        self._idle = idle
        self._most = most  # with one agent
        self._sessions: dict[str, Session] = {}
        self._open: dict[str, OpenSessions] = {}  # by agent

    def __contains__(self, session_id: str | None) -> bool:
        return session_id in self._sessions

    def find(self, session_id: str, agent_id: str, principal: Principal) -> Session | None:
        """None also for sessions of others."""
        session = self._sessions.get(session_id)
        is_theirs = session is not None and session.belongs_to == (agent_id, principal) and session.place.is_open
        return session if is_theirs else None

    async def open(self, agent_id: str, open_: Open, principal: Principal, *, shakes_hands: bool) -> Session:
        """Raises AgentOffline if it cannot be begun, RateLimited if all there may be are in use."""
        of_agent = self._open.get(agent_id)
        if of_agent is None:
            of_agent = self._open[agent_id] = OpenSessions(f"sessions with agent '{agent_id}'", self._most)
        place = await of_agent.open(principal.principal_id)
        session = Session(self, agent_id, principal, self._idle, self._over, place)
        place.close = session.aclose
        self._sessions[session.session_id] = session
        try:
            await session.open(open_, shakes_hands=shakes_hands)
        finally:
            of_agent.answered(place)
        return session

    def _over(self, session: Session) -> None:
        self._sessions.pop(session.session_id, None)
        of_agent = self._open.get(session.belongs_to[0])
        if of_agent is not None:
            of_agent.end(session.place)
            if not len(of_agent):
                del self._open[session.belongs_to[0]]

    async def aclose(self) -> None:
        await asyncio.gather(*(session.aclose() for session in list(self._sessions.values())))

    def stop(self) -> None:
        self.end_with(lambda agent_id: True)

    def end_with(self, is_over: Callable[[str], bool]) -> None:
        """Those with agents for whom it is over."""
        for session in list(self._sessions.values()):
            if is_over(session.belongs_to[0]):
                session.end()


class SessionWay:
    """To one agent; `shakes_hands` is False if it is known that its server does not."""

    def __init__(self, sessions: Sessions, agent_id: str, open_: Open, *, shakes_hands: bool = True) -> None:
        self._sessions = sessions
        self._agent_id = agent_id
        self._open = open_
        self._shakes_hands = shakes_hands

    async def go(self, passing: Passing) -> None:
        """Raises FabricError or RPCError."""
        wanted = passing.head.get(_SESSION)
        session = await self._session(wanted, passing.principal)
        await session.serve(passing, is_first=wanted is None)

    async def _session(self, wanted: str | None, principal: Principal) -> Session:
        if wanted is None:
            return await self._sessions.open(self._agent_id, self._open, principal, shakes_hands=self._shakes_hands)
        session = self._sessions.find(wanted, self._agent_id, principal)
        if session is None:
            raise RPCError(jsonrpc.INVALID_REQUEST, "Session not found", status=404)
        return session


class Session:
    """One client, one conversation."""

    def __init__(
        self,
        all_: Sessions,
        agent_id: str,
        principal: Principal,
        idle: float,
        over: Callable[[Session], None],
        place: OpenSession,
    ) -> None:
        self.belongs_to = (agent_id, principal)
        self.session_id = uuid4().hex
        self._timeout = all_.timeout
        self._transport = StreamableHTTPServerTransport(self.session_id, idle_timeout=idle)
        self._over = over
        self.place = place
        self._life: asyncio.Task[None] | None = None
        self._is_ending = False
        self._waiting = 0  # requests whose reply has not ended
        self._answered = asyncio.Event()
        self._straight: Straight | None = None

    async def open(self, open_: Open, *, shakes_hands: bool) -> None:
        """Raises AgentOffline."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._life = asyncio.ensure_future(self._live(open_, opened, shakes_hands=shakes_hands))
        try:
            await asyncio.wait({opened, self._life}, return_when=asyncio.FIRST_COMPLETED, timeout=START_TIMEOUT)
        except asyncio.CancelledError:
            self.end()
            raise
        if not opened.done():
            self.end()
            error = self._life.exception() if self._life.done() and not self._life.cancelled() else None
            if isinstance(error, FabricError):
                raise error
            why = f"The MCP server did not start within {START_TIMEOUT:g} s"
            raise AgentOffline(why, agent_id=self.belongs_to[0]) from error

    async def serve(self, passing: Passing, *, is_first: bool) -> None:
        """A first request that is refused leaves no session behind."""
        self._waiting += passing.is_request
        self.place.requests += passing.is_request
        due = asyncio.get_running_loop().call_later(self._timeout, self._run_out, passing)
        try:
            await self._transport.handle_request(passing.scope, passing.receive, passing.send)
        finally:
            due.cancel()
            self._waiting -= passing.is_request
            self.place.requests -= passing.is_request
            self.place.used_at = time.monotonic()
            self._answered.set()
            if self._transport.is_terminated or (is_first and passing.send.status >= 400):
                self.end()

    def _run_out(self, passing: Passing) -> None:
        if self._straight is not None:
            self._straight.run_out(passing.id)

    def end(self) -> None:
        """Once: a second cancellation would hit the cleaning up after the first."""
        if self._life is not None and not self._is_ending:
            self._is_ending = True
            self._life.cancel()

    async def aclose(self) -> None:
        self.end()
        if self._life is not None:
            await asyncio.wait({self._life}, timeout=CLOSE_TIMEOUT)

    async def _live(self, open_: Open, opened: asyncio.Future[None], *, shakes_hands: bool) -> None:
        try:
            async with self._transport.connect() as (heard, answering):
                with self._transport.idle_scope or anyio.CancelScope():
                    await self._converse(open_, opened, heard, answering, shakes_hands=shakes_hands)
                with anyio.move_on_after(_LAST_WORDS):  # to be read before the transport is closed
                    while self._waiting:
                        self._answered.clear()
                        await self._answered.wait()
                await self._transport.terminate()
        except Exception:
            if not opened.done():
                raise
            if self._transport.is_terminated:
                return  # its streams are closed under those who read them
            _log.exception("a session with %s broke", self.belongs_to[0])
        finally:
            self._over(self)

    async def _converse(
        self, open_: Open, opened: asyncio.Future[None], heard: Any, answering: Any, *, shakes_hands: bool
    ) -> None:
        """Until the server ends it."""
        greeting = None
        if shakes_hands:
            try:
                async with open_() as (said, saying):
                    self._straight = Straight(said, saying, answering, self._timeout, lambda: self._over(self))
                    opened.set_result(None)
                    await self._straight.run(heard)
                return
            except NoHandshake as refused:
                self._straight, greeting = None, refused.greeting
        over = asyncio.Event()
        line = Line(self.belongs_to[0], open_, lambda said: None, lambda _: over.set())
        await line.open()
        interpreter = Interpreter(line, answering.send, self._timeout)
        try:
            if not opened.done():
                opened.set_result(None)
            if greeting is not None:
                interpreter.hear(greeting)
            async with anyio.create_task_group() as both:
                both.start_soon(_hearing, heard, interpreter)
                await over.wait()
                self._over(self)  # whoever comes now finds no session
                both.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await interpreter.aclose()
                await line.aclose()


async def _hearing(heard: Any, interpreter: Interpreter) -> None:
    async for message in heard:
        if isinstance(message, SessionMessage):
            interpreter.hear(message.message)
