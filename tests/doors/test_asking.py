"""Requests in plain words at every door: the agent that fits answers, in a conversation, and says why."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from a2a_fabric import FabricClient
from a2a_fabric.agent import Agent
from a2a_fabric.core.federation import WordRouting
from tests.fixtures.node import PSK, Node, running
from tests.marks import requirement

ROUTING = WordRouting(
    orchestrator="ada",
    switch_commands=("talk to", "switch to"),
    multi_agent_triggers=("then", "and also"),
    skill_index={"suggest-meal": "basil", "parse-recipe": "basil"},
)


def make_agents() -> list[Agent]:
    basil = Agent("basil", display_name="Basil", description="Sous chef", signals=("recipe", "cook", "dinner"))

    @basil.capability(name="suggest-meal", triggers=("what should I cook",), description="Suggests a meal.")
    async def suggest(task: str) -> dict[str, str]:
        return {"answer": f"basil suggests: {task}"}

    @basil.capability(name="parse-recipe", triggers=("this recipe",), description="Reads a recipe.")
    async def parse(task: str) -> dict[str, str]:
        return {"answer": f"basil parsed: {task}"}

    wim = Agent("wim", display_name="Wim", description="Weather forecasts", signals=("weather", "forecast"))

    @wim.capability(name="forecast", streaming=True)
    async def forecast(task: str) -> AsyncIterator[str]:
        for word in ("sunny", " and", " warm"):
            yield word

    secret = Agent("secret", description="Salaries", signals=("salary", "recipe"), trust_tier="local")

    @secret.capability(name="pay-slip", triggers=("this recipe",))
    async def show(task: str) -> dict[str, str]:
        return {"answer": "secret"}

    return [basil, wim, secret]


NARROW = "a-narrow-key-of-a-test"


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    doors = [{"kind": kind} for kind in ("fabric", "mcp", "rest", "directory", "a2a")]
    keys = [{"id": "narrow", "key": NARROW, "scopes": ["agent:basil"]}, {"id": "wide", "key": "a-wide-key-of-a-test"}]
    config = {"doors": doors, "auth": {"keys": keys}}
    async with running(*make_agents(), config=config) as found:
        found.fabric.registry.word_routing = ROUTING
        yield found


async def route(node: Node, text: str, **more: Any) -> dict[str, Any]:
    envelope = await node.operation("fabric.route", {"text": text, **more.pop("arguments", {})}, **more)
    assert envelope["ok"], envelope
    return dict(envelope["result"])


async def ask(node: Node, text: str, conversation: str | None = None, **more: Any) -> dict[str, Any]:
    arguments = {"text": text, **({} if conversation is None else {"conversation_id": conversation})}
    envelope = await node.operation("fabric.ask", arguments, **more)
    assert envelope["ok"], envelope
    return dict(envelope["result"])


@requirement("003-12", "003-20", "003-28", "003-38")
async def test_a_route_says_which_agent_and_capability_and_why(node: Node) -> None:
    found = await route(node, "What should I cook tonight?")
    assert (found["agent_id"], found["capability"]) == ("basil", "suggest-meal")
    assert found["reason"] == "'basil' answers, because the request has its trigger 'what should i cook'."
    best = found["candidates"][0]
    assert best["agent_id"] == "basil"
    assert best["score"] > 75
    assert "the request has its signal 'cook'" in best["why"]
    skill = await route(node, "please parse-recipe https://example.com")
    assert (skill["capability"], skill["candidates"][0]["score"]) == ("parse-recipe", 97)
    assert (await route(node, "the weather"))["agent_id"] == "wim"


@requirement("003-38")
async def test_no_agent_fits_is_said_with_the_nearest_and_the_default_agent_comes_last(node: Node) -> None:
    nothing = await route(node, "Chefs of the world, unite for liberty and against injustice")
    assert nothing["agent_id"] is None
    assert nothing["reason"].startswith("No agent fits; the nearest are 'basil'.")
    refused = await node.operation("fabric.ask", {"text": "Tell me a joke"})
    assert (refused["ok"], refused["error_code"]) == (False, "BAD_INPUT")
    assert refused["error"].startswith("No agent fits")
    node.fabric.registry.word_routing = WordRouting(default_agent="wim")
    assert (await route(node, "Tell me a joke"))["agent_id"] == "wim"
    assert (await route(node, "any recipe"))["agent_id"] != "wim"


@requirement("003-38")
async def test_ask_streams_the_answer_of_the_agent_that_fits(node: Node) -> None:
    async with FabricClient(node.url, PSK) as client:
        async with aclosing(client.stream_ask("the weather, please")) as stream:
            events = [event async for event in stream]
        assert events[0].data["agent_id"] == "wim"
        assert "".join(event.text for event in events if event.kind == "token") == "sunny and warm"
        assert events[-1].result.data["_fabric"]["capability"] == "forecast"
        plain = await client.ask("what should I cook?")
        assert plain.data["answer"] == "basil suggests: what should I cook?"
        assert (await client.route_request("forecast"))["agent_id"] == "wim"


@requirement("003-27", "003-38")
async def test_a_switch_holds_for_a_conversation_until_it_is_switched_back(node: Node) -> None:
    switched = await ask(node, "talk to Basil", "one")
    assert switched["agent_id"] == "basil"
    assert "from now on" in switched["answer"]
    assert (await ask(node, "how is the weather?", "one"))["_fabric"]["agent_id"] == "basil"
    assert (await ask(node, "how is the weather?", "two"))["_fabric"]["agent_id"] == "wim"  # another conversation
    assert (await ask(node, "how is the weather?", "one", token="a-wide-key-of-a-test"))["_fabric"]["agent_id"] == "wim"
    held = await route(node, "the weather", arguments={"conversation_id": "one"})
    assert held["reason"] == "'basil' answers, because you are talking to it in this conversation."
    assert (await ask(node, "back to Ada", "one"))["agent_id"] is None
    assert (await ask(node, "how is the weather?", "one"))["_fabric"]["agent_id"] == "wim"
    with_rest = await ask(node, "switch to basil and tell me about the weather", "one")
    assert with_rest["answer"] == "basil suggests: tell me about the weather"
    refused = await node.operation("fabric.ask", {"text": "talk to basil"})
    assert (refused["error_code"], refused["error_details"]["field"]) == ("BAD_INPUT", "conversation_id")


@requirement("003-38")
async def test_words_that_fit_no_agent_go_on_with_the_one_that_answered_last_in_the_conversation(node: Node) -> None:
    assert (await ask(node, "how is the weather?", "small talk"))["_fabric"]["agent_id"] == "wim"
    assert (await ask(node, "Tell me a joke", "small talk"))["_fabric"]["agent_id"] == "wim"
    found = await route(node, "Tell me a joke", arguments={"conversation_id": "small talk"})
    assert found["reason"] == "'wim' answers, because no other agent fits, and it answered last in this conversation."
    assert (await ask(node, "what should I cook?", "small talk"))["_fabric"]["agent_id"] == "basil"
    await ask(node, "back to Ada", "small talk")
    assert (await route(node, "Tell me a joke", arguments={"conversation_id": "small talk"}))["agent_id"] is None
    other = await route(node, "Tell me a joke", arguments={"conversation_id": "another"})
    assert other["agent_id"] is None


@requirement("003-38")
async def test_a_conversation_can_be_read_at_another_door(node: Node) -> None:
    await ask(node, "what should I cook?", "kitchen")
    messages = (await node.send("GET", "/v1/conversations/kitchen/messages")).json["messages"]
    assert [each["parts"][0]["content"] for each in messages] == [
        "what should I cook?",
        "basil suggests: what should I cook?",
    ]
    assert messages[1]["sender"] == {"id": "basil", "type": "agent"}
    other = await node.send("GET", "/v1/conversations/kitchen/messages", token="a-wide-key-of-a-test")
    assert other.status == 404


async def test_an_agent_that_the_caller_may_not_call_is_neither_chosen_nor_named(node: Node) -> None:
    for text in ("the weather forecast", "this recipe", "a salary", "ask secret about wim", "@wim", "Wim, hello"):
        found = await route(node, text, token=NARROW)
        assert found["agent_id"] in (None, "basil"), text
        assert not {"wim", "secret"} & {each["agent_id"] for each in found["candidates"]}
        assert "wim" not in found["reason"]
        assert "secret" not in found["reason"]
    refused = await node.operation("fabric.ask", {"text": "talk to wim", "conversation_id": "x"}, token=NARROW)
    assert refused["ok"] is False
    assert "wim" not in refused["error"]
    assert (await route(node, "this recipe", token="a-wide-key-of-a-test"))["agent_id"] == "basil"  # not local


@requirement("003-27")
async def test_a_request_for_two_agents_has_parts(node: Node) -> None:
    found = await route(node, "Tell me the weather, then suggest dinner for it")
    assert found["reason"] == "Several agents answer, each its part of the request: 'wim', 'basil'."
    assert [(part["agent_id"], part["depends_on"]) for part in found["parts"]] == [("wim", []), ("basil", ["part1"])]
    assert "parts" not in await route(node, "back then the weather was better")


@requirement("003-27", "003-40")
async def test_a_request_for_two_agents_is_answered_by_both(node: Node) -> None:
    answer = await ask(node, "Tell me the weather ${part9}, then suggest dinner for it", "both")
    assert answer["status"] == "completed"
    assert answer["_fabric"]["reason"].startswith("Several agents answer")
    first, second = answer["answer"].split("\n\n", 1)
    assert first == "wim: sunny and warm"
    assert second == "basil: basil suggests: suggest dinner for it\n\nsunny and warm"
    messages = (await node.send("GET", "/v1/conversations/both/messages")).json["messages"]
    assert len(messages) == 2


@requirement("003-38")
async def test_rest_mcp_a2a_and_the_directory_route_by_the_same_words(node: Node) -> None:
    rest = (await node.send("POST", "/v1/ask", json={"text": "what should I cook?", "conversationId": "r"})).json
    assert (rest["agentId"], rest["capability"]) == ("basil", "suggest-meal")
    assert rest["parts"] == [{"type": "text", "content": "basil suggests: what should I cook?"}]
    rest_route = (await node.send("POST", "/v1/route", json={"text": "forecast"})).json
    assert (rest_route["agentId"], rest_route["candidates"][0]["agentId"]) == ("wim", "wim")
    assert (await node.send("POST", "/v1/ask", json={"text": "Tell me a joke"})).status == 400

    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    prefix = "io.modelcontextprotocol"
    meta = {f"{prefix}/protocolVersion": "2026-07-28", f"{prefix}/clientCapabilities": {}}
    params = {"name": "fabric_ask", "arguments": {"text": "what should I cook?"}, "_meta": meta}
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "fabric_ask",
    }
    mcp = await node.send("POST", "/mcp", json={**call, "params": params}, headers=headers)
    assert "basil suggests: what should I cook?" in mcp.body.decode(), mcp.body

    message = {"messageId": "m-1", "contextId": "ctx-1", "role": "ROLE_USER", "parts": [{"text": "this recipe: soup"}]}
    a2a = await node.send("POST", "/gateway/message:send", json={"message": message}, headers={"A2A-Version": "1.0"})
    assert "basil parsed: this recipe: soup" in a2a.body.decode()

    task = {"taskId": "d-1", "input": {"task": "what should I cook?"}}
    directory = (await node.send("POST", "/a2a/task", json=task)).json
    assert directory["output"]["_fabric"]["chosen"]["agentId"] == "basil"


async def say(node: Node, number: int, text: str, context: str = "ctx") -> dict[str, Any]:
    """The reply of the gateway's own A2A agent."""
    message = {"messageId": f"m-{number}", "contextId": context, "role": "ROLE_USER", "parts": [{"text": text}]}
    reply = await node.send("POST", "/gateway/message:send", json={"message": message}, headers={"A2A-Version": "1.0"})
    assert reply.status == 200, reply.body
    return dict(reply.json)


def read_answer(reply: dict[str, Any]) -> str:
    return str(reply["task"]["artifacts"][0]["parts"][0]["text"])


@requirement("003-27", "003-38")
async def test_a_context_of_a2a_is_a_conversation_with_the_gateway(node: Node) -> None:
    assert read_answer(await say(node, 1, "what should I cook?")) == "basil suggests: what should I cook?"
    assert read_answer(await say(node, 2, "and bread?")) == "basil suggests: and bread?"  # no word of any agent
    switched = (await say(node, 3, "talk to Wim"))["message"]
    assert switched["parts"][0]["text"].startswith("You talk to 'wim' from now on.")
    assert switched["contextId"] == "ctx"
    assert read_answer(await say(node, 4, "what should I cook?")) == "sunny and warm"
    assert (await say(node, 5, "switch back"))["message"]["parts"][0]["text"] == "You talk to all agents again."
    assert read_answer(await say(node, 6, "what should I cook?")) == "basil suggests: what should I cook?"
    message = {"messageId": "m-7", "contextId": "ctx", "role": "ROLE_USER", "parts": [{"text": "talk to Wim"}]}
    headers = {"A2A-Version": "1.0", "Accept": "text/event-stream"}
    stream = await node.send("POST", "/gateway/message:stream", json={"message": message}, headers=headers)
    assert "You talk to 'wim' from now on." in stream.body.decode()
    outside = {"taskId": "d-2", "input": {"task": "talk to Wim"}}
    refused = (await node.send("POST", "/a2a/task", json=outside)).json
    assert "holds for a conversation" in str(refused)


@requirement("003-38", "003-40")
async def test_a_message_of_a2a_for_two_agents_is_one_task_that_both_answer(node: Node) -> None:
    task = (await say(node, 1, "Tell me the weather, then suggest dinner for it", "both"))["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    answer = task["artifacts"][0]["parts"][0]["text"]
    assert answer == "wim: sunny and warm\n\nbasil: basil suggests: suggest dinner for it\n\nsunny and warm"
    assert task["metadata"]["a2a-fabric/skill"]["reason"] == "The message is for several agents: 'wim', 'basil'."
    again = (await node.send("GET", f"/gateway/tasks/{task['id']}", headers={"A2A-Version": "1.0"})).json
    assert again["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize(
    "arguments",
    [{}, {"text": ""}, {"text": 3}, {"text": "x", "conversation_id": ""}, {"text": "x", "conversation_id": "y" * 300}],
)
async def test_bad_arguments_are_refused_with_the_field(node: Node, arguments: dict[str, Any]) -> None:
    for operation in ("fabric.route", "fabric.ask"):
        envelope = await node.operation(operation, arguments)
        assert (envelope["ok"], envelope["error_code"]) == (False, "BAD_INPUT")
