"""The cycle of one HTTP request at any door, and its reply: a body, an error, or a stream of events.

The order is the same at every door. The method is checked and the caller is identified from the headers alone, and
only then is the body read. So nothing of a refused request is stored or parsed. Every reply carries `x-trace-id`, and
every request leaves one line in the log, also if it was refused, failed, or lost its client."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar, NamedTuple

import msgspec

from a2a_fabric.core import errors
from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.errors import BadInput, FabricError, InternalError, RateLimited
from a2a_fabric.core.limits import BodyLimit, TokenBuckets
from a2a_fabric.core.propagation import current_trace, new_trace
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.edge.request import (
    SHORTCUT_KEY,
    ClientDisconnected,
    Shortcut,
    base_url_for,
    check_content_length,
    head_from_scope,
    may_be_json,
    read_body,
    run_until_disconnect,
    take_buffered_body,
)
from a2a_fabric.identity.resolver import Credentials
from a2a_fabric.messages.conversations import ConversationNotFound, MessageNotFound

HeaderList = list[tuple[bytes, bytes]]

JSON_MEDIA_TYPE = b"application/json"
JSON_ENCODE_ERRORS = (TypeError, ValueError, OverflowError, RecursionError)
_BODILESS_STATUSES = (204, 304)
_EVENT_MEDIA_TYPES = ("text/event-stream", "text/*", "*/*")
_MISSING_FIELD = re.compile(r"Object missing required field `(.+)`")
_CHALLENGE = b'Bearer realm="fabric"'
_SCOPE = re.compile(r"[!#-\[\]-~]{1,256}")  # RFC 6749, section 3.3


class RefusedRequest(BadInput):
    """A request that no door accepts. Every door answers with `status`."""

    status: ClassVar[int] = 400


class MethodNotAllowed(RefusedRequest):
    code = "METHOD_NOT_ALLOWED"
    status = 405

    def __init__(self, allowed_methods: str) -> None:
        super().__init__(f"Use {allowed_methods} here", allow=allowed_methods)


class UnsupportedContentType(RefusedRequest):
    status = 415

    def __init__(self, content_type: str) -> None:
        super().__init__(f"The content type must be application/json, not '{content_type[:80]}'")


class BodyTimeout(RefusedRequest):
    status = 408

    def __init__(self) -> None:
        super().__init__("The request body did not arrive in time")


# The first row that matches wins.
_HTTP_STATUS: dict[type[FabricError], int] = {
    errors.Unauthenticated: 401,
    errors.AuthInvalid: 401,
    errors.AuthExpired: 401,
    errors.Forbidden: 403,
    errors.RateLimited: 429,
    errors.PayloadTooLarge: 413,
    errors.AgentNotFound: 404,
    errors.CapabilityNotFound: 404,
    errors.JobNotFound: 404,
    MessageNotFound: 404,
    ConversationNotFound: 404,
    errors.Conflict: 409,
    errors.JobCancelled: 409,
    errors.BadInput: 400,
    errors.CallTimeout: 504,
    errors.AgentOffline: 503,
    errors.AllAttemptsFailed: 503,
    errors.StoreError: 503,
    errors.AgentError: 502,
}


def find_http_status(error: FabricError) -> int:
    """The status at every door that reports errors of agents as a status."""
    if isinstance(error, RefusedRequest):
        return error.status
    return next((status for kind, status in _HTTP_STATUS.items() if isinstance(error, kind)), 500)


class DoorError(Exception):
    """An error in the terms of one door's protocol. `log_code` is the code of the same error at every door."""

    message: str
    log_code: str = "BAD_INPUT"
    retry_after: float | None = None


class HttpReply(msgspec.Struct, frozen=True, kw_only=True):
    """With an `etag`, a client that has this version already receives 304 and no body."""

    body: bytes
    status: int = 200
    headers: HeaderList = []
    media_type: bytes = JSON_MEDIA_TYPE
    etag: str | None = None
    last_modified: str | None = None


class ErrorReply(NamedTuple):
    """An error as a door renders it; `code` and `message` are for the log."""

    status: int
    body: bytes
    code: str
    message: str


async def send_reply(
    send: Send, status: int, body: bytes, headers: HeaderList, media_type: bytes = JSON_MEDIA_TYPE
) -> None:
    has_body = status not in _BODILESS_STATUSES
    content_headers = [(b"content-type", media_type), (b"content-length", b"%d" % len(body))] if has_body else []
    await send({"type": "http.response.start", "status": status, "headers": [*content_headers, *headers]})
    await send({"type": "http.response.body", "body": body if has_body else b""})


def client_address(scope: Any) -> str:
    """The address from which the request came: that of the client, or of the last proxy."""
    client = scope.get("client")
    return str(client[0]) if client else ""


async def reject_handshake(send: Send, status: int, body: bytes, headers: HeaderList) -> None:
    """Refuse to open a WebSocket, with an HTTP reply."""
    content_headers = [(b"content-type", JSON_MEDIA_TYPE), (b"content-length", b"%d" % len(body))]
    await send({"type": "websocket.http.response.start", "status": status, "headers": [*content_headers, *headers]})
    await send({"type": "websocket.http.response.body", "body": body})


def build_error_headers(error: Exception, status: int, allowed_methods: str = "") -> HeaderList:
    """The headers that tell a refused client what to do next."""
    headers: HeaderList = []
    if status == 401:
        headers.append((b"www-authenticate", _CHALLENGE))
    refusal = error if isinstance(error, errors.OutOfScope) else error.__cause__  # the cause of a door's own error
    if status == 403 and isinstance(refusal, errors.OutOfScope):
        headers.append((b"www-authenticate", _build_scope_challenge(refusal.scope)))
    if status == 405:
        headers.append((b"allow", allowed_methods.encode()))
    retry_after = getattr(error, "retry_after", None)  # of RateLimited, and of a DoorError made from it
    if isinstance(retry_after, int | float):
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(retry_after))))
    return headers


def _build_scope_challenge(scope: str | None) -> bytes:
    """RFC 6750, section 3.1. A scope may hold a name that the caller chose; one that no header can hold is left out."""
    named = f', scope="{scope}"' if scope is not None and _SCOPE.fullmatch(scope) else ""
    return _CHALLENGE + f', error="insufficient_scope"{named}'.encode("ascii")


def accepts_events(accept: str | None) -> bool:
    """Whether a client that sent this Accept header reads server-sent events."""
    return accept is None or any(media_type in accept for media_type in _EVENT_MEDIA_TYPES)


def compute_etag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def matches_etag(if_none_match: str | None, etag: str) -> bool:
    if if_none_match is None:
        return False
    tags = [each.strip().removeprefix("W/") for each in if_none_match.split(",")]
    return etag in tags or "*" in tags


def to_encodable_text(text: str) -> str:
    """Without the halves of characters that JSON cannot hold."""
    return text.encode("utf-8", "replace").decode()


def to_json_details(details: Mapping[str, Any]) -> dict[str, Any]:
    """Agents in this process may put anything into an error; details that are not JSON are left out."""
    try:
        decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(details))
    except JSON_ENCODE_ERRORS:
        return {}
    return decoded


def split_validation_error(exc: Exception) -> tuple[str, str]:
    """The field that msgspec names in an error, and what it says of it."""
    message, _, path = str(exc).partition(" - at `$")
    return path.removeprefix(".").removesuffix("`"), message


def bad_input_from(exc: Exception) -> BadInput:
    """An error of msgspec about a body or a query, as field and issue."""
    field_path, message = split_validation_error(exc)
    missing = _MISSING_FIELD.match(message)
    if missing is not None:
        field_path = f"{field_path}.{missing[1]}" if field_path else missing[1]
        return BadInput(f"{field_path} is required", field=field_path, issue="required")
    return BadInput(f"{field_path}: {message}" if field_path else message, field=field_path or None, issue=message)


KEEPALIVE = b": still here\n\n"
READ_TIMEOUT = 60.0
QUIET_HEAD_DELAY = 0.2  # seconds in which also a stream that waits for news may still be refused
BuildHeaders = Callable[[], HeaderList]
EVENT_STREAM_HEADERS: HeaderList = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


def encode_event(event: str | None, number: int | None, data: bytes) -> bytes:
    """A server-sent event."""
    event_field = b"" if event is None else b"event: %b\n" % event.encode()
    id_field = b"" if number is None else b"id: %d\n" % number
    return b"%b%bdata: %b\n\n" % (event_field, id_field, data)


class EventStream(msgspec.Struct, frozen=True, kw_only=True):
    """A reply made of events. The edge closes `frames`.

    The first frame is awaited before the head is sent, so a stream that fails to begin is refused with a status.
    The head of a stream that waits for news follows after a moment, so that its client knows that it listens.
    """

    frames: AsyncGenerator[bytes]
    waits_for_news: bool = False


class EventStreamReply:
    """One event stream to one client.

    Proxies close silent connections, so `keepalive` is sent after every `keepalive_interval` seconds of silence. A
    client that reads nothing for `read_timeout` seconds counts as disconnected. A slow reader delays no other client.
    """

    def __init__(
        self,
        context: DoorContext,
        send: Send,
        keepalive_interval: float,
        keepalive: bytes = KEEPALIVE,
        read_timeout: float = READ_TIMEOUT,
    ) -> None:
        self.is_open = False
        self._context = context
        self._send = send
        self._keepalive_interval = keepalive_interval
        self._keepalive = keepalive
        self._read_timeout = read_timeout

    async def send_frames(self, stream: EventStream, build_headers: BuildHeaders, principal_id: str | None) -> None:
        """Send the head with the first frame, then all frames; the reply stays open.

        `build_headers` is called when the head is sent, because the first event may decide about the headers.
        Raises RateLimited if this principal has its share of streams, ClientDisconnected, and what the frames
        raise. Nothing has been sent unless `is_open`.
        """
        async with aclosing(stream.frames) as frames:
            self._context.acquire_stream(principal_id)
            try:
                frame = await self._wait_for_frame(frames, build_headers, is_quiet=stream.waits_for_news)
                await self._open(build_headers)
                while frame is not None:
                    await self._write(frame)
                    frame = await self._wait_for_frame(frames, build_headers)
            finally:
                self._context.release_stream(principal_id)

    async def end(self, last_frame: bytes = b"") -> None:
        """Raises ClientDisconnected."""
        self.is_open = False
        await self._write(last_frame, more=False)

    async def _open(self, build_headers: BuildHeaders) -> None:
        if not self.is_open:
            await self._send_message(
                {"type": "http.response.start", "status": 200, "headers": [*EVENT_STREAM_HEADERS, *build_headers()]}
            )
            self.is_open = True

    async def _wait_for_frame(
        self, frames: AsyncGenerator[bytes], build_headers: BuildHeaders, *, is_quiet: bool = False
    ) -> bytes | None:
        next_frame = asyncio.ensure_future(anext(frames, None))
        try:
            if is_quiet and not (await asyncio.wait({next_frame}, timeout=QUIET_HEAD_DELAY))[0]:
                await self._open(build_headers)
                await self._write(b"")  # our server sends the head with the first piece of the body
            while not (await asyncio.wait({next_frame}, timeout=self._keepalive_interval))[0]:
                await self._open(build_headers)
                await self._write(self._keepalive)
        finally:
            if not next_frame.done():
                next_frame.cancel()
                await asyncio.wait({next_frame})
        return next_frame.result()

    async def _write(self, frame: bytes, *, more: bool = True) -> None:
        await self._send_message({"type": "http.response.body", "body": frame, "more_body": more})

    async def _send_message(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self._read_timeout):
                await self._send(message)
        except TimeoutError as exc:
            raise ClientDisconnected from exc


_log = logging.getLogger(__name__)

_DISCONNECTED_STATUS = 499
_DISCONNECTED_CODE = "CANCELLED"
_DISCONNECTED_MESSAGE = "The client disconnected before the reply was complete"
_WINDOW_SECONDS = 60


class RequestRateLimit:
    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._buckets = None if per_minute is None else TokenBuckets(per_minute, clock)

    def take(self, caller: str) -> HeaderList:
        """Count one request. Returns the headers that report what is left, or raises RequestRateExceeded with them."""
        if self._buckets is None:
            return []
        bucket, wait = self._buckets.take(caller)
        per_minute = self._buckets.per_minute
        headers = _build_headers(per_minute, bucket.tokens)
        if wait:
            message = f"More than {per_minute} requests a minute; try again in {wait:.1f} s"
            raise RequestRateExceeded(message, wait, headers)
        return headers


class RequestRateExceeded(RateLimited):
    def __init__(self, message: str, retry_after: float, headers: HeaderList) -> None:
        super().__init__(message, retry_after)
        self.headers = headers


def _build_headers(per_minute: int, tokens: float) -> HeaderList:
    """Old names and those of the IETF draft. `reset`: seconds until the caller has all its requests again."""
    remaining, reset = int(tokens), math.ceil((per_minute - tokens) * _WINDOW_SECONDS / per_minute)
    return [
        (b"x-ratelimit-limit", b"%d" % per_minute),
        (b"x-ratelimit-remaining", b"%d" % remaining),
        (b"x-ratelimit-reset", b"%d" % reset),
        (b"ratelimit-policy", b'"default";q=%d;w=%d' % (per_minute, _WINDOW_SECONDS)),
        (b"ratelimit", b'"default";r=%d;t=%d' % (remaining, reset)),
    ]


class DoorEdge(msgspec.Struct, frozen=True, kw_only=True):
    """What all requests of one door have in common."""

    context: DoorContext
    identify: Callable[[Credentials], Principal]  # raises Unauthenticated, AuthInvalid, AuthExpired, Forbidden
    body_limit: BodyLimit
    rate_limit: RequestRateLimit | None = None
    keep_alive: float = 15.0
    keepalive_frame: bytes = KEEPALIVE
    read_timeout: float = READ_TIMEOUT


class RequestCycle(ABC):
    """One HTTP request and its reply.

    A door says how a request becomes a reply (`answer`), how its errors look (`render_error`), and which methods its
    path allows. HEAD is answered like GET; the server leaves the body out.
    """

    allowed_methods: Sequence[str] = ("POST",)
    reads_body: bool = True  # False: the path takes no body, so neither its size nor its type matters
    operation: str = "?"  # the name of the request in the log
    is_call: bool = False  # whether the request became a call, which has its own log line
    reply_headers: Sequence[tuple[bytes, bytes]] = ()  # of every reply to this request, beside `x-trace-id`
    has_replied: bool = False
    principal: Principal

    def __init__(self, edge: DoorEdge, scope: Any, receive: Receive, send: Send) -> None:
        self.edge = edge
        self.scope = scope
        self.head = head_from_scope(scope)
        self.method: str = "GET" if scope["method"] == "HEAD" else scope["method"]
        self.trace = self.head.trace or new_trace()
        self._receive = receive
        self._send = send
        self._started_at = time.perf_counter()

    @abstractmethod
    async def answer(self, body: bytes) -> HttpReply | EventStream | None:
        """None if the request was answered elsewhere. Raises FabricError, DoorError."""

    @abstractmethod
    def render_error(self, error: FabricError | DoorError) -> ErrorReply:
        """The door's error table."""

    @property
    def base_url(self) -> str:
        return base_url_for(self.edge.context.public_url, self.scope, self.head)

    async def run(self) -> None:
        shortcut: Shortcut | None = self.scope.get(SHORTCUT_KEY)
        try:
            self.check_method()
            self.principal = self.identify()
            self.count_request()
            body = await self.receive_body(shortcut)
            if shortcut is not None:
                await self._answer(body)
            else:
                await run_until_disconnect(self.scope, self._receive, lambda: self._answer(body))
        except ClientDisconnected:
            self.log_disconnect()
        except asyncio.CancelledError:
            if shortcut is None or not shortcut.client_disconnected:
                raise
            self.log_disconnect()
        except Exception as exc:
            await self.refuse(exc)

    def check_method(self) -> None:
        if self.method not in self.allowed_methods:
            raise MethodNotAllowed(", ".join(self.allowed_methods))

    def identify(self) -> Principal:
        """Raises FabricError."""
        return self.edge.identify(self.head.credentials)

    def count_request(self) -> None:
        """Raises RateLimited."""
        if self.edge.rate_limit is None:
            return
        try:
            self.reply_headers = self.edge.rate_limit.take(owner_from_principal(self.principal))
        except RequestRateExceeded as error:
            self.reply_headers = error.headers
            raise

    async def receive_body(self, shortcut: Shortcut | None, limit: int | None = None) -> bytes:
        """Raises UnsupportedContentType, PayloadTooLarge, BodyTimeout, ClientDisconnected."""
        if not self.reads_body:
            return b""
        limit, content_type = limit or self.edge.body_limit.bytes, self.head.get(b"content-type")
        body = take_buffered_body(shortcut, limit)
        check_content_length(self.head, limit)
        if self.method != "GET" and self.head.announces_body and not may_be_json(content_type):
            raise UnsupportedContentType(content_type or "")
        if body is not None:
            return body
        try:
            return await read_body(self._receive, self.head, limit)
        except TimeoutError as exc:
            raise BodyTimeout from exc

    async def _answer(self, body: bytes) -> None:
        reply = await self.answer(body)
        if isinstance(reply, EventStream):
            await self._send_stream(reply)
        elif reply is not None:
            await self.send_reply(reply)

    async def send_reply(self, reply: HttpReply) -> None:
        headers, status, body = [*self.build_headers(), *reply.headers], reply.status, reply.body
        if reply.etag is not None:
            headers.append((b"etag", reply.etag.encode()))
            if self._has_current_version(reply):
                status, body = 304, b""
        self.has_replied = True
        shortcut: Shortcut | None = self.scope.get(SHORTCUT_KEY)
        if shortcut is not None and status not in _BODILESS_STATUSES:
            lines = [b"%b: %b\r\n" % header for header in headers]
            shortcut.reply(status, b"content-type: %b\r\n%b" % (reply.media_type, b"".join(lines)), body)
        else:
            await send_reply(self._send, status, body, headers, reply.media_type)
        self.log_request(None, status)

    def _has_current_version(self, reply: HttpReply) -> bool:
        if_none_match = self.head.get(b"if-none-match")
        if if_none_match is not None:
            return matches_etag(if_none_match, reply.etag or "")
        return reply.last_modified is not None and self.head.get(b"if-modified-since") == reply.last_modified

    async def _send_stream(self, stream: EventStream) -> None:
        edge = self.edge
        reply = EventStreamReply(edge.context, self._send, edge.keep_alive, edge.keepalive_frame, edge.read_timeout)
        try:
            await reply.send_frames(stream, self.build_headers, self.principal.principal_id)
            await reply.end()
        except ClientDisconnected:
            raise
        except Exception as exc:
            if not reply.is_open:
                raise
            error_reply = self.render_error(self.to_known_error(exc))
            self.log_request(error_reply, 200)
            await reply.end(encode_event("error", None, error_reply.body))
        else:
            self.log_request(None, 200)

    async def refuse(self, exc: Exception) -> None:
        """Answer with an error, unless a reply has been sent already."""
        error = self.to_known_error(exc)
        reply = self.render_error(error)
        if not self.has_replied:
            self.has_replied = True
            if reply.status == 401:
                await self.edge.context.failed_attempts.delay(error, client_address(self.scope))
            error_headers = build_error_headers(error, reply.status, ", ".join(self.allowed_methods))
            await send_reply(self._send, reply.status, reply.body, [*self.build_headers(), *error_headers])
        if not (isinstance(error, FabricError) and error.is_logged):
            self.log_request(reply, reply.status)

    def to_known_error(self, exc: Exception) -> FabricError | DoorError:
        """An unexpected exception becomes an InternalError; the log has its traceback under the trace of the reply."""
        if isinstance(exc, FabricError | DoorError):
            return exc
        token = current_trace.set(self.trace)
        _log.error("A request failed inside the gateway: %s", self.operation, exc_info=exc)
        current_trace.reset(token)
        return InternalError()

    def build_headers(self) -> HeaderList:
        return [(b"x-trace-id", self.trace.trace_id.encode()), *self.reply_headers]

    def log_request(self, error: ErrorReply | None, status: int) -> None:
        if error is None and self.is_call:
            return
        code, message = (error.code, error.message) if error is not None else (None, None)
        self._write_log(code, message, status)

    def log_disconnect(self) -> None:
        if not self.is_call:
            self._write_log(_DISCONNECTED_CODE, _DISCONNECTED_MESSAGE, _DISCONNECTED_STATUS)

    def _write_log(self, code: str | None, message: str | None, status: int) -> None:
        seconds = time.perf_counter() - self._started_at
        self.edge.context.log(self.trace, self.operation, code=code, message=message, seconds=seconds, status=status)


class CycleEndpoint:
    """ASGI: one request cycle for each request."""

    def __init__(self, begin: Callable[[Any, Receive, Send], RequestCycle]) -> None:
        self._begin = begin

    def __call__(self, scope: Any, receive: Receive, send: Send) -> Awaitable[None]:
        return self._begin(scope, receive, send).run()
