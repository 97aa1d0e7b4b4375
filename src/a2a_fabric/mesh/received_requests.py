"""A request of another node that arrived over NATS, as ASGI, and its reply in pieces."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
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
        self, outbox: Outbox, request: RequestMessage, limit: int, on_end: Callable[[ReceivedRequest], None]
    ) -> None:
        self.sender = request.sender
        self.number = request.number
        self._outbox = outbox
        self._on_end = on_end
        self._request = request
        self.is_waiting = request.method == "GET"
        self._limit = limit
        self._body = bytearray(request.body)
        self._has_body = asyncio.Event()
        self._is_gone = asyncio.Event()
        self._on_disconnect: Callable[[], object] | None = None
        self._credit = WINDOW
        self._has_credit = asyncio.Event()
        self._head: tuple[int, dict[str, str]] | None = None
        self._has_begun = False
        self._is_complete = False
        self._was_read = False
        if request.is_last:
            self._has_body.set()

    def add_body(self, piece: bytes, *, is_last: bool) -> None:
        if len(self._body) <= self._limit:  # one piece more, and the application refuses the body
            self._body += piece
        if is_last:
            self._has_body.set()

    def add_credit(self, pieces: int) -> None:
        self._credit += pieces
        self._has_credit.set()

    def disconnect(self) -> None:
        self._is_gone.set()
        self._has_credit.set()
        self._has_body.set()
        if self._on_disconnect is not None:
            self._on_disconnect()

    async def run_call(self, serve_call: ServeCall) -> None:
        """A call whose body has arrived: without HTTP, but with the same messages."""
        try:
            await serve_call(self._request.body, self._write_call)
        except OutboundError as exc:
            _log.debug("the reply to node %s was not sent: %s", self.sender, exc)
        except asyncio.CancelledError:
            if not self._is_gone.is_set():
                raise
        finally:
            self._finish()

    async def _write_call(self, data: bytes, is_last: bool) -> None:
        self._head = self._head or _CALL_HEAD
        await self._write(data, is_last=is_last)

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        self._on_disconnect = callback

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
        if not self._is_complete and not self._is_gone.is_set():
            self.break_off()

    def break_off(self) -> None:
        """Tell the reader that the reply ends here, and is not complete."""
        if self._has_begun:
            self._outbox.send_soon(self.sender, ChunkMessage(self.number, b"", True, True))
        else:
            self._outbox.send_soon(self.sender, ReplyMessage(self.number, 500, {}, b"", True))

    def _set_callback(self, callback: Callable[[], None] | None) -> None:
        self._on_disconnect = callback
        if callback is not None and self._is_gone.is_set():
            asyncio.get_running_loop().call_soon(callback)

    async def _receive(self) -> Any:
        if not self._was_read:
            await self._has_body.wait()
            self._was_read = True
            if not self._is_gone.is_set():
                return {"type": "http.request", "body": bytes(self._body), "more_body": False}
        await self._is_gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
            self._head = message["status"], headers
            return
        await self._write(message.get("body", b""), is_last=not message.get("more_body", False))

    async def _write(self, body: bytes, *, is_last: bool) -> None:
        while len(body) > PIECE_BYTES:
            piece, body = body[:PIECE_BYTES], body[PIECE_BYTES:]
            await self._send_piece(bytes(piece), is_last=False)
        await self._send_piece(bytes(body), is_last=is_last)
        self._is_complete = is_last

    async def _send_piece(self, piece: bytes, *, is_last: bool) -> None:
        while self._credit <= 0 and not self._is_gone.is_set():
            self._has_credit.clear()
            await self._has_credit.wait()
        if self._is_gone.is_set():
            return  # as a server does whose client has left; the application is cancelled
        self._credit -= 1
        if self._has_begun:
            await self._outbox.send(self.sender, ChunkMessage(self.number, piece, is_last))
            return
        assert self._head is not None  # noqa: S101  # ASGI
        self._has_begun = True
        status, headers = self._head
        await self._outbox.send(self.sender, ReplyMessage(self.number, status, headers, piece, is_last))
