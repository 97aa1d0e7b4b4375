"""A time-out is told as a time-out, in the words of each door: an agent that takes longer than it may."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
import websockets
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict

from a2a_fabric.agent import Agent
from a2a_fabric.core.job import EXPIRED_ERROR
from a2a_fabric.doors.directory.jsonrpc import TASK_TIMEOUT, protocol_error_from
from tests.doors.a2a_clients import message, rpc
from tests.fixtures.mcp_raw import Session, last_message, modern
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually, running
from tests.marks import requirement
from tests.matrix.agents.listening import listening

LIMIT = 200  # milliseconds that the agent may take
CAPABILITY = {"name": "sleep", "max_timeout_ms": LIMIT, "streaming": True}
QUIET = {"health": {"interval": 0, "failures": 1000}, "breaker": {"failures": 1000}}  # it stays online all the same


def slow() -> Agent:
    agent = Agent("far")

    @agent.capability
    async def sleep(task: str = "") -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    return agent


@pytest_asyncio.fixture(params=["always", "never"])
async def node(request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    """With an agent that never answers; `param` says whether A2A makes a task of every message."""
    doors = [
        {"kind": "fabric"},
        {"kind": "mcp"},
        {"kind": "a2a", "grpc": "127.0.0.1:0", "tasks": request.param},
        {"kind": "directory"},
        {"kind": "rest"},
    ]
    async with listening(slow().app) as url, asyncio.timeout(WAIT_TIMEOUT):
        manifest = {"agent_id": "slow", "endpoint": {"uri": url}, "capabilities": [CAPABILITY]}
        async with running(manifests=[manifest], config={"doors": doors, **QUIET}) as started:
            yield started


once = pytest.mark.parametrize("node", ["always"], indirect=True)
by_message = pytest.mark.parametrize("node", ["never"], indirect=True)


@once
@requirement("001-43", "001-44")
async def test_the_fabric_wire_says_so(node: Node) -> None:
    reply = await node.send("POST", "/mcp/call", json={"name": "fabric.call", "arguments": asked()})
    assert reply.json["error_code"] == "TIMEOUT"
    events = await node.events("slow", "sleep")
    assert events[-1]["data"]["error"]["code"] == "TIMEOUT"
    url = node.url.replace("http", "ws", 1) + "/mcp/call"
    async with websockets.connect(url, additional_headers={"Authorization": f"Bearer {PSK}"}) as socket:
        await socket.send(json.dumps({"id": 1, "name": "fabric.call", "arguments": asked()}))
        assert json.loads(await socket.recv())["data"]["error"]["code"] == "TIMEOUT"


def asked(**more: Any) -> dict[str, Any]:
    return {"agent_id": "slow", "capability": "sleep", "task": "?", **more}


@once
async def test_a_job_says_so(node: Node) -> None:
    job = (await node.operation("fabric.call", asked(**{"async": True})))["result"]["job_id"]
    told: dict[str, Any] = {}

    async def has_ended() -> bool:
        told.update((await node.operation("fabric.job.status", {"job_id": job}))["result"])
        return told["state"] not in ("queued", "running")

    await eventually(has_ended)
    assert (told["state"], told["error"]["code"]) == ("timeout", "TIMEOUT")


@once
@pytest.mark.parametrize(("path", "name"), [("/mcp", "slow_sleep"), ("/agents/slow/mcp", "sleep")])
async def test_mcp_says_so(node: Node, path: str, name: str) -> None:
    for _ in range(2):  # the SDK's way, and the short one
        headers, body = modern("tools/call", {"name": name, "arguments": {"task": "?"}})
        async with node.client.post(node.url + path, json=body, headers=headers) as reply:
            result = last_message(await reply.text())["result"]
        check_tool(result)
    async with Session(node, path=path) as session:
        for number in (1, 2):
            params = {"name": name, "arguments": {"task": "?"}}
            answer = await session.answer({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
            check_tool(answer["result"])


def check_tool(result: Any) -> None:
    assert result["isError"] is True
    assert "TIMEOUT" in json.dumps(result["content"])


@once
async def test_a_task_of_a2a_says_so(node: Node) -> None:
    task = (await rpc(node, "SendMessage", {"message": message("?", skill="sleep")}, agent="slow"))["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert "TIMEOUT" in json.dumps(task)


@by_message
async def test_a2a_without_tasks_says_so(node: Node) -> None:
    error = (await rpc(node, "SendMessage", {"message": message("?", skill="sleep")}, agent="slow"))["error"]
    assert "TIMEOUT" in json.dumps(error), error
    reply = await node.send(
        "POST",
        "/agents/slow/message:send",
        json={"message": message("?", skill="sleep")},
        headers={"A2A-Version": "1.0"},
    )
    assert reply.status == 504, reply.body
    card = (await node.send("GET", "/agents/slow/.well-known/agent-card.json")).json
    place = next(each["url"] for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC")
    metadata = (("authorization", f"Bearer {PSK}"), ("x-a2a-agent", "slow"))
    async with grpc.aio.insecure_channel(place.rpartition("/")[2]) as channel:
        send = channel.unary_unary(
            "/lf.a2a.v1.A2AService/SendMessage",
            request_serializer=pb.SendMessageRequest.SerializeToString,
            response_deserializer=pb.SendMessageResponse.FromString,
        )
        request = ParseDict({"message": message("?", skill="sleep")}, pb.SendMessageRequest())
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await send(request, metadata=metadata, timeout=WAIT_TIMEOUT)
    assert failed.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


@once
async def test_rest_says_so(node: Node) -> None:
    body = {"agentId": "slow", "capability": "sleep", "input": {"task": "?"}}
    task = (await node.send("POST", "/v1/tasks", json=body)).json
    told: dict[str, Any] = {}

    async def has_failed() -> bool:
        told.update((await node.send("GET", f"/v1/tasks/{task['id']}")).json)
        return bool(told["status"] == "failed")

    await eventually(has_failed)
    assert told["error"]["code"] == "TIMEOUT"
    sent = {"parts": [{"type": "text", "content": "?"}], "metadata": {"capability": "sleep"}}
    posted = await node.send("POST", "/v1/agents/slow/messages", json=sent)
    reply = await node.send("GET", f"{posted.headers['location']}/reply?wait=20")
    assert reply.status == 504
    assert reply.json["error"]["details"]["reason"] == "timeout"


@once
async def test_the_rpc_face_of_rest_says_so(node: Node) -> None:
    task = {"agentId": "slow", "name": "sleep", "input": {"task": "?"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "executeTask", "params": {"task": task}}
    told = (await node.send("POST", "/", json=body)).json["result"]
    assert told["status"] == "failed"
    assert told["error"]["data"]["code"] == "TIMEOUT"


@once
@requirement("002-14")
async def test_the_directory_says_so(node: Node) -> None:
    one: dict[str, Any] = {"action": "sleep", "agentId": "slow"}
    several: dict[str, Any] = {"chain": [one, one]}
    for path in ("/a2a/task", "/a2a", "/a2a/agents/slow/rpc"):
        for number, work in enumerate((one, {**one, "timeoutMs": 100}, several)):
            params = {"taskId": f"t{path}{number}", "input": {"task": "?"}, **work}
            body = {"jsonrpc": "2.0", "id": 1, "method": "a2a/task", "params": params}
            reply = await node.send("POST", path, json=body)
            assert reply.json["error"]["code"] == -32002, (path, work, reply.body)
            assert reply.json["error"]["data"]["reason"] == "timeout"
    params = {"taskId": "bare", "action": "sleep", "agentId": "slow", "input": {"task": "?"}}
    bare = await node.send("POST", "/a2a/task", json=params)
    assert bare.status == 504


def test_the_directory_says_so_of_a_task_that_was_not_begun_in_time() -> None:
    """On a busy node; the caller sees the same reason, and the details say more."""
    told = protocol_error_from(EXPIRED_ERROR.to_error(), "trace")
    assert (told.code, told.data["reason"], told.data["details"]) == (TASK_TIMEOUT, "timeout", {"reason": "expired"})
