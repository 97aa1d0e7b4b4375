"""A request of another node that arrived over NATS, as ASGI, and its reply in pieces."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from a2a_fabric.doors.context import ASGIApp
from a2a_fabric.doors.edge import ON_DISCONNECT_KEY
from a2a_fabric.mesh.messages import PIECE_BYTES, WINDOW, ChunkMessage, ReplyMessage, RequestMessage
from a2a_fabric.mesh.outbox import Outbox
from a2a_fabric.mesh.services import ServeCall
from a2a_fabric.outbound.port import OutboundError

_log = logging.getLogger(__name__)
_CALL_HEAD: tuple[int, dict[str, str]] = (200, {})


class ReceivedRequest:
    """`limit` bounds its body. `on_end` is called when it was answered, or has no reader any more."""

    def __init__(
        self,
        outbox: Outbox,
        request: RequestMessage,
        limit: int,
        on_end: Callable[[ReceivedRequest], None],
        start_id: str,
    ) -> None:
        """`start_id` is the start of the sender for which the reply is signed."""
        self.sender = request.sender
        self.start_id = start_id
        self.number = request.number
        self._outbox = outbox
        self._on_end = on_end
        self._request = request
        self.is_waiting = request.method == "GET"
        self._limit = limit
        self._body = bytearray() if request.is_last else bytearray(request.body)
        self._has_whole_body = request.is_last
        self._body_index = 0
        self._chunks = 0  # sent
        self._is_gone = False
        self._news: asyncio.Event | None = None  # more of the body, more credit, or the reader is gone
        self._on_disconnect: Callable[[], object] | None = None
        self.task: asyncio.Task[None] | None = None  # of a call
        self._credit = WINDOW
        self._head: tuple[int, dict[str, str]] | None = None
        self._has_begun = False
        self._is_complete = False
        self._was_read = False

    def add_body(self, piece: bytes, index: int, *, is_last: bool) -> None:
        if index and index != self._body_index + 1:
            return  # it was recorded, and sent a second time
        self._body_index = index
        if len(self._body) <= self._limit:  # one piece more, and the application refuses the body
            self._body += piece
        self._has_whole_body = is_last
        self._report_news()

    def add_credit(self, pieces: int) -> None:
        self._credit += pieces
        self._report_news()

    def disconnect(self) -> None:
        self._is_gone = True
        self._report_news()
        if self._on_disconnect is not None:
            self._on_disconnect()
        if self.task is not None:
            self.task.cancel()

    def _report_news(self) -> None:
        if self._news is not None:
            self._news.set()

    async def _wait_for_news(self) -> None:
        """Most requests never wait, so they have no event."""
        if self._news is None:
            self._news = asyncio.Event()
        self._news.clear()
        await self._news.wait()

    def start_call(self, serve_call: ServeCall) -> None:
        """A call whose body has arrived: without HTTP, but with the same messages."""
        self.task = asyncio.get_running_loop().create_task(self._run_call(serve_call))

    async def _run_call(self, serve_call: ServeCall) -> None:
        try:
            await serve_call(self._request.body, self._write_call)
        except OutboundError as exc:
            _log.debug("the reply to node %s was not sent: %s", self.sender, exc)
        except asyncio.CancelledError:
            if not self._is_gone:
                raise
        finally:
            self._finish()

    def _write_call(self, data: bytes, is_last: bool) -> Awaitable[None]:
        self._head = _CALL_HEAD
        return self._write(data, is_last=is_last)

    async def run(self, app: ASGIApp) -> None:
        path, _, query = self._request.target.partition("?")
        scope: dict[str, Any] = {
            "type": "http",
            "http_version": "1.1",
            "method": self._request.method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode("latin-1"),
            "headers": [
                (name.lower().encode("latin-1"), value.encode("latin-1"))
                for name, value in self._request.headers.items()
            ],
            "client": None,
            "state": {},
            ON_DISCONNECT_KEY: self._set_callback,
        }
        try:
            await app(scope, self._receive, self._send)
        except OutboundError as exc:
            _log.debug("the reply to node %s was not sent: %s", self.sender, exc)
        except Exception:
            _log.exception("a request of node %s failed", self.sender)
        finally:
            self._finish()

    def _finish(self) -> None:
        self._on_end(self)
        if not self._is_complete and not self._is_gone:
            self.break_off()

    def break_off(self) -> None:
        """Tell the reader that the reply ends here, and is not complete."""
        if self._has_begun:
            broken = ChunkMessage(self.number, b"", True, True, self._chunks + 1)
            self._outbox.send_soon(self.sender, self.start_id, broken)
        else:
            self._outbox.send_soon(self.sender, self.start_id, ReplyMessage(self.number, 500, {}, b"", True))

    def _set_callback(self, callback: Callable[[], None] | None) -> None:
        self._on_disconnect = callback
        if callback is not None and self._is_gone:
            asyncio.get_running_loop().call_soon(callback)

    async def _receive(self) -> Any:
        if not self._was_read:
            while not self._has_whole_body and not self._is_gone:
                await self._wait_for_news()
            self._was_read = True
            if not self._is_gone:
                return {"type": "http.request", "body": bytes(self._body) or self._request.body, "more_body": False}
        while not self._is_gone:
            await self._wait_for_news()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
            self._head = message["status"], headers
            return
        await self._write(message.get("body", b""), is_last=not message.get("more_body", False))

    def _write(self, body: bytes, *, is_last: bool) -> Awaitable[None]:
        send = self._send_piece if len(body) <= PIECE_BYTES else self._send_pieces
        return send(body, is_last=is_last)

    async def _send_pieces(self, body: bytes, *, is_last: bool) -> None:
        while len(body) > PIECE_BYTES:
            piece, body = body[:PIECE_BYTES], body[PIECE_BYTES:]
            await self._send_piece(piece, is_last=False)
        await self._send_piece(body, is_last=is_last)

    async def _send_piece(self, piece: bytes, *, is_last: bool) -> None:
        while self._credit <= 0 and not self._is_gone:
            await self._wait_for_news()
        if self._is_gone:
            return  # as a server does whose client has left; the application is cancelled
        self._credit -= 1
        message: ReplyMessage | ChunkMessage
        if self._has_begun:
            self._chunks += 1
            message = ChunkMessage(self.number, piece, is_last, False, self._chunks)
        else:
            assert self._head is not None  # noqa: S101  # ASGI
            self._has_begun = True
            status, headers = self._head
            message = ReplyMessage(self.number, status, headers, piece, is_last)
        if (waiting := self._outbox.post(self.sender, self.start_id, message)) is not None:
            await waiting
        self._is_complete = is_last
