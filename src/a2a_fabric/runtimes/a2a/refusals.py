"""What went wrong between us and an A2A agent, in our words: one table per place where the protocol says it.

JSON-RPC has numbers, HTTP+JSON and gRPC have reasons, 0.3 over HTTP has names. All become a
reason here, and the reason decides which error it is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.errors import (
    AgentBusy,
    AgentOffline,
    BadInput,
    ErrorTable,
    FabricError,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.outbound.port import ConnectFailed, OutboundError, ReplyTooLarge

# First match wins. Only the first is sure never to have reached the agent.
TRANSPORT_ERRORS: ErrorTable = {
    ConnectFailed: AgentOffline,
    ReplyTooLarge: UpstreamRefused,
    OutboundError: UpstreamInterrupted,
}

TASK_NOT_FOUND = "TASK_NOT_FOUND"
PUSH_NOT_SUPPORTED = "PUSH_NOTIFICATION_NOT_SUPPORTED"
LOST_TASK = frozenset({TASK_NOT_FOUND, "NOT_FOUND"})
NOT_UNDERSTOOD = frozenset({"METHOD_NOT_FOUND", "VERSION_NOT_SUPPORTED", "NOT_FOUND", "UNIMPLEMENTED"})
UNSUPPORTED = NOT_UNDERSTOOD | {"UNSUPPORTED_OPERATION"}

_BY_NUMBER: dict[int, str] = {
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
_BY_NAME: dict[str, str] = {
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
_TYPED = (frozenset(_BY_NUMBER.values()) | UNSUPPORTED) - {"INTERNAL_ERROR", "INVALID_AGENT_RESPONSE"}
_CALLERS_FAULT = frozenset({"INVALID_PARAMS", "CONTENT_TYPE_NOT_SUPPORTED"})
_BY_STATUS: dict[int, type[FabricError]] = {
    429: AgentBusy,
    502: UpstreamInterrupted,  # a proxy got no answer: the agent may have run
    503: AgentOffline,
    504: UpstreamInterrupted,
    422: BadInput,  # how 0.3 says that the params are wrong
}


class RPCError(msgspec.Struct, frozen=True):
    code: Any = None
    message: Any = None
    data: Any = None


def refused(reason: str, words: str, status: int | None = None) -> FabricError:
    """The agent's answer was no, or a proxy's before it, or HTTP 5xx with no reason of the protocol."""
    kind = _BY_STATUS.get(status or 0)
    if kind is None and reason in _CALLERS_FAULT:
        kind = BadInput
    elif kind is None:
        is_own = status is None or 400 <= status < 500 or reason in _TYPED
        kind = UpstreamRefused if is_own else UpstreamFailed
    return kind((words or f"The agent answered {reason}")[:500], upstream_code=reason or None, status=status)


def reason_of(error: FabricError) -> str:
    """The protocol's word for it, if it had one."""
    return str(error.details.get("upstream_code", ""))


def by_number(error: RPCError) -> FabricError:
    """A JSON-RPC error."""
    reason = _BY_NUMBER.get(error.code, f"JSON-RPC {error.code}") if isinstance(error.code, int) else "JSON-RPC"
    words = error.message if isinstance(error.message, str) else ""
    if isinstance(error.data, str) and error.data not in words:  # where version 0.3 says what is wrong
        words = f"{words}: {error.data}"
    return refused(reason, words)


def by_name(name: str, words: str) -> FabricError:
    """An error of 0.3 that is named like its class."""
    return refused(_BY_NAME.get(name, "UNKNOWN"), words)


def by_object(told: dict[str, Any], status: int | None = None) -> FabricError:
    """As `google.rpc.Status` has it: the reason is in one of the details, else it is the status itself."""
    details = told.get("details")
    for each in details if isinstance(details, list) else ():
        if isinstance(each, dict) and isinstance(each.get("reason"), str):
            return refused(each["reason"], _words(told.get("message")), status)
    return refused(_words(told.get("status")) or "UNKNOWN", _words(told.get("message")), status)


def by_status(status: int, body: bytes) -> FabricError:
    """An HTTP reply that is no success; its body may say more."""
    found = _json_object(body)
    told = found.get("error")
    if isinstance(told, dict):
        return by_object(told, status)
    words = _words(found.get("message")) or _words(found.get("detail")) or _words(told)
    if isinstance(found.get("type"), str) and found["type"] in _BY_NAME:
        return refused(_BY_NAME[found["type"]], words, status)
    reason = {404: "NOT_FOUND", 405: "METHOD_NOT_FOUND"}.get(status, "")
    return refused(reason, f"The agent answered HTTP {status}" + (f": {words}" if words else ""), status)


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _words(value: Any) -> str:
    return value if isinstance(value, str) else ""
