"""A call in words, and an object out of words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import Attachment, Call, Input, Principal, Target
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.runtimes.prompt import build_format_instruction, build_prompt, find_json_object

TEXT = {"type": "string"}
REVIEW = Capability(name="review", description="Reviews code.")
TYPED = Capability(name="typed", input_schema={"type": "object", "properties": {"a": TEXT, "b": TEXT}})
LONE = Capability(name="lone", input_schema={"type": "object", "properties": {"a": TEXT}, "required": ["a"]})
WITH_FILES = Capability(
    name="files", input_schema={"type": "object", "properties": {"task": TEXT, "attachments": {"type": "array"}}}
)
MADE = Capability(name="made", output_schema={"type": "object"})


def words(capability: Capability, *others: Capability, task: str = "", **more: Any) -> str:
    manifest = Manifest(agent_id="tested", endpoint={}, capabilities=(capability, *others))
    return build_prompt(manifest, call_of(capability, task=task, **more))


def call_of(capability: Capability, **given: Any) -> Call:
    target = Target(agent_id="tested", capability=capability.name)
    return Call(trace=new_trace(), auth=Principal(), target=target, input=Input(**given))


def test_a_task_alone_is_said_as_it_was_given() -> None:
    assert words(REVIEW, task=" look\n here ") == " look\n here "


def test_what_belongs_to_the_task_follows_as_json() -> None:
    assert words(REVIEW, task="look", context={"depth": 2}) == 'look\n\n```json\n{"depth":2}\n```'


def test_of_several_capabilities_the_one_that_is_meant_is_named() -> None:
    assert words(REVIEW, LONE, task="look") == "Asked for: review (Reviews code.)\n\nlook"


def test_so_is_a_lone_one_if_there_is_nothing_else_to_say() -> None:
    assert words(REVIEW) == "Asked for: review (Reviews code.)"
    with pytest.raises(BadInput, match="give it a task"):
        build_prompt(Manifest(agent_id="tested", endpoint={}), call_of(REVIEW))


def test_arguments_go_as_json_and_a_lone_text_as_words() -> None:
    assert words(TYPED, context={"a": "x", "b": "y"}) == '```json\n{"a":"x","b":"y"}\n```'
    assert words(LONE, task="just this") == "just this"
    assert words(LONE, context={"a": "just this"}) == "just this"
    assert words(LONE, context={"a": 7}) == '```json\n{"a":7}\n```'


def test_attachments_are_not_among_the_arguments() -> None:
    attached = (Attachment(type="file", content="AAAA", mime_type="image/png"),)
    assert words(WITH_FILES, task="look", attachments=attached) == "look"
    assert words(REVIEW, task="look", attachments=attached) == "look"


def test_only_a_declared_object_is_asked_for() -> None:
    assert build_format_instruction(REVIEW) == build_format_instruction(None) == ""
    assert build_format_instruction(MADE).endswith('this schema: {"type":"object"}')
    assert find_json_object('{"a": 1}', REVIEW) == (None, ())


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        ' {"a": 1}\n',
        'Here it is:\n```json\n{"a": 1}\n```\nDone.',
        '```\n{"a": 1}\n```',
        '```x```\n```\n{"a":1}```',
    ],
)
def test_an_object_is_found_among_the_words(text: str) -> None:
    assert find_json_object(text, MADE) == ({"a": 1}, ())


@pytest.mark.parametrize("text", ["", "no", "[1]", '"a"', "```json\n[1]\n```", "[" * 100_000, '{"a": 1'])
def test_what_is_no_object_is_noted(text: str) -> None:
    found, notes = find_json_object(text, MADE)
    assert found is None
    assert msgspec.json.encode(notes) == b'["the agent\'s answer is not the JSON object that was asked for"]'
