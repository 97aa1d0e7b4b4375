"""An agent that wants to know something first: its question is a result, the answer goes back to it alone."""

from __future__ import annotations

from msgspec.structs import replace

from a2a_fabric.core.errors import AgentOffline, BadInput
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
    assert result.asked.continuation == "percy:state-7"
    told = result.data["input_required"]
    assert (told["message"], told["continuation"]) == ("Which colour?", "percy:state-7")
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
    assert first.asked.continuation == "percy-backup:state-7"
    second = await route(replace(call(), answers=answered(first.asked.continuation)))
    assert second.data == {"answer": "red it is"}
    assert route.asked == {"percy": 1, "percy-backup": 2}
    assert route.runtimes["percy-backup"].calls[1].answers == answered("state-7")


async def test_when_the_one_who_asked_fails_no_other_gets_the_answer() -> None:
    route = ScriptedRoute((percy(), AgentOffline("gone")), (backup(), {"answer": "who, me?"}))
    error = await route.fails(replace(call(), answers=answered("percy:state-7")))
    assert isinstance(error, AgentOffline)
    assert route.asked == {"percy": 1}


async def test_an_answer_for_an_agent_that_was_not_asked_is_refused() -> None:
    route = ScriptedRoute((percy(), {}), (backup(), {}))
    for continuation in ("somebody:else", "", "state-7"):
        error = await route.fails(replace(call(), answers=answered(continuation)))
        assert isinstance(error, BadInput)
        assert error.details["field"] == "continuation"
    assert route.asked == {}
