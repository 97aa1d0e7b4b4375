"""The short way to a stateless server over HTTP: one POST by our own client, one reply, no session in between.

Only `tools/call` goes this way. A reply may be JSON, or a stream of notifications that
ends with the reply; closing the connection is how the stateless era cancels.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    encode_header_value,
    mcp_param_headers,
)
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, LOG_LEVEL_META_KEY, PROTOCOL_VERSION_META_KEY

from a2a_fabric.core.call import Call
from a2a_fabric.core.delegation import HEADER, as_header_and_json, in_metadata
from a2a_fabric.core.errors import (
    AgentOffline,
    CallTimeout,
    ErrorTable,
    FabricError,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
    translated,
)
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.trace import traceparent
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.port import (
    ConnectFailed,
    DeadlineExceeded,
    HTTPClient,
    Interrupted,
    OutboundError,
    ReplyTooLarge,
)
from a2a_fabric.runtimes.mcp_content import RPCError, ToolReply, event_of
from a2a_fabric.runtimes.mcp_http import Place
from a2a_fabric.runtimes.mcp_link import CLIENT
from a2a_fabric.runtimes.mcp_questions import OFFERED

_ERRORS: ErrorTable = {
    ConnectFailed: AgentOffline,
    ReplyTooLarge: UpstreamRefused,
    Interrupted: UpstreamInterrupted,
}

_BAD_STATUS: dict[int, type[FabricError]] = {502: UpstreamInterrupted, 503: AgentOffline, 504: UpstreamInterrupted}

_NAMES_KEPT = 10_000
_PLAIN = (
    b'{"jsonrpc":"2.0","id":%d,"method":"tools/call",'
    b'"params":{"name":%b,"arguments":%b,"_meta":%b,"traceparent":"%b","a2a-fabric/delegation_chain":%b}}}'
)

HeaderMaps = Mapping[str, Mapping[tuple[str, ...], str]]


class ToolRequest(msgspec.Struct, frozen=True):
    """`further` are the params that answer the server's question."""

    tool: str
    arguments: dict[str, Any]
    further: Mapping[str, Any] = {}


class _Message(msgspec.Struct, frozen=True):
    """A reply, or a notification on the way to it."""

    result: ToolReply | None = None
    error: RPCError | None = None
    method: str | None = None
    params: dict[str, Any] | None = None


_messages = msgspec.json.Decoder(_Message)


class DirectCaller:
    def __init__(self, place: Place, http: HTTPClient, version: str, *, may_ask: bool = True) -> None:
        self._place = place
        self._http = http  # belongs to the node
        self._ids = itertools.count(1)
        self._headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            MCP_PROTOCOL_VERSION_HEADER: version,
            MCP_METHOD_HEADER: "tools/call",
            **place.headers,
        }
        self._meta: dict[str, Any] = {
            PROTOCOL_VERSION_META_KEY: version,
            CLIENT_INFO_META_KEY: {"name": CLIENT.name, "version": CLIENT.version},
            CLIENT_CAPABILITIES_META_KEY: OFFERED if may_ask else {},
        }
        self._encoder = msgspec.json.Encoder()
        self._start_of_meta = self._encoder.encode(self._meta)[:-1]
        self._named: dict[str, tuple[dict[str, str], bytes]] = {}  # by tool: headers, and its name as JSON

    async def call(self, request: ToolRequest, call: Call, emit: Emit, maps: HeaderMaps) -> ToolReply | RPCError:
        """The server's answer. Raises FabricError if there is none."""
        tool, header, chain = request.tool, traceparent(call.trace), b"[]"
        naming, name = self._named.get(tool) or self._naming(tool)
        headers = {**naming, "traceparent": header}
        if call.delegation_chain:
            headers[HEADER], chain = as_header_and_json(call.delegation_chain)
        if header_map := maps.get(tool):
            headers.update(mcp_param_headers(header_map, request.arguments))
        timeout = call.target.timeout_ms / 1000
        try:
            if call.response.stream:
                return await self._streamed(headers, self._detailed_body(request, header, call), timeout, emit)
            is_plain = not request.further
            body = self._body(name, request, header, chain) if is_plain else self._detailed_body(request, header, call)
            place = self._place
            reply = await self._http.request(
                "POST", place.uri, headers=headers, body=body, timeout=timeout, limit=place.reply_bytes
            )
            if reply.headers.get("content-type") != "application/json" and _is_stream(reply.headers):
                return await self._last(_once(reply.body), None)
            return _answer(reply.status, reply.body)
        except DeadlineExceeded as exc:
            raise CallTimeout(timeout) from exc
        except OutboundError:
            with translated(_ERRORS):
                raise

    def _naming(self, tool: str) -> tuple[dict[str, str], bytes]:
        if len(self._named) >= _NAMES_KEPT:
            self._named.clear()
        headers = {**self._headers, MCP_NAME_HEADER: encode_header_value(tool)}
        named = self._named[tool] = headers, self._encoder.encode(tool)
        return named

    def _body(self, name: bytes, request: ToolRequest, header: str, chain: bytes) -> bytes:
        arguments = self._encoder.encode(request.arguments)
        return _PLAIN % (next(self._ids), name, arguments, self._start_of_meta, header.encode(), chain)

    def _detailed_body(self, request: ToolRequest, header: str, call: Call) -> bytes:
        number = next(self._ids)
        meta = {**self._meta, "traceparent": header, **in_metadata(call.delegation_chain)}
        if call.response.stream:
            meta |= {"progressToken": number, LOG_LEVEL_META_KEY: "info"}
        params = {"name": request.tool, "arguments": request.arguments, **request.further, "_meta": meta}
        return self._encoder.encode({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})

    async def _streamed(self, headers: dict[str, str], body: bytes, timeout: float, emit: Emit) -> ToolReply | RPCError:
        async with self._http.stream(
            "POST", self._place.uri, headers=headers, body=body, timeout=timeout, limit=2**62
        ) as reply:
            if _is_stream(reply.headers):
                return await self._last(reply.chunks(), emit)
            return _answer(reply.status, await self._bounded(reply.chunks()))

    async def _bounded(self, chunks: AsyncIterator[bytes]) -> bytes:
        body = bytearray()
        async for chunk in chunks:
            body += chunk
            if len(body) > self._place.reply_bytes:
                raise ReplyTooLarge(f"the reply is larger than {self._place.reply_bytes} bytes")
        return bytes(body)

    async def _last(self, chunks: AsyncIterator[bytes], emit: Emit | None) -> ToolReply | RPCError:
        """The message that ends the stream; those before it are passed on."""
        async for data in sse.data_of(chunks, limit=self._place.reply_bytes):
            message = _decoded(data)
            if message.result is not None or message.error is not None:
                return message.result or message.error  # type: ignore[return-value]  # one of them is there
            if emit is not None and message.method and (event := event_of(message.method, message.params or {})):
                await emit(event)
        raise UpstreamInterrupted("The MCP server's stream ended before its answer")


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _is_stream(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").lower().startswith("text/event-stream")


def _answer(status: int, body: bytes) -> ToolReply | RPCError:
    """JSON-RPC whatever the status; without it, the status is all there is."""
    if not 200 <= status < 300 and not body.lstrip().startswith(b"{"):  # redirects are never followed
        raise _bad_status(status)
    try:
        message = _decoded(body)
    except UpstreamFailed:
        if 200 <= status < 300:
            raise
        raise _bad_status(status) from None
    if message.error is not None:
        return message.error
    if message.result is None or not 200 <= status < 300:
        raise _bad_status(status)
    return message.result


def _bad_status(status: int) -> FabricError:
    failure = _BAD_STATUS.get(status) or (UpstreamRefused if 400 <= status < 500 else UpstreamFailed)
    return failure(f"The MCP server answered HTTP {status}", status=status)


def _decoded(body: bytes) -> _Message:
    try:
        return _messages.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UpstreamFailed(f"The MCP server's answer cannot be read: {str(exc)[:200]}") from exc
