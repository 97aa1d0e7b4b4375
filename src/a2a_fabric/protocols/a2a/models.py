"""A2A messages, tasks, updates and push configurations, independent of the dialect in which they are written."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from a2a_fabric.core.part import Part
from a2a_fabric.protocols.a2a.parts import Dialect
from a2a_fabric.protocols.a2a.states import A2ATaskState

A2AVersion = Literal["1.0", "0.3"]
A2ABinding = Literal["jsonrpc", "http", "grpc"]


class A2AMessage(msgspec.Struct, frozen=True, kw_only=True):
    """`raw` is the message as its sender wrote it, in `dialect`; it keeps the fields that are not read here."""

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
    at: float = 0.0  # of the tasks that we serve; the timestamps of other agents are not read
    message: A2AMessage | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.message.parts if self.message is not None else ()


class A2AArtifact(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    parts: tuple[Part, ...] = ()
    name: str = ""
    description: str = ""
    metadata: dict[str, Any] = {}


class A2ATask(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    status: A2ATaskStatus
    context_id: str = ""
    artifacts: tuple[A2AArtifact, ...] | None = ()  # None: left out of the reply
    history: tuple[A2AMessage, ...] = ()
    metadata: dict[str, Any] = {}

    @property
    def task_id(self) -> str:
        """The id, under the name that it has in messages and updates."""
        return self.id

    @property
    def last_agent_message(self) -> A2AMessage | None:
        """The last message of the agent in the history."""
        return next((message for message in reversed(self.history) if message.role == "agent"), None)


class TaskStatusUpdate(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    status: A2ATaskStatus
    context_id: str = ""
    metadata: dict[str, Any] = {}
    is_last: bool = False  # a field of 0.3; in 1.0 the state tells


class TaskArtifactUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact, or, with `append`, the next piece of one."""

    task_id: str
    artifact: A2AArtifact
    context_id: str = ""
    append: bool = False
    last_chunk: bool = False


A2AUpdate = A2ATask | A2AMessage | TaskStatusUpdate | TaskArtifactUpdate


class A2AStreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream, and its number in the task's event log if it has one."""

    update: A2AUpdate
    number: int | None = None


class A2APushConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where an agent sends notifications of a task's changes, and how it authenticates there."""

    id: str
    url: str
    task_id: str = ""
    token: str = ""
    scheme: str = ""
    credentials: str = ""


class SendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the sender of a message wants to be answered."""

    output_modes: tuple[str, ...] = ()
    blocking: bool = True
    push: A2APushConfig | None = None
