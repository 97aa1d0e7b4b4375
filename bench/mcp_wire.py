"""The requests of an MCP client as bytes, in both eras; the load generator repeats them without an SDK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bench import load
from bench.load import SESSION, RequestPlan

STATELESS = "2026-07-28"
HANDSHAKE = "2025-11-25"
ARGUMENTS = {"a": 19, "b": 23}
ANSWER = b'"structuredContent":{"sum":42}'  # of the tool `add`
_ACCEPT = "application/json, text/event-stream"
_META = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def stateless(port: int, path: str, tool: str, token: str = "") -> RequestPlan:
    """A request of the stateless era."""
    body = _message("tools/call", {"name": tool, "arguments": ARGUMENTS, "_meta": _META})
    headers = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": "tools/call", "Mcp-Name": tool}
    return load.repeat_request(_post(port, path, body, token, headers), ANSWER)


def list_tools(port: int, path: str, token: str, expected: bytes = b'"tools":[') -> RequestPlan:
    """The list of tools, in the stateless era."""
    headers = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": "tools/list"}
    return load.repeat_request(_post(port, path, _message("tools/list", {"_meta": _META}), token, headers), expected)


def handshake(port: int, path: str, tool: str, token: str = "") -> RequestPlan:
    """Each connection opens and closes its own session."""
    about = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    headers = {"MCP-Protocol-Version": HANDSHAKE, "Mcp-Session-Id": SESSION}
    ready = msgspec.json.encode({"jsonrpc": "2.0", "method": "notifications/initialized"})
    return RequestPlan(
        [_post(port, path, _message("tools/call", {"name": tool, "arguments": ARGUMENTS}), token, headers)],
        ANSWER,
        [_post(port, path, _message("initialize", about), token), _post(port, path, ready, token, headers)],
        load.request(port, path, b"", token=token, accept=_ACCEPT, headers=headers, method="DELETE"),
    )


def listen(port: int, path: str, token: str) -> bytes:
    """The request for the stream on which a session waits for notifications."""
    headers = {"MCP-Protocol-Version": HANDSHAKE, "Mcp-Session-Id": SESSION}
    return load.request(port, path, b"", token=token, accept="text/event-stream", headers=headers, method="GET")


def _message(method: str, params: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


def _post(port: int, path: str, body: bytes, token: str, headers: Mapping[str, str] = {}) -> bytes:
    return load.request(port, path, body, token=token, accept=_ACCEPT, headers=headers)
