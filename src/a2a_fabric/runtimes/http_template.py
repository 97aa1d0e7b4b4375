"""Bodies and replies of other people's JSON APIs, described in the manifest.

In a request template a string `$task` becomes the value itself, of any type, and
`${task}` inside a longer string becomes its text. Known names: task, context,
arguments, capability, agent_id, trace_id; dots go deeper (`$arguments.city`).
Replies are read by JSON pointer (`/choices/0/message/content`).
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import BadInput, UpstreamRefused

_WHOLE = re.compile(r"\$([a-z_]+(?:\.[A-Za-z0-9_-]+)*)")
_INSIDE = re.compile(r"\$\{([a-z_]+(?:\.[A-Za-z0-9_-]+)*)\}")


class Template:
    def __init__(self, request: Any, reply: str | None, token: str | None) -> None:
        self.request = request
        self.reply = _steps(reply)
        self.token = _steps(token)

    def body(self, call: Call, arguments: dict[str, Any]) -> Any:
        values = {
            "task": call.input.task,
            "context": call.input.context,
            "arguments": arguments,
            "capability": call.target.capability,
            "agent_id": call.target.agent_id,
            "trace_id": call.trace.trace_id,
            "stream": call.response.stream,
        }
        return _filled(self.request, values)

    def answer(self, reply: Any) -> Any:
        """The part of the reply that is the answer; raises UpstreamRefused if it is not there."""
        return _at(reply, self.reply or [])

    def text(self, event: Any) -> str:
        """The words in one event of a stream; none if it carries none."""
        try:
            found = _at(event, self.token or [])
        except UpstreamRefused:
            return ""
        return found if isinstance(found, str) else ""


def _filled(part: Any, values: dict[str, Any]) -> Any:
    if isinstance(part, dict):
        return {key: _filled(inner, values) for key, inner in part.items()}
    if isinstance(part, list):
        return [_filled(inner, values) for inner in part]
    if not isinstance(part, str) or "$" not in part:
        return part
    whole = _WHOLE.fullmatch(part)
    if whole:
        return _value(whole[1], values)
    return _INSIDE.sub(lambda match: _as_text(_value(match[1], values)), part)


def _value(name: str, values: dict[str, Any]) -> Any:
    found: Any = values
    for step in name.split("."):
        if not isinstance(found, dict) or step not in found:
            raise BadInput(f"The agent's request template needs '{name}', and the call has no such value", field=name)
        found = found[step]
    return found


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _steps(pointer: str | None) -> list[str] | None:
    if pointer is None:
        return None
    if pointer and not pointer.startswith("/"):
        raise BadInput(f"'{pointer}' is not a JSON pointer: it starts with '/'")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _at(value: Any, steps: list[str]) -> Any:
    for step in steps:
        if isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            raise UpstreamRefused(f"The agent's answer has nothing at '/{'/'.join(steps)}'")
    return value
