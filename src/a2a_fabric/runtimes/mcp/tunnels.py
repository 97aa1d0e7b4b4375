"""A conversation with an MCP server as a pair of message streams, for doors that pass messages on unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import (
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)
from msgspec import UNSET, Raw
from msgspec.json import encode

from a2a_fabric.core.forwarding import CallSigner
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.protocols.mcp.eras import find_cancelled_id
from a2a_fabric.protocols.mcp.runtime_ports import HTTPTunnel, StdioTunnel, Tunnel
from a2a_fabric.protocols.mcp.wire import McpMessage, decode_or_none
from a2a_fabric.runtimes.mcp.content import UpstreamRpcError
from a2a_fabric.runtimes.mcp.transports import McpHttpTarget, McpTransport, RequestId, RpcRequest

_MAX_QUEUED = 64  # messages of the server; then it waits


def build_tunnel(
    target: McpHttpTarget | None, make_transport: Callable[[], McpTransport], signer: CallSigner | None
) -> Tunnel:
    """Without a `target` for plain requests, clients talk with the server over message streams of their own."""

    def start() -> Any:
        return open_message_streams(make_transport())

    if target is not None:
        return HTTPTunnel(
            uri=target.uri, headers=target.headers, reply_bytes=target.reply_bytes, open=start, signer=signer
        )
    return StdioTunnel(open=start, signer=signer)


@asynccontextmanager
async def open_message_streams(
    transport: McpTransport,
) -> AsyncIterator[tuple[MemoryObjectReceiveStream[SessionMessage], _MessageWriter]]:
    """The server's messages, which end with it, and the writer of messages to it. Raises AgentOffline."""
    to_door, incoming = anyio.create_memory_object_stream[SessionMessage](_MAX_QUEUED)
    writer = _MessageWriter(transport, to_door)
    try:
        async with transport.open(writer, to_door.close):
            yield incoming, writer
    finally:
        await cancel_and_wait(*writer.tasks)
        incoming.close()
        to_door.close()


class _DirectRequest(RpcRequest):
    """A request whose reply does not go into the stream."""

    __slots__ = ()


class _MessageWriter:
    """Sends messages of a door, and receives what the transport brings."""

    def __init__(self, transport: McpTransport, to_door: Any) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self._transport = transport
        self._to_door = to_door
        self._requests: dict[RequestId, RpcRequest] = {}

    def start_request(
        self, request_id: RequestId, method: str, body: bytes, headers: Mapping[str, str]
    ) -> asyncio.Future[McpMessage]:
        request = _DirectRequest(request_id, method, None, None)
        self._requests[request_id] = request
        request.task = self._transport.start(method, body, headers, request)
        return request.reply

    def forget_request(self, request_id: RequestId) -> None:
        request = self._requests.pop(request_id, None)
        if request is not None and request.task is not None:
            request.task.cancel()

    async def send(self, item: SessionMessage) -> None:
        message, metadata = item.message, item.metadata
        headers = metadata.headers if isinstance(metadata, ClientMessageMetadata) else None
        body = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        if isinstance(message, JSONRPCRequest):
            request = RpcRequest(message.id, message.method, None, None)
            self._requests[message.id] = request
            request.task = self._transport.start(message.method, body, headers or {}, request)
            return
        method = message.method if isinstance(message, JSONRPCNotification) else ""
        cancelled = self._find_cancelled(message) if method == "notifications/cancelled" else None
        if method != "notifications/cancelled" or not self._transport.cancels_by_closing:
            task = self._transport.start(method, body, headers or {})
            if task is not None:
                await task
        if cancelled is not None and cancelled.task is not None:
            cancelled.task.cancel()

    def _find_cancelled(self, message: JSONRPCMessage) -> RpcRequest | None:
        request_id = find_cancelled_id(message)
        return None if request_id is None else self._requests.pop(request_id, None)

    async def receive(self, message: McpMessage, request: RpcRequest | None) -> None:
        if message.method is UNSET:
            named = self._requests.get(message.id) if isinstance(message.id, str | int) else None
            direct = named or request
            if direct.__class__ is _DirectRequest:
                self._resolve(direct, message, request)
                return
        parsed = _to_sdk_message(message)
        if isinstance(parsed, JSONRPCResponse | JSONRPCError):
            answered = self._requests.pop(parsed.id, None) if parsed.id is not None else None
            answered = answered or request
            if answered is None or answered.is_answered:
                return
            answered.reply.set_result(None)
            parsed.id = answered.id
            if answered is not request and answered.task is not None:
                answered.task.cancel()  # the reply came by another way than the task waits for
        await self._put(parsed)

    def _resolve(self, direct: RpcRequest, message: McpMessage, request: RpcRequest | None) -> None:
        self._requests.pop(direct.id, None)
        if not direct.is_answered:
            direct.reply.set_result(message)
            if direct is not request and direct.task is not None:
                direct.task.cancel()  # the reply came by another way than the task waits for

    def fail(self, request: RpcRequest, error: UpstreamRpcError) -> None:
        self._requests.pop(request.id, None)
        if request.__class__ is _DirectRequest:
            if not request.is_answered:
                raw_error = Raw(encode({"code": error.code, "message": error.message, "data": error.data}))
                request.reply.set_result(McpMessage(jsonrpc="2.0", id=request.id, error=raw_error))
            return
        data = ErrorData(code=error.code, message=error.message, data=error.data)
        task = asyncio.ensure_future(self._put(JSONRPCError(jsonrpc="2.0", id=request.id, error=data)))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _put(self, message: JSONRPCMessage) -> None:
        try:
            await self._to_door.send(SessionMessage(message))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the door has left


def _to_sdk_message(message: McpMessage) -> JSONRPCMessage:
    """A reply that cannot be read becomes an error."""
    request_id = None if message.id is UNSET else message.id
    if message.method is UNSET:
        result = decode_or_none(message.result, dict)
        if result is not None and request_id is not None:
            return JSONRPCResponse(jsonrpc="2.0", id=request_id, result=result)
        error = decode_or_none(message.error, UpstreamRpcError) or UpstreamRpcError(
            PARSE_ERROR, "The MCP server's answer cannot be read"
        )
        data = ErrorData(code=error.code, message=error.message, data=error.data)
        return JSONRPCError(jsonrpc="2.0", id=request_id, error=data)
    params = decode_or_none(message.params, dict) if message.params else None
    fields = {} if params is None else {"params": params}
    if request_id is None:
        return JSONRPCNotification(jsonrpc="2.0", method=message.method, **fields)
    return JSONRPCRequest(jsonrpc="2.0", id=request_id, method=message.method, **fields)
