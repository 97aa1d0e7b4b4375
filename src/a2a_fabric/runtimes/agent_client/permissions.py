"""An agent's request to be allowed something: answered by a policy, or made a question to whoever is calling.

The agent offers options, each with an id, a name and a kind (allow or reject, once
or always). A policy picks the mildest option of its own kind; if there is none, the
answer is that nobody chose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.question import Answer, Question

Policy = Literal["deny", "allow", "ask"]

_OPTION = "option"
_WORDS = 2000


class Option(msgspec.Struct, frozen=True, rename="camel"):
    option_id: str
    name: str = ""
    kind: str = ""


class Request(msgspec.Struct, frozen=True, rename="camel"):
    """`session/request_permission`, as far as we read it."""

    session_id: str
    options: tuple[Option, ...] = ()
    tool_call: dict[str, Any] = {}

    @property
    def title(self) -> str:
        told = self.tool_call.get("title") or self.tool_call.get("kind") or "something"
        return str(told)[:_WORDS]


Outcome = dict[str, Any]


def read(params: Any) -> Request | None:
    """None for what is no request."""
    try:
        return msgspec.convert(params, Request)
    except msgspec.ValidationError:
        return None


def nobody_chose() -> Outcome:
    return {"outcome": {"outcome": "cancelled"}}


def decided(request: Request, policy: Literal["deny", "allow"]) -> Outcome:
    return _mildest(request.options, "allow" if policy == "allow" else "reject")


def question_of(request: Request, params: dict[str, Any]) -> Question:
    """A form with one field: which of the options."""
    choice = {
        "type": "string",
        "title": "Decision",
        "enum": [option.option_id for option in request.options],
        "enumNames": [option.name or option.option_id for option in request.options],
    }
    return Question(
        kind="form",
        message=f"The agent asks for permission: {request.title}",
        schema={"type": "object", "properties": {_OPTION: choice}, "required": [_OPTION]},
        params=params,
    )


def outcome_of(key: str, request: Request, answer: Answer) -> Outcome:
    """What the caller decided. Raises BadInput for an option that there is not."""
    if answer.action == "cancel":
        return nobody_chose()
    if answer.action == "decline":
        return _mildest(request.options, "reject")
    named = answer.content.get(_OPTION) if isinstance(answer.content, dict) else answer.content
    if named is None:
        return _mildest(request.options, "allow")
    for option in request.options:
        if named in (option.option_id, option.name):
            return _selected(option)
    offered = ", ".join(option.option_id for option in request.options)
    raise BadInput(f"The answer to {key!r} must name one of the options: {offered}", field=f"answers.{key}")


def _mildest(options: Sequence[Option], verb: Literal["allow", "reject"]) -> Outcome:
    for kind in (f"{verb}_once", f"{verb}_always"):
        for option in options:
            if option.kind == kind:
                return _selected(option)
    return nobody_chose()


def _selected(option: Option) -> Outcome:
    return {"outcome": {"outcome": "selected", "optionId": option.option_id}}
