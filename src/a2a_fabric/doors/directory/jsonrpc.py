"""Requests and errors of the directory: JSON-RPC, alone and in batches, and the bare bodies of simple clients.

A bare body holds only parameters; the path says which method they are for. Its reply is bare, too. One table leads from
Fabric errors to JSON-RPC codes and HTTP statuses. A JSON-RPC reply has status 200 unless the error concerns the request
as a whole: credentials, limits, size. A client that sends a bare body has only the status to tell success from failure,
so every error has a second status for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import (
    AllAttemptsFailed,
    FabricError,
    Forbidden,
    RateLimited,
)
from a2a_fabric.core.propagation import MaybeChain, Trace
from a2a_fabric.doors.edge import DoorError, RefusedRequest, find_http_status, to_encodable_text, to_json_details
from a2a_fabric.protocols import jsonrpc
from a2a_fabric.protocols.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, JSONRPCError

TASK_FAILED, TASK_TIMEOUT = -32001, -32002


# By HTTP status: the code and the message. The sentence of the error follows a message that ends with a colon.
_BAD_REQUEST = (INVALID_PARAMS, "Invalid params: ")
_TASK_FAILED = (TASK_FAILED, "Task failed")
_CODES = {
    400: _BAD_REQUEST,
    401: (TASK_FAILED, "Unauthorized: "),
    403: (TASK_FAILED, "Forbidden: "),
    404: _BAD_REQUEST,
    409: _BAD_REQUEST,
    413: (INVALID_REQUEST, "Invalid Request: "),
    429: (TASK_FAILED, "Too many requests: "),
    500: (INTERNAL_ERROR, "Internal error: "),
    504: (TASK_TIMEOUT, "Task timeout"),
}
_WHOLE_REQUEST_STATUSES = frozenset({401, 403, 413, 429, 500})


class DirectoryProtocolError(JSONRPCError, DoorError):
    """An error reply. `detail` is the sentence for people; `message` may be only the fixed words for the code."""

    def __init__(
        self, code: int, message: str, *, detail: str = "", status: int = 200, bare_status: int = 400, data: Any = None
    ) -> None:
        super().__init__(code, message, data)
        self.detail = detail or message
        self.status = status
        self.bare_status = bare_status


def protocol_error_from(error: FabricError, trace_id: str, **extra_data: Any) -> DirectoryProtocolError:
    """`extra_data` names the task, and the hop of a chain."""
    status = find_http_status(error)
    code, message = _CODES.get(status, _TASK_FAILED)
    concerns_request = status in _WHOLE_REQUEST_STATUSES
    if isinstance(error, RefusedRequest):
        code, message, concerns_request = INVALID_REQUEST, "Invalid Request: ", True
    elif isinstance(error, Forbidden) and "tool_error" in error.details:
        # A tool's own refusal is not about the caller's credentials.
        (code, message), status, concerns_request = _TASK_FAILED, 502, False
    protocol_error = DirectoryProtocolError(
        code,
        message + error.message if message.endswith(": ") else message,
        detail=error.message,
        status=status if concerns_request else 200,
        bare_status=status,
        data={**build_error_data(error), **extra_data, "traceId": trace_id},
    )
    protocol_error.log_code = error.code
    protocol_error.retry_after = error.retry_after if isinstance(error, RateLimited) else None
    return protocol_error


def build_error_data(error: FabricError) -> dict[str, Any]:
    """`reason` is the protocol's word; `code` is the same at every door."""
    data: dict[str, Any] = {
        "reason": _find_reason(error),
        "code": error.code,
        "detail": to_encodable_text(error.message),
    }
    if isinstance(agent_id := error.details.get("agent_id"), str):
        data["agentId"] = agent_id
    details = to_json_details(error.details)
    return {**data, "details": details} if details else data


def _find_reason(error: FabricError) -> str:
    if isinstance(error, AllAttemptsFailed):
        return "offline"
    has_own_word = bool(error.reason_word) or error.reason != error.code.lower()
    reason = error.details.get("reason")
    return reason if isinstance(reason, str) and not has_own_word else error.reason


class DirectoryRequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `agent_id` is the agent whose path was requested."""

    principal: Principal
    trace: Trace
    base_url: str = ""  # of this node, for this caller
    agent_id: str | None = None
    last_event_id: int | None = None  # the last event that a reconnecting client has received
    expects_reply: bool = True  # False for a notification
    delegation_chain: MaybeChain = msgspec.UNSET


class DirectoryStreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream. One of them, the first or the last, is the answer to the request."""

    event: str
    body: dict[str, Any]
    number: int | None = None
    is_answer: bool = False


class DirectoryStream(msgspec.Struct, frozen=True):
    """An answer made of events; its receiver closes it. Only a finite one can also be sent as one reply."""

    events: AsyncGenerator[DirectoryStreamEvent]
    is_finite: bool = True
    is_resumed: bool = False  # whether the next event may be long in coming


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
