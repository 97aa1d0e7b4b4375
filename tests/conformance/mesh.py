"""The official MCP suite through a round-robin proxy before three nodes of a mesh: each request goes to the next node.

Two agents: one at an address, which all nodes declare, and a program, which one node holds.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import aiohttp
from aiohttp import web

from tests.fixtures.nats import NatsServer
from tests.system.node import Node, running_node, until

ROOT = Path(__file__).parents[2]
NAMES = ("one", "two", "three")
_HOP_HEADERS = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "host", "te", "upgrade"})


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


@asynccontextmanager
async def round_robin(backends: Sequence[str]) -> AsyncIterator[str]:
    """A proxy that sends each request to the next of these servers, whatever session it belongs to."""
    turns = itertools.cycle(backends)

    async def forward(request: web.Request) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_HEADERS}
        body = await request.read()
        async with session.request(
            request.method, next(turns) + request.path_qs, headers=headers, data=body, allow_redirects=False
        ) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_HEADERS}
            reply = web.StreamResponse(status=answer.status, headers=kept)
            await reply.prepare(request)
            with suppress(ConnectionResetError):  # the client has left, as some scenarios do
                async for chunk in answer.content.iter_any():
                    await reply.write(chunk)
                await reply.write_eof()
            return reply

    application = web.Application(client_max_size=64 << 20)
    application.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(application, handler_cancellation=True)
    async with aiohttp.ClientSession(
        auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=1.0)
        await site.start()
        try:
            assert runner.addresses
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()
