"""What agents say before a call, when all is well: just enough for a runtime to go on to the call itself."""

from __future__ import annotations

from typing import Any

from mcp_types.version import LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from tests.fixtures.faulty import Asked

CAPABILITY = "act"


def mcp(asked: Asked) -> tuple[int, Any] | None:
    if asked.method != "POST":
        return 405, None
    request = asked.json
    match request["method"]:
        case "initialize":
            result: dict[str, Any] = {"protocolVersion": LATEST_HANDSHAKE_VERSION, "serverInfo": _SERVER}
            result["capabilities"] = {"tools": {}}
        case "server/discover":
            result = {"supportedVersions": list(MODERN_PROTOCOL_VERSIONS), "capabilities": {"tools": {}}}
        case "tools/list":
            result = {"tools": [{"name": CAPABILITY, "inputSchema": {"type": "object"}}]}
        case "ping":
            result = {}
        case "tools/call":
            return None
        case _ if "id" not in request:
            return 202, None
        case _:
            error = {"code": -32601, "message": "Method not found"}
            return 200, {"jsonrpc": "2.0", "id": request["id"], "error": error}
    return 200, {"jsonrpc": "2.0", "id": request["id"], "result": {**_COMPLETE, **result}}


def a2a(asked: Asked) -> tuple[int, Any] | None:
    """The card, for one who looks for it."""
    if asked.method != "GET" or not asked.path.endswith("card.json"):
        return (404, None) if asked.method == "GET" else None
    interfaces = [
        {"url": asked.place, "protocolBinding": binding, "protocolVersion": "1.0"}
        for binding in ("JSONRPC", "HTTP+JSON")
    ]
    skill = {"id": CAPABILITY, "name": CAPABILITY, "description": "acts", "tags": []}
    return 200, {
        "name": "faulty",
        "description": "Something is wrong with it.",
        "version": "1",
        "supportedInterfaces": interfaces,
        "capabilities": {"streaming": True},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [skill],
    }


def openapi(asked: Asked) -> tuple[int, Any] | None:
    """The document, for one who looks for it."""
    if asked.method != "GET":
        return None
    done = {"description": "Done.", "content": {"application/json": {}}}
    body = {"content": {"application/json": {"schema": {"type": "object"}}}}
    act = {"operationId": CAPABILITY, "requestBody": body, "responses": {"200": done}}
    return 200, {"openapi": "3.1.0", "paths": {"/act": {"post": act}}}


_SERVER = {"name": "faulty", "version": "1"}
_COMPLETE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
