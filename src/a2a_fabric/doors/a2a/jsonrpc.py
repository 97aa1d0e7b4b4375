"""JSON-RPC, of both versions: a request in, the name of an operation and its parameters out; and how answers look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from a2a_fabric.doors.a2a.faults import Fault, invalid
from a2a_fabric.doors.a2a.incoming import needs_object
from a2a_fabric.doors.a2a.versions import Version

_OLD: Mapping[str, str] = {
    "message/send": "SendMessage",
    "message/stream": "SendStreamingMessage",
    "tasks/get": "GetTask",
    "tasks/cancel": "CancelTask",
    "tasks/resubscribe": "SubscribeToTask",
    "tasks/pushNotificationConfig/set": "CreateTaskPushNotificationConfig",
    "tasks/pushNotificationConfig/get": "GetTaskPushNotificationConfig",
    "tasks/pushNotificationConfig/list": "ListTaskPushNotificationConfigs",
    "tasks/pushNotificationConfig/delete": "DeleteTaskPushNotificationConfig",
    "agent/getAuthenticatedExtendedCard": "GetExtendedAgentCard",
}
_NEW = frozenset({*_OLD.values(), "ListTasks"})
_STREAMS = frozenset({"SendStreamingMessage", "SubscribeToTask"})


class _Envelope(msgspec.Struct):
    jsonrpc: Any = None
    id: Any = None
    method: Any = None
    params: msgspec.Raw = msgspec.Raw(b"{}")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    id: str | int | None
    operation: str
    params: dict[str, Any]
    version: Version

    @property
    def streams(self) -> bool:
        return self.operation in _STREAMS


_decoder = msgspec.json.Decoder(_Envelope)


def id_in(body: bytes) -> str | int | None:
    """Of a request that may be anything."""
    try:
        found = _decoder.decode(body).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, str | int) and not isinstance(found, bool) else None


def read(body: bytes, version: Version) -> Request:
    """Raises Fault."""
    envelope = _envelope(body)
    if envelope.jsonrpc != "2.0":
        raise Fault("INVALID_REQUEST", "Invalid Request: `jsonrpc` must be '2.0'")
    is_id = envelope.id is None or (isinstance(envelope.id, str | int) and not isinstance(envelope.id, bool))
    if not is_id:
        raise Fault("INVALID_REQUEST", "Invalid Request: `id` is a string, an integer or null")
    if not isinstance(envelope.method, str) or not envelope.method:
        raise Fault("INVALID_REQUEST", "Invalid Request: `method` is missing")
    operation = _operation(envelope.method, version)
    return Request(id=envelope.id, operation=operation, params=_params(envelope.params), version=version)


def _envelope(body: bytes) -> _Envelope:
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError as exc:
        is_batch = body.lstrip()[:1] == b"["
        told = "batches are not part of A2A" if is_batch else "an object is needed"
        raise Fault("INVALID_REQUEST", f"Invalid Request: {told}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise Fault("PARSE_ERROR", f"Invalid JSON payload: {str(exc)[:200]}") from exc


def _operation(method: str, version: Version) -> str:
    if version == "1.0" and method in _NEW:
        return method
    if version == "0.3" and method in _OLD:
        return _OLD[method]
    if method in _NEW:
        raise Fault("VERSION_NOT_SUPPORTED", f"{method} belongs to A2A 1.0: send the header 'A2A-Version: 1.0' with it")
    belongs = " belongs to A2A 0.3, and the request says 1.0" if method in _OLD else " is none of ours"
    raise Fault("METHOD_NOT_FOUND", f"Method not found: {method[:64]!r}{belongs}")


def _params(raw: msgspec.Raw) -> dict[str, Any]:
    try:
        return needs_object(msgspec.json.decode(raw))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise invalid(f"Invalid params: {str(exc)[:200]}") from exc


def success(request_id: str | int | None, result: Any) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def failure(request_id: str | int | None, fault: Fault, *, is_old: bool) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "error": fault.as_rpc(is_old=is_old)})
