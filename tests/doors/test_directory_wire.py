"""JSON-RPC 2.0 to the letter, and what surrounds it: batches, notifications, ids, limits, verbs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.agent import Agent
from tests.doors.directory_clients import rpc
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, Reply, eventually, running
from tests.marks import requirement

CONFIG: dict[str, Any] = {
    "doors": [{"kind": "fabric"}, {"kind": "directory", "max_batch": 10}],
    "limits": {"body_bytes": 100_000},
}
HEADERS = {"Authorization": f"Bearer {PSK}"}
DISCOVER = rpc("a2a/discover", {"capabilities": ["shout"]})

pytestmark = pytest.mark.asyncio(loop_scope="module")


def percy() -> Agent:
    agent = Agent("percy")

    @agent.capability
    async def shout(text: str) -> dict[str, str]:
        return {"text": text.upper()}

    return agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with running(percy(), config=CONFIG) as found:
        yield found


async def send(node: Node, body: bytes, path: str = "/a2a", **more: Any) -> Reply:
    return await node.send("POST", path, data=body, headers={"Content-Type": "application/json"}, **more)


async def answer(node: Node, message: Any, path: str = "/a2a") -> Any:
    reply = await send(node, json.dumps(message).encode(), path)
    assert reply.status == 200
    return reply.json


@requirement("002-01", "002-14")
@pytest.mark.parametrize("path", ["/a2a", "/a2a/register", "/a2a/task", "/a2a/agents/percy/rpc"])
@pytest.mark.parametrize(
    "body", [b"", b"{", b"nonsense", b'{"jsonrpc": "2.0", "id": 1,}', b"[1, 2", b'{"a": "\xff"}', b"[" * 5000]
)
async def test_what_is_no_json_is_a_parse_error(node: Node, path: str, body: bytes) -> None:
    reply = await send(node, body, path)
    assert reply.status == 200
    assert reply.json["error"]["code"] == -32700
    assert (reply.json["jsonrpc"], reply.json["id"]) == ("2.0", None)


@requirement("002-01", "002-14")
@pytest.mark.parametrize(
    ("message", "identity"),
    [
        (5, None), ("text", None), (None, None), ([], None), ({}, None),
        ({"id": 1, "method": "a2a/discover"}, 1),
        ({**DISCOVER, "jsonrpc": "1.0"}, "1"), ({**DISCOVER, "jsonrpc": 2.0}, "1"),
        ({**DISCOVER, "method": 5}, "1"), ({"jsonrpc": "2.0", "id": 9}, 9),
        ({**DISCOVER, "params": "text"}, "1"), ({**DISCOVER, "params": 5}, "1"),
        ({**DISCOVER, "id": {}}, None), ({**DISCOVER, "id": [1]}, None), ({**DISCOVER, "id": True}, None),
    ],
)  # fmt: skip
async def test_what_is_no_request_is_an_invalid_request(node: Node, message: Any, identity: Any) -> None:
    reply = await answer(node, message)
    assert reply["error"]["code"] == -32600
    assert reply["id"] == identity
    assert "result" not in reply


@requirement("002-14")
@pytest.mark.parametrize("method", ["a2a/nothing", "discover", "", "a2a/", "A2A/DISCOVER", "x" * 1000])
async def test_an_unknown_method_is_not_found(node: Node, method: str) -> None:
    reply = await answer(node, rpc(method, {}))
    assert (reply["error"]["code"], reply["id"]) == (-32601, "1")


@requirement("002-14")
@pytest.mark.parametrize("params", [[], ["percy"], {"capabilities": "shout"}, {"capabilities": [1]}, {"limit": 0}])
async def test_wrong_parameters_are_invalid(node: Node, params: Any) -> None:
    reply = await answer(node, rpc("a2a/discover", params))
    assert (reply["error"]["code"], reply["id"]) == (-32602, "1")


@requirement("002-01")
@pytest.mark.parametrize(
    "identity", ['"go-1"', "7", "-7", "0", "1.50", "1e3", f"{10**30}", '"ü\\n\\u00fc"', '""', "null"]
)
async def test_an_id_comes_back_as_it_was_sent(node: Node, identity: str) -> None:
    body = f'{{"jsonrpc": "2.0", "id": {identity}, "method": "a2a/discover", "params": {{}}}}'
    reply = await send(node, body.encode())
    assert reply.body.decode().startswith(f'{{"jsonrpc":"2.0","id":{identity},"result":')
    body = body.replace("a2a/discover", "a2a/nothing")
    assert (await send(node, body.encode())).body.decode().startswith(f'{{"jsonrpc":"2.0","id":{identity},"error":')


@requirement("002-01")
async def test_a_success_has_no_key_error(node: Node) -> None:
    assert set(await answer(node, DISCOVER)) == {"jsonrpc", "id", "result"}
    without = {"jsonrpc": "2.0", "id": 1, "method": "a2a/discover"}
    assert set(await answer(node, without)) == {"jsonrpc", "id", "result"}
    assert set(await answer(node, {**without, "params": None})) == {"jsonrpc", "id", "result"}


@requirement("002-01")
async def test_a_batch_is_answered_in_its_own_order_and_notifications_not_at_all(node: Node) -> None:
    shout = {"taskId": "batch-1", "action": "shout", "sender": "me", "input": {"text": "x"}}
    entry = {"agentId": "batched", "name": "B", "capabilities": ["batched"], "endpoint": "http://127.0.0.1:9/"}
    replies = await answer(
        node,
        [
            rpc("a2a/discover", {"capabilities": ["batched"]}, "find"),
            rpc("a2a/task", shout, "task"),
            {"jsonrpc": "2.0", "method": "a2a/discover", "params": {}},
            rpc("a2a/register", entry, "join"),
            5,
            rpc("a2a/nothing", {}, "none"),
            rpc("a2a/stream", shout, "stream"),
        ],
    )
    assert [reply["id"] for reply in replies] == ["find", "task", "join", None, "none", "stream"]
    assert [each["agentId"] for each in replies[0]["result"]["agents"]] == ["batched"]  # who joins does so first
    assert replies[1]["result"]["output"] == {"text": "X"}
    assert [reply["error"]["code"] for reply in replies[3:]] == [-32600, -32601, -32600]
    await answer(node, rpc("a2a/unregister", {"agentId": "batched"}))


async def test_a_stream_that_no_client_could_read_is_not_begun(node: Node) -> None:
    task = {"taskId": "unheard", "action": "shout", "sender": "me", "input": {"text": "x"}}
    [reply] = await answer(node, [rpc("a2a/stream", task)])
    assert reply["error"]["code"] == -32600
    notice = json.dumps({"jsonrpc": "2.0", "method": "a2a/stream", "params": task}).encode()
    assert (await send(node, notice)).status == 204
    assert "error" in await answer(node, rpc("a2a/status", {"taskId": "unheard"}))


async def test_tasks_of_a_batch_run_at_the_same_time() -> None:
    meeting, agent = asyncio.Barrier(3), Agent("together")

    @agent.capability
    async def meet() -> dict[str, bool]:
        await meeting.wait()
        return {"met": True}

    async with running(agent, config=CONFIG) as node:
        tasks = [rpc("a2a/task", {"taskId": f"meet-{n}", "action": "meet"}, n) for n in range(3)]
        replies = await answer(node, tasks)
        assert [reply["result"]["output"] for reply in replies] == [{"met": True}] * 3


@requirement("002-01")
async def test_an_empty_or_too_large_batch_is_one_invalid_request(node: Node) -> None:
    for batch in ([], [DISCOVER] * 11):
        reply = await answer(node, batch)
        assert (reply["error"]["code"], reply["id"]) == (-32600, None)
    assert len(await answer(node, [DISCOVER] * 10)) == 10


@requirement("002-01")
async def test_a_notification_is_done_and_not_answered(node: Node) -> None:
    task = {"taskId": "noticed", "action": "shout", "sender": "me", "input": {"text": "x"}}
    notice = {"jsonrpc": "2.0", "method": "a2a/task", "params": task}
    for body in (notice, [notice, {**notice, "method": "a2a/nothing"}], {**notice, "params": {}}):
        reply = await send(node, json.dumps(body).encode())
        assert (reply.status, reply.body) == (204, b"")

    async def done() -> bool:
        status = await answer(node, rpc("a2a/status", {"taskId": "noticed"}))
        return bool(status["result"]["status"] == "completed")

    await eventually(done)


async def test_the_connection_is_still_good_after_a_reply_without_a_body(node: Node) -> None:
    notice = b'{"jsonrpc":"2.0","method":"a2a/discover"}'
    head = f"POST /a2a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {PSK}\r\nContent-Length: {len(notice)}\r\n\r\n"
    async with asyncio.timeout(WAIT_TIMEOUT), node.raw(head.encode() + notice) as (reader, writer):
        first = await reader.readuntil(b"\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 204 ")
        assert b"transfer-encoding" not in first.lower()
        writer.write(head.encode() + notice)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204 ")


@requirement("002-11")
@pytest.mark.parametrize(
    ("verb", "path", "allowed"),
    [
        ("GET", "/a2a", "POST"), ("PUT", "/a2a/register", "POST"), ("DELETE", "/a2a/task", "POST"),
        ("GET", "/a2a/task", "POST"), ("POST", "/a2a/agents", "GET"), ("POST", "/a2a/agents/percy", "GET"),
        ("DELETE", "/a2a/agents/percy/rpc", "POST, GET"), ("PUT", "/a2a/stream", "POST, GET"),
    ],
)  # fmt: skip
async def test_other_verbs_are_told_which_ones_there_are(node: Node, verb: str, path: str, allowed: str) -> None:
    reply = await node.send(verb, path)
    assert (reply.status, reply.headers["allow"]) == (405, allowed)
    assert reply.json["error"]["code"] == -32600


@requirement("002-11")
async def test_content_of_another_type_is_refused_and_too_much_of_it_too(node: Node) -> None:
    form = await node.send("POST", "/a2a", data=b"{}", headers={"Content-Type": "text/plain"})
    assert (form.status, form.json["error"]["code"]) == (415, -32600)
    large = await send(node, json.dumps(rpc("a2a/discover", {"capabilities": ["x" * 200_000]})).encode())
    assert (large.status, large.json["error"]["code"]) == (413, -32600)
    assert (await send(node, json.dumps(DISCOVER).encode())).status == 200


async def test_every_reply_names_its_trace(node: Node) -> None:
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    reply = await node.send("POST", "/a2a", json=DISCOVER, headers={"traceparent": traceparent})
    assert reply.headers["x-trace-id"] == "0af76519-16cd-43dd-8448-eb211c80319c"
    failed = await node.send("POST", "/a2a", json=rpc("a2a/task", {"taskId": "x", "action": "none"}))
    assert failed.json["error"]["data"]["traceId"] == failed.headers["x-trace-id"]


async def test_a_task_s_trace_is_the_caller_s_and_reaches_the_log(node: Node) -> None:
    trace_id = "11111111-2222-4333-8444-555555555555"
    header = {"traceparent": f"00-{trace_id.replace('-', '')}-b7ad6b7169203331-01"}
    task = {"taskId": "traced", "action": "shout", "input": {"text": "x"}}
    await node.send("POST", "/a2a", json=rpc("a2a/task", task), headers=header)

    async def logged() -> bool:
        lines = [json.loads(line) for line in node.log.getvalue().splitlines() if trace_id in line]
        return any(line.get("capability") == "shout" for line in lines)

    await eventually(logged)


async def test_nothing_is_left_behind_by_clients_that_come_and_go(node: Node) -> None:
    before = len(asyncio.all_tasks())
    for path in ("/a2a/events", "/a2a/stream?taskId=traced"):
        async with node.client.get(node.url + path, headers=HEADERS) as response:
            await response.content.readline()
            response.close()
    async with node.client.post(node.url + "/a2a", json=rpc("a2a/events", {}), headers=HEADERS) as response:
        await response.content.readline()
        response.close()

    async def few() -> bool:
        return len(asyncio.all_tasks()) <= before

    await eventually(few)
