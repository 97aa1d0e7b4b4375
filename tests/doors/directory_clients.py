"""Clients of document 002 as its own libraries are on the wire, each with that library's habits and strictness.

They are written after what those libraries send and check, since none of them can be installed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tests.fixtures.node import PSK, Node

ENTRY = {"agentId", "name", "capabilities", "endpoint", "registeredAt"}
OUTCOME = {"taskId", "status", "output"}


class ClientError(Exception):
    """What the library raises, or returns as its language's error."""


async def post(node: Node, url: str, body: Any, token: str | None = PSK) -> tuple[int, Any]:
    """To a path of the node, or to whatever address the directory gave away."""
    path = url.removeprefix(node.url)
    assert path.startswith("/"), url
    reply = await node.send("POST", path, json=body, token=token)
    return reply.status, json.loads(reply.body) if reply.body else None


def rpc(method: str, params: Any, request_id: Any = "1") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


@dataclass
class PythonClient:
    """Bare bodies to the directory; anything without a key `error` is success. Tasks are JSON-RPC."""

    node: Node

    async def register(self, agent: dict[str, Any]) -> dict[str, Any]:
        return await self._bare("/a2a/register", agent)

    async def discover(self, *capabilities: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self._bare("/a2a/discover", {"capabilities": capabilities}))["agents"]
        return found

    async def send_task(self, endpoint: str, task_id: str, action: str, given: dict[str, Any]) -> Any:
        params = {"taskId": task_id, "action": action, "sender": "python", "input": given}
        _, reply = await post(self.node, endpoint, rpc("a2a/task", params, task_id))
        return reply

    async def _bare(self, path: str, body: Any) -> dict[str, Any]:
        _, reply = await post(self.node, path, body)
        if "error" in reply:
            raise ClientError(reply["error"])
        return dict(reply)


@dataclass
class TypeScriptClient:
    """Bare bodies too, but it is the status that counts; lists by GET."""

    node: Node

    async def register(self, agent: dict[str, Any]) -> dict[str, Any]:
        return await self._ok(await post(self.node, "/a2a/register", agent))

    async def discover(self, *capabilities: str) -> list[dict[str, Any]]:
        reply = await self._ok(await post(self.node, "/a2a/discover", {"capabilities": capabilities}))
        return list(reply["agents"])

    async def agents(self) -> list[dict[str, Any]]:
        reply = await self.node.send("GET", "/a2a/agents")
        return list((await self._ok((reply.status, reply.json)))["agents"])

    async def agent(self, agent_id: str) -> dict[str, Any]:
        reply = await self.node.send("GET", f"/a2a/agents/{agent_id}")
        return await self._ok((reply.status, reply.json))

    async def _ok(self, came: tuple[int, Any]) -> dict[str, Any]:
        status, reply = came
        if not 200 <= status < 300:
            raise ClientError(f"HTTP {status}")
        return dict(reply)


@dataclass
class StrictClient:
    """Java and C#: JSON-RPC everywhere; a key `error` means failure, even null; unknown properties are refused."""

    node: Node

    async def register(self, agent: dict[str, Any]) -> dict[str, Any]:
        return await self._result("/a2a/register", "a2a/register", agent, {"status", "agentId"})

    async def discover(self, *capabilities: str) -> list[dict[str, Any]]:
        params = {"capabilities": capabilities}
        found = (await self._result("/a2a/discover", "a2a/discover", params, {"agents"}))["agents"]
        return [exactly(entry, ENTRY) for entry in found]

    async def agent(self, agent_id: str) -> dict[str, Any]:
        return exactly((await self.node.send("GET", f"/a2a/agents/{agent_id}")).json, ENTRY)

    async def send_task(self, endpoint: str, task_id: str, action: str, given: dict[str, Any]) -> dict[str, Any]:
        params = {"taskId": task_id, "action": action, "sender": "java", "input": given}
        return await self._result(endpoint, "a2a/task", params, OUTCOME)

    async def _result(self, url: str, method: str, params: Any, keys: set[str]) -> dict[str, Any]:
        _, reply = await post(self.node, url, rpc(method, params, 7))
        if "error" in reply:
            raise ClientError(reply["error"]["message"])
        assert reply["id"] == 7
        return exactly(reply["result"], keys)


@dataclass
class GoClient:
    """The method is `a2a/register` whatever it wants; ids are text; times are RFC 3339."""

    node: Node

    async def register(self, agent: dict[str, Any]) -> dict[str, Any]:
        return await self._call("/a2a/register", agent)

    async def discover(self, *capabilities: str) -> list[datetime]:
        agents = (await self._call("/a2a/discover", {"capabilities": capabilities}))["agents"]
        return [go_time(agent["registeredAt"]) for agent in agents]

    async def _call(self, path: str, params: Any) -> dict[str, Any]:
        _, reply = await post(self.node, path, rpc("a2a/register", params, "go-1"))
        if reply.get("error") is not None:
            raise ClientError(reply["error"]["message"])
        assert isinstance(reply["id"], str)
        return dict(reply["result"])


def exactly(value: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    if set(value) != keys:
        raise ClientError(f"Unrecognized or missing properties: {set(value) ^ keys}")
    return value


def go_time(text: str) -> datetime:
    """As `time.Time` decodes JSON: RFC 3339 and nothing else."""
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", text):
        raise ClientError(f"parsing time {text!r}")
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)
