"""A call in words, for agents that are spoken to like a person, and their words as a result.

Such an agent hears one message. The task stands in it as it was given, and what else
belongs to the call follows as JSON. An agent with several capabilities is told first
which one is meant, and so is one that is told nothing else. Only a capability that
declares an output schema is to answer with an object; all others answer in words,
whatever door the caller came through.
"""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.arguments import ATTACHMENTS, arguments_for
from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import BadInput

ASK = "ask"  # the one capability of an agent that declares none

_FENCE = "```"
_FENCED_BLOCKS = 16  # of one answer that are looked into
_NOT_AN_OBJECT = "the agent's answer is not the JSON object that was asked for"


def words_of(manifest: Manifest, call: Call) -> str:
    """The whole message, but for what it says about the form of the answer. Raises BadInput if there is none."""
    capability = manifest.capability(call.target.capability)
    task, rest = _task_and_rest(capability, call)
    is_named = capability is not None and (len(manifest.capabilities) > 1 or not (task or rest))
    sections = [
        _which(capability) if capability is not None and is_named else "",
        task,
        f"```json\n{msgspec.json.encode(rest).decode()}\n```" if rest else "",
    ]
    if not any(sections):
        raise BadInput("This agent is asked in words: give it a task", field="task")
    return "\n\n".join(section for section in sections if section)


def in_which_form(capability: Capability | None) -> str:
    """A last sentence for an agent whose answer is to be an object, where nothing but words can say so."""
    if capability is None or capability.output_schema is None:
        return ""
    schema = msgspec.json.encode(capability.output_schema).decode()
    return f"Answer with nothing but one JSON object that follows this schema: {schema}"


def object_in(text: str, capability: Capability | None) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """The object in the agent's words, if its capability declares one; and what to note if it is not there."""
    if capability is None or capability.output_schema is None:
        return None, ()
    for candidate in (text, *_fenced(text)):
        try:
            value = msgspec.json.decode(candidate)
        except (msgspec.DecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            return value, ()
    return None, (_NOT_AN_OBJECT,)


def _fenced(text: str) -> list[str]:
    """What stands between fences, without the word that may follow the first."""
    pieces = text.split(_FENCE, 2 * _FENCED_BLOCKS)[1::2]
    return [piece.removeprefix("json") for piece in pieces]


def _task_and_rest(capability: Capability | None, call: Call) -> tuple[str, dict[str, Any]]:
    """A capability without a schema has a task and its context; of another the task is one argument, if it is words."""
    if capability is None or capability.input_schema is None:
        return call.input.task, call.input.context
    arguments = dict(arguments_for(capability, call.input))
    if call.input.attachments:
        arguments.pop(ATTACHMENTS, None)  # they go along as what they are
    name = "task" if "task" in arguments else next(iter(arguments)) if len(arguments) == 1 else ""
    if isinstance(arguments.get(name), str):
        return arguments.pop(name), arguments
    return "", arguments


def _which(capability: Capability) -> str:
    described = f" ({capability.description})" if capability.description else ""
    return f"Asked for: {capability.name}{described}"
