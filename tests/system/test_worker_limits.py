"""The limits of a node that has several workers are those of all of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.system.node import Node, running_node
from tests.system.test_workers import MCP_HEADERS, one_connection, open_session, worker_pids

PER_MINUTE, AT_A_TIME, SESSIONS = 40, 8, 6
LONG = aiohttp.ClientTimeout(total=150)  # calls are held until the test ends, on slow machines, too
KEYS = {name: f"the-key-of-{name}" for name in ("kept", "new", "crowd", "opener")}
AGENTS = """
- agent_id: remote
  runtime: http
  endpoint: {{uri: "http://127.0.0.1:{port}/"}}
  capabilities: [{{name: rest}}]
"""


class Agent:
    """Answers when it is told to. It has an address, so every worker calls it by itself."""

    def __init__(self) -> None:
        self.started = 0
        self.may_answer = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            await request.read()
            self.started += 1
            await self.may_answer.wait()
        return web.json_response({"ok": True, "result": {}})

    @asynccontextmanager
    async def serve(self, listener: socket.socket) -> AsyncIterator[None]:
        application = web.Application()
        application.router.add_route("*", "/", self.answer)
        runner = web.AppRunner(application, shutdown_timeout=0.5)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        try:
            yield
        finally:
            self.may_answer.set()
            await runner.cleanup()

    async def wait_for(self, started: int) -> None:
        async with asyncio.timeout(60):
            while self.started < started:  # noqa: ASYNC110  # calls come from other processes
                await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        yield bound


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, listener: socket.socket) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("limits")
    (folder / "agents.yaml").write_text(AGENTS.format(port=listener.getsockname()[1]))
    config = {
        "agents": ["agents.yaml"],
        "auth": {"keys": [{"id": name, "key": key} for name, key in KEYS.items()]},
        "health": {"interval": 0},
        "limits": {"calls_per_minute": PER_MINUTE, "concurrent_calls": AT_A_TIME, "share_per_caller": 1},
        "doors": [{"kind": "fabric"}, {"kind": "mcp", "max_sessions": SESSIONS}],
    }
    (folder / "fabric.yaml").write_text(json.dumps(config))
    with running_node(folder, "--workers", "2") as running:
        yield running
        running.signal(signal.SIGTERM)
        assert running.wait() == 0, running.said


def connection_of(node: Node, caller: str, *, is_kept: bool = False) -> aiohttp.ClientSession:
    if not is_kept:
        return one_connection(node, Authorization=f"Bearer {KEYS[caller]}", **MCP_HEADERS)
    return aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {KEYS[caller]}"},
        connector=aiohttp.TCPConnector(limit=1),
        timeout=aiohttp.ClientTimeout(total=30),
    )


async def ask(session: aiohttp.ClientSession, node: Node, name: str, **arguments: Any) -> tuple[int, Any]:
    request = {"name": name, "arguments": arguments}
    async with session.post(f"{node.url}/mcp/call", json=request, timeout=LONG) as reply:
        return reply.status, await reply.json()


@pytest.mark.parametrize("caller", ["new", "kept"])
async def test_a_caller_has_the_rate_of_the_node_over_new_connections_and_over_one(node: Node, caller: str) -> None:
    started_at = asyncio.get_running_loop().time()
    async with connection_of(node, caller, is_kept=caller == "kept") as session:
        replies = [
            await ask(session, node, "fabric.tool.math.calculate", expression="1+1") for _ in range(3 * PER_MINUTE)
        ]
    refilled = (asyncio.get_running_loop().time() - started_at) * PER_MINUTE / 60
    admitted = sum(status == 200 for status, _ in replies)
    assert {status for status, _ in replies} == {200, 429}, replies[0]
    assert all(status == 200 for status, _ in replies[:PER_MINUTE])
    assert PER_MINUTE <= admitted <= PER_MINUTE + refilled + 1


async def test_calls_at_a_time_are_those_of_the_node_and_those_of_a_killed_worker_are_free_again(
    node: Node, listener: socket.socket
) -> None:
    agent = Agent()
    async with agent.serve(listener), connection_of(node, "crowd") as session:

        async def call() -> int | None:
            try:
                return (
                    await ask(
                        session, node, "fabric.call", agent_id="remote", capability="rest", task="x", timeout_ms=120_000
                    )
                )[0]
            except aiohttp.ClientError:
                return None  # its worker was killed

        calls = [asyncio.ensure_future(call()) for _ in range(3 * AT_A_TIME)]
        await agent.wait_for(AT_A_TIME)
        async with asyncio.timeout(30):
            while sum(each.done() for each in calls) < 2 * AT_A_TIME:
                await asyncio.wait([each for each in calls if not each.done()], return_when=asyncio.FIRST_COMPLETED)
        assert [each.result() for each in calls if each.done()] == [429] * (2 * AT_A_TIME)
        assert agent.started == AT_A_TIME
        running = [each for each in calls if not each.done()]

        os.kill(min(worker_pids(node)), signal.SIGKILL)
        admitted, last = 0, None
        async with asyncio.timeout(60):
            while not (admitted and last == 429):  # as many as were lost have been admitted
                more = asyncio.ensure_future(call())
                running.append(more)
                await asyncio.wait([more], timeout=0.5)
                admitted, last = agent.started - AT_A_TIME, more.result() if more.done() else None
        assert admitted == sum(each.done() and each.result() is None for each in running)
        agent.may_answer.set()
        assert (await asyncio.gather(*running)).count(200) >= AT_A_TIME


async def test_sessions_are_those_of_the_node(node: Node) -> None:
    async with connection_of(node, "opener") as session:
        opened = [await open_session(session, f"{node.url}/mcp") for _ in range(3 * SESSIONS)]
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        statuses = []
        for headers in opened:
            async with session.post(f"{node.url}/mcp", json=listing, headers=headers) as reply:
                statuses.append(reply.status)
    assert (statuses.count(200), statuses.count(404)) == (SESSIONS, 2 * SESSIONS)
