"""The upper bound for an MCP gateway in Python: bare ASGI, each message decoded once by msgspec, the same client."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import uvicorn
from msgspec import Raw

from a2a_fabric.outbound.client import OutboundClient

VERSION = "2026-07-28"


class Params(msgspec.Struct):
    name: str
    arguments: Raw


class Request(msgspec.Struct):
    id: int | str
    method: str
    params: Params


class Reply(msgspec.Struct):
    id: int | str
    result: Raw = Raw(b"")
    error: Raw = Raw(b"")


_request_decoder = msgspec.json.Decoder(Request)
_reply_decoder = msgspec.json.Decoder(Reply)


class Forwarder:
    """Only `tools/call` of the stateless era; no authentication, no trace, no log, no metrics, no errors."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._client: OutboundClient | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        client = self._client = self._client or OutboundClient()
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        request = _request_decoder.decode(body)
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": VERSION,
            "mcp-method": request.method,
            "mcp-name": request.params.name,
        }
        reply = await client.request("POST", self._upstream, headers=headers, body=body, timeout=60, limit=2**24)
        _reply_decoder.decode(reply.body)
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(reply.body))]
        await send({"type": "http.response.start", "status": reply.status, "headers": head})
        await send({"type": "http.response.body", "body": reply.body})


if __name__ == "__main__":
    uvicorn.run(
        Forwarder(sys.argv[2]),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="error",
        lifespan="off",
        access_log=False,
        proxy_headers=False,
    )
