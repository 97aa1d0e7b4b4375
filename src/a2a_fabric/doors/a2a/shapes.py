"""What the protocol talks about, before it is written in one of its dialects."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from a2a_fabric.a2a_wire.parts import Dialect
from a2a_fabric.core.part import Part
from a2a_fabric.core.states import JobState

State = JobState | Literal["auth_required"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """`raw` is a message as it came, in its own dialect: then nothing of it is lost."""

    id: str
    role: Literal["user", "agent"] = "agent"
    parts: tuple[Part, ...] = ()
    context_id: str = ""
    task_id: str = ""
    metadata: dict[str, Any] = {}
    raw: dict[str, Any] | None = None
    dialect: Dialect = "1.0"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    state: State
    at: float
    message: Message | None = None


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    parts: tuple[Part, ...]
    name: str = ""
    metadata: dict[str, Any] = {}


class Task(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    context_id: str
    status: Status
    artifacts: tuple[Artifact, ...] | None = ()  # None: not told
    history: tuple[Message, ...] = ()
    metadata: dict[str, Any] = {}


class StatusUpdate(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    context_id: str
    status: Status
    metadata: dict[str, Any] = {}
    is_last: bool = False  # version 0.3 says so


class ArtifactUpdate(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    context_id: str
    artifact: Artifact
    append: bool = False
    last_chunk: bool = False


Update = Task | Message | StatusUpdate | ArtifactUpdate


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream, and its place in the task's log if it has one."""

    update: Update
    number: int | None = None


class PushConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where to tell of a task's changes."""

    task_id: str
    id: str
    url: str
    token: str = ""
    scheme: str = ""
    credentials: str = ""
