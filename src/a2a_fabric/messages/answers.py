"""Answers to an agent's questions from the parts of a message: text fills the only field, JSON the form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.call import Input
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.json_text import decode_json_text
from a2a_fabric.core.result import Answer, Part, Question, Questions
from a2a_fabric.messages.delivery import input_from_parts

_SCALAR_TYPES = ("integer", "number", "boolean")


def parse_answers(parts: Sequence[Part], questions: Questions) -> dict[str, Answer]:
    """Text or an object answers a single question; an object answers several, keyed like the questions.

    Raises BadInput.
    """
    message_input = input_from_parts(parts)
    arguments = message_input.context
    by_key = {key: value for key, value in arguments.items() if key in questions.questions}
    is_keyed = len(by_key) == len(arguments) == 1
    if len(questions.questions) == 1 and (not is_keyed or has_form_field(questions, by_key)):
        return {
            key: Answer(content=content_from_input(each, message_input)) for key, each in questions.questions.items()
        }
    missing = questions.questions.keys() - by_key.keys()
    if missing:
        names = ", ".join(sorted(missing))
        raise BadInput(f"Answer in a JSON part, keyed by question; missing: {names}", field="parts")
    return {key: Answer(content=value) for key, value in by_key.items()}


def has_form_field(questions: Questions, keys: Iterable[str]) -> bool:
    """Whether the form of the only question has a field with one of these names."""
    [question] = questions.questions.values()
    return any(key in (question.schema or {}).get("properties", {}) for key in keys)


def content_from_input(question: Question, message_input: Input) -> Any:
    if message_input.context:
        return message_input.context
    if not message_input.task:
        return [msgspec.to_builtins(each) for each in message_input.attachments] or ""
    field = _find_only_field(question)
    if field is None:
        return message_input.task
    name, schema = field
    return {name: _convert_text(schema.get("type"), message_input.task)}


def _find_only_field(question: Question) -> tuple[str, dict[str, Any]] | None:
    properties = list_form_fields(question)
    required = [name for name in (question.schema or {}).get("required", ()) if name in properties]
    names = required if len(required) == 1 else list(properties)
    if len(names) != 1 or not isinstance(properties[names[0]], dict):
        return None
    return names[0], properties[names[0]]


def list_form_fields(question: Question) -> dict[str, Any]:
    properties = (question.schema or {}).get("properties")
    return properties if isinstance(properties, dict) else {}


def _convert_text(kind: Any, text: str) -> Any:
    """The text as a number or boolean if the field is one; text that cannot be converted stays as it is."""
    if kind not in _SCALAR_TYPES:
        return text
    try:
        return decode_json_text(text.strip())
    except msgspec.DecodeError:
        return text
