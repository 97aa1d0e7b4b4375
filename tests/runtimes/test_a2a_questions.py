"""A2A agents that want to know something first: the question is the result, and the answer goes to the same task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from msgspec.structs import replace

from a2a_fabric.core.call import ignore_event
from a2a_fabric.core.errors import BadInput, FabricError
from a2a_fabric.core.result import Answer, Answers
from a2a_fabric.runtimes.a2a.runtime import A2ARuntime
from tests.fixtures.agents.a2a_agent import PAGE
from tests.fixtures.agents.a2a_serving import Served, serving
from tests.fixtures.agents.calling import call_of
from tests.marks import requirement
from tests.runtimes.a2a_bench import LINES, Bench, answering

pytestmark = pytest.mark.asyncio(loop_scope="module")
WAIT_TIMEOUT = 60.0
on_every_line = pytest.mark.parametrize("line", LINES)
RED = Answer(content={"answer": "red"})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def everyday() -> AsyncIterator[Served]:
    async with serving("jsonrpc", "http", "grpc", versions=("1.0", "0.3")) as served:
        yield served


@pytest_asyncio.fixture(loop_scope="module")
async def agent(everyday: Served, line: str) -> AsyncIterator[A2ARuntime]:
    async with asyncio.timeout(WAIT_TIMEOUT), AsyncExitStack() as stack:
        yield Bench(stack).on(line, everyday.url)


@requirement("001-56")
@on_every_line
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_a_task_may_ask_twice_in_words_and_by_a_form(agent: A2ARuntime, *, stream: bool) -> None:
    call = call_of("paint", stream=stream)
    first = await agent(call, ignore_event)
    assert first.asked is not None
    [colour] = first.asked.questions.values()
    assert (colour.kind, colour.message) == ("form", "Which colour?")
    assert colour.schema is not None
    assert colour.schema["required"] == ["answer"]
    second = await agent(answering(call, first, RED), ignore_event)
    assert second.asked is not None
    [size] = second.asked.questions.values()
    assert (size.message, size.schema) == (
        "Which size?",
        {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]},
    )
    done = await agent(answering(call, second, Answer(content={"size": 7})), ignore_event)
    assert (done.asked, done.data) == (None, {"answer": "red in 7"})


@on_every_line
async def test_a_task_that_needs_credentials_asks_with_a_url(agent: A2ARuntime) -> None:
    call = call_of("login")
    result = await agent(call, ignore_event)
    assert result.asked is not None
    [question] = result.asked.questions.values()
    assert (question.kind, question.message, question.params["url"]) == ("url", "Log in first", PAGE)
    assert (await agent(answering(call, result, Answer()), ignore_event)).data == {"answer": "after 'Done.'"}


@on_every_line
async def test_who_declines_tells_the_agent_so(agent: A2ARuntime, everyday: Served) -> None:
    call = call_of("paint")
    await agent(answering(call, await agent(call, ignore_event), Answer(action="decline")), ignore_event)
    sent = everyday.executor.sent[-1]
    assert sent["parts"][0]["text"] == "The question was declined."
    assert sent["parts"][0]["metadata"] == {"action": "decline"}


@on_every_line
async def test_who_cancels_the_question_cancels_the_task(agent: A2ARuntime) -> None:
    call = call_of("paint")
    result = await agent(call, ignore_event)
    with pytest.raises(BadInput, match="was cancelled"):
        await agent(answering(call, result, Answer(action="cancel")), ignore_event)
    with pytest.raises(FabricError):
        await agent(answering(call, result, RED), ignore_event)


@on_every_line
async def test_an_answer_to_an_unknown_question_is_bad_input(agent: A2ARuntime) -> None:
    call = call_of("paint")
    result = await agent(call, ignore_event)
    assert result.asked is not None
    unknown = "eyJ0YXNrX2lkIjoibm8tc3VjaC10YXNrIn0="  # a task that does not exist
    for continuation in ("???", "bm8=", unknown):
        given = Answers(continuation=continuation, answers={"answer": RED})
        with pytest.raises(BadInput, match="continuation is unknown"):
            await agent(replace(call, answers=given), ignore_event)
    for answers in ({}, {"answer": Answer(content={})}):
        with pytest.raises(BadInput, match="answer"):
            await agent(
                replace(call, answers=Answers(continuation=result.asked.continuation, answers=answers)), ignore_event
            )
