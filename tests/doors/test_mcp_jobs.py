"""Jobs for MCP clients that know nothing of them: two tools, one to begin and one to fetch."""

from __future__ import annotations

from typing import Any

import pytest

from a2a_fabric.agent import Agent
from tests.fixtures.mcp_client import MODES, client
from tests.fixtures.node import running
from tests.marks import requirement


@pytest.mark.parametrize("mode", MODES)
@requirement("001-04", "001-07", "001-52")
async def test_a_job_is_begun_looked_at_and_fetched_with_tools(mode: str) -> None:
    agent = Agent("echo")

    @agent.capability
    async def say(task: str) -> Any:
        yield "one"
        yield {"answer": task}

    async with running(agent) as node, client(node, mode) as connected:
        asked = {"agent_id": "echo", "capability": "say", "task": "hello", "async": True}
        begun = await connected.call_tool("fabric_call", asked)
        job_id = begun.structured_content["job_id"]
        waited = await connected.call_tool("fabric_job_result", {"job_id": job_id, "wait_ms": 20_000})
        assert waited.structured_content == {"answer": "hello"}
        shown = await connected.call_tool("fabric_job_status", {"job_id": job_id})
        assert shown.structured_content["state"] == "completed"
        followed = await connected.call_tool("fabric_job_stream", {"job_id": job_id})
        assert followed.structured_content == {"answer": "hello"}
        missing = await connected.call_tool("fabric_job_status", {"job_id": "job_0"})
        assert missing.is_error
