"""The official MCP suite through a round-robin proxy before three nodes of a mesh: each request goes to the next node.

Two agents: one at an address, which all nodes declare, and a program, which one node holds.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from tests.fixtures.nats import NatsServer
from tests.fixtures.round_robin import round_robin
from tests.system.node import Node, running_node, until

ROOT = Path(__file__).parents[2]
NAMES = ("one", "two", "three")


@asynccontextmanager
async def serving_mesh(server: str, on_stdio: Sequence[str]) -> AsyncIterator[str]:
    """The address of the proxy. `server` is the fixture's, `on_stdio` the command that starts it as a program."""
    with ExitStack() as stack:
        nats = NatsServer(jetstream="").start()
        stack.callback(nats.remove)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nodes = [_start(folder / name, name, nats, server, on_stdio, stack) for name in NAMES]
        for node in nodes:
            await asyncio.to_thread(until, partial(_is_ready, node), "both agents at every node")
        async with round_robin([node.url for node in nodes]) as url:
            yield url


def _start(folder: Path, name: str, nats: NatsServer, server: str, on_stdio: Sequence[str], stack: ExitStack) -> Node:
    folder.mkdir()
    (folder / "fabric.yaml").write_text(
        f"node_id: {name}\nagents: [agents.yaml]\nauth: {{anonymous: true}}\n"
        f"mesh: {{nats: 'nats://127.0.0.1:{nats.port}', key: a-secret-of-the-mesh}}\n"
    )
    agents = f"- {{agent_id: over-http, runtime: mcp, endpoint: {{uri: '{server}'}}}}\n"
    if name == NAMES[-1]:
        agents += f"- {{agent_id: on-stdio, runtime: mcp, endpoint: {{command: {list(on_stdio)}, cwd: '{ROOT}'}}}}\n"
    (folder / "agents.yaml").write_text(agents)
    return stack.enter_context(running_node(folder, PYTHONPATH=str(ROOT)))


def _is_ready(node: Node) -> bool:
    agents = {each["agent_id"]: each["status"] for each in node.json("agents")["agents"]}
    return agents == {"over-http": "online", "on-stdio": "online"}
