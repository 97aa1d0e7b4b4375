"""One request and its reply on a hot path.

Uvicorn's cycle with less around it: no event object of its own, headers that our own
doors made are not checked again, head and body of a reply leave in one write.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from a2a_fabric.doors.http import SHORTCUT
from a2a_fabric.web.asgi import refused

if TYPE_CHECKING:
    from a2a_fabric.web.protocol import Protocol

_NOTHING = bytearray()  # the body of a request whose body was taken; never written to


def told_of(error: BaseException | None) -> tuple[int, str, str]:
    """Status, code and words for a request that ended without an answer."""
    if isinstance(error, asyncio.CancelledError):
        return 503, "NODE_STOPPED", "The node was stopped before the call was over"
    return 500, "INTERNAL_ERROR", "The node failed; its log says why"


class LeanCycle(RequestResponseCycle):
    # How all begin; on the class, since most of them never change.
    disconnected = False
    waiting_for_100_continue = False
    more_body = True
    response_started = False
    response_complete = False
    keep_alive = True
    has_left = False
    task: asyncio.Task[None] | None = None
    _head: bytes | None = None
    _is_chunked = False
    _has_news = False  # more of the request has come than `receive` has told
    _listener: asyncio.Future[None] | None = None

    def __init__(self, connection: Protocol, scope: Any, body: bytes | None) -> None:
        """`body` is the whole of it, of a request whose head was known; else the parser brings it."""
        self.scope = scope
        self.transport = connection.transport
        self.flow = connection.flow
        self._connection = connection
        if body is None:
            self.body = bytearray()
            self.keep_alive = connection.parser.should_keep_alive()
        else:
            self.body = body  # type: ignore[assignment]  # nothing more is added to it
            self.more_body = False
            self._has_news = True

    # The part of `asyncio.Event` that one listener needs, under the names by which uvicorn knows it.

    @property
    def message_event(self) -> Any:  # type: ignore[override]  # an attribute there
        return self

    def set(self) -> None:
        self._has_news = True
        if self._listener is not None and not self._listener.done():
            self._listener.set_result(None)

    def clear(self) -> None:
        self._has_news = False

    async def wait(self) -> None:
        if not self._has_news:
            self._listener = asyncio.get_running_loop().create_future()
            await self._listener

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
            status, code, message = told_of(error)
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
        if self.more_body:
            self._end_early()
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
        if self.more_body:
            self._end_early()
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"\r\n")
        self.response_started = True
        self._head = b"".join(parts)

    def _end_early(self) -> None:
        """The reply leaves before all of the request has come."""
        self.keep_alive = self.keep_alive and self._connection.may_go_on_after(self)

    def _framed(self, body: bytes, *, more: bool) -> bytes:
        if not self._is_chunked:
            return body
        chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        return chunk if more else chunk + b"0\r\n\r\n"

    def _end(self) -> None:
        self.response_complete = True
        if self._listener is not None:
            self.set()
        if not self.keep_alive:
            self._connection.linger()  # which closes, if the client has nothing more to say
        self._connection.on_response_complete()
        self._let_go()

    def _let_go(self) -> None:
        """Task and scope refer to us: a circle would outlive the request until the garbage collector comes by."""
        self.task = None
        scope: Any = self.scope
        scope.pop(SHORTCUT, None)
