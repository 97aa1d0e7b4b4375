"""The claude runtime against a program with the flags and the output of Claude Code; see also `make conformance`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Attachment, Call, ignore_event
from a2a_fabric.core.errors import (
    AgentBusy,
    AgentOffline,
    BadInput,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.ports import Runtime
from a2a_fabric.core.result import Event
from a2a_fabric.plugins import load_runtime
from a2a_fabric.runtimes.claude.runtime import build
from tests.fixtures.agents.calling import HERE, Heard, call_of, context_at, is_alive, manifest_of, until

PROGRAM = [sys.executable, "-I", "-S", str(HERE / "claude_program.py")]
WAIT_TIMEOUT = 30.0
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
INSTRUCTIONS = "# Basil\n\nYou are Basil,\na cook.\n\nMore.\n"

Start = Callable[..., Runtime]
E = TypeVar("E", bound=Exception)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An agent's."""
    made = tmp_path / "basil"
    made.mkdir()
    (made / "CLAUDE.md").write_text(INSTRUCTIONS)
    return made


@pytest.fixture
async def start(tmp_path: Path, folder: Path) -> AsyncIterator[Start]:
    """Build a runtime for the agent in the folder; it is closed after the test."""
    built: list[Runtime] = []

    def build_one(*capabilities: Capability, **endpoint: Any) -> Runtime:
        env = {"CLAUDE_CONFIG_DIR": str(tmp_path / "config"), **endpoint.pop("env", {})}
        given = {"path": "basil", "command": PROGRAM, "env": env, **endpoint}
        runtime = build(manifest_of(*capabilities, **given), context_at(tmp_path))
        built.append(runtime)
        return runtime

    yield build_one
    for runtime in built:
        await runtime.aclose()


def call(
    task: str, conversation: str | None = None, *, attachments: Any = (), timeout: float = 60, **more: Any
) -> Call:
    made = call_of("ask", task, **more)
    return msgspec.structs.replace(
        made,
        target=msgspec.structs.replace(made.target, timeout_ms=round(timeout * 1000)),
        input=msgspec.structs.replace(made.input, attachments=tuple(attachments)),
        conversation_id=msgspec.UNSET if conversation is None else conversation,
    )


async def seen(runtime: Runtime, task: str = "echo", conversation: str | None = None, **more: Any) -> dict[str, Any]:
    """What the program knows of a call."""
    answer: str = (await runtime(call(task, conversation, **more), ignore_event)).data["answer"]
    told: dict[str, Any] = json.loads(answer)
    return told


async def failure_of(work: Awaitable[Any], kind: type[E]) -> E:
    with pytest.raises(kind) as caught:
        async with asyncio.timeout(WAIT_TIMEOUT):
            await work
    assert type(caught.value) is kind
    return caught.value


def test_the_documents_name_for_it_leads_here() -> None:
    assert load_runtime("claude-subprocess").build is build


class TestCommandLine:
    async def test_the_program_runs_in_the_agents_folder_and_reads_the_task_on_its_stdin(
        self, start: Start, folder: Path
    ) -> None:
        told = await seen(start(), "echo $HOME; 'x'", depth=2)
        assert told["cwd"] == str(folder)
        assert told["content"] == [{"type": "text", "text": "echo $HOME; 'x'\n\n```json\n{\"depth\":2}\n```"}]
        options = told["options"]
        assert (options["output_format"], options["input_format"]) == ("stream-json", "text")
        assert not options["include_partial_messages"]
        assert options["no_session_persistence"]

    @pytest.mark.parametrize(
        ("choice", "flag"), [("append", "append_system_prompt_file"), ("replace", "system_prompt_file"), ("none", None)]
    )
    async def test_the_folders_instructions_are_its_system_prompt(
        self, start: Start, folder: Path, choice: str, flag: str | None
    ) -> None:
        options = (await seen(start(system_prompt=choice)))["options"]
        given = {name: options[name] for name in ("append_system_prompt_file", "system_prompt_file") if options[name]}
        assert given == ({flag: str(folder / "CLAUDE.md")} if flag else {})
        once = json.loads(options["settings"]) if options["settings"] else None
        assert once == ({"claudeMdExcludes": [str(folder / "CLAUDE.md")]} if flag else None)

    async def test_a_folder_without_instructions_will_do(self, start: Start, folder: Path) -> None:
        (folder / "CLAUDE.md").unlink()
        assert (await seen(start()))["options"]["append_system_prompt_file"] is None

    async def test_mcp_servers_come_from_the_folder_from_the_manifest_and_from_the_node(
        self, start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FABRIC_HOME", "/somewhere")
        assert (await seen(start()))["options"]["mcp_config"] == []
        (folder / ".mcp.json").write_text("{}")
        assert (await seen(start()))["options"]["mcp_config"] == [str(folder / ".mcp.json")]
        (folder / "other.json").write_text("{}")
        options = (await seen(start(mcp_config="other.json", offer_node=True, strict_mcp=True)))["options"]
        path, node = options["mcp_config"]
        assert path == str(folder / "other.json")
        assert json.loads(node)["mcpServers"]["fabric"]["args"] == ["-m", "a2a_fabric", "mcp"]
        assert json.loads(node)["mcpServers"]["fabric"]["env"] == {"FABRIC_HOME": "/somewhere"}
        assert options["strict_mcp_config"]

    async def test_the_manifest_says_more(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FABRIC_PSK", "secret")
        runtime = start(
            model="opus",
            permission_mode="plan",
            allowed_tools=["Bash(git log, *)", "Edit"],
            disallowed_tools=["WebFetch"],
            arguments=["--settings", "{}"],
            env={"ANTHROPIC_API_KEY": "given"},
        )
        told = await seen(runtime)
        options, environ = told["options"], told["environ"]
        assert (options["model"], options["permission_mode"], options["settings"]) == ("opus", "plan", "{}")
        assert options["allowedTools"] == ["Bash(git log, *)", "Edit"]
        assert options["disallowedTools"] == ["WebFetch"]
        assert environ["ANTHROPIC_API_KEY"] == "given"
        assert environ["HOME"] == os.environ["HOME"]
        assert "FABRIC_PSK" not in environ

    async def test_a_task_is_no_command_unless_the_manifest_allows_it(self, start: Start) -> None:
        assert (await seen(start(), "/compact"))["content"][0]["text"] == " /compact"
        assert (await seen(start(commands=True), "/compact"))["content"][0]["text"] == "/compact"

    async def test_images_and_what_else_it_takes_go_along_as_blocks_and_the_rest_is_noted(self, start: Start) -> None:
        attached = (
            Attachment(type="file", content=PIXEL, mime_type="image/png"),
            Attachment(type="file", content="AAAA", mime_type="application/pdf"),
            Attachment(type="url", content="https://example.org/x", name="page"),
            Attachment(type="data", content={"n": 1}),
            Attachment(type="data", content="words", name="note.txt"),
            Attachment(type="file", content="AAAA", mime_type="audio/wav", name="click.wav"),
        )
        result = await start()(call("echo", attachments=attached), ignore_event)
        told = json.loads(result.data["answer"])
        png = {"type": "base64", "media_type": "image/png", "data": PIXEL}
        pdf = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
        assert told["options"]["input_format"] == "stream-json"
        assert told["content"] == [
            {"type": "text", "text": "echo"},
            {"type": "image", "source": png},
            {"type": "document", "source": pdf},
            {"type": "text", "text": "page: https://example.org/x"},
            {"type": "text", "text": '{"n":1}'},
            {"type": "text", "text": "note.txt:\nwords"},
        ]
        assert result.notes == ("'click.wav' was not sent: Claude Code cannot carry audio content",)

    async def test_an_object_is_asked_for_by_its_schema(self, start: Start) -> None:
        schema = {"type": "object", "properties": {"seen": {}}}
        runtime = start(Capability(name="echo", output_schema=schema), Capability(name="say"))
        result = await runtime(call_of("echo", "", a=1), ignore_event)
        assert result.data == {"seen": {"a": 1}}

    @pytest.mark.parametrize(
        "endpoint",
        [
            {"command": []},
            {"command": "'open"},
            {"colour": "red"},
            {"system_prompt": "maybe"},
            {"allowed_tools": ["--dangerously-skip-permissions"]},
            {"model": "-x"},
            {"arguments": ["a\0b"]},
        ],
    )
    def test_a_bad_endpoint_is_refused_naming_the_agent(self, endpoint: dict[str, Any]) -> None:
        with pytest.raises(BadInput, match="tested"):
            build(manifest_of(**endpoint), context_at())


class TestAnswers:
    async def test_the_last_words_are_the_answer_with_what_they_cost(self, start: Start) -> None:
        data = (await start()(call("say one two"), ignore_event)).data
        assert data.pop("session_id")
        usage = {"input_tokens": 3, "output_tokens": 5}
        assert data == {"answer": "one two", "usage": usage, "cost_usd": 0.25, "turns": 1}

    async def test_a_caller_who_listens_hears_pieces_once_and_tools_in_order(self, start: Start) -> None:
        heard = Heard()
        result = await start()(call("report broken", stream=True), heard)
        assert heard.events == [
            Event("tool_call", {"tool": "Read", "arguments": {"file": "a"}, "id": "t1"}),
            Event(
                "tool_call",
                {"tool": "Read", "arguments": {}, "status": "completed", "output": "text of a", "id": "t1"},
            ),
            Event("status", {"status": "running", "message": "the model's API: server_error; next try in 0.0 s"}),
            Event("token", {"text": "done"}),
        ]
        assert result.data["answer"] == "done"
        assert result.notes == ("the MCP server 'broken' was not available: failed", "permission was denied: Bash")

    async def test_a_word_is_heard_before_the_program_ends(self, start: Start, tmp_path: Path) -> None:
        heard = Heard()
        asking = asyncio.ensure_future(start()(call(f"sleep {tmp_path / 'note'}", stream=True), heard))
        await asyncio.wait_for(heard.something.wait(), WAIT_TIMEOUT)
        assert heard.events == [Event("token", {"text": "asleep"})]
        asking.cancel()
        await asyncio.wait([asking])

    async def test_the_answer_does_not_wait_for_a_program_that_lingers(self, start: Start) -> None:
        runtime = start(grace=0.1)
        answer = (await asyncio.wait_for(runtime(call("linger"), ignore_event), WAIT_TIMEOUT)).data["answer"]
        assert is_alive(int(answer))
        await runtime.aclose()
        assert not is_alive(int(answer))

    async def test_what_went_wrong_is_a_refusal_in_its_own_words(self, start: Start) -> None:
        runtime = start()
        assert (
            "no cheese"
            in (await failure_of(runtime(call("refuse no cheese"), ignore_event), UpstreamRefused)).full_message
        )
        stopped = await failure_of(runtime(call("turns"), ignore_event), UpstreamRefused)
        assert "limit of model requests" in stopped.full_message
        assert stopped.details["reason"] == "error_max_turns"

    @pytest.mark.parametrize(
        ("trouble", "kind"),
        [
            ("authentication_failed 401", AgentOffline),
            ("billing_error 400", AgentOffline),
            ("rate_limit 429", AgentBusy),
            ("unknown 529", AgentBusy),
            ("unknown 400", UpstreamFailed),
            ("rate_limit 429 worked", UpstreamFailed),
        ],
    )
    async def test_trouble_with_its_model_is_told_apart_by_what_the_caller_may_do(
        self, start: Start, trouble: str, kind: type[Exception]
    ) -> None:
        error = await failure_of(start()(call(f"trouble {trouble}"), ignore_event), kind)
        assert "cannot reach its model: API Error: no" in str(error)

    async def test_no_caller_waits_for_attempts_that_are_in_vain(self, start: Start) -> None:
        runtime = start()
        no_access = await failure_of(runtime(call("retry authentication_failed 1"), ignore_event), AgentOffline)
        assert "credentials" in no_access.full_message
        busy = await failure_of(runtime(call("retry rate_limit 90000"), ignore_event), AgentBusy)
        assert busy.details["retry_after"] == 90


class TestConversations:
    async def test_calls_of_one_conversation_are_turns_of_one_session(self, start: Start) -> None:
        runtime = start()
        first = await runtime(call("say my name", "a"), ignore_event)
        second = await runtime(call("recall", "a"), ignore_event)
        assert json.loads(second.data["answer"]) == ["say my name", "recall"]
        assert first.data["session_id"] == second.data["session_id"]
        assert second.notes == ()
        assert json.loads((await runtime(call("recall", "b"), ignore_event)).data["answer"]) == ["recall"]

    async def test_another_caller_does_not_get_into_a_conversation_by_its_name(self, start: Start) -> None:
        runtime, mallory = start(), call("recall", "a")
        await runtime(call("say my name", "a"), ignore_event)
        mallory = msgspec.structs.replace(mallory, auth=msgspec.structs.replace(mallory.auth, principal_id="mallory"))
        assert json.loads((await runtime(mallory, ignore_event)).data["answer"]) == ["recall"]

    async def test_a_conversation_outlives_the_node(self, start: Start) -> None:
        await start()(call("say my name", "a"), ignore_event)
        result = await start()(call("recall", "a"), ignore_event)
        assert json.loads(result.data["answer"]) == ["say my name", "recall"]
        assert result.notes == ()

    async def test_a_session_that_was_lost_begins_again_and_the_result_says_so(
        self, start: Start, tmp_path: Path
    ) -> None:
        runtime = start()
        await runtime(call("say my name", "a"), ignore_event)
        for file in (tmp_path / "config" / "sessions").iterdir():
            file.unlink()
        result = await runtime(call("recall", "a"), ignore_event)
        assert json.loads(result.data["answer"]) == ["recall"]
        assert "begins again" in result.notes[0]

    async def test_turns_of_a_conversation_come_one_after_the_other(self, start: Start) -> None:
        runtime, said = start(), [f"say {n}" for n in range(4)]
        await asyncio.gather(*(runtime(call(words, "a"), ignore_event) for words in said))
        assert json.loads((await runtime(call("recall", "a"), ignore_event)).data["answer"]) == [*said, "recall"]

    async def test_a_cancelled_turn_does_not_break_the_conversation(self, start: Start, tmp_path: Path) -> None:
        runtime, heard, note = start(grace=0.1), Heard(), tmp_path / "note"
        asking = asyncio.ensure_future(runtime(call(f"sleep {note}", "a", stream=True), heard))
        await asyncio.wait_for(heard.something.wait(), WAIT_TIMEOUT)
        asking.cancel()
        await asyncio.wait([asking])
        assert json.loads((await runtime(call("recall", "a"), ignore_event)).data["answer"]) == [
            f"sleep {note}",
            "recall",
        ]


class TestTheProcess:
    async def test_cancelling_ends_the_program_and_its_children(self, start: Start, tmp_path: Path) -> None:
        runtime, note = start(grace=0.1), tmp_path / "note"
        asking = asyncio.ensure_future(runtime(call(f"sleep {note}"), ignore_event))
        await until(note.exists, WAIT_TIMEOUT)
        pids = [int(pid) for pid in note.read_text().split()]
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asking, WAIT_TIMEOUT)
        await until(lambda: not any(map(is_alive, pids)), WAIT_TIMEOUT)

    async def test_closing_ends_the_calls_under_way_and_leaves_no_task(self, start: Start, tmp_path: Path) -> None:
        before = asyncio.all_tasks()
        runtime, note = start(grace=0.1), tmp_path / "note"
        asking = asyncio.ensure_future(runtime(call(f"sleep {note}"), ignore_event))
        await until(note.exists, WAIT_TIMEOUT)
        pids = [int(pid) for pid in note.read_text().split()]
        await runtime.aclose()
        await runtime.aclose()
        await failure_of(asking, UpstreamInterrupted)
        await failure_of(runtime(call("say hello"), ignore_event), AgentOffline)
        await until(lambda: not any(map(is_alive, pids)) and asyncio.all_tasks() <= before, WAIT_TIMEOUT)

    async def test_a_program_that_ends_without_a_result_is_told_by_its_last_words(self, start: Start) -> None:
        died = await failure_of(start()(call("die"), ignore_event), UpstreamInterrupted)
        assert died.full_message.endswith("exited with code 3: out of cheese")

    async def test_one_that_never_began_surely_did_nothing(self, start: Start, folder: Path) -> None:
        option = await failure_of(start(arguments=["--bogus"])(call("say x"), ignore_event), AgentOffline)
        assert "--bogus" in option.full_message
        (folder / ".mcp.json").write_text("{bad")
        assert "not a valid JSON" in (await failure_of(start()(call("say x"), ignore_event), AgentOffline)).full_message
        silent = start(command=["sh", "-c", "echo no licence >&2; exit 4"])
        assert (
            "code 4: no licence" in (await failure_of(silent(call("say x"), ignore_event), AgentOffline)).full_message
        )

    async def test_invalid_lines_between_the_messages_are_skipped(
        self, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert (await start()(call("invalid_lines"), ignore_event)).data["answer"] == "fine"
        assert "Loading..." in caplog.text

    async def test_a_line_without_end_is_cut_and_ends_the_program(self, start: Start) -> None:
        refused = await failure_of(
            start(line_bytes=100_000, grace=0.1)(call("long 200000"), ignore_event), UpstreamRefused
        )
        assert "longer than 100000 bytes" in refused.full_message

    async def test_no_more_than_the_given_number_run_or_wait(self, start: Start, tmp_path: Path) -> None:
        runtime, note = start(max_concurrent=1, max_pending=2, grace=0.1), tmp_path / "note"
        first = asyncio.ensure_future(runtime(call(f"sleep {note}"), ignore_event))
        await until(note.exists, WAIT_TIMEOUT)
        second = asyncio.ensure_future(runtime(call("say hello"), ignore_event))
        await asyncio.sleep(0)
        await failure_of(runtime(call("say hello"), ignore_event), AgentBusy)
        first.cancel()
        await asyncio.wait([first])
        assert (await asyncio.wait_for(second, WAIT_TIMEOUT)).data["answer"] == "hello"

    async def test_health_is_that_the_program_tells_its_version(self, start: Start) -> None:
        assert await start().health() == "online"
        missing = await failure_of(start(command=["./no-such-program"]).health(), AgentOffline)
        assert "./no-such-program" in missing.full_message
        ill = await failure_of(start(command=["sh", "-c", "echo no >&2; exit 4"]).health(), AgentOffline)
        assert "does not print its version" in ill.full_message
        await failure_of(start(path="no/such/folder").health(), AgentOffline)

    async def test_the_version_is_asked_for_once_in_a_while_only(self, start: Start, tmp_path: Path) -> None:
        count = tmp_path / "count"
        runtime = start(command=["sh", "-c", f"echo x >> {count}; echo 1.0"])
        for _ in range(3):
            assert await runtime.health() == "online"
        assert count.read_text() == "x\n"


class TestDescription:
    async def test_the_instructions_begin_with_who_it_is(self, start: Start) -> None:
        described = await start().describe()
        assert (described.display_name, described.description) == ("Basil", "You are Basil, a cook.")
        (capability,) = described.capabilities
        assert (capability.name, capability.streaming) == ("ask", True)
        assert capability.description == "You are Basil, a cook."

    async def test_or_its_package_says_it(self, start: Start, folder: Path) -> None:
        (folder / "CLAUDE.md").write_text("---\nname: x\n---\n")
        (folder / "package.json").write_text('{"name": "basil", "description": "Cooks.", "version": "2.0.0"}')
        described = await start().describe()
        assert (described.display_name, described.description, described.version) == ("basil", "Cooks.", "2.0.0")

    async def test_what_the_manifest_says_wins(self, start: Start) -> None:
        described = await start(Capability(name="cook")).describe()
        assert described.capabilities == (Capability(name="cook"),)
