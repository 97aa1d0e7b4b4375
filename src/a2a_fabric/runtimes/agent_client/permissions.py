"""Permission requests of an agent: decided by a policy, or passed to the caller as a question.

The agent offers options, each with an id, a name and a kind (allow or reject, once or always). A policy
picks the least far-reaching option of its kind; if there is none, the request is answered as cancelled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.question import Answer, Question

PermissionPolicy = Literal["deny", "allow", "ask"]

_OPTION_FIELD = "option"
_MAX_TITLE = 2000


class PermissionOption(msgspec.Struct, frozen=True, rename="camel"):
    option_id: str
    name: str = ""
    kind: str = ""


class PermissionRequest(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of `session/request_permission` that are used here."""

    session_id: str
    options: tuple[PermissionOption, ...] = ()
    tool_call: dict[str, Any] = {}

    @property
    def title(self) -> str:
        label = self.tool_call.get("title") or self.tool_call.get("kind") or "something"
        return str(label)[:_MAX_TITLE]


PermissionOutcome = dict[str, Any]


def parse_request(params: Any) -> PermissionRequest | None:
    """None if the message is not a valid request."""
    try:
        return msgspec.convert(params, PermissionRequest)
    except msgspec.ValidationError:
        return None


def cancelled_outcome() -> PermissionOutcome:
    return {"outcome": {"outcome": "cancelled"}}


def outcome_from_policy(request: PermissionRequest, policy: Literal["deny", "allow"]) -> PermissionOutcome:
    return _select_option(request.options, "allow" if policy == "allow" else "reject")


def question_from_request(request: PermissionRequest, params: dict[str, Any]) -> Question:
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
        schema={"type": "object", "properties": {_OPTION_FIELD: choice}, "required": [_OPTION_FIELD]},
        params=params,
    )


def outcome_from_answer(key: str, request: PermissionRequest, answer: Answer) -> PermissionOutcome:
    """The outcome that the caller chose. Raises BadInput for an unknown option."""
    if answer.action == "cancel":
        return cancelled_outcome()
    if answer.action == "decline":
        return _select_option(request.options, "reject")
    choice = answer.content.get(_OPTION_FIELD) if isinstance(answer.content, dict) else answer.content
    if choice is None:
        return _select_option(request.options, "allow")
    for option in request.options:
        if choice in (option.option_id, option.name):
            return _selected_outcome(option)
    offered = ", ".join(option.option_id for option in request.options)
    raise BadInput(f"The answer to {key!r} must name one of the options: {offered}", field=f"answers.{key}")


def _select_option(options: Sequence[PermissionOption], verb: Literal["allow", "reject"]) -> PermissionOutcome:
    for kind in (f"{verb}_once", f"{verb}_always"):
        for option in options:
            if option.kind == kind:
                return _selected_outcome(option)
    return cancelled_outcome()


def _selected_outcome(option: PermissionOption) -> PermissionOutcome:
    return {"outcome": {"outcome": "selected", "optionId": option.option_id}}
