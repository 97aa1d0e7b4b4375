"""What the page about the directory tells people to type works as it stands there."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fixtures.agents.rpc import RPCAgent
from tests.fixtures.node import PSK, Node, running
from tests.marks import requirement
from tests.matrix.agents.listening import listening

PAGE = (Path(__file__).parents[2] / "docs/directory.md").read_text()
PROMPT = re.compile(r"^\$ ", re.MULTILINE)

pytestmark = pytest.mark.asyncio(loop_scope="module")


def blocks() -> list[tuple[str, str]]:
    """Each command with what the page says it prints; nothing where it does not say."""
    found = []
    for block in re.findall(r"```console\n\$ (.*?)```", PAGE, re.DOTALL):
        for each in PROMPT.split(block):
            line = re.match(r"(?:.*\\\n)*(?:[^'\n]*'[^']*')*[^\n]*\n", each)
            assert line is not None, each
            found.append((line[0], each[line.end() :]))
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place() -> AsyncIterator[tuple[Node, str]]:
    doors = [{"kind": "fabric"}, {"kind": "mcp"}, {"kind": "directory"}]
    async with listening(RPCAgent()) as agent, running(config={"doors": doors}) as node:
        yield node, agent


@requirement("002-11")
async def test_the_commands_print_what_the_page_says(place: tuple[Node, str]) -> None:
    node, agent = place
    assert len(blocks()) == 6
    for command, printed in blocks():
        command = command.replace("http://127.0.0.1:8000", node.url).replace("http://127.0.0.1:9001", agent)
        environment = {"PATH": os.environ["PATH"], "TOKEN": PSK}
        process = await asyncio.to_thread(typed, command, environment)  # the node answers from this loop
        assert process.returncode == 0, (command, process.stderr)
        assert process.stdout.strip()
        assert '"error"' not in process.stdout, (command, process.stdout)
        if printed.strip():
            assert json.loads(process.stdout) == json.loads(printed)


def typed(command: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, timeout=30, check=False
    )
