"""Conversion between message parts and calls: the input of a call from parts, the parts of a reply from a result.

Text parts are the task; a single JSON object is the arguments; all other parts are
attached unchanged, including parts of unknown types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import Attachment, Input
from a2a_fabric.core.content import ATTACHMENTS, attachment_from_part, bind_arguments
from a2a_fabric.core.errors import CapabilityNotFound
from a2a_fabric.core.message import EXTENSION_KEY
from a2a_fabric.core.part import Part
from a2a_fabric.core.result import Result

ANSWER = "answer"
DEFAULT_CAPABILITY = "message"  # the name that is called while no capability of the agent is known


def input_from_parts(parts: Sequence[Part], context: dict[str, Any] | None = None) -> Input:
    """`context` holds arguments that were sent in addition to the parts."""
    text = "\n".join(part.text for part in parts if is_plain_text(part) and part.text)
    objects = [part for part in parts if _is_object(part)]
    arguments = dict(objects[0].data) if len(objects) == 1 else {}
    argument_parts = objects if len(objects) == 1 else []
    attached_parts = [part for part in parts if not is_plain_text(part) and part not in argument_parts]
    return Input(
        task=text,
        context={**arguments, **(context or {})},
        attachments=tuple(attachment_from_part(part) for part in attached_parts),
    )


def split_input(call_input: Input, capability: Capability | None) -> Input:
    """Take `task` and `attachments` out of the arguments, unless the capability has arguments of these names."""
    properties = ((capability.input_schema if capability else None) or {}).get("properties", {})
    remaining, task, attachments = dict(call_input.context), call_input.task, call_input.attachments
    if not task and isinstance(remaining.get("task"), str) and "task" not in properties:
        task = remaining.pop("task")
    if ATTACHMENTS in remaining and ATTACHMENTS not in properties:
        try:
            attachments = (*attachments, *msgspec.convert(remaining[ATTACHMENTS], tuple[Attachment, ...]))
            del remaining[ATTACHMENTS]
        except msgspec.ValidationError:
            pass  # the argument belongs to the agent, although it has this name
    return Input(task=task, context=remaining, attachments=attachments)


def is_plain_text(part: Part) -> bool:
    """Named text is an attachment, not plain text."""
    return part.kind == "text" and part.name is None and part.text is not None


def _is_object(part: Part) -> bool:
    is_plain = part.kind == "json" and part.name is None and EXTENSION_KEY not in part.meta
    return is_plain and isinstance(part.data, dict)


def parts_from_result(result: Result) -> tuple[Part, ...]:
    """The parts of the result, with the answer first unless one of them contains it."""
    if _contains_answer(result):
        return result.parts
    answer = result.data.get(ANSWER)
    if isinstance(answer, str) and result.data.keys() == {ANSWER}:
        return (Part(kind="text", text=answer), *result.parts)
    return (Part(kind="json", data=result.data), *result.parts)


def _contains_answer(result: Result) -> bool:
    if not result.data:
        return bool(result.parts)
    text = "\n".join(part.text for part in result.parts if part.kind == "text" and part.text)
    return result.data == {ANSWER: text} or any(part.data == result.data for part in result.parts)


def choose_capability(manifest: Manifest, requested_name: str | None, call_input: Input) -> str:
    """The named capability, else the first that accepts this input, else the first. Raises CapabilityNotFound.

    While no capability of an agent is known, the name is DEFAULT_CAPABILITY.
    """
    capabilities = manifest.capabilities
    if requested_name is not None:
        capability = manifest.find_capability(requested_name)
        if capability is None and capabilities:
            raise CapabilityNotFound(manifest.agent_id, requested_name, [each.name for each in capabilities])
        return capability.name if capability is not None else requested_name
    if not capabilities:
        return DEFAULT_CAPABILITY
    return next((each for each in capabilities if _accepts_input(each, call_input)), capabilities[0]).name


def _accepts_input(capability: Capability, call_input: Input) -> bool:
    """Whether all required arguments are present and the text of the task becomes an argument."""
    schema = capability.input_schema
    if schema is None:
        return True
    arguments = bind_arguments(capability, call_input)
    missing = [name for name in schema.get("required", ()) if name not in arguments]
    return not missing and (not call_input.task or call_input.task in arguments.values())


def metadata_from_result(result: Result) -> dict[str, Any]:
    """The notes and the fallback of a result, as metadata of its message."""
    fields = {"notes": list(result.notes), "fallback": msgspec.to_builtins(result.fallback)}
    return {name: value for name, value in fields.items() if value}
