"""MCP servers that are dead, slow, rude or changing: survived, told in words, and back by themselves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Call, ignore_event
from a2a_fabric.core.errors import AgentOffline, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.result import Result
from a2a_fabric.runtimes.mcp.runtime import McpRuntime
from a2a_fabric.web.server import bind_socket
from tests.fixtures.agents.calling import call_of, is_alive, until
from tests.fixtures.mcp_servers.serving import EVERYDAY, odd, serving
from tests.fixtures.node import tasks_are_down_to
from tests.runtimes.mcp_bench import Bench, failure_of

PONG = {"answer": "pong"}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(stack, tmp_path)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


async def as_soon_as_it_is_back(runtime: McpRuntime, call: Call) -> Result:
    async with asyncio.timeout(30):
        while True:
            try:
                return await runtime(call, ignore_event)
            except AgentOffline:
                await asyncio.sleep(0.02)


def starts(notes: Path) -> int:
    return notes.read_text().count("start") if notes.exists() else 0  # on a busy machine it may not have come so far


def family(notes: Path) -> list[int]:
    leader = int(notes.read_text().partition("pid ")[2].split()[0])
    return [leader, *map(int, Path(f"/proc/{leader}/task/{leader}/children").read_text().split())]


class TestPrograms:
    async def test_a_program_that_is_not_there_is_offline_by_name(self, bench: Bench) -> None:
        runtime = bench.runtime(command=["no-such-program", "--stdio"])
        failed = await failure_of(runtime(call_of("ping"), ignore_event), AgentOffline)
        assert "no-such-program" in failed.full_message

    async def test_a_crashing_program_is_offline_with_its_last_words_and_then_fails_fast(
        self, bench: Bench, notes: Path
    ) -> None:
        runtime = bench.runtime(command=odd("crashing", str(notes)), backoff=60)
        failed = await failure_of(runtime(call_of("ping"), ignore_event), AgentOffline)
        assert "exited with code 3" in failed.full_message
        assert "cannot find my model" in failed.full_message
        before = starts(notes)
        again = await failure_of(runtime(call_of("ping"), ignore_event), AgentOffline)
        assert "next try in" in again.full_message
        await failure_of(runtime.health(), AgentOffline)
        assert starts(notes) == before

    async def test_it_comes_back_by_itself(self, bench: Bench, notes: Path) -> None:
        runtime = bench.runtime(command=odd("recovering", str(notes)), backoff=0.05, era="handshake")
        await failure_of(runtime(call_of("ping"), ignore_event), AgentOffline)

        assert (await as_soon_as_it_is_back(runtime, call_of("ping"))).data == PONG

    async def test_a_death_in_the_midst_of_a_call_interrupts_it_and_the_next_start_is_announced(
        self, bench: Bench
    ) -> None:
        runtime = bench.runtime(command=EVERYDAY, backoff=0.05)
        before = (await runtime(call_of("who"), ignore_event)).data
        failed = await failure_of(runtime(call_of("die", code=7), ignore_event), UpstreamInterrupted)
        assert "exited with code 7: no more" in failed.full_message
        assert (await as_soon_as_it_is_back(runtime, call_of("who"))).data != before
        assert await asyncio.wait_for(bench.changes.get(), 30) == "tested"

    async def test_a_server_that_never_answers_is_offline_as_soon_as_most_of_the_calls_time_is_gone(
        self, bench: Bench, notes: Path
    ) -> None:
        runtime = bench.runtime(command=odd("mute", str(notes)), start_timeout=1.5, backoff=60)
        call = call_of("ping")
        call = msgspec.structs.replace(call, target=msgspec.structs.replace(call.target, timeout_ms=300))
        failed = await failure_of(runtime(call, ignore_event), AgentOffline)
        assert "still starting" in failed.full_message
        failed = await failure_of(runtime(call_of("ping"), ignore_event), AgentOffline)
        assert "did not answer within 1.5 s" in failed.full_message
        before = starts(notes)
        assert "next try in" in (await failure_of(runtime(call_of("ping"), ignore_event), AgentOffline)).full_message
        assert starts(notes) == before

    async def test_invalid_lines_on_stdout_are_skipped_and_logged_once_in_a_while(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        runtime = bench.runtime(command=odd("rubbish"))
        with caplog.at_level(logging.WARNING):
            assert (await runtime(call_of("ping"), ignore_event)).data == PONG
        assert "not an MCP message on stdout" in caplog.text

    async def test_numbers_that_are_slow_to_read_are_counted_over_all_blocks(self, bench: Bench) -> None:
        """Each text alone would be decoded; hundreds of them would stop the node for seconds."""
        runtime = bench.runtime(command=odd("numbers"))
        refused = await failure_of(runtime(call_of("ping"), ignore_event), UpstreamRefused)
        assert "slow to read" in refused.full_message

    async def test_a_very_long_line_is_taken_up_to_the_limit_and_ends_the_program_beyond_it(self, bench: Bench) -> None:
        generous = bench.runtime(command=odd("long-line"))
        assert len((await generous(call_of("ping"), ignore_event)).data["answer"]) == 10_000_000
        strict = bench.runtime(command=odd("long-line"), line_bytes=1_000_000)
        failed = await failure_of(strict(call_of("ping"), ignore_event), UpstreamInterrupted)
        assert "longer than 1000000 bytes" in failed.full_message

    async def test_tools_that_change_in_the_midst_of_a_call_do_not_disturb_it(self, bench: Bench) -> None:
        runtime = bench.runtime(command=odd("changing"))
        assert (await runtime.describe()).find_capability("ping") is not None
        assert (await runtime(call_of("ping"), ignore_event)).data == PONG
        assert await asyncio.wait_for(bench.changes.get(), 30) == "tested"
        assert [each.name for each in (await runtime.describe()).capabilities] == ["pong"]

    @pytest.mark.parametrize("kind", ["old", "touchy", "silent"])
    async def test_old_servers_that_do_not_know_the_stateless_era_are_asked_in_their_own(
        self, bench: Bench, kind: str
    ) -> None:
        """One answers with an error, one dies of the question, one ignores it."""
        runtime = bench.runtime(command=odd(kind))
        assert (await runtime(call_of("ping"), ignore_event)).data == PONG
        assert await runtime.health() == "online"

    async def test_a_server_that_has_no_ping_is_online_because_it_has_answered(self, bench: Bench) -> None:
        runtime = bench.runtime(command=odd("unpingable"))
        assert (await runtime(call_of("ping"), ignore_event)).data == PONG
        assert await runtime.health() == "online"

    async def test_no_process_is_left_behind(self, bench: Bench, notes: Path) -> None:
        runtime = bench.runtime(command=odd("family", str(notes)), grace=0.1)
        await runtime(call_of("ping"), ignore_event)
        members = family(notes)
        assert len(members) == 2
        await runtime.aclose()
        await until(lambda: not any(is_alive(pid) for pid in members))
        await failure_of(runtime(call_of("ping"), ignore_event), AgentOffline)


class TestAddresses:
    async def test_no_server_listens(self, bench: Bench) -> None:
        with bind_socket("127.0.0.1", 0, exact_port=True) as listener:
            port = listener.getsockname()[1]
        runtime = bench.runtime(uri=f"http://127.0.0.1:{port}/mcp")
        failed = await failure_of(runtime(call_of("add", a=1), ignore_event), AgentOffline)
        assert "cannot be reached" in failed.full_message
        await failure_of(runtime.health(), AgentOffline)

    async def test_a_server_that_accepts_and_says_nothing(self, bench: Bench) -> None:
        with bind_socket("127.0.0.1", 0, exact_port=True) as listener:
            runtime = bench.runtime(uri=f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", start_timeout=0.3)
            failed = await failure_of(runtime(call_of("add", a=1), ignore_event), AgentOffline)
            assert "did not answer within 0.3 s" in failed.full_message

    async def test_a_stateless_server_that_is_slow_to_say_so_is_not_taken_for_an_old_one(self, bench: Bench) -> None:
        async with serving("stateless") as server:
            server.gate.held = asyncio.Event()
            runtime = bench.runtime(uri=server.url)
            calling = asyncio.ensure_future(runtime(call_of("add", a=1), ignore_event))
            await until(lambda: "initialize" in server.gate.methods)  # we are tired of waiting, and ask as of old
            server.gate.held.set()
            assert (await asyncio.wait_for(calling, 30)).data == {"sum": 2}

    @pytest.mark.parametrize("era", ["handshake", "stateless"])
    async def test_a_server_that_was_restarted_is_back_with_the_next_call(self, bench: Bench, era: str) -> None:
        async with serving(era) as server:  # type: ignore[arg-type]  # one of two
            runtime = bench.runtime(uri=server.url)
            assert (await runtime(call_of("add", a=1), ignore_event)).data == {"sum": 2}
        await failure_of(runtime(call_of("add", a=1), ignore_event), AgentOffline)
        async with serving(era, port=server.port):  # type: ignore[arg-type]  # one of two
            assert (await runtime(call_of("add", a=2), ignore_event)).data == {"sum": 3}
            assert await runtime.health() == "online"
            await runtime.aclose()

    async def test_an_upgraded_server_is_asked_in_its_new_era(self, bench: Bench) -> None:
        async with serving("handshake") as server:
            runtime = bench.runtime(uri=server.url)
            assert (await runtime(call_of("add", a=1), ignore_event)).data == {"sum": 2}
        async with serving("both", port=server.port):
            assert (await runtime(call_of("add", a=2), ignore_event)).data == {"sum": 3}
            await runtime.aclose()

    @pytest.mark.parametrize("era", ["handshake", "stateless"])
    async def test_a_bad_status_fails_that_call_alone(self, bench: Bench, era: str) -> None:
        async with serving(era) as server:  # type: ignore[arg-type]  # one of two
            runtime = bench.runtime(uri=server.url)
            await runtime.describe()
            for status, kind in ((503, AgentOffline), (502, UpstreamInterrupted), (401, UpstreamRefused)):
                server.gate.broken = status
                failed = await failure_of(runtime(call_of("add", a=1), ignore_event), kind)
                assert str(status) in failed.full_message
            server.gate.broken = None
            assert (await runtime(call_of("add", a=1), ignore_event)).data == {"sum": 2}
            assert server.gate.methods.count("initialize") <= 1
            await runtime.aclose()

    @pytest.mark.parametrize("era", ["handshake", "stateless"])
    @pytest.mark.parametrize("stream", [True, False])
    async def test_a_reply_beyond_the_limit_is_refused(
        self, bench: Bench, tmp_path: Path, era: str, stream: bool
    ) -> None:
        async with serving(era, json_response=era == "handshake") as server:  # type: ignore[arg-type]  # one of two
            runtime = bench.runtime(uri=server.url)
            assert len((await runtime(call_of("big", size=3_000_000), ignore_event)).data["answer"]) == 3_000_000
            await failure_of(runtime(call_of("big", size=20_000_000, stream=stream), ignore_event), UpstreamRefused)
            assert (await runtime(call_of("add", a=1), ignore_event)).data == {"sum": 2}
            await runtime.aclose()

    async def test_a_page_that_is_no_mcp_server_at_all(self, bench: Bench) -> None:
        async with serving() as server:
            runtime = bench.runtime(uri=server.url.replace("/mcp", "/elsewhere"))
            failed = await failure_of(runtime(call_of("add", a=1), ignore_event), AgentOffline)
            assert "404" in failed.full_message
            await runtime.aclose()


@pytest.mark.parametrize("kind", ["stdio-handshake", "http-stateless", "http-handshake"])
async def test_closing_leaves_no_task_behind(bench: Bench, kind: str) -> None:
    await (await bench.server(kind)).aclose()  # what the server itself needs is there now
    runtime = await bench.server(kind)
    before = len(asyncio.all_tasks())
    await asyncio.gather(*(runtime(call_of("add", a=number), ignore_event) for number in range(20)))
    await runtime.aclose()
    await runtime.aclose()
    await tasks_are_down_to(before + 1)  # an idle connection, at the server's side


async def test_a_declaration_without_a_schema_gets_the_servers(bench: Bench) -> None:
    runtime = bench.runtime(Capability(name="add"), command=EVERYDAY)
    call = call_of("add", a=2, b=2)
    routed = msgspec.structs.replace(
        call.input, arguments={"task": call.input.task, "context": call.input.context}
    )  # as routing fills it in while the catalog has no schema
    result = await runtime(msgspec.structs.replace(call, input=routed), ignore_event)
    assert result.data == {"sum": 4}
