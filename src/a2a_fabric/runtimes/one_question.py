"""The one question that agents ask in words, where their protocol has no form to fill in: say something more."""

from __future__ import annotations

from typing import Any

from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.question import Answer, Answers, Question

KEY = "answer"

_SCHEMA = {"type": "object", "properties": {KEY: {"type": "string"}}, "required": [KEY]}


def asked_in_words(words: str, params: dict[str, Any]) -> dict[str, Question]:
    message = words or "The agent waits for a message"
    return {KEY: Question(kind="form", message=message, schema=_SCHEMA, params=params)}


def answer_in(answers: Answers) -> Answer:
    """The one answer to the one question. Raises BadInput."""
    found = answers.answers.get(KEY) or next(iter(answers.answers.values()), None)
    if found is None:
        raise BadInput(f"The question is not answered: give an answer under '{KEY}'", field="answers")
    return found


def content_of(answer: Answer) -> Any:
    """What was said, out of its form if that was filled in."""
    content = answer.content
    return content[KEY] if isinstance(content, dict) and content.keys() == {KEY} else content


def unknown_continuation() -> BadInput:
    return BadInput("Nobody waits for an answer with this continuation", field="continuation")
