"""Collects the replies to one call: the task's state, its artifacts, and the events to emit meanwhile.

An artifact may arrive in pieces or repeatedly as a whole; every piece is emitted once. At the end the
parts become a result: data parts are merged into its object, and text is its `answer`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

import msgspec

from a2a_fabric.core.call import join_text
from a2a_fabric.core.errors import UpstreamRefused
from a2a_fabric.core.result import Event, Part, Result, token, tool_call
from a2a_fabric.core.result import artifact as artifact_event
from a2a_fabric.core.result import status as status_event
from a2a_fabric.protocols.a2a.models import (
    AGENT_STATUS_KEY,
    FINAL_TASK_STATES,
    INTERRUPTED_TASK_STATES,
    A2AArtifact,
    A2AMessage,
    A2ATask,
    A2ATaskState,
    A2ATaskStatus,
    A2AUpdate,
    TaskArtifactUpdate,
    TaskStatusUpdate,
)

Parts = tuple[Part, ...]

ANSWER_KEY = "answer"
RESULT_KEY = "result"


def result_from_parts(parts: Parts) -> Result:
    """The result keeps the parts where its object alone would lose something: files, names, conflicting values."""
    data, is_lossless = _merge_objects(parts)
    text = join_text(parts)
    if text and ANSWER_KEY in data:
        is_lossless = is_lossless and data[ANSWER_KEY] == text
    elif text:
        data[ANSWER_KEY] = text
    return Result(data=data, parts=() if is_lossless and all(map(_is_plain, parts)) else parts)


def _merge_objects(parts: Parts) -> tuple[dict[str, Any], bool]:
    """All objects merged, and whether nothing was lost. Values that are not objects become the `result`."""
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


class ArtifactBuffer:
    """One artifact. Text that arrives in pieces is emitted as tokens, everything else as artifact events."""

    def __init__(self, artifact_id: str, *, emits_events: bool, names_artifacts: bool = False) -> None:
        self.size = 0
        self._emits_events = emits_events  # whether the caller wants events
        self._names_artifacts = names_artifacts  # whether tokens say which artifact they belong to
        self._header = self._piece = A2AArtifact(id=artifact_id)  # all that was said of it; the newest piece
        self._parts: list[Part] = []
        self._pieces: list[str] = []  # text that continues the last part
        self._emitted_length = 0  # characters of its text

    @property
    def parts(self) -> Parts:
        self._join_pieces()
        return tuple(self._parts)

    @property
    def artifact(self) -> A2AArtifact:
        return msgspec.structs.replace(self._header, parts=self.parts)

    def add(self, piece: A2AArtifact, *, is_last: bool = False) -> list[Event]:
        self._update_header(piece)
        for part in piece.parts:
            self._append(part)
        if not self._emits_events:
            return []
        self._emitted_length += _text_length(piece.parts)
        if not is_text(piece.parts):
            return [self._artifact_event(piece.parts, append=True, **self._mark_last(is_last=is_last))]
        text = _concat_text(piece.parts)
        return [self._token_event(text, is_last=is_last)] if text else []

    def replace(self, whole: A2AArtifact, *, is_complete: bool) -> list[Event]:
        """The whole artifact, perhaps repeated. One that is complete from the start is emitted as an artifact."""
        is_new, before = not self.size, self.parts if self._emits_events else ()
        self._update_header(whole)
        self._parts, self._pieces, self.size = [], [], 0
        for part in whole.parts:
            self._append(part)
        if not self._emits_events:
            return []
        if is_complete and is_new:
            self._emitted_length = _text_length(whole.parts)
            return [self._artifact_event(self.parts, **self._mark_last(is_last=True))]
        if self.parts == before:
            return []
        if not is_text(whole.parts) or not _concat_text(self.parts).startswith(_concat_text(before)):
            self._emitted_length = _text_length(whole.parts)
            return [self._artifact_event(self.parts)]
        rest = _concat_text(whole.parts)[self._emitted_length :]
        self._emitted_length += len(rest)
        return [self._token_event(rest, is_last=is_complete)] if rest else []

    def _update_header(self, piece: A2AArtifact) -> None:
        """A later piece may leave out what an earlier one said."""
        known, self._piece = self._header, piece
        self._header = A2AArtifact(
            id=known.id,
            name=piece.name or known.name,
            description=piece.description or known.description,
            metadata={**known.metadata, **piece.metadata},
            extensions=piece.extensions or known.extensions,
        )

    def _token_event(self, text: str, *, is_last: bool) -> Event:
        event = token(text)
        if not self._names_artifacts:
            return event
        return Event(event.kind, {**event.data, **self._list_names(), **self._mark_last(is_last=is_last)})

    def _mark_last(self, *, is_last: bool) -> dict[str, bool]:
        return {"last_chunk": True} if is_last and self._names_artifacts else {}

    def _list_names(self) -> dict[str, Any]:
        header = self._header
        fields: dict[str, Any] = {"artifact_id": header.id, "name": header.name, "description": header.description}
        if self._names_artifacts:
            fields |= {"metadata": self._piece.metadata, "extensions": list(self._piece.extensions)}
        return {key: value for key, value in fields.items() if value}

    def _append(self, part: Part) -> None:
        """Text continues the last part if that is text; everything else is a part of its own."""
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
        return artifact_event({**self._list_names(), "parts": parts_to_json(parts), **more})


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
    def __init__(
        self,
        limit: int,
        task_id: str = "",
        context_id: str = "",
        *,
        emits_events: bool = True,
        names_artifacts: bool = False,
    ) -> None:
        self.task_id = task_id
        self.context_id = context_id
        self.state: A2ATaskState = "unknown"
        self.status_parts: Parts = ()  # of the message with the current state
        self.status_message: A2AMessage | None = None
        self.message: A2AMessage | None = None  # the answer, if the agent made no task
        self.metadata: dict[str, Any] = {}  # of the task
        self.last_message_parts: Parts = ()  # of the last message in the history
        self.is_done = False  # no more replies are expected in this call
        self._artifacts: dict[str, ArtifactBuffer] = {}
        self._size = 0
        self._limit = limit
        self._emits_events = emits_events  # whether the caller wants events
        self._names_artifacts = names_artifacts

    @property
    def message_parts(self) -> Parts | None:
        return None if self.message is None else self.message.parts

    @property
    def artifacts(self) -> tuple[A2AArtifact, ...]:
        return tuple(each.artifact for each in self._artifacts.values())

    @property
    def needs_input(self) -> bool:
        return self.state in INTERRUPTED_TASK_STATES and self.message_parts is None

    @property
    def has_answer(self) -> bool:
        return bool(self.message_parts is not None or self._artifacts or self.status_parts or self.last_message_parts)

    @property
    def parts(self) -> Parts:
        """The answer: the message or the artifacts; for agents with neither, their last message."""
        if self.message_parts is not None:
            return self.message_parts
        artifact_parts = tuple(part for each in self._artifacts.values() for part in each.parts)
        if any(part.kind == "text" for part in artifact_parts):
            return artifact_parts
        return artifact_parts + (self.status_parts or (() if artifact_parts else self.last_message_parts))

    def add(self, update: A2AUpdate) -> list[Event]:
        """Returns the events for the caller. Raises UpstreamRefused if the answer grows beyond the limit."""
        self.context_id = update.context_id or self.context_id
        match update:
            case A2AMessage():
                self.message, self.is_done = update, True
                return []
            case A2ATask():
                return self._add_task(update)
            case TaskStatusUpdate():
                self.task_id = update.task_id or self.task_id
                self.metadata = {**self.metadata, **update.metadata}
                events = self._set_status(update.status, update.metadata)
                self.is_done = self.is_done or (update.is_last and update.status.state == "unknown")
                return events
            case TaskArtifactUpdate():
                self.task_id = update.task_id or self.task_id
                return self._add_artifact(update.artifact, append=update.append, is_complete=update.last_chunk)
        assert_never(update)

    def _add_task(self, task: A2ATask) -> list[Event]:
        self.task_id = task.id or self.task_id
        self.metadata = {**self.metadata, **task.metadata}
        last_message = task.last_agent_message
        self.last_message_parts = (last_message.parts if last_message else ()) or self.last_message_parts
        events = []
        for each in task.artifacts or ():
            events += self._add_artifact(each, append=False, is_complete=True)
        return events + self._set_status(task.status, {})

    def _add_artifact(self, artifact: A2AArtifact, *, append: bool, is_complete: bool) -> list[Event]:
        buffer = self._artifacts.get(artifact.id)
        if buffer is None:
            if len(self._artifacts) >= _MAX_ARTIFACTS:
                raise _reply_too_large()
            buffer = self._artifacts[artifact.id] = ArtifactBuffer(
                artifact.id, emits_events=self._emits_events, names_artifacts=self._names_artifacts
            )
        before = buffer.size
        events = (
            buffer.add(artifact, is_last=is_complete) if append else buffer.replace(artifact, is_complete=is_complete)
        )
        self._size += buffer.size - before
        if self._size > self._limit:
            raise _reply_too_large()
        return events

    def _set_status(self, status: A2ATaskStatus, metadata: dict[str, Any]) -> list[Event]:
        state, parts = status.state, status.parts
        has_changed = state != self.state or (bool(parts) and parts != self.status_parts)
        self.state, self.status_parts, self.status_message = state, parts, status.message
        self.is_done = state in FINAL_TASK_STATES or state in INTERRUPTED_TASK_STATES
        if not has_changed or self.is_done or state == "unknown" or not self._emits_events:
            return []
        more: dict[str, Any] = {} if is_text(parts) else {"parts": parts_to_json(parts)}
        if self._names_artifacts:
            update = TaskStatusUpdate(task_id="", status=status, metadata=metadata)
            more[AGENT_STATUS_KEY] = msgspec.to_builtins(update)
        event = status_event("queued" if state == "submitted" else "running", join_text(parts) or None, **more)
        return [event, *(_tool_call_event(part) for part in parts if part.kind == "function_call")]


def _tool_call_event(part: Part) -> Event:
    """Agents use several names for the arguments of a function call."""
    data = part.data if isinstance(part.data, dict) else {}
    candidates = (data.get(name) for name in ("arguments", "args", "input"))
    arguments: dict[str, Any] = next((candidate for candidate in candidates if isinstance(candidate, dict)), {})
    return tool_call(str(data.get("name") or data.get("tool") or part.name or ""), arguments)


def _reply_too_large() -> UpstreamRefused:
    return UpstreamRefused("The agent's answer is larger than this node accepts")
