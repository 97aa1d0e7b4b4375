"""Errors of the A2A door: one table from Fabric errors to A2A reasons, and the codes of the reasons that A2A lacks.

Version 0.3 lacks two of the JSON-RPC codes; both become an invalid request there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    JobNotFound,
    PayloadTooLarge,
    RateLimited,
    StoreError,
    Unauthenticated,
)
from a2a_fabric.doors.edge import DoorError, to_encodable_text
from a2a_fabric.protocols.a2a.errors import PROTOCOL_ERRORS, A2AErrorCodes
from a2a_fabric.protocols.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST

_DOMAIN = "a2a-protocol.org"
_ERROR_INFO_TYPE = "type.googleapis.com/google.rpc.ErrorInfo"
_BAD_REQUEST_TYPE = "type.googleapis.com/google.rpc.BadRequest"
_CODES_MISSING_IN_0_3 = frozenset({-32008, -32009})


CODES_BY_REASON: Mapping[str, A2AErrorCodes] = {
    **PROTOCOL_ERRORS,
    "AGENT_NOT_FOUND": A2AErrorCodes(INVALID_PARAMS, 404, "NOT_FOUND", 404),
    "UNAUTHENTICATED": A2AErrorCodes(INVALID_REQUEST, 401, "UNAUTHENTICATED", 401),
    "PERMISSION_DENIED": A2AErrorCodes(INVALID_REQUEST, 403, "PERMISSION_DENIED", 403),
    "PAYLOAD_TOO_LARGE": A2AErrorCodes(INVALID_REQUEST, 413, "RESOURCE_EXHAUSTED", 413),
    "REQUEST_TIMEOUT": A2AErrorCodes(INVALID_REQUEST, 408, "DEADLINE_EXCEEDED", 408),
    "RATE_LIMITED": A2AErrorCodes(INTERNAL_ERROR, 429, "RESOURCE_EXHAUSTED", 429),
    "UNAVAILABLE": A2AErrorCodes(INTERNAL_ERROR, 503, "UNAVAILABLE", 503),
    "AGENT_TIMEOUT": A2AErrorCodes(INTERNAL_ERROR, 504, "DEADLINE_EXCEEDED"),
    "AGENT_FAILED": A2AErrorCodes(-32006, 502, "INTERNAL"),
}

# The first row that matches wins.
_ERROR_TABLE: Mapping[type[FabricError], str] = {
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


class A2AProtocolError(DoorError):
    """An error reply. `metadata` are details for programs."""

    def __init__(self, reason: str, message: str, *, field: str | None = None, **metadata: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field
        self.metadata = metadata

    @property
    def codes(self) -> A2AErrorCodes:
        return CODES_BY_REASON[self.reason]

    @property
    def details(self) -> list[dict[str, Any]]:
        """The error details of `google.rpc`."""
        info: dict[str, Any] = {
            "@type": _ERROR_INFO_TYPE,
            "reason": self.reason,
            "domain": _DOMAIN,
            "metadata": self.metadata,
        }
        if self.field is None:
            return [info]
        violation = {"field": self.field, "description": self.message}
        return [info, {"@type": _BAD_REQUEST_TYPE, "fieldViolations": [violation]}]

    def to_jsonrpc(self, *, is_0_3: bool) -> dict[str, Any]:
        code = self.codes.jsonrpc_code
        if is_0_3 and code in _CODES_MISSING_IN_0_3:
            code = INVALID_REQUEST
        return {"code": code, "message": self.message, "data": self.details}

    def to_http_body(self) -> dict[str, Any]:
        body = {
            "code": self.codes.http_status,
            "status": self.codes.grpc_status,
            "message": self.message,
            "details": self.details,
        }
        return {"error": body}


def protocol_error_from(error: FabricError, trace_id: str) -> A2AProtocolError:
    reason = next((reason for kind, reason in _ERROR_TABLE.items() if isinstance(error, kind)), None)
    if reason is None:
        reason = "INTERNAL_ERROR" if error.code == "INTERNAL_ERROR" else "AGENT_FAILED"
    if isinstance(error, JobNotFound):
        return task_not_found_error(str(error.details.get("job_id", "")))
    field = error.details.get("field")
    metadata = {"code": error.code, "traceId": trace_id}
    if isinstance(agent_id := error.details.get("agent_id"), str):
        metadata["agentId"] = agent_id
    protocol_error = A2AProtocolError(
        reason, to_encodable_text(error.message), field=field if isinstance(field, str) else None, **metadata
    )
    protocol_error.retry_after = error.retry_after if isinstance(error, RateLimited) else None
    return protocol_error


def invalid_params_error(message: str, field: str | None = None) -> A2AProtocolError:
    return A2AProtocolError("INVALID_PARAMS", message, field=field)


def task_not_found_error(task_id: str) -> A2AProtocolError:
    return A2AProtocolError("TASK_NOT_FOUND", f"Task '{to_encodable_text(task_id[:64])}' not found")
