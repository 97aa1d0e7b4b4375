"""An inbox belongs to an owner, not to a name: also after the registration under that name has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.stores import ENGINES, SHARED
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, running
from tests.matrix.agents.listening import NOWHERE

KEYS = [{"id": name, "key": f"the-key-of-{name}"} for name in ("alice", "mallory", "carol")]
SECRET = "for the agent of alice only"


@asynccontextmanager
async def node_on(store: str, **config: Any) -> AsyncIterator[Node]:
    async with running(config={"store": store, "auth": {"keys": KEYS}, "health": {"interval": 0}, **config}) as node:
        yield node


@pytest.fixture(params=["memory", *SHARED])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else ENGINES[request.param](tmp_path).address


async def do(node: Node, who: str, name: str, **arguments: Any) -> dict[str, Any]:
    token = PSK if who == "operator" else f"the-key-of-{who}"
    envelope: dict[str, Any] = await node.operation(name, arguments, token=token)
    return envelope


async def register(node: Node, who: str, agent_id: str = "percy", **more: Any) -> dict[str, Any]:
    return await do(node, who, "fabric.agent.register", agent_id=agent_id, endpoint=NOWHERE, **more)


async def inbox(node: Node, who: str, agent_id: str = "percy") -> list[Any] | None:
    """What the caller gets out of it; None if that is forbidden."""
    given = {"agent_id": agent_id, "block_ms": 0, "count": 10, "auto_ack": False, "hold_ms": 100}
    envelope = await do(node, who, "fabric.message.receive", **given)
    assert envelope["ok"] or envelope["error_code"] == "AUTH_DENIED", envelope
    return envelope["result"]["messages"] if envelope["ok"] else None


async def gone(node: Node, agent_id: str = "percy") -> None:
    async with asyncio.timeout(WAIT_TIMEOUT):
        while (await do(node, "operator", "fabric.agent.describe", agent_id=agent_id))["ok"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def left_behind(node: Node, ending: str) -> None:
    """Alice's agent has had a message and a subscription, and its registration has ended."""
    lease: dict[str, Any] = {"lease_seconds": 1} if ending == "lapse" else {}
    assert (await register(node, "alice", **lease))["ok"]
    assert (await do(node, "alice", "fabric.message.subscribe", topic="news", agent_id="percy"))["ok"]
    assert (await do(node, "carol", "fabric.message.send", to_agent="percy", payload={"text": SECRET}))["ok"]
    if ending == "unregister":
        assert (await do(node, "alice", "fabric.agent.unregister", agent_id="percy"))["ok"]
    await gone(node)


@pytest.mark.parametrize("ending", ["lapse", "unregister"])
async def test_a_stranger_cannot_take_a_lapsed_name_and_read_what_waits_there(store: str, ending: str) -> None:
    async with node_on(store) as node:
        await left_behind(node, ending)
        refused = await register(node, "mallory")
        assert refused["error_code"] == "AUTH_DENIED"
        assert "reserved" in refused["error"]
        assert "alice" not in refused["error"]
        assert await inbox(node, "mallory") is None
        published = await do(node, "carol", "fabric.message.publish", topic="news", message={"text": SECRET})
        assert published["ok"]
        assert await inbox(node, "mallory") is None
        assert (await register(node, "alice"))["ok"]
        waiting = await inbox(node, "alice")
        assert waiting is not None
        assert len(waiting) == 2
        assert SECRET in str(waiting)


ONE = {"registration": {"max_per_owner": 1}}  # so many lapsed names are reserved for an owner, too


async def let_go(node: Node) -> None:
    """Alice gives up her name, and then another one, which takes its place among the reserved ones."""
    for agent_id in ("percy", "second"):
        if agent_id == "second":
            assert (await register(node, "alice", "second"))["ok"]
        assert (await do(node, "alice", "fabric.agent.unregister", agent_id=agent_id))["ok"]


async def test_a_new_owner_finds_no_message_and_no_subscription_of_the_old_one(store: str) -> None:
    async with node_on(store, **ONE) as node:
        assert (await register(node, "alice"))["ok"]
        assert (await do(node, "alice", "fabric.message.subscribe", topic="news", agent_id="percy"))["ok"]
        assert (await do(node, "carol", "fabric.message.send", to_agent="percy", payload={"text": SECRET}))["ok"]
        await let_go(node)
        assert (await register(node, "mallory"))["ok"]
        assert (await do(node, "carol", "fabric.message.publish", topic="news", message={"text": SECRET}))["ok"]
        assert await inbox(node, "mallory") == []
        assert (await do(node, "operator", "fabric.message.topics"))["result"]["topics"] == []
        assert (await do(node, "carol", "fabric.message.send", to_agent="percy", payload={"text": "hello"}))["ok"]
        waiting = await inbox(node, "mallory")
        assert waiting is not None
        assert len(waiting) == 1


async def test_the_operator_may_take_a_lapsed_name(store: str) -> None:
    async with node_on(store) as node:
        await left_behind(node, "unregister")
        assert (await register(node, "operator"))["ok"]
        assert (await register(node, "mallory"))["error_code"] == "AUTH_DENIED"


async def test_a_new_owner_does_not_read_older_messages_by_their_conversation(store: str) -> None:
    async with node_on(store, **ONE, doors=[{"kind": "fabric"}, {"kind": "rest"}]) as node:
        assert (await register(node, "alice"))["ok"]
        given = {"parts": [{"type": "text", "content": SECRET}], "metadata": {"conversation_id": "talk"}}
        sent = await node.send("POST", "/v1/agents/percy/messages", json=given, token="the-key-of-carol")
        assert sent.status in (200, 201, 202), sent.body
        path = "/v1/conversations/talk/messages"
        assert SECRET in (await node.send("GET", path, token="the-key-of-alice")).body.decode()
        await let_go(node)
        assert (await register(node, "mallory"))["ok"]
        assert (await node.send("GET", path, token="the-key-of-mallory")).status == 404
        assert SECRET in (await node.send("GET", path, token="the-key-of-carol")).body.decode()


async def test_the_first_caller_who_registers_a_name_does_not_get_what_was_sent_to_it_before(store: str) -> None:
    async with node_on(store) as node:
        sent = await do(node, "carol", "fabric.message.send", to_agent="percy", payload={"text": SECRET})
        assert "No agent 'percy' is listed now" in sent["result"]["note"]
        assert (await register(node, "mallory"))["ok"]
        assert await inbox(node, "mallory") == []
        sent = await do(node, "carol", "fabric.message.send", to_agent="percy", payload={"text": "hello"})
        assert "note" not in sent["result"]
        waiting = await inbox(node, "mallory")
        assert waiting is not None
        assert len(waiting) == 1


@pytest.mark.parametrize(("who", "agent_id"), [("operator", "percy"), ("alice", "alice")])
async def test_who_could_read_the_inbox_before_keeps_it_when_registering_its_name(
    store: str, who: str, agent_id: str
) -> None:
    async with node_on(store) as node:
        assert (await do(node, "carol", "fabric.message.send", to_agent=agent_id, payload={"text": SECRET}))["ok"]
        assert (await register(node, who, agent_id))["ok"]
        assert SECRET in str(await inbox(node, who, agent_id))
