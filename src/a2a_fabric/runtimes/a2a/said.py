"""What an A2A agent says, whichever version and binding carried it: a message, a task, or news of one."""

from __future__ import annotations

from typing import Literal

import msgspec

from a2a_fabric.core.part import Part

State = Literal[
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
ENDED: frozenset[State] = frozenset({"completed", "failed", "canceled", "rejected"})
ASKING: frozenset[State] = frozenset({"input-required", "auth-required"})

Parts = tuple[Part, ...]


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str = ""
    description: str = ""
    parts: Parts = ()


class MessageSaid(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer at once, without a task."""

    parts: Parts
    context_id: str = ""


class TaskSaid(msgspec.Struct, frozen=True, kw_only=True):
    """A task as it stands. `last_words` are the agent's last message in its history."""

    task_id: str
    context_id: str = ""
    state: State = "unknown"
    words: Parts = ()
    artifacts: tuple[Artifact, ...] = ()
    last_words: Parts = ()
    message_ids: frozenset[str] = frozenset()


class StatusSaid(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    context_id: str = ""
    state: State = "unknown"
    words: Parts = ()
    is_last: bool = False


class ArtifactSaid(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact, or the next piece of one."""

    task_id: str
    context_id: str = ""
    artifact: Artifact
    is_continued: bool = False  # a piece of one that was begun before
    is_complete: bool = False


Said = MessageSaid | TaskSaid | StatusSaid | ArtifactSaid
