"""Inboxes and topics: `fabric.message.*` on the Fabric wire, as MCP tools, and from the command line's side of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.doors.rest_bench import BOB, EVE, percy, rest, text
from tests.fixtures.mcp_client import client as mcp_client
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node
from tests.matrix.agents.listening import NOWHERE

pytestmark = pytest.mark.asyncio(loop_scope="module")

_numbers = iter(range(10**9))


def fresh(prefix: str) -> str:
    return f"{prefix}-{next(_numbers)}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    doors = [{"kind": "fabric"}, {"kind": "mcp"}, {"kind": "rest", "requests_per_minute": None}]
    async with rest(percy(), doors=doors) as found:
        yield found


async def ask(node: Node, name: str, arguments: dict[str, Any], token: str = PSK) -> dict[str, Any]:
    envelope = await node.operation(f"fabric.message.{name}", arguments, token=token)
    assert envelope["ok"], envelope
    return dict(envelope["result"])


async def refused(node: Node, name: str, arguments: dict[str, Any], token: str = PSK) -> str:
    envelope = await node.operation(f"fabric.message.{name}", arguments, token=token)
    assert not envelope["ok"]
    return str(envelope["error_code"])


async def test_a_message_is_queued_received_and_acknowledged(node: Node) -> None:
    agent = fresh("agent")
    given = {
        "to_agent": agent,
        "from_agent": "someone",
        "message_type": "task",
        "payload": {"do": ["this"]},
        "priority": 3,
        "correlation_id": "c-1",
    }
    sent = await ask(node, "send", given)
    assert set(sent) == {"message_id", "status", "stream_id", "timestamp", "note"}  # no such agent is listed
    assert sent["status"] == "queued"
    got = await ask(node, "receive", {"agent_id": agent, "block_ms": 0})
    assert (got["count"], got["agent_id"]) == (1, agent)
    [message] = got["messages"]
    assert {key: message[key] for key in ("id", "from_agent", "to_agent", "payload", "priority", "correlation_id")} == {
        "id": sent["message_id"], "from_agent": "someone", "to_agent": agent, "payload": {"do": ["this"]},
        "priority": 3, "correlation_id": "c-1",
    }  # fmt: skip
    assert (message["message_type"], message["ttl_seconds"]) == ("task", 86400)
    assert (await ask(node, "queue_status", {"agent_id": agent}))["queue_depth"] == 1
    acked = await ask(node, "acknowledge", {"agent_id": agent, "message_ids": [message["_stream_id"], "77777", "x"]})
    assert acked["acknowledged"] == [
        {"id": message["_stream_id"], "acked": True},
        {"id": "77777", "acked": False},
        {"id": "x", "acked": False},
    ]
    assert (await ask(node, "queue_status", {"agent_id": agent}))["queue_depth"] == 0


async def test_what_is_not_acknowledged_comes_again(node: Node) -> None:
    agent = fresh("agent")
    await ask(node, "send", {"to_agent": agent, "payload": 1})
    first = await ask(node, "receive", {"agent_id": agent, "hold_ms": 100, "block_ms": 0})
    again = await ask(node, "receive", {"agent_id": agent, "block_ms": 20_000})
    assert [message["attempt"] for message in (*first["messages"], *again["messages"])] == [1, 2]
    await ask(node, "send", {"to_agent": agent, "payload": 2})
    taken = await ask(node, "receive", {"agent_id": agent, "auto_ack": True, "block_ms": 20_000})
    assert [message["payload"] for message in taken["messages"]] == [2]


async def test_a_receiver_waits_for_what_comes(node: Node) -> None:
    agent = fresh("agent")
    waiting = asyncio.ensure_future(ask(node, "receive", {"agent_id": agent, "block_ms": 30_000}))
    await ask(node, "send", {"to_agent": agent, "payload": "at last"})
    async with asyncio.timeout(WAIT_TIMEOUT):
        assert [message["payload"] for message in (await waiting)["messages"]] == ["at last"]
    assert (await ask(node, "receive", {"agent_id": agent, "block_ms": 1}))["messages"] == []


async def test_what_is_urgent_comes_first_and_what_is_too_old_never(node: Node) -> None:
    agent = fresh("agent")
    for word, priority in (("low", "low"), ("urgent", 4), ("normal", 2)):
        await ask(node, "send", {"to_agent": agent, "payload": word, "priority": priority})
    await ask(node, "send", {"to_agent": agent, "payload": "gone", "ttl_seconds": 0.001})
    await asyncio.sleep(0.01)
    got = await ask(node, "receive", {"agent_id": agent, "block_ms": 0})
    assert [message["payload"] for message in got["messages"]] == ["urgent", "normal", "low"]


async def test_a_topic_reaches_every_inbox_that_subscribed(node: Node) -> None:
    topic, one, two = fresh("analytics.insights"), fresh("agent"), fresh("agent")
    assert (await ask(node, "publish", {"topic": topic, "message": 0}))["recipients"] == 0
    for agent in (one, two):
        assert (await ask(node, "subscribe", {"topic": topic, "agent_id": agent}))["is_new"] is True
    assert (await ask(node, "subscribe", {"topic": topic, "agent_id": one}))["is_new"] is False
    published = await ask(node, "publish", {"topic": topic, "message": {"n": 1}, "from_agent": "me"})
    assert (published["topic"], published["recipients"], published["published"]) == (topic, 2, True)
    for agent in (one, two):
        [message] = (await ask(node, "receive", {"agent_id": agent, "block_ms": 0}))["messages"]
        assert (message["payload"], message["topic"], message["from_agent"]) == ({"n": 1}, topic, "me")
    listed = await node.send("GET", "/mcp/list_topics")
    assert {"topic": topic, "subscribers": 2} in listed.json["topics"]
    await ask(node, "unsubscribe", {"topic": topic, "agent_id": two})
    assert (await ask(node, "publish", {"topic": topic, "message": 2}))["recipients"] == 1
    assert (await node.send("GET", "/mcp/list_topics", token=None)).status == 401


async def test_no_caller_sends_or_reads_in_another_caller_s_name(node: Node) -> None:
    assert await refused(node, "send", {"to_agent": "x", "from_agent": "eve"}, BOB) == "AUTH_DENIED"
    assert await refused(node, "publish", {"topic": "t", "from_agent": "percy"}, BOB) == "AUTH_DENIED"
    for name in ("receive", "queue_status"):
        assert await refused(node, name, {"agent_id": "eve"}, BOB) == "AUTH_DENIED"
    assert await refused(node, "acknowledge", {"agent_id": "eve", "message_ids": ["1"]}, BOB) == "AUTH_DENIED"
    assert await refused(node, "subscribe", {"agent_id": "eve", "topic": "t"}, BOB) == "AUTH_DENIED"
    await ask(node, "send", {"to_agent": "eve", "payload": "hi"}, BOB)
    got = await ask(node, "receive", {"agent_id": "eve", "block_ms": 0, "auto_ack": True}, EVE)
    assert [(message["from_agent"], message["payload"]) for message in got["messages"]] == [("bob", "hi")]


async def test_the_caller_that_registered_an_agent_has_its_inbox(node: Node) -> None:
    agent = fresh("bobs")
    endpoint = {"agent_id": agent, "endpoint": NOWHERE, "capabilities": ["x"]}
    assert (await node.operation("fabric.agent.register", endpoint, token=BOB))["ok"]
    await ask(node, "send", {"to_agent": agent, "payload": 1}, EVE)
    assert (await ask(node, "receive", {"agent_id": agent, "block_ms": 0}, BOB))["count"] == 1
    assert await refused(node, "receive", {"agent_id": agent}, EVE) == "AUTH_DENIED"
    await ask(node, "send", {"to_agent": "x", "from_agent": agent, "payload": 1}, BOB)


async def test_an_inbox_does_not_grow_without_end() -> None:
    async with rest(messages={"inbox_size": 3}) as node:
        for number in range(3):
            await ask(node, "send", {"to_agent": "full", "payload": number})
        assert await refused(node, "send", {"to_agent": "full", "payload": 3}) == "RATE_LIMITED"


async def test_a_key_that_comes_twice_is_one_message(node: Node) -> None:
    given = {"to_agent": fresh("agent"), "payload": 1, "idempotency_key": fresh("key")}
    first, again = await ask(node, "send", given), await ask(node, "send", given)
    assert first == again
    assert (await ask(node, "queue_status", {"agent_id": given["to_agent"]}))["queue_depth"] == 1
    assert await refused(node, "send", {**given, "payload": 2}) == "CONFLICT"


async def test_they_are_tools_of_mcp_too(node: Node) -> None:
    agent = fresh("agent")
    async with mcp_client(node) as client:
        queue = await client.call_tool("fabric_message_queue_status", {"agent_id": agent})
        assert queue.structured_content["queue_depth"] == 0
        await client.call_tool("fabric.message.send", {"to_agent": agent, "payload": {"a": 1}})
        got = await client.call_tool("fabric_message_receive", {"agent_id": agent, "block_ms": 0})
        assert got.structured_content["messages"][0]["payload"] == {"a": 1}


async def test_messages_are_counted(node: Node) -> None:
    agent = fresh("agent")
    before = await counted(node)
    await ask(node, "send", {"to_agent": agent, "payload": 1})
    await ask(node, "receive", {"agent_id": agent, "block_ms": 0})
    after = await counted(node)
    assert after["fabric_messages_sent_total"] >= before["fabric_messages_sent_total"] + 1
    assert after["fabric_messages_received_total"] >= before["fabric_messages_received_total"] + 1


async def counted(node: Node) -> dict[str, float]:
    lines = (await node.send("GET", "/metrics")).body.decode().splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith("fabric_messages_")}


async def test_a_message_sent_by_rest_to_a_client_is_received_by_the_operation(node: Node) -> None:
    body = {"recipient": {"id": "eve", "type": "client"}, "parts": [text("for eve")]}
    assert (await node.send("POST", "/v1/messages", json=body)).status == 201
    got = await ask(node, "receive", {"block_ms": 20_000, "auto_ack": True}, EVE)
    assert got["messages"][0]["payload"] == {"parts": [{"kind": "text", "text": "for eve"}]}
