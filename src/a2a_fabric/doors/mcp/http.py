"""The Streamable HTTP endpoint: identifies the caller, tries the fast path, else calls a server or a proxy."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Protocol

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import FabricError, InternalError, RateLimited
from a2a_fabric.core.trace import Trace, current_trace, new_trace
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.edge import (
    SHORTCUT_KEY,
    ClientDisconnected,
    RequestHead,
    Shortcut,
    head_from_scope,
    may_be_json,
    read_body,
    replay_body,
    run_until_disconnect,
    take_buffered_body,
)
from a2a_fabric.doors.mcp.errors import to_protocol_error
from a2a_fabric.doors.mcp.fast_path import FastPath, FastRequest
from a2a_fabric.doors.mcp.request_context import DirectRequestContext, McpRequestContext
from a2a_fabric.doors.mcp.sessions import FastSessions
from a2a_fabric.protocols import jsonrpc
from a2a_fabric.protocols.mcp import frames
from a2a_fabric.protocols.mcp.frames import McpMessage, McpProtocolError
from a2a_fabric.protocols.mcp.versions import LISTEN_METHOD, SESSION_HEADER_BYTES


class McpRequestServer(Protocol):
    """A room, or the way through to an agent."""

    async def serve(self, scope: Any, receive: Receive, send: Send, request_context: McpRequestContext) -> None: ...


FindServer = Callable[[Any, Principal], Awaitable[McpRequestServer]]

_log = logging.getLogger(__name__)


class McpHttpEndpoint:
    """ASGI. `enter` finds the room for a scope; it raises FabricError if there is none for this caller."""

    def __init__(
        self,
        context: DoorContext,
        find_server: FindServer,
        fast_path: FastPath | None = None,
        fast_sessions: FastSessions | None = None,
    ) -> None:
        self._context = context
        self._find_server = find_server
        self._fast_path = fast_path
        self._fast_sessions = fast_sessions or FastSessions(1800.0)
        self._long_lived: set[asyncio.Task[Any]] = set()
        self._initializing: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        head = head_from_scope(scope)
        shortcut: Shortcut | None = scope.get(SHORTCUT_KEY)
        body: bytes | None = None
        try:
            principal = self._context.identify(head.credentials)
            body = take_buffered_body(shortcut, self._context.body_bytes)
            if body is None:
                body = await read_body(receive, head, self._context.body_bytes)
            if (
                self._fast_path
                and shortcut
                and (trusted := self._fast_path.parse_trusted(scope, head, body)) is not None
            ):
                await self._fast_path.answer(trusted, DirectRequestContext(principal, head), send, shortcut)
                return
            if scope["method"] == "POST" and not may_be_json(head.get(b"content-type")):
                raise McpProtocolError(jsonrpc.INVALID_REQUEST, "The content type must be application/json")
            message = frames.parse_message(body) if scope["method"] == "POST" else None
            fast_request = self._fast_path.parse(scope, head, message) if self._fast_path and message else None
            if self._fast_path and fast_request and self._fast_path.is_trusted(fast_request):
                answer = partial(
                    self._fast_path.answer, fast_request, DirectRequestContext(principal, head), send, shortcut
                )
                await (answer() if shortcut else run_until_disconnect(scope, receive, answer))
                return
            direct_context = DirectRequestContext(principal, head)
            if (
                self._fast_path
                and message
                and await self._answer_in_session(self._fast_path, head, message, direct_context, scope, send)
            ):
                return
            request_context = McpRequestContext(principal, head.trace, direct_context.delegation_chain)
            request_context.pending_questions = direct_context.pending_questions
            server = await self._find_server(scope, principal)
        except ClientDisconnected:
            return
        except asyncio.CancelledError:
            if shortcut is None or not shortcut.client_disconnected:
                raise
            return
        except McpProtocolError as error:  # what is no message has no id either
            await self._send_refusal(error, scope, head, None, send)
            return
        except (FabricError, TimeoutError) as error:
            await self._send_refusal(error, scope, head, frames.find_id(body or b""), send)  # none of a body not read
            return
        except Exception as exc:
            await self._send_internal_error(exc, scope, head, frames.find_id(body or b""), send)
            return
        observed_send = (
            send if scope["method"] == "GET" else self._observe_reply(fast_request, head, message, principal, send)
        )
        try:
            if message is not None and message.method == "initialize":
                await self._run_initialize(
                    partial(self._serve, server, request_context, scope, replay_body(body, receive)), observed_send
                )
            else:
                is_long_lived = scope["method"] == "GET" or (message is not None and message.method == LISTEN_METHOD)
                await self._serve(
                    server,
                    request_context,
                    scope,
                    replay_body(body, receive),
                    observed_send,
                    is_long_lived=is_long_lived,
                )
        except RateLimited as error:  # before anything was sent
            await self._send_refusal(error, scope, head, None if message is None else message.id, send)

    async def _answer_in_session(
        self,
        fast_path: FastPath,
        head: RequestHead,
        message: McpMessage,
        request_context: DirectRequestContext,
        scope: Any,
        send: Send,
    ) -> bool:
        """Whether the call took the short way to its end. A question that came up instead is the SDK's to put."""
        self._fast_sessions.observe_cancellation(head, message, request_context.principal)
        shortcut: Shortcut | None = scope.get(SHORTCUT_KEY)
        fast_session = (
            self._fast_sessions.find(head, message, request_context.principal) if shortcut is not None else None
        )
        params = fast_path.parse_in_session(head, message) if fast_session is not None else None
        if shortcut is None or fast_session is None or params is None:
            return False
        request_id: Any = message.id  # a request's is no null
        fast_session.start_request(request_id, asyncio.current_task())  # type: ignore[arg-type]  # we run in one
        try:
            request_context.pending_questions = await fast_path.answer_in_session(
                request_id, params, request_context, send, shortcut
            )
        except asyncio.CancelledError:
            if shortcut.client_disconnected:
                return True
            if not fast_session.pop_cancellation(request_id):
                raise
            fast_session.running[request_id].uncancel()
            await self._send_error(
                McpProtocolError(frames.REQUEST_CANCELLED, "Request cancelled", status=200), request_id, send
            )
        finally:
            fast_session.finish_request(request_id, time.monotonic())
        return request_context.pending_questions is None

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
        """`is_stream` if it stands and waits for news. Raises RateLimited; then nothing has been sent."""
        caller = request_context.principal.principal_id
        if is_long_lived:
            self._context.acquire_stream(caller)
        work = server.serve(scope, receive, _flush_stream_head(send), request_context)
        try:
            await (self._run_long_lived(work, send) if scope["method"] == "GET" else work)
        finally:
            request_context.cancel_work()
            if is_long_lived:
                self._context.release_stream(caller)

    def _observe_reply(
        self,
        fast_request: FastRequest | None,
        head: RequestHead,
        message: McpMessage | None,
        principal: Principal,
        send: Send,
    ) -> Send:
        """What the SDK takes now may go the short way from now on."""
        if self._fast_path is None or (fast_request is None and SESSION_HEADER_BYTES not in head):
            return send
        fast_path, fast_sessions, request_message = self._fast_path, self._fast_sessions, message

        async def observe(message: Any) -> None:
            if message["type"] == "http.response.start":
                fast_sessions.observe_reply(head, request_message, principal, message["status"])
                if fast_request is not None and message["status"] == 200:
                    fast_path.trust(fast_request)
            await send(message)

        return observe

    async def _run_initialize(self, serve: Callable[[Send], Coroutine[Any, Any, None]], send: Send) -> None:
        """Clients may leave as soon as they have heard which session is theirs: it is opened all the same."""
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
        """Streams that wait for news would hold up the end of the node; calls that run may finish."""
        for task in self._long_lived:
            task.cancel()

    async def _run_long_lived(self, work: Awaitable[None], send: Send) -> None:
        task = asyncio.ensure_future(work)
        self._long_lived.add(task)
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

    async def _send_internal_error(
        self, exc: Exception, scope: Any, head: RequestHead, request_id: Any, send: Send
    ) -> None:
        """Our own mistake: told with the trace under which the log has the rest."""
        trace = head.trace or new_trace()
        token = current_trace.set(trace)
        _log.error("a request to %s failed inside the gateway", scope["path"], exc_info=exc)
        current_trace.reset(token)
        error = InternalError()
        await self._send_error(to_protocol_error(error, trace), request_id, send)
        self._context.log(trace, scope["path"], code=error.code, message=error.message, seconds=0.0, status=500)

    async def _send_refusal(
        self, refusal: Exception, scope: Any, head: RequestHead, request_id: Any, send: Send
    ) -> None:
        trace = head.trace or new_trace()
        error = refusal if isinstance(refusal, McpProtocolError) else _to_rpc_error(refusal, trace)
        await self._send_error(
            error, request_id, send, refusal.retry_after if isinstance(refusal, RateLimited) else None
        )
        code = refusal.code if isinstance(refusal, FabricError) else "BAD_INPUT"
        self._context.log(trace, scope["path"], code=code, message=error.message, seconds=0.0, status=error.status)

    async def _send_error(
        self, error: McpProtocolError, request_id: Any, send: Send, retry_after: float | None = None
    ) -> None:
        body = frames.render_error(error, request_id)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if error.status == 401:
            headers.append((b"www-authenticate", b'Bearer realm="fabric"'))
        if retry_after is not None:
            headers.append((b"retry-after", b"%d" % max(1, math.ceil(retry_after))))
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _to_rpc_error(refusal: Exception, trace: Trace) -> McpProtocolError:
    if not isinstance(refusal, FabricError):
        return McpProtocolError(jsonrpc.INVALID_REQUEST, "The request body did not arrive in time", status=408)
    return to_protocol_error(refusal, trace)


def _flush_stream_head(send: Send) -> Send:
    """The head of a stream leaves at once; our server would keep it for the first event, which may be long coming."""

    async def send_and_flush(message: Any) -> None:
        await send(message)
        if message["type"] == "http.response.start" and _is_event_stream(message["headers"]):
            await send({"type": "http.response.body", "body": b"", "more_body": True})

    return send_and_flush


def _is_event_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)
