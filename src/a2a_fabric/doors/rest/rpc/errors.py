"""Errors of the RPC protocol: JSON-RPC codes, each with its HTTP status."""

from __future__ import annotations

from typing import Any, NamedTuple

from a2a_fabric.core.errors import (
    AuthExpired,
    AuthInvalid,
    BadInput,
    Conflict,
    FabricError,
    Forbidden,
    JobNotFound,
    Unauthenticated,
)
from a2a_fabric.doors.edge import DoorError, RefusedRequest
from a2a_fabric.doors.rest import errors
from a2a_fabric.protocols.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    JSONRPCError,
)

UNAUTHENTICATED, FORBIDDEN, FAILED = -32001, -32002, -32000
NO_PUSH_CONFIG, INVALID_STATE, TASK_NOT_FOUND, TASK_COMPLETED, TASK_CANCELED, TASK_FAILED = (
    -32005, -32010, -32011, -32012, -32013, -32014,
)  # fmt: skip


class RpcProtocolError(JSONRPCError, DoorError):
    """An error reply and its HTTP status."""

    def __init__(self, code: int, message: str, status: int, data: Any = None) -> None:
        super().__init__(code, message, data)
        self.status = status


class NoPushConfig(BadInput):
    pass


class InvalidTaskState(Conflict):
    pass


class _RpcErrorRow(NamedTuple):
    code: int
    status: int = 0  # 0: the status of the REST door


# The first row that matches wins.
_ERROR_TABLE: dict[type[FabricError], _RpcErrorRow] = {
    Unauthenticated: _RpcErrorRow(UNAUTHENTICATED),
    AuthInvalid: _RpcErrorRow(UNAUTHENTICATED),
    AuthExpired: _RpcErrorRow(UNAUTHENTICATED),
    Forbidden: _RpcErrorRow(FORBIDDEN),
    JobNotFound: _RpcErrorRow(TASK_NOT_FOUND),
    NoPushConfig: _RpcErrorRow(NO_PUSH_CONFIG, 404),
    InvalidTaskState: _RpcErrorRow(INVALID_STATE),
    errors.TaskAlreadyEnded: _RpcErrorRow(TASK_COMPLETED),
    errors.ResourceNotFound: _RpcErrorRow(METHOD_NOT_FOUND),
    BadInput: _RpcErrorRow(INVALID_PARAMS),
}


def protocol_error_from(error: Exception) -> RpcProtocolError:
    assert isinstance(error, FabricError)  # noqa: S101
    if isinstance(error, RefusedRequest):
        return RpcProtocolError(INVALID_REQUEST, f"Invalid Request: {error.message}", error.status)
    row = next((row for kind, row in _ERROR_TABLE.items() if isinstance(error, kind)), None)
    rest_row = errors.find_row(error)
    body = errors.build_error_body(error).error
    code = row.code if row is not None else INTERNAL_ERROR if rest_row.status == 500 else FAILED
    status = (row.status if row is not None else 0) or rest_row.status
    return RpcProtocolError(code, body.message, status, {**body.details, "code": body.code})
