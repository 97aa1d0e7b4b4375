"""The wire of MCP: versions and eras, header names and `_meta` keys, and the JSON-RPC frame of a message.

In the handshake era a client opens a session with `initialize`. In the stateless era every request carries an
envelope in its `_meta` instead. This module does not import the SDK, because the door's fast path and the
probes use it and importing the SDK takes most of a second."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from a2a_fabric.core.json_text import SHORT, find_json_problem
from a2a_fabric.protocols.jsonrpc import DECODE_ERRORS, INVALID_REQUEST, PARSE_ERROR, JSONRPCError, encode_error
from a2a_fabric.version import __version__

Era = Literal["handshake", "stateless"]

STATELESS_VERSION = "2026-07-28"
HANDSHAKE_VERSION = "2025-11-25"

SESSION_HEADER = "mcp-session-id"
VERSION_HEADER = "mcp-protocol-version"
METHOD_HEADER = "mcp-method"
NAME_HEADER = "mcp-name"
SESSION_HEADER_BYTES = SESSION_HEADER.encode()  # as ASGI has them
VERSION_HEADER_BYTES = VERSION_HEADER.encode()

PROTOCOL_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO_KEY = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL_KEY = "io.modelcontextprotocol/logLevel"
SERVER_INFO_KEY = "io.modelcontextprotocol/serverInfo"
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"

LISTEN_METHOD = "subscriptions/listen"
INPUT_REQUIRED = "input_required"  # the `resultType` of a result that asks for input

OWN_INFO = {"name": "a2a-fabric", "version": __version__}

POST_HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
DISCOVER_HEADERS = {**POST_HEADERS, VERSION_HEADER: STATELESS_VERSION, METHOD_HEADER: "server/discover"}
DISCOVER_REQUEST: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "server/discover",
    "params": {
        "_meta": {PROTOCOL_VERSION_KEY: STATELESS_VERSION, CLIENT_INFO_KEY: OWN_INFO, CLIENT_CAPABILITIES_KEY: {}}
    },
}
INITIALIZE_REQUEST: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": HANDSHAKE_VERSION, "capabilities": {}, "clientInfo": OWN_INFO},
}


def is_stateless_version(version: str | None) -> bool:
    """Whether a request with this version header belongs to the stateless era. Versions are dates."""
    return version is not None and version[:4] >= STATELESS_VERSION[:4]


HEADER_MISMATCH = -32020
MISSING_CLIENT_CAPABILITY = -32021
REQUEST_CANCELLED = -32800  # ends the stream of a request that its client cancelled, in the handshake era
RESOURCE_NOT_FOUND = -32002  # in the handshake era; the stateless era has INVALID_PARAMS


class McpProtocolError(JSONRPCError):
    """A JSON-RPC error, with the HTTP status of its reply."""

    def __init__(self, code: int, message: str, data: Any = None, *, status: int = 400) -> None:
        super().__init__(code, message, data)
        self.status = status


def make_undeclared_error(extension: str) -> McpProtocolError:
    """The error for a client of the stateless era that has not declared an extension which the request needs."""
    needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {extension: {}}}}
    return McpProtocolError(MISSING_CLIENT_CAPABILITY, f"The client must declare {extension} for this", needed)


class McpMessage(msgspec.Struct):
    """A request, a notification (without id), or a response (without method)."""

    jsonrpc: Literal["2.0"]
    method: str | UnsetType = UNSET
    id: str | int | UnsetType | None = UNSET
    params: Raw = Raw(b"")
    result: Raw = Raw(b"")
    error: Raw = Raw(b"")

    @property
    def is_request(self) -> bool:
        return self.method is not UNSET and self.id is not UNSET


class _FrameId(msgspec.Struct):
    id: str | int | None = None


_decoder = msgspec.json.Decoder(McpMessage)


def parse_message(body: bytes | str) -> McpMessage:
    """Raises McpProtocolError for a body that is not JSON, or not one message."""
    if len(body) > SHORT and (problem := find_json_problem(body.encode() if isinstance(body, str) else body)):
        raise McpProtocolError(PARSE_ERROR, f"Parse error: {problem}")
    try:
        message = _decoder.decode(body)
    except msgspec.ValidationError as exc:
        if not _is_json(body):
            raise McpProtocolError(PARSE_ERROR, "Parse error") from exc
        raise McpProtocolError(INVALID_REQUEST, f"Not a JSON-RPC message: {exc}"[:300]) from exc
    except (*DECODE_ERRORS, UnicodeEncodeError) as exc:
        raise McpProtocolError(PARSE_ERROR, "Parse error") from exc
    if message.method is UNSET and not (message.result or message.error):
        raise McpProtocolError(INVALID_REQUEST, "Not a JSON-RPC message: it has no method")
    if message.is_request and message.id is None:
        raise McpProtocolError(INVALID_REQUEST, "The id of a request must not be null")
    if bytes(message.params)[:1] not in (b"", b"{", b"n"):
        raise McpProtocolError(INVALID_REQUEST, "`params` must be an object")
    return message


def decode_or_none(body: bytes | Raw, struct_type: Any) -> Any:
    """The body as this type; None if it is not JSON, or JSON of another shape."""
    try:
        return msgspec.json.decode(body, type=struct_type)
    except DECODE_ERRORS:
        return None


def find_id(body: bytes) -> str | int | None:
    """The id of a body that may be anything; None if it has none that can be read."""
    frame: _FrameId | None = decode_or_none(body, _FrameId)
    return None if frame is None else frame.id


def _is_json(body: bytes | str) -> bool:
    try:
        msgspec.json.decode(body)
    except (*DECODE_ERRORS, UnicodeEncodeError):
        return False
    return True


def render_error(error: McpProtocolError, request_id: Any = None) -> bytes:
    return encode_error(request_id, error.to_object())
