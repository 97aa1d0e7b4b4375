"""The JSON-RPC binding of both A2A versions: a request becomes an operation and its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from a2a_fabric.doors.a2a.errors import A2AProtocolError, invalid_params_error
from a2a_fabric.doors.a2a.parse import require_object
from a2a_fabric.protocols import jsonrpc
from a2a_fabric.protocols.a2a.models import A2AVersion
from a2a_fabric.protocols.jsonrpc import JSONRPCError, JSONRPCFrame

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


class A2ARpcRequest(msgspec.Struct, frozen=True, kw_only=True):
    id: Raw
    operation: str
    params: dict[str, Any]
    version: A2AVersion

    @property
    def is_streaming(self) -> bool:
        return self.operation in _STREAMING_OPERATIONS


def decode_frame(body: bytes) -> JSONRPCFrame:
    """Raises A2AProtocolError."""
    try:
        return jsonrpc.decode_frame(body)
    except JSONRPCError as error:
        if error.code == jsonrpc.PARSE_ERROR:
            raise A2AProtocolError("PARSE_ERROR", f"Invalid JSON payload: {str(error.__cause__)[:200]}") from error
        is_batch = body.lstrip()[:1] == b"["
        problem = "A2A has no batches; send one request at a time" if is_batch else "the body must be an object"
        raise A2AProtocolError("INVALID_REQUEST", f"Invalid Request: {problem}") from error


def parse_request(frame: JSONRPCFrame, version: A2AVersion) -> A2ARpcRequest:
    """Raises A2AProtocolError."""
    request_id = frame.read_id()
    if frame.jsonrpc != "2.0":
        raise A2AProtocolError("INVALID_REQUEST", "Invalid Request: `jsonrpc` must be '2.0'")
    if bytes(frame.id) and not _is_valid_id(request_id):
        raise A2AProtocolError("INVALID_REQUEST", "Invalid Request: `id` must be a string, an integer or null")
    if not frame.method or not isinstance(frame.method, str):
        raise A2AProtocolError("INVALID_REQUEST", "Invalid Request: `method` is missing")
    operation = _find_operation(frame.method, version)
    params = _decode_params(frame.params)
    return A2ARpcRequest(id=request_id or jsonrpc.NULL, operation=operation, params=params, version=version)


def _is_valid_id(request_id: Raw | None) -> bool:
    """A string, null or an integer: A2A has no fractions as ids."""
    raw = bytes(request_id or b"")
    return raw[:1] in (b'"', b"n") or raw.removeprefix(b"-").isdigit()


def _find_operation(method: str, version: A2AVersion) -> str:
    if version == "1.0" and method in _METHODS_1_0:
        return method
    if version == "0.3" and method in _METHODS_0_3:
        return _METHODS_0_3[method]
    if method in _METHODS_1_0:
        raise A2AProtocolError(
            "VERSION_NOT_SUPPORTED", f"{method} belongs to A2A 1.0: send the header 'A2A-Version: 1.0' with it"
        )
    explanation = " belongs to A2A 0.3, but the request says 1.0" if method in _METHODS_0_3 else ""
    raise A2AProtocolError("METHOD_NOT_FOUND", f"Method not found: {method[:64]!r}{explanation}")


def _decode_params(raw: Raw) -> dict[str, Any]:
    try:
        return require_object(msgspec.json.decode(raw) if bytes(raw) else None)
    except jsonrpc.DECODE_ERRORS as exc:
        raise invalid_params_error(f"Invalid params: {str(exc)[:200]}") from exc


def encode_error(request_id: Raw, protocol_error: A2AProtocolError, *, is_0_3: bool) -> bytes:
    return jsonrpc.encode_error(request_id, protocol_error.to_jsonrpc(is_0_3=is_0_3))
