"""Uvicorn's HTTP protocol with a leaner way through for the hot paths.

An application sees the same ASGI either way. On a hot path the scope holds only
what doors read, a head that came before is not parsed again (`repeated`), a reply
leaves in one write (`cycle`), and an idle connection is timed without a timer per
reply. Both ways tell a request at once when its client has gone.
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
from a2a_fabric.web.cycle import LeanCycle, told_of
from a2a_fabric.web.repeated import Repeated

Leave = Callable[[], None]
_HEAD_BYTES = 64 * 1024


class Protocol(HttpToolsProtocol):
    """One connection. `hot` names the paths that take the lean way; the server sets it on a subclass."""

    hot: dict[bytes, tuple[str, ASGIApp]] = {}  # noqa: RUF012  # set once, never changed

    _leave: Leave | None = None
    _last: Repeated | None = None  # the head of the last request that took the lean way
    _is_lean = False  # whether the one does that is just being parsed
    _is_between = True  # requests: the parser has come to the end of one, and has heard nothing of the next
    _idle_since: float | None = None
    _unfinished = 0  # bytes of a head or of trailers that have not come to their end

    def data_received(self, data: bytes) -> None:
        last = self._last
        if last is not None and last.is_learned and self._is_between and self.cycle.response_complete:
            body = last.body_of(data)
            if body is not None and self._has_room():
                self._idle_since = None
                self._begin(last, body)
                return
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        """The parser keeps a head until it is whole, and trailers: neither may go on for ever."""
        was_between, self._is_lean = self._is_between, False
        self._unfinished += len(data)
        super().data_received(data)
        if self._is_lean and was_between and self._is_between and self._last is not None:
            self._last.learn(data)
        if self._unfinished > _HEAD_BYTES and not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self._refuse(431, f"The head of the request is larger than {_HEAD_BYTES} bytes")
            self.transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._look_after(self.timeout_keep_alive)

    def on_message_begin(self) -> None:
        self._is_between = False
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_body(self, body: bytes) -> None:
        self._unfinished = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_between = True
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._unfinished = 0
        self._idle_since = None
        found = self.hot.get(self.url)
        if found is None or not self._takes_lean_way():
            self._go_the_long_way()
            return
        path, door = found
        last = self._last
        if last is None or last.headers != self.headers or last.path != path:
            last = self._last = Repeated(path, door, self.headers, Head(self.headers))
        self._is_lean = True
        self._begin(last, None)

    def _begin(self, request: Repeated, body: bytes | None) -> None:
        """A request on the lean way; its body, if it has come already."""
        scope: Any = {
            "type": "http",
            "method": "POST",
            "path": request.path,
            "headers": request.headers,
            "client": self.client,
            HEAD: request.head,
        }
        self.cycle = cycle = scope[SHORTCUT] = LeanCycle(self, scope, body)
        work: Any = request.door(scope, cycle.receive, cycle.send)
        cycle.task = task = self.loop.create_task(work)
        task.add_done_callback(cycle.is_over)
        self.tasks.add(task)

    def _takes_lean_way(self) -> bool:
        """Not for HEAD, whose reply has no body, nor for HTTP/1.0, which knows no chunks."""
        is_plain = self.parser.get_method() == b"POST" and self.parser.get_http_version() == "1.1"
        is_free = self.cycle is None or self.cycle.response_complete
        return (
            is_plain
            and is_free
            and self._has_room()
            and not self.expect_100_continue
            and not self.parser.should_upgrade()
        )

    def _has_room(self) -> bool:
        most = self.limit_concurrency
        return most is None or (len(self.tasks) < most and len(self.connections) < most)

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
        if self.flow.read_paused:
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
    await _tell(cycle.send, *told_of(sys.exc_info()[1]))


async def _tell(send: Any, status: int, code: str, message: str) -> None:
    body = refused(code, message)
    length = str(len(body)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", length), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
