"""Agents that take and give plain text: a call as a prompt, a reply as a result, a question without a form.

The prompt holds the task as the caller gave it, followed by the other arguments as JSON. The
capability is named first if the agent has several, or if there is nothing else to send. Only a
capability with an output schema is asked for a JSON object; all others answer in text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import ATTACHMENTS, Call, bind_arguments, result_from_parts
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.json_text import decode_json_text
from a2a_fabric.core.result import Answer, Answers, Part, Question, Result

DEFAULT_CAPABILITY = "ask"  # the one capability of an agent that declares none

_FENCE = "```"
_FENCED_BLOCKS = 16  # of one answer that are looked into
_NOT_AN_OBJECT = "the agent's answer is not the JSON object that was asked for"


def build_prompt(manifest: Manifest, call: Call) -> str:
    """The whole message, but for what it says about the form of the answer. Raises BadInput if there is none."""
    capability = manifest.find_capability(call.target.capability)
    task, other_arguments = _split_task(capability, call)
    is_named = capability is not None and (len(manifest.capabilities) > 1 or not (task or other_arguments))
    sections = [
        _name_capability(capability) if capability is not None and is_named else "",
        task,
        f"```json\n{msgspec.json.encode(other_arguments).decode()}\n```" if other_arguments else "",
    ]
    if not any(sections):
        raise BadInput("This agent is asked in words: give it a task", field="task")
    return "\n\n".join(section for section in sections if section)


def build_format_instruction(capability: Capability | None) -> str:
    """A last sentence for an agent whose answer is to be an object, where nothing but words can say so."""
    if capability is None or capability.output_schema is None:
        return ""
    schema = msgspec.json.encode(capability.output_schema).decode()
    return f"Answer with nothing but one JSON object that follows this schema: {schema}"


def find_json_object(text: str, capability: Capability | None) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """The object in the agent's words, if its capability declares one; and what to note if it is not there."""
    if capability is None or capability.output_schema is None:
        return None, ()
    for candidate in (text, *_extract_fenced(text)):
        try:
            value = decode_json_text(candidate)
        except (msgspec.DecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            return value, ()
    return None, (_NOT_AN_OBJECT,)


def _extract_fenced(text: str) -> list[str]:
    """What stands between fences, without the word that may follow the first."""
    pieces = text.split(_FENCE, 2 * _FENCED_BLOCKS)[1::2]
    return [piece.removeprefix("json") for piece in pieces]


def _split_task(capability: Capability | None, call: Call) -> tuple[str, dict[str, Any]]:
    """A capability without a schema has a task and its context; of another the task is one argument, if it is words."""
    if capability is None or capability.input_schema is None:
        return call.input.task, call.input.context
    arguments = dict(bind_arguments(capability, call.input))
    if call.input.attachments:
        arguments.pop(ATTACHMENTS, None)  # they go along as what they are
    name = "task" if "task" in arguments else next(iter(arguments)) if len(arguments) == 1 else ""
    if isinstance(arguments.get(name), str):
        return arguments.pop(name), arguments
    return "", arguments


def _name_capability(capability: Capability) -> str:
    description = f" ({capability.description})" if capability.description else ""
    return f"Asked for: {capability.name}{description}"


ANSWER_KEY = "answer"

_SCHEMA = {"type": "object", "properties": {ANSWER_KEY: {"type": "string"}}, "required": [ANSWER_KEY]}


def question_from_text(text: str, params: dict[str, Any]) -> dict[str, Question]:
    message = text or "The agent waits for a message"
    return {ANSWER_KEY: Question(kind="form", message=message, schema=_SCHEMA, params=params)}


def find_answer(answers: Answers) -> Answer:
    """The one answer to the one question. Raises BadInput."""
    answer = answers.answers.get(ANSWER_KEY) or next(iter(answers.answers.values()), None)
    if answer is None:
        raise BadInput(f"The question is not answered: give an answer under '{ANSWER_KEY}'", field="answers")
    return answer


def read_answer_content(answer: Answer) -> Any:
    """What was said, out of its form if that was filled in."""
    content = answer.content
    return content[ANSWER_KEY] if isinstance(content, dict) and content.keys() == {ANSWER_KEY} else content


def result_from_messages(*messages: Sequence[Part]) -> Result:
    """An object without words in the last message is the answer; else all words are. What it does not hold stays.

    Text with a name is a thing of its own, not words.
    """
    parts = tuple(part for message in messages for part in message)
    last_message = messages[-1] if messages else ()
    objects = [part.data for part in last_message if _is_object(part)]
    if len(objects) == 1 and not any(map(_is_plain_text, last_message)):
        return Result(data=objects[0], parts=() if len(parts) == 1 else parts)
    text_result = result_from_parts([part for part in parts if _is_plain_text(part)])
    return text_result if all(map(_is_plain_text, parts)) else Result(data=text_result.data, parts=parts)


def _is_object(part: Part) -> bool:
    return part.kind == "json" and isinstance(part.data, dict) and part.name is None


def _is_plain_text(part: Part) -> bool:
    return part.kind == "text" and part.name is None
