"""Errors of A2A: the reasons of the protocol, their codes in each binding, and the Fabric errors that they become.

JSON-RPC has codes, HTTP+JSON and gRPC have reasons, 0.3 over HTTP has names. A runtime maps each of them to a reason
first, and the reason decides which Fabric error is raised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from a2a_fabric.core.errors import (
    BadInput,
    FabricError,
    UpstreamFailed,
    UpstreamRefused,
)
from a2a_fabric.protocols import jsonrpc


class A2AErrorCodes(NamedTuple):
    """How each binding reports a reason. JSON-RPC has its own HTTP status if the error concerns the whole request."""

    jsonrpc_code: int
    http_status: int
    grpc_status: str
    jsonrpc_http_status: int = 200


PROTOCOL_ERRORS: Mapping[str, A2AErrorCodes] = {
    "TASK_NOT_FOUND": A2AErrorCodes(-32001, 404, "NOT_FOUND"),
    "TASK_NOT_CANCELABLE": A2AErrorCodes(-32002, 400, "FAILED_PRECONDITION"),
    "PUSH_NOTIFICATION_NOT_SUPPORTED": A2AErrorCodes(-32003, 400, "FAILED_PRECONDITION"),
    "UNSUPPORTED_OPERATION": A2AErrorCodes(-32004, 400, "FAILED_PRECONDITION"),
    "CONTENT_TYPE_NOT_SUPPORTED": A2AErrorCodes(-32005, 400, "INVALID_ARGUMENT"),
    "INVALID_AGENT_RESPONSE": A2AErrorCodes(-32006, 500, "INTERNAL"),
    "EXTENDED_AGENT_CARD_NOT_CONFIGURED": A2AErrorCodes(-32007, 400, "FAILED_PRECONDITION"),
    "EXTENSION_SUPPORT_REQUIRED": A2AErrorCodes(-32008, 400, "FAILED_PRECONDITION"),
    "VERSION_NOT_SUPPORTED": A2AErrorCodes(-32009, 400, "FAILED_PRECONDITION"),
    "PARSE_ERROR": A2AErrorCodes(jsonrpc.PARSE_ERROR, 400, "INVALID_ARGUMENT"),
    "INVALID_REQUEST": A2AErrorCodes(jsonrpc.INVALID_REQUEST, 400, "INVALID_ARGUMENT"),
    "METHOD_NOT_FOUND": A2AErrorCodes(jsonrpc.METHOD_NOT_FOUND, 404, "UNIMPLEMENTED"),
    "INVALID_PARAMS": A2AErrorCodes(jsonrpc.INVALID_PARAMS, 400, "INVALID_ARGUMENT"),
    "INTERNAL_ERROR": A2AErrorCodes(jsonrpc.INTERNAL_ERROR, 500, "INTERNAL", 500),
}

TASK_NOT_FOUND = "TASK_NOT_FOUND"
PUSH_NOT_SUPPORTED = "PUSH_NOTIFICATION_NOT_SUPPORTED"
TASK_LOST_REASONS = frozenset({TASK_NOT_FOUND, "NOT_FOUND"})
UNKNOWN_METHOD_REASONS = frozenset({"METHOD_NOT_FOUND", "VERSION_NOT_SUPPORTED", "NOT_FOUND", "UNIMPLEMENTED"})
UNSUPPORTED_REASONS = UNKNOWN_METHOD_REASONS | {"UNSUPPORTED_OPERATION"}

_REASON_BY_CODE = {codes.jsonrpc_code: reason for reason, codes in PROTOCOL_ERRORS.items()}
_REASON_BY_NAME: dict[str, str] = {
    "TaskNotFoundError": TASK_NOT_FOUND,
    "TaskNotCancelableError": "TASK_NOT_CANCELABLE",
    "PushNotificationNotSupportedError": PUSH_NOT_SUPPORTED,
    "UnsupportedOperationError": "UNSUPPORTED_OPERATION",
    "ContentTypeNotSupportedError": "CONTENT_TYPE_NOT_SUPPORTED",
    "InvalidAgentResponseError": "INVALID_AGENT_RESPONSE",
    "InvalidParamsError": "INVALID_PARAMS",
    "InvalidRequestError": "INVALID_REQUEST",
    "MethodNotFoundError": "METHOD_NOT_FOUND",
    "VersionNotSupportedError": "VERSION_NOT_SUPPORTED",
    "InternalError": "INTERNAL_ERROR",
}
# With one of these reasons the agent itself has answered, whatever the HTTP status is.
_AGENT_REASONS = (PROTOCOL_ERRORS.keys() | UNSUPPORTED_REASONS) - {
    "INTERNAL_ERROR",
    "INVALID_AGENT_RESPONSE",
}
_CALLER_REASONS = frozenset({"INVALID_PARAMS", "CONTENT_TYPE_NOT_SUPPORTED"})


class A2ARPCError(msgspec.Struct, frozen=True):
    """The error of a JSON-RPC reply; a careless agent may put anything into each field."""

    code: Any = None
    message: Any = None
    data: Any = None


def error_from_reason(
    reason: str, text: str, status: int | None = None, kind: type[FabricError] | None = None
) -> FabricError:
    """The Fabric error for a reason. `kind` is known already if the HTTP status alone decides."""
    if kind is None and reason in _CALLER_REASONS:
        kind = BadInput
    elif kind is None:
        is_agents_answer = status is None or 400 <= status < 500 or reason in _AGENT_REASONS
        kind = UpstreamRefused if is_agents_answer else UpstreamFailed
    return kind((text or f"The agent answered {reason}")[:500], upstream_code=reason or None, status=status)


def upstream_reason(error: FabricError) -> str:
    """The reason that the agent gave, or an empty text."""
    return str(error.details.get("upstream_code", ""))


def error_from_rpc(error: A2ARPCError) -> FabricError:
    reason = _REASON_BY_CODE.get(error.code, f"JSON-RPC {error.code}") if isinstance(error.code, int) else "JSON-RPC"
    text = error.message if isinstance(error.message, str) else ""
    if isinstance(error.data, str) and error.data not in text:  # 0.3 puts the explanation here
        text = f"{text}: {error.data}"
    return error_from_reason(reason, text)


def error_from_name(name: str, text: str) -> FabricError:
    """An error of 0.3, which is named after its class."""
    return error_from_reason(_REASON_BY_NAME.get(name, "UNKNOWN"), text)


def error_from_status_object(
    document: dict[str, Any], status: int | None = None, kind: type[FabricError] | None = None
) -> FabricError:
    """A `google.rpc.Status`: the reason is in one of its details, or it is the status itself."""
    text, details = _text_or_empty(document.get("message")), document.get("details")
    for each in details if isinstance(details, list) else ():
        if isinstance(each, dict) and isinstance(each.get("reason"), str):
            return error_from_reason(each["reason"], text, status, kind)
    return error_from_reason(_text_or_empty(document.get("status")) or "UNKNOWN", text, status, kind)


def error_from_document(document: dict[str, Any], status: int, kind: type[FabricError] | None = None) -> FabricError:
    """The error of an HTTP reply, from its body if that has the form of one."""
    error = document.get("error")
    if isinstance(error, dict):
        return error_from_status_object(error, status, kind)
    text = _text_or_empty(document.get("message")) or _text_or_empty(document.get("detail")) or _text_or_empty(error)
    name = document.get("type")
    if isinstance(name, str) and name in _REASON_BY_NAME:
        return error_from_reason(_REASON_BY_NAME[name], text, status, kind)
    reason = {404: "NOT_FOUND", 405: "METHOD_NOT_FOUND"}.get(status, "")
    return error_from_reason(reason, f"The agent answered HTTP {status}" + (f": {text}" if text else ""), status, kind)


def _text_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""
