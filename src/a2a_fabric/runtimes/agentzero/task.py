"""What an agent of A2A 0.2.5 says, as far as we read it, and what it means. Unknown fields are skipped.

A message holds what was said; a task has a state, the messages so far and, from some agents, artifacts.
"""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.content import kind_of
from a2a_fabric.core.part import Part

UNDER_WAY = frozenset({"submitted", "working"})


class File(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    bytes: str | None = None
    uri: str | None = None
    mime_type: str | None = None
    name: str | None = None


class MessagePart(msgspec.Struct, frozen=True, kw_only=True):
    kind: str = ""
    text: str | None = None
    file: File | None = None
    data: Any = None


class Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    role: str = ""
    parts: list[MessagePart] = []
    context_id: str | None = None


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    parts: list[MessagePart] = []


class TaskStatus(msgspec.Struct, frozen=True, kw_only=True):
    state: str
    message: Message | None = None


class Task(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    status: TaskStatus
    context_id: str | None = None
    history: list[Message] | None = None
    artifacts: list[Artifact] | None = None

    @property
    def is_at_rest(self) -> bool:
        """Done, or waiting for somebody; also in a state that nobody knows."""
        return self.status.state not in UNDER_WAY

    @property
    def last_word(self) -> Message | None:
        """Where these agents put their answer: the last message of theirs."""
        return next((each for each in reversed(self.history or ()) if each.role == "agent"), self.status.message)


class RPCError(msgspec.Struct, frozen=True, kw_only=True):
    code: int = 0
    message: str = ""


class RPCReply(msgspec.Struct, frozen=True, kw_only=True):
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: RPCError | None = None


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str = ""
    description: str = ""
    tags: list[str] | None = None


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """Its `url` is not read: it is what the library's author had in mind."""

    name: str = ""
    description: str = ""
    version: str = ""
    skills: list[Skill] | None = None


def parts_said(task: Task) -> list[Part]:
    """The answer, and whatever the artifacts hold beyond it."""
    said = parts_of_message(task.last_word) if task.last_word is not None else []
    made = [_part(part) for artifact in task.artifacts or () for part in artifact.parts]
    return [*said, *(part for part in made if part not in said)]


def parts_of_message(message: Message) -> list[Part]:
    return [_part(part) for part in message.parts]


def words_in(parts: list[Part]) -> str:
    return "\n".join(part.text for part in parts if part.kind == "text" and part.text)


def _part(part: MessagePart) -> Part:
    if part.file is not None:
        file = part.file
        return Part(
            kind=kind_of(file.mime_type),
            url=file.uri,
            blob=None if file.uri is not None else file.bytes or "",
            mime_type=file.mime_type,
            name=file.name,
        )
    if part.kind == "data" or part.text is None:
        return Part(kind="json", data=part.data)
    return Part(kind="text", text=part.text)
