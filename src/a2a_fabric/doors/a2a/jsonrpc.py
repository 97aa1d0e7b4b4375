"""JSON-RPC of both A2A versions: parses a request into an operation and its parameters, encodes results and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from a2a_fabric.doors.a2a.errors import A2AProtocolError, invalid_params_error
from a2a_fabric.doors.a2a.parse import require_object
from a2a_fabric.doors.a2a.request_context import A2AVersion

_METHODS_0_3: Mapping[str, str] = {
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
_METHODS_1_0 = frozenset({*_METHODS_0_3.values(), "ListTasks"})
_STREAMING_OPERATIONS = frozenset({"SendStreamingMessage", "SubscribeToTask"})


class _Envelope(msgspec.Struct):
    jsonrpc: Any = None
    id: Any = None
    method: Any = None
    params: msgspec.Raw = msgspec.Raw(b"{}")


class A2ARpcRequest(msgspec.Struct, frozen=True, kw_only=True):
    id: str | int | None
    operation: str
    params: dict[str, Any]
    version: A2AVersion

    @property
    def is_streaming(self) -> bool:
        return self.operation in _STREAMING_OPERATIONS


_decoder = msgspec.json.Decoder(_Envelope)


def read_request_id(body: bytes) -> str | int | None:
    """Of a request that may be anything."""
    try:
        request_id = _decoder.decode(body).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return request_id if isinstance(request_id, str | int) and not isinstance(request_id, bool) else None


def parse_request(body: bytes, version: A2AVersion) -> A2ARpcRequest:
    """Raises Fault."""
    envelope = _decode_envelope(body)
    if envelope.jsonrpc != "2.0":
        raise A2AProtocolError("INVALID_REQUEST", "Invalid Request: `jsonrpc` must be '2.0'")
    is_id = envelope.id is None or (isinstance(envelope.id, str | int) and not isinstance(envelope.id, bool))
    if not is_id:
        raise A2AProtocolError("INVALID_REQUEST", "Invalid Request: `id` is a string, an integer or null")
    if not isinstance(envelope.method, str) or not envelope.method:
        raise A2AProtocolError("INVALID_REQUEST", "Invalid Request: `method` is missing")
    operation = _find_operation(envelope.method, version)
    return A2ARpcRequest(id=envelope.id, operation=operation, params=_decode_params(envelope.params), version=version)


def _decode_envelope(body: bytes) -> _Envelope:
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError as exc:
        is_batch = body.lstrip()[:1] == b"["
        problem = "batches are not part of A2A" if is_batch else "an object is needed"
        raise A2AProtocolError("INVALID_REQUEST", f"Invalid Request: {problem}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise A2AProtocolError("PARSE_ERROR", f"Invalid JSON payload: {str(exc)[:200]}") from exc


def _find_operation(method: str, version: A2AVersion) -> str:
    if version == "1.0" and method in _METHODS_1_0:
        return method
    if version == "0.3" and method in _METHODS_0_3:
        return _METHODS_0_3[method]
    if method in _METHODS_1_0:
        raise A2AProtocolError(
            "VERSION_NOT_SUPPORTED", f"{method} belongs to A2A 1.0: send the header 'A2A-Version: 1.0' with it"
        )
    explanation = " belongs to A2A 0.3, and the request says 1.0" if method in _METHODS_0_3 else " is none of ours"
    raise A2AProtocolError("METHOD_NOT_FOUND", f"Method not found: {method[:64]!r}{explanation}")


def _decode_params(raw: msgspec.Raw) -> dict[str, Any]:
    try:
        return require_object(msgspec.json.decode(raw))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise invalid_params_error(f"Invalid params: {str(exc)[:200]}") from exc


def encode_result(request_id: str | int | None, result: Any) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def encode_error(request_id: str | int | None, protocol_error: A2AProtocolError, *, is_0_3: bool) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "error": protocol_error.to_jsonrpc(is_0_3=is_0_3)})
