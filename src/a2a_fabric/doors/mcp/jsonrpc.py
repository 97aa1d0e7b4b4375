"""The JSON-RPC frame of an MCP message: parsing, error codes, error replies."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from a2a_fabric.core.json_depth import SHALLOW, is_too_deep
from a2a_fabric.doors.edge import JSON_TOO_DEEP

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
HEADER_MISMATCH = -32020
REQUEST_CANCELLED = -32800
UNSUPPORTED_PROTOCOL_VERSION = -32022
REQUEST_CANCELLED = -32800  # what ends the stream of a request that its caller gave up, in the handshake era


class McpProtocolError(Exception):
    """An answer in the protocol's own words."""

    def __init__(self, code: int, message: str, data: Any = None, *, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.status = status


class McpMessage(msgspec.Struct):
    """A request, a notification (without id), or a response (without method)."""

    jsonrpc: Literal["2.0"]
    method: str | UnsetType = UNSET
    id: str | int | UnsetType | None = UNSET
    params: Raw = Raw(b"")
    result: Raw = Raw(b"")
    error: Raw = Raw(b"")

    @property
    def is_request(self) -> bool:
        return self.method is not UNSET and self.id is not UNSET


_decoder = msgspec.json.Decoder(McpMessage)


def parse_message(body: bytes | str) -> McpMessage:
    """Raises RPCError for what is no JSON, or no single message."""
    if len(body) > SHALLOW and is_too_deep(body.encode() if isinstance(body, str) else body):
        raise McpProtocolError(PARSE_ERROR, f"Parse error: {JSON_TOO_DEEP}")
    try:
        message = _decoder.decode(body)
    except msgspec.ValidationError as exc:
        if not _is_json(body):
            raise McpProtocolError(PARSE_ERROR, "Parse error") from exc
        raise McpProtocolError(INVALID_REQUEST, f"Not a JSON-RPC message: {exc}"[:300]) from exc
    except (msgspec.DecodeError, RecursionError, UnicodeError) as exc:
        raise McpProtocolError(PARSE_ERROR, "Parse error") from exc
    if message.method is UNSET and not (message.result or message.error):
        raise McpProtocolError(INVALID_REQUEST, "Not a JSON-RPC message: it has no method")
    if message.is_request and message.id is None:
        raise McpProtocolError(INVALID_REQUEST, "The id of a request must not be null")
    if bytes(message.params)[:1] not in (b"", b"{", b"n"):
        raise McpProtocolError(INVALID_REQUEST, "`params` must be an object")
    return message


class _OnlyId(msgspec.Struct):
    id: str | int | None = None


def find_id(body: bytes) -> str | int | None:
    """Of whatever this is, if it has one that can be read."""
    try:
        return msgspec.json.decode(body, type=_OnlyId).id
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def _is_json(body: bytes | str) -> bool:
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
    return True


def render_error(error: McpProtocolError, request_id: Any = None) -> bytes:
    error_object: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        error_object["data"] = error.data
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "error": error_object})
