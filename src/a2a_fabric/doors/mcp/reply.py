"""The reply to one request of the stateless era: JSON, or a stream once something happens before the answer."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from a2a_fabric.doors.context import Send
from a2a_fabric.doors.mcp import jsonrpc
from a2a_fabric.doors.mcp.jsonrpc import RPCError

_PING_AFTER = 15.0  # proxies close silent connections
_JSON = [(b"content-type", b"application/json")]
_STREAM = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_encode = msgspec.json.Encoder().encode


class Reply:
    """Entered while the answer is waited for."""

    def __init__(self, request_id: str | int, send: Send) -> None:
        self._id = request_id
        self._send = send
        self._is_open = False
        self._mouth = asyncio.Lock()
        self._pinging: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._pinging = asyncio.ensure_future(self._ping())

    def __exit__(self, *exc: object) -> None:
        if self._pinging is not None:
            self._pinging.cancel()

    async def result(self, result: Any) -> None:
        await self._close(_encode({"jsonrpc": "2.0", "id": self._id, "result": result}), 200)

    async def error(self, error: RPCError) -> None:
        await self._close(jsonrpc.failure(error, self._id), error.status)

    async def notify(self, method: str, params: Any) -> None:
        note = {"jsonrpc": "2.0", "method": method}
        await self._write(_frame(_encode({**note, "params": params} if params is not None else note)), more=True)

    async def _close(self, body: bytes, status: int) -> None:
        if self._is_open:
            await self._write(_frame(body), more=False)
            return
        headers = [*_JSON, (b"content-length", str(len(body)).encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def _write(self, frame: bytes, *, more: bool) -> None:
        async with self._mouth:
            if not self._is_open:
                self._is_open = True
                await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM})
            await self._send({"type": "http.response.body", "body": frame, "more_body": more})

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(_PING_AFTER)
            await self._write(b": ping\r\n\r\n", more=True)


def _frame(body: bytes) -> bytes:
    return b"event: message\r\ndata: %b\r\n\r\n" % body
