"""From the envelope's input to a capability's arguments, the same through every door.

A capability with an input schema gets `context` as its arguments, and `task`
fills the property called `task`, or else the only required string property that
is still missing. A capability without a schema gets task and context as they are.
"""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Input


def arguments_for(capability: Capability | None, given: Input) -> dict[str, Any]:
    """What routing has worked out already stands; it knows the capability as the catalog has it now."""
    if given.arguments is not msgspec.UNSET:
        return given.arguments
    schema = capability.input_schema if capability else None
    if schema is None:
        return _as_they_are(given)
    arguments = dict(given.context)
    slot = _slot_for_task(schema, arguments) if given.task else None
    if slot is not None:
        arguments[slot] = given.task
    return arguments


def _as_they_are(given: Input) -> dict[str, Any]:
    arguments: dict[str, Any] = {"task": given.task, "context": given.context}
    if given.attachments:
        arguments["attachments"] = msgspec.to_builtins(given.attachments)
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
