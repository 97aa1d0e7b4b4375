"""Extensions: those that a caller names and the agent has are active, and the reply lists them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.agent import Agent
from tests.doors.a2a_clients import frames, message
from tests.fixtures.node import Node, Reply, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

AUDIT, COLOUR, SCHEMAS = "https://example.com/audit/v1", "https://example.com/colour/v1", "urn:a2a-fabric:skill-schemas"
UNHEARD = "https://example.com/audit/v2"
BROKEN = "https://example.com/a\r\nset-cookie: b"


def careful() -> Agent:
    declared = [{"uri": AUDIT, "required": True}, {"uri": COLOUR}, {"uri": BROKEN}]
    agent = Agent("careful", metadata={"a2a": {"extensions": declared}})

    @agent.capability
    async def say(words: str) -> str:
        return words

    return agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with running(careful(), config={"doors": [{"kind": "a2a"}]}) as node:
        yield node


async def over_rpc(node: Node, said: dict[str, Any], method: str, place: str, named: str) -> Reply:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": said}}
    return await node.send("POST", place, json=body, headers={"A2A-Version": "1.0", "A2A-Extensions": named})


async def over_rest(node: Node, said: dict[str, Any], verb: str, place: str, named: str) -> Reply:
    headers = {"A2A-Version": "1.0", "A2A-Extensions": named}
    return await node.send("POST", f"{place}/message:{verb}", json={"message": said}, headers=headers)


@pytest.mark.parametrize("place", ["/agents/careful", "/gateway"])
async def test_the_reply_lists_what_the_caller_named_and_the_agent_has(node: Node, place: str) -> None:
    named = f"{UNHEARD}, {COLOUR},{AUDIT}"
    for method, verb in (("SendMessage", "send"), ("SendStreamingMessage", "stream")):
        for reply in (
            await over_rpc(node, message("hi"), method, place, named),
            await over_rest(node, message("hi"), verb, place, named),
        ):
            assert reply.status == 200, reply.body
            assert reply.headers["a2a-extensions"] == f"{AUDIT}, {COLOUR}"


async def test_what_the_message_names_counts_too_and_so_does_what_stands_in_every_card(node: Node) -> None:
    said = message("hi", extensions=[AUDIT, UNHEARD])
    reply = await over_rest(node, said, "stream", "/agents/careful", SCHEMAS)
    assert set(reply.headers["a2a-extensions"].split(", ")) == {AUDIT, SCHEMAS}
    assert frames(reply.body)


async def test_every_request_has_its_own(node: Node) -> None:
    task = (await over_rest(node, message("hi"), "send", "/agents/careful", AUDIT)).json["task"]
    path = f"/agents/careful/tasks/{task['id']}"
    for named, expected in ((COLOUR, COLOUR), (UNHEARD, None), ("", None)):
        reply = await node.send("GET", path, headers={"A2A-Version": "1.0", "A2A-Extensions": named})
        assert (reply.status, reply.headers.get("a2a-extensions")) == (200, expected)


async def test_version_0_3_calls_the_header_otherwise(node: Node) -> None:
    said = {**message(), "kind": "message", "role": "user", "parts": [{"kind": "text", "text": "hi"}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": said}}
    reply = await node.send("POST", "/agents/careful", json=body, headers={"X-A2A-Extensions": AUDIT})
    assert reply.headers["x-a2a-extensions"] == AUDIT
    assert "a2a-extensions" not in reply.headers


async def test_what_cannot_stand_in_a_header_does_not(node: Node) -> None:
    """An agent may declare anything."""
    reply = await over_rest(node, message("hi", extensions=[AUDIT, BROKEN]), "send", "/agents/careful", "")
    assert reply.headers["a2a-extensions"] == AUDIT
    assert "set-cookie" not in reply.headers
