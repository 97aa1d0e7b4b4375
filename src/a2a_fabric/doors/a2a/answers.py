"""A message to a task that asked something, as the answers to its questions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from a2a_fabric.core.part import Part
from a2a_fabric.core.question import Answer, Question, Questions
from a2a_fabric.doors.a2a.choosing import ENVELOPE, envelope_of, input_of
from a2a_fabric.doors.a2a.faults import invalid
from a2a_fabric.doors.a2a.incoming import Asking

ACTION = "action"
_SCALARS = ("integer", "number", "boolean")


def answers_in(asking: Asking, asked: Questions) -> dict[str, Answer]:
    """Words answer a single question; several are answered by a data part, keyed like the questions. Raises Fault."""
    action = asking.told(ACTION)
    if action in ("decline", "cancel"):
        return {key: Answer(action=action) for key in asked.questions}
    given = input_of(asking.parts)
    keyed = {key: value for key, value in given.context.items() if key in asked.questions}
    if len(asked.questions) > 1 or (len(keyed) == 1 and len(given.context) == 1 and not _has_own(asked, keyed)):
        missing = asked.questions.keys() - keyed.keys()
        if missing:
            raise invalid(f"Answer in a data part, keyed by question: {', '.join(sorted(missing))} missing")
        return {key: Answer(content=value) for key, value in keyed.items()}
    return {key: Answer(content=_content(question, asking)) for key, question in asked.questions.items()}


def _has_own(asked: Questions, keyed: Iterable[str]) -> bool:
    """Whether the form itself has a field of that name."""
    [question] = asked.questions.values()
    return any(key in (question.schema or {}).get("properties", {}) for key in keyed)


def _content(question: Question, asking: Asking) -> Any:
    """A form with a field `a2a` is also told what the message says of itself, as a skill's schema is."""
    said = _said(question, asking.parts)
    if isinstance(said, dict) and ENVELOPE in _fields(question) and ENVELOPE not in said:
        return {**said, ENVELOPE: envelope_of(asking)}
    return said


def _said(question: Question, parts: Iterable[Part]) -> Any:
    given = input_of(tuple(parts))
    if given.context:
        return given.context
    if not given.task:
        return [msgspec.to_builtins(each) for each in given.attachments] or ""
    field = _only_field(question)
    if field is None:
        return given.task
    name, schema = field
    return {name: _as(schema.get("type"), given.task)}


def _only_field(question: Question) -> tuple[str, dict[str, Any]] | None:
    properties = _fields(question)
    required = [name for name in (question.schema or {}).get("required", ()) if name in properties]
    names = required if len(required) == 1 else list(properties)
    if len(names) != 1 or not isinstance(properties[names[0]], dict):
        return None
    return names[0], properties[names[0]]


def _fields(question: Question) -> dict[str, Any]:
    found = (question.schema or {}).get("properties")
    return found if isinstance(found, dict) else {}


def _as(kind: Any, words: str) -> Any:
    """`7` for a number; what is none stays as it was said, and the agent says so."""
    if kind not in _SCALARS:
        return words
    try:
        return msgspec.json.decode(words.strip().encode())
    except msgspec.DecodeError:
        return words
