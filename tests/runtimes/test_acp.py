"""The runtime `acp` in front of a server of the official SDK, which runs in an environment of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.errors import (
    BadInput,
    CallTimeout,
    CapabilityNotFound,
    UpstreamRefused,
)
from a2a_fabric.core.result import Answers, Event, Part, Result
from a2a_fabric.runtimes.acp.runtime import build
from tests.fixtures.agents.calling import HERE, Heard, until
from tests.fixtures.node import tasks_are_down_to
from tests.fixtures.peers import peer
from tests.marks import requirement
from tests.runtimes.remote_bench import WAIT_TIMEOUT, Bench, Remote, answering, call_for

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODES = ["stream", "async", "sync"]
WITH_EVENTS = ["stream", "async"]
WORDS = ["one", "two", "three"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[str]:
    async with peer("acp", HERE / "acp_server.py") as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(server: str) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(stack, build, HERE)


@pytest.fixture
def acp(bench: Bench, server: str) -> Remote:
    return bench(uri=server)


@requirement("001-15", "001-18")
@pytest.mark.parametrize("mode", MODES)
async def test_an_agent_answers_in_every_mode(bench: Bench, server: str, mode: str) -> None:
    result = await bench(uri=server, mode=mode).ask("reverse", "stressed")
    assert result == Result(data={"answer": "desserts"})


@requirement("001-15", "001-18")
async def test_every_agent_of_the_server_is_a_capability(acp: Remote) -> None:
    manifest = await acp.runtime.describe()
    named = {capability.name: capability for capability in manifest.capabilities}
    assert {"echo", "reverse", "think-aloud", "book"} <= named.keys()
    assert named["reverse"].description == "Turns words round."
    assert named["reverse"].modalities == ("text", "json")
    assert named["echo"].streaming


@requirement("001-15")
async def test_with_an_agent_named_only_that_one_answers_whatever_it_is_called_here(bench: Bench, server: str) -> None:
    one = bench(uri=server, agent="reverse")
    manifest = await one.runtime.describe()
    assert [capability.name for capability in manifest.capabilities] == ["reverse"]
    assert (manifest.display_name, manifest.description, manifest.tags) == ("reverse", "Turns words round.", ("words",))
    assert (await one.ask("anything", "stressed")).data == {"answer": "desserts"}


async def test_a_name_that_is_written_differently_is_found(acp: Remote) -> None:
    assert (await acp.ask("think_aloud")).data["answer"] == "it is three indeed"


async def test_typed_arguments_arrive_as_json_and_an_object_comes_back(bench: Bench, server: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}, "required": ["s"]}
    declared = bench(Capability(name="echo", input_schema=schema), uri=server)
    assert await declared.ask("echo", "words", n=3) == Result(data={"seen": {"n": 3, "s": "words"}})
    assert (await declared.ask("free", "words", n=3)).data == {"seen": {"task": "words", "context": {"n": 3}}}


@requirement("001-15", "001-21")
@pytest.mark.parametrize("mode", WITH_EVENTS)
async def test_words_arrive_while_the_agent_is_still_speaking(
    bench: Bench, server: str, mode: str, tmp_path: Path
) -> None:
    go_on, heard = tmp_path / "go_on", list[str]()

    async def hear(event: Event) -> None:
        if event.kind == "token":
            heard.append(event.data["text"])
            go_on.touch()

    remote = bench(uri=server, mode=mode)
    result = await remote.ask("count", emit=hear, stream=True, words=WORDS, go_on=str(go_on))
    assert result.data == {"counted": 3}
    assert heard == WORDS


@requirement("001-15", "001-21")
@pytest.mark.parametrize("mode", WITH_EVENTS)
async def test_what_happens_on_the_way_is_told_and_the_result_keeps_it(bench: Bench, server: str, mode: str) -> None:
    heard = Heard()
    result = await bench(uri=server, mode=mode).ask("think-aloud", emit=heard, stream=True)
    assert heard.kinds == ["status", "tool_call", "status", "token", "token", "token", "artifact"]
    assert heard.events[0].data == {"status": "running", "message": "first I add"}
    assert heard.events[1].data == {"tool": "add", "arguments": {"a": 1, "b": 2}, "result": {"sum": 3}}
    assert heard.events[2].data["message"] == "half way"
    assert heard.events[6].data == {"kind": "text", "text": "3", "name": "sum.txt"}
    assert result.data["citations"] == [{"url": "http://127.0.0.1/sums", "title": "Sums"}]
    assert [part.kind for part in result.parts] == ["function_call", "function_result", "text", "text"]


async def test_a_caller_who_does_not_listen_hears_nothing(acp: Remote) -> None:
    heard = Heard()
    await acp.ask("think-aloud", emit=heard)
    assert heard.events == []


@requirement("001-15", "001-19")
@pytest.mark.parametrize("mode", MODES)
async def test_errors_are_what_the_agent_says_they_are(bench: Bench, server: str, mode: str) -> None:
    remote = bench(uri=server, mode=mode)
    with pytest.raises(BadInput, match="reluctance"):
        await remote.ask("refuse", "reluctance")
    with pytest.raises(UpstreamRefused, match="broken"):
        await remote.ask("fail", "broken")
    with pytest.raises(CapabilityNotFound, match="offers: echo"):
        await remote.ask("dance")


CONTENT = (
    Part(kind="image", blob="iVBORw==", mime_type="image/png", name="dot.png"),
    Part(kind="audio", blob="UklGRg==", mime_type="audio/wav"),
    Part(kind="video", url="http://127.0.0.1/film", mime_type="video/mp4"),
    Part(kind="file", blob="AAEC", mime_type="application/octet-stream", name="bytes"),
    Part(kind="text", text="<p>hello</p>", mime_type="text/html", name="page"),
    Part(kind="json", data={"n": [1, None]}, name="numbers"),
    Part(kind="function_call", data={"name": "add", "arguments": {"a": 1}}),
    Part(kind="function_result", data={"name": "add", "result": 2}),
)


@requirement("001-15")
@pytest.mark.parametrize("part", CONTENT, ids=[part.kind for part in CONTENT])
async def test_content_of_every_kind_travels_both_ways(acp: Remote, part: Part) -> None:
    heard = Heard()
    result = await acp.ask("mirror", "look", emit=heard, parts=(part,), stream=True)
    assert result.parts == (Part(kind="text", text="look"), part)
    assert result.notes == ()
    assert heard.kinds == ["token", "tool_call" if part.kind.startswith("function") else "artifact"]


@requirement("001-15")
async def test_calls_of_one_conversation_share_a_session(acp: Remote) -> None:
    said = [(await acp.ask("recall", word, conversation="trip")).data["answer"] for word in ("a", "b", "c")]
    sessions = {each.partition(": ")[0] for each in said}
    assert len(sessions) == 1
    assert said[-1].endswith(": a, b")


async def test_a_conversation_is_not_shared_with_another_caller_or_none(acp: Remote) -> None:
    await acp.ask("recall", "secret", conversation="mine")
    strangers: list[dict[str, Any]] = [{"conversation": "mine", "who": "bee"}, {"conversation": "other"}, {}]
    for stranger in strangers:
        assert (await acp.ask("recall", "what?", **stranger)).data["answer"].endswith(": ")


@requirement("001-15")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_that_waits_is_a_question_and_goes_on_with_the_answer(
    bench: Bench, server: str, mode: str, stream: bool
) -> None:
    remote, call, heard = bench(uri=server, mode=mode), call_for("book", "a table", stream=stream), Heard()
    asked = await remote.send(call)
    assert asked.asked is not None
    [question] = asked.asked.questions.values()
    assert (question.kind, question.message) == ("form", "For when?")
    result = await remote.send(answering(call, asked, {"answer": "eight"}), heard)
    assert result.data == {"answer": "let me see. a table for eight"}
    tokens = [event.data["text"] for event in heard.events]
    assert tokens == (["a table for eight"] if stream and mode != "sync" else [])


async def test_an_answer_may_come_through_another_node(bench: Bench, server: str) -> None:
    call = call_for("book", "a table")
    asked = await bench(uri=server).send(call)
    assert (await bench(uri=server).send(answering(call, asked, "nine"))).data["answer"].endswith("for nine")


async def test_a_question_that_is_declined_cancels_the_run(bench: Bench, server: str) -> None:
    remote, call = bench(uri=server), call_for("book", "a table")
    asked = await remote.send(call)
    with pytest.raises(UpstreamRefused, match="cancelled"):
        await remote.send(answering(call, asked, None, action="decline"))
    assert asked.asked is not None
    await bench.until_seen(f"{server}/runs/{asked.asked.continuation}", b'"status":"cancelled"')


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "continuation", ["../agents", "00000000-0000-4000-8000-000000000000", "", "x" * 500], ids=range(4)
)
async def test_a_continuation_that_was_never_given_out_is_refused(
    bench: Bench, server: str, mode: str, continuation: str
) -> None:
    call = call_for("book", stream=True)
    forged = answering(call, await bench(uri=server).send(call), "eight")
    assert forged.answers
    wrong = Answers(continuation=continuation, answers=forged.answers.answers)
    with pytest.raises(BadInput, match="continuation is unknown"):
        await bench(uri=server, mode=mode).send(replace(forged, answers=wrong))


@requirement("001-15")
@pytest.mark.parametrize("mode", WITH_EVENTS)
async def test_cancelling_a_call_cancels_the_agents_work(bench: Bench, server: str, mode: str, tmp_path: Path) -> None:
    note = tmp_path / "note"
    asking = asyncio.ensure_future(bench(uri=server, mode=mode).ask("sleep", str(note)))
    await until(note.exists, WAIT_TIMEOUT)
    asking.cancel()
    await asyncio.wait({asking})
    assert asking.cancelled()
    await until(lambda: note.read_text() == "cancelled", WAIT_TIMEOUT)


@requirement("001-15", "001-44")
async def test_a_call_ends_at_its_deadline_and_the_agents_work_with_it(
    bench: Bench, server: str, tmp_path: Path
) -> None:
    async def end(mode: str) -> None:
        note = tmp_path / mode
        with pytest.raises(CallTimeout):
            await bench(uri=server, mode=mode).ask("sleep", str(note), timeout=3)
        await until(lambda: not note.exists() or note.read_text() == "cancelled", WAIT_TIMEOUT)

    await asyncio.gather(*map(end, WITH_EVENTS))


@requirement("001-15", "001-18")
async def test_a_server_that_is_there_is_online(acp: Remote) -> None:
    assert await acp.runtime.health() == "online"


async def test_nothing_stays_when_the_runtime_is_closed(server: str, tmp_path: Path) -> None:
    before = len(asyncio.all_tasks())
    async with AsyncExitStack() as stack:
        remote = Bench(stack, build, tmp_path)(uri=server)
        note = tmp_path / "note"
        asking = asyncio.ensure_future(remote.ask("sleep", str(note)))
        await until(note.exists, WAIT_TIMEOUT)
        asking.cancel()
        await asyncio.wait({asking})
        await remote.runtime.aclose()
        await remote.runtime.aclose()
        assert len(asyncio.all_tasks()) <= before + 1
    await tasks_are_down_to(before)
