"""Personal, work and shared agents: a caller neither sees nor calls agents that are not for it, at any door."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.federation.sample import copy_example, running_example
from tests.fixtures.mcp_client import client
from tests.fixtures.node import Node
from tests.marks import requirement

TEAM, PUBLIC, WORK_ONLY = "the-key-of-a-team", "the-key-of-a-stranger", "the-key-for-work-alone"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    keys = [
        {"id": "team", "key": TEAM, "trust": "org"},
        {"id": "stranger", "key": PUBLIC, "trust": "public"},
        {"id": "worker", "key": WORK_ONLY, "trust": "local", "audiences": ["work"]},
    ]
    async with running_example(copy_example(tmp_path), auth={"keys": keys}) as node:
        yield node


async def list_ids(node: Node, token: str) -> set[str]:
    page = await node.operation("fabric.agent.list", token=token)
    return {each["agent_id"] for each in page["result"]["agents"]}


@requirement("003-13")
async def test_lists_show_each_caller_the_agents_that_are_for_it(node: Node) -> None:
    assert await list_ids(node, TEAM) == {"calendar", "units", "wise"}
    assert await list_ids(node, PUBLIC) == set()  # `shared` agents of trust tier `org` are not for strangers
    assert await list_ids(node, WORK_ONLY) == {"calendar"}
    assert "basil" in {each.agent_id for each in node.fabric.registry.catalog.agents}


async def test_an_agent_for_others_cannot_be_called_described_searched_or_guessed(node: Node) -> None:
    for token in (TEAM, WORK_ONLY):
        call = {"agent_id": "basil", "capability": "parse-recipe", "task": "x"}
        hidden = await node.operation("fabric.call", call, token=token)
        unknown = await node.operation("fabric.call", {**call, "agent_id": "bazil"}, token=token)
        assert hidden["error_code"] == unknown["error_code"]
        assert hidden["error"].replace("basil", "bazil") == unknown["error"]
        described = await node.operation("fabric.agent.describe", {"agent_id": "basil"}, token=token)
        assert not described["ok"]
        hits = await node.operation("fabric.agent.search", {"query": "recipe dinner sous chef"}, token=token)
        assert "basil" not in str(hits)
        suggestions = await node.operation("fabric.agent.describe", {"agent_id": "basill"}, token=token)
        assert "'basil'" not in str(suggestions)
        assert "nearest: basil" not in str(suggestions)
        card = await node.send("GET", "/agents/basil/.well-known/agent-card.json", token=token)
        assert card.status in (403, 404)
        assert b"basil" not in (await node.send("GET", "/v1/agents", token=token)).body
        preview = {"agent_id": "basil", "capability": "parse-recipe"}
        planned = await node.operation("fabric.route.preview", preview, token=token)
        assert "selected_agent" not in str(planned)
        routed = await node.operation("fabric.route", {"text": "cook this recipe for dinner"}, token=token)
        assert "basil" not in str(routed)
        asked = await node.operation("fabric.ask", {"text": "talk to basil"}, token=token)
        assert "basil" not in str(asked).replace("talk to basil", "")
    assert (await node.send("GET", "/metrics", token=WORK_ONLY)).status == 403


PAGES = (
    "/v1/agents", "/v1/agents?capability=parse-recipe", "/v1/agents/basil", "/openapi.json", "/v1/tasks",
    "/.well-known/ai-catalog.json", "/.well-known/agent.json", "/.well-known/agent-card.json",
    "/agents/basil/.well-known/agent.json", "/agents/basil/extendedAgentCard", "/agents/basil/mcp/server-card",
    "/a2a/agents", "/a2a/agents/basil", "/mcp/list_agents", "/mcp/list_tools", "/mcp/agent/basil", "/monitoring/health",
    "/metrics", "/health",
)  # fmt: skip
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/search", {"query": {"text": "sous chef dinner"}}),
    ("/a2a/discover", {"capabilities": ["parse-recipe", "find-slot"]}),
    ("/a2a/task", {"taskId": "x-1", "input": {"task": "cook for dinner"}}),
    ("/a2a/task", {"taskId": "x-2", "action": "parse-recip", "input": {}}),
    ("/v1/tasks", {"agentId": "basi", "capability": "parse-recip", "input": {}}),
    ("/v1/ask", {"text": "cook for dinner"}),
    ("/v1/route", {"text": "cook for dinner"}),
    ("/gateway/message:send", {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "dinner"}]}}),
    ("/", {"jsonrpc": "2.0", "id": 1, "method": "discover", "params": {}}),
    ("/mcp/call", {"name": "fabric.graph.plan", "arguments": {"graph": {"nodes": [{"id": "a", "agent": "basi"}]}}}),
    ("/mcp/call", {"name": "fabric.task.send", "arguments": {"request": {"id": "t", "type": "x", "payload": {}}}}),
    ("/mcp/call", {"name": "fabric.signal.send", "arguments": {"from": "calendar", "to": "basi", "type": "blocked"}}),
    ("/mcp/call", {"name": "fabric.health", "arguments": {}}),
    ("/mcp/call", {"name": "fabric.tool.list", "arguments": {}}),
)
TRACES_OF_BASIL = ("basil", "Basil", "Sous", "suggest-meal", "suggest_meal", "kitchen@", "pantry", "nearest: basil")


@requirement("003-13")
async def test_no_page_and_no_reply_of_any_door_tells_of_an_agent_for_others(node: Node) -> None:
    await node.ask("basil", "suggest-meal", "x")  # so that there are calls and metrics of it
    for token in (TEAM, PUBLIC, WORK_ONLY):
        headers = {"A2A-Version": "1.0"}
        replies = {path: await node.send("GET", path, token=token, headers=headers) for path in PAGES}
        for path, body in REQUESTS:
            replies[f"{path} {body}"] = await node.send("POST", path, json=body, token=token, headers=headers)
        for request, reply in replies.items():
            text = reply.body.decode()
            told = [word for word in TRACES_OF_BASIL if word in text and word not in request]
            assert told == [], (token, request, text)
            assert "/basil" not in request or reply.status in (403, 404), request


async def test_words_of_a_caller_for_whom_it_is_find_a_personal_agent(node: Node) -> None:
    routed = await node.operation("fabric.route", {"text": "cook this recipe for dinner"})
    assert routed["result"]["agent_id"] == "basil"


async def test_only_the_operator_sees_folders_and_files_of_the_machine(node: Node, tmp_path: Path) -> None:
    for agent_id in ("calendar", "wise"):
        own = await node.operation("fabric.agent.describe", {"agent_id": agent_id})
        assert str(tmp_path) in str(own)
        other = await node.operation("fabric.agent.describe", {"agent_id": agent_id}, token=TEAM)
        assert other["result"]["agent"]["origin"]["location"] in ("local", "git")
        assert str(tmp_path) not in str(other)


async def test_mcp_lists_and_calls_only_the_tools_of_agents_that_are_for_the_caller(node: Node) -> None:
    async with client(node, token=WORK_ONLY) as connected:
        names = {tool.name for tool in (await connected.list_tools()).tools}
        assert "calendar_find_slot" in names
        assert not {name for name in names if name.startswith(("basil", "units", "wise"))}
