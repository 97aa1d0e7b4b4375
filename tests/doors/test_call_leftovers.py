"""When a call is over nothing of it stays, not even until the garbage collector comes by; on a node that is rare."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import UpstreamRefused
from tests.fixtures.node import WAIT_TIMEOUT, Node, running

MARK = "a task that no other test has"
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
    async with server, running(percy, manifests=manifests) as found:
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
