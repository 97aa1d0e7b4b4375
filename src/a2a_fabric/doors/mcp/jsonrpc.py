"""The frame of a JSON-RPC message, told apart before anybody looks into it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from a2a_fabric.core.nesting import SHALLOW, is_too_deep
from a2a_fabric.doors.http import TOO_DEEP

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
HEADER_MISMATCH = -32020
REQUEST_CANCELLED = -32800
UNSUPPORTED_PROTOCOL_VERSION = -32022
REQUEST_CANCELLED = -32800  # what ends the stream of a request that its caller gave up, in the handshake era


class RPCError(Exception):
    """An answer in the protocol's own words."""

    def __init__(self, code: int, message: str, data: Any = None, *, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.status = status


class Message(msgspec.Struct):
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


_decoder = msgspec.json.Decoder(Message)


def read(body: bytes | str) -> Message:
    """Raises RPCError for what is no JSON, or no single message."""
    if len(body) > SHALLOW and is_too_deep(body.encode() if isinstance(body, str) else body):
        raise RPCError(PARSE_ERROR, f"Parse error: {TOO_DEEP}")
    try:
        message = _decoder.decode(body)
    except msgspec.ValidationError as exc:
        if not _is_json(body):
            raise RPCError(PARSE_ERROR, "Parse error") from exc
        raise RPCError(INVALID_REQUEST, f"Not a JSON-RPC message: {exc}"[:300]) from exc
    except (msgspec.DecodeError, RecursionError, UnicodeError) as exc:
        raise RPCError(PARSE_ERROR, "Parse error") from exc
    if message.method is UNSET and not (message.result or message.error):
        raise RPCError(INVALID_REQUEST, "Not a JSON-RPC message: it has no method")
    if message.is_request and message.id is None:
        raise RPCError(INVALID_REQUEST, "The id of a request must not be null")
    if bytes(message.params)[:1] not in (b"", b"{", b"n"):
        raise RPCError(INVALID_REQUEST, "`params` must be an object")
    return message


class _Identified(msgspec.Struct):
    id: str | int | None = None


def id_of(body: bytes) -> str | int | None:
    """Of whatever this is, if it has one that can be read."""
    try:
        return msgspec.json.decode(body, type=_Identified).id
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def _is_json(body: bytes | str) -> bool:
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
    return True


def failure(error: RPCError, request_id: Any = None) -> bytes:
    told: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        told["data"] = error.data
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "error": told})
