"""What was told of an answer on the way, and what is left to tell when it is there."""

from __future__ import annotations

import pytest

from a2a_fabric.core.result import Part
from a2a_fabric.doors.a2a.task_updates import LONG_ANSWER_BYTES, AnswerDiff

IMAGE = Part(kind="image", blob="aGk=", mime_type="image/png")
TABLE = Part(kind="json", data={"rows": 2, "columns": 3})


def words(text: str) -> Part:
    return Part(kind="text", text=text)


def told(*parts: Part) -> AnswerDiff:
    diff = AnswerDiff()
    for part in parts:
        diff.add(part)
    return diff


@pytest.mark.parametrize("length", [1, LONG_ANSWER_BYTES])
def test_an_answer_that_begins_as_it_was_told_goes_on_from_there(length: int) -> None:
    diff = told(words("a" * length), words("b"), IMAGE, words("c"))
    begun = (words("a" * length + "b"), IMAGE, words("c"))
    assert diff.find_remainder(begun) == ()
    assert diff.find_remainder((*begun, TABLE)) == (TABLE,)
    assert diff.to_parts() == (begun if length == 1 else None)


@pytest.mark.parametrize(
    "answer",
    [
        (words("ab"),),
        (words("abc"), TABLE),
        (words("ab"), Part(kind="json", data={"rows": 3})),
        (Part(kind="text", text="ab", name="notes.txt"), TABLE),
        (TABLE, words("ab")),
        (),
    ],
)
def test_any_other_takes_its_place(answer: tuple[Part, ...]) -> None:
    assert told(words("a"), words("b"), TABLE).find_remainder(answer) is None


def test_where_nothing_was_told_all_is_left() -> None:
    diff = AnswerDiff()
    assert diff.is_empty
    assert diff.to_parts() == ()
    assert diff.find_remainder((IMAGE, TABLE)) == (IMAGE, TABLE)


def test_data_is_the_same_in_whatever_order_its_keys_are() -> None:
    other = Part(kind="json", data={"columns": 3, "rows": 2})
    assert told(TABLE).find_remainder((other, IMAGE)) == (IMAGE,)
