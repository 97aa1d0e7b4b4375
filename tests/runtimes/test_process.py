"""The process runtime against real programs: JSON lines and one process a call."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import ignore_event
from a2a_fabric.core.errors import (
    AgentBusy,
    AgentOffline,
    BadInput,
    CapabilityNotFound,
    PayloadTooLarge,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.ports import Runtime
from a2a_fabric.core.result import Event
from a2a_fabric.runtimes.process.runtime import build
from a2a_fabric.runtimes.programs import RestartPolicy
from tests.fixtures.agents.calling import HERE, Heard, call_of, context_at, is_alive, manifest_of, until
from tests.fixtures.programs import WAIT_TIMEOUT, processes_with, stand_still_until
from tests.marks import requirement

PROGRAM = [sys.executable, str(HERE / "jsonl_program.py")]
EVERYDAY = [sys.executable, str(HERE / "everyday.py"), "--stdio"]
DEAF = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('{"id": 1, "event": "status", "data": {"pid": %d}}' % os.getpid(), flush=True)
time.sleep(600)
"""

Start = Callable[..., Runtime]
E = TypeVar("E", bound=Exception)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Build a process runtime; it is closed after the test."""
    built: list[Runtime] = []

    def build_one(command: list[str] | str, *capabilities: Capability, **endpoint: Any) -> Runtime:
        runtime = build(manifest_of(*capabilities, command=command, **endpoint), context_at(tmp_path))
        built.append(runtime)
        return runtime

    yield build_one
    for runtime in built:
        await runtime.aclose()


def script(tmp_path: Path, text: str) -> list[str]:
    program = tmp_path / "program.py"
    program.write_text(text)
    return [sys.executable, str(program)]


async def failure_of(work: Awaitable[Any], kind: type[E]) -> E:
    with pytest.raises(kind) as caught:
        await asyncio.wait_for(work, WAIT_TIMEOUT)
    return caught.value


class TestJsonLines:
    @requirement("001-16")
    async def test_a_python_agent_on_stdio_answers_calls_whatever_it_prints(self, start: Start) -> None:
        runtime = start(EVERYDAY)
        await runtime.describe()
        result = await runtime(call_of("add", a=2, b=3), ignore_event)
        assert result.data == {"sum": 5}

    @requirement("001-16", "001-21")
    async def test_an_agent_streams_tokens_reports_progress_and_ends_with_the_result(self, start: Start) -> None:
        runtime, heard = start(EVERYDAY), Heard()
        result = await runtime(call_of("plan", "one two", stream=True), heard)
        assert heard.events == [
            Event("token", {"text": "one"}),
            Event("token", {"text": "two"}),
            Event("progress", {"percent": 50.0, "message": "half way"}),
        ]
        assert result.data == {"answer": "ONE TWO"}

    async def test_an_agents_failure_comes_back_typed_and_without_a_traceback(self, start: Start) -> None:
        runtime = start(EVERYDAY)
        failed = await failure_of(runtime(call_of("fail", "cheese"), ignore_event), UpstreamFailed)
        assert failed.full_message == "KeyError: 'cheese'"
        unknown = await failure_of(runtime(call_of("dance"), ignore_event), CapabilityNotFound)
        assert "dance" in unknown.full_message
        wrong = await failure_of(runtime(call_of("add", a="two"), ignore_event), BadInput)
        assert wrong.details["argument"] == "a"

    async def test_the_request_carries_the_envelope(self, start: Start) -> None:
        runtime = start(PROGRAM, Capability(name="Echo"), Capability(name="echo"))
        call = call_of("echo", "hello", stream=True, depth=2)
        request = (await runtime(call, ignore_event)).data["request"]
        assert request["name"] == "echo"
        assert request["arguments"] == {"task": "hello", "context": {"depth": 2}}
        assert request["trace"]["trace_id"] == call.trace.trace_id
        assert request["target"]["timeout_ms"] == 60_000
        assert request["auth"]["mode"] == "none"
        assert request["stream"] is True

    async def test_a_capability_with_a_schema_gets_its_arguments(self, start: Start) -> None:
        schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        runtime = start(PROGRAM, Capability(name="echo", input_schema=schema))
        request = (await runtime(call_of("echo", "hello", depth=2), ignore_event)).data["request"]
        assert request["arguments"] == {"text": "hello", "depth": 2}

    async def test_one_process_serves_many_calls_at_a_time(self, start: Start) -> None:
        runtime, silent = start(PROGRAM), Heard()
        waiting = asyncio.ensure_future(runtime(call_of("silence"), silent))
        await asyncio.wait_for(silent.something.wait(), 30)
        results = await asyncio.gather(*(runtime(call_of("echo", str(n)), ignore_event) for n in range(50)))
        assert len({result.data["pid"] for result in results}) == 1
        assert [result.data["request"]["arguments"]["task"] for result in results] == [str(n) for n in range(50)]
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])

    async def test_cancelling_a_call_tells_the_program_which_one(self, start: Start) -> None:
        runtime, silent = start(PROGRAM), Heard()
        waiting = asyncio.ensure_future(runtime(call_of("silence"), silent))
        await asyncio.wait_for(silent.something.wait(), 30)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await runtime(call_of("cancelled"), ignore_event)).data == {"ids": ["1"]}

    async def test_cancelling_a_call_ends_the_work_of_a_python_agent(self, start: Start, tmp_path: Path) -> None:
        runtime, heard, note = start(EVERYDAY), Heard(), tmp_path / "note"
        waiting = asyncio.ensure_future(runtime(call_of("wait", note=str(note), stream=True), heard))
        await asyncio.wait_for(heard.something.wait(), 30)
        waiting.cancel()
        await until(note.exists)
        assert (await runtime(call_of("add", a=1), ignore_event)).data == {"sum": 2}

    async def test_invalid_lines_on_stdout_are_skipped_and_logged(
        self, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        runtime, heard = start(PROGRAM), Heard()
        assert (await runtime(call_of("rubbish"), heard)).data == {"answer": "fine"}
        assert heard.events == [Event("token", {"text": "fine"})]
        assert "Loading model..." in caplog.text

    async def test_a_garbled_answer_fails_its_call_only(self, start: Start) -> None:
        runtime = start(PROGRAM)
        await failure_of(runtime(call_of("garbled"), ignore_event), UpstreamFailed)
        assert (await runtime(call_of("rubbish"), ignore_event)).data == {"answer": "fine"}

    async def test_numbers_that_are_slow_to_read_fail_their_call_only(self, start: Start) -> None:
        runtime = start(PROGRAM)
        failed = await failure_of(runtime(call_of("slow-numbers"), ignore_event), UpstreamFailed)
        assert "slow to read" in failed.full_message
        assert (await runtime(call_of("rubbish"), ignore_event)).data == {"answer": "fine"}

    async def test_errors_of_the_program_keep_their_code_and_details(self, start: Start) -> None:
        runtime = start(PROGRAM)
        refused = await failure_of(runtime(call_of("refuse"), ignore_event), BadInput)
        assert refused.details == {"argument": "x"}
        assert (
            await failure_of(runtime(call_of("refuse-in-words"), ignore_event), UpstreamRefused)
        ).full_message == "not today"

    async def test_a_line_without_end_stops_the_program(self, start: Start) -> None:
        runtime = start(PROGRAM, line_bytes=100_000, backoff=0)
        failed = await failure_of(runtime(call_of("long", size=100_001), ignore_event), UpstreamInterrupted)
        assert "longer than 100000 bytes" in failed.full_message
        assert (await runtime(call_of("rubbish"), ignore_event)).data == {"answer": "fine"}

    async def test_a_request_longer_than_a_line_may_be_is_refused(self, start: Start) -> None:
        runtime = start(PROGRAM, line_bytes=100_000)
        await failure_of(runtime(call_of("echo", "x" * 100_000), ignore_event), PayloadTooLarge)

    async def test_a_reader_that_never_reads_fails_its_own_stream_only(self, start: Start) -> None:
        runtime, reading, reached = start(PROGRAM), asyncio.Event(), asyncio.Event()

        async def stuck(event: Event) -> None:
            reached.set()
            await reading.wait()

        flooded = asyncio.ensure_future(runtime(call_of("flood"), stuck))
        await asyncio.wait_for(reached.wait(), 30)
        assert (await runtime(call_of("rubbish"), ignore_event)).data == {"answer": "fine"}
        reading.set()
        assert "slow reader" in (await failure_of(flooded, UpstreamInterrupted)).full_message

    async def test_calls_under_way_are_bounded(self, start: Start) -> None:
        runtime, silent = start(PROGRAM, max_pending=1), Heard()
        waiting = asyncio.ensure_future(runtime(call_of("silence"), silent))
        await asyncio.wait_for(silent.something.wait(), 30)
        assert "busy with 1 calls" in (await failure_of(runtime(call_of("echo"), ignore_event), AgentBusy)).full_message
        assert await runtime.health() == "online"
        waiting.cancel()
        await asyncio.wait([waiting])
        await runtime(call_of("echo"), ignore_event)

    async def test_a_program_that_idles_is_stopped_and_started_again_on_demand(self, start: Start) -> None:
        runtime = start(PROGRAM, idle_timeout=0.05)
        first = (await runtime(call_of("echo"), ignore_event)).data["pid"]
        await until(lambda: not is_alive(first))
        assert (await runtime(call_of("echo"), ignore_event)).data["pid"] != first

    async def test_nothing_is_started_before_the_first_call(self, start: Start, tmp_path: Path) -> None:
        mark = tmp_path / "started"
        runtime = start(script(tmp_path, f"open({str(mark)!r}, 'w')"))
        assert await runtime.health() == "online"
        assert not mark.exists()

    def test_it_works_on_the_loop_that_servers_use(self, tmp_path: Path) -> None:
        async def one_call() -> int:
            runtime = build(manifest_of(command=PROGRAM), context_at(tmp_path))
            try:
                return int((await runtime(call_of("grandchild"), ignore_event)).data["pid"])
            finally:
                await runtime.aclose()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            pid = runner.run(one_call())
            runner.run(until(lambda: not is_alive(pid)))


class TestDeathAndRestart:
    async def test_a_death_fails_the_calls_under_way_with_the_programs_last_words(self, start: Start) -> None:
        runtime, silent = start(PROGRAM), Heard()
        waiting = asyncio.ensure_future(runtime(call_of("silence"), silent))
        await asyncio.wait_for(silent.something.wait(), 30)
        died = await failure_of(runtime(call_of("die"), ignore_event), UpstreamInterrupted)
        assert died.full_message.endswith("exited with code 3: out of cheese")
        assert (await failure_of(waiting, UpstreamInterrupted)).full_message == died.full_message

    async def test_a_kill_is_told_as_such(self, start: Start) -> None:
        runtime, silent = start(PROGRAM), Heard()
        pid = (await runtime(call_of("echo"), ignore_event)).data["pid"]
        waiting = asyncio.ensure_future(runtime(call_of("silence"), silent))
        await asyncio.wait_for(silent.something.wait(), 30)
        os.kill(pid, signal.SIGKILL)
        assert "was killed by SIGKILL" in (await failure_of(waiting, UpstreamInterrupted)).full_message

    async def test_until_the_back_off_is_over_calls_fail_at_once_and_say_when_to_try_again(self, start: Start) -> None:
        runtime = start(PROGRAM, backoff=30)
        await failure_of(runtime(call_of("die"), ignore_event), UpstreamInterrupted)
        offline = await failure_of(asyncio.wait_for(runtime(call_of("echo"), ignore_event), 30), AgentOffline)
        assert "started again in" in offline.full_message
        assert 20 < offline.details["retry_after"] <= 30
        await failure_of(runtime.health(), AgentOffline)

    async def test_after_the_back_off_the_program_is_started_again(self, start: Start) -> None:
        runtime = start(PROGRAM, backoff=0.01)
        first = (await runtime(call_of("echo"), ignore_event)).data["pid"]
        await failure_of(runtime(call_of("die"), ignore_event), UpstreamInterrupted)
        async with asyncio.timeout(30):
            while True:
                try:
                    again = (await runtime(call_of("echo"), ignore_event)).data["pid"]
                    break
                except AgentOffline:
                    await asyncio.sleep(0.01)
        assert again != first

    async def test_the_back_off_doubles_with_each_death(self, start: Start) -> None:
        runtime, wait = start([*PROGRAM, "--die-at-once"], backoff=0.03), 0.0
        async with asyncio.timeout(WAIT_TIMEOUT):
            while wait <= 0.06:  # what is left of it when we come to look; on a busy machine that may be nothing
                try:
                    await failure_of(runtime(call_of("echo"), ignore_event), UpstreamInterrupted)
                except AgentOffline as offline:
                    wait = offline.details["retry_after"]
                    await asyncio.sleep(wait)
        restarts = RestartPolicy(first_delay=0.1, max_delay=0.5)
        assert [restarts.delay(deaths) for deaths in range(1, 6)] == [0.1, 0.2, 0.4, 0.5, 0.5]

    async def test_a_program_that_dies_too_often_is_given_up(self, start: Start) -> None:
        runtime = start([*PROGRAM, "--die-at-once"], backoff=0, max_restarts=1)
        for _ in range(2):
            await failure_of(runtime(call_of("echo"), ignore_event), UpstreamInterrupted)
        assert (
            "not started again" in (await failure_of(runtime(call_of("echo"), ignore_event), AgentOffline)).full_message
        )

    async def test_a_program_that_is_not_there_is_named(self, start: Start) -> None:
        for command in (["no-such-program"], ["./no/such/program"], [str(HERE)]):
            offline = await failure_of(start(command)(call_of("echo"), ignore_event), AgentOffline)
            assert repr(command[0]) in offline.full_message
            await failure_of(start(command).health(), AgentOffline)
        await failure_of(start(PROGRAM, cwd="no/such/folder")(call_of("echo"), ignore_event), AgentOffline)

    async def test_a_file_that_is_no_program_is_named(self, start: Start, tmp_path: Path) -> None:
        (tmp_path / "tool").write_bytes(b"\x00\x01\x02")
        (tmp_path / "tool").chmod(0o755)
        offline = await failure_of(start(["./tool"])(call_of("echo"), ignore_event), AgentOffline)
        assert "./tool" in offline.full_message

    async def test_what_the_program_says_on_stderr_is_logged(
        self, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "a2a_fabric")
        await start(PROGRAM)(call_of("echo"), ignore_event)
        await until(lambda: "tested: ready" in caplog.text)


class TestNoProcessIsLeftBehind:
    async def test_stopping_ends_the_program_and_the_grandchildren_that_ignore_sigterm(self, start: Start) -> None:
        runtime = start(PROGRAM)
        pids = (await runtime(call_of("grandchild"), ignore_event)).data
        assert is_alive(pids["pid"])
        await runtime.aclose()
        await until(lambda: not is_alive(pids["pid"]) and not is_alive(pids["parent"]))

    async def test_a_program_that_ignores_sigterm_and_its_stdin_is_killed_after_the_grace(
        self, start: Start, tmp_path: Path
    ) -> None:
        runtime, heard = start(script(tmp_path, DEAF), grace=0.1), Heard()
        waiting = asyncio.ensure_future(runtime(call_of("echo"), heard))
        await asyncio.wait_for(heard.something.wait(), 30)
        await runtime.aclose()
        await until(lambda: not is_alive(heard.events[0].data["pid"]))
        assert "was stopped" in (await failure_of(waiting, UpstreamInterrupted)).full_message

    async def test_when_a_program_crashes_its_children_go_with_it(self, start: Start) -> None:
        runtime, heard = start(PROGRAM), Heard()
        failed = await failure_of(runtime(call_of("grandchild-and-die"), heard), UpstreamInterrupted)
        assert "code 4" in failed.full_message
        await until(lambda: not is_alive(heard.events[0].data["pid"]))

    async def test_a_closed_runtime_starts_nothing_more(self, start: Start) -> None:
        runtime = start(PROGRAM)
        await runtime(call_of("echo"), ignore_event)
        await runtime.aclose()
        await runtime.aclose()
        await failure_of(runtime(call_of("echo"), ignore_event), AgentOffline)

    async def test_a_program_notices_when_the_gateway_is_killed(self) -> None:
        gateway = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.fixtures.agents.gateway",
            cwd=HERE.parents[2], stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert gateway.stdout is not None
        pid = int(await asyncio.wait_for(gateway.stdout.readline(), 20))
        assert is_alive(pid)
        gateway.kill()
        await gateway.wait()
        await until(lambda: not is_alive(pid))


class TestEnvironment:
    async def test_the_program_sees_a_minimal_environment_and_what_its_manifest_gives(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FABRIC_PSK", "secret")
        runtime = start(PROGRAM, env={"TOKEN": "given"})
        environ = (await runtime(call_of("echo"), ignore_event)).data["environ"]
        assert environ["TOKEN"] == "given"
        assert environ["PATH"] == os.environ["PATH"]
        assert set(environ) <= {"PATH", "HOME", "LANG", "TMPDIR", "TOKEN", "LC_CTYPE"}  # Python adds the last itself

    async def test_it_runs_in_the_folder_of_the_configuration_or_in_its_own(self, start: Start, tmp_path: Path) -> None:
        (tmp_path / "inner").mkdir()
        assert (await start(PROGRAM)(call_of("echo"), ignore_event)).data["cwd"] == str(tmp_path)
        assert (await start(PROGRAM, cwd="inner")(call_of("echo"), ignore_event)).data["cwd"] == str(tmp_path / "inner")

    async def test_a_command_given_as_a_string_is_split_and_never_reaches_a_shell(
        self, start: Start, tmp_path: Path
    ) -> None:
        runtime = start("echo 'two words' ; touch $HOME/x", protocol="oneshot")
        assert (await runtime(call_of("any"), ignore_event)).data == {"answer": "two words ; touch $HOME/x"}

    @pytest.mark.parametrize(
        "endpoint",
        [{}, {"command": []}, {"command": "'open"}, {"command": ["a\0b"]}, {"command": ["x"], "colour": "red"}],
    )
    def test_a_bad_endpoint_is_refused_naming_the_agent(self, endpoint: dict[str, Any]) -> None:
        with pytest.raises(BadInput, match="tested"):
            build(manifest_of(**endpoint), context_at())


class TestHealthAndDescription:
    @requirement("001-18")
    async def test_describing_completes_the_manifest_with_what_the_program_says(self, start: Start) -> None:
        described = await start(EVERYDAY).describe()
        assert described.agent_id == "tested"
        assert described.description == "Does a little of everything."
        assert [capability.name for capability in described.capabilities] == ["add", "plan", "wait", "fail"]
        plan = described.find_capability("plan")
        assert plan is not None
        assert plan.streaming
        assert plan.input_schema is not None

    async def test_what_the_manifest_says_wins(self, start: Start) -> None:
        described = await start(PROGRAM, Capability(name="echo", description="mine")).describe()
        assert described.description == "bad habits"
        assert described.capabilities == (Capability(name="echo", description="mine", streaming=True),)

    async def test_a_program_that_cannot_describe_itself_keeps_its_manifest(self, start: Start) -> None:
        runtime = start([*PROGRAM, "--modest"], Capability(name="echo"))
        assert (await runtime.describe()).capabilities == (Capability(name="echo"),)

    @requirement("001-18")
    async def test_health_is_what_the_program_says_or_that_it_is_alive(self, start: Start) -> None:
        for command, status in ((PROGRAM, "online"), ([*PROGRAM, "--ill"], "degraded"), (EVERYDAY, "online")):
            runtime = start(command)
            await runtime.describe()
            assert await runtime.health() == status


class TestOneProcessACall:
    async def test_numbers_that_are_slow_to_read_are_refused(self, start: Start, tmp_path: Path) -> None:
        printing = script(tmp_path, "print('{\"x\": [' + ','.join(['1e300'] * 2000) + ']}')")
        refused = await failure_of(start(printing, protocol="oneshot")(call_of("go"), ignore_event), UpstreamRefused)
        assert "slow to read" in refused.full_message

    async def test_arguments_go_in_as_json_and_an_object_comes_out(self, start: Start, tmp_path: Path) -> None:
        doubles = "import json, sys; print(json.dumps({'twice': json.load(sys.stdin)['context']['n'] * 2}))"
        runtime = start(script(tmp_path, doubles), protocol="oneshot")
        assert (await runtime(call_of("double", n=21), ignore_event)).data == {"twice": 42}

    async def test_anything_else_that_it_prints_is_the_answer_in_words(self, start: Start) -> None:
        runtime = start(["cat"], protocol="oneshot", args_as="text")
        assert (await runtime(call_of("copy", "some\nwords\n"), ignore_event)).data == {"answer": "some\nwords"}
        assert (await runtime(call_of("copy", "[1, 2]"), ignore_event)).data == {"answer": "[1, 2]"}

    async def test_arguments_can_be_given_on_the_command_line(self, start: Start) -> None:
        json_form = start(["echo", "-n"], protocol="oneshot", args_via="argv")
        assert (await json_form(call_of("say", "x"), ignore_event)).data == {"task": "x", "context": {}}
        words = start(["echo"], protocol="oneshot", args_via="argv", args_as="text")
        assert (await words(call_of("say", "$HOME; ls"), ignore_event)).data == {"answer": "$HOME; ls"}

    async def test_words_on_the_command_line_cannot_become_options(self, start: Start) -> None:
        runtime = start(["ls"], protocol="oneshot", args_via="argv", args_as="text")
        for words in ("--help", "a\0b"):
            await failure_of(runtime(call_of("list", words), ignore_event), BadInput)
        await failure_of(runtime(call_of("list", "x" * 200_000), ignore_event), PayloadTooLarge)

    async def test_the_program_is_told_capability_and_trace(self, start: Start) -> None:
        call = call_of("any")
        answer = (await start(["env"], protocol="oneshot")(call, ignore_event)).data["answer"]
        assert "FABRIC_CAPABILITY=any" in answer
        assert f"FABRIC_TRACE_ID={call.trace.trace_id}" in answer

    async def test_a_failed_exit_is_a_refusal_with_the_last_line_of_stderr(self, start: Start, tmp_path: Path) -> None:
        runtime = start(script(tmp_path, "import sys; sys.exit('first\\nno cheese')"), protocol="oneshot")
        refused = await failure_of(runtime(call_of("any"), ignore_event), UpstreamRefused)
        assert refused.full_message.endswith("exited with code 1: no cheese")

    async def test_a_program_that_does_not_read_its_input_may_still_answer(self, start: Start) -> None:
        runtime = start(["echo", "hello"], protocol="oneshot")
        assert (await runtime(call_of("any", "x" * 1_000_000), ignore_event)).data == {"answer": "hello"}

    async def test_cancelling_kills_the_program_and_its_children(self, start: Start, tmp_path: Path) -> None:
        note = tmp_path / "pid"
        runtime = start(
            ["sh", "-c", f"sleep 600 & echo $! > {note}.new; mv {note}.new {note}; wait"], protocol="oneshot"
        )
        running = asyncio.ensure_future(runtime(call_of("any"), ignore_event))
        await until(note.exists)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, WAIT_TIMEOUT)
        await until(lambda: not is_alive(int(note.read_text())))

    @pytest.mark.parametrize("steps", range(8))
    async def test_a_caller_that_leaves_while_the_program_is_being_started_leaves_nothing_behind(
        self, start: Start, tmp_path: Path, steps: int
    ) -> None:
        begun, trace = tmp_path / "begun", f"600.{os.getpid()}{steps}"
        runtime = start(["sh", "-c", f"sleep {trace} & touch {begun}; wait"], protocol="oneshot")
        running = asyncio.ensure_future(runtime(call_of("any"), ignore_event))
        for _ in range(steps):
            await asyncio.sleep(0)
        stand_still_until(lambda: begun.exists() or not processes_with(trace))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, WAIT_TIMEOUT)
        await until(lambda: not processes_with(trace), WAIT_TIMEOUT)

    async def test_children_that_hold_the_output_open_do_not_delay_the_answer(self, start: Start) -> None:
        runtime = start(["sh", "-c", "sleep 600 & echo done"], protocol="oneshot")
        result = await asyncio.wait_for(runtime(call_of("any"), ignore_event), 30)
        assert result.data == {"answer": "done"}

    async def test_output_without_end_is_cut_and_refused(self, start: Start) -> None:
        runtime = start(["yes"], protocol="oneshot", line_bytes=100_000)
        refused = await failure_of(asyncio.wait_for(runtime(call_of("any"), ignore_event), 30), UpstreamRefused)
        assert "more than 100000 bytes" in refused.full_message

    async def test_no_more_than_the_given_number_run_at_a_time(self, start: Start, tmp_path: Path) -> None:
        lock = tmp_path / "lock"
        alone = ["sh", "-c", f"mkdir {lock} && rmdir {lock} && echo alone"]
        runtime = start(alone, protocol="oneshot", max_concurrent=1, max_pending=10)
        answers = await asyncio.gather(
            *(runtime(call_of("any"), ignore_event) for _ in range(11)), return_exceptions=True
        )
        assert sum(isinstance(answer, AgentBusy) for answer in answers) == 1
        assert [answer.data for answer in answers if not isinstance(answer, BaseException)] == [
            {"answer": "alone"}
        ] * 10

    @pytest.mark.parametrize("protocol", ["oneshot", "jsonl"])
    @pytest.mark.parametrize("steps", [*range(8), None])
    async def test_closing_kills_what_runs_and_what_is_being_started(
        self, start: Start, tmp_path: Path, steps: int | None, protocol: str
    ) -> None:
        begun, trace = tmp_path / "begun", f"600.{os.getpid()}9{steps or 99}"
        runtime = start(["sh", "-c", f"sleep {trace} & touch {begun}; wait"], protocol=protocol)
        running = asyncio.ensure_future(runtime(call_of("any"), ignore_event))
        for _ in range(steps or 0):
            await asyncio.sleep(0)
        await (until(begun.exists) if steps is None else asyncio.sleep(0))
        stand_still_until(lambda: begun.exists() or not processes_with(trace))
        await runtime.aclose()
        stand_still_until(lambda: not processes_with(trace))  # who was killed takes a moment to die, but not our help
        assert not processes_with(trace)
        with pytest.raises((UpstreamInterrupted, AgentOffline)):
            await asyncio.wait_for(running, WAIT_TIMEOUT)
        await failure_of(runtime(call_of("any"), ignore_event), AgentOffline)

    async def test_health_and_description_only_look_whether_the_program_is_there(self, start: Start) -> None:
        runtime = start(["cat"], Capability(name="copy"), protocol="oneshot")
        assert await runtime.health() == "online"
        assert (await runtime.describe()).capabilities == (Capability(name="copy"),)
        await failure_of(start(["no-such-program"], protocol="oneshot").health(), AgentOffline)
