"""When a call is over nothing of it stays, not even until the garbage collector comes by; on a node that is rare."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import UpstreamRefused
from tests.fixtures.mcp_raw import Session
from tests.fixtures.node import WAIT_TIMEOUT, Node, eventually, running

MARK = "a task that no other test has"
TINY = Path(__file__).parents[1] / "fixtures" / "mcp_servers" / "tiny.py"


def call_tool(name: str) -> dict[str, Any]:
    params = {"name": name, "arguments": {"task": "x"}}
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}


percy = Agent("percy")


@percy.capability
async def echo(task: str) -> dict[str, Any]:
    return {"answer": task}


@percy.capability
async def fail(task: str) -> dict[str, Any]:
    raise UpstreamRefused(task)


@percy.capability
async def wait(task: str) -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


async def _answer_garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\nconnection: close\r\n\r\ngarbage")
    await writer.drain()
    writer.close()


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    server = await asyncio.start_server(_answer_garbage, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    manifests = [
        {"agent_id": name, "runtime": "http", "endpoint": {"uri": uri}, "capabilities": [{"name": name}]}
        for name, uri in (("garbage", f"http://127.0.0.1:{port}"), ("dead", "http://127.0.0.1:1"))
    ]
    endpoint = {"transport": "stdio", "command": [sys.executable, "-I", str(TINY)]}
    tiny = {"agent_id": "tiny", "runtime": "mcp", "endpoint": endpoint, "capabilities": [{"name": "echo"}]}
    async with server, running(percy, manifests=[*manifests, tiny]) as found:
        yield found


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("agent_id", "capability"),
    [("percy", "echo"), ("percy", "fail"), ("percy", "wait"), ("garbage", "garbage"), ("dead", "dead")],
)
async def test_a_call_that_is_over_is_forgotten(
    node: Node, without_collector: None, agent_id: str, capability: str, stream: bool
) -> None:
    for _ in range(3):
        if stream:
            await node.events(agent_id, capability, MARK, timeout_ms=50)
        else:
            await node.ask(agent_id, capability, MARK, timeout_ms=50)
    async with asyncio.timeout(WAIT_TIMEOUT):
        while any(isinstance(found, Call) and found.input.task == MARK for found in gc.get_objects()):  # noqa: ASYNC110  # memory has no event
            await asyncio.sleep(0.01)


async def test_a_request_leaves_no_circle_behind(node: Node, without_collector: None) -> None:
    for agent in ("percy", "garbage", "dead"):  # what is made once, at the first use of a runtime, is no leak
        await node.ask(agent, "echo" if agent == "percy" else agent)
    gc.collect()
    for _ in range(50):
        await node.ask("percy", "echo")
    assert gc.collect() < 50


LISTING_RESOURCES = {"jsonrpc": "2.0", "id": 8, "method": "resources/list"}  # needs the SDK
SESSIONS = 20
SLACK = 300  # objects that have nothing to do with the sessions
SDK_CIRCLE = 50  # the SDK's runner of each session refers to itself, and to about thirty objects


@pytest.mark.parametrize(
    ("path", "message", "most"),
    [
        ("/mcp", call_tool("percy_echo"), 0),
        ("/mcp", LISTING_RESOURCES, SDK_CIRCLE),
        ("/agents/percy/mcp", call_tool("echo"), 0),
        ("/agents/tiny/mcp", call_tool("echo"), 0),
    ],
)
async def test_a_session_that_is_over_leaves_nothing_to_a_collection_of_all_objects(
    node: Node, path: str, message: dict[str, Any], most: int
) -> None:
    """What lives for long is frozen: other collections do not look at it, so circles in it would not be freed."""

    async def open_session() -> Session:
        session = await Session(node, "2025-06-18", path).__aenter__()
        await session.answer(message)
        return session

    for _ in range(3):
        await (await open_session()).__aexit__()
    tasks = len(asyncio.all_tasks())
    sessions = [await open_session() for _ in range(SESSIONS)]
    gc.unfreeze()  # what tests before this one left
    gc.collect()
    gc.freeze()
    try:
        while sessions:
            await sessions.pop().__aexit__()

        async def have_ended() -> bool:
            return len(asyncio.all_tasks()) <= tasks

        await eventually(have_ended)
        gc.collect()  # of what is not frozen
    finally:
        gc.unfreeze()
    assert gc.collect() <= SESSIONS * most + SLACK
