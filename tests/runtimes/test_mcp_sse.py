"""MCP servers over HTTP+SSE, the transport of 2024-11-05, behind the runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.core.call import ignore_event
from a2a_fabric.core.errors import AgentOffline, CapabilityNotFound, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.probing.addresses import detect, probe_address
from a2a_fabric.runtimes.mcp.runtime import McpRuntime
from a2a_fabric.runtimes.mcp.sse import McpSseTransport
from a2a_fabric.runtimes.mcp.transports import McpHttpTarget, RpcRequest
from tests.fixtures.agents.calling import Heard, call_of, until
from tests.fixtures.mcp_servers import asking
from tests.fixtures.mcp_servers.sse_serving import serving_raw, serving_sse
from tests.marks import requirement
from tests.runtimes.mcp_bench import Bench, failure_of
from tests.runtimes.test_mcp_questions import COLOUR, answering

WAIT_TIMEOUT = 60.0


class Servers:
    def __init__(self, stack: AsyncExitStack, base: Path) -> None:
        self._stack = stack
        self._bench = Bench(stack, base)

    async def real(self, **options: Any) -> McpRuntime:
        return self.at(await self._stack.enter_async_context(serving_sse(**options)))

    async def raw(self, *pieces: bytes, **options: Any) -> McpRuntime:
        return self.at(await self._stack.enter_async_context(serving_raw(*pieces, **options)))

    def at(self, uri: str) -> McpRuntime:
        return self._bench.runtime(transport="sse", uri=uri, start_timeout=15)


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with asyncio.timeout(WAIT_TIMEOUT), AsyncExitStack() as stack:
        yield Servers(stack, tmp_path)


@requirement("001-13")
async def test_its_tools_are_capabilities_and_can_be_called(servers: Servers) -> None:
    server = await servers.real()
    names = {capability.name for capability in (await server.describe()).capabilities}
    assert {"add", "say", "count"} <= names
    assert (await server(call_of("add", a=2, b=3), ignore_event)).data == {"sum": 5}
    assert await server.health() == "online"
    await failure_of(server(call_of("dance"), ignore_event), CapabilityNotFound)


async def test_calls_run_side_by_side_and_report_progress(servers: Servers) -> None:
    server, heard = await servers.real(), Heard()
    calls = [server(call_of("add", a=number, b=0), ignore_event) for number in range(50)]
    assert [result.data["sum"] for result in await asyncio.gather(*calls)] == list(range(50))
    await server(call_of("count", to=3, stream=True), heard)
    assert [event.data["progress"] for event in heard.events if event.kind == "progress"] == [1, 2, 3]


async def test_a_question_of_its_tool_is_answered(servers: Servers) -> None:
    server = await servers.real(make=asking.make)
    call = call_of("paint", thing="door")
    result = await server(call, ignore_event)
    assert (await server(answering(call, result, COLOUR), ignore_event)).data == {"answer": "door in red"}


async def test_a_cancelled_call_is_cancelled_there(servers: Servers, tmp_path: Path) -> None:
    server, heard, note = await servers.real(), Heard(), tmp_path / "note"
    call = asyncio.ensure_future(server(call_of("wait", note=str(note), stream=True), heard))
    await heard.something.wait()
    call.cancel()
    await until(note.exists)


async def test_the_address_is_recognised_by_a_probe() -> None:
    http = OutboundClient()
    async with serving_sse() as uri:
        report = await probe_address(http, uri, {}, 5.0)
        assert report.finding is not None
        assert report.finding.runtime == "mcp"
        assert report.finding.endpoint == {"transport": "sse", "uri": uri}
        nearby = (await probe_address(http, uri.removesuffix("/sse"), {}, 5.0)).finding
        assert nearby is not None
        assert nearby.endpoint == {"transport": "sse", "uri": uri}
        exact = await detect(http, uri, {}, 5.0)
        assert exact is not None
        assert exact.endpoint["transport"] == "sse"
    await http.aclose()


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([b"event: endpoint\ndata: http://elsewhere.example/messages\n\n"], "at another host, which is refused"),
        ([b"event: endpoint\ndata: //elsewhere.example/messages\n\n"], "at another host, which is refused"),
        ([b": still here\n\n"], "named no address for messages within 10 s"),
        ([b"data: " + b"x" * (17 << 20) + b"\n\n"], "sent an event larger than 16777216 bytes"),
    ],
    ids=["another-host", "another-host-relative", "no-endpoint", "huge"],
)
async def test_a_server_that_names_no_usable_address_is_offline(
    servers: Servers, pieces: list[bytes], words: str
) -> None:
    server = await servers.raw(*pieces)
    assert words in str(await failure_of(server.describe(), AgentOffline))


async def test_another_status_or_nothing_at_all_is_offline(servers: Servers) -> None:
    refusing = await servers.raw(status="404 Not Found")
    assert "answered HTTP 404" in str(await failure_of(refusing.describe(), AgentOffline))
    absent = servers.at("http://127.0.0.1:9/sse")
    assert "cannot be reached" in str(await failure_of(absent.describe(), AgentOffline))


async def test_a_server_that_goes_away_interrupts_its_calls_and_is_found_again(
    servers: Servers, tmp_path: Path
) -> None:
    async with serving_sse() as uri:
        server, heard = servers.at(uri), Heard()
        call = asyncio.ensure_future(server(call_of("wait", note=str(tmp_path / "note"), stream=True), heard))
        await heard.something.wait()
    await failure_of(call, UpstreamInterrupted)
    await failure_of(server(call_of("add", a=1), ignore_event), AgentOffline)


async def test_an_error_of_its_tool_is_the_answer(servers: Servers) -> None:
    server = await servers.real()
    assert "too wet" in str(await failure_of(server(call_of("fail", reason="too wet"), ignore_event), UpstreamRefused))


class Replies:
    """What a transport hands over."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[Any] = asyncio.Queue()
        self.failures: list[Any] = []

    async def receive(self, message: Any, request: RpcRequest | None) -> None:
        self.received.put_nowait(message.id)

    def fail(self, request: RpcRequest, error: Any) -> None:
        self.failures.append(error)


async def test_a_server_may_hold_the_post_of_a_request_for_as_long_as_it_works() -> None:
    """Other messages have a time of their own, and are posted though the server holds as many requests as there are."""
    held = asyncio.Event()
    notified: asyncio.Queue[bytes] = asyncio.Queue()
    streams: list[asyncio.StreamWriter] = []
    closed_early: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nevent: endpoint\ndata: /m\n\n")
            streams.append(writer)
            await reader.read()
        else:
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(length)
            if b'"id"' not in body:
                notified.put_nowait(body)
                closed_early.append(await reader.read())  # never answered: the client gives up
            else:
                await held.wait()
                writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    target = McpHttpTarget(
        uri=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/sse", headers={}, reply_bytes=9999
    )
    http, replies = OutboundClient(), Replies()
    transport = McpSseTransport(target, http, post_timeout=0.05)
    async with asyncio.timeout(WAIT_TIMEOUT), server, transport.open(replies, lambda: None):
        requests = [RpcRequest(number, "tools/call", None, None) for number in range(40)]
        bodies = [b'{"jsonrpc":"2.0","id":%d,"method":"tools/call"}' % number for number in range(40)]
        posts = [transport.start("tools/call", body, {}, each) for body, each in zip(bodies, requests, strict=True)]
        note = transport.start("notifications/cancelled", b'{"jsonrpc":"2.0","method":"notifications/cancelled"}', {})
        assert b"cancelled" in await notified.get()
        await note
        assert not any(post.done() for post in posts)
        streams[0].write(b'data: {"jsonrpc":"2.0","id":7,"result":{}}\n\n')
        assert await replies.received.get() == 7
        held.set()
        await asyncio.gather(*posts)
        assert replies.failures == []
    await http.aclose()
