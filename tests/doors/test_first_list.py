"""The first list of tools is right: known from before a restart, or after a bounded wait for each agent."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from tests.fixtures.mcp_client import client, socket_client
from tests.fixtures.node import eventually, running

SERVER = Path(__file__).parents[1] / "fixtures" / "mcp_servers" / "changing.py"
Connect = Callable[..., AbstractAsyncContextManager[Client]]
ways = pytest.mark.parametrize("connect", [client, socket_client])
eras = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


def tool(name: str, description: str = "", **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties or {"text": {"type": "string"}}}
    return {"name": name, "description": description or f"Does {name}.", "inputSchema": schema}


def offer(folder: Path, agent_id: str, tools: Sequence[dict[str, Any]]) -> Path:
    """Replace the file as a whole, so that the server never reads a part of it."""
    path, draft = folder / f"{agent_id}.json", folder / f".{agent_id}.json"
    draft.write_text(json.dumps(tools))
    os.replace(draft, path)
    return path


def server(folder: Path, agent_id: str, *, seconds: float = 0, **more: Any) -> dict[str, Any]:
    command = [sys.executable, "-S", str(SERVER), str(folder / f"{agent_id}.json"), str(seconds)]
    return {"agent_id": agent_id, "runtime": "mcp", "endpoint": {"command": command}, **more}


def in_file(folder: Path, **more: Any) -> dict[str, Any]:
    return {"store": f"sqlite:{folder / 'fabric.db'}", **more}


async def names(connected: Client, agent_id: str) -> list[str]:
    listed = (await connected.list_tools(cache_mode="bypass")).tools
    return [each.name for each in listed if each.name.startswith(f"{agent_id}_")]


@ways
@eras
async def test_the_first_list_waits_for_agents_that_were_never_asked(
    tmp_path: Path, connect: Connect, mode: str
) -> None:
    offer(tmp_path, "slow", [tool("greet")])
    async with running(manifests=[server(tmp_path, "slow", seconds=0.7)]) as node, connect(node, mode) as connected:
        assert await names(connected, "slow") == ["slow_greet"]


@ways
@eras
async def test_a_call_of_a_tool_that_is_not_known_yet_waits(tmp_path: Path, connect: Connect, mode: str) -> None:
    offer(tmp_path, "slow", [tool("greet")])
    async with running(manifests=[server(tmp_path, "slow", seconds=0.7)]) as node, connect(node, mode) as connected:
        result = await connected.call_tool("slow_greet", {"text": "hi"})
        assert not result.is_error
        assert '"tool": "greet"' in str(result.content)


async def test_a_silent_agent_delays_the_list_by_a_bounded_time_and_is_named_in_the_log(tmp_path: Path) -> None:
    offer(tmp_path, "silent", [tool("greet")])
    offer(tmp_path, "quick", [tool("greet")])
    manifests = [server(tmp_path, "silent", seconds=60), server(tmp_path, "quick")]
    config = {"health": {"first_list_timeout": 4}}
    async with running(manifests=manifests, config=config) as node, client(node) as connected:
        async with asyncio.timeout(30):  # the silent one would take 60 seconds
            assert await names(connected, "quick") == ["quick_greet"]
        node.fabric.telemetry.log.flush()
        assert "did not answer within 4 s: silent" in node.log.getvalue()


async def test_after_a_restart_the_list_is_there_at_once_and_differences_are_told(tmp_path: Path) -> None:
    """Twenty programs are known; they start slowly, and one of them has another tool meanwhile."""
    ids = [f"s{number:02}" for number in range(20)]
    for agent_id in ids:
        offer(tmp_path, agent_id, [tool("greet"), tool("leave")])
    doors = [{"kind": "mcp", "max_listed": 250}]
    config = in_file(tmp_path, doors=doors, health={"first_list_timeout": 30.0, "timeout": 30.0})
    manifests = [server(tmp_path, each) for each in ids]
    async with running(manifests=manifests, config=config) as node, client(node) as connected:
        assert len(await names(connected, "s00")) == 2
    offer(tmp_path, "s00", [tool("greet"), tool("stay")])
    changed = asyncio.Event()

    async def on_message(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changed.set()

    async with running(manifests=manifests, config=config) as node:
        registry = node.fabric.registry
        assert not registry.pending_descriptions.has_any
        assert sum(len(each.capabilities) for each in registry.catalog.agents) == 40
        async with client(node, "legacy", message_handler=on_message) as connected:

            async def is_current() -> bool:
                return await names(connected, "s00") == ["s00_greet", "s00_stay"]

            if not await is_current():  # else the server answered before this client was there
                async with asyncio.timeout(30):
                    await changed.wait()
            await eventually(is_current)


async def test_another_server_under_the_same_id_inherits_nothing(tmp_path: Path) -> None:
    offer(tmp_path, "git", [tool("push")])
    config = in_file(tmp_path)
    async with running(manifests=[server(tmp_path, "git")], config=config) as node, client(node) as connected:
        assert await names(connected, "git") == ["git_push"]
    offer(tmp_path, "other", [tool("pull")])
    changed = {**server(tmp_path, "other"), "agent_id": "git"}
    async with running(manifests=[changed], config=config) as node:
        assert not [each for each in node.fabric.registry.catalog.agents if each.capabilities]
        async with client(node) as connected:
            assert await names(connected, "git") == ["git_pull"]


async def test_a_server_that_changes_its_tools_all_the_time_is_asked_less_and_less_often(tmp_path: Path) -> None:
    offer(tmp_path, "busy", [tool("t0")])
    manifests = [server(tmp_path, "busy")]
    async with running(manifests=manifests, config=in_file(tmp_path)) as node, client(node) as connected:
        assert await names(connected, "busy") == ["busy_t0"]
        for number in range(40):
            offer(tmp_path, "busy", [tool(f"t{number}", f"Text {number}.")])
            await asyncio.sleep(0.1)
        assert len((tmp_path / "busy.asked").read_text().splitlines()) <= 12

        async def is_current() -> bool:
            return await names(connected, "busy") == ["busy_t39"]

        await eventually(is_current)
