"""Where a client is run: a live node with an agent that remembers, and a home of the client's own."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.conformance.commands import NOWHERE, Said, run
from tests.system.node import COMMAND, Node, running_node

SECONDS = 90.0
_AGENT = '''
import pathlib
from a2a_fabric import Agent

agent = Agent("percy", description="Repeats.")

@agent.capability
async def reason(task: str, depth: int = 1) -> dict:
    """Repeat the task."""
    with pathlib.Path(__file__).with_name("heard").open("a") as heard:
        heard.write(task + "\\n")
    return {"answer": f"percy heard {task}", "depth": depth}
'''


class Unexpected(Exception):
    """The client does, or the node answers, something else than it should."""


def expect(claim: object, told: object) -> None:
    if not claim:
        raise Unexpected(str(told))


class Place:
    """For one check: `home` is empty, and `program` is how the client is started."""

    def __init__(self, node: Node, home: Path, program: Sequence[str], path: str) -> None:
        self.node = node
        self.home = home
        self._program = program
        self._path = path

    @property
    def bearer(self) -> str:
        return f"Bearer {self.node.token}"

    async def run(self, *words: str, env: Mapping[str, str] | None = None, may_fail: bool = False) -> Said:
        """The client, with nothing of our own environment, in an empty folder."""
        folder = self.home / "project"
        folder.mkdir(exist_ok=True)
        clean = {"PATH": self._path, "HOME": str(self.home), "LANG": "C.UTF-8", **NOWHERE, **(env or {})}
        return await run([*self._program, *words], seconds=SECONDS, env=clean, cwd=folder, may_fail=may_fail)

    async def connect(self, client: str, *options: str) -> None:
        """`a2a-fabric connect`, as the user of that home."""
        env = {"PATH": self._path, "HOME": str(self.home), "FABRIC_HOME": str(self.node.home)}
        await run([*COMMAND, "connect", client, *options], seconds=SECONDS, env=env, cwd=self.home)

    def expect_heard(self, task: str) -> None:
        heard = self.node.folder / "heard"
        lines = heard.read_text("utf-8").splitlines() if heard.exists() else []
        expect(lines.count(task) == 1, f"the agent heard {lines[-3:]}, and not once {task!r}")

    async def tools(self) -> set[str]:
        """What the node lists for the official SDK's client."""
        headers = {"Authorization": self.bearer}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=SECONDS) as http,
            Client(streamable_http_client(f"{self.node.url}/mcp", http_client=http)) as client,
        ):
            return {tool.name for tool in (await client.list_tools()).tools}


@contextmanager
def node_with_percy() -> Iterator[Node]:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        (base / "percy_agent.py").write_text(_AGENT, "utf-8")
        manifest: dict[str, Any] = {"agent_id": "percy", "endpoint": {"uri": "python:percy_agent:agent"}}
        (base / "agents.yaml").write_text(json.dumps([manifest]), "utf-8")
        with running_node(base) as node:
            yield node


def path_with(node_js: str) -> str:
    """PATH with the Node.js that the clients' programs are to use."""
    return f"{Path(node_js).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
