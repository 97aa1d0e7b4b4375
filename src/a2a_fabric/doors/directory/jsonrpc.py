"""JSON-RPC 2.0 frames of the directory, batches and notifications included, and the bare bodies of simple clients.

Id and parameters of a request stay raw: the id is sent back as it was written, and the parameters are decoded once,
by the method they are for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from a2a_fabric.doors.directory.errors import INVALID_REQUEST, PARSE_ERROR, DirectoryProtocolError

_ABSENT = Raw(b"")
_NULL = Raw(b"null")
_EMPTY_OBJECT = Raw(b"{}")
_ID_FIRST_BYTES = frozenset(b'"-0123456789n')

_encode = msgspec.json.Encoder().encode


class _Frame(msgspec.Struct):
    jsonrpc: Raw = _ABSENT
    id: Raw = _ABSENT
    method: Raw = _ABSENT
    params: Raw = _ABSENT


class DirectoryRpcRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`id` is None for a notification. A bare body is nothing but parameters; its method is that of the address."""

    method: str
    params: Raw
    id: Raw | None = None
    is_bare: bool = False

    @property
    def is_notification(self) -> bool:
        return self.id is None


class InvalidRpcRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is no request, with its id as far as it has one."""

    protocol_error: DirectoryProtocolError
    id: Raw = _NULL


class RpcPayload(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one body asked for."""

    requests: Sequence[DirectoryRpcRequest | InvalidRpcRequest]
    is_batch: bool = False


_frame_decoder = msgspec.json.Decoder(_Frame)
_batch_decoder = msgspec.json.Decoder(list[Raw])


def parse_payload(body: bytes, method: str | None, max_batch: int) -> RpcPayload:
    """`method` is what the address stands for; None where only JSON-RPC is understood. Raises Fault."""
    try:
        body.decode()  # raw values are only looked through, not decoded
        if body.lstrip()[:1] == b"[":
            return _parse_batch(_batch_decoder.decode(body), max_batch)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise DirectoryProtocolError(PARSE_ERROR, "Parse error", detail="The body is not JSON") from exc
    return RpcPayload(requests=(_parse_one(body, method),))


def _parse_batch(bodies: list[Raw], max_batch: int) -> RpcPayload:
    if not bodies:
        raise DirectoryProtocolError(INVALID_REQUEST, "Invalid Request: an empty batch")
    if len(bodies) > max_batch:
        raise DirectoryProtocolError(INVALID_REQUEST, f"Invalid Request: a batch holds at most {max_batch} requests")
    return RpcPayload(requests=[_parse_one(bytes(body), None) for body in bodies], is_batch=True)


def _parse_one(body: bytes, method: str | None) -> DirectoryRpcRequest | InvalidRpcRequest:
    try:
        frame = _frame_decoder.decode(body)
    except msgspec.ValidationError:
        return InvalidRpcRequest(
            protocol_error=DirectoryProtocolError(INVALID_REQUEST, "Invalid Request: not an object")
        )
    except (msgspec.DecodeError, RecursionError):
        return InvalidRpcRequest(
            protocol_error=DirectoryProtocolError(PARSE_ERROR, "Parse error", detail="The body is not JSON")
        )
    if method is not None and not bytes(frame.jsonrpc):
        return DirectoryRpcRequest(method=method, params=Raw(body), id=_NULL, is_bare=True)
    return _request_from_frame(frame)


def _request_from_frame(frame: _Frame) -> DirectoryRpcRequest | InvalidRpcRequest:
    request_id = _read_id(frame)
    if request_id is None and bytes(frame.id):
        return InvalidRpcRequest(
            protocol_error=DirectoryProtocolError(INVALID_REQUEST, "Invalid Request: `id` is text or a number")
        )
    reply_id = request_id or _NULL
    if bytes(frame.jsonrpc) != b'"2.0"':
        return InvalidRpcRequest(
            protocol_error=DirectoryProtocolError(INVALID_REQUEST, 'Invalid Request: `jsonrpc` must be "2.0"'),
            id=reply_id,
        )
    if bytes(frame.method)[:1] != b'"':
        return InvalidRpcRequest(
            protocol_error=DirectoryProtocolError(INVALID_REQUEST, "Invalid Request: `method` is missing"), id=reply_id
        )
    if bytes(frame.params)[:1] not in (b"", b"{", b"[", b"n"):
        return InvalidRpcRequest(
            protocol_error=DirectoryProtocolError(INVALID_REQUEST, "Invalid Request: `params` must be an object"),
            id=reply_id,
        )
    has_no_params = not bytes(frame.params) or bytes(frame.params) == b"null"
    method = msgspec.json.decode(frame.method, type=str)
    return DirectoryRpcRequest(method=method, params=_EMPTY_OBJECT if has_no_params else frame.params, id=request_id)


def _read_id(frame: _Frame) -> Raw | None:
    raw = bytes(frame.id)
    return Raw(raw) if raw and raw[0] in _ID_FIRST_BYTES else None


def build_bare_request(method: str, params: dict[str, Any]) -> DirectoryRpcRequest:
    """What a page's address asks for."""
    return DirectoryRpcRequest(method=method, params=Raw(_encode(params)), id=_NULL, is_bare=True)


def encode_result(rpc_request: DirectoryRpcRequest, result: Any) -> bytes:
    """A reply holds no `error`, not even null: some clients ask only whether the key is there."""
    if rpc_request.is_bare:
        return _encode(result)
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (bytes(rpc_request.id or _NULL), _encode(result))


def encode_error(
    protocol_error: DirectoryProtocolError, rpc_request: DirectoryRpcRequest | InvalidRpcRequest | None = None
) -> bytes:
    """Of a request; of None if it could not even be told which."""
    error: dict[str, Any] = {"code": protocol_error.code, "message": protocol_error.message}
    if protocol_error.data is not None:
        error["data"] = protocol_error.data
    if isinstance(rpc_request, DirectoryRpcRequest) and rpc_request.is_bare:
        return _encode({**error, "error": protocol_error.detail})
    request_id = bytes((rpc_request.id if rpc_request is not None else None) or _NULL)
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (request_id, _encode(error))


def encode_notification(rpc_request: DirectoryRpcRequest, body: dict[str, Any]) -> bytes:
    """One of several things that are told before the answer, or after it."""
    if rpc_request.is_bare:
        return _encode(body)
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (_encode(rpc_request.method), _encode(body))
