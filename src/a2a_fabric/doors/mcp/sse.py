"""The transport HTTP+SSE of 2024-11-05, for clients that know no other: `GET /sse`, `POST /sse/messages`.

The stream of a `GET` is one session. Its first event names the address to which the client posts its messages, and
everything that the node says is an event of the stream. A session belongs to the principal that opened it, counts
against the open sessions and streams of that principal, and ends with its stream."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from a2a_fabric.core.call import Principal, hide_private
from a2a_fabric.core.errors import RateLimited
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.edge import CycleEndpoint, DoorEdge, EventStream, HttpReply, encode_event
from a2a_fabric.doors.mcp.http import McpCycle, McpRefusal
from a2a_fabric.doors.mcp.request import McpConnectionContext
from a2a_fabric.doors.mcp.sessions import OpenSession, OpenSessions
from a2a_fabric.protocols import jsonrpc
from a2a_fabric.protocols.mcp import wire
from a2a_fabric.protocols.mcp.wire import McpMessage, McpProtocolError

if TYPE_CHECKING:
    from a2a_fabric.doors.mcp.server import McpServer

MESSAGES_PATH = "/sse/messages"
_MAX_QUEUED = 64  # messages in each direction: a client that posts more waits, a client that reads less slows itself
_RETRY_AFTER = 1.0


class _Answer(msgspec.Struct):
    """A message of the node: the answer to a request of the client has an id and no method."""

    id: Any = None
    method: str | None = None


class SseSession:
    """The two directions of one session."""

    def __init__(self, principal: Principal, open_session: OpenSession) -> None:
        self.principal = principal
        self.open_session = open_session
        self._incoming: asyncio.Queue[bytes | None] = asyncio.Queue(_MAX_QUEUED)
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue(_MAX_QUEUED)
        self._ended = asyncio.Event()

    def is_open_to(self, principal: Principal) -> bool:
        """Whether the caller is its opener. The opener may have named views in its address, which is not posted to."""
        own_views, views = self.principal.views or (), principal.views or ()
        return hide_private(principal) == hide_private(self.principal) and set(views) <= set(own_views)

    def accept(self, message: McpMessage, body: bytes) -> None:
        """Take a message of the client. Raises RateLimited."""
        try:
            self._incoming.put_nowait(body)
        except asyncio.QueueFull as exc:
            reason = f"{_MAX_QUEUED} messages of this session wait already; try again in {_RETRY_AFTER:g} s"
            raise RateLimited(reason, _RETRY_AFTER) from exc
        self.open_session.requests += message.is_request

    async def read_texts(self) -> AsyncIterator[str | bytes]:
        while (body := await self._incoming.get()) is not None:
            yield body

    async def send_text(self, text: str) -> None:
        """Waits for a client that reads slowly."""
        answer = wire.decode_or_none(text.encode(), _Answer)
        if answer is not None and answer.method is None and answer.id is not None:
            self.open_session.finish_request(asyncio.get_running_loop().time())
        await self._outgoing.put(text.encode())

    async def read_frames(self) -> AsyncGenerator[bytes]:
        """The messages of the node as events, until the session ends."""
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            while not self._ended.is_set():
                next_text = asyncio.ensure_future(self._outgoing.get())
                try:
                    await asyncio.wait({next_text, ended}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    next_text.cancel()
                if next_text.done() and not next_text.cancelled() and (text := next_text.result()) is not None:
                    yield encode_event("message", None, text)
        finally:
            ended.cancel()

    def end(self) -> None:
        self._ended.set()


class SseEndpoints:
    """The two endpoints, and the sessions that are open there."""

    def __init__(
        self, context: DoorContext, open_sessions: OpenSessions, get_server: Callable[[], Awaitable[McpServer]]
    ) -> None:
        self.context = context
        self.open_sessions = open_sessions
        self.get_server = get_server
        self.sessions: dict[str, SseSession] = {}
        edge = DoorEdge(context=context, identify=context.identify, body_limit=context.body_limit)
        self.stream = CycleEndpoint(lambda scope, receive, send: _StreamCycle(self, edge, scope, receive, send))
        self.messages = CycleEndpoint(lambda scope, receive, send: _MessageCycle(self, edge, scope, receive, send))

    def stop(self) -> None:
        """End all streams, for which the node would wait."""
        for session in self.sessions.values():
            session.end()


class _SseCycle(McpCycle):
    def __init__(self, endpoints: SseEndpoints, edge: DoorEdge, scope: Any, receive: Receive, send: Send) -> None:
        super().__init__(edge, scope, receive, send)
        self.endpoints = endpoints


class _StreamCycle(_SseCycle):
    allowed_methods = ("GET",)
    reads_body = False

    async def answer(self, body: bytes) -> EventStream:  # type: ignore[override]  # McpCycle answers elsewhere
        return EventStream(frames=self._run_session())

    async def _run_session(self) -> AsyncGenerator[bytes]:
        """Raises RateLimited before the first event if there are too many sessions."""
        endpoints = self.endpoints
        server = await endpoints.get_server()
        open_session = await endpoints.open_sessions.open(self.principal.principal_id)
        session_id = secrets.token_urlsafe(24) + endpoints.context.owner_tag
        session = SseSession(self.principal, open_session)

        async def close() -> None:
            session.end()

        open_session.close = close
        open_session.streams += 1
        endpoints.sessions[session_id] = session
        request_context = McpConnectionContext(self.principal, self.head.trace, self.head.delegation_chain)
        work = asyncio.ensure_future(server.run_text_session(session.read_texts(), session.send_text, request_context))
        work.add_done_callback(lambda _: session.end())
        try:
            prefix = urlsplit(self.base_url).path.rstrip("/")  # of a proxy in front, as `public_url` names it
            yield encode_event("endpoint", None, f"{prefix}{MESSAGES_PATH}?session_id={session_id}".encode())
            endpoints.open_sessions.finish_request(open_session)
            async for frame in session.read_frames():
                yield frame
        finally:
            endpoints.sessions.pop(session_id, None)
            endpoints.open_sessions.end(open_session)
            request_context.cancel_work()
            await cancel_and_wait(work)


class _MessageCycle(_SseCycle):
    allowed_methods = ("POST",)

    async def answer(self, body: bytes) -> HttpReply:  # type: ignore[override]  # McpCycle answers elsewhere
        """202: the answer is an event of the stream."""
        self.body = body
        query = parse_qs(self.scope.get("query_string", b"").decode("latin-1"))
        session = self.endpoints.sessions.get((query.get("session_id") or [""])[0])
        if session is None or not session.is_open_to(self.principal):
            reason = "Session not found. It has ended, or another caller opened it; open a new one with GET /sse."
            raise McpRefusal(McpProtocolError(jsonrpc.INVALID_REQUEST, reason, status=404))
        try:
            message = wire.parse_message(body)
        except McpProtocolError as error:
            raise McpRefusal(error) from error
        session.accept(message, body)
        self.is_call = True  # the server writes the log line
        return HttpReply(body=b"Accepted", status=202, media_type=b"text/plain")
