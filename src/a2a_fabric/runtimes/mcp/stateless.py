"""Tool calls to a stateless MCP server over HTTP: one POST by our own client, one reply, no session.

The reply is JSON, or a stream of notifications that ends with the reply. Closing the connection cancels the call.

Invariants of the fast path (a plain call, no stream, no answers):
- The body is written by one template. Everything but the tool's name, the arguments, the id, the trace and the
  delegation chain is encoded once, when the caller is made; `_meta_prefixes` therefore end before the last brace.
- Headers are fixed once per tool, except those of the trace and the chain (`FixedHeaders`); no header of an earlier
  call can leak into another.
- The deadline is the HTTP client's: no timer is made here.
- Names are cached up to a bound, because tool names come from callers."""

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

from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.errors import (
    UpstreamFailed,
    UpstreamInterrupted,
)
from a2a_fabric.core.forwarding import CallSigner, sign_metadata
from a2a_fabric.core.propagation import DELEGATION_HEADER, as_header_and_json, chain_to_metadata, format_traceparent
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.headers import FixedHeaders, VaryingHeaders
from a2a_fabric.outbound.port import (
    HTTPClient,
    OutboundError,
)
from a2a_fabric.protocols.mcp.content import can_show_apps
from a2a_fabric.runtimes.mcp.content import ProgressFilter, ToolReply, UpstreamRpcError, event_from_notification
from a2a_fabric.runtimes.mcp.questions import make_call_capabilities
from a2a_fabric.runtimes.mcp.sessions import CLIENT
from a2a_fabric.runtimes.mcp.transports import McpHttpTarget
from a2a_fabric.runtimes.upstream import error_from_outbound, error_from_refusal, read_bounded, redact_url

_SERVER = "The MCP server"
_MAX_CACHED_NAMES = 10_000
_BODY_TEMPLATE = (
    b'{"jsonrpc":"2.0","id":%d,"method":"tools/call",'
    b'"params":{"name":%b,"arguments":%b,"_meta":%b,"traceparent":"%b","a2a-fabric/delegation_chain":%b}}}'
)

HeaderMaps = Mapping[str, Mapping[tuple[str, ...], str]]


class ToolRequest(msgspec.Struct, frozen=True):
    """`answer_params` answer the server's earlier questions."""

    tool: str
    arguments: dict[str, Any]
    answer_params: Mapping[str, Any] = {}


class _RpcMessage(msgspec.Struct, frozen=True):
    """A reply, or a notification before it."""

    result: ToolReply | None = None
    error: UpstreamRpcError | None = None
    method: str | None = None
    params: dict[str, Any] | None = None


_message_decoder = msgspec.json.Decoder(_RpcMessage)
_encode = msgspec.json.Encoder().encode
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class StatelessCaller:
    def __init__(
        self,
        target: McpHttpTarget,
        http: HTTPClient,
        version: str,
        *,
        may_ask: bool = True,
        signer: CallSigner | None = None,
    ) -> None:
        self._target = target
        self._signer = signer
        self._http = http  # belongs to the node
        self._ids = itertools.count(1)
        self._headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            MCP_PROTOCOL_VERSION_HEADER: version,
            MCP_METHOD_HEADER: "tools/call",
            **target.headers,
        }
        self._metas: dict[bool, dict[str, Any]] = {  # by whether the client shows user interfaces
            shows_apps: {
                PROTOCOL_VERSION_META_KEY: version,
                CLIENT_INFO_META_KEY: {"name": CLIENT.name, "version": CLIENT.version},
                CLIENT_CAPABILITIES_META_KEY: make_call_capabilities(may_ask=may_ask, shows_apps=shows_apps),
            }
            for shows_apps in (False, True)
        }
        self._meta_prefixes = {key: _encode(meta)[:-1] for key, meta in self._metas.items()}
        self._headers_by_tool: dict[str, tuple[FixedHeaders, bytes]] = {}  # by tool; with its name as JSON

    async def call(
        self, request: ToolRequest, call: Call, emit: Emit, header_maps: HeaderMaps
    ) -> ToolReply | UpstreamRpcError:
        """The server's answer. Raises FabricError if there is no answer."""
        tool, header = request.tool, format_traceparent(call.trace)
        fixed_headers, name = self._headers_by_tool.get(tool) or self._cache_headers(tool)
        headers: Mapping[str, str]
        if call.delegation_chain:
            chain_header, chain = as_header_and_json(call.delegation_chain)
            headers = VaryingHeaders(fixed_headers, (header, chain_header))
        else:
            chain, headers = b"[]", {**fixed_headers.headers, "traceparent": header}
        if header_map := header_maps.get(tool):
            headers = {**headers, **mcp_param_headers(header_map, request.arguments)}
        timeout = call.target.timeout_ms / 1000
        try:
            if call.response.stream:
                return await self._call_streaming(
                    headers, self._encode_detailed_body(request, header, call), timeout, emit
                )
            if not request.answer_params and self._signer is None:
                arguments, meta_prefix = _encode(request.arguments), self._meta_prefixes[can_show_apps(call)]
                body = _BODY_TEMPLATE % (next(self._ids), name, arguments, meta_prefix, header.encode(), chain)
            else:
                body = self._encode_detailed_body(request, header, call)
            target = self._target
            reply = await self._http.request(
                "POST", target.uri, headers=headers, body=body, timeout=timeout, limit=target.reply_bytes
            )
            if reply.headers.get("content-type") != "application/json" and sse.is_event_stream(reply.headers):
                return await self._read_final_message(_iterate_once(reply.body), None)
            return _parse_answer(reply.status, reply.headers, reply.body)
        except OutboundError as exc:
            raise error_from_outbound(exc, timeout, redact_url(self._target.uri)) from exc

    def _cache_headers(self, tool: str) -> tuple[FixedHeaders, bytes]:
        if len(self._headers_by_tool) >= _MAX_CACHED_NAMES:
            self._headers_by_tool.clear()
        headers = {**self._headers, MCP_NAME_HEADER: encode_header_value(tool)}
        named = FixedHeaders(headers, ("traceparent", DELEGATION_HEADER)), _encode(tool)
        self._headers_by_tool[tool] = named
        return named

    def _encode_detailed_body(self, request: ToolRequest, traceparent: str, call: Call) -> bytes:
        number = next(self._ids)
        meta = {
            **self._metas[can_show_apps(call)],
            "traceparent": traceparent,
            **chain_to_metadata(call.delegation_chain),
            **sign_metadata(self._signer, call, request.arguments, request.tool),
        }
        if call.response.stream:
            meta |= {"progressToken": number, LOG_LEVEL_META_KEY: "info"}
        params = {"name": request.tool, "arguments": request.arguments, **request.answer_params, "_meta": meta}
        return _encode({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})

    async def _call_streaming(
        self, headers: Mapping[str, str], body: bytes, timeout: float, emit: Emit
    ) -> ToolReply | UpstreamRpcError:
        async with self._http.stream(
            "POST", self._target.uri, headers=headers, body=body, timeout=timeout, limit=2**62
        ) as reply:
            if sse.is_event_stream(reply.headers):
                return await self._read_final_message(reply.chunks(), emit)
            body = await read_bounded(reply, self._target.reply_bytes)
            return _parse_answer(reply.status, reply.headers, body)

    async def _read_final_message(
        self, chunks: AsyncIterator[bytes], emit: Emit | None
    ) -> ToolReply | UpstreamRpcError:
        """The message that ends the stream. Notifications before it are emitted."""
        progress_filter = ProgressFilter()
        async for data in sse.iter_event_data(chunks, limit=self._target.reply_bytes):
            message = _decode_message(data)
            if message.result is not None or message.error is not None:
                return message.result or message.error  # type: ignore[return-value]  # one of them is set
            if (
                emit is not None
                and message.method
                and (event := event_from_notification(message.method, message.params or {}, progress_filter))
            ):
                await emit(event)
        raise UpstreamInterrupted("The MCP server's stream ended before its answer")


async def _iterate_once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _parse_answer(status: int, headers: Mapping[str, str], body: bytes) -> ToolReply | UpstreamRpcError:
    """The JSON-RPC answer, whatever the HTTP status is. Raises an error for the status if there is none."""
    is_success = 200 <= status < 300
    if not is_success and not body.lstrip().startswith(b"{"):  # redirects are never followed
        raise error_from_refusal(status, headers, body, _SERVER)
    try:
        message = _message_decoder.decode(body)
    except _DECODE_ERRORS as exc:
        if is_success:
            raise _unreadable(exc) from exc
        raise error_from_refusal(status, headers, body, _SERVER) from None
    if message.error is not None:
        return message.error
    if message.result is None or not is_success:
        raise error_from_refusal(status, headers, body, _SERVER)
    return message.result


def _decode_message(body: bytes) -> _RpcMessage:
    try:
        return _message_decoder.decode(body)
    except _DECODE_ERRORS as exc:
        raise _unreadable(exc) from exc


def _unreadable(exc: Exception) -> UpstreamFailed:
    return UpstreamFailed(f"The MCP server's answer cannot be read: {str(exc)[:200]}")
