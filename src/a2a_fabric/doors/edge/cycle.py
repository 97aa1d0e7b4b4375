"""The cycle of one HTTP request at any door: checks, the caller, the body, the operation, the reply, the log line.

The order is the same at every door. The method is checked and the caller is identified from the headers alone, and
only then is the body read. So nothing of a refused request is stored or parsed. Every reply carries `x-trace-id`, and
every request leaves one line in the log, also if it was refused, failed, or lost its client."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.errors import FabricError, InternalError, RateLimited
from a2a_fabric.core.limits import BodyLimit
from a2a_fabric.core.node_limits import build_buckets
from a2a_fabric.core.propagation import current_trace, new_trace
from a2a_fabric.core.shared_counts import SharedCounts
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.edge.event_stream import KEEPALIVE, READ_TIMEOUT, EventStream, EventStreamReply, encode_event
from a2a_fabric.doors.edge.reply import (
    BODILESS_STATUSES,
    BodyTimeout,
    DoorError,
    ErrorReply,
    HeaderList,
    HttpReply,
    MethodNotAllowed,
    UnsupportedContentType,
    build_error_headers,
    client_address,
    matches_etag,
    send_reply,
)
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

_log = logging.getLogger(__name__)

_DISCONNECTED_STATUS = 499
_DISCONNECTED_CODE = "CANCELLED"
_DISCONNECTED_MESSAGE = "The client disconnected before the reply was complete"
_WINDOW_SECONDS = 60


class RequestRateLimit:
    def __init__(
        self,
        per_minute: int | None,
        clock: Callable[[], float] = time.monotonic,
        counts: SharedCounts | None = None,
    ) -> None:
        self._buckets = None if per_minute is None else build_buckets(counts, "requests", per_minute, clock)

    def take(self, caller: str) -> HeaderList:
        """Count one request. Returns the headers that report what is left, or raises RequestRateExceeded with them."""
        if self._buckets is None:
            return []
        tokens, wait = self._buckets.take(caller)
        per_minute = self._buckets.per_minute
        headers = _build_headers(per_minute, tokens)
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
        if shortcut is not None and status not in BODILESS_STATUSES:
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
