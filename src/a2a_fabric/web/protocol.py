"""Uvicorn's HTTP protocol with a leaner way through for the hot paths.

An application sees the same ASGI either way. On a hot path the scope holds only
what doors read, head and body of a reply leave in one write, headers that our own
doors made are not checked again, and an idle connection is timed without a timer
per reply. Both ways tell a request at once when its client has gone.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from a2a_fabric.doors.context import ASGIApp
from a2a_fabric.doors.http import HEAD, ON_DISCONNECT, SHORTCUT, Head
from a2a_fabric.web.asgi import refused

Leave = Callable[[], None]
_HEAD_BYTES = 64 * 1024
_NOTHING = bytearray()  # the body of a request whose body was taken; never written to


class Protocol(HttpToolsProtocol):
    """One connection. `hot` names the paths that take the lean way; the server sets it on a subclass."""

    hot: dict[bytes, tuple[str, ASGIApp]] = {}  # noqa: RUF012  # set once, never changed

    _leave: Leave | None = None
    _said: list[tuple[bytes, bytes]] | None = None  # the headers of the last request, and
    _head: Head | None = None  # what they come to
    _idle_since: float | None = None
    _unfinished = 0  # bytes of a head or of trailers that have not come to their end

    def data_received(self, data: bytes) -> None:
        """The parser keeps a head until it is whole, and trailers: neither may go on for ever."""
        self._unfinished += len(data)
        super().data_received(data)
        if self._unfinished > _HEAD_BYTES and not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self._refuse(431, f"The head of the request is larger than {_HEAD_BYTES} bytes")
            self.transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._look_after(self.timeout_keep_alive)

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_body(self, body: bytes) -> None:
        self._unfinished = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._unfinished = 0
        self._idle_since = None
        found = self.hot.get(self.url)
        if found is None or not self._takes_lean_way():
            self._go_the_long_way()
            return
        path, door = found
        scope: Any = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": self.headers,
            "client": self.client,
        }
        if self.headers != self._said:
            self._said, self._head = self.headers, Head(self.headers)
        scope[HEAD] = self._head
        self.scope = scope
        self.cycle = cycle = scope[SHORTCUT] = LeanCycle(self, scope)
        work: Any = door(scope, cycle.receive, cycle.send)
        cycle.task = task = self.loop.create_task(work)
        task.add_done_callback(cycle.is_over)
        self.tasks.add(task)

    def _takes_lean_way(self) -> bool:
        """Not for HEAD, whose reply has no body, nor for HTTP/1.0, which knows no chunks."""
        is_plain = self.parser.get_method() == b"POST" and self.parser.get_http_version() == "1.1"
        is_free = self.cycle is None or self.cycle.response_complete
        most = self.limit_concurrency
        has_room = most is None or (len(self.tasks) < most and len(self.connections) < most)
        return is_plain and is_free and has_room and not self.expect_100_continue and not self.parser.should_upgrade()

    def _go_the_long_way(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        scope: Any = self.scope
        scope[ON_DISCONNECT] = self._subscribe
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """What uvicorn itself would answer in plain text comes in our envelope too."""
        told: Any = cycle
        told.send_500_response = partial(_tell_of_failure, cycle)
        super()._start_asgi_task(cycle, _busy if app is service_unavailable else app)

    def _subscribe(self, leave: Leave | None) -> None:
        self._leave = leave

    def send_400_response(self, msg: str) -> None:
        """What is not even HTTP gets the same envelope as everything else."""
        self._refuse(400, msg)
        self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        body = refused("BAD_INPUT", message)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        if self._leave is not None:
            self._leave()
        if isinstance(self.cycle, LeanCycle):
            self.cycle.client_leaves()

    # A connection has one timer, which looks how long it has been idle and waits for the rest. It is idle until
    # the whole head of a request has come: one that trickles in does not hold it for ever.

    def _unset_keepalive_if_required(self) -> None:
        """Uvicorn's own timer, set and unset with each request, is not used."""

    def on_response_complete(self) -> None:
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._look_after(self.timeout_keep_alive)

    def _look_after(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.is_closing():
            return
        idle = 0.0 if self._idle_since is None else self.loop.time() - self._idle_since
        if idle >= self.timeout_keep_alive - 0.01:
            self.transport.close()
        else:
            self._look_after(self.timeout_keep_alive - idle)


async def _busy(scope: Any, receive: Any, send: Any) -> None:
    await _tell(send, 503, "RATE_LIMITED", "The node has as many connections as it takes; try again in a second")


async def _tell_of_failure(cycle: RequestResponseCycle) -> None:
    """Called while the exception is being handled."""
    await _tell(cycle.send, *_told_of(sys.exc_info()[1]))


def _told_of(error: BaseException | None) -> tuple[int, str, str]:
    if isinstance(error, asyncio.CancelledError):
        return 503, "NODE_STOPPED", "The node was stopped before the call was over"
    return 500, "INTERNAL_ERROR", "The node failed; its log says why"


async def _tell(send: Any, status: int, code: str, message: str) -> None:
    body = refused(code, message)
    length = str(len(body)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", length), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Bell:
    """The part of `asyncio.Event` that one waiter needs."""

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> None:
        if not self._is_set:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


class LeanCycle(RequestResponseCycle):
    """One request and its reply on a hot path."""

    # How all begin; on the class, since most of them never change.
    disconnected = False
    waiting_for_100_continue = False
    more_body = True
    response_started = False
    response_complete = False
    has_left = False
    task: asyncio.Task[None] | None = None
    _head: bytes | None = None
    _is_chunked = False

    def __init__(self, connection: Protocol, scope: Any) -> None:
        self.scope = scope
        self.transport = connection.transport
        self.flow = connection.flow
        self.message_event: Any = Bell()
        self.body = bytearray()
        self.keep_alive = connection.parser.should_keep_alive()
        self._connection = connection

    def is_over(self, task: asyncio.Task[None]) -> None:
        """The door has done its work; what it raised is a mistake of ours, for doors answer every error."""
        self._connection.tasks.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None and self.response_complete:
            return
        if error is not None and not self.has_left:
            self._connection.logger.error("a request was not answered to its end", exc_info=error)
        if self.response_complete or self.disconnected:
            return
        if self.response_started:
            self.transport.close()
        else:
            self.keep_alive = False
            status, code, message = _told_of(error)
            self.reply(status, b"content-type: application/json\r\n", refused(code, message))

    def client_leaves(self) -> None:
        if self.task is not None and not self.response_complete:
            self.has_left = True
            self.task.cancel()
            self._let_go()

    def take_body(self) -> bytes | None:
        if self.more_body or self.disconnected:
            return None
        body, self.body = bytes(self.body), _NOTHING
        return body

    def reply(self, status: int, head: bytes, body: bytes) -> None:
        if self.disconnected:
            return
        closing = b"" if self.keep_alive else b"connection: close\r\n"
        self.response_started = True
        self.transport.write(
            b"%b%bcontent-length: %d\r\n%b\r\n%b" % (STATUS_LINE[status], head, len(body), closing, body)
        )
        self._end()

    def write(self, piece: bytes) -> bool:
        if self.flow.write_paused or self.disconnected or self._head is not None or not piece:
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._is_chunked else piece)
        return True

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            self._begin(message["status"], message["headers"])
            return
        more = message.get("more_body", False)
        body: bytes = message.get("body", b"")
        if self._head is not None:
            head, self._head = self._head, None
            self.transport.write(head + self._framed(body, more=more))
        else:
            self.transport.write(self._framed(body, more=more))
        if not more:
            self._end()

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        parts = [STATUS_LINE[status]]
        self._is_chunked = status != 204  # which has no body at all
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
            if name == b"content-length":
                self._is_chunked = False
        if self._is_chunked:
            parts.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"\r\n")
        self.response_started = True
        self._head = b"".join(parts)

    def _framed(self, body: bytes, *, more: bool) -> bytes:
        if not self._is_chunked:
            return body
        chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        return chunk if more else chunk + b"0\r\n\r\n"

    def _end(self) -> None:
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self._connection.on_response_complete()
        self._let_go()

    def _let_go(self) -> None:
        """Task and scope refer to us: a circle would outlive the request until the garbage collector comes by."""
        self.task = None
        scope: Any = self.scope
        scope.pop(SHORTCUT, None)
