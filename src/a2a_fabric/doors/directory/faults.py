"""What went wrong, in the protocol's words: one table from our errors to codes and to HTTP.

JSON-RPC answers are 200 whatever they say, but for what concerns the request as a
whole: credentials, limits, size. Bare bodies have nothing but the status to tell
success from failure, so each error has a second one for them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

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
    PayloadTooLarge,
    RateLimited,
    Unauthenticated,
)
from a2a_fabric.core.store_errors import JobNotFound, StoreError

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
INTERNAL_ERROR, TASK_FAILED, TASK_TIMEOUT = -32603, -32001, -32002

_NOT_JSON = (TypeError, ValueError, OverflowError, RecursionError)


class Row(NamedTuple):
    """`words` stand alone where the document gives the message; with a colon the sentence follows."""

    code: int
    words: str
    status: int = 200
    bare: int = 400


_DENIED = Row(TASK_FAILED, "Unauthorized: ", 401, 401)
_FAILED = Row(TASK_FAILED, "Task failed", bare=502)

# The first row that matches wins.
_ROWS: dict[type[FabricError], Row] = {
    Unauthenticated: _DENIED,
    AuthInvalid: _DENIED,
    AuthExpired: _DENIED,
    Forbidden: Row(TASK_FAILED, "Forbidden: ", 403, 403),
    RateLimited: Row(TASK_FAILED, "Too many requests: ", 429, 429),
    PayloadTooLarge: Row(INVALID_REQUEST, "Invalid Request: ", 413, 413),
    AgentNotFound: Row(INVALID_PARAMS, "Invalid params: ", bare=404),
    CapabilityNotFound: Row(INVALID_PARAMS, "Invalid params: ", bare=404),
    JobNotFound: Row(INVALID_PARAMS, "Invalid params: ", bare=404),
    Conflict: Row(INVALID_PARAMS, "Invalid params: ", bare=409),
    BadInput: Row(INVALID_PARAMS, "Invalid params: ", bare=400),
    CallTimeout: Row(TASK_TIMEOUT, "Task timeout", bare=504),
    AgentOffline: Row(TASK_FAILED, "Task failed", bare=503),
    AllAttemptsFailed: Row(TASK_FAILED, "Task failed", bare=503),
    StoreError: Row(TASK_FAILED, "Task failed", bare=503),
    InternalError: Row(INTERNAL_ERROR, "Internal error: ", 500, 500),
}


class Fault(Exception):
    """An error as it is told. `detail` is the sentence for people, wherever the code's own words stand."""

    def __init__(
        self, code: int, message: str, *, detail: str = "", status: int = 200, bare: int = 400, data: Any = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail = detail or message
        self.status = status
        self.bare = bare
        self.data = data
        self.retry_after: float | None = None


def fault_of(error: FabricError, trace_id: str, **more: Any) -> Fault:
    """`more` says which task, and where in it."""
    row = next((row for kind, row in _ROWS.items() if isinstance(error, kind)), _FAILED)
    if isinstance(error, Forbidden) and "tool_error" in error.details:
        row = _FAILED  # a tool's own refusal is not about the caller's credentials
    message = row.words + error.message if row.words.endswith(": ") else row.words
    data = {**told(error), **more, "traceId": trace_id}
    fault = Fault(row.code, message, detail=error.message, status=row.status, bare=row.bare, data=data)
    fault.retry_after = error.retry_after if isinstance(error, RateLimited) else None
    return fault


def told(error: FabricError) -> dict[str, Any]:
    """`reason` is the document's; `code` is the same on every door."""
    said: dict[str, Any] = {"reason": _reason(error), "code": error.code, "detail": _speakable(error.message)}
    if isinstance(agent_id := error.details.get("agent_id"), str):
        said["agentId"] = agent_id
    try:
        details = msgspec.json.decode(msgspec.json.encode(error.details))
    except _NOT_JSON:
        details = None  # agents in this process may put anything into an error
    return {**said, "details": details} if details else said


def _reason(error: FabricError) -> str:
    if isinstance(error, AllAttemptsFailed):
        return "offline"
    own = error.details.get("reason")
    return own if isinstance(own, str) and error.reason == error.code.lower() else error.reason


def _speakable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
