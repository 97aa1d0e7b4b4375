"""The agent-client runtime against a real program made with the protocol's own SDK."""

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
import pytest_asyncio

from a2a_fabric.core.call import Attachment, Call, ignore_event
from a2a_fabric.core.errors import AgentOffline, BadInput, Conflict, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.ports import Runtime
from a2a_fabric.core.result import Answer, Answers, Event, Part, Result
from a2a_fabric.runtimes.agent_client.runtime import build
from tests.fixtures.agents.agent_client_program import PIXEL
from tests.fixtures.agents.calling import HERE, Heard, call_of, context_at, manifest_of, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROGRAM = [sys.executable, str(HERE / "agent_client_program.py")]
WAIT_TIMEOUT = 30.0
SERVERS = [
    {"name": "files", "command": "./server", "args": ["-v"], "env": {"A": "b"}},
    {"name": "far", "url": "http://127.0.0.1:9/mcp", "headers": {"X-Key": "k"}},
]
FIRST_WORD = Event("token", {"text": "asleep"})

Start = Callable[..., Runtime]
E = TypeVar("E", bound=Exception)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Runtime]:
    """One that most tests share; nothing is allowed to it."""
    folder = tmp_path_factory.mktemp("agent")
    runtime = build(manifest_of(command=PROGRAM, cancel_timeout=WAIT_TIMEOUT), context_at(folder))
    yield runtime
    await runtime.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trusted(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Runtime]:
    """One that may do everything, with whatever a manifest can give it."""
    base = tmp_path_factory.mktemp("trusted")
    (base / "project").mkdir()
    given = {"path": "project", "env": {"TOKEN": "given"}, "permissions": "allow"}
    offered = {"mcp_servers": SERVERS, "offer_node": True}
    environ = {**os.environ, "FABRIC_PSK": "secret", "FABRIC_HOME": "/somewhere"}
    context = msgspec.structs.replace(context_at(base), environ=environ)
    runtime = build(manifest_of(command=PROGRAM, **given, **offered), context)
    yield runtime
    await runtime.aclose()


@pytest_asyncio.fixture(loop_scope="module")
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """One of its own; it is closed after the test."""
    built: list[Runtime] = []

    def build_one(*options: str, command: list[str] | None = None, **endpoint: Any) -> Runtime:
        given = {"command": command or [*PROGRAM, *options], "path": str(tmp_path), **endpoint}
        runtime = build(manifest_of(**given), context_at(tmp_path))
        built.append(runtime)
        return runtime

    yield build_one
    for runtime in built:
        await runtime.aclose()


async def asked(runtime: Runtime, task: str, conversation: str | None = None, **more: Any) -> dict[str, Any]:
    """What the agent tells as JSON."""
    answer: str = (await runtime(call(task, conversation, **more), ignore_event)).data["answer"]
    told: dict[str, Any] = json.loads(answer)
    return told


def call(task: str, conversation: str | None = None, *, attachments: Any = (), **more: Any) -> Call:
    made = call_of("ask", task, **more)
    given = msgspec.structs.replace(made.input, attachments=tuple(attachments))
    said = msgspec.UNSET if conversation is None else conversation
    return msgspec.structs.replace(made, input=given, conversation_id=said)


async def failure_of(work: Awaitable[Any], kind: type[E]) -> E:
    with pytest.raises(kind) as caught:
        async with asyncio.timeout(WAIT_TIMEOUT):
            await work
    assert type(caught.value) is kind
    return caught.value


async def cancelled(work: asyncio.Future[Any]) -> None:
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(WAIT_TIMEOUT):
            await work


class TestTurns:
    async def test_the_words_of_the_agent_are_the_answer(self, agent: Runtime) -> None:
        assert (await agent(call("say one two"), ignore_event)).data == {"answer": "onetwo"}

    async def test_a_caller_who_listens_hears_everything_in_order(self, agent: Runtime) -> None:
        heard = Heard()
        result = await agent(call("report", stream=True), heard)
        plan = [{"content": "read", "status": "completed"}, {"content": "write", "status": "in_progress"}]
        tool = {"tool": "Read it", "id": "t1"}
        assert heard.events[:4] == [
            Event("status", {"status": "running", "message": "hm", "thought": True}),
            Event("progress", {"percent": 50.0, "message": "write", "plan": plan}),
            Event("tool_call", {**tool, "arguments": {"n": 1}, "kind": "read"}),
            Event("tool_call", {**tool, "arguments": {}, "status": "completed", "output": {"lines": 3}}),
        ]
        assert heard.kinds[4:] == ["artifact", "artifact", "artifact", "token"]
        assert result.data == {"answer": "done", "cost": {"amount": 0.5, "currency": "USD"}}
        assert result.parts == (
            Part(kind="image", blob=PIXEL, mime_type="image/png"),
            Part(kind="file", url="https://example.org/page", name="page"),
            Part(kind="audio", blob="AA==", mime_type="audio/wav"),
            Part(kind="text", text="done"),
        )

    async def test_a_word_is_heard_before_the_turn_ends(self, agent: Runtime, tmp_path: Path) -> None:
        heard = Heard()
        asking = asyncio.ensure_future(agent(call(f"sleep {tmp_path / 'note'}", stream=True), heard))
        await asyncio.wait_for(heard.something.wait(), WAIT_TIMEOUT)
        assert heard.events == [FIRST_WORD]
        await cancelled(asking)

    async def test_what_belongs_to_the_task_goes_along_as_json(self, agent: Runtime) -> None:
        blocks = (await asked(agent, "echo it", depth=2))["blocks"]
        assert blocks == [{"type": "text", "text": 'echo it\n\n```json\n{"depth":2}\n```'}]

    @pytest.mark.parametrize("reason", ["max_tokens", "max_turn_requests"])
    async def test_an_answer_that_was_cut_short_says_so(self, agent: Runtime, reason: str) -> None:
        result = await agent(call(f"stop {reason}"), ignore_event)
        assert result.data == {"answer": "so far", "stop_reason": reason}
        assert "in the middle" in result.notes[0]

    async def test_what_the_agent_will_not_do_is_a_refusal_in_its_own_words(self, agent: Runtime) -> None:
        assert (await failure_of(agent(call("stop refusal"), ignore_event), UpstreamRefused)).full_message == "so far"
        assert (
            "by itself"
            in (await failure_of(agent(call("stop cancelled"), ignore_event), UpstreamInterrupted)).full_message
        )

    async def test_errors_of_the_protocol_come_back_typed(self, agent: Runtime) -> None:
        assert "no cheese" in (await failure_of(agent(call("invalid no cheese"), ignore_event), BadInput)).full_message
        assert (
            "no cheese"
            in (await failure_of(agent(call("break no cheese"), ignore_event), UpstreamRefused)).full_message
        )

    async def test_neither_files_nor_terminals_are_offered(self, agent: Runtime) -> None:
        assert await asked(agent, "files") == {"code": -32601}


class TestContent:
    ATTACHED = (
        Attachment(type="file", content=PIXEL, mime_type="image/png"),
        Attachment(type="file", content="AA==", mime_type="audio/wav"),
        Attachment(type="file", content="AAAA", mime_type="application/zip", name="all.zip"),
        Attachment(type="url", content="https://example.org/a/page.html", mime_type="text/html"),
        Attachment(type="data", content={"n": 1}),
        Attachment(type="data", content="some words", name="note.txt"),
        Attachment(type="data", content="# Words", name="page.md", mime_type="text/markdown", kind="file"),
        Attachment(type="data", content={"name": "f"}, kind="function_call"),
    )

    async def test_every_kind_of_content_reaches_an_agent_that_takes_it(self, agent: Runtime) -> None:
        _, *blocks = (await asked(agent, "echo", attachments=self.ATTACHED))["blocks"]
        held = {"blob": "AAAA", "mimeType": "application/zip", "uri": "attachment:///all.zip"}
        page = {"text": "# Words", "mimeType": "text/markdown", "uri": "attachment:///page.md"}
        link = {"name": "page.html", "uri": "https://example.org/a/page.html", "mimeType": "text/html"}
        assert blocks == [
            {"type": "image", "data": PIXEL, "mimeType": "image/png"},
            {"type": "audio", "data": "AA==", "mimeType": "audio/wav"},
            {"type": "resource", "resource": held},
            {"type": "resource_link", **link},
            {"type": "text", "text": '{"n":1}', "_meta": {"a2a-fabric/kind": "json"}},
            {"type": "text", "text": "note.txt:\nsome words"},
            {"type": "resource", "resource": page},
            {"type": "text", "text": '{"name":"f"}', "_meta": {"a2a-fabric/kind": "function_call"}},
        ]

    async def test_what_an_agent_does_not_take_is_noted_and_the_rest_is_sent(self, start: Start) -> None:
        server = {"name": "far", "url": "http://127.0.0.1:9/mcp"}
        runtime = start("--plain", mcp_servers=[server])
        result = await runtime(call("echo", attachments=self.ATTACHED), ignore_event)
        kinds = [block["type"] for block in json.loads(result.data["answer"])["blocks"]]
        assert kinds == ["text", "resource_link", "text", "text", "text", "text"]
        assert result.notes == (
            "the MCP server 'far' was not offered: the agent uses none over http",
            "an attachment of kind image was not sent: the agent cannot carry image content",
            "an attachment of kind audio was not sent: the agent cannot carry audio content",
            "'all.zip' was not sent: the agent cannot carry file content",
        )
        described = (await runtime.describe()).capabilities[0]
        assert described.modalities == ("text", "json")


class TestSessions:
    async def test_calls_of_one_conversation_share_a_session_and_others_do_not(self, agent: Runtime) -> None:
        await agent(call("say my name", "a"), ignore_event)
        assert await asked(agent, "recall", "a") == {"said": ["say my name", "recall"]}
        assert await asked(agent, "recall", "b") == {"said": ["recall"]}
        assert await asked(agent, "recall") == {"said": ["recall"]}

    async def test_another_caller_does_not_get_into_a_conversation_by_its_name(self, agent: Runtime) -> None:
        await agent(call("say my name", "secret"), ignore_event)
        mallory = call("recall", "secret")
        mallory = msgspec.structs.replace(mallory, auth=msgspec.structs.replace(mallory.auth, principal_id="mallory"))
        answer = (await agent(mallory, ignore_event)).data["answer"]
        assert json.loads(answer) == {"said": ["recall"]}

    async def test_a_conversation_has_one_turn_at_a_time_in_the_order_of_the_calls(self, agent: Runtime) -> None:
        said = [f"say {n}" for n in range(10)]
        results = await asyncio.gather(*(agent(call(words, "queue"), ignore_event) for words in said))
        assert [result.data["answer"] for result in results] == [str(n) for n in range(10)]
        assert (await asked(agent, "recall", "queue"))["said"][:-1] == said

    async def test_many_conversations_go_on_at_a_time_in_one_process(self, agent: Runtime) -> None:
        told = await asyncio.gather(*(asked(agent, "look", f"many-{n}") for n in range(20)))
        assert len({each["pid"] for each in told}) == 1
        assert len({each["session_id"] for each in told}) == 20

    async def test_the_quietest_conversation_is_forgotten_first_and_closed(self, start: Start) -> None:
        runtime = start(max_sessions=2)
        ids = {name: (await asked(runtime, "look", name))["session_id"] for name in ("a", "b", "a", "c")}
        assert (await asked(runtime, "look", "a"))["session_id"] == ids["a"]
        assert (await asked(runtime, "look", "b"))["session_id"] != ids["b"]

        async def closed() -> list[str]:
            found: list[str] = (await asked(runtime, "look", "b"))["closed"]
            return found

        async with asyncio.timeout(WAIT_TIMEOUT):
            while ids["b"] not in await closed():
                pass

    async def test_a_session_without_a_conversation_is_closed_after_its_call(self, agent: Runtime) -> None:
        once = (await asked(agent, "look"))["session_id"]
        async with asyncio.timeout(WAIT_TIMEOUT):
            while once not in (await asked(agent, "look", "watching"))["closed"]:
                pass

    @pytest.mark.parametrize("way", ["load", "resume"])
    async def test_a_conversation_outlives_the_death_of_an_agent_that_keeps_it(
        self, start: Start, tmp_path: Path, way: str
    ) -> None:
        runtime = start("--keep", way, "--folder", str(tmp_path), backoff=0)
        await runtime(call("say my name", "a"), ignore_event)
        await failure_of(runtime(call("die"), ignore_event), UpstreamInterrupted)
        heard = Heard()
        result = await runtime(call("recall", "a", stream=True), heard)
        assert json.loads(result.data["answer"]) == {"said": ["say my name", "recall"]}
        assert result.notes == ()
        assert len(heard.events) == 1  # what was said before is not said again


class TestPermissions:
    async def test_nothing_is_allowed_unless_the_manifest_says_so(self, agent: Runtime) -> None:
        result = await agent(call("permit edit"), ignore_event)
        assert json.loads(result.data["answer"]) == {"decided": ["no"]}
        assert result.notes == ("permission was denied, as the manifest says: edit",)

    async def test_the_manifest_can_allow_each_thing_once(self, trusted: Runtime) -> None:
        result = await trusted(call("permit edit run"), ignore_event)
        assert json.loads(result.data["answer"]) == {"decided": ["yes", "yes"]}
        assert result.notes == ()

    @pytest.mark.parametrize(
        ("answer", "decided"),
        [
            (Answer(content={"option": "always"}), "always"),
            (Answer(content="Reject"), "no"),
            (Answer(), "yes"),
            (Answer(action="decline"), "no"),
            (Answer(action="cancel"), "cancelled"),
        ],
    )
    async def test_or_the_caller_is_asked_and_a_second_call_brings_the_decision(
        self, asking_agent: Runtime, answer: Answer, decided: str
    ) -> None:
        first = await asking_agent(call("permit edit"), ignore_event)
        assert first.asked is not None
        (question,) = first.asked.questions.values()
        assert question.message == "The agent asks for permission: edit"
        assert question.schema is not None
        assert question.schema["properties"]["option"]["enum"] == ["yes", "always", "no"]
        result = await asking_agent(follow_up(first, answer), ignore_event)
        assert json.loads(result.data["answer"]) == {"decided": [decided]}

    async def test_one_turn_may_ask_more_than_once(self, asking_agent: Runtime) -> None:
        first = await asking_agent(call("permit edit run", "a"), ignore_event)
        second = await asking_agent(follow_up(first, Answer()), ignore_event)
        assert second.asked is not None
        assert second.asked.message.endswith("run")
        last = await asking_agent(follow_up(second, Answer(action="decline")), ignore_event)
        assert json.loads(last.data["answer"]) == {"decided": ["yes", "no"]}

    async def test_a_decision_that_is_none_of_the_options_leaves_the_question_open(self, asking_agent: Runtime) -> None:
        first = await asking_agent(call("permit edit"), ignore_event)
        wrong = await failure_of(asking_agent(follow_up(first, Answer(content="maybe")), ignore_event), BadInput)
        assert "yes, always, no" in wrong.full_message
        result = await asking_agent(follow_up(first, Answer(content="yes")), ignore_event)
        assert json.loads(result.data["answer"]) == {"decided": ["yes"]}
        await failure_of(asking_agent(follow_up(first, Answer()), ignore_event), BadInput)

    async def test_no_other_caller_may_decide(self, asking_agent: Runtime) -> None:
        first = await asking_agent(call("permit edit"), ignore_event)
        theirs = follow_up(first, Answer())
        theirs = msgspec.structs.replace(theirs, auth=msgspec.structs.replace(theirs.auth, principal_id="mallory"))
        await failure_of(asking_agent(theirs, ignore_event), BadInput)
        await asking_agent(follow_up(first, Answer()), ignore_event)

    async def test_until_then_the_conversation_takes_no_other_call(self, asking_agent: Runtime) -> None:
        first = await asking_agent(call("permit edit", "busy"), ignore_event)
        await failure_of(asking_agent(call("say hello", "busy"), ignore_event), Conflict)
        await asking_agent(follow_up(first, Answer()), ignore_event)
        assert (await asking_agent(call("say hello", "busy"), ignore_event)).data == {"answer": "hello"}

    async def test_a_question_without_an_answer_ends_after_its_time(self, start: Start, tmp_path: Path) -> None:
        runtime = start("--folder", str(tmp_path), permissions="ask", answer_timeout=0.05)
        first = await runtime(call("permit edit"), ignore_event)
        note = tmp_path / "cancelled"
        await until(lambda: note.exists() and bool(note.read_text()), WAIT_TIMEOUT)
        assert json.loads(note.read_text()) == ["cancelled"]
        await failure_of(runtime(follow_up(first, Answer()), ignore_event), BadInput)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def asking_agent(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Runtime]:
    folder = tmp_path_factory.mktemp("asking")
    runtime = build(manifest_of(command=PROGRAM, permissions="ask"), context_at(folder))
    yield runtime
    await runtime.aclose()


def follow_up(first: Result, answer: Answer) -> Call:
    assert first.asked is not None
    answers = Answers(continuation=first.asked.continuation, answers=dict.fromkeys(first.asked.questions, answer))
    return msgspec.structs.replace(call("permit"), answers=answers)


class TestCancelling:
    async def test_leaving_cancels_the_turn_and_the_conversation_goes_on(self, agent: Runtime, tmp_path: Path) -> None:
        note, heard = tmp_path / "note", Heard()
        asking = asyncio.ensure_future(agent(call(f"sleep {note}", "sleepy", stream=True), heard))
        await asyncio.wait_for(heard.something.wait(), WAIT_TIMEOUT)
        await cancelled(asking)
        await until(lambda: note.read_text() == "cancelled", WAIT_TIMEOUT)
        assert (await asked(agent, "recall", "sleepy"))["said"] == [f"sleep {note}", "recall"]


class TestTheProcess:
    async def test_it_works_in_its_folder_with_a_minimal_environment(self, trusted: Runtime) -> None:
        told = await asked(trusted, "look")
        assert told["cwd"] == told["here"]
        assert Path(told["cwd"]).name == "project"
        assert told["environ"]["TOKEN"] == "given"
        assert "FABRIC_PSK" not in told["environ"]

    async def test_mcp_servers_and_the_node_itself_are_offered_to_it(self, trusted: Runtime) -> None:
        files, far = SERVERS
        node = {"name": "fabric", "command": sys.executable, "args": ["-m", "a2a_fabric", "mcp"]}
        assert (await asked(trusted, "look"))["servers"] == [
            {**files, "env": [{"name": "A", "value": "b"}]},
            {**far, "type": "http", "headers": [{"name": "X-Key", "value": "k"}]},
            {**node, "env": [{"name": "FABRIC_HOME", "value": "/somewhere"}]},
        ]

    async def test_authentication_is_asked_for_in_words_that_help(self, start: Start) -> None:
        locked = await failure_of(start("--locked")(call("x"), ignore_event), AgentOffline)
        assert "requires a login" in locked.full_message
        assert "key (Use a key; AGENT_KEY)" in locked.full_message
        assert locked.details["auth_methods"] == ["key"]
        opened = start("--locked", authenticate="key")
        assert (await opened(call("say hello"), ignore_event)).data == {"answer": "hello"}

    async def test_describing_tells_who_it_is_and_what_it_takes(self, agent: Runtime) -> None:
        described = await agent.describe()
        assert (described.display_name, described.version) == ("SDK agent", "1.2.3")
        (capability,) = described.capabilities
        assert (capability.name, capability.streaming) == ("ask", True)
        assert capability.modalities == ("text", "json", "image", "audio", "file")
        assert await agent.health() == "online"

    @pytest.mark.parametrize(
        "endpoint",
        [
            {},
            {"command": []},
            {"command": "'open"},
            {"command": ["x"], "colour": "red"},
            {"command": ["x"], "permissions": "perhaps"},
            {"command": ["x"], "mcp_servers": [{"name": "neither"}]},
        ],
    )
    async def test_a_bad_endpoint_is_refused_naming_the_agent(self, endpoint: dict[str, Any]) -> None:
        with pytest.raises(BadInput, match="tested"):
            build(manifest_of(**endpoint), context_at())
