"""The replies of an A2A agent, independent of version and binding: a message, a task, or an update of a task."""

from __future__ import annotations

from typing import Literal

import msgspec

from a2a_fabric.core.part import Part

A2AWireState = Literal[
    "submitted",
    "working",
    "completed",
    "failed",
    "canceled",
    "rejected",
    "input-required",
    "auth-required",
    "unknown",
]
FINAL_STATES: frozenset[A2AWireState] = frozenset({"completed", "failed", "canceled", "rejected"})
INTERRUPTED_STATES: frozenset[A2AWireState] = frozenset({"input-required", "auth-required"})

Parts = tuple[Part, ...]


class A2AReplyArtifact(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str = ""
    description: str = ""
    parts: Parts = ()


class A2AMessageReply(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer at once, without a task."""

    parts: Parts
    context_id: str = ""


class A2ATaskSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A task as it stands. `last_words` are the agent's last message in its history."""

    task_id: str
    context_id: str = ""
    state: A2AWireState = "unknown"
    status_parts: Parts = ()
    artifacts: tuple[A2AReplyArtifact, ...] = ()
    last_message_parts: Parts = ()
    message_ids: frozenset[str] = frozenset()


class A2AStatusUpdate(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    context_id: str = ""
    state: A2AWireState = "unknown"
    status_parts: Parts = ()
    is_final: bool = False


class A2AArtifactUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact, or the next piece of one."""

    task_id: str
    context_id: str = ""
    artifact: A2AReplyArtifact
    is_append: bool = False  # a piece of one that was begun before
    is_complete: bool = False


A2AReply = A2AMessageReply | A2ATaskSnapshot | A2AStatusUpdate | A2AArtifactUpdate
