"""Delegation between agents: only along the cards of the calling and of the called agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.core.propagation import make_chain_entry
from tests.fixtures.node import Node, running
from tests.marks import requirement


def make_agent(agent_id: str, **about: Any) -> Agent:
    agent = Agent(agent_id, **about)

    @agent.capability(side_effects="none")
    async def work(task: str) -> dict[str, str]:
        return {"answer": f"{agent_id}: {task}"}

    return agent


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    agents = [
        make_agent("basil", dependencies={"agents": ["rosa"]}),
        make_agent("loner", coordination={"canDelegate": False}),
        make_agent("rosa"),
        make_agent("busy", coordination={"acceptsSubtasks": False}),
    ]
    async with running(*agents, config={"node_id": "kitchen"}) as found:
        yield found


async def call(node: Node, target: str, caller: str | None = None) -> dict[str, Any]:
    arguments: dict[str, Any] = {"agent_id": target, "capability": "work", "task": "go"}
    if caller is not None:
        arguments["delegation_chain"] = [make_chain_entry("kitchen", caller)]
    return dict(await node.operation("fabric.call", arguments))


@requirement("003-24")
async def test_an_agent_calls_only_the_agents_in_its_dependencies(node: Node) -> None:
    assert (await call(node, "rosa", "basil"))["ok"]
    refused = await call(node, "loner", "basil")
    assert (refused["ok"], refused["error_code"]) == (False, "AUTH_DENIED")
    assert refused["error"] == "Agent 'basil' may not call 'loner': it is not in its dependencies"
    assert (await call(node, "loner"))["ok"]  # people may
    assert (await call(node, "loner", "rosa"))["ok"]  # a card without dependencies limits nothing


async def test_coordination_says_who_hands_over_and_who_takes_work(node: Node) -> None:
    refused = await call(node, "rosa", "loner")
    assert refused["error"] == "Agent 'loner' may not hand work to other agents"
    subtask = await call(node, "busy", "rosa")
    assert subtask["error"] == "Agent 'busy' accepts no work from other agents"
    assert (await call(node, "busy"))["ok"]
    tool = {"tool_id": "math.calculate", "parameters": {"expression": "1 + 1"}}
    assert (await node.operation("fabric.tool.call", tool))["ok"]
