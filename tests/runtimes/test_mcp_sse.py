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
