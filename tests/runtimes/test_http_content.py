"""The `http` runtime's plain contract: content of every kind in both directions, questions, conversations."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.fixtures.node import Node, running
from tests.marks import requirement
from tests.runtimes.http_agents import Agents, Behaviour, Exchange, agents

pytestmark = pytest.mark.asyncio(loop_scope="module")

PART = {"kind": "image", "blob": "iVBORw0K", "mime_type": "image/png", "name": "a.png"}
FILE = {"type": "file", "content": "iVBORw0K", "mime_type": "image/png", "name": "a.png"}
FORM = {"kind": "form", "message": "How many?", "schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}
SCHEMA = {"type": "object", "properties": {"size": {"type": "integer"}}}


async def paint(x: Exchange) -> None:
    """A picture beside the answer, whole or at the end of a stream."""
    said: dict[str, Any] = {"ok": True, "result": {"size": 3}, "parts": [PART], "notes": ["in black and white"]}
    said["artifacts"] = [{"name": "draft"}]
    if "text/event-stream" not in x.request.headers["accept"]:
        await x.reply(said)
        return
    await x.open_stream()
    await x.event("artifact", name="draft")
    await x.event("final", **said)


async def large(x: Exchange) -> None:
    """A last event of more than a megabyte."""
    await x.open_stream()
    await x.event("final", ok=True, result={}, parts=[{**PART, "blob": "AAAA" * 500_000}])


async def garble(x: Exchange) -> None:
    await x.reply({"ok": True, "result": {}, "parts": [{"kind": "smell"}]})


async def ask_back(x: Exchange) -> None:
    answers = x.request.json.get("answers")
    if answers is not None:
        await x.reply({"ok": True, "result": {"heard": answers}})
        return
    asked = {"questions": {"n": FORM}, "continuation": "c-7"}
    await x.reply({"ok": True, "result": {"input_required": asked}})


async def ask_in_words(x: Exchange) -> None:
    await x.open_stream()
    asked = {"message": "Which one?", "continuation": "c-8"}
    await x.event("final", ok=True, result={"input_required": asked})


async def show(x: Exchange) -> None:
    await x.reply({"ok": True, "result": {"body": x.request.json}})


BEHAVIOURS: dict[str, Behaviour] = {
    each.__name__: each for each in (paint, large, garble, ask_back, ask_in_words, show)
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def behind() -> AsyncIterator[Agents]:
    async with agents(BEHAVIOURS, takes_get=False) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(behind: Agents) -> AsyncIterator[Node]:
    manifests = [behind.manifest(name) for name in BEHAVIOURS]
    manifests.append({**behind.manifest("show", act={"input_schema": SCHEMA}), "agent_id": "typed"})
    async with running(manifests=manifests, config={"routing": {"fallback": False}}) as found:
        yield found


@requirement("001-17")
async def test_content_that_comes_beside_the_answer_arrives(node: Node) -> None:
    reply = await node.ask("paint", "act")
    assert reply["result"] == {"size": 3, "artifacts": [{"name": "draft"}]}
    assert (reply["parts"], reply["notes"]) == ([PART], ["in black and white"])


async def test_content_at_the_end_of_a_stream_arrives(node: Node) -> None:
    events = await node.events("paint", "act")
    assert [event["event"] for event in events] == ["status", "artifact", "final"]
    assert events[-1]["data"]["parts"] == [PART]


async def test_the_last_event_may_be_as_large_as_a_reply(node: Node) -> None:
    asked = {"name": "fabric.call", "arguments": {"agent_id": "large", "capability": "act", "task": "", "stream": True}}
    reply = await node.send("POST", "/mcp/call", json=asked, headers={"Accept": "text/event-stream"})
    final = json.loads(reply.body.rpartition(b"\ndata: ")[2])["data"]
    assert len(final["parts"][0]["blob"]) == 2_000_000


async def test_parts_that_are_none_are_a_typed_error(node: Node) -> None:
    reply = await node.ask("garble", "act")
    assert reply["error_code"] == "UPSTREAM_ERROR"
    assert "parts" in reply["error"]


@requirement("001-35")
async def test_attachments_reach_the_agent_beside_or_among_its_arguments(node: Node) -> None:
    beside = (await node.ask("typed", "act", "", context={"size": 1}, attachments=[FILE]))["result"]["body"]
    assert beside["arguments"] == {"size": 1}
    assert beside["attachments"] == [FILE]
    among = (await node.ask("show", "act", "look", attachments=[FILE]))["result"]["body"]
    assert among["arguments"]["attachments"] == [FILE]
    assert "attachments" not in among


async def test_a_plain_call_carries_nothing_that_it_does_not_need(node: Node) -> None:
    body = (await node.ask("show", "act", "look"))["result"]["body"]
    assert not {"attachments", "answers", "conversation_id"} & body.keys()


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_question_of_the_agent_is_answered_by_the_follow_up(node: Node, streamed: bool) -> None:
    first = (await node.ask("ask_back", "act"))["result"]["input_required"]
    assert first["questions"]["n"]["message"] == "How many?"
    answer = {"n": {"action": "accept", "content": {"n": 3}}}
    given = {"continuation": first["continuation"], "answers": answer}
    if streamed:
        heard = (await node.events("ask_back", "act", **given))[-1]["data"]["result"]
    else:
        heard = (await node.ask("ask_back", "act", **given))["result"]
    assert heard == {"heard": {"continuation": "c-7", "answers": answer}}


async def test_a_question_in_words_alone_can_be_answered_too(node: Node) -> None:
    final = (await node.events("ask_in_words", "act"))[-1]["data"]["result"]
    assert final["input_required"]["questions"] == {"answer": {"kind": "form", "message": "Which one?"}}
