"""The endpoints of the door. Streamable HTTP: identifies the caller, tries the fast path, else calls a server or a
proxy. WebSocket: one JSON-RPC message per frame; the SDK no longer ships such a transport."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.propagation import new_trace, trace_from_traceparent
from a2a_fabric.core.recording import note_transport
from a2a_fabric.core.result import Questions
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.edge import (
    HEAD_KEY,
    SHORTCUT_KEY,
    ClientDisconnected,
    DoorEdge,
    DoorError,
    ErrorReply,
    RequestCycle,
    RequestHead,
    Shortcut,
    UnsupportedContentType,
    build_error_headers,
    client_address,
    head_from_scope,
    may_be_json,
    reject_handshake,
    replay_body,
    run_until_disconnect,
    take_buffered_body,
)
from a2a_fabric.doors.mcp.fast_path import (
    FastPath,
    FastRequest,
    HandshakeCallParams,
    HandshakeListParams,
    fits_both,
)
from a2a_fabric.doors.mcp.light_sessions import REPLAYED, hand_over
from a2a_fabric.doors.mcp.request import (
    DirectRequestContext,
    McpConnectionContext,
    McpRequestContext,
    is_stateless_request,
)
from a2a_fabric.doors.mcp.results import http_status_of, to_error_body, to_protocol_error
from a2a_fabric.doors.mcp.sessions import FastSession, OpenSessions
from a2a_fabric.doors.mcp.tool_calls import ScopeMissing
from a2a_fabric.protocols.mcp import wire
from a2a_fabric.protocols.mcp.wire import LISTEN_METHOD, SESSION_HEADER_BYTES, McpMessage, McpProtocolError

if TYPE_CHECKING:
    from a2a_fabric.doors.mcp.server import McpServer


class McpRequestServer(Protocol):
    """The server of the gateway's own tools, or the proxy to an agent."""

    async def serve(self, scope: Any, receive: Receive, send: Send, request_context: McpRequestContext) -> None: ...


FindServer = Callable[[Any, Principal], Awaitable[McpRequestServer]]
FindFastPath = Callable[[Any, Principal], FastPath | None]
# Serves a call that has arrived completely and only has to be forwarded. None for any other request.
ServeDirect = Callable[[Any, Receive, Send, DirectRequestContext, bytes], Awaitable[None] | None]


class McpRefusal(DoorError):
    """A request that is not valid MCP. Its id is not repeated, because the message could not be read."""

    def __init__(self, protocol_error: McpProtocolError) -> None:
        super().__init__(protocol_error.message)
        self.message = protocol_error.message
        self.protocol_error = protocol_error


class _TraceMeta(msgspec.Struct):
    traceparent: Any = None


class _TraceParams(msgspec.Struct):
    meta: _TraceMeta = msgspec.field(name="_meta", default_factory=_TraceMeta)


class McpCycle(RequestCycle):
    """A request that does not take the fast path, or is refused."""

    allowed_methods: Sequence[str] = ("POST", "GET", "DELETE")
    body: bytes = b""

    def __init__(self, edge: DoorEdge, scope: Any, receive: Receive, send: Send) -> None:
        super().__init__(edge, scope, receive, send)
        self.operation = scope["path"]
        self.receive, self.send = receive, send

    async def answer(self, body: bytes) -> None:
        raise NotImplementedError  # the endpoint does it

    def check_body(self, body: bytes) -> bytes:
        """Raises UnsupportedContentType."""
        content_type = self.head.get(b"content-type")
        if not may_be_json(content_type):
            raise UnsupportedContentType(content_type or "")
        return body

    def continue_trace_of(self, message: McpMessage | None) -> None:
        """The trace that a message names precedes that of its HTTP request."""
        if message is None or b"traceparent" not in bytes(message.params):
            return
        params = wire.decode_or_none(message.params, _TraceParams)
        if params is not None and isinstance(params.meta.traceparent, str):
            self.trace = trace_from_traceparent(params.meta.traceparent) or self.trace

    def render_error(self, error: FabricError | DoorError) -> ErrorReply:
        if isinstance(error, McpRefusal):
            protocol_error, request_id = error.protocol_error, None
        else:
            assert isinstance(error, FabricError)  # noqa: S101  # this door has no other errors of its own
            protocol_error, request_id = to_protocol_error(error, self.trace), wire.find_id(self.body)
        code = error.code if isinstance(error, FabricError) else error.log_code
        body = wire.render_error(protocol_error, request_id)
        return ErrorReply(protocol_error.status, body, code, error.message)


class McpHttpEndpoint:
    """ASGI. `find_server` raises FabricError if there is no server for this caller."""

    def __init__(
        self,
        context: DoorContext,
        sessions: OpenSessions,
        find_server: FindServer,
        find_fast_path: FindFastPath = lambda scope, principal: None,
        serve_direct: ServeDirect | None = None,
    ) -> None:
        self._context = context
        self._edge = DoorEdge(context=context, identify=context.identify, body_limit=context.body_limit)
        self._sessions = sessions
        self._find_server = find_server
        self._serve_direct = serve_direct
        self._find_fast_path = find_fast_path
        self._long_lived: set[asyncio.Task[Any]] = set()
        self._initializing: set[asyncio.Task[Any]] = set()
        self._is_stopping = False

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        head: RequestHead = scope.get(HEAD_KEY) or head_from_scope(scope)
        shortcut: Shortcut | None = scope.get(SHORTCUT_KEY)
        fast_path, cycle, body, questions = None, None, None, None
        try:
            principal = self._context.identify(head.credentials)
            body = take_buffered_body(shortcut, self._context.body_limit.bytes)
            if body is not None and self._serve_direct is not None:
                serving = self._serve_direct(scope, receive, send, DirectRequestContext(principal, head), body)
                if serving is not None:
                    await serving
                    return
            fast_path = self._find_fast_path(scope, principal)
            if body is not None and fast_path is not None and shortcut is not None:
                trusted = fast_path.parse_trusted(scope, head, body, principal)
                if trusted is not None:
                    request, plain_call = trusted
                    if plain_call is not None:
                        await fast_path.answer_plainly(request, plain_call, send, shortcut)
                    else:
                        await fast_path.answer(request, DirectRequestContext(principal, head), send, shortcut)
                    return
                call = fast_path.parse_session_call(scope, head, body)
                session = fast_path.sessions.find(head, call.id, principal) if call is not None else None
                if call is not None and session is not None:
                    questions = await self._answer_in_session(
                        fast_path, session, call.id, call.params, DirectRequestContext(principal, head), send, shortcut
                    )
                    if questions is None:
                        return
            cycle = self._begin_cycle(scope, receive, send, body)  # requests on the fast path do without
            cycle.principal = principal
            await self._answer(cycle, body, shortcut, fast_path, questions)
        except ClientDisconnected:
            (cycle or self._begin_cycle(scope, receive, send, body)).log_disconnect()
        except asyncio.CancelledError:
            if shortcut is None or not shortcut.client_disconnected:
                raise
        except ScopeMissing as refusal:
            await (cycle or self._begin_cycle(scope, receive, send, body)).refuse(refusal.error)
        except McpProtocolError as error:
            await (cycle or self._begin_cycle(scope, receive, send, body)).refuse(McpRefusal(error))
        except Exception as exc:
            if cycle is not None and cycle.has_replied:
                raise
            await (cycle or self._begin_cycle(scope, receive, send, body)).refuse(exc)

    def _begin_cycle(self, scope: Any, receive: Receive, send: Send, body: bytes | None) -> McpCycle:
        cycle = McpCycle(self._edge, scope, receive, send)
        cycle.body = body or b""
        return cycle

    async def _answer(
        self,
        cycle: McpCycle,
        body: bytes | None,
        shortcut: Shortcut | None,
        fast_path: FastPath | None,
        questions: Questions | None,
    ) -> None:
        """`questions`: an agent asked them on the fast path, so the SDK asks the client."""
        scope, receive, send = cycle.scope, cycle.receive, cycle.send
        head, principal = cycle.head, cycle.principal
        cycle.check_method()
        cycle.body = body = cycle.check_body(body) if body is not None else await cycle.receive_body(shortcut)
        message = wire.parse_message(body) if cycle.method == "POST" else None
        cycle.is_call = True  # from here on the calls and the server write the log lines
        direct_context = DirectRequestContext(principal, head, cycle.trace)
        direct_context.wants_all_tools = _wants_all_tools(head)
        fast_request = fast_path.parse(scope, head, message) if fast_path and message else None
        if fast_path and fast_request and fast_path.is_trusted(fast_request):
            answer = partial(fast_path.answer, fast_request, direct_context, send, shortcut)
            await (answer() if shortcut else run_until_disconnect(scope, receive, answer))
            return
        if fast_path and SESSION_HEADER_BYTES in head:
            fast_path.light_sessions.resume(cycle)
        if fast_path and message and questions is None:
            fast_path.sessions.observe_cancellation(head, message, principal)
            session, params = self._find_session(fast_path, head, message, direct_context)
            if shortcut is not None and session is not None and params is not None:
                request_id: Any = message.id  # the id of a request is never null
                questions = await self._answer_in_session(
                    fast_path, session, request_id, params, direct_context, send, shortcut
                )
                if questions is None:
                    return
        cycle.continue_trace_of(message)
        if fast_path and cycle.method == "GET":
            stream_end = await fast_path.light_sessions.serve_stream(cycle, shortcut)
            if stream_end == "ended":
                return
            if stream_end == "handed over":
                cycle.send = _skip_head(cycle.send)
        if fast_path and await fast_path.light_sessions.answer(cycle, message, accepts_json=fits_both(head)):
            return
        if fast_path and message:
            fast_path.check_scope(message, principal)
        request_context = McpRequestContext(principal, cycle.trace, direct_context.delegation_chain)
        request_context.message, request_context.pending_questions = message, questions
        request_context.wants_all_tools = direct_context.wants_all_tools
        server = await self._find_server(scope, principal)
        await hand_over(self._sessions, head, scope["path"], principal, server)
        observed_send = self._observe_reply(fast_path, fast_request, cycle, message)
        replayed = replay_body(body, receive)
        if message is not None and message.method == "initialize":
            await self._run_initialize(partial(self._serve, server, request_context, scope, replayed), observed_send)
            return
        is_long_lived = cycle.method == "GET" or (message is not None and message.method == LISTEN_METHOD)
        await self._serve(server, request_context, scope, replayed, observed_send, is_long_lived=is_long_lived)

    def _find_session(
        self, fast_path: FastPath, head: RequestHead, message: McpMessage, request_context: DirectRequestContext
    ) -> tuple[FastSession | None, HandshakeCallParams | HandshakeListParams | None]:
        """The session and the parameters of a request that may take the fast path."""
        if message.method not in ("tools/call", "tools/list") or not message.is_request:
            return None, None
        session = fast_path.sessions.find(head, message.id, request_context.principal)  # type: ignore[arg-type]  # a request's id is not null
        params = fast_path.parse_in_session(head, message) if session is not None else None
        if session is not None and isinstance(params, HandshakeListParams):
            if session.open_session is None or session.open_session.client_name is None:
                return None, None
            request_context.client_name = session.open_session.client_name
        return session, params

    async def _answer_in_session(
        self,
        fast_path: FastPath,
        session: FastSession,
        request_id: str | int,
        params: HandshakeCallParams | HandshakeListParams,
        request_context: DirectRequestContext,
        send: Send,
        shortcut: Shortcut,
    ) -> Questions | None:
        """The agent's questions, if it asks instead of answering; then the SDK asks the client."""
        open_session = session.open_session
        request_context.can_show_apps = open_session is not None and open_session.can_show_apps
        session.start_request(request_id, asyncio.current_task())  # type: ignore[arg-type]  # there is one
        try:
            return await fast_path.answer_in_session(
                request_id, params, request_context, send, shortcut, session.pop_cancellation
            )
        except asyncio.CancelledError:
            if not shortcut.client_disconnected:
                raise
            return None
        finally:
            session.finish_request(request_id, time.monotonic())

    async def _serve(
        self,
        server: McpRequestServer,
        request_context: McpRequestContext,
        scope: Any,
        receive: Receive,
        send: Send,
        *,
        is_long_lived: bool = False,
    ) -> None:
        """`is_long_lived`: a stream that waits for news. Raises RateLimited; then nothing has been sent."""
        caller = request_context.principal.principal_id
        if is_long_lived:
            self._context.acquire_stream(caller)
        work = server.serve(scope, receive, _flush_stream_head(send), request_context)
        # In a session, a broken connection cancels nothing: the client resumes the stream, or cancels by notification.
        head = head_from_scope(scope)
        is_resumable = SESSION_HEADER_BYTES in head and not is_stateless_request(head)
        try:
            await (self._run_long_lived(work, send) if scope["method"] == "GET" else work)
        finally:
            if not is_resumable:
                request_context.cancel_work()
            if is_long_lived:
                self._context.release_stream(caller)

    def _observe_reply(
        self,
        fast_path: FastPath | None,
        fast_request: FastRequest | None,
        cycle: McpCycle,
        message: McpMessage | None,
    ) -> Send:
        """Add the trace to a reply. What the SDK accepts now may take the fast path from now on."""
        request_message = message
        is_learning = fast_path is not None and (fast_request is not None or SESSION_HEADER_BYTES in cycle.head)

        async def observe(message: Any) -> None:
            if message["type"] == "http.response.start":
                cycle.has_replied = True
                if request_message is not None and request_message.method in REPLAYED and message["status"] == 200:
                    self._note_request(cycle, request_message)
                if fast_path is not None and is_learning and cycle.method != "GET":
                    fast_path.sessions.observe_reply(cycle.head, request_message, cycle.principal, message["status"])
                    if fast_request is not None and message["status"] == 200:
                        fast_path.trust(fast_request)
                if all(name.lower() != b"x-trace-id" for name, _ in message["headers"]):
                    message = {**message, "headers": [*message["headers"], *cycle.build_headers()]}
            await cycle.send(message)

        return observe

    def _note_request(self, cycle: McpCycle, message: McpMessage) -> None:
        name = cycle.head.get(SESSION_HEADER_BYTES)
        session = None if name is None else self._sessions.find(name)
        if session is not None and session.origin is not None:
            session.origin.note_request(message, cycle.body)

    async def _run_initialize(self, serve: Callable[[Send], Coroutine[Any, Any, None]], send: Send) -> None:
        """A client may disconnect as soon as it knows its session id; the session is opened all the same."""
        has_started = False

        async def track_start(message: Any) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        task = asyncio.ensure_future(serve(track_start))
        self._initializing.add(task)
        task.add_done_callback(self._initializing.discard)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            if not has_started:
                task.cancel()
            raise
        await task

    def stop(self) -> None:
        """End the streams that wait for news, for which the node would wait; running calls may finish."""
        self._is_stopping = True
        for task in self._long_lived:
            task.cancel()

    async def _run_long_lived(self, work: Awaitable[None], send: Send) -> None:
        task = asyncio.ensure_future(work)
        self._long_lived.add(task)
        if self._is_stopping:
            task.cancel()
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            self._long_lived.discard(task)
        if task.cancelled():
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            task.result()


def _wants_all_tools(head: RequestHead) -> bool:
    return head.get(b"x-fabric-tools") == "all"


def _flush_stream_head(send: Send) -> Send:
    """Send the head of a stream at once; our server would keep it for the first event, which may be long in coming."""

    async def send_and_flush(message: Any) -> None:
        await send(message)
        if message["type"] == "http.response.start" and _is_event_stream(message["headers"]):
            await send({"type": "http.response.body", "body": b"", "more_body": True})

    return send_and_flush


def _skip_head(send: Send) -> Send:
    """For a reply of which the head has been sent already. One that is refused now has no more to say."""
    is_refused = False

    async def send_rest(message: Any) -> None:
        nonlocal is_refused
        if message["type"] == "http.response.start":
            is_refused = message["status"] != 200
        else:
            await send({**message, "body": b""} if is_refused else message)

    return send_rest


def _is_event_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)


SUBPROTOCOL = "mcp"


class McpWebSocketEndpoint:
    def __init__(self, context: DoorContext, get_server: Callable[[], Awaitable[McpServer]]) -> None:
        self._context = context
        self._get_server = get_server

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await receive()  # the handshake
        head = head_from_scope(scope)
        try:
            principal, chain = self._context.identify(head.credentials), head.delegation_chain
            note_transport("websocket")
            self._context.acquire_stream(principal.principal_id)
        except FabricError as error:
            trace, status = head.trace or new_trace(), http_status_of(error)
            headers = [(b"x-trace-id", trace.trace_id.encode()), *build_error_headers(error, status)]
            await self._context.failed_attempts.delay(error, client_address(scope))
            await reject_handshake(send, status, msgspec.json.encode(to_error_body(error, trace)), headers)
            self._context.log(trace, scope["path"], code=error.code, message=error.message, seconds=0.0, status=status)
            return
        try:
            server = await self._get_server()
            offered = scope.get("subprotocols") or ()
            await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL if SUBPROTOCOL in offered else None})
            channel = _TextChannel(receive, send, self._context, head)
            request_context = McpConnectionContext(principal, head.trace, chain)
            request_context.wants_all_tools = _wants_all_tools(head)
            await server.run_text_session(channel.read_texts(), channel.send_text, request_context)
        finally:
            self._context.release_stream(principal.principal_id)


class _TextChannel:
    """The two directions of one connection, which ends when its credentials are no longer valid."""

    def __init__(self, receive: Receive, send: Send, context: DoorContext, head: RequestHead) -> None:
        self._receive = receive
        self._send = send
        self._context = context
        self._credentials = head.credentials
        self._is_open = True

    async def read_texts(self) -> AsyncIterator[str | bytes]:
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self._is_open = False
                return
            try:
                await self._context.verify_credentials(self._credentials)
                self._context.identify(self._credentials)
            except FabricError as error:
                self._is_open = False
                await self._send({"type": "websocket.close", "code": 1008, "reason": error.code})
                return
            yield message.get("text") or message.get("bytes") or b""

    async def send_text(self, text: str) -> None:
        """Text for a client that has disconnected is dropped."""
        if self._is_open:
            try:
                await self._send({"type": "websocket.send", "text": text})
            except (OSError, RuntimeError):
                self._is_open = False
