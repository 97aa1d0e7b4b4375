"""The operator's guards on messages for agents, inboxes and topics.

A guard sees the `parts` and the `metadata` before the message is stored, so that no reader gets what it took out. The
call that delivers a message to its agent, and the agent's reply, are guarded as every call is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.guards import Guards, GuardSubject, run_guards
from a2a_fabric.core.propagation import current_trace
from a2a_fabric.core.result import Part

NOTES_KEY = "a2a-fabric/notes"  # in the metadata of a message that a guard changed


class MessageContent(msgspec.Struct, frozen=True, kw_only=True):
    parts: tuple[Part, ...]
    metadata: dict[str, Any] = {}


async def guard_message(
    guards: Guards, principal: Principal, readers: Iterable[str], what: str, content: MessageContent
) -> MessageContent:
    """The content to store. `readers` are the names of those who will read it, `what` is the operation.

    Raises Forbidden.
    """
    names = [*readers]
    selected = guards.select(names, "arguments")
    if not selected:
        return content
    subject = GuardSubject(names[0], what, principal.principal_id, current_trace.get().trace_id)
    checked = await run_guards(selected, subject, "arguments", msgspec.to_builtins(content))
    if checked.payload is None:
        return content
    try:
        changed = msgspec.convert(checked.payload, MessageContent)
    except msgspec.ValidationError as exc:
        raise selected[-1].refuse("arguments", "what it returned is not a message") from exc
    return msgspec.structs.replace(changed, metadata={**changed.metadata, NOTES_KEY: checked.notes})
