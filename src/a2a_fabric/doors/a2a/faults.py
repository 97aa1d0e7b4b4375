"""What went wrong, in the protocol's words: one table from our errors to its reasons, one from these to each binding.

Version 0.3 knows fewer numbers; what it does not know is an internal error or an invalid request there.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    PayloadTooLarge,
    RateLimited,
    Unauthenticated,
)
from a2a_fabric.core.store_errors import JobNotFound, StoreError

_DOMAIN = "a2a-protocol.org"
_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
_BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"
_KNOWN_TO_0_3 = frozenset({-32700, -32600, -32601, -32602, -32603, *range(-32007, -32000)})
_NOT_JSON = (TypeError, ValueError, OverflowError, RecursionError)


class Words(NamedTuple):
    """A reason in each binding. With `status` JSON-RPC says it over HTTP too; it concerns the request as a whole."""

    number: int
    http: int
    grpc: str
    status: int = 200


REASONS: Mapping[str, Words] = {
    "TASK_NOT_FOUND": Words(-32001, 404, "NOT_FOUND"),
    "TASK_NOT_CANCELABLE": Words(-32002, 400, "FAILED_PRECONDITION"),
    "PUSH_NOTIFICATION_NOT_SUPPORTED": Words(-32003, 400, "FAILED_PRECONDITION"),
    "UNSUPPORTED_OPERATION": Words(-32004, 400, "FAILED_PRECONDITION"),
    "CONTENT_TYPE_NOT_SUPPORTED": Words(-32005, 400, "INVALID_ARGUMENT"),
    "INVALID_AGENT_RESPONSE": Words(-32006, 500, "INTERNAL"),
    "EXTENDED_AGENT_CARD_NOT_CONFIGURED": Words(-32007, 400, "FAILED_PRECONDITION"),
    "EXTENSION_SUPPORT_REQUIRED": Words(-32008, 400, "FAILED_PRECONDITION"),
    "VERSION_NOT_SUPPORTED": Words(-32009, 400, "FAILED_PRECONDITION"),
    "PARSE_ERROR": Words(-32700, 400, "INVALID_ARGUMENT"),
    "INVALID_REQUEST": Words(-32600, 400, "INVALID_ARGUMENT"),
    "METHOD_NOT_FOUND": Words(-32601, 404, "UNIMPLEMENTED"),
    "INVALID_PARAMS": Words(-32602, 400, "INVALID_ARGUMENT"),
    "INTERNAL_ERROR": Words(-32603, 500, "INTERNAL", 500),
    "AGENT_NOT_FOUND": Words(-32602, 404, "NOT_FOUND", 404),
    "UNAUTHENTICATED": Words(-32600, 401, "UNAUTHENTICATED", 401),
    "PERMISSION_DENIED": Words(-32600, 403, "PERMISSION_DENIED", 403),
    "PAYLOAD_TOO_LARGE": Words(-32600, 413, "RESOURCE_EXHAUSTED", 413),
    "REQUEST_TIMEOUT": Words(-32600, 408, "DEADLINE_EXCEEDED", 408),
    "RATE_LIMITED": Words(-32603, 429, "RESOURCE_EXHAUSTED", 429),
    "UNAVAILABLE": Words(-32603, 503, "UNAVAILABLE", 503),
    "AGENT_TIMEOUT": Words(-32603, 504, "DEADLINE_EXCEEDED"),
    "AGENT_FAILED": Words(-32006, 502, "INTERNAL"),
}

# The first row that matches wins.
_ROWS: Mapping[type[FabricError], str] = {
    Unauthenticated: "UNAUTHENTICATED",
    AuthInvalid: "UNAUTHENTICATED",
    AuthExpired: "UNAUTHENTICATED",
    Forbidden: "PERMISSION_DENIED",
    RateLimited: "RATE_LIMITED",
    PayloadTooLarge: "PAYLOAD_TOO_LARGE",
    AgentNotFound: "AGENT_NOT_FOUND",
    CapabilityNotFound: "INVALID_PARAMS",
    JobNotFound: "TASK_NOT_FOUND",
    Conflict: "INVALID_PARAMS",
    BadInput: "INVALID_PARAMS",
    CallTimeout: "AGENT_TIMEOUT",
    AgentOffline: "UNAVAILABLE",
    AllAttemptsFailed: "UNAVAILABLE",
    StoreError: "UNAVAILABLE",
}


class Fault(Exception):
    """An error as it is told. `about` is for programs: texts by name."""

    def __init__(self, reason: str, message: str, *, field: str | None = None, **about: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field
        self.about = about
        self.retry_after: float | None = None

    @property
    def words(self) -> Words:
        return REASONS[self.reason]

    @property
    def details(self) -> list[dict[str, Any]]:
        """Typed as `google.rpc` has them."""
        info: dict[str, Any] = {"@type": _INFO, "reason": self.reason, "domain": _DOMAIN, "metadata": self.about}
        if self.field is None:
            return [info]
        violation = {"field": self.field, "description": self.message}
        return [info, {"@type": _BAD_REQUEST, "fieldViolations": [violation]}]

    def as_rpc(self, *, is_old: bool) -> dict[str, Any]:
        """The error object of JSON-RPC."""
        number = self.words.number
        if is_old and number not in _KNOWN_TO_0_3:
            number = -32603 if self.words.http >= 500 else -32600
        return {"code": number, "message": self.message, "data": self.details}

    def as_status(self) -> dict[str, Any]:
        """The body of an HTTP error."""
        told = {"code": self.words.http, "status": self.words.grpc, "message": self.message, "details": self.details}
        return {"error": told}


def fault_of(error: FabricError, trace_id: str) -> Fault:
    reason = next((reason for kind, reason in _ROWS.items() if isinstance(error, kind)), None)
    if reason is None:
        reason = "INTERNAL_ERROR" if error.code == "INTERNAL_ERROR" else "AGENT_FAILED"
    if isinstance(error, JobNotFound):
        return task_not_found(str(error.details.get("job_id", "")))
    field = error.details.get("field")
    about = {"code": error.code, "traceId": trace_id}
    if isinstance(agent_id := error.details.get("agent_id"), str):
        about["agentId"] = agent_id
    fault = Fault(reason, speakable(error.message), field=field if isinstance(field, str) else None, **about)
    fault.retry_after = error.retry_after if isinstance(error, RateLimited) else None
    return fault


def invalid(message: str, field: str | None = None) -> Fault:
    return Fault("INVALID_PARAMS", message, field=field)


def task_not_found(task_id: str) -> Fault:
    return Fault("TASK_NOT_FOUND", f"Task '{speakable(task_id[:64])}' not found")


def speakable(text: str) -> str:
    """Without what no encoding can write."""
    return text.encode("utf-8", "replace").decode()


def plain_details(details: Mapping[str, Any]) -> dict[str, Any]:
    """What agents in this process put into an error may be anything; only what is JSON goes out."""
    try:
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(details))
    except _NOT_JSON:
        return {}
    return found
