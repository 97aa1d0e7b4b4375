"""MCP servers that ask back, behind the runtime: both eras, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from a2a_fabric.core.call import Call, Principal, ignore_event
from a2a_fabric.core.errors import BadInput, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.result import Answer, Answers, Question, Questions, Result
from a2a_fabric.runtimes.mcp.questions import McpPendingQuestions, PendingMcpRequest
from a2a_fabric.runtimes.mcp.runtime import McpRuntime
from tests.fixtures.agents.calling import Heard, call_of, until
from tests.fixtures.mcp_servers.asking import URL, asking_program, serving_asking
from tests.runtimes.mcp_bench import Bench, failure_of

KINDS = ["stdio-stateless", "stdio-handshake", "http-stateless", "http-handshake"]
OLD = ["stdio-handshake", "http-handshake"]
COLOUR = Answer(content={"colour": "red"})
PERCY = Principal(mode="psk", principal_id="percy")
BEE = Principal(mode="psk", principal_id="bee")
WAIT_TIMEOUT = 30.0


class Asking:
    """Builds runtimes in front of a server that asks."""

    def __init__(self, stack: AsyncExitStack, base: Path) -> None:
        self._stack = stack
        self._bench = Bench(stack, base)

    async def __call__(self, kind: str, **endpoint: Any) -> McpRuntime:
        transport, _, era = kind.partition("-")
        if transport == "stdio":
            return self._bench.runtime(command=asking_program(), era=era, **endpoint)
        server = await self._stack.enter_async_context(serving_asking(era))  # type: ignore[arg-type]  # one of two
        return self._bench.runtime(uri=server.url, **endpoint)


@pytest.fixture
async def asking(tmp_path: Path) -> AsyncIterator[Asking]:
    async with asyncio.timeout(2 * WAIT_TIMEOUT), AsyncExitStack() as stack:
        yield Asking(stack, tmp_path)


def asked_in(result: Result) -> Questions:
    assert result.asked is not None, result
    return result.asked


def answering(call: Call, result: Result, *answers: Answer) -> Call:
    """The same call again, with the answers in the order of the questions."""
    asked = asked_in(result)
    return replace(
        call,
        answers=Answers(continuation=asked.continuation, answers=dict(zip(asked.questions, answers, strict=False))),
    )


async def rounds(server: McpRuntime, call: Call, *answers: Answer) -> Result:
    """One answer a round."""
    result = await server(call, ignore_event)
    for answer in answers:
        result = await server(answering(call, result, answer), ignore_event)
    return result


def first(result: Result) -> Any:
    return next(iter(asked_in(result).questions.values()))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_form_is_a_question_and_its_answer_completes_the_call(asking: Asking, kind: str) -> None:
    server = await asking(kind)
    call = call_of("paint", thing="door")
    result = await server(call, ignore_event)
    question = first(result)
    assert (question.kind, question.message) == ("form", "Which colour?")
    assert question.schema["properties"]["colour"]["type"] == "string"
    assert question.params["requestedSchema"] == question.schema
    assert (await server(answering(call, result, COLOUR), ignore_event)).data == {"answer": "door in red"}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_may_ask_twice(asking: Asking, kind: str) -> None:
    server = await asking(kind)
    call = call_of("order")
    second = await rounds(server, call, COLOUR)
    assert first(second).message == "Which size in red?"
    done = await server(answering(call, second, Answer(content={"size": 7})), ignore_event)
    assert done.data == {"answer": "red in 7"}


@pytest.mark.parametrize("kind", KINDS)
async def test_models_folders_and_urls_are_asked_for_too(asking: Asking, kind: str) -> None:
    server = await asking(kind)
    said = {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m1"}
    assert (await rounds(server, call_of("think"), Answer(content=said))).data == {"answer": "m1: hi"}
    assert (await rounds(server, call_of("think"), Answer(content="hey"))).data == {"answer": "unknown: hey"}
    roots = [{"uri": "file:///work", "name": "work"}]
    assert (await rounds(server, call_of("folders"), Answer(content=roots))).data == {"answer": "file:///work"}
    link = await server(call_of("sign"), ignore_event)
    assert (first(link).kind, first(link).params["url"]) == ("url", URL)
    assert (await rounds(server, call_of("sign"), Answer())).data == {"answer": "accept"}


@pytest.mark.parametrize("kind", KINDS)
async def test_who_declines_or_cancels_is_understood(asking: Asking, kind: str) -> None:
    server = await asking(kind)
    for action in ("decline", "cancel"):
        no = Answer(action=action)
        assert (await rounds(server, call_of("paint_if"), no)).data == {"answer": action}
        assert (await rounds(server, call_of("sign"), no)).data == {"answer": action}
        assert (await rounds(server, call_of("folders"), no)).data == {"answer": "none"}
    kind_of_failure = BadInput if "stateless" in kind else UpstreamRefused
    declined = await failure_of(rounds(server, call_of("think"), Answer(action="decline")), kind_of_failure)
    assert "declined" in declined.message


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_that_does_not_fit_is_refused_and_may_be_given_again(asking: Asking, kind: str) -> None:
    server = await asking(kind)
    call = call_of("folders")
    result = await server(call, ignore_event)
    wrong = await failure_of(server(answering(call, result, Answer(content=[{"uri": "no"}])), ignore_event), BadInput)
    assert "does not fit" in wrong.message
    good = Answer(content={"roots": [{"uri": "file:///a"}, {"uri": "file:///b"}]})
    assert (await server(answering(call, result, good), ignore_event)).data == {"answer": "file:///a file:///b"}


@pytest.mark.parametrize("kind", ["stdio-stateless", "http-stateless"])
async def test_a_stateless_server_asks_several_things_at_once_and_may_only_want_time(asking: Asking, kind: str) -> None:
    server = await asking(kind)
    call = call_of("everything")
    result = await server(call, ignore_event)
    assert [question.kind for question in asked_in(result).questions.values()] == ["form", "sampling", "roots"]
    done = await server(answering(call, result, COLOUR, Answer(content="hi"), Answer(content=[])), ignore_event)
    assert done.data == {"answer": "red unknown 0"}
    waiting = await server(call_of("patience"), ignore_event)
    assert asked_in(waiting).questions == {}
    for _ in range(2):
        waiting = await server(answering(call_of("patience"), waiting), ignore_event)
    assert waiting.data == {"answer": "done"}


@pytest.mark.parametrize("kind", OLD)
async def test_what_is_asked_at_once_may_be_answered_one_by_one(asking: Asking, kind: str) -> None:
    server = await asking(kind)
    call = call_of("ask_twice_at_once")
    result = await server(call, ignore_event)
    for _ in range(3):
        by_message = {"Which colour?": COLOUR, "Which size?": Answer(content={"size": 3})}
        result = await server(answering(call, result, by_message[first(result).message]), ignore_event)
        if result.asked is None:
            break
    assert result.data == {"answer": "red in 3"}


@pytest.mark.parametrize("kind", OLD)
async def test_events_after_the_answer_go_to_the_caller_that_brought_it(
    asking: Asking, kind: str, tmp_path: Path
) -> None:
    server = await asking(kind)
    call = call_of("ask_and_note", note=str(tmp_path / "note"), stream=True)
    before, after = Heard(), Heard()
    result = await server(call, before)
    done = await server(answering(call, result, COLOUR), after)
    assert done.data == {"answer": "accept"}
    assert "progress" not in before.kinds
    assert [event.data["message"] for event in after.events] == ["answered"]


@pytest.mark.parametrize("kind", OLD)
async def test_only_who_was_asked_can_answer_and_only_once(asking: Asking, kind: str) -> None:
    server = await asking(kind)
    call = replace(call_of("paint", thing="door"), auth=PERCY)
    result = await server(call, ignore_event)
    for foreign in (
        replace(call, auth=BEE),
        replace(call, auth=Principal(mode="jwt", principal_id="percy")),
        replace(call, target=replace(call.target, capability="order")),
    ):
        refused = await failure_of(server(answering(foreign, result, COLOUR), ignore_event), BadInput)
        assert refused.details["field"] == "continuation"
    assert (await server(answering(call, result, COLOUR), ignore_event)).data == {"answer": "door in red"}
    used = await failure_of(server(answering(call, result, COLOUR), ignore_event), BadInput)
    assert "used already" in used.message


@pytest.mark.parametrize("continuation", ["", "p.", "p.nonsense", "s.nonsense", "s.e30=", "x"])
async def test_a_continuation_that_is_none_is_refused(asking: Asking, continuation: str) -> None:
    server = await asking("http-stateless")
    call = replace(call_of("paint", thing="x"), answers=Answers(continuation=continuation))
    refused = await failure_of(server(call, ignore_event), BadInput)
    assert refused.details["field"] == "continuation"


@pytest.mark.parametrize("kind", OLD)
async def test_a_question_without_an_answer_in_time_is_cancelled(asking: Asking, kind: str, tmp_path: Path) -> None:
    server = await asking(kind, answer_timeout=0.2)
    note = tmp_path / "note"
    call = call_of("ask_and_note", note=str(note))
    result = await server(call, ignore_event)
    await until(lambda: note.exists() and note.read_text() == "cancel cancelled", WAIT_TIMEOUT)
    late = await failure_of(server(answering(call, result, COLOUR), ignore_event), BadInput)
    assert "has expired" in late.message


@pytest.mark.parametrize("kind", OLD)
async def test_cancelling_the_call_that_brings_the_answer_cancels_the_tool(
    asking: Asking, kind: str, tmp_path: Path
) -> None:
    server = await asking(kind)
    note = tmp_path / "note"
    call = call_of("ask_and_note", note=str(note))
    result = await server(call, ignore_event)
    bringing = asyncio.ensure_future(server(answering(call, result, Answer(action="decline")), ignore_event))
    await until(lambda: note.exists() and note.read_text() == "decline", WAIT_TIMEOUT)
    bringing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(bringing, WAIT_TIMEOUT)
    await until(lambda: note.exists() and note.read_text() == "decline cancelled", WAIT_TIMEOUT)


@pytest.mark.parametrize("kind", OLD)
async def test_closing_the_runtime_ends_calls_that_wait_for_an_answer(
    asking: Asking, kind: str, tmp_path: Path
) -> None:
    server = await asking(kind)
    await server.describe()
    before = len(asyncio.all_tasks())
    calls = [call_of("ask_and_note", note=str(tmp_path / str(number))) for number in range(5)]
    for call in calls:
        asked_in(await server(call, ignore_event))
    assert len(asyncio.all_tasks()) > before
    await server.aclose()
    await until(lambda: len(asyncio.all_tasks()) <= before, WAIT_TIMEOUT)


async def test_when_the_server_dies_the_answer_has_no_receiver(asking: Asking) -> None:
    server = await asking("stdio-handshake")
    call = call_of("paint", thing="door")
    result = await server(call, ignore_event)
    server._supervisor.current.retire()  # type: ignore[union-attr]  # it is there
    await failure_of(server(answering(call, result, COLOUR), ignore_event), UpstreamInterrupted)


async def test_over_pipes_no_caller_gets_a_question_that_may_be_anothers(asking: Asking) -> None:
    server = await asking("stdio-handshake")
    mine = replace(call_of("paint", thing="door"), auth=PERCY)
    result = await server(mine, ignore_event)
    theirs = replace(call_of("paint_if"), auth=BEE)
    assert (await server(theirs, ignore_event)).data == {"answer": "decline"}
    also_mine = replace(call_of("paint_if"), auth=PERCY)
    second = await server(also_mine, ignore_event)
    assert (await server(answering(also_mine, second, COLOUR), ignore_event)).data == {"answer": "accept"}
    assert (await server(answering(mine, result, COLOUR), ignore_event)).data == {"answer": "door in red"}


async def test_over_http_each_caller_gets_the_questions_of_their_own_call(asking: Asking) -> None:
    server = await asking("http-handshake")
    await server.describe()
    calls = [
        replace(call_of("paint", thing=f"door {number}"), auth=Principal(mode="psk", principal_id=str(number)))
        for number in range(8)
    ]
    results = await asyncio.gather(*(server(call, ignore_event) for call in calls))
    answers = [Answer(content={"colour": f"colour {number}"}) for number in range(8)]
    done = await asyncio.gather(
        *(server(answering(*each), ignore_event) for each in zip(calls, results, answers, strict=True))
    )
    assert [each.data["answer"] for each in done] == [f"door {n} in colour {n}" for n in range(8)]


async def test_a_url_that_must_be_visited_first_is_a_question_and_then_the_call_is_repeated(asking: Asking) -> None:
    server = await asking("stdio-handshake")
    call = call_of("sign_first")
    result = await server(call, ignore_event)
    assert (first(result).kind, first(result).params["url"]) == ("url", URL)
    refused = await failure_of(server(answering(call, result, Answer(action="decline")), ignore_event), BadInput)
    assert "visited" in refused.message
    assert (await server(answering(call, result, Answer()), ignore_event)).data == {"answer": "signed"}


async def test_a_question_outside_any_call_is_declined_and_there_are_no_folders_then(
    asking: Asking, tmp_path: Path
) -> None:
    server = await asking("stdio-handshake")
    note = tmp_path / "note"
    assert (await server(call_of("ask_afterwards", note=str(note)), ignore_event)).data == {"answer": "bye"}
    await until(lambda: note.exists() and note.read_text() == "decline 0", WAIT_TIMEOUT)


async def test_no_more_calls_wait_for_answers_than_may() -> None:
    pending = McpPendingQuestions("tested", 60.0, limit=1)
    results = []
    for _ in range(2):
        asked = PendingMcpRequest(Principal(mode="psk", principal_id="percy"), "tool")
        asked.start(asked.ask(Question(kind="form", message="Go on?")), on_end=lambda _: None)  # type: ignore[arg-type]  # as good as a reply
        results.append(await asyncio.wait_for(pending.wait_for_outcome(asked, ignore_event), WAIT_TIMEOUT))
    assert isinstance(results[0], Result)
    assert results[1] == {"action": "decline"}
    await pending.aclose()
    assert len(pending) == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_may_ask_nothing_is_not_offered_it(asking: Asking, kind: str) -> None:
    server = await asking(kind, answer_timeout=0)
    refused = await failure_of(server(call_of("paint", thing="door"), ignore_event), UpstreamRefused)
    assert "elicitation" in str(refused.message).lower()
