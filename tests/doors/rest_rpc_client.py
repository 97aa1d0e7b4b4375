"""The client of document 004's platform as it is on the wire, and an address that it has its notifications sent to."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node


class RPCError(Exception):
    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.status = status
        self.code = error["code"]
        self.data = error.get("data")


@dataclass
class Client:
    """`response.ok` decides; only then is the body looked at."""

    node: Node
    token: str = PSK

    async def call(self, method: str, params: Any = None) -> Any:
        body = {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})}
        reply = await self.node.send("POST", "/", json=body, token=self.token)
        if not 200 <= reply.status < 300:
            raise RPCError(reply.status, reply.json["error"])
        assert reply.json["jsonrpc"] == "2.0"
        assert "error" not in reply.json
        return reply.json["result"]

    async def until_over(self, task_id: str) -> dict[str, Any]:
        """As its examples wait: for a status that is a word."""
        async with asyncio.timeout(WAIT_TIMEOUT):
            while True:
                task: dict[str, Any] = (await self.call("getTaskStatus", {"taskId": task_id}))["task"]
                if task["status"] in ("completed", "failed", "canceled"):
                    return task
                await asyncio.sleep(0.01)


class Hook:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[tuple[dict[str, str], dict[str, Any]]] = asyncio.Queue()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        self.told.put_nowait((dict(request.headers), json.loads(await request.body())))
        await Response(status_code=204)(scope, receive, send)


def parts(*words: str) -> list[dict[str, Any]]:
    return [{"type": "text", "content": word, "format": "plain"} for word in words]
