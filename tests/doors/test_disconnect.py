"""A client that leaves cancels the agent's work: plain and streamed, in process and behind HTTP, on any ASGI server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually, running, tasks_are_down_to
from tests.fixtures.percy import Percy
from tests.runtimes.http_agents import BEHAVIOURS, Agents, agents

SOON = 1.0


def request(agent_id: str, capability: str, *, stream: bool) -> bytes:
    arguments = {"agent_id": agent_id, "capability": capability, "task": "go", "stream": stream}
    body = json.dumps({"name": "fabric.call", "arguments": arguments}).encode()
    head = f"POST /mcp/call HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {PSK}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def within(event: asyncio.Event, seconds: float = SOON) -> None:
    async with asyncio.timeout(seconds):
        await event.wait()


@pytest.fixture
async def percy() -> Percy:
    return Percy()


@pytest.fixture
async def wild() -> AsyncIterator[Agents]:
    async with agents(BEHAVIOURS, takes_get=False) as found:
        yield found


@pytest.fixture
async def node(percy: Percy, wild: Agents) -> AsyncIterator[Node]:
    manifests = [wild.manifest("hang"), wild.manifest("hang_in_stream")]
    async with running(percy.agent, manifests=manifests) as found:
        yield found


@asynccontextmanager
async def stock_server(node: Node) -> AsyncIterator[int]:
    """The same application on uvicorn as it comes, which tells of a disconnect only by `receive`."""
    server = uvicorn.Server(uvicorn.Config(node.fabric.app, port=0, log_config=None, http="h11", ws="none"))
    serving = asyncio.ensure_future(server._serve())

    async def is_up() -> bool:
        return server.started

    await eventually(is_up)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def leave_when(port: int, data: bytes, started: asyncio.Event) -> None:
    """Ask, wait until the agent works, hang up."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    await within(started, WAIT_TIMEOUT)
    writer.transport.abort()


@pytest.mark.parametrize(("capability", "stream"), [("wait", False), ("wait_and_talk", True), ("wait", True)])
async def test_leaving_cancels_a_python_agent(node: Node, percy: Percy, capability: str, stream: bool) -> None:
    await leave_when(node.port, request("percy", capability, stream=stream), percy.started)
    await within(percy.cancelled)
    assert (await node.ask("percy", "reason", "still here"))["ok"] is True


@pytest.mark.parametrize(("capability", "stream"), [("wait", False), ("wait_and_talk", True)])
async def test_leaving_cancels_on_a_stock_server_too(node: Node, percy: Percy, capability: str, stream: bool) -> None:
    async with stock_server(node) as port:
        await leave_when(port, request("percy", capability, stream=stream), percy.started)
        await within(percy.cancelled)


@pytest.mark.parametrize(("agent_id", "stream"), [("hang", False), ("hang", True), ("hang_in_stream", True)])
async def test_leaving_hangs_up_on_an_http_agent(node: Node, wild: Agents, agent_id: str, stream: bool) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    writer.write(request(agent_id, "act", stream=stream))
    if agent_id == "hang_in_stream":
        await reader.readuntil(b"and then")
    else:
        await within(wild.arrived, WAIT_TIMEOUT)
    writer.transport.abort()
    await within(wild.left)


async def test_a_half_closed_connection_counts_as_left(node: Node, percy: Percy) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", node.port)
    writer.write(request("percy", "wait", stream=False))
    await within(percy.started)
    writer.write_eof()
    await within(percy.cancelled)
    writer.close()


async def test_leaving_one_stream_leaves_the_others_alone(node: Node, percy: Percy) -> None:
    held = asyncio.ensure_future(node.ask("percy", "hold"))
    await leave_when(node.port, request("percy", "wait", stream=False), percy.started)
    await within(percy.cancelled)
    percy.may_go_on.set()
    assert (await held)["result"] == {"answer": "at last"}


async def test_a_client_that_leaves_while_sending_its_body_starts_nothing(node: Node, percy: Percy) -> None:
    whole = request("percy", "reason", stream=False)
    for part in (whole[:-5], whole[:20], b""):
        _, writer = await asyncio.open_connection("127.0.0.1", node.port)
        writer.write(part)
        await writer.drain()
        writer.transport.abort()
    assert (await node.ask("percy", "reason", "still here"))["ok"] is True
    assert [call.input.task for call in percy.calls] == ["still here"]


async def test_many_clients_that_leave_leave_no_task_behind(node: Node, percy: Percy) -> None:
    await node.ask("percy", "reason")
    before = len(asyncio.all_tasks())
    for stream in (False, True) * 10:
        percy.started.clear()
        capability = "wait_and_talk" if stream else "wait"
        await leave_when(node.port, request("percy", capability, stream=stream), percy.started)
    await tasks_are_down_to(before)

    async def no_stream_is_left() -> bool:  # tasks of the node's own may have ended meanwhile: that proves nothing
        return "fabric_active_streams 0.0" in (await node.send("GET", "/metrics")).body.decode()

    await eventually(no_stream_is_left)


class Hand:
    """An ASGI server driven by hand: no extension, only messages."""

    def __init__(self, body: bytes) -> None:
        self.sent: list[dict[str, Any]] = []
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    async def serve(self, node: Node) -> None:
        headers = [(b"authorization", f"Bearer {PSK}".encode())]
        scope = {"type": "http", "method": "POST", "path": "/mcp/call", "headers": headers, "query_string": b""}
        await node.fabric.app(scope, self.incoming.get, self.send)


async def test_by_hand_a_disconnect_message_cancels_and_nothing_is_sent(node: Node, percy: Percy) -> None:
    hand = Hand(request("percy", "wait", stream=False).partition(b"\r\n\r\n")[2])
    serving = asyncio.ensure_future(hand.serve(node))
    await within(percy.started)
    hand.incoming.put_nowait({"type": "http.disconnect"})
    async with asyncio.timeout(SOON):
        await serving
    assert percy.cancelled.is_set()
    assert hand.sent == []


async def test_by_hand_a_server_that_cancels_us_is_obeyed(node: Node, percy: Percy) -> None:
    hand = Hand(request("percy", "wait", stream=False).partition(b"\r\n\r\n")[2])
    serving = asyncio.ensure_future(hand.serve(node))
    await within(percy.started)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    await within(percy.cancelled)


async def test_by_hand_a_whole_call_is_answered(node: Node) -> None:
    hand = Hand(request("percy", "reason", stream=False).partition(b"\r\n\r\n")[2])
    started = time.monotonic()
    await hand.serve(node)
    assert time.monotonic() - started < WAIT_TIMEOUT
    assert [message["type"] for message in hand.sent] == ["http.response.start", "http.response.body"]
    assert json.loads(hand.sent[1]["body"])["result"]["answer"] == "go"
