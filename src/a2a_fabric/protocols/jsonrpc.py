"""JSON-RPC 2.0: frames and errors, shared by every door, runtime and probe that uses it.

Id and parameters of a received frame stay raw: the id is sent back exactly as the client wrote it, and the
parameters are decoded once, by the method that they are for."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # a ValidationError is a DecodeError

NULL = Raw(b"null")
_ABSENT = Raw(b"")
_EMPTY_OBJECT = Raw(b"{}")
_ID_FIRST_BYTES = frozenset(b'"-0123456789n')

_encode = msgspec.json.Encoder().encode


class JSONRPCError(Exception):
    """An error reply. A door derives its own class from this one to add the HTTP status."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def to_object(self) -> dict[str, Any]:
        error = {"code": self.code, "message": self.message}
        return error if self.data is None else {**error, "data": self.data}


class JSONRPCFrame(msgspec.Struct, frozen=True):
    """A request or a notification. Every member may be absent or of the wrong type: the readers below check it."""

    jsonrpc: Any = UNSET
    id: Raw = _ABSENT
    method: Any = UNSET
    params: Raw = _ABSENT

    def read_id(self) -> Raw | None:
        """The id as it was written. None if there is none, or if it is not a string, a number or null."""
        raw = bytes(self.id)
        return self.id if raw and raw[0] in _ID_FIRST_BYTES else None

    def read_params(self) -> Raw:
        """The parameters; an empty object if they are absent or null."""
        return self.params if bytes(self.params) not in (b"", b"null") else _EMPTY_OBJECT


_frame_decoder = msgspec.json.Decoder(JSONRPCFrame)


def decode_frame(body: bytes) -> JSONRPCFrame:
    """Raises JSONRPCError: PARSE_ERROR for a body that is not JSON, INVALID_REQUEST for one that is not an object."""
    try:
        if not body.isascii():
            body.decode()  # the decoder does not check the text inside raw members
        return _frame_decoder.decode(body)
    except msgspec.ValidationError as exc:
        raise JSONRPCError(INVALID_REQUEST, "Invalid Request: the body must be an object") from exc
    except DECODE_ERRORS as exc:
        raise JSONRPCError(PARSE_ERROR, "Parse error: the body is not JSON") from exc


def encode_request(request_id: str | int, method: str, params: Any) -> bytes:
    return _encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def encode_notification(method: str, params: Any) -> bytes:
    return _encode({"jsonrpc": "2.0", "method": method, "params": params})


def encode_result(request_id: Raw | str | int | None, result: Any) -> bytes:
    """There is no `error` member, not even null: some clients only look whether the key is there."""
    return _encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def encode_error(request_id: Raw | str | int | None, error: dict[str, Any]) -> bytes:
    return _encode({"jsonrpc": "2.0", "id": request_id, "error": error})


def is_error_reply(message: Any) -> bool:
    return isinstance(message, dict) and message.get("jsonrpc") == "2.0" and isinstance(message.get("error"), dict)


def read_result(message: Any) -> dict[str, Any] | None:
    """The result of a decoded reply; None if the message is not a reply, or its result not an object."""
    result = message.get("result") if isinstance(message, dict) and message.get("jsonrpc") == "2.0" else None
    return result if isinstance(result, dict) else None
