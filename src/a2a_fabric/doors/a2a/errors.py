"""Errors of the A2A door: one table from Fabric errors to A2A reasons, one from reasons to the codes of each binding.

Version 0.3 defines fewer JSON-RPC codes. A code that it does not define becomes an internal error or an invalid request."""

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
    JobNotFound,
    PayloadTooLarge,
    RateLimited,
    StoreError,
    Unauthenticated,
)

_DOMAIN = "a2a-protocol.org"
_ERROR_INFO_TYPE = "type.googleapis.com/google.rpc.ErrorInfo"
_BAD_REQUEST_TYPE = "type.googleapis.com/google.rpc.BadRequest"
_CODES_OF_0_3 = frozenset({-32700, -32600, -32601, -32602, -32603, *range(-32007, -32000)})
_JSON_ENCODE_ERRORS = (TypeError, ValueError, OverflowError, RecursionError)


class A2AErrorCodes(NamedTuple):
    """A reason in each binding. With `status` JSON-RPC says it over HTTP too; it concerns the request as a whole."""

    jsonrpc_code: int
    http_status: int
    grpc_status: str
    jsonrpc_http_status: int = 200


CODES_BY_REASON: Mapping[str, A2AErrorCodes] = {
    "TASK_NOT_FOUND": A2AErrorCodes(-32001, 404, "NOT_FOUND"),
    "TASK_NOT_CANCELABLE": A2AErrorCodes(-32002, 400, "FAILED_PRECONDITION"),
    "PUSH_NOTIFICATION_NOT_SUPPORTED": A2AErrorCodes(-32003, 400, "FAILED_PRECONDITION"),
    "UNSUPPORTED_OPERATION": A2AErrorCodes(-32004, 400, "FAILED_PRECONDITION"),
    "CONTENT_TYPE_NOT_SUPPORTED": A2AErrorCodes(-32005, 400, "INVALID_ARGUMENT"),
    "INVALID_AGENT_RESPONSE": A2AErrorCodes(-32006, 500, "INTERNAL"),
    "EXTENDED_AGENT_CARD_NOT_CONFIGURED": A2AErrorCodes(-32007, 400, "FAILED_PRECONDITION"),
    "EXTENSION_SUPPORT_REQUIRED": A2AErrorCodes(-32008, 400, "FAILED_PRECONDITION"),
    "VERSION_NOT_SUPPORTED": A2AErrorCodes(-32009, 400, "FAILED_PRECONDITION"),
    "PARSE_ERROR": A2AErrorCodes(-32700, 400, "INVALID_ARGUMENT"),
    "INVALID_REQUEST": A2AErrorCodes(-32600, 400, "INVALID_ARGUMENT"),
    "METHOD_NOT_FOUND": A2AErrorCodes(-32601, 404, "UNIMPLEMENTED"),
    "INVALID_PARAMS": A2AErrorCodes(-32602, 400, "INVALID_ARGUMENT"),
    "INTERNAL_ERROR": A2AErrorCodes(-32603, 500, "INTERNAL", 500),
    "AGENT_NOT_FOUND": A2AErrorCodes(-32602, 404, "NOT_FOUND", 404),
    "UNAUTHENTICATED": A2AErrorCodes(-32600, 401, "UNAUTHENTICATED", 401),
    "PERMISSION_DENIED": A2AErrorCodes(-32600, 403, "PERMISSION_DENIED", 403),
    "PAYLOAD_TOO_LARGE": A2AErrorCodes(-32600, 413, "RESOURCE_EXHAUSTED", 413),
    "REQUEST_TIMEOUT": A2AErrorCodes(-32600, 408, "DEADLINE_EXCEEDED", 408),
    "RATE_LIMITED": A2AErrorCodes(-32603, 429, "RESOURCE_EXHAUSTED", 429),
    "UNAVAILABLE": A2AErrorCodes(-32603, 503, "UNAVAILABLE", 503),
    "AGENT_TIMEOUT": A2AErrorCodes(-32603, 504, "DEADLINE_EXCEEDED"),
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


class A2AProtocolError(Exception):
    """An error as it is told. `about` is for programs: texts by name."""

    def __init__(self, reason: str, message: str, *, field: str | None = None, **metadata: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field
        self.metadata = metadata
        self.retry_after: float | None = None

    @property
    def codes(self) -> A2AErrorCodes:
        return CODES_BY_REASON[self.reason]

    @property
    def details(self) -> list[dict[str, Any]]:
        """Typed as `google.rpc` has them."""
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
        """The error object of JSON-RPC."""
        code = self.codes.jsonrpc_code
        if is_0_3 and code not in _CODES_OF_0_3:
            code = -32603 if self.codes.http_status >= 500 else -32600
        return {"code": code, "message": self.message, "data": self.details}

    def to_http_body(self) -> dict[str, Any]:
        """The body of an HTTP error."""
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


def to_encodable_text(text: str) -> str:
    """Without what no encoding can write."""
    return text.encode("utf-8", "replace").decode()


def to_json_details(details: Mapping[str, Any]) -> dict[str, Any]:
    """What agents in this process put into an error may be anything; only what is JSON goes out."""
    try:
        decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(details))
    except _JSON_ENCODE_ERRORS:
        return {}
    return decoded
