"""Clients of the transport HTTP+SSE (2024-11-05) at `/sse`, with the SDK's own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.client.sse import sse_client

from a2a_fabric.agent import Agent
from tests.fixtures.mcp_servers import asking
from tests.fixtures.mcp_servers.sse_serving import serving_sse
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually, running
from tests.marks import requirement

BEE = "the-key-of-the-bee-12345"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}},
}


class Waiting:
    def __init__(self) -> None:
        self.begun, self.cancelled = asyncio.Event(), asyncio.Event()

    def agent(self) -> Agent:
        agent = Agent("oldtimer")

        @agent.capability()
        async def double(number: int) -> dict[str, int]:
            return {"doubled": 2 * number}

        @agent.capability()
        async def wait() -> str:
            self.begun.set()
            try:
                await asyncio.sleep(600)
            finally:
                self.cancelled.set()
            return "done"

        return agent


@asynccontextmanager
async def connected(node: Node, token: str = PSK, path: str = "/sse", **more: Any) -> AsyncIterator[Client]:
    transport = sse_client(node.url + path, headers={"Authorization": f"Bearer {token}"})
    async with asyncio.timeout(WAIT_TIMEOUT), Client(transport, mode="legacy", **more) as client:
        yield client


@pytest.fixture
async def waiting() -> Waiting:
    return Waiting()


@pytest.fixture
async def node(waiting: Waiting) -> AsyncIterator[Node]:
    config = {
        "auth": {"keys": [{"id": "bee", "key": BEE}]},
        "doors": [{"kind": "mcp", "max_sessions": 3}],
        "views": [{"name": "doubling", "tools": ["oldtimer.double"]}, {"name": "nothing", "agents": []}],
    }
    async with running(waiting.agent(), config=config) as found:
        yield found


async def open_stream(node: Node, token: str = PSK) -> tuple[Any, str]:
    """A raw stream, and the address for its messages."""
    reply = await node.client.get(f"{node.url}/sse", headers={"Authorization": f"Bearer {token}"})
    assert reply.status == 200, await reply.text()
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert (await reply.content.readline()) == b"event: endpoint\n"
    return reply, (await reply.content.readline()).decode().removeprefix("data: ").strip()


@requirement("001-01")
async def test_an_old_client_lists_and_calls_tools(node: Node) -> None:
    async with connected(node) as client:
        assert "oldtimer_double" in {tool.name for tool in (await client.list_tools()).tools}
        calls = [client.call_tool("oldtimer_double", {"number": number}) for number in range(20)]
        results = [result.structured_content for result in await asyncio.gather(*calls)]
        assert results == [{"doubled": 2 * number} for number in range(20)]


@pytest.mark.parametrize("path", ["/sse?view=doubling", "/views/doubling/sse"])
async def test_an_old_client_names_a_view_in_the_address(node: Node, path: str) -> None:
    async with connected(node, path=path) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        assert {"oldtimer_double"} == {name for name in tools if name.startswith("oldtimer")}
        refused = await client.call_tool("oldtimer_wait", {})
        assert refused.is_error


async def test_a_message_that_names_another_view_is_refused(node: Node) -> None:
    stream, address = await open_stream(node)
    reply = await node.send("POST", f"{address}&view=nothing", json=INITIALIZE)
    assert reply.status == 404
    stream.close()


async def test_a_call_ends_when_its_client_has_gone(node: Node, waiting: Waiting) -> None:
    async with connected(node) as client:
        call = asyncio.ensure_future(client.call_tool("oldtimer_wait", {}))
        await waiting.begun.wait()
    await asyncio.wait([call])
    async with asyncio.timeout(WAIT_TIMEOUT):
        await waiting.cancelled.wait()


async def test_an_old_client_answers_questions_of_an_old_server() -> None:
    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"colour": "red"})

    async with serving_sse(asking.make) as uri:
        manifest = {"agent_id": "painter", "runtime": "mcp", "endpoint": {"transport": "sse", "uri": uri}}
        async with running(manifests=[manifest]) as node:

            async def is_listed() -> bool:
                return "painter.paint" in str(await node.operation("fabric.tool.list", {}))

            await eventually(is_listed)
            async with connected(node, elicitation_callback=elicit) as client:
                result = await client.call_tool("painter_paint", {"thing": "door"})
                assert result.structured_content == {"answer": "door in red"}


async def test_only_the_caller_who_opened_a_session_may_post_to_it(node: Node) -> None:
    stream, address = await open_stream(node)
    refused = await node.send("POST", address, token=BEE, json=INITIALIZE)
    assert (refused.status, refused.json["error"]["message"][:17]) == (404, "Session not found")
    assert (await node.send("POST", address, token="wrong", json=INITIALIZE)).status == 401
    assert (await node.send("POST", address, json=INITIALIZE)).status == 202
    assert (await node.send("POST", address.replace("session_id=", "session_id=x"), json=INITIALIZE)).status == 404
    stream.close()

    async def has_ended() -> bool:
        return (await node.send("POST", address, json=INITIALIZE)).status == 404

    await eventually(has_ended)


async def test_what_is_no_message_is_refused_and_the_session_stays(node: Node) -> None:
    stream, address = await open_stream(node)
    assert (await node.send("POST", address, data=b"{", headers={"content-type": "application/json"})).status == 400
    assert (await node.send("POST", address, json={"jsonrpc": "2.0", "id": 1})).status == 400
    assert (await node.send("POST", address, data=b"x", headers={"content-type": "text/plain"})).status == 415
    assert (await node.send("GET", address)).status == 405
    assert (await node.send("POST", "/sse", json=INITIALIZE)).status == 405
    assert (await node.send("POST", address, json=INITIALIZE)).status == 202
    while b"protocolVersion" not in await stream.content.readline():
        pass
    stream.close()


async def test_strangers_get_401_and_no_stream(node: Node) -> None:
    assert (await node.send("GET", "/sse", token="wrong")).status == 401


async def test_sessions_are_bounded_and_the_idlest_is_closed_for_a_new_one(node: Node) -> None:
    streams = [await open_stream(node) for _ in range(4)]
    first, address = streams[0]
    async with asyncio.timeout(WAIT_TIMEOUT):
        await first.content.read()  # the node has ended it
    assert (await node.send("POST", address, json=INITIALIZE)).status == 404
    assert (await node.send("POST", streams[-1][1], json=INITIALIZE)).status == 202
    for stream, _ in streams:
        stream.close()


async def test_a_node_that_stops_ends_the_streams(node: Node) -> None:
    stream, _ = await open_stream(node)
    node.fabric.app.stop()
    async with asyncio.timeout(WAIT_TIMEOUT):
        await stream.content.read()
