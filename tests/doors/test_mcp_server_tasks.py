"""Tasks of MCP servers, seen at the doors: as jobs, as A2A tasks, and as plain replies and questions at `/mcp`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from tests.doors.a2a_clients import connected, message, request, told
from tests.fixtures.agents.calling import until
from tests.fixtures.environments import python_of
from tests.fixtures.mcp_client import client
from tests.fixtures.mcp_servers.serving import HERE
from tests.fixtures.mcp_servers.working import serving_working
from tests.fixtures.node import Node, eventually, running

YEARS = pytest.mark.parametrize("agent", ["new", "old"])


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with serving_working() as server:
        old = [python_of("mcp-1"), str(HERE / "working_2025.py")]
        manifests = [
            {"agent_id": "new", "runtime": "mcp", "endpoint": {"uri": server.url}},
            {"agent_id": "old", "runtime": "mcp", "endpoint": {"command": old}},
        ]
        async with running(manifests=manifests) as node:

            async def are_listed() -> bool:
                tools = await node.operation("fabric.tool.list", {})
                return all(f"agent.{each}.paint" in str(tools) for each in ("new", "old"))

            await eventually(are_listed)
            yield node


async def begin(node: Node, agent: str, capability: str, **context: Any) -> str:
    arguments = {"agent_id": agent, "capability": capability, "task": "", "context": context, "async": True}
    reply = await node.operation("fabric.call", arguments)
    assert reply["ok"], reply
    job_id: str = reply["result"]["job_id"]
    return job_id


async def reach(node: Node, job_id: str, state: str) -> Any:
    async def is_reached() -> bool:
        found.append((await node.operation("fabric.job.status", {"job_id": job_id}))["result"])
        assert found[-1]["state"] not in {"completed", "failed", "cancelled"} - {state}, found[-1]
        return bool(found[-1]["state"] == state)

    found: list[Any] = []
    await eventually(is_reached)
    return found[-1]


@YEARS
async def test_a_servers_task_is_a_job_with_its_messages_and_its_result(node: Node, agent: str) -> None:
    job_id = await begin(node, agent, "dig", depth=2)
    async with node.stream("fabric.job.stream", {"job_id": job_id}) as events:
        told = [event async for event in events]
    assert [each["data"].get("message") for each in told if each["data"].get("message")] == ["1 m deep", "2 m deep"]
    assert told[-1]["data"]["result"] == {"answer": "a hole"}


@YEARS
async def test_a_question_of_a_servers_task_is_the_jobs(node: Node, agent: str) -> None:
    job_id = await begin(node, agent, "paint", thing="door")
    questions = (await reach(node, job_id, "input_required"))["input_required"]["questions"]
    ((key, question),) = questions.items()
    assert question["message"] == "Which colour?"
    answers = {key: {"content": {"colour": "blue"}}}
    assert (await node.operation("fabric.job.answer", {"job_id": job_id, "answers": answers}))["ok"]
    await reach(node, job_id, "completed")
    reply = await node.operation("fabric.job.result", {"job_id": job_id})
    assert reply["result"] == {"answer": "door in blue"}


@YEARS
async def test_cancelling_the_job_cancels_the_servers_task(node: Node, agent: str, tmp_path: Path) -> None:
    note = tmp_path / "note"
    job_id = await begin(node, agent, "sleep", note=str(note))
    await until((tmp_path / "note.begun").exists)
    assert (await node.operation("fabric.job.cancel", {"job_id": job_id}))["ok"]
    await until(note.exists)


@YEARS
async def test_an_a2a_client_gets_the_result_of_a_servers_task(node: Node, agent: str) -> None:
    async with connected(node, agent, "JSONRPC", streaming=True) as a2a:
        events = await told(a2a, request(message({"data": {"depth": 1}}, skill="dig")))
    assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED", events[-1]
    texts = [
        part.get("text")
        for each in events
        for part in (each.get("artifactUpdate") or {}).get("artifact", {}).get("parts", [])
    ]
    assert "a hole" in texts


@YEARS
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_an_mcp_client_that_knows_no_tasks_answers_and_gets_the_result(node: Node, agent: str, mode: str) -> None:
    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"colour": "green"})

    async with client(node, mode, elicitation_callback=elicit) as mcp:
        result = await mcp.call_tool(f"{agent}_paint", {"thing": "gate"})
    assert result.structured_content == {"answer": "gate in green"}
