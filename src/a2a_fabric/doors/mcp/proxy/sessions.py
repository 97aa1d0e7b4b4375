"""Sessions of clients with agents that plain HTTP forwarding cannot reach: programs, and servers of the other era.

Each session of the handshake era has its own conversation with the agent's server. The SDK's transport speaks HTTP
with the client. `Relay` passes messages unchanged to a program of the same era; for a server without a handshake an
`EraTranslator` stands between. On a pipe nothing says to which request a question or a log message belongs, so it
goes to the stream of its progress token, or of the latest request.

Importing this module imports the SDK, which takes most of a second."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import uuid4

import anyio
import mcp_types as types
import msgspec
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.shared.message import ServerMessageMetadata, SessionMessage

from a2a_fabric.core.call import Principal
from a2a_fabric.core.limits import Share
from a2a_fabric.core.tasks import DeadlineSweep
from a2a_fabric.doors.edge import JSON_MEDIA_TYPE, RequestHead
from a2a_fabric.doors.mcp.fast_path import fits_both
from a2a_fabric.doors.mcp.proxy.endpoint import ProxiedRequest
from a2a_fabric.doors.mcp.proxy.era_translator import EraTranslator
from a2a_fabric.doors.mcp.proxy.upstream import SessionTask, UpstreamSession
from a2a_fabric.doors.mcp.request import McpReply
from a2a_fabric.doors.mcp.sessions import OpenSession, OpenSessions
from a2a_fabric.protocols import jsonrpc
from a2a_fabric.protocols.mcp import eras
from a2a_fabric.protocols.mcp.runtime_ports import OpenTunnel, TunnelWriter
from a2a_fabric.protocols.mcp.wire import VERSION_HEADER_BYTES, McpMessage, McpProtocolError

_log = logging.getLogger(__name__)

_DRAIN_TIMEOUT = 5.0
_DIRECT_VERSIONS = frozenset({"2025-03-26", "2025-06-18", "2025-11-25"})
_JSON_HEADERS = [(b"content-type", JSON_MEDIA_TYPE)]


class HandshakeRefused(Exception):
    """The server refused the client's `initialize`, or ended because of it."""

    def __init__(self, initialize_request: types.JSONRPCRequest | None) -> None:
        super().__init__("The server does not support the handshake")
        self.initialize_request = initialize_request


class _DirectCall(NamedTuple):
    """A call that bypasses the SDK's transport."""

    reply: McpReply
    answer: asyncio.Future[McpMessage]

    def fail(self, request_id: types.RequestId, code: int, reason: str) -> None:
        if not self.answer.done():
            error = msgspec.Raw(msgspec.json.encode({"code": code, "message": reason}))
            self.answer.set_result(McpMessage(jsonrpc="2.0", id=request_id, error=error))


class Relay:
    """Passes messages between the streams of a program and the stream to the client; `on_end` hears of the end."""

    _has_ended = False

    def __init__(
        self, from_server: Any, to_server: TunnelWriter, to_client: Any, timeout: float, on_end: Callable[[], None]
    ) -> None:
        self._from_server = from_server
        self._to_server = to_server
        self._to_client = to_client
        self._timeout = timeout
        self._on_end = on_end
        self._pending: dict[types.RequestId, str | int | None] = {}  # requests in flight, with their progress tokens
        self._initialize_request: types.JSONRPCRequest | None = None  # until it is answered
        self._overdue: asyncio.Queue[types.RequestId] = asyncio.Queue()  # filled by a timer, which cannot wait
        self._direct_calls: dict[types.RequestId, _DirectCall] = {}

    def can_call(self, request_id: types.RequestId) -> bool:
        """Whether a request with this id may bypass the SDK's transport."""
        return not self._has_ended and self._initialize_request is None and request_id not in self._pending

    def is_called(self, request_id: types.RequestId | None) -> bool:
        """Whether a call with this id is in flight that has bypassed the SDK's transport."""
        return request_id in self._direct_calls

    async def call(self, proxied: ProxiedRequest, reply: McpReply) -> bytes:
        """The encoded answer to a call, which bypasses the SDK's transport. Messages before it go to `reply`."""
        request_id: types.RequestId = proxied.id  # type: ignore[assignment]  # a call has one
        answer = self._to_server.start_request(request_id, "tools/call", proxied.body, {})
        self._pending[request_id] = proxied.progress_token
        self._direct_calls[request_id] = _DirectCall(reply, answer)
        try:
            message = await answer
        finally:
            self._pending.pop(request_id, None)
            del self._direct_calls[request_id]
            self._to_server.forget_request(request_id)
        member = b'"result":%b' % message.result if message.result else b'"error":%b' % message.error
        return b'{"jsonrpc":"2.0","id":%b,%b}' % (msgspec.json.encode(request_id), member)

    async def run(self, from_client: Any) -> None:
        """Run until the program ends. Raises HandshakeRefused."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._forward_to_server, from_client)
                group.start_soon(self._cancel_overdue)
                is_refused = await self._forward_to_client()
                group.cancel_scope.cancel()
        finally:
            self._has_ended = True
            for request_id, direct in self._direct_calls.items():
                direct.fail(request_id, types.CONNECTION_CLOSED, "The MCP server has ended")
        if is_refused:
            raise HandshakeRefused(self._initialize_request)
        self._on_end()
        for request_id in list(self._pending):
            await self._send_error(request_id, types.CONNECTION_CLOSED, "The MCP server has ended")

    def expire(self, request_id: types.RequestId | None) -> None:
        """The program took longer for an answer than the node allows."""
        if request_id is not None and request_id in self._pending:
            self._overdue.put_nowait(request_id)

    async def _cancel_overdue(self) -> None:
        while True:
            request_id = await self._overdue.get()
            if request_id in self._pending:
                await self._cancel_request(request_id)

    async def _cancel_request(self, request_id: types.RequestId) -> None:
        params = {"requestId": request_id, "reason": "The request took too long"}
        notification = types.JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params)
        await self._send_error(request_id, types.REQUEST_TIMEOUT, f"No answer within {self._timeout:g} s")
        await self._to_server.send(SessionMessage(notification))

    async def _send_error(self, request_id: types.RequestId, code: int, reason: str) -> None:
        self._pending.pop(request_id, None)
        error = types.ErrorData(code=code, message=reason)
        await self._send_to_client(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error)))

    async def _send_to_client(self, item: SessionMessage) -> None:
        """Send an answer, or a message before it, to the reply of its request."""
        message, metadata = item.message, item.metadata
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            request_id = message.id
        else:
            request_id = metadata.related_request_id if isinstance(metadata, ServerMessageMetadata) else None
        direct = self._direct_calls.get(request_id) if request_id is not None else None
        if direct is None or request_id is None:
            await self._to_client.send(item)
        elif isinstance(message, types.JSONRPCError):
            direct.fail(request_id, message.error.code, message.error.message)
        else:
            await direct.reply.send_message(message.model_dump_json(by_alias=True, exclude_unset=True).encode())

    async def _forward_to_server(self, from_client: Any) -> None:
        async for message in from_client:
            if not isinstance(message, SessionMessage):
                continue
            client_message = message.message
            if isinstance(client_message, types.JSONRPCRequest):
                self._pending[client_message.id] = ((client_message.params or {}).get("_meta") or {}).get(
                    "progressToken"
                )
                if client_message.method == "initialize":
                    self._initialize_request = client_message
            await self._to_server.send(SessionMessage(client_message))
            if (cancelled_id := eras.find_cancelled_id(client_message)) is not None and cancelled_id in self._pending:
                del self._pending[cancelled_id]  # a program does not answer it any more, and its stream would stay open
                await self._send_to_client(SessionMessage(eras.make_cancelled_error(cancelled_id)))

    async def _forward_to_client(self) -> bool:
        """Returns whether the server refused the handshake."""
        async for message in self._from_server:
            if isinstance(message, SessionMessage):
                if self._is_handshake_refusal(message.message):
                    return True
                if not self._is_late(message.message):
                    await self._send_to_client(self._add_related_request(message.message))
        return self._initialize_request is not None

    def _is_handshake_refusal(self, message: types.JSONRPCMessage) -> bool:
        if self._initialize_request is None or getattr(message, "id", None) != self._initialize_request.id:
            return False
        if isinstance(message, types.JSONRPCError):
            return True
        self._initialize_request = None
        return False

    def _is_late(self, message: types.JSONRPCMessage) -> bool:
        """Whether this answers a request that was cancelled or expired."""
        return isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and message.id not in self._pending

    def _add_related_request(self, message: types.JSONRPCMessage) -> SessionMessage:
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            if message.id is not None:
                self._pending.pop(message.id, None)
            return SessionMessage(message)
        if eras.is_change(message.method) or not self._pending:
            return SessionMessage(message)
        return SessionMessage(message, ServerMessageMetadata(related_request_id=self._find_related_request(message)))

    def _find_related_request(self, message: types.JSONRPCRequest | types.JSONRPCNotification) -> types.RequestId:
        if message.method == "notifications/progress":
            token = (message.params or {}).get("progressToken")
            for request_id, request_token in self._pending.items():
                if request_token == token:
                    return request_id
        return next(reversed(self._pending))


class ProxySessions:
    """The proxied sessions of a node, with all agents."""

    def __init__(
        self,
        *,
        idle_timeout: float,
        unused_timeout: float,
        timeout: float,
        max_sessions: int,
        share: Share,
        ping_timers: DeadlineSweep,
        owner_tag: str = "",
    ) -> None:
        self.timeout = timeout
        self.owner_tag = owner_tag
        self.ping_timers = ping_timers
        self._share = share  # of the sessions with an agent, for one caller
        self._idle_timeout = idle_timeout
        self._unused_timeout = unused_timeout
        self._max_sessions = max_sessions  # per agent
        self._sessions: dict[str, ProxySession] = {}
        self._open_sessions: dict[str, OpenSessions] = {}  # by agent

    def __contains__(self, session_id: str | None) -> bool:
        return session_id in self._sessions

    def find(self, session_id: str, agent_id: str, principal: Principal) -> ProxySession | None:
        """None also for a session of another principal."""
        session = self._sessions.get(session_id)
        is_owner = session is not None and session.owner == (agent_id, principal) and session.open_session.is_open
        return session if is_owner else None

    async def open(
        self, agent_id: str, connect: OpenTunnel, principal: Principal, *, has_handshake: bool
    ) -> ProxySession:
        """Raises AgentOffline, or RateLimited if all sessions that are allowed are in use."""
        agent_sessions = self._open_sessions.get(agent_id)
        if agent_sessions is None:
            agent_sessions = self._open_sessions[agent_id] = OpenSessions(
                f"sessions with agent '{agent_id}'",
                self._max_sessions,
                unused_timeout=self._unused_timeout,
                share=self._share,
            )
        open_session = await agent_sessions.open(principal.principal_id)
        session = ProxySession(self, agent_id, principal, self._idle_timeout, self._remove, open_session)
        open_session.close = session.aclose
        self._sessions[session.session_id] = session
        try:
            await session.open(connect, has_handshake=has_handshake)
        finally:
            agent_sessions.finish_request(open_session)
        return session

    def _remove(self, session: ProxySession) -> None:
        self._sessions.pop(session.session_id, None)
        agent_sessions = self._open_sessions.get(session.agent_id)
        if agent_sessions is not None:
            agent_sessions.end(session.open_session)
            if not len(agent_sessions):
                del self._open_sessions[session.agent_id]

    async def aclose(self) -> None:
        await asyncio.gather(*(session.aclose() for session in list(self._sessions.values())))

    def stop(self) -> None:
        self.end_where(lambda agent_id: True)

    def end_where(self, has_gone: Callable[[str], bool]) -> None:
        """End the sessions with agents that have gone."""
        for session in list(self._sessions.values()):
            if has_gone(session.agent_id):
                session.end()


class ProxySession(SessionTask):
    """The session of one client with one agent's server."""

    def __init__(
        self,
        sessions: ProxySessions,
        agent_id: str,
        principal: Principal,
        idle_timeout: float,
        on_end: Callable[[ProxySession], None],
        open_session: OpenSession,
    ) -> None:
        super().__init__(agent_id)
        self.owner = (agent_id, principal)
        self.session_id = uuid4().hex + sessions.owner_tag
        self._timeout = sessions.timeout
        self._idle_timeout = idle_timeout
        self._ping_timers = sessions.ping_timers
        self._direct_calls = 0
        self._is_kept_open = False  # the transport's timer for idle sessions was stopped
        self._transport = StreamableHTTPServerTransport(self.session_id, idle_timeout=idle_timeout)
        self._on_end = on_end
        self.open_session = open_session
        self._open_replies = 0  # requests whose reply has not ended
        self._reply_ended = asyncio.Event()
        self._relay: Relay | None = None

    async def open(self, connect: OpenTunnel, *, has_handshake: bool) -> None:
        """Raises AgentOffline."""
        await self.start(lambda ready: self._run(connect, ready, has_handshake=has_handshake))

    async def serve(self, proxied: ProxiedRequest, *, is_first: bool) -> None:
        """Serve one request. If the first request is refused, the session ends. Raises McpProtocolError."""
        if proxied.is_request and self._relay is not None and self._relay.is_called(proxied.id):
            reason = "A request with this id is in flight already. Give each request an id of its own."
            raise McpProtocolError(jsonrpc.INVALID_REQUEST, reason)
        is_stream = proxied.is_long_lived and not proxied.is_request
        self._open_replies += proxied.is_request
        self.open_session.requests += proxied.is_request
        self.open_session.streams += is_stream
        timer = asyncio.get_running_loop().call_later(self._timeout, self._expire_request, proxied)
        try:
            await self._transport.handle_request(proxied.scope, proxied.receive, proxied.send)
        finally:
            timer.cancel()
            self._open_replies -= proxied.is_request
            self.open_session.requests -= proxied.is_request
            self.open_session.answered_requests += proxied.is_request and not is_first
            self.open_session.streams -= is_stream
            self.open_session.used_at = time.monotonic()
            self._reply_ended.set()
            if self._transport.is_terminated or (is_first and proxied.send.status >= 400):
                self.end()

    def can_call(self, request_id: types.RequestId, head: RequestHead) -> bool:
        """Whether a call may bypass the SDK's transport, which checks nothing in it that is not checked here."""
        is_plain = head.get(VERSION_HEADER_BYTES) in _DIRECT_VERSIONS and fits_both(head)
        return is_plain and self._relay is not None and self._relay.can_call(request_id)

    async def forward(self, proxied: ProxiedRequest) -> None:
        """Forward a call that `can_call` accepts."""
        relay, reply_to = self._relay, proxied.send
        if relay is None or proxied.id is None:
            raise McpProtocolError(jsonrpc.INVALID_REQUEST, "Session not found", status=404)
        proxied.write_chain()
        reply = McpReply(proxied.id, reply_to, self._ping_timers, None, proxied.trace)
        self._start_direct_call()
        timer = asyncio.get_running_loop().call_later(self._timeout, self._expire_request, proxied)
        try:
            with reply:
                answer = await relay.call(proxied, reply)
            if reply.is_streaming:
                await reply.send_answer(answer)
            else:
                await reply_to.send_reply(200, answer, _JSON_HEADERS)
        finally:
            timer.cancel()
            self._finish_direct_call()

    def _start_direct_call(self) -> None:
        """The SDK does not know of these calls, and must not take the session for idle."""
        self._open_replies += 1
        self.open_session.requests += 1
        self._direct_calls += 1
        scope = self._transport.idle_scope
        if scope is not None and scope.deadline - anyio.current_time() < self._idle_timeout * 0.75:
            scope.deadline = math.inf
            self._is_kept_open = True

    def _finish_direct_call(self) -> None:
        self._open_replies -= 1
        self._reply_ended.set()
        self._direct_calls -= 1
        self.open_session.finish_request(time.monotonic())
        scope = self._transport.idle_scope
        if self._is_kept_open and not self._direct_calls and scope is not None:
            self._is_kept_open = False
            scope.deadline = anyio.current_time() + self._idle_timeout

    def _expire_request(self, proxied: ProxiedRequest) -> None:
        if self._relay is not None:
            self._relay.expire(proxied.id)

    async def _run(self, connect: OpenTunnel, ready: asyncio.Future[None], *, has_handshake: bool) -> None:
        try:
            async with self._transport.connect() as (from_client, to_client):
                with self._transport.idle_scope or anyio.CancelScope():
                    await self._run_conversation(connect, ready, from_client, to_client, has_handshake=has_handshake)
                with anyio.move_on_after(_DRAIN_TIMEOUT):  # replies are read before the transport is closed
                    while self._open_replies:
                        self._reply_ended.clear()
                        await self._reply_ended.wait()
                await self._transport.terminate()
        except Exception:
            if not ready.done():
                raise
            if self._transport.is_terminated:
                return  # the client ended the session while its streams were being read
            _log.exception("A session with agent %s failed", self.agent_id)
        finally:
            self._on_end(self)
            self._relay = None  # these would refer to each other: none has to wait for the collector
            self.open_session.forget_close()

    async def _run_conversation(
        self, connect: OpenTunnel, ready: asyncio.Future[None], from_client: Any, to_client: Any, *, has_handshake: bool
    ) -> None:
        """Pass messages until the server ends the conversation."""
        initialize_request = None
        if has_handshake:
            try:
                async with connect() as (from_server, to_server):
                    self._relay = Relay(from_server, to_server, to_client, self._timeout, lambda: self._on_end(self))
                    ready.set_result(None)
                    await self._relay.run(from_client)
                return
            except HandshakeRefused as refusal:
                self._relay, initialize_request = None, refusal.initialize_request
        ended = asyncio.Event()
        upstream = UpstreamSession(self.agent_id, connect, lambda message: None, ended.set)
        await upstream.open()
        translator = EraTranslator(upstream, to_client.send, self._timeout)
        try:
            if not ready.done():
                ready.set_result(None)
            if initialize_request is not None:
                translator.handle(initialize_request)
            async with anyio.create_task_group() as group:
                group.start_soon(_feed_translator, from_client, translator)
                await ended.wait()
                self._on_end(self)  # a request that comes now finds no session
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await translator.aclose()
                await upstream.aclose()


async def _feed_translator(from_client: Any, translator: EraTranslator) -> None:
    async for message in from_client:
        if isinstance(message, SessionMessage):
            translator.handle(message.message)
