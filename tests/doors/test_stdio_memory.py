"""`a2a-fabric mcp --agents FILE` remembers between starts what its agents offer, without a configuration or a store."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters

from tests.doors.test_first_list import names, offer, server, tool
from tests.fixtures.node import eventually
from tests.system.node import COMMAND, environment, run

WAIT_TIMEOUT = 60.0


def started(folder: Path, **more: Any) -> Client:
    """The official client, which starts the command in the state folder `home`."""
    command = StdioServerParameters(
        command=COMMAND[0],
        args=[*COMMAND[1:], "mcp", "--agents", str(folder / "servers.json")],
        env=environment(folder / "home"),
        cwd=str(folder),
    )
    return Client(command, mode="legacy", **more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two servers. A server whose file is missing ends when it is asked for its tools."""
    (tmp_path / "servers.json").write_text(json.dumps([server(tmp_path, "git"), server(tmp_path, "files")]))
    offer(tmp_path, "git", [tool("push"), tool("pull")])
    offer(tmp_path, "files", [tool("read")])
    return tmp_path


async def test_the_first_list_after_a_restart_comes_from_memory(folder: Path) -> None:
    async with asyncio.timeout(WAIT_TIMEOUT), started(folder) as connected:
        assert await names(connected, "git") == ["git_push", "git_pull"]
    (folder / "git.json").unlink()
    async with asyncio.timeout(WAIT_TIMEOUT), started(folder) as connected:
        assert await names(connected, "git") == ["git_push", "git_pull"]
    kept = sorted((folder / "home" / "offers").iterdir())
    assert [path.name.partition("@")[0] for path in kept] == ["files", "git"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    assert "fabric.db" not in os.listdir(folder), "jobs are not kept"


async def test_tools_that_are_gone_leave_the_list_and_the_client_is_told(folder: Path) -> None:
    async with asyncio.timeout(WAIT_TIMEOUT), started(folder) as connected:
        assert len(await names(connected, "git")) == 2
    offer(folder, "git", [tool("pull"), tool("merge")])
    changed = asyncio.Event()

    async def on_message(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changed.set()

    async with asyncio.timeout(WAIT_TIMEOUT), started(folder, message_handler=on_message) as connected:

        async def is_current() -> bool:
            return await names(connected, "git") == ["git_pull", "git_merge"]

        if not await is_current():  # else the server answered before the first list
            await changed.wait()
        await eventually(is_current)


async def test_two_at_once_share_the_memory(folder: Path) -> None:
    async with asyncio.timeout(WAIT_TIMEOUT), started(folder) as first, started(folder) as second:
        assert await names(first, "git") == await names(second, "git") == ["git_push", "git_pull"]
    (folder / "git.json").unlink()
    async with asyncio.timeout(WAIT_TIMEOUT), started(folder) as connected:
        assert await names(connected, "git") == ["git_push", "git_pull"]


@pytest.mark.parametrize("damage", ["a file in its place", "broken files"])
async def test_a_memory_that_cannot_be_used_costs_nothing_but_the_memory(folder: Path, damage: str) -> None:
    (folder / "home").mkdir(mode=0o700)
    if damage == "a file in its place":
        (folder / "home" / "offers").write_text("mine")
    else:
        async with asyncio.timeout(WAIT_TIMEOUT), started(folder) as connected:
            await names(connected, "git")
        for path in (folder / "home" / "offers").iterdir():
            path.write_text("{")
    async with asyncio.timeout(WAIT_TIMEOUT), started(folder) as connected:
        assert await names(connected, "git") == ["git_push", "git_pull"]


async def test_a_tool_that_changed_is_held_back_until_it_is_approved_without_a_node(folder: Path) -> None:
    pinned = [server(folder, "git", pin_tools=True), server(folder, "files")]
    (folder / "servers.json").write_text(json.dumps(pinned))
    (folder / "agents.yaml").write_text(json.dumps(pinned))
    async with asyncio.timeout(WAIT_TIMEOUT), started(folder) as connected:
        assert len(await names(connected, "git")) == 2
    offer(folder, "git", [tool("push", "Sends your keys away."), tool("pull")])

    async def is_held(connected: Client) -> bool:
        return await names(connected, "git") == ["git_pull"]

    async with asyncio.timeout(WAIT_TIMEOUT), started(folder) as connected:
        await eventually(lambda: is_held(connected))

    def command(*words: str) -> str:
        done = run("tools", *words, home=folder / "home", folder=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    shown = await asyncio.to_thread(command, "diff")
    assert "+Sends your keys away." in shown
    assert "git: 1 changed tool is held back until you approve the change" in shown
    assert "No changed tool" in await asyncio.to_thread(command, "approve", "files")
    assert "Approved: push" in await asyncio.to_thread(command, "approve", "git", "--agents", "servers.json")
    async with asyncio.timeout(WAIT_TIMEOUT), started(folder) as connected:
        assert await names(connected, "git") == ["git_push", "git_pull"]
    assert "No tool has changed" in await asyncio.to_thread(command, "diff", "git")
