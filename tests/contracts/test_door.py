"""The shipped contract suite of doors, against every door of the product through which agents are called."""

from __future__ import annotations

import asyncio
from typing import Any

from a2a_fabric import plugins
from a2a_fabric.core.propagation import new_id
from a2a_fabric.testing.door_contract import (
    BODY_BYTES,
    DoorContract,
    DoorRefusal,
    DoorReply,
    DoorRequest,
    InProcessClient,
)


def answer_of(reply: DoorReply) -> Any:
    """The JSON of a reply that is no error, in HTTP or in JSON-RPC."""
    if reply.status >= 300 or "error" in reply.json:
        raise DoorRefusal(reply.status, reply.text)
    return reply.json


def rpc(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


class TestFabricDoor(DoorContract):
    kind = "fabric"

    async def ask(self, node: InProcessClient, request: DoorRequest) -> str:
        arguments = {"agent_id": request.agent_id, "capability": request.capability, "task": request.task}
        reply = await node.request("POST", "/mcp/call", request.key, {"name": "fabric.call", "arguments": arguments})
        if not reply.json["ok"]:
            raise DoorRefusal(reply.status, reply.text)
        return reply.text


class TestMcpDoor(DoorContract):
    kind = "mcp"

    async def ask(self, node: InProcessClient, request: DoorRequest) -> str:
        arguments = {"agent_id": request.agent_id, "capability": request.capability, "task": request.task}
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "suite", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params = {"name": "fabric_call", "arguments": arguments, "_meta": meta}
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": "fabric_call",
        }
        reply = await node.request("POST", "/mcp", request.key, rpc("tools/call", params), headers)
        if answer_of(reply)["result"].get("isError"):
            raise DoorRefusal("isError", reply.text)
        return reply.text


class TestA2ADoor(DoorContract):
    kind = "a2a"
    settings = {"body_bytes": BODY_BYTES}  # noqa: RUF012

    async def ask(self, node: InProcessClient, request: DoorRequest) -> str:
        message = {
            "messageId": new_id(),
            "role": "ROLE_USER",
            "parts": [{"text": request.task}],
            "metadata": {"skill": request.capability},
        }
        reply = await node.request(
            "POST",
            f"/agents/{request.agent_id}",
            request.key,
            rpc("SendMessage", {"message": message}),
            {"A2A-Version": "1.0"},
        )
        if answer_of(reply)["result"].get("task", {}).get("status", {}).get("state") == "TASK_STATE_FAILED":
            raise DoorRefusal("failed", reply.text)
        return reply.text


class TestDirectoryDoor(DoorContract):
    kind = "directory"

    async def ask(self, node: InProcessClient, request: DoorRequest) -> str:
        params = {
            "taskId": f"task_{new_id()}",
            "action": request.capability,
            "sender": "suite",
            "input": {"task": request.task},
        }
        path = f"/a2a/agents/{request.agent_id}/rpc"
        reply = await node.request("POST", path, request.key, rpc("a2a/task", params))
        if answer_of(reply)["result"]["status"] != "completed":
            raise DoorRefusal("failed", reply.text)
        return reply.text


class TestRestDoor(DoorContract):
    kind = "rest"
    settings = {"body_bytes": BODY_BYTES}  # noqa: RUF012

    async def ask(self, node: InProcessClient, request: DoorRequest) -> str:
        body = {"agentId": request.agent_id, "capability": request.capability, "input": {"task": request.task}}
        task = answer_of(await node.request("POST", "/v1/tasks", request.key, body))
        while True:
            reply = await node.request("GET", f"/v1/tasks/{task['id']}", request.key)
            status = reply.json["status"]
            if status not in ("pending", "running"):
                break
            await asyncio.sleep(0.01)
        if status != "completed":
            raise DoorRefusal(status, reply.text)
        return reply.text


def test_every_door_through_which_agents_are_called_has_its_suite() -> None:
    suites = {each.kind for each in DoorContract.__subclasses__() if each.__module__ == __name__}
    assert suites == set(plugins.list_builtin_kinds("doors")) - {"discovery"}
