"""What the page about A2A tells people to type works as it stands there."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.doors.a2a_agents import percy
from tests.fixtures.node import PSK, running

PAGE = (Path(__file__).parents[2] / "docs/a2a.md").read_text()
EXPECTED = ('"skills"', '"HELLO"', '"times":2', '"TASK_STATE_COMPLETED"', '"totalSize":3')

pytestmark = pytest.mark.asyncio(loop_scope="module")


def commands() -> list[str]:
    [block] = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    return [each for each in re.split(r"^\$ ", block, flags=re.MULTILINE) if each.strip()]


async def test_the_commands_do_what_the_page_says() -> None:
    async with running(percy(), config={"doors": [{"kind": "fabric"}, {"kind": "mcp"}, {"kind": "a2a"}]}) as node:
        for command, expected in zip(commands(), EXPECTED, strict=True):
            line = command.replace("http://127.0.0.1:8000", node.url)
            done = await asyncio.to_thread(typed, line)  # the node answers from this loop
            assert done.returncode == 0, done.stderr
            assert expected in done.stdout, (command, done.stdout)


def typed(command: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "TOKEN": PSK}
    return subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, timeout=30, check=False
    )
