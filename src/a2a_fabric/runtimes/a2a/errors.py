"""Errors of A2A agents as Fabric errors, with one table per place in which the protocol reports them.

JSON-RPC has codes, HTTP+JSON and gRPC have reasons, 0.3 over HTTP has names. Each is first mapped to a
reason, and the reason decides which Fabric error is raised."""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.errors import (
    BadInput,
    FabricError,
    UpstreamFailed,
    UpstreamRefused,
)
from a2a_fabric.runtimes.upstream import STATUS_ERRORS

TASK_NOT_FOUND = "TASK_NOT_FOUND"
PUSH_NOT_SUPPORTED = "PUSH_NOTIFICATION_NOT_SUPPORTED"
TASK_LOST_REASONS = frozenset({TASK_NOT_FOUND, "NOT_FOUND"})
UNKNOWN_METHOD_REASONS = frozenset({"METHOD_NOT_FOUND", "VERSION_NOT_SUPPORTED", "NOT_FOUND", "UNIMPLEMENTED"})
UNSUPPORTED_REASONS = UNKNOWN_METHOD_REASONS | {"UNSUPPORTED_OPERATION"}

_REASON_BY_CODE: dict[int, str] = {
    -32001: TASK_NOT_FOUND,
    -32002: "TASK_NOT_CANCELABLE",
    -32003: PUSH_NOT_SUPPORTED,
    -32004: "UNSUPPORTED_OPERATION",
    -32005: "CONTENT_TYPE_NOT_SUPPORTED",
    -32006: "INVALID_AGENT_RESPONSE",
    -32007: "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
    -32008: "EXTENSION_SUPPORT_REQUIRED",
    -32009: "VERSION_NOT_SUPPORTED",
    -32600: "INVALID_REQUEST",
    -32601: "METHOD_NOT_FOUND",
    -32602: "INVALID_PARAMS",
    -32603: "INTERNAL_ERROR",
    -32700: "PARSE_ERROR",
}
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
# What an agent says with one of these is its answer, whatever the HTTP status beside it.
_PROTOCOL_REASONS = (frozenset(_REASON_BY_CODE.values()) | UNSUPPORTED_REASONS) - {
    "INTERNAL_ERROR",
    "INVALID_AGENT_RESPONSE",
}
_CALLER_REASONS = frozenset({"INVALID_PARAMS", "CONTENT_TYPE_NOT_SUPPORTED"})
_ERROR_BY_STATUS: dict[int, type[FabricError]] = {**STATUS_ERRORS, 422: BadInput}  # 0.3 reports wrong params as 422


class A2ARPCError(msgspec.Struct, frozen=True):
    code: Any = None
    message: Any = None
    data: Any = None


def error_from_reason(reason: str, text: str, status: int | None = None) -> FabricError:
    """The agent's answer was no, or a proxy's before it, or HTTP 5xx with no reason of the protocol."""
    kind = _ERROR_BY_STATUS.get(status or 0)
    if kind is None and reason in _CALLER_REASONS:
        kind = BadInput
    elif kind is None:
        is_agents_answer = status is None or 400 <= status < 500 or reason in _PROTOCOL_REASONS
        kind = UpstreamRefused if is_agents_answer else UpstreamFailed
    return kind((text or f"The agent answered {reason}")[:500], upstream_code=reason or None, status=status)


def upstream_reason(error: FabricError) -> str:
    """The protocol's word for it, if it had one."""
    return str(error.details.get("upstream_code", ""))


def error_from_rpc(error: A2ARPCError) -> FabricError:
    """A JSON-RPC error."""
    reason = _REASON_BY_CODE.get(error.code, f"JSON-RPC {error.code}") if isinstance(error.code, int) else "JSON-RPC"
    text = error.message if isinstance(error.message, str) else ""
    if isinstance(error.data, str) and error.data not in text:  # where version 0.3 says what is wrong
        text = f"{text}: {error.data}"
    return error_from_reason(reason, text)


def error_from_name(name: str, text: str) -> FabricError:
    """An error of 0.3 that is named like its class."""
    return error_from_reason(_REASON_BY_NAME.get(name, "UNKNOWN"), text)


def error_from_status_object(document: dict[str, Any], status: int | None = None) -> FabricError:
    """As `google.rpc.Status` has it: the reason is in one of the details, else it is the status itself."""
    details = document.get("details")
    for each in details if isinstance(details, list) else ():
        if isinstance(each, dict) and isinstance(each.get("reason"), str):
            return error_from_reason(each["reason"], _text_or_empty(document.get("message")), status)
    return error_from_reason(
        _text_or_empty(document.get("status")) or "UNKNOWN", _text_or_empty(document.get("message")), status
    )


def error_from_http(status: int, body: bytes) -> FabricError:
    """An HTTP reply that is no success; its body may say more."""
    document = _decode_object(body)
    error = document.get("error")
    if isinstance(error, dict):
        return error_from_status_object(error, status)
    text = _text_or_empty(document.get("message")) or _text_or_empty(document.get("detail")) or _text_or_empty(error)
    if isinstance(document.get("type"), str) and document["type"] in _REASON_BY_NAME:
        return error_from_reason(_REASON_BY_NAME[document["type"]], text, status)
    reason = {404: "NOT_FOUND", 405: "METHOD_NOT_FOUND"}.get(status, "")
    return error_from_reason(reason, f"The agent answered HTTP {status}" + (f": {text}" if text else ""), status)


def _decode_object(body: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _text_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""
