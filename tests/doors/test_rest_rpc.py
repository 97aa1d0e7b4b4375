"""The RPC client of document 004's platform: as its library is on the wire, with its habits.

It sends no id and wants an answer, looks at the status of HTTP before it looks at the body, compares a task's status
with words, and closes its stream only when it is told to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.agent import Agent
from tests.doors.rest_bench import BOB, Sleeper, events, mirror, percy, rest
from tests.doors.rest_rpc_client import Client, RPCError, parts
from tests.fixtures.node import WAIT_TIMEOUT, Node
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")


def counter() -> Agent:
    agent = Agent("counter")

    @agent.capability
    async def count(task: str) -> AsyncIterator[str]:
        for word in task.split():
            yield word

    return agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sleeper() -> Sleeper:
    return Sleeper()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(sleeper: Sleeper) -> AsyncIterator[Node]:
    doors = [
        {"kind": "fabric"},
        {"kind": "directory"},
        {"kind": "rest", "requests_per_minute": None, "keep_alive": 0.2},
    ]
    jobs = {"webhook_allow": ["127.0.0.1"]}
    async with rest(percy(), mirror(), counter(), sleeper.agent(), doors=doors, jobs=jobs) as found:
        yield found


@pytest.fixture
def client(node: Node) -> Client:
    return Client(node)


async def test_requests_without_an_id_are_answered(client: Client) -> None:
    found = await client.call("discover")
    assert {"percy", "mirror", "counter", "sleeper"} <= {agent["id"] for agent in found["agents"]}
    assert [agent["id"] for agent in (await client.call("discover", {"capability": "shout"}))["agents"]] == ["percy"]
    assert all(isinstance(agent["capabilities"], list) for agent in found["agents"])
    reply = await client.node.send("POST", "/", json={"jsonrpc": "2.0", "id": "mine", "method": "discover"})
    assert reply.json["id"] == "mine"


async def test_a_message_is_a_task_whose_status_is_a_word(client: Client) -> None:
    task_id = await client.call("sendMessage", {"parts": parts("hello"), "agentId": "percy"})
    assert isinstance(task_id, str)
    task = await client.until_over(task_id)
    assert task["status"] == "completed"
    assert task["id"] == task_id
    assert task["parts"] == parts("HELLO")
    assert task["output"] == {"answer": "HELLO"}
    assert await client.call("getTask", {"taskId": task_id}) == task
    listed = (await client.call("listTasks", {"status": "completed", "limit": 100}))["tasks"]
    assert task_id in [each["id"] for each in listed]
    assert (await client.call("listTasks", {"since": "2999-01-01T00:00:00Z"}))["tasks"] == []


async def test_files_and_data_go_both_ways(client: Client) -> None:
    sent = [
        *parts("look"),
        {"type": "file", "content": "YWJj", "mimeType": "text/plain", "name": "a.txt", "size": 3},
        {"type": "heartbeat", "content": "beat"},
        {"type": "data", "content": {"a": 1}, "schema": {}},
    ]
    task = await client.until_over(await client.call("sendMessage", {"parts": sent, "agentId": "mirror"}))
    assert task["parts"] == [
        *parts("look"),
        {"type": "data", "content": {"a": 1}},
        {"type": "file", "content": "YWJj", "mimeType": "text/plain", "name": "a.txt"},
    ]
    [data, file] = task["artifacts"]
    got = await client.call("downloadArtifact", {"taskId": task["id"], "artifactId": file["id"]})
    assert got["content"]["content"] == "YWJj"
    assert data["type"] == "data"


async def test_a_task_is_cancelled_and_what_is_over_is_not(client: Client, sleeper: Sleeper) -> None:
    task_id = await client.call("sendMessage", {"parts": parts("go"), "agentId": "sleeper"})
    async with asyncio.timeout(WAIT_TIMEOUT):
        await sleeper.asleep.wait()
    assert (await client.call("getTask", {"taskId": task_id}))["status"] == "working"
    assert (await client.call("cancelTask", {"taskId": task_id}))["id"] == task_id
    assert (await client.until_over(task_id))["status"] == "canceled"
    done = await client.call("sendMessage", {"parts": parts("x"), "agentId": "percy"})
    await client.until_over(done)
    with pytest.raises(RPCError) as caught:
        await client.call("cancelTask", {"taskId": done})
    assert (caught.value.status, caught.value.code) == (409, -32012)


async def test_a_caller_may_cancel_by_status_and_nothing_else(client: Client, sleeper: Sleeper) -> None:
    sleeper.asleep.clear()
    task_id = await client.call("sendMessage", {"parts": parts("go"), "agentId": "sleeper"})
    async with asyncio.timeout(WAIT_TIMEOUT):
        await sleeper.asleep.wait()
    for status in ({"from": "working", "to": "completed"}, {"from": "submitted", "to": "canceled"}):
        with pytest.raises(RPCError) as caught:
            await client.call("updateTaskStatus", {"taskId": task_id, "status": status})
        assert (caught.value.status, caught.value.code) == (409, -32010)
    await client.call("updateTaskStatus", {"taskId": task_id, "status": {"from": "working", "to": "canceled"}})
    assert (await client.until_over(task_id))["status"] == "canceled"


@pytest.mark.parametrize(
    ("method", "params", "status", "code"),
    [
        ("getTask", {"taskId": "none"}, 404, -32011),
        ("getPushConfig", {"taskId": "none"}, 404, -32011),
        ("nothing", {}, 404, -32601),
        ("sendMessage", {"agentId": "percy"}, 400, -32602),
        ("sendMessage", {"agentId": "percy", "parts": [{"type": "heartbeat", "content": ""}]}, 400, -32602),
        ("sendMessage", {"agentId": "percy", "parts": [{"type": "file", "content": "no base64"}]}, 400, -32602),
        ("sendMessage", {"agentId": "nobody", "parts": parts("x")}, 404, -32000),
        ("listTasks", {"status": "sleepy"}, 400, -32602),
        ("listTasks", {"since": "yesterday"}, 400, -32602),
        ("discover", [1], 400, -32602),
    ],
)
async def test_errors_are_a_status_and_a_body_at_once(
    client: Client, method: str, params: Any, status: int, code: int
) -> None:
    with pytest.raises(RPCError) as caught:
        await client.call(method, params)
    assert (caught.value.status, caught.value.code) == (status, code)


async def test_credentials_are_looked_at(node: Node) -> None:
    with pytest.raises(RPCError) as caught:
        await Client(node, "placeholder-token").call("discover")
    assert (caught.value.status, caught.value.code) == (401, -32001)
    task_id = await Client(node).call("sendMessage", {"parts": parts("x"), "agentId": "percy"})
    with pytest.raises(RPCError) as caught:
        await Client(node, BOB).call("getTask", {"taskId": task_id})
    assert caught.value.code == -32011


async def test_the_stream_of_an_agent_ends_with_close(client: Client) -> None:
    begun = await client.call("streamMessage", {"parts": parts("one two three"), "agentId": "counter"})
    assert begun["taskId"]
    async with asyncio.timeout(WAIT_TIMEOUT), events(client.node, "/stream?agentId=counter") as told:
        seen = [each async for each in told]
    assert seen[-1] == ("close", None, {})
    said = [data["content"] for _, _, data in seen if data.get("type") == "text"]
    assert said == ["one", "two", "three"]
    updates = [data["task"] for _, _, data in seen if data.get("type") == "taskUpdate"]
    assert updates[-1]["status"] == "completed"
    assert {task["id"] for task in updates} == {begun["taskId"]}
    async with asyncio.timeout(WAIT_TIMEOUT), events(client.node, f"/stream?taskId={begun['taskId']}") as told:
        assert [each async for each in told][-1][0] == "close"


async def test_a_quiet_stream_has_a_heartbeat(client: Client, sleeper: Sleeper) -> None:
    sleeper.asleep.clear()
    begun = await client.call("streamMessage", {"parts": parts("go"), "agentId": "sleeper"})
    async with asyncio.timeout(WAIT_TIMEOUT), events(client.node, "/stream?agentId=sleeper") as told:
        async for _, _, data in told:
            if data.get("type") == "heartbeat":
                break
        await client.call("cancelTask", {"taskId": begun["taskId"]})
        rest_of = [each async for each in told]
    assert rest_of[-1][0] == "close"


async def test_a_stream_of_nothing_is_refused(client: Client) -> None:
    for path, status in (("/stream?agentId=nobody", 404), ("/stream", 400)):
        reply = await client.node.send("GET", path)
        assert reply.status == status
        assert reply.json["error"]["code"]


@requirement("002-15")
async def test_methods_of_the_directory_go_to_the_directory(node: Node) -> None:
    task = {"taskId": "via-root", "action": "shout", "sender": "me", "input": {"text": "hi"}}
    body = {"jsonrpc": "2.0", "id": 7, "method": "a2a/task", "params": task}
    reply = (await node.send("POST", "/", json=body)).json
    assert reply == {
        "jsonrpc": "2.0",
        "id": 7,
        "result": {"taskId": "via-root", "status": "completed", "output": {"answer": "HI"}},
    }
    nobody = {"jsonrpc": "2.0", "id": 8, "method": "a2a/task", "params": {**task, "taskId": "x", "action": "sing"}}
    assert (await node.send("POST", "/", json=nobody)).json["error"]["code"] == -32602


async def test_without_a_directory_they_are_not_found() -> None:
    async with rest(percy()) as node:
        reply = await node.send("POST", "/", json={"jsonrpc": "2.0", "method": "a2a/discover", "params": {}})
        assert (reply.status, reply.json["error"]["code"]) == (404, -32601)
        front = await node.send("GET", "/")
        assert (front.status, front.json["name"]) == (200, "a2a-fabric")
