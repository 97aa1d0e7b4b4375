"""Agents written with the library take and give content of any kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import Attachment, Call, ignore_event
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.result import Event, Part, Result
from tests.fixtures.agents.calling import Heard, call_of

PIXEL = Part(kind="image", blob="aW1n", mime_type="image/png", name="a.png")
WORDS = Part(kind="text", text="see")
SENT = Attachment(type="file", content="aW1n", mime_type="image/png", name="a.png")


def offering(function: Any) -> Agent:
    agent = Agent("painter")
    agent.capability(name="do")(function)
    return agent


def sending(*attachments: Attachment, task: str = "", **context: Any) -> Call:
    call = call_of("do", task, **context)
    return msgspec.structs.replace(call, input=msgspec.structs.replace(call.input, attachments=attachments))


async def answer(function: Any, call: Call) -> Result:
    return await offering(function)(call, ignore_event)


class TestTaking:
    async def test_a_parameter_of_parts_gets_what_is_attached_whatever_its_name(self) -> None:
        async def do(size: int, pictures: list[Part]) -> dict[str, Any]:
            return {"size": size, "seen": pictures}

        result = await answer(do, sending(SENT, size=3))
        assert result.data == {"size": 3, "seen": [msgspec.to_builtins(PIXEL)]}
        assert result.notes == ()

    async def test_its_schema_has_a_list_called_attachments(self) -> None:
        def do(size: int, pictures: list[Part]) -> None: ...

        schema = offering(do).manifest().capabilities[0].input_schema
        assert schema is not None
        assert set(schema["properties"]) == {"size", "attachments"}
        assert schema["required"] == ["size", "attachments"]

    async def test_typed_arguments_bring_them_as_well(self) -> None:
        def do(size: int, pictures: Sequence[Part] = ()) -> list[str]:
            return [part.kind for part in pictures]

        attached = [{"type": "data", "content": {"a": 1}, "kind": "function_call"}]
        assert (await answer(do, sending(size=1, attachments=attached))).data == {"result": ["function_call"]}
        assert (await answer(do, sending(size=1))).data == {"result": []}

    async def test_with_words_alone_it_takes_the_envelope_as_it_is(self) -> None:
        def do(task: str, pictures: list[Part] | None = None) -> str:
            return f"{task}: {len(pictures or ())}"

        assert offering(do).manifest().capabilities[0].input_schema is None
        assert (await answer(do, sending(SENT, SENT, task="count"))).data == {"answer": "count: 2"}
        assert (await answer(do, sending(task="count"))).data == {"answer": "count: 0"}

    async def test_a_function_that_takes_none_answers_with_a_note(self) -> None:
        def do(size: int) -> str:
            return "done"

        def words(task: str, context: dict[str, Any]) -> str:
            return "done"

        for function in (do, words):
            result = await answer(function, sending(SENT, size=1))
            assert result.data == {"answer": "done"}
            assert result.notes == ("'a.png' was not sent: 'do' takes no attachments",)

    async def test_a_function_that_takes_the_envelope_sees_them_there(self) -> None:
        def do(size: int, call: Call) -> int:
            return len(call.input.attachments)

        result = await answer(do, sending(SENT, size=1))
        assert (result.data, result.notes) == ({"result": 1}, ())

    async def test_bad_base64_among_typed_arguments_is_bad_input(self) -> None:
        def do(size: int, pictures: list[Part]) -> None: ...

        with pytest.raises(BadInput, match="not base64") as caught:
            await answer(do, sending(size=1, attachments=[{"type": "file", "content": "?"}]))
        assert caught.value.details["field"] == "attachments[0].content"

    def test_only_one_parameter_can_take_them(self) -> None:
        def twice(a: list[Part], b: list[Part]) -> None: ...

        def beside(a: list[Part], attachments: list[str]) -> None: ...

        for function in (twice, beside):
            with pytest.raises(TypeError, match="only one parameter"):
                offering(function)


class TestGiving:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (PIXEL, Result(data={}, parts=(PIXEL,))),
            ([WORDS, PIXEL], Result(data={"answer": "see"}, parts=(WORDS, PIXEL))),
            (WORDS, Result(data={"answer": "see"})),
            (Result(data={"n": 1}, parts=(PIXEL,)), Result(data={"n": 1}, parts=(PIXEL,))),
        ],
    )
    async def test_parts_are_an_answer(self, given: Any, expected: Result) -> None:
        async def do() -> Any:
            return given

        assert await answer(do, sending()) == expected

    async def test_a_hint_of_parts_makes_no_schema(self) -> None:
        def one() -> Part:
            return PIXEL

        def many() -> list[Part]:
            return [PIXEL]

        for function in (one, many):
            assert offering(function).manifest().capabilities[0].output_schema is None

    async def test_yielded_parts_are_artifacts_and_stand_beside_the_answer(self) -> None:
        async def do() -> AsyncIterator[Any]:
            yield "working"
            yield PIXEL
            yield {"n": 1}

        heard = Heard()
        result = await offering(do)(sending(), heard)
        assert result == Result(data={"n": 1}, parts=(PIXEL,))
        assert heard.events[1] == Event("artifact", msgspec.to_builtins(PIXEL))

    async def test_yielded_parts_alone_are_the_answer(self) -> None:
        async def silent() -> AsyncIterator[Any]:
            yield PIXEL

        async def talking() -> AsyncIterator[Any]:
            yield "look"
            yield PIXEL

        assert await answer(silent, sending()) == Result(data={}, parts=(PIXEL,))
        assert await answer(talking, sending()) == Result(data={"answer": "look"}, parts=(PIXEL,))
