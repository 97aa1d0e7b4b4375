"""Request bodies of the directory: JSON-RPC requests, notifications and batches, and the bare bodies of simple clients.

A bare body holds only parameters; the path says which method they are for. Its reply is bare, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from a2a_fabric.doors.directory.errors import DirectoryProtocolError
from a2a_fabric.protocols import jsonrpc
from a2a_fabric.protocols.jsonrpc import INVALID_REQUEST, PARSE_ERROR

_PARAMS_FIRST_BYTES = (b"", b"{", b"[", b"n")

_encode = msgspec.json.Encoder().encode


class DirectoryRpcRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`id` is None for a notification."""

    method: str
    params: Raw
    id: Raw | None = None
    is_bare: bool = False

    @property
    def is_notification(self) -> bool:
        return self.id is None


class InvalidRpcRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is answered with an error, under its id if that could be read."""

    message: str
    code: int = INVALID_REQUEST
    id: Raw = jsonrpc.NULL

    def to_error(self) -> DirectoryProtocolError:
        detail = "The body is not JSON" if self.code == PARSE_ERROR else ""
        return DirectoryProtocolError(self.code, self.message, detail=detail)


RpcRequests = Sequence[DirectoryRpcRequest | InvalidRpcRequest]

_batch_decoder = msgspec.json.Decoder(list[Raw])


def parse_payload(body: bytes, method: str | None, max_batch: int) -> tuple[RpcRequests, bool]:
    """The requests of a body, and whether they are a batch.

    `method` is the one that the path stands for; None where only JSON-RPC is accepted. Raises DirectoryProtocolError.
    """
    try:
        body.decode()
        if body.lstrip()[:1] == b"[":
            return _parse_batch(_batch_decoder.decode(body), max_batch), True
    except jsonrpc.DECODE_ERRORS as exc:
        raise InvalidRpcRequest(code=PARSE_ERROR, message="Parse error").to_error() from exc
    return (_parse_one(body, method),), False


def _parse_batch(bodies: list[Raw], max_batch: int) -> RpcRequests:
    if not bodies:
        raise DirectoryProtocolError(INVALID_REQUEST, "Invalid Request: the batch is empty")
    if len(bodies) > max_batch:
        raise DirectoryProtocolError(INVALID_REQUEST, f"Invalid Request: a batch holds at most {max_batch} requests")
    return [_parse_one(bytes(body), None) for body in bodies]


def _parse_one(body: bytes, method: str | None) -> DirectoryRpcRequest | InvalidRpcRequest:
    try:
        frame = jsonrpc.decode_frame(body)
    except jsonrpc.JSONRPCError as error:
        if error.code == PARSE_ERROR:
            return InvalidRpcRequest(code=PARSE_ERROR, message="Parse error")
        return _refuse("the body must be an object")
    if method is not None and frame.jsonrpc is UNSET:
        return DirectoryRpcRequest(method=method, params=Raw(body), id=jsonrpc.NULL, is_bare=True)
    request_id = frame.read_id()
    if request_id is None and bytes(frame.id):
        return _refuse("`id` must be a string or a number")
    if frame.jsonrpc != "2.0":
        return _refuse('`jsonrpc` must be "2.0"', request_id)
    if not isinstance(frame.method, str):
        return _refuse("`method` is missing", request_id)
    if bytes(frame.params)[:1] not in _PARAMS_FIRST_BYTES:
        return _refuse("`params` must be an object", request_id)
    return DirectoryRpcRequest(method=frame.method, params=frame.read_params(), id=request_id)


def _refuse(problem: str, request_id: Raw | None = None) -> InvalidRpcRequest:
    return InvalidRpcRequest(message=f"Invalid Request: {problem}", id=request_id or jsonrpc.NULL)


def build_bare_request(method: str, params: dict[str, Any]) -> DirectoryRpcRequest:
    """The request that a GET of a path stands for."""
    return DirectoryRpcRequest(method=method, params=Raw(_encode(params)), id=jsonrpc.NULL, is_bare=True)


def encode_result(rpc_request: DirectoryRpcRequest, result: Any) -> bytes:
    return _encode(result) if rpc_request.is_bare else jsonrpc.encode_result(rpc_request.id, result)


def encode_error(
    protocol_error: DirectoryProtocolError, rpc_request: DirectoryRpcRequest | InvalidRpcRequest | None = None
) -> bytes:
    """`rpc_request` is None if the error concerns the body as a whole."""
    error = protocol_error.to_object()
    if isinstance(rpc_request, DirectoryRpcRequest) and rpc_request.is_bare:
        return _encode({**error, "error": protocol_error.detail})
    return jsonrpc.encode_error(rpc_request.id if rpc_request is not None else None, error)


def encode_notification(rpc_request: DirectoryRpcRequest, body: dict[str, Any]) -> bytes:
    """An event of a stream, before or after the answer."""
    return _encode(body) if rpc_request.is_bare else jsonrpc.encode_notification(rpc_request.method, body)
