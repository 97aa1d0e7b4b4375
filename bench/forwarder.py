"""The upper bound for Python: a bare ASGI app that forwards each body with the same client library."""

from __future__ import annotations

import sys
from typing import Any

import uvicorn

from a2a_fabric.outbound.client import OutboundClient


class Forwarder:
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
        headers = {"content-type": "application/json"}
        if any(name == b"accept" and b"event-stream" in value for name, value in scope["headers"]):
            await self._stream(client, {**headers, "accept": "text/event-stream"}, body, send)
            return
        reply = await client.request("POST", self._upstream, headers=headers, body=body, timeout=60, limit=2**24)
        length = str(len(reply.body)).encode()
        head = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": reply.status, "headers": head})
        await send({"type": "http.response.body", "body": reply.body})

    async def _stream(self, client: OutboundClient, headers: dict[str, str], body: bytes, send: Any) -> None:
        head = [(b"content-type", b"text/event-stream")]
        async with client.stream("POST", self._upstream, headers=headers, body=body, timeout=60, limit=2**30) as reply:
            await send({"type": "http.response.start", "status": reply.status, "headers": head})
            async for chunk in reply.chunks():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


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
