"""A2A messages, tasks, updates and push configurations, independent of the dialect in which they are written."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from a2a_fabric.core.job import JobState
from a2a_fabric.core.part import Part
from a2a_fabric.protocols.a2a.parts import Dialect

A2ATaskState = JobState | Literal["auth_required"]


class A2AMessage(msgspec.Struct, frozen=True, kw_only=True):
    """`raw` is a message as it came, in its own dialect: then nothing of it is lost."""

    id: str
    role: Literal["user", "agent"] = "agent"
    parts: tuple[Part, ...] = ()
    context_id: str = ""
    task_id: str = ""
    metadata: dict[str, Any] = {}
    raw: dict[str, Any] | None = None
    dialect: Dialect = "1.0"


class A2ATaskStatus(msgspec.Struct, frozen=True, kw_only=True):
    state: A2ATaskState
    at: float
    message: A2AMessage | None = None


class A2AArtifact(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    parts: tuple[Part, ...]
    name: str = ""
    metadata: dict[str, Any] = {}


class A2ATask(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    context_id: str
    status: A2ATaskStatus
    artifacts: tuple[A2AArtifact, ...] | None = ()  # None: not told
    history: tuple[A2AMessage, ...] = ()
    metadata: dict[str, Any] = {}


class TaskStatusUpdate(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    context_id: str
    status: A2ATaskStatus
    metadata: dict[str, Any] = {}
    is_last: bool = False  # version 0.3 says so


class TaskArtifactUpdate(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    context_id: str
    artifact: A2AArtifact
    append: bool = False
    last_chunk: bool = False


A2AUpdate = A2ATask | A2AMessage | TaskStatusUpdate | TaskArtifactUpdate


class A2AStreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream, and its place in the task's log if it has one."""

    update: A2AUpdate
    number: int | None = None


class A2APushConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where to tell of a task's changes."""

    task_id: str
    id: str
    url: str
    token: str = ""
    scheme: str = ""
    credentials: str = ""
