"""Errors of the directory door: one table from Fabric errors to JSON-RPC codes and HTTP statuses.

A JSON-RPC reply has status 200 unless the error concerns the request as a whole: credentials, limits, size. A client
that sends a bare body has only the status to tell success from failure, so every error has a second status for it."""

from __future__ import annotations

from typing import Any, NamedTuple

from a2a_fabric.core.errors import (
    AgentNotFound,
    AgentOffline,
    AllAttemptsFailed,
    AuthExpired,
    AuthInvalid,
    BadInput,
    CallTimeout,
    CapabilityNotFound,
    Conflict,
    FabricError,
    Forbidden,
    InternalError,
    JobNotFound,
    PayloadTooLarge,
    RateLimited,
    StoreError,
    Unauthenticated,
)
from a2a_fabric.doors.edge import DoorError, RefusedRequest, to_encodable_text, to_json_details
from a2a_fabric.protocols.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, JSONRPCError

TASK_FAILED, TASK_TIMEOUT = -32001, -32002


class DirectoryErrorRow(NamedTuple):
    """The sentence of the error follows a `message` that ends with a colon; any other `message` stands alone."""

    code: int
    message: str
    status: int = 200
    bare_status: int = 400


_UNAUTHORIZED_ROW = DirectoryErrorRow(TASK_FAILED, "Unauthorized: ", 401, 401)
_TASK_FAILED_ROW = DirectoryErrorRow(TASK_FAILED, "Task failed", bare_status=502)

# The first row that matches wins.
_ERROR_TABLE: dict[type[FabricError], DirectoryErrorRow] = {
    Unauthenticated: _UNAUTHORIZED_ROW,
    AuthInvalid: _UNAUTHORIZED_ROW,
    AuthExpired: _UNAUTHORIZED_ROW,
    Forbidden: DirectoryErrorRow(TASK_FAILED, "Forbidden: ", 403, 403),
    RateLimited: DirectoryErrorRow(TASK_FAILED, "Too many requests: ", 429, 429),
    PayloadTooLarge: DirectoryErrorRow(INVALID_REQUEST, "Invalid Request: ", 413, 413),
    AgentNotFound: DirectoryErrorRow(INVALID_PARAMS, "Invalid params: ", bare_status=404),
    CapabilityNotFound: DirectoryErrorRow(INVALID_PARAMS, "Invalid params: ", bare_status=404),
    JobNotFound: DirectoryErrorRow(INVALID_PARAMS, "Invalid params: ", bare_status=404),
    Conflict: DirectoryErrorRow(INVALID_PARAMS, "Invalid params: ", bare_status=409),
    BadInput: DirectoryErrorRow(INVALID_PARAMS, "Invalid params: ", bare_status=400),
    CallTimeout: DirectoryErrorRow(TASK_TIMEOUT, "Task timeout", bare_status=504),
    AgentOffline: DirectoryErrorRow(TASK_FAILED, "Task failed", bare_status=503),
    AllAttemptsFailed: DirectoryErrorRow(TASK_FAILED, "Task failed", bare_status=503),
    StoreError: DirectoryErrorRow(TASK_FAILED, "Task failed", bare_status=503),
    InternalError: DirectoryErrorRow(INTERNAL_ERROR, "Internal error: ", 500, 500),
}


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
    row = next((row for kind, row in _ERROR_TABLE.items() if isinstance(error, kind)), _TASK_FAILED_ROW)
    if isinstance(error, RefusedRequest):
        row = DirectoryErrorRow(INVALID_REQUEST, "Invalid Request: ", error.status, error.status)
    if isinstance(error, Forbidden) and "tool_error" in error.details:
        row = _TASK_FAILED_ROW  # a tool's own refusal is not about the caller's credentials
    message = row.message + error.message if row.message.endswith(": ") else row.message
    data = {**build_error_data(error), **extra_data, "traceId": trace_id}
    protocol_error = DirectoryProtocolError(
        row.code, message, detail=error.message, status=row.status, bare_status=row.bare_status, data=data
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
    reason = error.details.get("reason")
    return reason if isinstance(reason, str) and error.reason == error.code.lower() else error.reason
