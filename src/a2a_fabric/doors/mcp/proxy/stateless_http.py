"""A proxied HTTP request of the stateless era, checked against its headers, and its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import mcp_types as types
import msgspec
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundLadderRejection,
    classify_inbound_request,
    find_duplicated_routing_header,
    unsupported_protocol_version_rejection,
    validate_mcp_param_headers,
)
from mcp_types.methods import INPUT_REQUIRED_METHODS
from starlette.datastructures import Headers

from a2a_fabric.doors.context import Send
from a2a_fabric.doors.mcp.proxy import eras
from a2a_fabric.doors.mcp.proxy.endpoint import ProxiedRequest
from a2a_fabric.protocols import jsonrpc
from a2a_fabric.protocols.mcp import frames
from a2a_fabric.protocols.mcp.frames import McpProtocolError
from a2a_fabric.protocols.mcp.versions import LISTEN_METHOD

_DEFAULT_STATUS = 200  # codes without a status of their own


class StatelessRequest:
    def __init__(self, request_id: str | int, method: str, params: Mapping[str, Any], headers: Headers) -> None:
        self.id = request_id
        self.method = method
        self.params = params
        self.headers = headers
        self.meta: Mapping[str, Any] = params["_meta"]
        capabilities = self.meta.get(types.CLIENT_CAPABILITIES_META_KEY)
        self.capabilities: Mapping[str, Any] = capabilities if isinstance(capabilities, dict) else {}

    @property
    def log_level(self) -> str | None:
        level = self.meta.get(types.LOG_LEVEL_META_KEY)
        return level if isinstance(level, str) else None

    @property
    def subject(self) -> tuple[Any, ...]:
        """What a request that comes again with answers has in common with the first."""
        return self.method, self.params.get("name"), self.params.get("uri")

    @property
    def needs_exclusive_session(self) -> bool:
        """Whether the server may say something about it that does not name it."""
        may_ask = self.method in INPUT_REQUIRED_METHODS and any(
            each in self.capabilities for each in eras.QUESTION_CAPABILITIES.values()
        )
        return self.method != LISTEN_METHOD and (may_ask or self.log_level is not None)

    def accepts_notification(self, method: str, params: Mapping[str, Any]) -> bool:
        """Whether a notification on the way to the answer is for this client."""
        if method == "notifications/message":
            return self.log_level is not None
        if method == "notifications/progress":
            return params.get("progressToken") is not None
        return True

    def check_param_headers(self, schema: Any) -> None:
        """Raises RPCError if a header that mirrors an argument says something else than the argument."""
        arguments = self.params.get("arguments")
        rejection = validate_mcp_param_headers(schema, arguments if isinstance(arguments, dict) else {}, self.headers)
        if rejection is not None:
            raise _to_rpc_error(rejection)

    @property
    def may_have_param_headers(self) -> bool:
        """Whether `check_params` could find something."""
        return self.method == "tools/call" and (
            bool(self.params.get("arguments")) or any(name.startswith("mcp-param-") for name in self.headers)
        )


def parse_request(proxied: ProxiedRequest) -> StatelessRequest | None:
    """None for a notification, to which there is nothing to say. Raises RPCError."""
    headers = Headers(raw=proxied.scope["headers"])
    if proxied.http_method != "POST":
        raise McpProtocolError(jsonrpc.INVALID_REQUEST, "The stateless era only knows POST", status=405)
    accept = headers.get("accept", "*/*")
    if "*/*" not in accept and not ("application/json" in accept and "text/event-stream" in accept):
        raise McpProtocolError(jsonrpc.INVALID_REQUEST, "Accept application/json and text/event-stream", status=406)
    message = frames.parse_message(proxied.body)
    if message.method is msgspec.UNSET:
        raise McpProtocolError(jsonrpc.INVALID_REQUEST, "Only requests and notifications can be sent")
    if not message.is_request:
        rejection = unsupported_protocol_version_rejection(headers.get("mcp-protocol-version", ""))
        if rejection is not None:
            raise _to_rpc_error(rejection)
        return None
    params = msgspec.json.decode(message.params) if message.params else {}
    _check_headers(message.method, params, headers)
    return StatelessRequest(message.id, message.method, params, headers)  # type: ignore[arg-type]  # a request's id is no null


def _check_headers(method: str, params: Any, headers: Headers) -> None:
    if (duplicate := find_duplicated_routing_header(headers.items())) is not None:
        raise McpProtocolError(frames.HEADER_MISMATCH, f"{duplicate} header appears more than once")
    classification = classify_inbound_request({"method": method, "params": params}, headers=dict(headers))
    if isinstance(classification, InboundLadderRejection):
        raise _to_rpc_error(classification)


def _to_rpc_error(rejection: InboundLadderRejection) -> McpProtocolError:
    return McpProtocolError(rejection.code, rejection.message, rejection.data, status=http_status_for(rejection.code))


def http_status_for(code: int) -> int:
    return ERROR_CODE_HTTP_STATUS.get(code, _DEFAULT_STATUS)


_PING_INTERVAL = 15.0  # proxies close silent connections
_JSON_HEADERS = [(b"content-type", b"application/json")]
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_encode = msgspec.json.Encoder().encode


class StatelessReply:
    """Entered while the answer is waited for."""

    def __init__(self, request_id: str | int, send: Send) -> None:
        self._id = request_id
        self._send = send
        self._is_streaming = False
        self._write_lock = asyncio.Lock()
        self._ping_task: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._ping_task = asyncio.ensure_future(self._send_pings())

    def __exit__(self, *exc: object) -> None:
        if self._ping_task is not None:
            self._ping_task.cancel()

    async def send_result(self, result: Any) -> None:
        await self._send_last(_encode({"jsonrpc": "2.0", "id": self._id, "result": result}), 200)

    async def send_error(self, error: McpProtocolError) -> None:
        await self._send_last(frames.render_error(error, self._id), error.status)

    async def send_notification(self, method: str, params: Any) -> None:
        notification = {"jsonrpc": "2.0", "method": method}
        await self._write(
            _encode_frame(_encode({**notification, "params": params} if params is not None else notification)),
            more=True,
        )

    async def _send_last(self, body: bytes, status: int) -> None:
        if self._is_streaming:
            await self._write(_encode_frame(body), more=False)
            return
        headers = [*_JSON_HEADERS, (b"content-length", str(len(body)).encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def _write(self, frame: bytes, *, more: bool) -> None:
        async with self._write_lock:
            if not self._is_streaming:
                self._is_streaming = True
                await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
            await self._send({"type": "http.response.body", "body": frame, "more_body": more})

    async def _send_pings(self) -> None:
        while True:
            await asyncio.sleep(_PING_INTERVAL)
            await self._write(b": ping\r\n\r\n", more=True)


def _encode_frame(body: bytes) -> bytes:
    return b"event: message\r\ndata: %b\r\n\r\n" % body
