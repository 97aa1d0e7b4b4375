"""A program that was killed is started again by the next call that names its agent, whatever fallbacks there are."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.agent import Agent
from tests.doors.test_health_evidence import changes, has_status, listed
from tests.fixtures.mcp_client import client, words
from tests.fixtures.node import WAIT_TIMEOUT, Node, eventually, running
from tests.marks import requirement

HERE = Path(__file__).parents[1] / "fixtures"
FILES = [sys.executable, str(HERE / "mcp_servers" / "files.py")]
JSONL = [sys.executable, str(HERE / "agents" / "jsonl_program.py")]
SESSIONS = [sys.executable, str(HERE / "agents" / "agent_client_program.py")]
TOOL = "prod_files_delete_entities"


def files(agent_id: str, state: Path, **more: Any) -> dict[str, Any]:
    return {"agent_id": agent_id, "runtime": "mcp", "endpoint": {"command": [*FILES, str(state)]}, **more}


async def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)

    async def is_gone() -> bool:
        return not os.path.exists(f"/proc/{pid}")  # noqa: ASYNC240  # quick

    await eventually(is_gone)


def deeds(state: Path) -> list[str]:
    return state.read_text().splitlines() if state.exists() else []


@requirement("001-47")
@pytest.mark.parametrize("fallbacks", [[], ["test_files"]])
async def test_a_killed_mcp_server_is_started_again_by_the_next_call_and_no_namesake_hears_of_it(
    tmp_path: Path, fallbacks: list[str]
) -> None:
    prod, test = tmp_path / "prod", tmp_path / "test"
    manifests = [files("prod_files", prod, fallbacks=fallbacks), files("test_files", test)]
    async with running(manifests=manifests) as node, client(node) as connected:

        async def is_offered() -> bool:
            return TOOL in {tool.name for tool in (await connected.list_tools()).tools}

        await eventually(is_offered)
        first = await connected.call_tool(TOOL, {"name": "one"})
        for number in range(3):  # also when it happens again and again
            await kill(int(deeds(prod)[-1].split()[0]))
            again = await connected.call_tool(TOOL, {"name": f"after {number}"})
            assert not again.is_error, words(again)
            assert words(again) != words(first)
            assert deeds(prod)[-1] == f"{words(again)} deleted after {number}"
        assert len({line.split()[0] for line in deeds(prod)}) == 4
        assert deeds(test) == []
        assert (await listed(node, "prod_files"))["status"] == "online"


async def pid_of(node: Node) -> int:
    reply = await node.ask("percy", "echo")
    assert "fallback" not in reply
    return int(reply["result"]["pid"])


def other() -> Agent:
    agent = Agent("other")

    @agent.capability(name="echo")
    async def echo(task: str) -> dict[str, Any]:
        return {"pid": 0}

    return agent


def percy(**endpoint: Any) -> dict[str, Any]:
    return {
        "agent_id": "percy",
        "runtime": "process",
        "endpoint": {"command": JSONL, **endpoint},
        "capabilities": [{"name": "echo"}, {"name": "silence"}],
        "fallbacks": ["other"],
    }


@requirement("001-47")
async def test_a_killed_program_is_started_again_by_the_next_call() -> None:
    async with running(other(), manifests=[percy(backoff=30)]) as node:
        pids = [await pid_of(node)]
        for _ in range(3):
            await kill(pids[-1])
            pids.append(await pid_of(node))
        assert len(set(pids)) == 4
        assert (await listed(node))["status"] == "online"


@requirement("001-47")
async def test_one_death_under_many_calls_counts_once() -> None:
    async with running(other(), manifests=[percy()]) as node:
        pid = await pid_of(node)

        async def start_waiting() -> asyncio.Task[Any]:
            started = asyncio.Event()

            async def listen() -> list[Any]:
                heard = []
                given = {"agent_id": "percy", "capability": "silence", "task": "go"}
                async with node.stream("fabric.call", given) as events:
                    async for event in events:
                        heard.append(event)
                        if event["data"].get("status") == "running" and len(heard) > 1:
                            started.set()
                return heard

            task = asyncio.ensure_future(listen())
            await asyncio.wait_for(started.wait(), WAIT_TIMEOUT)
            return task

        waiting = [await start_waiting() for _ in range(10)]
        await kill(pid)
        for each in waiting:
            assert (await asyncio.wait_for(each, WAIT_TIMEOUT))[-1]["event"] in ("error", "final")
        assert await pid_of(node) not in (pid, 0)
        await has_status(node, "online")
    assert "offline" not in [each["to"] for each in changes(node)]


@requirement("001-47")
async def test_a_program_that_cannot_be_started_is_offline_and_its_fallback_answers() -> None:
    async with running(other(), manifests=[percy(command=["./no-such-program"])]) as node:
        await has_status(node, "offline")
        reply = await node.ask("percy", "echo")
        assert reply["fallback"]["used"] == "other"


def started_in(folder: Path) -> list[int]:
    """The processes that work in this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                found.append(int(entry.name))
    return found


@requirement("001-47")
async def test_a_killed_agent_of_the_agent_client_protocol_is_started_again_by_the_next_call(tmp_path: Path) -> None:
    manifest = {
        "agent_id": "percy",
        "runtime": "agent-client",
        "endpoint": {"command": SESSIONS, "path": str(tmp_path), "backoff": 30},
        "capabilities": [{"name": "ask"}],
        "fallbacks": ["other"],
    }
    stand_in = Agent("other")

    @stand_in.capability(name="ask")
    async def ask(task: str) -> str:
        return "somebody else"

    async with running(stand_in, manifests=[manifest]) as node:
        assert (await node.ask("percy", "ask", "say hello"))["result"] == {"answer": "hello"}
        for _ in range(3):
            (pid,) = started_in(tmp_path)
            await kill(pid)
            reply = await node.ask("percy", "ask", "say hello")
            assert reply["result"] == {"answer": "hello"}, reply
        assert (await listed(node))["status"] == "online"
