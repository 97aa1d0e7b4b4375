"""The MCP runtime against servers made with the official SDK: both eras, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.core.call import ignore_event
from a2a_fabric.core.errors import BadInput, CallTimeout, CapabilityNotFound, UpstreamRefused
from a2a_fabric.core.propagation import format_traceparent
from a2a_fabric.core.result import Event, Part
from a2a_fabric.core.tasks import Deadline
from a2a_fabric.runtimes.mcp.runtime import McpRuntime
from tests.fixtures.agents.calling import Heard, call_of, until
from tests.fixtures.mcp_servers.serving import serving
from tests.marks import requirement
from tests.runtimes.mcp_bench import Bench, failure_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

KINDS = ["stdio-stateless", "stdio-handshake", "http-stateless", "http-handshake"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(stack, tmp_path_factory.mktemp("bench"))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=KINDS)
async def server(bench: Bench, request: pytest.FixtureRequest) -> McpRuntime:
    """Shared by all tests here, as one session is shared by all calls."""
    return await bench.server(request.param)


@requirement("001-13", "001-18")
async def test_tools_are_capabilities_and_the_server_says_who_it_is(server: McpRuntime) -> None:
    manifest = await server.describe()
    assert (manifest.display_name, manifest.description, manifest.version) == (
        "Everyday things",
        "Tools for tests.",
        "4.2",
    )
    add = manifest.find_capability("add")
    assert add is not None
    assert add.description == "Add two numbers."
    assert add.input_schema is not None
    assert set(add.input_schema["properties"]) == {"a", "b"}
    assert add.output_schema is not None
    assert (add.streaming, add.idempotent, add.side_effects) == (True, True, "reads")
    say = manifest.find_capability("say")
    assert say is not None
    assert (say.idempotent, say.side_effects, say.output_schema) == (False, "writes", None)
    assert await server.health() == "online"


@requirement("001-13")
async def test_a_call_is_a_tool_call_and_structured_content_is_the_result(server: McpRuntime) -> None:
    result = await server(call_of("add", a=2, b=3), ignore_event)
    assert result.data == {"sum": 5}
    assert result.parts == ()


async def test_a_task_fills_the_only_missing_text(server: McpRuntime) -> None:
    await server.describe()
    assert (await server(call_of("say", "hello"), ignore_event)).data == {"answer": "HELLO"}


async def test_content_of_every_kind_survives(server: McpRuntime) -> None:
    result = await server(call_of("show"), ignore_event)
    assert result.data == {"answer": "look:"}
    assert result.parts == (
        Part(kind="text", text="look:"),
        Part(kind="image", blob="aW1hZ2U=", mime_type="image/png"),
        Part(kind="audio", blob="YXVkaW8=", mime_type="audio/wav"),
        Part(kind="file", text="notes", mime_type="text/plain", name="a.txt", meta={"uri": "file:///notes/a.txt"}),
        Part(kind="file", blob="YmxvYg==", name="b.bin", meta={"uri": "file:///b.bin"}),
        Part(kind="file", url="https://example.org/page", mime_type="text/html", name="page", meta={"title": "A page"}),
    )


@requirement("001-13", "001-21")
async def test_progress_and_log_messages_arrive_in_order_before_the_result(server: McpRuntime) -> None:
    heard = Heard()
    result = await server(call_of("count", to=3, stream=True), heard)
    assert result.data == {"answer": "done"}
    shares = [event.data["percent"] for event in heard.events[:3]]
    assert shares == [pytest.approx(100 / 3), pytest.approx(200 / 3), 100]
    assert heard.events[0].data["message"] == "1 of 3"
    assert heard.events[3] == Event("status", {"status": "running", "message": "counted", "level": "info"})


async def test_a_tools_own_failure_is_a_refusal_in_its_words(server: McpRuntime) -> None:
    failed = await failure_of(server(call_of("fail", reason="no cheese"), ignore_event), UpstreamRefused)
    assert "no cheese" in failed.full_message
    wrong = await failure_of(server(call_of("refuse", reason="a bad size"), ignore_event), BadInput)
    assert wrong.full_message == "a bad size"


async def test_a_tool_that_is_not_there_is_a_capability_that_is_not_there(server: McpRuntime) -> None:
    await server.describe()
    missing = await failure_of(server(call_of("dance"), ignore_event), CapabilityNotFound)
    assert "add" in missing.full_message


async def test_the_trace_travels_to_the_server(bench: Bench) -> None:
    for kind in KINDS:
        server = await bench.server(kind, **({"headers": {"X-Key": "k1"}} if "http" in kind else {}))
        call = call_of("headers")
        result = await server(call, ignore_event)
        assert result.data["traceparent"] == format_traceparent(call.trace)
        if "http" in kind:
            assert (result.data["header"], result.data["key"]) == (format_traceparent(call.trace), "k1")


@pytest.mark.parametrize("stream", [True, False])
async def test_cancelling_a_call_cancels_the_tool_and_leaves_the_session_usable(
    server: McpRuntime, tmp_path: Path, stream: bool
) -> None:
    note = tmp_path / "note"
    await server.describe()
    call = call_of("wait", note=str(note), stream=stream)
    with pytest.raises(CallTimeout), Deadline(0.6):
        await server(call, ignore_event)
    await until(note.exists)
    assert (await server(call_of("add", a=1), ignore_event)).data == {"sum": 2}


async def test_many_calls_share_one_session(bench: Bench) -> None:
    stdio = await bench.server("stdio-stateless")
    results = await asyncio.gather(*(stdio(call_of("who"), ignore_event) for _ in range(30)))
    assert len({result.data["answer"] for result in results}) == 1
    async with serving("handshake") as server:
        http = bench.runtime(uri=server.url)
        await asyncio.gather(*(http(call_of("add", a=n), ignore_event) for n in range(30)))
        assert len(server.gate.sessions) == 1
        assert server.gate.methods.count("initialize") == 1
        assert server.gate.methods.count("tools/call") == 30
        await http.aclose()


async def test_the_era_is_found_out_once(bench: Bench) -> None:
    async with serving("stateless") as server:
        http = bench.runtime(uri=server.url)
        for number in range(5):
            assert (await http(call_of("add", a=number), ignore_event)).data == {"sum": number + 1}
        assert server.gate.methods.count("server/discover") == 1
        assert "initialize" not in server.gate.methods
        assert not server.gate.sessions
        await http.aclose()


async def test_a_change_of_the_tools_is_told_and_described(server: McpRuntime, bench: Bench) -> None:
    while not bench.changes.empty():
        bench.changes.get_nowait()
    before = await server.describe()
    assert before.find_capability("novelty") is None
    assert (await server(call_of("grow", name="novelty", stream=True), ignore_event)).data == {"answer": "grown"}
    assert await asyncio.wait_for(bench.changes.get(), 30) == "tested"
    assert (await server.describe()).find_capability("novelty") is not None
    assert (await server(call_of("novelty"), ignore_event)).data == {"answer": "new here"}


@pytest.mark.parametrize(
    ("endpoint", "complaint"),
    [
        ({}, "either a `command` or a `uri`"),
        ({"command": ["x"], "uri": "http://127.0.0.1:1"}, "either a `command` or a `uri`"),
        ({"transport": "stdio", "uri": "http://127.0.0.1:1"}, "transport stdio needs a `command`"),
        ({"transport": "http", "command": ["x"]}, "transport http needs a `uri`"),
        ({"command": "'unclosed"}, "command"),
        ({"command": []}, "cannot be run"),
        ({"command": ["x"], "colour": "blue"}, "colour"),
        ({"uri": "ftp://127.0.0.1"}, "uri"),
    ],
)
async def test_a_bad_endpoint_is_refused_with_the_reason(bench: Bench, endpoint: Any, complaint: str) -> None:
    with pytest.raises(BadInput) as caught:
        bench.runtime(**endpoint)
    assert complaint in caught.value.full_message
    assert "tested" in caught.value.full_message
