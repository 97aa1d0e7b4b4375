"""Requests of other people's APIs, described in the manifest.

In a template a string `$task` becomes the value itself, of any type, and `${task}`
inside a longer string becomes its text. Known names: task, context, arguments,
attachments, capability, agent_id, conversation_id, trace_id, stream; dots go deeper
(`$arguments.city`). `$arguments.city?` leaves the field out if the call has no such value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from a2a_fabric.core.call import Call
from a2a_fabric.core.conversation import bind_to_caller
from a2a_fabric.core.errors import BadInput

_NAME = r"[a-z_]+(?:\.[A-Za-z0-9_-]+)*"
_WHOLE = re.compile(rf"\$({_NAME})(\?)?")
_INSIDE = re.compile(rf"\$\{{({_NAME})\}}")
_LEFT_OUT = object()

Values = dict[str, Any]


def values_of(call: Call, arguments: dict[str, Any]) -> Values:
    """What a template may name."""
    conversation = bind_to_caller(call, call.conversation_id or call.trace.trace_id)  # callers choose either
    return {
        "task": call.input.task,
        "context": call.input.context,
        "arguments": arguments,
        "attachments": msgspec.to_builtins(call.input.attachments),
        "capability": call.target.capability,
        "agent_id": call.target.agent_id,
        "conversation_id": conversation,
        "trace_id": call.trace.trace_id,
        "stream": call.response.stream,
    }


def filled(template: Any, values: Values) -> Any:
    """The template with the call's values in it. Raises BadInput naming the one that is missing."""
    found = _filled(template, values)
    return None if found is _LEFT_OUT else found


def address(uri: str, values: Values) -> str:
    """A uri with values in its path, each a piece of it and never a way out of it."""
    return _INSIDE.sub(lambda match: piece_of_path(match[1], _value(match[1], values)), uri)


def piece_of_path(name: str, value: Any) -> str:
    text = as_text(value)
    if text in ("", ".", ".."):
        raise BadInput(f"'{text}' cannot stand in an address as '{name}'", field=name)
    return quote(text, safe="")


def with_query(uri: str, pairs: list[tuple[str, str]]) -> str:
    if not pairs:
        return uri
    return f"{uri}{'&' if '?' in uri else '?'}{urlencode(pairs, quote_via=quote)}"


def pairs_of(fields: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """For a query: lists are repeated, what is nothing is left out."""
    for name, value in fields.items():
        for each in value if isinstance(value, list) else [value]:
            if each is not None:
                yield name, as_text(each)


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _filled(part: Any, values: Values) -> Any:
    if isinstance(part, dict):
        inside = ((key, _filled(inner, values)) for key, inner in part.items())
        return {key: inner for key, inner in inside if inner is not _LEFT_OUT}
    if isinstance(part, list):
        return [inner for each in part if (inner := _filled(each, values)) is not _LEFT_OUT]
    if not isinstance(part, str) or "$" not in part:
        return part
    whole = _WHOLE.fullmatch(part)
    if whole:
        return _value(whole[1], values, _LEFT_OUT if whole[2] else None)
    return _INSIDE.sub(lambda match: as_text(_value(match[1], values)), part)


def _value(name: str, values: Values, otherwise: Any = None) -> Any:
    found: Any = values
    for step in name.split("."):
        if not isinstance(found, dict) or step not in found:
            if otherwise is not None:
                return otherwise
            raise BadInput(f"The agent's request template needs '{name}', and the call has no such value", field=name)
        found = found[step]
    return found
