"""MCP over a WebSocket, one JSON-RPC message in each; the SDK has no such transport any more."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from a2a_fabric.core.errors import BadInput, FabricError, Forbidden, RateLimited
from a2a_fabric.core.trace import new_trace
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.http import Head
from a2a_fabric.doors.mcp.answer import error_body
from a2a_fabric.doors.mcp.visit import Visit

if TYPE_CHECKING:
    from a2a_fabric.doors.mcp.room import Room

SUBPROTOCOL = "mcp"

_STATUSES: dict[type[FabricError], int] = {Forbidden: 403, RateLimited: 429, BadInput: 400}


class SocketEndpoint:
    def __init__(self, context: DoorContext, room: Callable[[], Awaitable[Room]]) -> None:
        self._context = context
        self._room = room

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await receive()  # the handshake
        head = Head(scope["headers"])
        try:
            principal, chain = self._context.identify(head.credentials), head.delegation_chain
            self._context.stream_opened(principal.principal_id)
        except FabricError as error:
            await _refuse(error, send)
            return
        try:
            room = await self._room()
            offered = scope.get("subprotocols") or ()
            await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL if SUBPROTOCOL in offered else None})
            line = _Line(receive, send)
            await room.converse(line.listen(), line.say, Visit(principal, head.trace, chain))
        finally:
            self._context.stream_closed(principal.principal_id)


class _Line:
    """The two directions of one connection."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._is_open = True

    async def listen(self) -> AsyncIterator[str | bytes]:
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self._is_open = False
                return
            yield message.get("text") or message.get("bytes") or b""

    async def say(self, text: str) -> None:
        """What is said after the other side has gone is lost, as it must be."""
        if self._is_open:
            try:
                await self._send({"type": "websocket.send", "text": text})
            except (OSError, RuntimeError):
                self._is_open = False


async def _refuse(error: FabricError, send: Send) -> None:
    body = msgspec.json.encode(error_body(error, new_trace()))
    status = next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 401)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="fabric"'))
    if isinstance(error, RateLimited):
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after))))
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
