"""A call as the message that an A2A agent gets.

Words are a text part, typed arguments a data part, attachments parts of their own; the skill
that is meant stands in the message's metadata. An agent that does not read data parts gets
its arguments as JSON text.
"""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.a2a_wire.parts import Dialect, written
from a2a_fabric.core.agent import Capability
from a2a_fabric.core.arguments import ATTACHMENTS, arguments_for
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import parts_of
from a2a_fabric.core.part import Part
from a2a_fabric.core.trace import new_id
from a2a_fabric.runtimes.a2a.pushes import PushPlace

SKILL = "skill"
_PUSH: dict[Dialect, str] = {
    "1.0": "taskPushNotificationConfig",
    "0.3": "pushNotificationConfig",
    "0.3 proto": "pushNotification",
}


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is ready to be written in any dialect."""

    parts: tuple[Part, ...]
    metadata: dict[str, Any] = {}
    task_id: str = ""  # of the task that it goes on with
    context_id: str = ""
    message_id: str = msgspec.field(default_factory=new_id)


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """How the agent should answer."""

    output_modes: tuple[str, ...] = ()
    blocking: bool = True
    push: PushPlace | None = None  # where it should tell how it goes on


def parts_for(call: Call, capability: Capability | None, *, takes_json: bool) -> tuple[Part, ...]:
    """What the agent gets: words, arguments, attachments, in this order. There is always at least one part."""
    parts = [Part(kind="text", text=call.input.task)] if call.input.task else []
    arguments = _arguments(call, capability)
    if arguments:
        parts.append(_data(arguments, takes_json=takes_json))
    parts += parts_of(call.input)
    return tuple(parts) or (_data({}, takes_json=takes_json),)


def _arguments(call: Call, capability: Capability | None) -> dict[str, Any]:
    """Without a schema there are words and what belongs to them; with one, arguments, in which words have a place."""
    if capability is None or capability.input_schema is None:
        given = call.input.arguments
        is_typed = given is not msgspec.UNSET and given.get("context") is not call.input.context
        return given if is_typed and given is not msgspec.UNSET else call.input.context
    arguments = arguments_for(capability, call.input)
    if call.input.attachments and ATTACHMENTS not in call.input.context:  # they are parts of their own
        arguments = {name: value for name, value in arguments.items() if name != ATTACHMENTS}
    return arguments


def _data(arguments: dict[str, Any], *, takes_json: bool) -> Part:
    if takes_json:
        return Part(kind="json", data=arguments)
    return Part(kind="text", text=msgspec.json.encode(arguments).decode())


def params_of(message: Outgoing, manner: Manner, dialect: Dialect, tenant: str) -> dict[str, Any]:
    """The body of the request, in the words of its version."""
    if dialect == "1.0":
        configuration: dict[str, Any] = {"historyLength": 0, "returnImmediately": not manner.blocking}
        params: dict[str, Any] = {"message": _message(message, dialect, "ROLE_USER", "parts")}
        if tenant:
            params["tenant"] = tenant
    else:
        configuration = {"blocking": manner.blocking}
        is_proto = dialect == "0.3 proto"
        spoken = _message(message, dialect, "ROLE_USER" if is_proto else "user", "content" if is_proto else "parts")
        params = {"request": spoken} if is_proto else {"message": {"kind": "message", **spoken}}
    if manner.output_modes:
        configuration["acceptedOutputModes"] = manner.output_modes
    if manner.push is not None:
        configuration[_PUSH[dialect]] = manner.push.written(dialect)
    return {**params, "configuration": configuration}


def _message(message: Outgoing, dialect: Dialect, role: str, parts: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "messageId": message.message_id,
        "role": role,
        parts: [written(part, dialect) for part in message.parts],
    }
    for name, value in (
        ("taskId", message.task_id),
        ("contextId", message.context_id),
        ("metadata", message.metadata),
    ):
        if value:
            made[name] = value
    return made
