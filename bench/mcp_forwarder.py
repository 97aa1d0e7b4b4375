"""The ceiling for a Python gateway of MCP: bare ASGI, one look by msgspec at each message, the same client library."""

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


class Asked(msgspec.Struct):
    id: int | str
    method: str
    params: Params


class Told(msgspec.Struct):
    id: int | str
    result: Raw = Raw(b"")
    error: Raw = Raw(b"")


_asked = msgspec.json.Decoder(Asked)
_told = msgspec.json.Decoder(Told)


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
        asked = _asked.decode(body)
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": VERSION,
            "mcp-method": asked.method,
            "mcp-name": asked.params.name,
        }
        reply = await client.request("POST", self._upstream, headers=headers, body=body, timeout=60, limit=2**24)
        _told.decode(reply.body)
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
