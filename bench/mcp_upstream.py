"""The MCP server behind everything that is measured: bare ASGI and msgspec, one tool, both eras at one address.

At `/events` it knows the handshake only and answers with a stream of events, as most servers of that era do. As
`stdio CORE` it is a program on stdin and stdout instead, pinned to that core.
"""

from __future__ import annotations

import itertools
import os
import sys
from typing import Any

import msgspec
import uvicorn
from msgspec import Raw

VERSIONS = ("2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
SERVER_INFO = {"name": "upstream", "version": "1"}
CAPABILITIES: dict[str, Any] = {"tools": {}}
NUMBER = {"type": "integer"}
SUM = {"type": "object", "properties": {"sum": NUMBER}, "required": ["sum"]}
ADD_SCHEMA = {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]}
TOOL = {"name": "add", "description": "Add two numbers.", "inputSchema": ADD_SCHEMA, "outputSchema": SUM}
CACHE_FIELDS = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
META = {"_meta": {"io.modelcontextprotocol/serverInfo": SERVER_INFO}}
JSON = (b"content-type", b"application/json")
EVENTS = (b"content-type", b"text/event-stream")
STATELESS = (b"mcp-protocol-version", b"2026-07-28")

_sessions = itertools.count(1)
_encode = msgspec.json.Encoder().encode


class AddArguments(msgspec.Struct):
    a: int
    b: int


class CallParams(msgspec.Struct):
    name: str
    arguments: AddArguments


class OpenParams(msgspec.Struct, rename="camel"):
    protocol_version: str


class Message(msgspec.Struct):
    method: str
    id: int | str | None = None
    params: Raw = Raw(b"{}")


_messages = msgspec.json.Decoder(Message)
_calls = msgspec.json.Decoder(CallParams)
_initializations = msgspec.json.Decoder(OpenParams)


async def app(scope: Any, receive: Any, send: Any) -> None:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    as_events = scope["path"] == "/events"
    if as_events and STATELESS in scope["headers"]:
        await _reply(send, 400, b"{}")
    elif scope["method"] == "POST":
        await _answer(_messages.decode(body), send, as_events=as_events)
    else:
        is_known = scope["method"] == "DELETE" or scope["path"] == "/health"
        await _reply(send, 200 if is_known else 405, b"{}")


async def _answer(message: Message, send: Any, *, as_events: bool) -> None:
    if message.id is None:
        await _reply(send, 202, b"")
    elif (result := _result(message)) is None:
        error = {"code": -32601, "message": "Method not output"}
        await _reply(send, 404, _encode({"jsonrpc": "2.0", "id": message.id, "error": error}))
    else:
        session = [(b"mcp-session-id", b"%d" % next(_sessions))] if message.method == "initialize" else []
        body = _encode({"jsonrpc": "2.0", "id": message.id, "result": result})
        if as_events:
            await send({"type": "http.response.start", "status": 200, "headers": [EVENTS, *session]})
            await send(
                {"type": "http.response.body", "body": b"event: message\r\ndata: %b\r\n\r\n" % body, "more_body": True}
            )
            await send({"type": "http.response.body", "body": b""})
        else:
            await _reply(send, 200, body, *session)


def _result(message: Message) -> dict[str, Any] | None:
    match message.method:
        case "tools/call":
            return _add(_calls.decode(message.params).arguments)
        case "tools/list":
            return {"tools": [TOOL], **CACHE_FIELDS}
        case "server/discover":
            return {"supportedVersions": VERSIONS, "capabilities": CAPABILITIES, **CACHE_FIELDS, **META}
        case "initialize":
            requested = _initializations.decode(message.params).protocol_version
            version = requested if requested in VERSIONS[1:] else VERSIONS[1]
            return {"protocolVersion": version, "capabilities": CAPABILITIES, "serverInfo": SERVER_INFO}
        case "ping":
            return {}
    return None


def _add(arguments: AddArguments) -> dict[str, Any]:
    output = {"sum": arguments.a + arguments.b}
    text = {"type": "text", "text": _encode(output).decode()}
    return {"content": [text], "structuredContent": output, "isError": False, "resultType": "complete"}


async def _reply(send: Any, status: int, body: bytes, *more: tuple[bytes, bytes]) -> None:
    headers = [JSON, (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve_pipes(core: str) -> None:
    if core:
        os.sched_setaffinity(0, {int(core)})
    for line in sys.stdin.buffer:
        message = _messages.decode(line)
        if message.id is None:
            continue
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message.id}
        result = _result(message) if message.method != "server/discover" else None
        outcome = {"error": {"code": -32601, "message": "Method not found"}} if result is None else {"result": result}
        sys.stdout.buffer.write(_encode({**reply, **outcome}) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__" and sys.argv[1] == "stdio":
    serve_pipes(sys.argv[2])
elif __name__ == "__main__":
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="error",
        lifespan="off",
        access_log=False,
        proxy_headers=False,
    )
