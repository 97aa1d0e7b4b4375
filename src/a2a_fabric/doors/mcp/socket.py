"""MCP over a WebSocket, one JSON-RPC message in each; the SDK has no such transport any more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from a2a_fabric.core.errors import BadInput, FabricError, Forbidden
from a2a_fabric.core.trace import new_trace
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.http import Head
from a2a_fabric.doors.mcp.answer import error_body
from a2a_fabric.doors.mcp.visit import Visit

if TYPE_CHECKING:
    from a2a_fabric.doors.mcp.room import Room

SUBPROTOCOL = "mcp"


class SocketEndpoint:
    def __init__(self, context: DoorContext, room: Callable[[], Awaitable[Room]]) -> None:
        self._context = context
        self._room = room

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await receive()  # the handshake
        head = Head(scope["headers"])
        try:
            principal, chain = self._context.identify(head.credentials), head.delegation_chain
        except FabricError as error:
            await _refuse(error, send)
            return
        room = await self._room()
        offered = scope.get("subprotocols") or ()
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL if SUBPROTOCOL in offered else None})
        line = _Line(receive, send)
        self._context.stream_opened()
        try:
            await room.converse(line.listen(), line.say, Visit(principal, head.trace, chain))
        finally:
            self._context.stream_closed()


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
    status = 403 if isinstance(error, Forbidden) else 400 if isinstance(error, BadInput) else 401
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="fabric"'))
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
