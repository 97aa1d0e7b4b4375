"""An agent framework's own MCP client against a live node: Pydantic AI, with the model it has for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastmcp.client.transports import StdioTransport
from mcp import MCPError
from pydantic_ai import Agent
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.test import TestModel

from tests.fixtures.node import PSK, Node, running
from tests.fixtures.percy import Percy
from tests.marks import requirement
from tests.system.node import COMMAND, environment, running_node

WAIT_TIMEOUT = 30.0


def over_http(node: Node, token: str = PSK) -> MCPToolset[Any]:
    return MCPToolset(f"{node.url}/mcp", headers={"Authorization": f"Bearer {token}"})


def answers(messages: list[ModelMessage]) -> Iterator[tuple[str, Any]]:
    """What each tool said to the model."""
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                yield part.tool_name, part.content


async def calling(toolset: MCPToolset[Any], *tools: str) -> tuple[list[str], dict[str, Any]]:
    """The tools that the model was offered, and what those it called said."""
    model = TestModel(call_tools=list(tools))
    async with asyncio.timeout(WAIT_TIMEOUT):
        done = await Agent(model, toolsets=[toolset]).run("Ask around.")
    assert model.last_model_request_parameters is not None
    offered = [tool.name for tool in model.last_model_request_parameters.function_tools]
    return offered, dict(answers(done.all_messages()))


@requirement("001-01", "001-52")
async def test_its_model_is_offered_every_tool_and_hears_what_each_says() -> None:
    percy = Percy()
    async with running(percy.agent) as node:
        wanted = ("fabric_tool_list", "percy_reason", "percy_plan")
        offered, said = await calling(over_http(node), *wanted)
        assert {*wanted, "fabric_tool_call", "percy_refuse"} <= {*offered}
        assert "agent.percy.reason" in {tool["tool_id"] for tool in said["fabric_tool_list"]["tools"]}
        assert said["percy_reason"] == {"answer": "a", "depth": 1}, "its model says `a` wherever words are wanted"
        assert len(percy.calls) == 1
        assert said["percy_plan"]["citations"] == [{"title": "a book"}]


async def test_the_tools_work_over_stdio_too(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        home = environment(node.home)
        program = StdioTransport(COMMAND[0], [*COMMAND[1:], "mcp"], env=home, cwd=str(tmp_path), keep_alive=False)
        offered, said = await calling(
            MCPToolset(program, init_timeout=WAIT_TIMEOUT), "fabric_tool_list", "percy_reason"
        )
        assert "percy_reason" in offered
        assert "agent.percy.reason" in {tool["tool_id"] for tool in said["fabric_tool_list"]["tools"]}
        assert said["percy_reason"]["answer"]


async def test_what_an_agent_refuses_is_told_to_the_model() -> None:
    percy = Percy()
    async with running(percy.agent) as node:
        with pytest.raises(UnexpectedModelBehavior) as given_up:
            await calling(over_http(node), "percy_refuse")
        assert "I would rather not" in str(given_up.value.__cause__)


async def test_a_wrong_key_is_no_way_in() -> None:
    percy = Percy()
    async with running(percy.agent) as node:
        with pytest.raises(MCPError, match="credentials are not valid"):
            await calling(over_http(node, token="not-the-key"), "percy_reason")
        assert percy.calls == []
