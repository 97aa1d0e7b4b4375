"""The agent behind everything that is measured, where none in C can be compiled: a constant answer, or paced events.

At `/slow` the answer comes 50 ms later.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvicorn

ANSWER = b'{"ok":true,"result":{"answer":"forty-two","confidence":0.9,"citations":[]}}'
EVENT = b'data: {"event":"token","data":{"text":"word "}}\n\n'
FINAL = b'data: {"event":"final","data":{"ok":true,"result":{"answer":"done"}}}\n\n'
EVENTS = 200
PAUSE = 0.005
SLOW = 0.05


async def app(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    if any(name == b"accept" and b"event-stream" in value for name, value in scope["headers"]):
        await _events(send)
        return
    if scope["path"] == "/slow":
        await asyncio.sleep(SLOW)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


async def _events(send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for _ in range(EVENTS):
        await send({"type": "http.response.body", "body": EVENT, "more_body": True})
        await asyncio.sleep(PAUSE)
    await send({"type": "http.response.body", "body": FINAL})


if __name__ == "__main__":
    if len(sys.argv) > 3:
        PAUSE = float(sys.argv[3]) / 1000
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="error",
        lifespan="off",
        access_log=False,
        proxy_headers=False,
    )
