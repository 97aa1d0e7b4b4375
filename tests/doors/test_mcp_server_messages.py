"""Log messages and progress of an MCP server, as clients see them at `/mcp`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fixtures.mcp_client import client
from tests.fixtures.mcp_raw import modern
from tests.fixtures.mcp_servers.serving import serving
from tests.fixtures.mcp_servers.talkative import READING, make
from tests.fixtures.node import WAIT_TIMEOUT, Node, eventually, running

ERAS = pytest.mark.parametrize("node", ["handshake", "stateless"], indirect=True)


@pytest.fixture
async def node(request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    async with serving(request.param, make=make) as server:
        manifest = {"agent_id": "talker", "runtime": "mcp", "endpoint": {"uri": server.url}}
        async with running(manifests=[manifest]) as node:

            async def is_listed() -> bool:
                return "talker.wander" in str(await node.operation("fabric.tool.list", {}))

            await eventually(is_listed)
            yield node


@ERAS
async def test_progress_never_goes_back_nor_passes_its_total(node: Node) -> None:
    for mode in ("legacy", "2026-07-28"):
        seen: list[tuple[float, float | None]] = []

        async def report(progress: float, total: float | None, message: str | None) -> None:
            seen.append((progress, total))  # noqa: B023  # used within its turn

        async with client(node, mode) as connected:
            await connected.call_tool("talker_wander", {}, progress_callback=report)
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert seen[-1] == (100.0, 100.0)
        assert [done for done, _ in seen][-3:] == [10.0, 50.0, 100.0]
    events = await node.events("talker", "wander")
    assert [each["data"]["progress"] for each in events if each["event"] == "progress"] == [1, 5, 10]


@pytest.mark.filterwarnings("ignore:The logging capability is deprecated")
@ERAS
async def test_a_log_message_keeps_its_level_its_logger_and_its_data(node: Node) -> None:
    logs: asyncio.Queue[Any] = asyncio.Queue()

    async def keep(params: Any) -> None:
        if params.logger != "a2a-fabric":  # the node's own
            logs.put_nowait((params.level, params.logger, params.data))

    async with client(node, "legacy", logging_callback=keep) as connected:
        await connected.set_logging_level("info")
        await connected.call_tool("talker_complain", {})
        async with asyncio.timeout(WAIT_TIMEOUT):
            heard = [await logs.get(), await logs.get()]
            assert sorted(heard, key=str) == [("info", "engine", "all is well"), ("warning", "boiler", READING)]
        await connected.set_logging_level("warning")
        await connected.call_tool("talker_complain", {})
        async with asyncio.timeout(WAIT_TIMEOUT):
            assert await logs.get() == ("warning", "boiler", READING)
        assert logs.empty()


@ERAS
async def test_a_stateless_client_gets_messages_of_the_level_that_it_asks_for(node: Node) -> None:
    meta = {"io.modelcontextprotocol/logLevel": "warning"}
    headers, body = modern("tools/call", {"name": "talker_complain", "arguments": {}}, meta=meta)
    reply = (await node.send("POST", "/mcp", json=body, headers=headers)).body.decode()
    assert '"level":"warning"' in reply.replace(" ", "")
    assert '"logger":"boiler"' in reply.replace(" ", "")
    assert "all is well" not in reply
