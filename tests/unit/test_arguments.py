from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Attachment, Input, bind_arguments
from tests.marks import requirement

TEXT = {"type": "string"}
NUMBER = {"type": "number"}


def made(schema: dict[str, Any] | None, task: str = "", /, **context: Any) -> dict[str, Any]:
    return bind_arguments(Capability(name="c", input_schema=schema), Input(task=task, context=context))


@requirement("001-33")
def test_without_a_schema_task_and_context_go_as_they_are() -> None:
    assert made(None, "hi", a=1) == {"task": "hi", "context": {"a": 1}}
    assert bind_arguments(None, Input(task="hi")) == {"task": "hi", "context": {}}


@requirement("001-33")
def test_without_a_schema_attachments_go_along() -> None:
    given = Input(task="look", attachments=(Attachment(type="url", content="http://x", mime_type="image/png"),))
    (attachment,) = bind_arguments(None, given)["attachments"]
    assert (attachment["type"], attachment["content"], attachment["mime_type"]) == ("url", "http://x", "image/png")


@pytest.mark.parametrize(
    ("schema", "context", "expected"),
    [
        ({"properties": {"task": TEXT, "text": TEXT}, "required": ["text"]}, {}, {"task": "hi"}),
        ({"properties": {"task": TEXT}}, {"task": "own"}, {"task": "own"}),
        ({"properties": {"text": TEXT}, "required": ["text"]}, {}, {"text": "hi"}),
        ({"properties": {"text": TEXT}, "required": ["text"]}, {"text": "own"}, {"text": "own"}),
        ({"properties": {"text": TEXT}}, {}, {}),
        ({"properties": {"a": TEXT, "b": TEXT}, "required": ["a", "b"]}, {}, {}),
        ({"properties": {"a": TEXT, "b": TEXT}, "required": ["a", "b"]}, {"a": "x"}, {"a": "x", "b": "hi"}),
        ({"properties": {"n": NUMBER}, "required": ["n"]}, {"n": 1}, {"n": 1}),
        ({"properties": {"n": NUMBER}, "required": ["n"]}, {}, {}),
        ({}, {"a": 1}, {"a": 1}),
    ],
)
def test_words_fill_the_task_or_the_only_required_text_still_missing(
    schema: dict[str, Any], context: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert made(schema, "hi", **context) == expected


def test_no_words_fill_nothing() -> None:
    assert made({"properties": {"text": TEXT}, "required": ["text"]}) == {}


def test_the_callers_context_is_not_changed() -> None:
    context = {"a": "x"}
    given = Input(task="hi", context=context)
    schema = {"properties": {"a": TEXT, "b": TEXT}, "required": ["a", "b"]}
    bind_arguments(Capability(name="c", input_schema=schema), given)
    assert context == {"a": "x"}


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["string", "a", "task"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "task", "type"]), inner, max_size=3)
    ),
)


@given(properties=ODD, required=st.lists(st.sampled_from(["a", "task", "b"])))
def test_no_schema_of_an_agent_breaks_the_call(properties: Any, required: list[str]) -> None:
    """`true` is a schema too, and an agent may publish nonsense."""
    assert isinstance(made({"properties": properties, "required": required}, "hi"), dict)
