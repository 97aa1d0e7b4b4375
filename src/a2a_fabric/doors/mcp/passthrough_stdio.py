"""An agent that is an MCP server on stdin and stdout: each session of the handshake era gets a program of its own.

The SDK's transport speaks HTTP with the client; between it and the program messages go
to and fro as they are. On a pipe nothing says to which request a question or a log line
belongs, so it goes to the stream of its progress token, or of the request asked last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import anyio
import mcp_types as types
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.shared.message import ServerMessageMetadata, SessionMessage

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentBusy, AgentOffline, FabricError
from a2a_fabric.doors.context import Receive, Send
from a2a_fabric.doors.mcp import jsonrpc
from a2a_fabric.doors.mcp.answer import error_body
from a2a_fabric.doors.mcp.jsonrpc import RPCError
from a2a_fabric.doors.mcp.visit import Visit
from a2a_fabric.outbound.tunnel import Program

_log = logging.getLogger(__name__)

MOST = 64  # programs at a time for all sessions with one agent
_SESSION = b"mcp-session-id"
_START_TIMEOUT = 30.0
_CLOSE_TIMEOUT = 10.0
_NEWS = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
        "notifications/resources/updated",
    }
)


class Programs:
    """All sessions with agents of this kind."""

    def __init__(self, *, idle: float) -> None:
        self._idle = idle
        self._sessions: dict[str, Session] = {}

    def to(self, manifest: Manifest, program: Program) -> Way:
        return Way(self, manifest.agent_id, program)

    def find(self, session_id: str, agent_id: str, principal: Principal) -> Session | None:
        """None also for sessions of others."""
        session = self._sessions.get(session_id)
        return session if session is not None and session.belongs_to == (agent_id, principal) else None

    async def open(self, agent_id: str, program: Program, principal: Principal) -> Session:
        """Raises AgentOffline if the program cannot be started or there are too many."""
        if sum(each.belongs_to[0] == agent_id for each in self._sessions.values()) >= MOST:
            raise AgentBusy(f"Agent '{agent_id}' has {MOST} sessions open", agent_id=agent_id)
        session = Session(agent_id, principal, self._idle, self._over)
        self._sessions[session.session_id] = session
        await session.open(program)
        return session

    def _over(self, session: Session) -> None:
        self._sessions.pop(session.session_id, None)

    async def aclose(self) -> None:
        await asyncio.gather(*(session.aclose() for session in list(self._sessions.values())))

    def stop(self) -> None:
        for session in list(self._sessions.values()):
            session.end()


class Way:
    """To one agent, where a room would be."""

    def __init__(self, programs: Programs, agent_id: str, program: Program) -> None:
        self._programs = programs
        self._agent_id = agent_id
        self._program = program

    async def serve(self, scope: Any, receive: Receive, send: Send, visit: Visit) -> None:
        wanted = dict(scope["headers"]).get(_SESSION)
        try:
            session = await self._session(wanted, visit.principal)
        except (FabricError, RPCError) as error:
            await _refuse(error, visit, send)
            return
        await session.serve(scope, receive, send, is_first=wanted is None)

    async def _session(self, wanted: bytes | None, principal: Principal) -> Session:
        if wanted is None:
            return await self._programs.open(self._agent_id, self._program, principal)
        session = self._programs.find(wanted.decode("latin-1"), self._agent_id, principal)
        if session is None:
            raise RPCError(jsonrpc.INVALID_REQUEST, "Session not found", status=404)
        return session


class Session:
    """One client, one program."""

    def __init__(self, agent_id: str, principal: Principal, idle: float, over: Callable[[Session], None]) -> None:
        self.belongs_to = (agent_id, principal)
        self.session_id = uuid4().hex
        self._transport = StreamableHTTPServerTransport(self.session_id, idle_timeout=idle)
        self._over = over
        self._asked: dict[types.RequestId, str | int | None] = {}  # in flight, with their progress tokens
        self._life: asyncio.Task[None] | None = None

    async def open(self, program: Program) -> None:
        """Raises AgentOffline."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._life = asyncio.ensure_future(self._live(program, opened))
        await asyncio.wait({opened, self._life}, return_when=asyncio.FIRST_COMPLETED, timeout=_START_TIMEOUT)
        if not opened.done():
            self._life.cancel()
            error = self._life.exception() if self._life.done() and not self._life.cancelled() else None
            raise (
                error
                if isinstance(error, FabricError)
                else AgentOffline(
                    f"The MCP server did not start within {_START_TIMEOUT:g} s", agent_id=self.belongs_to[0]
                )
            )

    async def serve(self, scope: Any, receive: Receive, send: Send, *, is_first: bool) -> None:
        """A first request that is refused leaves no session behind."""
        status = 500

        async def sending(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._transport.handle_request(scope, receive, sending)
        finally:
            if self._transport.is_terminated or (is_first and status >= 400):
                self.end()

    def end(self) -> None:
        if self._life is not None:
            self._life.cancel()

    async def aclose(self) -> None:
        self.end()
        if self._life is not None:
            await asyncio.wait({self._life}, timeout=_CLOSE_TIMEOUT)

    async def _live(self, program: Program, opened: asyncio.Future[None]) -> None:
        try:
            async with program.open() as (said, saying), self._transport.connect() as (heard, answering):
                opened.set_result(None)
                with self._transport.idle_scope or anyio.CancelScope():
                    async with anyio.create_task_group() as both:
                        both.start_soon(self._inward, heard, saying)
                        await self._outward(said, answering)
                        both.cancel_scope.cancel()
                await self._transport.terminate()
        finally:
            self._over(self)

    async def _inward(self, heard: Any, saying: Any) -> None:
        async for message in heard:
            if not isinstance(message, SessionMessage):
                continue
            asked = message.message
            if isinstance(asked, types.JSONRPCRequest):
                self._asked[asked.id] = ((asked.params or {}).get("_meta") or {}).get("progressToken")
            await saying.send(SessionMessage(asked))

    async def _outward(self, said: Any, answering: Any) -> None:
        async for message in said:
            if isinstance(message, SessionMessage):
                await answering.send(self._addressed(message.message))
        error = types.ErrorData(code=types.CONNECTION_CLOSED, message="The MCP server has ended")
        for request_id in list(self._asked):
            await answering.send(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error)))

    def _addressed(self, message: types.JSONRPCMessage) -> SessionMessage:
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            if message.id is not None:
                self._asked.pop(message.id, None)
            return SessionMessage(message)
        if message.method in _NEWS or not self._asked:
            return SessionMessage(message)
        return SessionMessage(message, ServerMessageMetadata(related_request_id=self._about(message)))

    def _about(self, message: types.JSONRPCRequest | types.JSONRPCNotification) -> types.RequestId:
        if message.method == "notifications/progress":
            token = (message.params or {}).get("progressToken")
            for request_id, given in self._asked.items():
                if given == token:
                    return request_id
        return next(reversed(self._asked))


async def _refuse(error: FabricError | RPCError, visit: Visit, send: Send) -> None:
    if isinstance(error, FabricError):
        body = error_body(error, visit.trace(None))
        error = RPCError(jsonrpc.INTERNAL_ERROR, error.message, body, status=503)
    told = jsonrpc.failure(error)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(told)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": told})
