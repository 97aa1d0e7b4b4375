"""Turns a call into the A2A message that the agent receives, and renders it in each dialect.

The task is a text part, typed arguments are a data part, attachments are parts of their own; the skill is
named in the message's metadata. An agent that does not read data parts gets its arguments as JSON text."""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import ATTACHMENTS, bind_arguments, parts_from_input
from a2a_fabric.core.part import Part
from a2a_fabric.core.trace import new_id
from a2a_fabric.protocols.a2a.parts import Dialect, render_part
from a2a_fabric.runtimes.a2a.push import PushTarget

SKILL_KEY = "skill"
_PUSH_FIELD: dict[Dialect, str] = {
    "1.0": "taskPushNotificationConfig",
    "0.3": "pushNotificationConfig",
    "0.3 proto": "pushNotification",
}


class OutgoingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is ready to be written in any dialect."""

    parts: tuple[Part, ...]
    metadata: dict[str, Any] = {}
    task_id: str = ""  # of the task that it goes on with
    context_id: str = ""
    message_id: str = msgspec.field(default_factory=new_id)


class SendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the agent should answer."""

    output_modes: tuple[str, ...] = ()
    blocking: bool = True
    push: PushTarget | None = None  # where it should tell how it goes on


def parts_from_call(call: Call, capability: Capability | None, *, takes_json: bool) -> tuple[Part, ...]:
    """What the agent gets: words, arguments, attachments, in this order. There is always at least one part."""
    parts = [Part(kind="text", text=call.input.task)] if call.input.task else []
    arguments = _select_arguments(call, capability)
    if arguments:
        parts.append(_arguments_part(arguments, takes_json=takes_json))
    parts += parts_from_input(call.input)
    return tuple(parts) or (_arguments_part({}, takes_json=takes_json),)


def _select_arguments(call: Call, capability: Capability | None) -> dict[str, Any]:
    """Without a schema there are words and what belongs to them; with one, arguments, in which words have a place."""
    if capability is None or capability.input_schema is None:
        typed_arguments = call.input.arguments
        is_typed = typed_arguments is not msgspec.UNSET and typed_arguments.get("context") is not call.input.context
        return typed_arguments if is_typed and typed_arguments is not msgspec.UNSET else call.input.context
    arguments = bind_arguments(capability, call.input)
    if call.input.attachments and ATTACHMENTS not in call.input.context:  # they are parts of their own
        arguments = {name: value for name, value in arguments.items() if name != ATTACHMENTS}
    return arguments


def _arguments_part(arguments: dict[str, Any], *, takes_json: bool) -> Part:
    if takes_json:
        return Part(kind="json", data=arguments)
    return Part(kind="text", text=msgspec.json.encode(arguments).decode())


def render_send_params(
    message: OutgoingMessage, send_options: SendOptions, dialect: Dialect, tenant: str
) -> dict[str, Any]:
    """The body of the request, in the words of its version."""
    if dialect == "1.0":
        configuration: dict[str, Any] = {"historyLength": 0, "returnImmediately": not send_options.blocking}
        params: dict[str, Any] = {"message": _render_message(message, dialect, "ROLE_USER", "parts")}
        if tenant:
            params["tenant"] = tenant
    else:
        configuration = {"blocking": send_options.blocking}
        is_proto = dialect == "0.3 proto"
        wire_message = _render_message(
            message, dialect, "ROLE_USER" if is_proto else "user", "content" if is_proto else "parts"
        )
        params = {"request": wire_message} if is_proto else {"message": {"kind": "message", **wire_message}}
    if send_options.output_modes:
        configuration["acceptedOutputModes"] = send_options.output_modes
    if send_options.push is not None:
        configuration[_PUSH_FIELD[dialect]] = send_options.push.render(dialect)
    return {**params, "configuration": configuration}


def _render_message(message: OutgoingMessage, dialect: Dialect, role: str, parts_field: str) -> dict[str, Any]:
    wire_message: dict[str, Any] = {
        "messageId": message.message_id,
        "role": role,
        parts_field: [render_part(part, dialect) for part in message.parts],
    }
    for name, value in (
        ("taskId", message.task_id),
        ("contextId", message.context_id),
        ("metadata", message.metadata),
    ):
        if value:
            wire_message[name] = value
    return wire_message
