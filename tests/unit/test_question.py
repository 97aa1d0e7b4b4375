"""An agent that wants to know something first: its question is a result, the answer goes back to it alone."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentOffline, BadInput
from a2a_fabric.core.pending_questions import ContinuationSeal
from a2a_fabric.core.result import Answer, Answers, Question, make_input_required
from tests.unit.made import Heard, call
from tests.unit.scripted_route import ScriptedRoute
from tests.unit.test_route_step import backup, percy

COLOUR = make_input_required(
    {"q1": Question(kind="form", message="Which colour?", schema={"type": "object"})}, "state-7"
)
RED = {"q1": Answer(content={"colour": "red"})}


def answered(continuation: str) -> Answers:
    return Answers(continuation=continuation, answers=RED)


async def test_a_question_is_a_result_whose_continuation_says_who_asked() -> None:
    result = await ScriptedRoute((percy(), COLOUR))()
    assert result.asked is not None
    agent_id, signature, continuation = result.asked.continuation.split(":")
    assert (agent_id, len(signature), continuation) == ("percy", 22, "state-7")
    told = result.data["input_required"]
    assert (told["message"], told["continuation"]) == ("Which colour?", result.asked.continuation)
    assert told["questions"]["q1"]["schema"] == {"type": "object"}


async def test_a_listening_caller_hears_the_question_as_an_event_too() -> None:
    heard = Heard()
    result = await ScriptedRoute((percy(streaming=True), COLOUR))(call(stream=True), heard)
    assert heard.of("input_required") == [result.data["input_required"]]


async def test_the_answer_reaches_the_fallback_that_asked_and_no_other_agent() -> None:
    route = ScriptedRoute((percy(), [AgentOffline("x"), {}]), (backup(), [COLOUR, {"answer": "red it is"}]))
    first = await route()
    assert first.asked is not None
    assert first.fallback is not None
    assert first.asked.continuation.startswith("percy-backup:")
    second = await route(replace(call(), answers=answered(first.asked.continuation)))
    assert second.data == {"answer": "red it is"}
    assert route.asked == {"percy": 1, "percy-backup": 2}
    assert route.runtimes["percy-backup"].calls[1].answers == answered("state-7")


async def test_when_the_one_who_asked_fails_no_other_gets_the_answer() -> None:
    route = ScriptedRoute((percy(), [COLOUR, AgentOffline("gone")]), (backup(), {"answer": "who, me?"}))
    first = await route()
    assert first.asked is not None
    error = await route.fails(replace(call(), answers=answered(first.asked.continuation)))
    assert isinstance(error, AgentOffline)
    assert route.asked == {"percy": 2}


async def test_an_answer_for_an_agent_that_was_not_asked_is_refused() -> None:
    route = ScriptedRoute((percy(), {}), (backup(), {}))
    for continuation in ("somebody:else", "", "state-7", "percy:state-7", "percy::state-7", "percy:\ud800:x"):
        error = await route.fails(replace(call(), answers=answered(continuation)))
        assert isinstance(error, BadInput)
        assert error.details["field"] == "continuation"
    assert route.asked == {}


async def test_what_a_job_kept_needs_no_signature_of_this_run() -> None:
    """A job waits longer than a node without a key runs."""
    first = await ScriptedRoute((percy(), COLOUR))()
    assert first.asked is not None
    given = answered(first.asked.continuation)
    later = ScriptedRoute((percy(), {"answer": "red it is"}))
    assert isinstance(await later.fails(replace(call(), answers=given)), BadInput)
    assert (await later(replace(call(), answers=replace(given, is_trusted=True)))).data == {"answer": "red it is"}


def test_nodes_with_the_same_key_accept_the_same_continuations_from_the_same_caller() -> None:
    sealed = ContinuationSeal("key").seal("percy", "state:7", call())
    assert ContinuationSeal("key").open(sealed, call()) == ("percy", "state:7")
    other = replace(call(), auth=Principal(mode="psk", principal_id="mallory"))
    on_behalf = replace(call(), on_behalf_of=Principal(mode="psk", principal_id="mallory"))
    for seal, caller in ((ContinuationSeal("other"), call()), (ContinuationSeal("key"), other)):
        with pytest.raises(BadInput, match="continuation is unknown"):
            seal.open(sealed, caller)
    with pytest.raises(BadInput, match="continuation is unknown"):
        ContinuationSeal("key").open(sealed, on_behalf)
