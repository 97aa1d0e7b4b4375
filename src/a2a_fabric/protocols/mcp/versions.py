"""Versions and eras of MCP, its header names and `_meta` keys, and the requests that tell a server's era.

In the handshake era a client opens a session with `initialize`. In the stateless era every request carries an
envelope in its `_meta` instead. This module does not import the SDK, because the door's fast path and the
probes use it and importing the SDK takes most of a second."""

from __future__ import annotations

from typing import Any, Literal

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
