"""`POST /mcp/call`, the hot path: a request is decoded once, a reply encoded once, and no framework is in between.

An event stream is opened by the first event, kept alive with comments while the agent is silent, and closed by
`final`. `emit` waits for the client: a client that reads slowly slows its own agent only."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable
from functools import partial
from types import TracebackType
from typing import Any

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import BadInput, FabricError, InternalError, RateLimited
from a2a_fabric.core.events import Event
from a2a_fabric.core.json_depth import SHALLOW
from a2a_fabric.core.pipeline import ignore_event
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import Trace, continue_trace, current_trace, new_trace
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.edge import (
    SHORTCUT_KEY,
    ClientDisconnected,
    RequestHead,
    Shortcut,
    check_json_depth,
    head_from_scope,
    may_be_json,
    read_body,
    run_until_disconnect,
    take_buffered_body,
)
from a2a_fabric.doors.fabric import envelope
from a2a_fabric.operations import OperationRequest, PreparedOperation, TraceRef

_EVENT_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class CallEventStream:
    """`after` is given for streams that can be read from any number: then the ids are the events' own numbers."""

    def __init__(
        self,
        send: Send,
        shortcut: Shortcut | None,
        trace: Trace,
        context: DoorContext,
        principal_id: str | None,
        keep_alive: float,
        after: int | None = None,
    ) -> None:
        self.is_open = False
        self._send = send
        self._shortcut = shortcut
        self._trace = envelope.encode_trace(trace)
        self._encoded_trace = bytes(self._trace)
        self._context = context
        self._principal_id = principal_id
        self._keep_alive_interval = keep_alive
        self._number = after or 0
        self._is_resumable = after is not None
        self._timer: asyncio.TimerHandle | None = None
        self._keep_alive_task: asyncio.Task[None] | None = None
        self._resolved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resolved.set_result(None)

    async def __aenter__(self) -> None:
        """Raises RateLimited."""
        self._context.acquire_stream(self._principal_id)

    async def __aexit__(self, kind: type[BaseException] | None, exc: object, tb: TracebackType | None) -> None:
        self._context.release_stream(self._principal_id)
        if self._timer is not None:
            self._timer.cancel()
        if self._keep_alive_task is not None:
            self._keep_alive_task.cancel()

    async def open(self) -> None:
        """Now, not with the first event: it may be long in coming."""
        await self._write(b": here\n\n", more=True)

    def emit(self, event: Event) -> Awaitable[None]:
        self._number = event.number or self._number + 1
        frame = envelope.encode_event_frame(event, self._encoded_trace, self._number)
        if self.is_open and self._shortcut is not None and self._shortcut.write(frame):
            return self._resolved  # most events leave at once: no coroutine for each
        return self._write(frame, more=True)

    async def close_with(self, outcome: Result | FabricError) -> None:
        """The call's deadline is over by now, so a client that reads nothing is waited for here; then ClientGone."""
        number = self._number if self._is_resumable else self._number + 1  # `final` is not in the log
        frame = envelope.encode_frame(envelope.build_final_body(outcome, self._trace), number)
        try:
            async with asyncio.timeout(2 * self._keep_alive_interval):
                await self._write(frame, more=False)
        except TimeoutError as exc:
            raise ClientDisconnected from exc

    async def _write(self, frame: bytes, *, more: bool) -> None:
        if not self.is_open:
            self.is_open = True
            self._schedule_keep_alive()
            await self._send({"type": "http.response.start", "status": 200, "headers": _EVENT_STREAM_HEADERS})
        await self._send({"type": "http.response.body", "body": frame, "more_body": more})

    def _schedule_keep_alive(self) -> None:
        """Proxies close silent connections; a comment now and then keeps this one."""
        self._timer = asyncio.get_running_loop().call_later(self._keep_alive_interval, self._start_keep_alive)

    def _start_keep_alive(self) -> None:
        self._keep_alive_task = asyncio.ensure_future(self._send_keep_alive())

    async def _send_keep_alive(self) -> None:
        await self._send({"type": "http.response.body", "body": b": still here\n\n", "more_body": True})
        self._schedule_keep_alive()


_log = logging.getLogger(__name__)

# Replies to these also carry their keys beside the envelope (older clients read them there).
_FLATTENED_OPERATIONS = frozenset(
    {
        "fabric.agent.list",
        "fabric.agent.describe",
        "fabric.route.preview",
        "fabric.health",
        "fabric.tool.list",
        "fabric.tool.describe",
    }
)


class FabricCallEndpoint:
    def __init__(self, context: DoorContext, error_format: envelope.ErrorFormat, keep_alive: float) -> None:
        self._context = context
        self._error_format: envelope.ErrorFormat = error_format
        self._keep_alive = keep_alive
        self._decoder = msgspec.json.Decoder(envelope.FabricRequest)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await _send_json(
                send, 405, envelope.encode_error(BadInput("Use POST"), new_trace(), self._error_format), _ALLOW_POST
            )
            return
        shortcut: Shortcut | None = scope.get(SHORTCUT_KEY)
        cycle = _FabricRequestCycle(
            self._context, head_from_scope(scope), shortcut, self._error_format, self._keep_alive
        )
        try:
            cycle.principal = self._context.identify(cycle.head.credentials)  # before the body is read
            body = take_buffered_body(shortcut, self._context.body_bytes)
            if body is None:
                body = await read_body(receive, cycle.head, self._context.body_bytes)
            prepared = cycle.parse_request(body, self._decoder)
            if shortcut is None:
                await run_until_disconnect(scope, receive, partial(cycle.answer, prepared, send))
            elif prepared.stream:
                await cycle.answer(prepared, send)
            else:
                cycle.reply_by_shortcut(await prepared.run(cycle.build_request(), ignore_event), shortcut)
        except ClientDisconnected:
            return
        except asyncio.CancelledError:
            if shortcut is None or not shortcut.client_disconnected:
                raise
        except FabricError as error:
            await cycle.send_error(error, send)
        except TimeoutError:
            await cycle.send_error(BadInput("The request body did not arrive in time"), send, status=408)
        except Exception:
            current_trace.set(cycle.trace)
            _log.exception("a request failed inside the gateway")
            await cycle.send_error(InternalError(), send)


class _FabricRequestCycle:
    """One request and its reply."""

    __slots__ = (
        "_context",
        "_error_format",
        "_is_call",
        "_keep_alive",
        "_name",
        "_replying",
        "_shortcut",
        "_started",
        "_status",
        "head",
        "principal",
        "trace",
    )

    def __init__(
        self,
        context: DoorContext,
        head: RequestHead,
        shortcut: Shortcut | None,
        error_format: envelope.ErrorFormat,
        keep_alive: float,
    ) -> None:
        self.head = head
        self._shortcut = shortcut
        self.principal: Principal
        self.trace: Trace = new_trace()
        self._context = context
        self._error_format: envelope.ErrorFormat = error_format
        self._keep_alive = keep_alive
        self._started = time.perf_counter()
        self._name = "?"
        self._is_call = False
        self._replying = False
        self._status: int | None = None

    def parse_request(self, body: bytes, decoder: msgspec.json.Decoder[envelope.FabricRequest]) -> PreparedOperation:
        """Shape first, then the trace, then the arguments."""
        self._status = 400
        request = self._decode_request(body, decoder)
        self._status = None
        self._name = request.name
        if self.head.has_journey:
            self.trace = self.head.trace or self.trace
        prepared = self._context.operations.prepare(request.name, request.arguments, self.principal)
        if prepared.trace is not None:
            self.trace = trace_from_ref(prepared.trace)
        self._is_call = prepared.is_call
        return prepared

    def _decode_request(
        self, body: bytes, decoder: msgspec.json.Decoder[envelope.FabricRequest]
    ) -> envelope.FabricRequest:
        wrong_type = self.head.derived.get("fabric: no json")
        if wrong_type is None:
            wrong_type = self.head.derived["fabric: no json"] = _find_wrong_type(self.head.get(b"content-type"))
        if wrong_type:
            self._status = 415
            raise BadInput(f"The content type must be application/json, not '{wrong_type[:80]}'")
        if len(body) > SHALLOW:
            check_json_depth(body)
        try:
            request = decoder.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
            raise BadInput(f"The request is not a Fabric call: {exc}"[:300]) from exc
        if bytes(request.arguments)[:1] != b"{":
            raise BadInput("The request is not a Fabric call: `arguments` must be an object", field="arguments")
        return request

    def answer(self, prepared: PreparedOperation, send: Send) -> Awaitable[None]:
        sends_events = prepared.stream and _accepts_events(self.head.get(b"accept"))
        return self._answer_with_events(prepared, send) if sends_events else self._answer_whole(prepared, send)

    async def _answer_whole(self, prepared: PreparedOperation, send: Send) -> None:
        result = await prepared.run(self.build_request(), ignore_event)
        if self._shortcut is not None:
            self.reply_by_shortcut(result, self._shortcut)
            return
        body = self._encode_reply(result)
        await _send_json(send, 200, body)
        self._log_request(None, 200)

    def build_request(self) -> OperationRequest:
        if not self.head.has_journey:
            return OperationRequest(trace=self.trace, principal=self.principal)
        return OperationRequest(trace=self.trace, principal=self.principal, delegation_chain=self.head.delegation_chain)

    def reply_by_shortcut(self, result: Result, shortcut: Shortcut) -> None:
        shortcut.reply(200, _JSON_HEADER_LINE, self._encode_reply(result))
        if not self._is_call:
            self._log_request(None, 200)

    def _encode_reply(self, result: Result) -> bytes:
        """Raises UpstreamFailed; after this there is no way back to another answer."""
        body = envelope.encode_reply(result, self.trace, flatten=self._name in _FLATTENED_OPERATIONS)
        self._replying = True
        return body

    async def _answer_with_events(self, prepared: PreparedOperation, send: Send) -> None:
        after = prepared.after if prepared.after is None else self.head.last_event_id or prepared.after
        chain = self.head.delegation_chain
        request = OperationRequest(
            trace=self.trace, principal=self.principal, stream=True, after=after, delegation_chain=chain
        )
        stream = CallEventStream(
            send, self._shortcut, self.trace, self._context, self.principal.principal_id, self._keep_alive, after
        )
        async with stream:
            try:
                if after is not None:
                    await stream.open()
                await stream.close_with(await prepared.run(request, stream.emit))
            except ClientDisconnected:
                raise
            except FabricError as error:
                if not stream.is_open and envelope.find_http_status(error) != 200:
                    raise
                await stream.close_with(error)
                self._log_request(error, 200)
            except Exception:
                if not stream.is_open:
                    raise
                current_trace.set(self.trace)
                _log.exception("a stream failed inside the gateway")
                await stream.close_with(InternalError())
            else:
                self._log_request(None, 200)

    async def send_error(self, error: FabricError, send: Send, status: int | None = None) -> None:
        if self._replying:
            return
        status = status or self._status or envelope.find_http_status(error)
        headers = build_error_headers(error, status)
        await _send_json(send, status, envelope.encode_error(error, self.trace, self._choose_error_format()), headers)
        self._log_request(error, status)

    def _choose_error_format(self) -> envelope.ErrorFormat:
        match self.head.error_format:
            case "string" | "object" as requested:
                return requested
        return self._error_format

    def _log_request(self, error: FabricError | None, status: int) -> None:
        is_logged = error.is_logged if error is not None else self._is_call
        if not is_logged:
            code, message = (error.code, error.message) if error else (None, None)
            seconds = time.perf_counter() - self._started
            self._context.log(self.trace, self._name, code=code, message=message, seconds=seconds, status=status)


def trace_from_ref(ref: TraceRef) -> Trace:
    try:
        return continue_trace(ref.trace_id, ref.span_id or ref.parent_span_id)
    except ValueError as exc:
        raise BadInput(f"Bad trace: {exc}", field="trace") from exc


def _find_wrong_type(content_type: str | None) -> str:
    """A type that is not JSON; nothing, if it is or may be."""
    return "" if content_type is None or may_be_json(content_type) else content_type or "nothing"


def _accepts_events(accept: str | None) -> bool:
    return accept is None or "text/event-stream" in accept or "*/*" in accept or "text/*" in accept


_JSON_HEADER = (b"content-type", b"application/json")
_JSON_HEADER_LINE = b"content-type: application/json\r\n"
_ALLOW_POST = [(b"allow", b"POST")]


def build_error_headers(error: FabricError, status: int) -> list[tuple[bytes, bytes]]:
    if status == 401:
        return [(b"www-authenticate", b'Bearer realm="fabric"')]
    if isinstance(error, RateLimited):
        return [(b"retry-after", str(max(1, round(error.retry_after + 0.499))).encode())]
    return []


async def _send_json(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] = []) -> None:  # noqa: B006
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [_JSON_HEADER, length, *headers]})
    await send({"type": "http.response.body", "body": body})
