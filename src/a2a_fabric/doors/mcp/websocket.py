"""MCP over a WebSocket, one JSON-RPC message per frame. The SDK no longer ships such a transport."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.trace import new_trace
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.edge import RequestHead, build_error_headers, reject_handshake
from a2a_fabric.doors.mcp.errors import http_status_of, to_error_body
from a2a_fabric.doors.mcp.request_context import McpRequestContext

if TYPE_CHECKING:
    from a2a_fabric.doors.mcp.server import McpServer


SUBPROTOCOL = "mcp"


class McpWebSocketEndpoint:
    def __init__(self, context: DoorContext, get_server: Callable[[], Awaitable[McpServer]]) -> None:
        self._context = context
        self._get_server = get_server

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await receive()  # the handshake
        head = RequestHead(scope["headers"])
        try:
            principal, chain = self._context.identify(head.credentials), head.delegation_chain
            self._context.acquire_stream(principal.principal_id)
        except FabricError as error:
            trace, status = head.trace or new_trace(), http_status_of(error)
            headers = [(b"x-trace-id", trace.trace_id.encode()), *build_error_headers(error, status)]
            await reject_handshake(send, status, msgspec.json.encode(to_error_body(error, trace)), headers)
            self._context.log(trace, scope["path"], code=error.code, message=error.message, seconds=0.0, status=status)
            return
        try:
            server = await self._get_server()
            offered = scope.get("subprotocols") or ()
            await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL if SUBPROTOCOL in offered else None})
            channel = _TextChannel(receive, send)
            await server.run_text_session(
                channel.read_texts(), channel.send_text, McpRequestContext(principal, head.trace, chain)
            )
        finally:
            self._context.release_stream(principal.principal_id)


class _TextChannel:
    """The two directions of one connection."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._is_open = True

    async def read_texts(self) -> AsyncIterator[str | bytes]:
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self._is_open = False
                return
            yield message.get("text") or message.get("bytes") or b""

    async def send_text(self, text: str) -> None:
        """Text for a client that has disconnected is dropped."""
        if self._is_open:
            try:
                await self._send({"type": "websocket.send", "text": text})
            except (OSError, RuntimeError):
                self._is_open = False
