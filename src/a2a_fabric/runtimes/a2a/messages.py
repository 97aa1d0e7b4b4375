"""Turns a call into the parts of the A2A message that the agent receives.

The task is a text part, typed arguments are a data part, attachments are parts of their own; the skill is
named in the message's metadata. An agent that does not read data parts gets its arguments as JSON text."""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import ATTACHMENTS, bind_arguments, parts_from_input
from a2a_fabric.core.part import Part

SKILL_KEY = "skill"


def parts_from_call(call: Call, capability: Capability | None, *, takes_json: bool) -> tuple[Part, ...]:
    """Text, arguments, attachments, in this order; always at least one part."""
    parts = [Part(kind="text", text=call.input.task)] if call.input.task else []
    arguments = _select_arguments(call, capability)
    if arguments:
        parts.append(_arguments_part(arguments, takes_json=takes_json))
    parts += parts_from_input(call.input)
    return tuple(parts) or (_arguments_part({}, takes_json=takes_json),)


def _select_arguments(call: Call, capability: Capability | None) -> dict[str, Any]:
    """The arguments beside the text; with a schema the text may be bound to one of them."""
    if capability is None or capability.input_schema is None:
        typed_arguments = call.input.arguments
        is_typed = typed_arguments is not msgspec.UNSET and typed_arguments.get("context") is not call.input.context
        return typed_arguments if is_typed and typed_arguments is not msgspec.UNSET else call.input.context
    arguments = bind_arguments(capability, call.input)
    if call.input.attachments and ATTACHMENTS not in call.input.context:  # attachments are parts of their own
        arguments = {name: value for name, value in arguments.items() if name != ATTACHMENTS}
    return arguments


def _arguments_part(arguments: dict[str, Any], *, takes_json: bool) -> Part:
    if takes_json:
        return Part(kind="json", data=arguments)
    return Part(kind="text", text=msgspec.json.encode(arguments).decode())
