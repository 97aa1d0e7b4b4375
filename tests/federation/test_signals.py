"""Signals between agents, the hand-over of a conversation, and what the rules of a card do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.node import Node, eventually, running
from tests.marks import requirement

AGENT = '''
import json
from a2a_fabric import Agent

agent = Agent("NAME")


@agent.capability(name="talk-as-NAME", side_effects="none")
async def talk(task: str) -> dict:
    """Sends the signals that the task holds behind a bar."""
    said, _, signals = task.partition("|")
    return {"answer": f"NAME: {said.strip()}", **({"signals": json.loads(signals)} if signals else {})}
'''

RULES = [
    {"condition": "allergy", "action": "delegate to rosa"},
    {"condition": "wine", "action": "Hand over to rosa.", "scope": "global"},
    {"condition": "money", "action": "never delegate to bank"},
    {"condition": "the guest is in a hurry", "action": "answer in one sentence"},
]


def make_folder(root: Path, name: str, **more: Any) -> None:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "agent.py").write_text(AGENT.replace("NAME", name))
    skill = {"id": f"talk-as-{name}", "description": "Talks.", "sideEffects": "none"}
    card = {
        "name": name,
        "version": "1.0.0",
        "description": f"The agent {name}.",
        "skills": [skill],
        "invocation": {"type": "python", "url": "python:agent:agent"},
        **more,
    }
    (folder / "agent.json").write_text(json.dumps(card))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    agents = tmp_path / "agents"
    make_folder(
        agents,
        "basil",
        role="Sous Chef",
        signals=["soup"],
        dependencies={"agents": ["rosa", "secret"]},
        coordination={"rules": RULES},
        observability={"spanName": "kitchen/{agent}:{operation}", "attributes": {"team": "food"}},
    )
    make_folder(agents, "rosa", signals=["garden"], observability={"traceEnabled": False})
    make_folder(agents, "bank", signals=["salary"])
    make_folder(agents, "secret", context="personal", signals=["secret"])
    doors = [{"kind": kind} for kind in ("fabric", "a2a", "rest")]
    keys = [
        {"id": "team", "key": "a-team-key-of-a-test", "audiences": ["work", "shared"]},
        {"id": "rosa", "key": "the-key-of-rosa-in-a-test"},
    ]
    config = {"agents": ["agents"], "doors": doors, "auth": {"keys": keys}, "store": "memory:"}
    async with running(config=config, base=tmp_path, from_files=True) as found:
        yield found


async def ask(node: Node, text: str, conversation: str | None = "one", **more: Any) -> dict[str, Any]:
    arguments = {"text": text, **({} if conversation is None else {"conversation_id": conversation})}
    envelope = await node.operation("fabric.ask", arguments, **more)
    assert envelope["ok"], envelope
    return {**envelope["result"], "notes": envelope.get("notes", [])}


def with_signal(text: str, **signal: Any) -> str:
    return f"{text} | {json.dumps([signal])}"


HANDOFF = {"type": "handoff_suggestion", "to": "rosa", "payload": {"reason": "She knows herbs"}}


@requirement("003-40", "003-41")
async def test_a_hand_over_moves_the_conversation_along_the_cards_and_the_person_sees_it(node: Node) -> None:
    first = await ask(node, with_signal("a soup with herbs", **HANDOFF))
    assert first["_fabric"]["agent_id"] == "basil"
    assert first["signals"][0]["status"] == "handed_over"
    assert any("'basil' hands this conversation over to 'rosa': She knows herbs;" in note for note in first["notes"])
    following = await ask(node, "a soup again")
    assert following["_fabric"]["agent_id"] == "rosa"
    assert (await ask(node, "a soup", "another"))["_fabric"]["agent_id"] == "basil"
    messages = (await node.send("GET", "/v1/conversations/one/messages")).json["messages"]
    assert "'basil' hands this conversation over to 'rosa': She knows herbs." in [
        each["parts"][0]["content"] for each in messages
    ]
    assert (await ask(node, "switch back"))["agent_id"] is None
    assert (await ask(node, "a soup again"))["_fabric"]["agent_id"] == "basil"


@requirement("003-41")
async def test_a_conversation_never_moves_where_the_cards_or_the_callers_rights_do_not_lead(node: Node) -> None:
    for target, words in (("bank", "a rule of its card forbids it"), ("nobody", "there is no agent 'nobody'")):
        answer = await ask(node, with_signal("a soup", type="handoff_suggestion", to=target))
        assert answer["signals"][0]["status"] == "refused"
        assert words in answer["signals"][0]["reason"]
        assert any("which was refused" in note for note in answer["notes"])
    undeclared = await ask(
        node, with_signal("my salary", type="handoff_suggestion", to="rosa")
    )  # bank's card names none
    assert "it is not in its dependencies" in undeclared["signals"][0]["reason"]
    team = {"token": "a-team-key-of-a-test"}
    hidden = await ask(node, with_signal("a soup", type="handoff_suggestion", to="secret"), **team)
    assert hidden["signals"][0]["reason"] == "there is no agent 'secret'"
    described = await node.operation("fabric.agent.describe", {"agent_id": "basil"}, **team)
    assert described["ok"]
    assert "secret" not in str(described)  # which its card names
    assert (await ask(node, "a soup again"))["_fabric"]["agent_id"] == "basil"


async def test_signals_of_another_form_are_the_agents_own_data(node: Node) -> None:
    for own in ([{"type": "buy", "price": 3}], [], {"a": 1}, [{"type": "error", "level": 3}]):
        answer = await ask(node, f"a soup | {json.dumps(own)}")
        assert answer["signals"] == own
        assert answer["notes"] == []


@requirement("003-41")
async def test_a_hand_over_holds_in_a_context_of_a2a(node: Node) -> None:
    async def say(number: int, text: str) -> str:
        message = {"messageId": f"m-{number}", "contextId": "ctx-7", "role": "ROLE_USER", "parts": [{"text": text}]}
        reply = await node.send(
            "POST", "/gateway/message:send", json={"message": message}, headers={"A2A-Version": "1.0"}
        )
        return reply.body.decode()

    assert "hands this conversation over" in await say(1, with_signal("a soup with herbs", **HANDOFF))
    assert "rosa: a soup again" in await say(2, "a soup again")


@requirement("003-41")
async def test_signals_wait_in_the_inbox_of_the_agent_and_escalation_gives_the_conversation_back(node: Node) -> None:
    await ask(node, "talk to basil")
    blocked = await ask(node, with_signal("it", type="blocked", to="rosa", payload={"reason": "no water"}))
    assert blocked["signals"][0]["status"] == "delivered"
    receive = {"agent_id": "rosa", "block_ms": 0}
    received = (await node.operation("fabric.message.receive", receive))["result"]["messages"]
    assert [each["message_type"] for each in received] == ["blocked"]
    signal = received[0]["payload"]
    assert (signal["from"], signal["to"], signal["type"]) == ("basil", "rosa", "blocked")
    assert signal["payload"] == {"reason": "no water"}
    assert signal["signalId"].startswith("sig_")
    assert signal["timestamp"].endswith("Z")
    done = await ask(node, with_signal("it", type="task_complete", payload={"summary": "all done"}))
    assert any("sent the signal task_complete: all done" in note for note in done["notes"])
    up = await ask(node, with_signal("it", type="escalate", payload={"reason": "too hard"}))
    assert up["signals"][0]["status"] == "given_back"
    assert (await ask(node, "the garden"))["_fabric"]["agent_id"] == "rosa"


@requirement("003-41")
async def test_an_agent_with_a_key_of_its_own_sends_signals_only_for_itself(node: Node) -> None:
    rosa = {"token": "the-key-of-rosa-in-a-test"}
    sent = await node.operation("fabric.signal.send", {"from": "rosa", "to": "basil", "type": "task_complete"}, **rosa)
    assert sent["result"]["status"] == "delivered", sent
    forged = await node.operation("fabric.signal.send", {"from": "bank", "to": "basil", "type": "error"}, **rosa)
    assert (forged["ok"], forged["error_code"]) == (False, "AUTH_DENIED")
    wrong = await node.operation("fabric.signal.send", {"from": "rosa", "type": "shout"}, **rosa)
    assert wrong["error_code"] == "BAD_INPUT"
    moved = {"from": "basil", "to": "rosa", "type": "handoff_suggestion", "conversation_id": "by operation"}
    assert (await node.operation("fabric.signal.send", moved))["result"]["status"] == "handed_over"
    assert (await ask(node, "a soup", "by operation"))["_fabric"]["agent_id"] == "rosa"


@requirement("003-40", "003-41")
async def test_rules_of_a_card_hand_requests_over_and_forbid_delegation(node: Node) -> None:
    handed = await ask(node, "a soup without nuts, I have an allergy", None)
    assert handed["_fabric"]["agent_id"] == "rosa"
    assert handed["_fabric"]["reason"] == "'rosa' answers, because 'basil' hands requests with 'allergy' over to it."
    assert (await ask(node, "a soup for six", None))["_fabric"]["agent_id"] == "basil"
    await ask(node, "talk to basil", "held")
    assert (await ask(node, "an allergy", "held"))["_fabric"]["agent_id"] == "basil"  # a rule for its own subject only
    assert (await ask(node, "and a wine", "held"))["_fabric"]["agent_id"] == "rosa"  # a rule for everything
    task = {"id": "x", "type": "talk-as-bank", "payload": {"task": "go"}, "routing": {"source": "basil"}}
    refused = (await node.operation("fabric.task.send", {"request": task}))["result"]
    assert refused["error"]["code"] == "COORDINATION_FAILED"
    assert "a rule of its card forbids it" in refused["error"]["message"]


@requirement("003-41")
async def test_the_span_of_a_card_is_on_its_log_lines(node: Node) -> None:
    await ask(node, "a soup", None)
    await ask(node, "the garden", None)

    def find_lines() -> dict[str, dict[str, Any]]:
        lines = [json.loads(line) for line in node.log.getvalue().splitlines()]
        return {line["target"]: line for line in lines if line.get("event") == "call"}

    async def are_written() -> bool:
        return {"basil", "rosa"} <= find_lines().keys()

    await eventually(are_written)
    lines = find_lines()
    assert lines["basil"]["span"] == "kitchen/basil:talk-as-basil"
    assert lines["basil"]["attributes"] == {"agent.name": "basil", "agent.role": "Sous Chef", "team": "food"}
    assert "span" not in lines["rosa"]


@requirement("003-41")
async def test_the_span_of_a_card_is_in_the_history_of_calls(node: Node) -> None:
    envelope = await node.operation("fabric.ask", {"text": "a soup"})
    quiet = await node.operation("fabric.ask", {"text": "the garden"})
    plain = await node.operation("fabric.ask", {"text": "my salary"})  # its card says nothing of spans
    by_trace = {}
    for each in (envelope, quiet, plain):
        trace_id = each["trace"]["trace_id"]
        shown = await node.operation("fabric.trace.get", {"trace_id": trace_id})
        by_trace[trace_id] = {span["kind"]: span for span in shown["result"]["spans"]}
    loud, silent, usual = by_trace.values()
    assert (usual["runtime"]["name"], usual["runtime"]["attributes"]["agent.name"]) == ("bank.talk-as-bank", "bank")
    assert loud["runtime"]["name"] == "kitchen/basil:talk-as-basil"
    assert loud["runtime"]["attributes"]["team"] == "food"
    assert loud["runtime"]["attributes"]["agent.role"] == "Sous Chef"
    assert "runtime" not in silent
