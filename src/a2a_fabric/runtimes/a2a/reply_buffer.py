"""Collects the replies to one call: the task's state, its artifacts, and the events to emit meanwhile.

An artifact may arrive in pieces or repeatedly as a whole; every piece is emitted once. At the end the
parts become a result: data parts are merged into its object, and text is its `answer`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

import msgspec

from a2a_fabric.core.errors import UpstreamRefused
from a2a_fabric.core.events import Event, artifact, status, token, tool_call
from a2a_fabric.core.part import Part
from a2a_fabric.core.result import Result
from a2a_fabric.protocols.a2a.replies import (
    FINAL_STATES,
    INTERRUPTED_STATES,
    A2AArtifactUpdate,
    A2AMessageReply,
    A2AReply,
    A2AReplyArtifact,
    A2AStatusUpdate,
    A2ATaskSnapshot,
    A2AWireState,
    Parts,
)

ANSWER_KEY = "answer"
RESULT_KEY = "result"


def result_from_parts(parts: Parts) -> Result:
    """The parts themselves stay where the object alone would lose something: files, names, two values of one name."""
    data, is_lossless = _merge_objects(parts)
    text = join_text(parts)
    if text and ANSWER_KEY in data:
        is_lossless = is_lossless and data[ANSWER_KEY] == text
    elif text:
        data[ANSWER_KEY] = text
    return Result(data=data, parts=() if is_lossless and all(map(_is_plain, parts)) else parts)


def _merge_objects(parts: Parts) -> tuple[dict[str, Any], bool]:
    """All objects in one, and whether they still are all there. Bare values are the `result`."""
    data: dict[str, Any] = {}
    values: list[Any] = []
    is_lossless = True
    for part in parts:
        if part.kind != "json":
            continue
        if not isinstance(part.data, dict):
            values.append(part.data)
            continue
        is_lossless = is_lossless and all(key not in data or data[key] == value for key, value in part.data.items())
        data.update(part.data)
    if values:
        is_lossless = is_lossless and RESULT_KEY not in data
        data.setdefault(RESULT_KEY, values[0] if len(values) == 1 else values)
    return data, is_lossless


def _is_plain(part: Part) -> bool:
    return part.kind in ("text", "json") and not part.name and not part.meta


def join_text(parts: Iterable[Part]) -> str:
    return "\n".join(part.text for part in parts if part.kind == "text" and part.text)


class ArtifactBuffer:
    """Text that comes in pieces is told as words; anything else is told as an artifact."""

    def __init__(self, first: A2AReplyArtifact, *, emits_events: bool) -> None:
        self.size = 0
        self._emits_events = emits_events  # whether anybody listens
        self._id = first.id
        self._name = ""
        self._description = ""
        self._parts: list[Part] = []
        self._pieces: list[str] = []  # how the last part goes on, if it is text
        self._emitted_length = 0  # characters of its text

    @property
    def parts(self) -> Parts:
        self._join_pieces()
        return tuple(self._parts)

    def add(self, piece: A2AReplyArtifact) -> list[Event]:
        """The next piece."""
        self._name, self._description = piece.name or self._name, piece.description or self._description
        for part in piece.parts:
            self._append(part)
        if not self._emits_events:
            return []
        self._emitted_length += _text_length(piece.parts)
        if not is_text(piece.parts):
            return [self._artifact_event(piece.parts, append=True)]
        text = _concat_text(piece.parts)
        return [token(text)] if text else []

    def replace(self, whole: A2AReplyArtifact, *, is_complete: bool) -> list[Event]:
        """All of it, perhaps once more. What is complete from the start is told as an artifact."""
        is_new, before = not self.size, self.parts if self._emits_events else ()
        self._name, self._description = whole.name or self._name, whole.description or self._description
        self._parts, self._pieces, self.size = [], [], 0
        for part in whole.parts:
            self._append(part)
        if not self._emits_events:
            return []
        if is_complete and is_new:
            self._emitted_length = _text_length(whole.parts)
            return [self._artifact_event(self.parts)]
        if self.parts == before:
            return []
        if not is_text(whole.parts) or not _concat_text(self.parts).startswith(_concat_text(before)):
            self._emitted_length = _text_length(whole.parts)
            return [self._artifact_event(self.parts)]
        rest = _concat_text(whole.parts)[self._emitted_length :]
        self._emitted_length += len(rest)
        return [token(rest)] if rest else []

    def _append(self, part: Part) -> None:
        """A piece of text goes on where the last one ended; everything else is a part of its own."""
        self.size += len(part.text or part.blob or part.url or "") or 64
        last = self._parts[-1] if self._parts else None
        if last is not None and _continues_text(last, part):
            self._pieces.append(part.text or "")
        else:
            self._join_pieces()
            self._parts.append(part)

    def _join_pieces(self) -> None:
        if self._pieces:
            last = self._parts[-1]
            self._parts[-1] = msgspec.structs.replace(last, text=(last.text or "") + "".join(self._pieces))
            self._pieces = []

    def _artifact_event(self, parts: Iterable[Part], **more: Any) -> Event:
        fields = {"artifact_id": self._id, "name": self._name, "description": self._description}
        return artifact(
            {**{key: value for key, value in fields.items() if value}, "parts": parts_to_json(parts), **more}
        )


def _continues_text(last: Part, part: Part) -> bool:
    if last.kind != "text" or part.kind != "text":
        return False
    return part.mime_type in (None, last.mime_type) and part.meta in ({}, last.meta)


def is_text(parts: Iterable[Part]) -> bool:
    return all(part.kind == "text" for part in parts)


def parts_to_json(parts: Iterable[Part]) -> Any:
    return msgspec.to_builtins(list(parts))


def _concat_text(parts: Iterable[Part]) -> str:
    return "".join(part.text or "" for part in parts if part.kind == "text")


def _text_length(parts: Iterable[Part]) -> int:
    return sum(len(part.text or "") for part in parts if part.kind == "text")


_MAX_ARTIFACTS = 10_000


class ReplyBuffer:
    def __init__(self, limit: int, task_id: str = "", context_id: str = "", *, emits_events: bool = True) -> None:
        self.task_id = task_id
        self.context_id = context_id
        self.state: A2AWireState = "unknown"
        self.status_parts: Parts = ()  # what the agent said with its state
        self.last_message_parts: Parts = ()  # of its history
        self.message_parts: Parts | None = None  # the answer, if it is one without a task
        self.is_done = False  # nothing more will be said in this call
        self._artifacts: dict[str, ArtifactBuffer] = {}
        self._size = 0
        self._limit = limit
        self._emits_events = emits_events  # whether anybody listens on the way

    @property
    def needs_input(self) -> bool:
        return self.state in INTERRUPTED_STATES and self.message_parts is None

    @property
    def has_answer(self) -> bool:
        return bool(self.message_parts is not None or self._artifacts or self.status_parts or self.last_message_parts)

    @property
    def parts(self) -> Parts:
        """The answer: the message, or the artifacts; the last words are for agents that make none of either."""
        if self.message_parts is not None:
            return self.message_parts
        artifact_parts = tuple(part for each in self._artifacts.values() for part in each.parts)
        if any(part.kind == "text" for part in artifact_parts):
            return artifact_parts
        return artifact_parts + (self.status_parts or (() if artifact_parts else self.last_message_parts))

    def add(self, reply: A2AReply) -> list[Event]:
        """Remember it; returns what the caller should hear. Raises UpstreamRefused if it is too much."""
        self.context_id = reply.context_id or self.context_id
        match reply:
            case A2AMessageReply():
                self.message_parts, self.is_done = reply.parts, True
                return []
            case A2ATaskSnapshot():
                return self._add_task(reply)
            case A2AStatusUpdate():
                self.task_id = reply.task_id or self.task_id
                events = self._set_state(reply.state, reply.status_parts)
                self.is_done = self.is_done or (reply.is_final and reply.state == "unknown")
                return events
            case A2AArtifactUpdate():
                self.task_id = reply.task_id or self.task_id
                return self._add_artifact(reply)
        assert_never(reply)

    def _add_task(self, task: A2ATaskSnapshot) -> list[Event]:
        self.task_id = task.task_id or self.task_id
        self.last_message_parts = task.last_message_parts or self.last_message_parts
        events = []
        for each in task.artifacts:
            whole = A2AArtifactUpdate(task_id=task.task_id, artifact=each, is_complete=True)
            events += self._add_artifact(whole)
        return events + self._set_state(task.state, task.status_parts)

    def _add_artifact(self, update: A2AArtifactUpdate) -> list[Event]:
        buffer = self._artifacts.get(update.artifact.id)
        if buffer is None:
            if len(self._artifacts) >= _MAX_ARTIFACTS:
                raise _reply_too_large()
            buffer = self._artifacts[update.artifact.id] = ArtifactBuffer(
                update.artifact, emits_events=self._emits_events
            )
        before = buffer.size
        if update.is_append:
            events = buffer.add(update.artifact)
        else:
            events = buffer.replace(update.artifact, is_complete=update.is_complete)
        self._size += buffer.size - before
        if self._size > self._limit:
            raise _reply_too_large()
        return events

    def _set_state(self, state: A2AWireState, status_parts: Parts) -> list[Event]:
        has_changed = state != self.state or (bool(status_parts) and status_parts != self.status_parts)
        self.state, self.status_parts = state, status_parts
        self.is_done = state in FINAL_STATES or state in INTERRUPTED_STATES
        if not has_changed or self.is_done or state == "unknown" or not self._emits_events:
            return []
        more = {} if is_text(status_parts) else {"parts": parts_to_json(status_parts)}
        event = status("queued" if state == "submitted" else "running", join_text(status_parts) or None, **more)
        return [event, *(_tool_call_event(part) for part in status_parts if part.kind == "function_call")]


def _tool_call_event(part: Part) -> Event:
    """Agents name the arguments of what they call in several ways."""
    data = part.data if isinstance(part.data, dict) else {}
    candidates = (data.get(name) for name in ("arguments", "args", "input"))
    arguments: dict[str, Any] = next((candidate for candidate in candidates if isinstance(candidate, dict)), {})
    return tool_call(str(data.get("name") or data.get("tool") or part.name or ""), arguments)


def _reply_too_large() -> UpstreamRefused:
    return UpstreamRefused("The agent says more than this node takes")
