"""Messages as calls, and results as messages: what becomes of the parts on either way.

Words are the task; one object alone is the arguments; everything else is attached as
it is, also what is of a type that nobody here knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.arguments import arguments_for
from a2a_fabric.core.call import Input
from a2a_fabric.core.content import attachment_of
from a2a_fabric.core.errors import CapabilityNotFound
from a2a_fabric.core.message import EXTENSION
from a2a_fabric.core.part import Part
from a2a_fabric.core.result import Result

ANSWER = "answer"
UNNAMED = "message"  # what an agent of which no capability is known is asked for


def input_of(parts: Sequence[Part], context: dict[str, Any] | None = None) -> Input:
    """`context` are arguments that came beside the parts."""
    words = "\n".join(part.text for part in parts if is_words(part) and part.text)
    objects = [part for part in parts if _is_object(part)]
    given = dict(objects[0].data) if len(objects) == 1 else {}
    taken = objects if len(objects) == 1 else []
    attached = [part for part in parts if not is_words(part) and part not in taken]
    return Input(
        task=words,
        context={**given, **(context or {})},
        attachments=tuple(attachment_of(part) for part in attached),
    )


def is_words(part: Part) -> bool:
    """Text with a name is a thing of its own."""
    return part.kind == "text" and part.name is None and part.text is not None


def _is_object(part: Part) -> bool:
    is_plain = part.kind == "json" and part.name is None and EXTENSION not in part.meta
    return is_plain and isinstance(part.data, dict)


def parts_of_result(result: Result) -> tuple[Part, ...]:
    """The answer in front, unless the content holds it already."""
    if _is_told(result):
        return result.parts
    answer = result.data.get(ANSWER)
    if isinstance(answer, str) and result.data.keys() == {ANSWER}:
        return (Part(kind="text", text=answer), *result.parts)
    return (Part(kind="json", data=result.data), *result.parts)


def _is_told(result: Result) -> bool:
    if not result.data:
        return bool(result.parts)
    words = "\n".join(part.text for part in result.parts if part.kind == "text" and part.text)
    return result.data == {ANSWER: words} or any(part.data == result.data for part in result.parts)


def capability_for(manifest: Manifest, named: str | None, given: Input) -> str:
    """The one that is named, else the first that could be called with this, else the first. Raises CapabilityNotFound.

    An agent of which nothing is known yet is asked under a name of ours.
    """
    offered = manifest.capabilities
    if named is not None:
        found = manifest.capability(named)
        if found is None and offered:
            raise CapabilityNotFound(manifest.agent_id, named, [each.name for each in offered])
        return found.name if found is not None else named
    if not offered:
        return UNNAMED
    return next((each for each in offered if _fits(each, given)), offered[0]).name


def _fits(capability: Capability, given: Input) -> bool:
    """Whether nothing that it needs is missing, and words have a place."""
    schema = capability.input_schema
    if schema is None:
        return True
    arguments = arguments_for(capability, given)
    missing = [name for name in schema.get("required", ()) if name not in arguments]
    return not missing and (not given.task or given.task in arguments.values())


def metadata_of(result: Result) -> dict[str, Any]:
    """What there is to say about an answer besides the answer."""
    told = {"notes": list(result.notes), "fallback": msgspec.to_builtins(result.fallback)}
    return {name: value for name, value in told.items() if value}
