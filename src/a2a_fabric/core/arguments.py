"""From the envelope's input to a capability's arguments, the same through every door.

A capability with an input schema gets `context` as its arguments, and `task`
fills the property called `task`, or else the only required string property that
is still missing; attachments fill a list called `attachments`, if the schema has
one. A capability without a schema gets task, context and attachments as they are.
"""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Input

ATTACHMENTS = "attachments"


def arguments_for(capability: Capability | None, given: Input) -> dict[str, Any]:
    """What routing has worked out already stands; it knows the capability as the catalog has it now."""
    if given.arguments is not msgspec.UNSET:
        return given.arguments
    schema = capability.input_schema if capability else None
    if schema is None:
        return _as_they_are(given)
    arguments = dict(given.context)
    if given.task and (slot := _slot_for_task(schema, arguments)) is not None:
        arguments[slot] = given.task
    if given.attachments and ATTACHMENTS not in arguments and takes_attachments(schema):
        arguments[ATTACHMENTS] = msgspec.to_builtins(list(given.attachments))
    return arguments


def takes_attachments(schema: dict[str, Any] | None) -> bool:
    """Whether a capability with this schema has a place for what comes with the words: a list of objects."""
    if schema is None:
        return True
    properties = schema.get("properties")
    found = properties.get(ATTACHMENTS) if isinstance(properties, dict) else None
    if not isinstance(found, dict):
        return found is True
    items = found.get("items", True)
    kind = items.get("type", "object") if isinstance(items, dict) else "object" if items else "nothing"
    return _allows(found.get("type", "array"), "array") and _allows(kind, "object")


def _allows(kinds: Any, kind: str) -> bool:
    return kind in kinds if isinstance(kinds, list) else bool(kinds == kind)


def _as_they_are(given: Input) -> dict[str, Any]:
    arguments: dict[str, Any] = {"task": given.task, "context": given.context}
    if given.attachments:
        arguments[ATTACHMENTS] = msgspec.to_builtins(list(given.attachments))
    return arguments


def _slot_for_task(schema: dict[str, Any], arguments: dict[str, Any]) -> str | None:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return None
    if "task" in properties:
        return None if "task" in arguments else "task"
    missing = [name for name in schema.get("required", ()) if name not in arguments and _is_text(properties.get(name))]
    return missing[0] if len(missing) == 1 else None


def _is_text(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "string"  # `true` is a schema too
