"""`POST /mcp/call`, the hot path, and the envelope of Fabric's requests, replies, errors and events.

A request is decoded once, a reply encoded once, and no framework is in between. An event stream is opened by the first
event, kept alive with comments while the agent is silent, and closed by `final`. `emit` waits for the client: a client
that reads slowly slows its own agent only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Literal

import msgspec

from a2a_fabric.core import errors
from a2a_fabric.core.call import DELIVERED, ignore_event
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.json_text import SHORT, find_json_problem
from a2a_fabric.core.propagation import Trace
from a2a_fabric.core.result import EVENT_KINDS, Event, Result
from a2a_fabric.doors.context import DoorContext, Send
from a2a_fabric.doors.edge import (
    EVENT_STREAM_HEADERS,
    JSON_ENCODE_ERRORS,
    KEEPALIVE,
    QUIET_HEAD_DELAY,
    SHORTCUT_KEY,
    ClientDisconnected,
    DoorEdge,
    DoorError,
    ErrorReply,
    HttpReply,
    RefusedRequest,
    RequestCycle,
    Shortcut,
    UnsupportedContentType,
    accepts_events,
    may_be_json,
    run_until_disconnect,
    take_buffered_body,
    to_encodable_text,
)
from a2a_fabric.operations import OperationRequest, PreparedOperation

ErrorFormat = Literal["string", "object"]

_encode = msgspec.json.Encoder().encode
# The parts of an event's frame before and after its number.
_FRAME_STARTS = {
    kind: (b"event: %b\nid: " % kind.encode(), b'\ndata: {"event":"%b","data":' % kind.encode()) for kind in EVENT_KINDS
}

# What an agent or tool did or refused is a 200 with `ok: false`. These errors concern the request itself.
_HTTP_STATUS: dict[type[FabricError], int] = {
    errors.Unauthenticated: 401,
    errors.AuthInvalid: 401,
    errors.AuthExpired: 401,
    errors.PayloadTooLarge: 413,
    errors.RateLimited: 429,
    errors.AgentBusy: 429,
    errors.InternalError: 500,
}


class FabricRequest(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class FabricSocketRequest(msgspec.Struct):
    """One message of a WebSocket: a request with an id that the client chose, or the cancellation of one."""

    name: str = ""
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    id: str | int | None = None
    cancel: bool = False


class SignedTrace(Trace, frozen=True, kw_only=True):
    """A trace with the node's signature of the reply that it is in."""

    signature: str

    @classmethod
    def from_trace(cls, trace: Trace, signature: str) -> SignedTrace:
        return cls(**msgspec.structs.asdict(trace), signature=signature)


class _SuccessEnvelope(msgspec.Struct):
    ok: bool
    trace: Trace
    result: dict[str, Any]
    error: None = None


def encode_reply(result: Result, trace: Trace, *, flatten: bool) -> bytes:
    """`flatten` also puts the result's keys beside the envelope's, where older clients look for them."""
    extras = _collect_extras(result)
    if not flatten and not extras:
        return encode_json(_SuccessEnvelope(True, trace, result.data))
    envelope = {"ok": True, "trace": trace, "result": result.data, "error": None, **extras}
    return encode_json({**result.data, **envelope} if flatten else envelope)


def _collect_extras(result: Result) -> dict[str, Any]:
    """What a result holds besides its JSON; most results hold nothing else."""
    if result.fallback is None and not result.parts and result.job_id is None and not result.notes:
        return {}
    candidates = {"parts": result.parts, "notes": result.notes, "fallback": result.fallback, "job_id": result.job_id}
    return {name: value for name, value in candidates.items() if value}


def encode_json(value: Any) -> bytes:
    """Raises UpstreamFailed: agents in this process may answer with what JSON cannot hold."""
    try:
        return _encode(value)
    except JSON_ENCODE_ERRORS as exc:
        raise _not_json(exc) from exc


def _not_json(exc: Exception) -> errors.UpstreamFailed:
    return errors.UpstreamFailed(f"The agent's answer is not JSON: {exc}"[:300])


def encode_error(error: FabricError, trace: Trace, error_format: ErrorFormat, *, with_detail: bool = False) -> bytes:
    """`with_detail` repeats the sentence under `detail`, where some clients of single endpoints look for it."""
    error = _to_encodable_error(error)
    return _encode(
        {
            "ok": False,
            "trace": trace,
            "result": None,
            "error": error.message if error_format == "string" else build_error_object(error),
            "error_code": error.code,
            "error_details": error.details,
            **({"detail": error.message, "success": False} if with_detail else {}),
        }
    )


def _to_encodable_error(error: FabricError) -> FabricError:
    """Agents in this process may put anything into an error; details that are not JSON are left out."""
    try:
        _encode(build_error_object(error))
    except JSON_ENCODE_ERRORS:
        return errors.error_from_code(error.code, to_encodable_text(error.message))
    return error


def build_error_object(error: FabricError) -> dict[str, Any]:
    return {"code": error.code, "message": error.message, "details": error.details}


def find_envelope_status(error: FabricError) -> int:
    if isinstance(error, RefusedRequest):
        return error.status
    if isinstance(error, errors.Forbidden) and "tool_error" not in error.details:
        return 403
    return _HTTP_STATUS.get(type(error), 200)


def build_event_body(event: Event, trace: Trace | msgspec.Raw) -> dict[str, Any]:
    """The trace is inside `data`, as the protocol says, and beside it, where clients look for it.

    An event from the log of a job also has its number and the time at which it was written.
    """
    body: dict[str, Any] = {"event": event.kind, "data": {**event.data, "trace": trace}, "trace": trace}
    return {**body, "number": event.number, "at": event.at} if event.number else body


def build_final_body(outcome: Result | FabricError, trace: Trace | msgspec.Raw) -> dict[str, Any]:
    """The last event of a stream; `answer` and `citations` are also at the top level, for older clients."""
    if isinstance(outcome, FabricError):
        outcome = _to_encodable_error(outcome)
        data: dict[str, Any] = {"ok": False, "result": None, "error": build_error_object(outcome), "trace": trace}
    else:
        data = {"ok": True, "result": outcome.data, "trace": trace}
        data |= {key: outcome.data[key] for key in ("answer", "citations") if key in outcome.data}
        data |= _collect_extras(outcome)
    return {"event": "final", "data": data, "trace": trace}


class EventFrames:
    """Encodes the events of one stream, as `build_event_body` says."""

    def __init__(self, trace: Trace) -> None:
        self.trace = msgspec.Raw(encode_json(trace))  # encoded once for all events
        self._end = b',"trace":%b},"trace":%b}\n\n' % (bytes(self.trace), bytes(self.trace))

    def encode(self, event: Event, number: int) -> bytes:
        """Most frames need no dict, and are joined from parts, which is cheaper than formatting them."""
        before_number, after_number = _FRAME_STARTS[event.kind]
        try:
            data = _encode(event.data)
        except JSON_ENCODE_ERRORS as exc:
            raise _not_json(exc) from exc
        if len(data) == 2 or "trace" in event.data or event.number:
            return encode_frame(build_event_body(event, self.trace), number)
        return b"".join((before_number, str(number).encode(), after_number, data[:-1], self._end))


def encode_frame(body: dict[str, Any], number: int) -> bytes:
    """A server-sent event. Its name is also inside the JSON, because older clients read only `data`."""
    return b"event: %b\nid: %d\ndata: %b\n\n" % (body["event"].encode(), number, encode_json(body))


# Replies to these also have their keys beside the envelope, where older clients read them.
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
_REPLY_HEAD = b"content-type: application/json\r\nx-trace-id: %b\r\n"
_decoder = msgspec.json.Decoder(FabricRequest)


class FabricDoorState(DoorEdge, frozen=True, kw_only=True):
    error_format: ErrorFormat


class FabricCycle(RequestCycle):
    """A request whose errors are told in the Fabric envelope."""

    edge: FabricDoorState

    def render_error(self, error: FabricError | DoorError) -> ErrorReply:
        assert isinstance(error, FabricError)  # noqa: S101  # this door has no errors of its own
        return ErrorReply(self.find_status(error), self.encode_error(error), error.code, error.message)

    def find_status(self, error: FabricError) -> int:
        return find_envelope_status(error)

    def encode_error(self, error: FabricError) -> bytes:
        return encode_error(error, self.trace, self._choose_error_format())

    def _choose_error_format(self) -> ErrorFormat:
        match self.head.error_format:
            case "string" | "object" as requested:
                return requested
        return self.edge.error_format


class CallEventStream:
    """The event stream of one call; its head leaves with the first event.

    `after` is given for streams that can be read from any number: then the ids are the events' own numbers, and the
    head leaves after a moment also without an event, which may be long in coming.
    """

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
        self._headers = [*EVENT_STREAM_HEADERS, (b"x-trace-id", trace.trace_id.encode())]
        self._frames = EventFrames(trace)
        self._context = context
        self._principal_id = principal_id
        self._keep_alive_interval = keep_alive
        self._number = after or 0
        self._is_resumable = after is not None
        self._timer: asyncio.TimerHandle | None = None
        self._keep_alive_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        """Raises RateLimited."""
        self._context.acquire_stream(self._principal_id)
        if self._is_resumable:
            self._schedule_keep_alive(QUIET_HEAD_DELAY)

    async def __aexit__(self, kind: type[BaseException] | None, exc: object, tb: TracebackType | None) -> None:
        self._context.release_stream(self._principal_id)
        if self._timer is not None:
            self._timer.cancel()
        if self._keep_alive_task is not None:
            self._keep_alive_task.cancel()

    def emit(self, event: Event) -> Awaitable[None]:
        self._number = event.number or self._number + 1
        frame = self._frames.encode(event, self._number)
        if self.is_open and self._shortcut is not None and self._shortcut.write(frame):
            return DELIVERED
        return self._write(frame, more=True)

    async def close_with(self, outcome: Result | FabricError, signed_trace: Trace | None = None) -> None:
        """A client that reads nothing is no longer bounded by the call's deadline, so it is here.

        Raises ClientDisconnected.
        """
        number = self._number if self._is_resumable else self._number + 1  # `final` is no event of the job
        frame = encode_frame(build_final_body(outcome, signed_trace or self._frames.trace), number)
        try:
            async with asyncio.timeout(2 * self._keep_alive_interval):
                await self._write(frame, more=False)
        except TimeoutError as exc:
            raise ClientDisconnected from exc

    async def _write(self, frame: bytes, *, more: bool) -> None:
        if not self.is_open:
            self.is_open = True
            if self._timer is None:
                self._schedule_keep_alive(self._keep_alive_interval)
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await self._send({"type": "http.response.body", "body": frame, "more_body": more})

    def _schedule_keep_alive(self, delay: float) -> None:
        """Proxies close silent connections, so a comment is sent now and then."""
        self._timer = asyncio.get_running_loop().call_later(delay, self._start_keep_alive)

    def _start_keep_alive(self) -> None:
        self._keep_alive_task = asyncio.ensure_future(self._send_keep_alive())

    async def _send_keep_alive(self) -> None:
        await self._write(KEEPALIVE, more=True)
        self._schedule_keep_alive(self._keep_alive_interval)


class FabricCallCycle(FabricCycle):
    """`run` is the cycle of the edge with everything left out that a call whose body has arrived does not need."""

    _signs_trace = False  # the caller asks for a signature of the reply

    async def run(self) -> None:
        shortcut: Shortcut | None = self.scope.get(SHORTCUT_KEY)
        try:
            self.check_method()
            self.principal = self.edge.identify(self.head.credentials)  # before the body is read
            body = take_buffered_body(shortcut, self.edge.body_limit.bytes)
            if body is None:
                body = await self.receive_body(shortcut)
            self._check_content_type()
            prepared = self._parse_request(body)
            if shortcut is None:
                await run_until_disconnect(self.scope, self._receive, partial(self._answer_call, prepared, None))
            elif prepared.stream:
                await self._answer_call(prepared, shortcut)
            else:
                self._reply_at_once(await prepared.run(self._build_request(), ignore_event), shortcut)
        except ClientDisconnected:
            self.log_disconnect()
        except asyncio.CancelledError:
            if shortcut is None or not shortcut.client_disconnected:
                raise
            self.log_disconnect()
        except Exception as exc:
            await self.refuse(exc)

    async def answer(self, body: bytes) -> HttpReply:
        raise NotImplementedError  # `run` does it

    def _check_content_type(self) -> None:
        """A client repeats its headers, so the answer is kept with them."""
        wrong_type = self.head.derived.get("fabric: wrong type")
        if wrong_type is None:
            content_type = self.head.get(b"content-type")
            wrong_type = "" if may_be_json(content_type) else content_type or "nothing"
            self.head.derived["fabric: wrong type"] = wrong_type
        if wrong_type:
            raise UnsupportedContentType(wrong_type)

    def _parse_request(self, body: bytes) -> PreparedOperation:
        if len(body) > SHORT and (problem := find_json_problem(body)):
            raise RefusedRequest(problem)
        try:
            request = _decoder.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
            raise RefusedRequest(f"The request is not a Fabric call: {exc}"[:300]) from exc
        if bytes(request.arguments)[:1] != b"{":
            raise RefusedRequest("The request is not a Fabric call: `arguments` must be an object", field="arguments")
        self.operation = request.name
        prepared = self.edge.context.operations.prepare(request.name, request.arguments, self.principal)
        if prepared.trace is not None:
            self.trace = prepared.trace.to_trace()
            self._signs_trace = prepared.trace.sign
        self.is_call = prepared.is_call
        return prepared

    def _build_request(self) -> OperationRequest:
        if not self.head.has_journey:
            return OperationRequest(trace=self.trace, principal=self.principal)
        return OperationRequest(trace=self.trace, principal=self.principal, delegation_chain=self.head.delegation_chain)

    def _answer_call(self, prepared: PreparedOperation, shortcut: Shortcut | None) -> Awaitable[None]:
        if prepared.stream and accepts_events(self.head.get(b"accept")):
            return self._answer_with_events(prepared, shortcut)
        return self._answer_whole(prepared, shortcut)

    async def _answer_whole(self, prepared: PreparedOperation, shortcut: Shortcut | None) -> None:
        result = await prepared.run(self._build_request(), ignore_event)
        if shortcut is not None:
            self._reply_at_once(result, shortcut)
        else:
            await self.send_reply(HttpReply(body=self._encode_reply(result)))

    def _reply_at_once(self, result: Result, shortcut: Shortcut) -> None:
        body = self._encode_reply(result)
        self.has_replied = True
        shortcut.reply(200, _REPLY_HEAD % self.trace.trace_id.encode(), body)
        if not self.is_call:
            self.log_request(None, 200)

    def _encode_reply(self, result: Result) -> bytes:
        """Raises UpstreamFailed."""
        trace = self._sign_trace("ok", result.data) if self._signs_trace else self.trace
        return encode_reply(result, trace, flatten=self.operation in _FLATTENED_OPERATIONS)

    def encode_error(self, error: FabricError) -> bytes:
        return encode_error(error, self._sign_error(error) or self.trace, self._choose_error_format())

    def _sign_error(self, error: FabricError) -> Trace | None:
        """None if the caller does not ask for it, or if the error is that the node cannot sign."""
        with suppress(errors.InternalError):
            return self._sign_trace(error.code, None) if self._signs_trace else None
        return None

    def _sign_trace(self, outcome: str, result: Any) -> Trace:
        """Raises InternalError."""
        sign = self.edge.context.sign_trace
        return self.trace if sign is None else SignedTrace.from_trace(self.trace, sign(self.trace, outcome, result))

    async def _answer_with_events(self, prepared: PreparedOperation, shortcut: Shortcut | None) -> None:
        after = prepared.after if prepared.after is None else self.head.last_event_id or prepared.after
        chain = self.head.delegation_chain
        request = OperationRequest(
            trace=self.trace, principal=self.principal, stream=True, after=after, delegation_chain=chain
        )
        edge = self.edge
        stream = CallEventStream(
            self._send, shortcut, self.trace, edge.context, self.principal.principal_id, edge.keep_alive, after
        )
        async with stream:
            try:
                result = await prepared.run(request, stream.emit)
                await stream.close_with(result, self._sign_trace("ok", result.data) if self._signs_trace else None)
            except ClientDisconnected:
                raise
            except Exception as exc:
                if not stream.is_open and (not isinstance(exc, FabricError) or self.find_status(exc) != 200):
                    raise
                await self._end_with_error(stream, exc)
            else:
                self.log_request(None, 200)

    async def _end_with_error(self, stream: CallEventStream, exc: Exception) -> None:
        error = self.to_known_error(exc)
        assert isinstance(error, FabricError)  # noqa: S101  # this door has no errors of its own
        await stream.close_with(error, self._sign_error(error))
        if not error.is_logged:
            self.log_request(self.render_error(error), 200)
