"""Errors of the MCP door: the canonical error object, and one table from Fabric errors to HTTP statuses."""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.errors import (
    AgentError,
    AgentNotFound,
    AgentOffline,
    AuthExpired,
    AuthInvalid,
    CallerError,
    CallTimeout,
    CapabilityNotFound,
    FabricError,
    Forbidden,
    PayloadTooLarge,
    RateLimited,
    StoreUnavailable,
    Unauthenticated,
    error_from_code,
)
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.edge import JSON_ENCODE_ERRORS, RefusedRequest, to_encodable_text
from a2a_fabric.protocols.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST
from a2a_fabric.protocols.mcp.frames import McpProtocolError

# The first match wins.
_STATUS: dict[type[FabricError], int] = {
    Unauthenticated: 401,
    AuthInvalid: 401,
    AuthExpired: 401,
    Forbidden: 403,
    AgentNotFound: 404,
    CapabilityNotFound: 404,
    PayloadTooLarge: 413,
    RateLimited: 429,
    CallerError: 400,
    AgentOffline: 503,
    CallTimeout: 504,
    AgentError: 502,
    StoreUnavailable: 503,
}
_DEFAULT_STATUS = 500

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def http_status_of(error: FabricError) -> int:
    if isinstance(error, RefusedRequest):
        return error.status
    return next((status for kind, status in _STATUS.items() if isinstance(error, kind)), _DEFAULT_STATUS)


def to_protocol_error(error: FabricError, trace: Trace) -> McpProtocolError:
    """The error as a JSON-RPC error, whose data is the canonical error object."""
    code = INVALID_REQUEST if isinstance(error, CallerError | RateLimited) else INTERNAL_ERROR
    return McpProtocolError(code, error.message, to_error_body(error, trace), status=http_status_of(error))


def to_error_body(error: FabricError, trace: Trace) -> dict[str, Any]:
    """The canonical error object. Details that JSON cannot hold are left out: agents in this process may set any."""
    error_object = {"code": error.code, "message": error.message, "details": error.details}
    try:
        error_object = _decode(_encode(error_object))
    except JSON_ENCODE_ERRORS:
        known_error = error_from_code(error.code, to_encodable_text(error.message))
        error_object = {"code": known_error.code, "message": known_error.message, "details": {}}
    return {"ok": False, "error": error_object, "trace": msgspec.to_builtins(trace)}
