"""The agent-client runtime against programs that die, hang, flood or do not listen. No process is left behind."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from a2a_fabric.core.call import Call, ignore_event
from a2a_fabric.core.errors import (
    AgentOffline,
    FabricError,
    NotReached,
    PayloadTooLarge,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.ports import Runtime
from a2a_fabric.runtimes.agent_client.runtime import build
from tests.fixtures.agents.calling import HERE, Heard, call_of, context_at, is_alive, manifest_of, until

PROGRAM = [sys.executable, "-I", "-S", str(HERE / "agent_client_raw.py")]
WAIT_TIMEOUT = 30.0

Start = Callable[..., Runtime]
E = TypeVar("E", bound=Exception)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Closed after the test."""
    built: list[Runtime] = []

    def build_one(
        *options: str, command: list[str] | None = None, reply_bytes: int = 10**7, **endpoint: Any
    ) -> Runtime:
        context = msgspec.structs.replace(context_at(tmp_path), reply_bytes=reply_bytes)
        runtime = build(manifest_of(command=command or [*PROGRAM, *options], **endpoint), context)
        built.append(runtime)
        return runtime

    yield build_one
    for runtime in built:
        await runtime.aclose()


def call(task: str, conversation: str | None = None, *, stream: bool = False) -> Call:
    said = msgspec.UNSET if conversation is None else conversation
    return msgspec.structs.replace(call_of("ask", task, stream=stream), conversation_id=said)


async def asked(runtime: Runtime, task: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((await runtime(call(task), ignore_event)).data["answer"])
    return told


async def begun(runtime: Runtime, task: str) -> tuple[asyncio.Future[Any], Heard]:
    """A call whose agent has said something."""
    heard = Heard()
    asking = asyncio.ensure_future(runtime(call(task, stream=True), heard))
    await asyncio.wait_for(heard.something.wait(), WAIT_TIMEOUT)
    return asking, heard


def pids(heard: Heard) -> dict[str, int]:
    told: dict[str, int] = json.loads(heard.events[0].data["text"])
    return told


async def cancelled(work: asyncio.Future[Any]) -> None:
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(work, WAIT_TIMEOUT)


async def failure_of(work: Awaitable[Any], kind: type[E]) -> E:
    with pytest.raises(kind) as caught:
        async with asyncio.timeout(WAIT_TIMEOUT):
            await work
    assert type(caught.value) is kind
    return caught.value


class TestCancelling:
    async def test_an_agent_that_goes_on_all_the_same_is_ended_and_started_anew(self, start: Start) -> None:
        runtime = start(cancel_timeout=0.05, backoff=30)
        asking, heard = await begun(runtime, "deaf")
        await cancelled(asking)
        await until(lambda: not is_alive(pids(heard)["pid"]), WAIT_TIMEOUT)
        assert (await runtime(call("say hello"), ignore_event)).data == {"answer": "hello"}

    async def test_but_not_before_the_others_are_done_with_it(self, start: Start, tmp_path: Path) -> None:
        runtime = start(cancel_timeout=0.05)
        other, _ = await begun(runtime, f"sleep {tmp_path / 'note'}")
        asking, heard = await begun(runtime, "deaf")
        await cancelled(asking)
        old = pids(heard)["pid"]
        async with asyncio.timeout(WAIT_TIMEOUT):
            while (await asked(runtime, "look"))["pid"] == old:
                pass
        assert is_alive(old)
        assert not other.done()
        await cancelled(other)
        await until(lambda: not is_alive(old), WAIT_TIMEOUT)

    async def test_a_caller_who_leaves_during_the_start_leaves_the_start_alone(self, start: Start) -> None:
        runtime = start(command=["sh", "-c", 'sleep 0.2; exec "$@"', "-", *PROGRAM])
        first = asyncio.ensure_future(runtime(call("say hello"), ignore_event))
        await asyncio.sleep(0)
        await cancelled(first)
        assert await asked(runtime, "look") == {"pid": (await asked(runtime, "look"))["pid"], "sessions": 1}


class TestInvalidOutputAndFloods:
    async def test_invalid_lines_between_the_messages_are_skipped(
        self, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert (await start()(call("rubbish"), ignore_event)).data == {"answer": "fine"}
        assert "Loading model..." in caplog.text

    async def test_numbers_that_are_slow_to_read_fail_their_turn_only(self, start: Start) -> None:
        runtime = start()
        with pytest.raises(FabricError, match="slow to read"):
            await asyncio.wait_for(runtime(call("numbers"), ignore_event), WAIT_TIMEOUT)
        assert (await runtime(call("say hello"), ignore_event)).data == {"answer": "hello"}

    async def test_more_words_than_a_reply_may_have_end_the_turn(self, start: Start) -> None:
        runtime = start(reply_bytes=100_000)
        refused = await failure_of(runtime(call("flood 10000"), ignore_event), UpstreamRefused)
        assert "longer than 100000 bytes" in refused.full_message
        assert (await runtime(call("say hello"), ignore_event)).data == {"answer": "hello"}

    async def test_a_reader_who_does_not_read_ends_his_own_turn_only(self, start: Start) -> None:
        runtime, begun, stuck = start(reply_bytes=10**8), asyncio.Event(), asyncio.Event()

        async def emit(event: object) -> None:
            begun.set()
            await stuck.wait()

        slow = asyncio.ensure_future(runtime(call("flood 200000", stream=True), emit))
        await asyncio.wait_for(begun.wait(), WAIT_TIMEOUT)
        assert (await runtime(call("say hello"), ignore_event)).data == {"answer": "hello"}
        stuck.set()
        assert "slow reader" in (await failure_of(slow, UpstreamInterrupted)).full_message

    async def test_a_line_without_end_is_cut_and_ends_the_program(self, start: Start) -> None:
        cut = await failure_of(start(line_bytes=100_000)(call("long 200000"), ignore_event), UpstreamInterrupted)
        assert "longer than 100000 bytes" in cut.full_message

    async def test_a_prompt_longer_than_a_line_is_refused_before_it_is_sent(self, start: Start) -> None:
        runtime = start(line_bytes=100_000)
        await failure_of(runtime(call("say " + "x" * 200_000), ignore_event), PayloadTooLarge)
        assert (await runtime(call("say hello"), ignore_event)).data == {"answer": "hello"}


class TestDeathAndRestart:
    async def test_a_death_fails_the_turns_under_way_with_the_programs_last_words(
        self, start: Start, tmp_path: Path
    ) -> None:
        runtime = start(backoff=30)
        other, _ = await begun(runtime, f"sleep {tmp_path / 'note'}")
        died = await failure_of(runtime(call("die"), ignore_event), UpstreamInterrupted)
        assert died.full_message.endswith("exited with code 3: out of cheese")
        assert (await failure_of(other, UpstreamInterrupted)).full_message == died.full_message
        offline = await failure_of(runtime(call("say hello"), ignore_event), AgentOffline)
        assert "started again in" in offline.full_message
        assert offline.details["retry_after"] > 0
        await failure_of(runtime.health(), AgentOffline)

    async def test_a_conversation_that_the_agent_does_not_keep_begins_again_and_says_so(self, start: Start) -> None:
        runtime = start(backoff=0)
        await runtime(call("say hello", "a"), ignore_event)
        await failure_of(runtime(call("die"), ignore_event), UpstreamInterrupted)
        result = await runtime(call("say hello", "a"), ignore_event)
        assert result.data == {"answer": "hello"}
        assert "has lost this conversation" in result.notes[0]

    async def test_a_program_that_dies_too_often_is_given_up(self, start: Start) -> None:
        runtime = start(command=["false"], backoff=0, max_restarts=1)
        for _ in range(2):
            await failure_of(runtime(call("x"), ignore_event), AgentOffline)
        assert "not started again" in (await failure_of(runtime(call("x"), ignore_event), AgentOffline)).full_message

    async def test_a_program_that_only_speaks_on_stderr_is_named_with_its_words(self, start: Start) -> None:
        dying = start(command=["sh", "-c", "echo no licence >&2; exit 4"])
        assert (
            "exited with code 4: no licence"
            in (await failure_of(dying(call("x"), ignore_event), AgentOffline)).full_message
        )
        silent = start(command=["sh", "-c", "echo still loading >&2; exec sleep 600"], start_timeout=1.5)
        late = await failure_of(silent(call("x"), ignore_event), AgentOffline)
        assert "still loading" in late.full_message
        assert "within 1.5 s" in late.full_message

    async def test_one_that_speaks_something_else_is_told_so(self, start: Start) -> None:
        other = start(command=["sh", "-c", 'read x; echo \'{"id": 1, "result": {}}\'; exec sleep 600'])
        assert (
            "sent a handshake that the protocol does not allow"
            in (await failure_of(other(call("x"), ignore_event), AgentOffline)).full_message
        )
        refusing = 'read x; echo \'{"id": 1, "error": {"code": -32603, "message": "no"}}\'; exec sleep 600'
        refused = start(command=["sh", "-c", refusing])
        assert (
            "refused the login: no" in (await failure_of(refused(call("x"), ignore_event), AgentOffline)).full_message
        )
        assert "version 7" in (await failure_of(start("--newer")(call("x"), ignore_event), AgentOffline)).full_message

    async def test_an_agent_that_is_still_starting_is_not_waited_for_to_the_end(self, start: Start) -> None:
        runtime, hurried = start(command=["sleep", "600"]), call("x")
        hurried = msgspec.structs.replace(hurried, target=msgspec.structs.replace(hurried.target, timeout_ms=250))
        assert "still starting" in (await failure_of(runtime(hurried, ignore_event), NotReached)).full_message

    async def test_a_program_that_is_not_there_is_named(self, start: Start) -> None:
        runtime = start(command=["./no-such-agent"])
        assert "./no-such-agent" in (await failure_of(runtime(call("x"), ignore_event), AgentOffline)).full_message
        await failure_of(start(command=["./no-such-agent"]).health(), AgentOffline)


class TestNoProcessIsLeftBehind:
    async def test_closing_ends_it_and_its_children_though_they_ignore_sigterm(self, start: Start) -> None:
        runtime = start("--deaf", grace=0.1)
        asking, heard = await begun(runtime, "children")
        found = pids(heard)
        assert is_alive(found["child"])
        await runtime.aclose()
        await runtime.aclose()
        await until(lambda: not is_alive(found["child"]) and not is_alive(found["pid"]), WAIT_TIMEOUT)
        assert "was stopped" in (await failure_of(asking, UpstreamInterrupted)).full_message
        await failure_of(runtime(call("say hello"), ignore_event), AgentOffline)

    async def test_no_task_is_left_when_it_is_closed(self, start: Start, tmp_path: Path) -> None:
        before = asyncio.all_tasks()
        runtime = start()
        deaf, _ = await begun(runtime, "deaf")
        asking, _ = await begun(runtime, f"sleep {tmp_path / 'note'}")
        await cancelled(asking)
        await cancelled(deaf)
        await runtime.aclose()
        assert asyncio.all_tasks() <= before
