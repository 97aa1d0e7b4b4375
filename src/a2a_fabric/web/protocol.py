"""Uvicorn's HTTP protocol with a fast path for hot paths, and bounds on what one connection may cost.

An application sees the same ASGI either way. On the fast path the scope holds only what
doors read, a repeated head is not parsed again (`CachedHead`), a reply leaves in one write
(`FastCycle`), and idle connections need no timer per reply. On both paths a request is
notified at once when its client has disconnected.

Invariants of a connection:

* At most one request is answered at a time, and none is begun while the client does not read earlier replies
  (`flow.write_paused`). So the node holds at most one reply and the transport's own buffer for it.
* While a parsed request waits for its turn, no byte is parsed and none is read: the rest of the same read
  stays in `_buffer`. Bytes are parsed in slices, so a slice bounds how many requests can wait.
* A reply that leaves before the request's body has arrived ends the connection in two steps (`linger`): the client
  can read the reply, and bytes that the client still sends are discarded, within bounds.
* An offer to go on in another protocol is ignored, except a WebSocket handshake (RFC 9110, section 7.8). The parser
  ends every request with such an offer at its head and leaves the body unread. So nothing begins at such a head: a
  new parser gets the head again without the offer, and then the bytes that follow.
* No reference cycle holds a connection once it is lost: its memory is free without the garbage collector."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl, service_unavailable
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from a2a_fabric.doors.edge import ON_DISCONNECT_KEY, REFUSED_HEADER, SHORTCUT_KEY, RequestHead
from a2a_fabric.identity.peer import NO_PEER, PEER_KEY, Peer, read_certificate
from a2a_fabric.web.asgi import HotPath, encode_error
from a2a_fabric.web.fast_cycle import CachedHead, FastCycle, describe_failure

DisconnectCallback = Callable[[], None]
_HEAD_BYTES = 64 * 1024
_SLICE_BYTES = 4 * 1024  # parsed at a time
_SKIPPED_BYTES = 64 * 1024  # discarded of an unwanted body while the connection stays open
_LINGER_BYTES = 64 * 1024 * 1024  # discarded of a body before the connection is closed
_LINGER_HEAD_BYTES = 1024 * 1024
_LINGER_SECONDS = 5.0
_IDLE_GRACE = 0.05  # seconds between the end of a node and that of its idle connections
_REFUSED_KEY = "fabric.refused"  # in the scope of a request that violates HTTP: the reason
# Paths that are answered even when the node has reached its limit of connections or requests.
_ALWAYS_ANSWERED = frozenset({b"/health", b"/livez", b"/readyz"})
_OFFER_HEADERS = frozenset({b"upgrade", b"http2-settings"})
_RESERVED_CONNECTIONS = 64  # connections over the limit, for those paths


class ConnectionFlow(FlowControl):
    """Uvicorn's flow control, except that a request that waits for its body does not resume a full connection."""

    is_full = False  # buffered bytes or waiting requests come before more is read

    def resume_reading(self) -> None:
        if not self.is_full:
            super().resume_reading()


class HttpProtocol(HttpToolsProtocol):
    """One connection. The server sets these on a subclass of its own:

    `hot` names the paths that take the fast path. A complete head must arrive within `request_seconds`, and the parts
    of a body without longer pauses; a client that reads nothing for `unread_seconds` is disconnected. `waiting` are
    the connections that have not sent a request yet, oldest first.
    """

    hot: dict[bytes, HotPath] = {}  # noqa: RUF012  # set once, never changed
    waiting: dict[HttpProtocol, None] = {}  # noqa: RUF012  # the subclass has its own
    request_seconds = 10.0
    unread_seconds = 60.0
    asks_certificate = False  # whether clients may show a certificate
    is_draining = False  # each reply ends its connection; the server sets it together with an empty `hot`

    _peer = NO_PEER
    _disconnect_callback: DisconnectCallback | None = None
    _last_head: CachedHead | None = None  # the head of the last request on the fast path
    _is_fast = False  # whether the request that is being parsed takes the fast path
    _has_offer = False  # the head that was parsed last offers another protocol, and is parsed again without the offer
    _is_between_requests = True  # the parser has completed a request, and the next has not begun
    _idle_since: float | None = None
    _has_partial_head = False  # `_idle_since` is the time of the first byte of an incomplete head
    _body_since = 0.0  # when the last part of an incomplete body arrived
    _unfinished_bytes = 0  # of an incomplete head or incomplete trailers
    _host_count = 0  # Host headers in the request that is being parsed
    _is_buffering = False  # received bytes are not parsed: requests wait, or replies are not read
    _buffer = b""
    _active_cycle: RequestResponseCycle | None = None  # of several requests, the one that is being answered
    _is_lingering = False  # the last reply was sent; bytes that still arrive are discarded
    _discard_budget = 0
    _pause_count = 0
    _unread = (0, 0)  # pauses and bytes that the client had not read at the last check
    _unread_since = 0.0  # when `_unread` became what it is
    _timer_at = 0.0

    def data_received(self, data: bytes) -> None:
        if self._is_buffering:
            self._buffer_data(data)
            return
        last = self._last_head
        if last is not None and last.is_learned and self._is_between_requests and self.cycle.response_complete:
            body = last.match_body(data)
            if body is not None and self._has_capacity():
                self._idle_since = None
                self._start_fast_request(last, body)
                return
        self._parse(data)

    def _buffer_data(self, data: bytes) -> None:
        if self._is_lingering:
            self._discard_budget -= len(data)
            if self._discard_budget < 0:
                self.transport.close()
            return
        self._buffer += data
        self.flow.is_full = True  # type: ignore[attr-defined]  # of ConnectionFlow
        self.flow.pause_reading()

    def _parse(self, data: bytes) -> None:
        """Parse in slices, with a limit on heads and trailers, which the parser keeps until they are complete."""
        was_between, self._is_fast = self._is_between_requests, False
        if len(data) <= _SLICE_BYTES:
            self._feed(data)
        else:
            at = 0
            while (
                at < len(data)
                and not self._is_buffering
                and self.parser is not None
                and not self.transport.is_closing()
            ):
                self._feed(data[at : at + _SLICE_BYTES])
                at += _SLICE_BYTES
            if at < len(data) and self._is_buffering:
                self._buffer_data(data[at:])
        if self._is_between_requests:
            if self._is_fast and was_between and self._last_head is not None:
                self._last_head.learn(data)
        elif self.parser is not None and not self._is_lingering:
            self._time_partial_request()

    def _feed(self, data: bytes) -> None:
        self._unfinished_bytes += len(data)
        rest: bytes | None = data
        while rest is not None:
            rest = self._feed_parser(rest)
        if self.pipeline:
            self._is_buffering = self.flow.is_full = True  # type: ignore[attr-defined]
        if self._unfinished_bytes > _HEAD_BYTES and not self.transport.is_closing():
            self._refuse_request(431, f"The head of the request is larger than {_HEAD_BYTES} bytes")

    def _feed_parser(self, data: bytes) -> bytes | None:
        """Returns what is to be parsed next, if the data has a head with an offer that is ignored."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            message = "Invalid HTTP request received."
            self.logger.warning(message)
            self.send_400_response(message)
        except httptools.HttpParserUpgrade as end:
            if self._has_offer:
                return self._restart_without_offer() + data[end.args[0] :]
            self.handle_websocket_upgrade()
        return None

    def _restart_without_offer(self) -> bytes:
        """Take a new parser. Returns the head that it begins with: the last one without its offer."""
        self._has_offer = False
        parser, self.parser = self.parser, httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        version = parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                options = [each.strip() for each in value.split(b",")]
                value = b", ".join(each for each in options if each.lower() not in _OFFER_HEADERS) or b"keep-alive"
            if name not in _OFFER_HEADERS:
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _time_partial_request(self) -> None:
        """Time an incomplete request: its head from the first byte, its body from the latest part."""
        now = self.loop.time()
        if self._idle_since is None:
            self._body_since = now
        elif self.cycle is not None and not self._has_partial_head:
            self._has_partial_head = True
            self._idle_since = now
        if self._timer_at > now + self.request_seconds:
            self._set_timer(self.request_seconds)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's signature
        super().connection_made(transport)
        self.flow = ConnectionFlow(transport)
        certificate = read_certificate(transport.get_extra_info("ssl_object")) if self.asks_certificate else None
        self._peer = Peer(address=self.client[0] if self.client else "", certificate=certificate)
        if certificate is not None:
            self.app_state = {**self.app_state, PEER_KEY: self._peer}
        self._idle_since = self.loop.time()
        self._set_timer(self.request_seconds)
        self.waiting[self] = None
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._evict_oldest_waiting()

    def _evict_oldest_waiting(self) -> None:
        """Close the connection that has waited longest for its first request, so that idle ones do not block others.

        If all others have sent requests, this connection stays open for the paths that are always answered, up to
        the reserve.
        """
        oldest = next(iter(self.waiting))
        is_beyond = len(self.connections) > (self.limit_concurrency or 0) + _RESERVED_CONNECTIONS
        if oldest is not self or is_beyond:
            oldest.transport.abort()

    def on_message_begin(self) -> None:
        self._is_between_requests = False
        self._host_count = 0
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_header(self, name: bytes, value: bytes) -> None:
        name, value = name.lower(), value.strip(b" \t")
        if name == b"host":
            self._host_count += 1
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self._unfinished_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._has_offer:
            return
        self._is_between_requests = True
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade() and not self._should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise ValueError("This node is no proxy")
            self._has_offer = True
            return
        self._unfinished_bytes = 0
        self._idle_since = None
        self._has_partial_head = False
        if self.cycle is None:
            self.waiting.pop(self, None)
        route = self.hot.get(self.url)
        if route is None or not self._may_use_fast_path():
            self._start_slow_request()
            return
        path, door, narrow = route
        last = self._last_head
        if last is None or not last.is_for(self.headers, path, narrow):
            head = RequestHead(self.headers, peer=self._peer)
            last = self._last_head = CachedHead(path, door, self.headers, head, self.client, narrow)
        self._is_fast = True
        self._start_fast_request(last, None)

    def _start_fast_request(self, request: CachedHead, body: bytes | None) -> None:
        """Start a request on the fast path; `body` is None if it has not arrived yet."""
        scope: Any = request.scope.copy()
        self.cycle = cycle = scope[SHORTCUT_KEY] = FastCycle(self, scope, body)
        work: Any = request.door(scope, cycle.receive, cycle.send)
        cycle.task = task = self.loop.create_task(work)
        task.add_done_callback(cycle.on_task_done)
        self.tasks.add(task)

    def _may_use_fast_path(self) -> bool:
        """HEAD is excluded because its reply has no body, and HTTP/1.0 because it has no chunked encoding."""
        is_plain = (
            self.parser.get_method() == b"POST" and self.parser.get_http_version() == "1.1" and self._host_count == 1
        )
        is_free = self.cycle is None or self.cycle.response_complete
        return is_plain and is_free and self._has_capacity() and not self.expect_100_continue

    def _has_capacity(self) -> bool:
        """Connections that have not sent a request yet do not count: they are closed when others need their place."""
        limit = self.limit_concurrency
        return limit is None or (len(self.tasks) < limit and len(self.connections) - len(self.waiting) < limit)

    def _start_slow_request(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        if not self.pipeline and self.cycle is not None and not self.cycle.response_complete:
            self._active_cycle = self.cycle
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        scope: Any = self.scope
        scope[ON_DISCONNECT_KEY] = self._set_disconnect_callback
        scope[_REFUSED_KEY] = self._find_http_violation()
        has_capacity = self._has_capacity()
        is_extra = not has_capacity and url.partition(b"?")[0] in _ALWAYS_ANSWERED
        limit = self.limit_concurrency
        if has_capacity or is_extra:
            self.limit_concurrency = None  # uvicorn would count connections that have not sent anything, too
        super().on_headers_complete()
        self.limit_concurrency = limit
        if (is_extra or self.is_draining) and self.cycle is not None:
            self.cycle.keep_alive = False

    def forget_head(self) -> None:
        """The next request is parsed, and goes to the application that its path leads to now."""
        self._last_head = None

    def end_after_reply(self) -> None:
        """The connection ends with its next reply, or with the one under way."""
        self.forget_head()  # so the next request sees `is_draining`
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """An idle connection is closed a moment later: its next request may have arrived already, unread."""
        self.end_after_reply()
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(_IDLE_GRACE, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _find_http_violation(self) -> str | None:
        """Why the request violates HTTP (RFC 9112, section 3.2), or None."""
        if self._host_count > 1:
            return "The request has more than one Host header"
        if self._host_count == 0 and self.parser.get_http_version() == "1.1":
            return "The request has no Host header, which HTTP/1.1 requires"
        return None

    def _should_upgrade(self) -> bool:
        """A WebSocket is opened by a GET (RFC 6455, section 4.1); any other request with its offer is a plain one."""
        is_get = self.parser.get_method() == b"GET"
        return is_get and self._host_count == 1 and self._has_capacity() and super()._should_upgrade()

    def handle_websocket_upgrade(self) -> None:
        super().handle_websocket_upgrade()
        self._break_references()  # the WebSocket protocol has the connection now

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Errors that uvicorn would answer in plain text get the JSON envelope."""
        slow_cycle: Any = cycle
        slow_cycle.__class__ = _SlowCycle  # uvicorn has no setting for the class
        slow_cycle.connection = self
        scope: Any = cycle.scope
        if scope.get(_REFUSED_KEY) is not None:
            app = _reply_forbidden
        super()._start_asgi_task(cycle, _reply_busy if app is service_unavailable else app)

    def _set_disconnect_callback(self, callback: DisconnectCallback | None) -> None:
        self._disconnect_callback = callback

    def send_400_response(self, msg: str) -> None:
        """A request that is not HTTP gets the JSON envelope, too."""
        self._refuse_request(400, msg)

    def _refuse_request(self, status: int, message: str) -> None:
        """Reply with an error and end the connection, and the request that is being read unless its reply has begun."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started or self.pipeline:
                self.transport.close()
                return
            _end_without_reply(cycle)
        body = encode_error("BAD_INPUT", message)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.linger(_LINGER_HEAD_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        cycles = [each for each in (self._active_cycle, self.cycle) if each is not None]
        super().connection_lost(exc)
        if self._disconnect_callback is not None:
            self._disconnect_callback()
        for cycle in cycles:
            _end_without_reply(cycle)
        self._break_references()

    def _break_references(self) -> None:
        """Drop the references to this connection, so that its memory does not wait for the garbage collector."""
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        self.waiting.pop(self, None)
        self.pipeline.clear()
        self.parser = self.scope = self.cycle = None  # type: ignore[assignment]
        self._active_cycle = self._disconnect_callback = self._last_head = None
        self._buffer = b""

    # Back-pressure. A reply that is larger than the transport's buffer is written whole; the next one waits.

    def pause_writing(self) -> None:
        super().pause_writing()
        self._is_buffering = True
        self._pause_count += 1
        self._unread = self._pause_count, self.transport.get_write_buffer_size()
        self._unread_since = self.loop.time()
        if self._timer_at > self._unread_since + self.unread_seconds:
            self._set_timer(self.unread_seconds)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._resume()

    def _resume(self) -> None:
        """Answer the next waiting request, or parse the buffered bytes, if nothing blocks that any more."""
        if not self._is_buffering or self._is_lingering or self.transport.is_closing() or self.flow.write_paused:
            return
        first = self._active_cycle if self.pipeline else self.cycle
        if self.pipeline and (first is None or first.response_complete):
            self._active_cycle, app = self.pipeline.pop()
            self._idle_since = None
            self._start_asgi_task(self._active_cycle, app)
        if self.pipeline:
            return
        self._active_cycle = None
        data, self._buffer = self._buffer, b""
        self._is_buffering = self.flow.is_full = False  # type: ignore[attr-defined]
        if data:
            self._parse(data)
        if not self._is_buffering:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self._idle_since = self.loop.time()
        if self._is_buffering:
            self.loop.call_soon(self._resume)
        elif self.flow.read_paused and not self.transport.is_closing():
            self.flow.resume_reading()

    # The end of a connection whose client may still be writing. If the node closed it at once, the client's bytes
    # would cause a reset, and the client would lose the reply that it has not read yet.

    def may_keep_alive_after(self, cycle: RequestResponseCycle) -> bool:
        """Whether the rest of an unwanted body is short enough to be discarded; decided before the reply."""
        if cycle.waiting_for_100_continue:
            return False
        length = dict(cycle.scope["headers"]).get(b"content-length", b"")
        return length.isdigit() and int(length) <= _SKIPPED_BYTES

    def linger(self, max_bytes: int = _LINGER_BYTES) -> None:
        """Stop writing and discard bytes that still arrive, until the client closes or the time is over."""
        if self.transport.is_closing():
            return
        if self._is_between_requests and not self._buffer and self.cycle is not None:
            self.transport.close()  # the request is complete
            return
        self._is_lingering = self._is_buffering = True
        self._discard_budget = max_bytes
        self._buffer = b""
        self.pipeline.clear()
        self.flow.is_full = False  # type: ignore[attr-defined]
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._set_timer(_LINGER_SECONDS)

    # A connection has one timer, which checks how long the connection has been idle and waits for the rest. The
    # connection is idle until the head of a request is complete, so a slow head cannot keep it open forever.

    def _unset_keepalive_if_required(self) -> None:
        """Uvicorn's own timer, which is set and unset with each request, is not used."""

    def _set_timer(self, seconds: float) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        self._timer_at = self.loop.time() + seconds
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if its time is over, or set the timer again."""
        now = self.loop.time()
        if self.flow.write_paused or self.transport.is_closing():
            self._abort_if_unread()
            return
        if self._is_lingering:
            self.transport.close()
            self._set_timer(self.unread_seconds)
            return
        is_kept_alive = self.cycle is not None and self._is_between_requests
        limit = self.timeout_keep_alive if is_kept_alive else self.request_seconds
        since = self._idle_since
        if since is None and not self._is_between_requests and not self.flow.read_paused:
            since, limit = self._body_since, self.request_seconds
        elapsed = 0.0 if since is None else now - since
        if elapsed < limit - 0.01:
            self._set_timer(limit - elapsed)
        elif self._idle_since is None:
            self._time_out_body()
        else:
            self.transport.close()
            self._set_timer(self.unread_seconds)

    def _abort_if_unread(self) -> None:
        """Abort if the client has read nothing for `unread_seconds`: closing would wait for it forever.

        The timer may have been set for something else, such as the head of the request, and fire earlier.
        """
        now, unread = self.loop.time(), (self._pause_count, self.transport.get_write_buffer_size())
        if unread != self._unread or not unread[1]:
            self._unread, self._unread_since = unread, now
        left = self._unread_since + self.unread_seconds - now
        if left > 0.01:
            self._set_timer(left)
        else:
            self.transport.abort()

    def _time_out_body(self) -> None:
        """End the request as if its client had disconnected."""
        self._refuse_request(408, "The request body did not arrive in time")
        self.transport.close()
        self._set_timer(self.unread_seconds)


def _end_without_reply(cycle: RequestResponseCycle) -> None:
    if not cycle.response_complete:
        cycle.disconnected = True
    cycle.message_event.set()
    if isinstance(cycle, FastCycle):
        cycle.cancel_for_disconnect()


class _SlowCycle(RequestResponseCycle):
    """A request on the slow path."""

    connection: HttpProtocol | None

    async def send(self, message: Any) -> None:
        connection = self.connection
        if connection is not None and not self.response_started:
            self.connection = None
            if self.more_body:
                self.keep_alive = self.keep_alive and connection.may_keep_alive_after(self)
                self.transport = _LingeringTransport(connection)  # type: ignore[assignment]
        await super().send(message)

    async def send_500_response(self) -> None:
        """Called while the exception is being handled."""
        await _send_error(self.send, *describe_failure(sys.exc_info()[1]))


class _LingeringTransport:
    """The transport of a cycle that replies before its request is complete; `close` lets the connection linger."""

    def __init__(self, connection: HttpProtocol) -> None:
        self.write = connection.transport.write
        self.is_closing = connection.transport.is_closing
        self.close = connection.linger


async def _reply_busy(scope: Any, receive: Any, send: Any) -> None:
    message = "The node has reached its connection limit; try again in a second"
    await _send_error(send, 503, "RATE_LIMITED", message, (REFUSED_HEADER.encode(), b"1"))


async def _reply_forbidden(scope: Any, receive: Any, send: Any) -> None:
    await _send_error(send, 400, "BAD_INPUT", scope[_REFUSED_KEY])


async def _send_error(send: Any, status: int, code: str, message: str, *more: tuple[bytes, bytes]) -> None:
    body = encode_error(code, message)
    length = str(len(body)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", length), (b"connection", b"close"), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
