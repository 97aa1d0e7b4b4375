"""The events of a job as updates of an A2A task.

Text that an agent emits extends the artifact that will be the answer. If the final answer starts with that text, only
the remainder is sent; otherwise the answer replaces it. Many clients may follow a task, some of them slowly, so only
digests of a long answer are kept in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.job import FINAL_STATES, Job, JobEvent, JobSummary
from a2a_fabric.core.result import Event, Part, Question, Questions
from a2a_fabric.doors.a2a.task_view import (
    RESULT_ARTIFACT_ID,
    artifacts_from_result,
    build_question_parts,
    choose_question_state,
    find_context_id,
    record_from_job,
    status_from_job,
    task_from_job,
)
from a2a_fabric.protocols.a2a.models import (
    AGENT_STATUS_KEY,
    A2AArtifact,
    A2AMessage,
    A2ATaskState,
    A2ATaskStatus,
    A2AUpdate,
    TaskArtifactUpdate,
    TaskStatusUpdate,
    is_a2a,
)

LONG_ANSWER_BYTES = 256 * 1024  # approximate; longer answers are sent in pieces


class AnswerDiff:
    """Compares the final answer with what was streamed. Consecutive texts count as one part."""

    def __init__(self) -> None:
        self._digests: list[hashlib.blake2b] = []
        self._pieces: list[Part] | None = []  # None: the answer is long
        self._size = 0
        self._last_is_text = False

    @property
    def is_empty(self) -> bool:
        return not self._digests

    @property
    def ends_with_text(self) -> bool:
        return self._last_is_text

    def add(self, part: Part) -> None:
        is_text = _is_plain_text(part)
        if not (is_text and self._last_is_text):
            self._digests.append(hashlib.blake2b())
        self._last_is_text = is_text
        self._digests[-1].update(_encode_part(part))
        self._size += estimate_size([part])
        if self._size > LONG_ANSWER_BYTES:
            self._pieces = None
        if self._pieces is not None:
            self._pieces.append(part)

    def to_parts(self) -> tuple[Part, ...] | None:
        """What was streamed so far; None if it is long."""
        return None if self._pieces is None else _join_pieces(self._pieces)

    def find_remainder(self, answer: Sequence[Part]) -> tuple[Part, ...] | None:
        """The parts that were not streamed yet; None if the answer does not start with what was streamed."""
        prefix = answer[: len(self._digests)]
        if [hashlib.blake2b(_encode_part(part)).digest() for part in prefix] != [
            each.digest() for each in self._digests
        ]:
            return None
        return tuple(answer[len(self._digests) :])


def estimate_size(parts: Iterable[Part]) -> int:
    """The approximate size in bytes."""
    return sum(len(part.text or part.blob or "") + (len(_encode_part(part)) if part.data else 0) for part in parts)


def _is_plain_text(part: Part) -> bool:
    return part.kind == "text" and part.text is not None and not (part.meta or part.name or part.mime_type)


def _encode_part(part: Part) -> bytes:
    if part.text is not None and _is_plain_text(part):
        return part.text.encode("utf-8", "surrogatepass")
    return b"\0" + msgspec.json.encode(part, order="deterministic")


def _join_pieces(pieces: Sequence[Part]) -> tuple[Part, ...]:
    parts: list[Part] = []
    texts: list[str] = []
    for piece in pieces:
        if _is_plain_text(piece):
            texts.append(piece.text or "")
            continue
        if texts:
            parts.append(Part(kind="text", text="".join(texts)))
            texts = []
        parts.append(piece)
    return (*parts, Part(kind="text", text="".join(texts))) if texts else tuple(parts)


USER_MESSAGE_KEY = "a2a_said"  # in a job event: the message with which a caller answered questions
PROGRESS_KEY, TOOL_CALL_KEY = "a2a-fabric/progress", "a2a-fabric/tool_call"


class _StreamedArtifact:
    """What was sent of one artifact. `is_ended`: its last chunk was marked as such."""

    def __init__(self, header: A2AArtifact) -> None:
        self.header = header
        self.diff = AnswerDiff()
        self.is_ended = False


class TaskUpdateBuilder:
    """Builds the updates of one task, from its first event or from a later one.

    The answer of an agent is one artifact. An A2A agent behind the node has artifacts of its own, which keep their ids.
    """

    def __init__(self, job: JobSummary) -> None:
        self._task_id = job.job_id
        self._context_id = find_context_id(job)
        self._has_own_artifacts = isinstance(job, Job) and is_a2a(job.call.original)
        self._streamed: dict[str, _StreamedArtifact] = {}

    def build_updates(self, job_event: JobEvent) -> list[A2AUpdate]:
        """The updates for one job event. The end of the task is left to `build_final_updates`."""
        event, data = job_event.event, job_event.event.data
        match event.kind:
            case "status":
                return self._updates_from_status(job_event)
            case "token":
                text = str(data.get("text", ""))
                return self._extend_answer((Part(kind="text", text=text),), data) if text else []
            case "progress":
                progress_text = data.get("message")
                return [
                    self._build_working_update(
                        job_event, progress_text if isinstance(progress_text, str) else None, {PROGRESS_KEY: data}
                    )
                ]
            case "tool_call" if not self._has_own_artifacts:  # else it is in a status of the agent
                return [self._build_working_update(job_event, None, {TOOL_CALL_KEY: data})]
            case "artifact":
                return self._extend_answer(parts_from_event(event), data)
            case "input_required":
                return [self._build_question_update(job_event)]
        return []

    def _updates_from_status(self, job_event: JobEvent) -> list[A2AUpdate]:
        data = job_event.event.data
        if data.get("reset"):
            self._streamed = {}
        state, message = data.get("state"), data.get("message")
        if state in FINAL_STATES or (state == "queued" and job_event.number == 1):
            return []
        text = message if isinstance(message, str) else None
        if AGENT_STATUS_KEY in data:
            update = self._pass_on_status(msgspec.convert(data[AGENT_STATUS_KEY], TaskStatusUpdate), job_event)
            is_new = update.status.state != "submitted" or update.status.message is not None
            return [update] if is_new else []  # the node's task is submitted already
        if self._has_own_artifacts and text is None:  # the agent says itself when it works
            return []
        if state == "queued":
            return [self._build_status_update("submitted", job_event, text)]
        return [self._build_working_update(job_event, text)]

    def _pass_on_status(self, update: TaskStatusUpdate, job_event: JobEvent) -> TaskStatusUpdate:
        message = update.status.message
        if message is not None:
            message = replace(
                message,
                id=message.id or f"{self._task_id}-{job_event.number}",
                task_id=self._task_id,
                context_id=self._context_id,
            )
        status = replace(update.status, at=job_event.at, message=message)
        return replace(update, task_id=self._task_id, context_id=self._context_id, status=status)

    def _build_working_update(
        self, job_event: JobEvent, text: str | None, metadata: dict[str, Any] | None = None
    ) -> TaskStatusUpdate:
        return self._build_status_update("working", job_event, text, metadata)

    def _build_status_update(
        self, state: A2ATaskState, job_event: JobEvent, text: str | None, metadata: dict[str, Any] | None = None
    ) -> TaskStatusUpdate:
        message = self._build_message((Part(kind="text", text=text),), job_event) if text else None
        return TaskStatusUpdate(
            task_id=self._task_id,
            context_id=self._context_id,
            status=A2ATaskStatus(state=state, at=job_event.at, message=message),
            metadata=metadata or {},
        )

    def _build_message(self, parts: tuple[Part, ...], job_event: JobEvent) -> A2AMessage:
        message_id = f"{self._task_id}-{job_event.number}"
        return A2AMessage(id=message_id, parts=parts, context_id=self._context_id, task_id=self._task_id)

    def _extend_answer(self, parts: tuple[Part, ...], data: dict[str, Any]) -> list[A2AUpdate]:
        header = self._read_header(data)
        streamed = self._streamed.get(header.id)
        is_whole = self._has_own_artifacts and "parts" in data and not data.get("append")
        if streamed is None or is_whole:
            streamed = self._streamed[header.id] = _StreamedArtifact(header)
        append = not streamed.diff.is_empty
        for part in parts:
            streamed.diff.add(part)
        streamed.is_ended = self._has_own_artifacts and data.get("last_chunk") is True
        return [self._build_artifact_update(replace(header, parts=parts), append=append, last=streamed.is_ended)]

    def _read_header(self, data: dict[str, Any]) -> A2AArtifact:
        """Which artifact the content of an event belongs to."""
        if not self._has_own_artifacts or not isinstance(data.get("artifact_id"), str):
            return A2AArtifact(id=RESULT_ARTIFACT_ID, name=RESULT_ARTIFACT_ID)
        names = ("name", "description", "metadata", "extensions")
        fields: dict[str, Any] = {key: data[key] for key in names if key in data}
        return msgspec.convert({**fields, "id": data["artifact_id"]}, A2AArtifact)

    def _build_question_update(self, job_event: JobEvent) -> TaskStatusUpdate:
        questions = questions_from_event(job_event.event)
        message = self._build_message(build_question_parts(questions), job_event)
        status = A2ATaskStatus(state=choose_question_state(questions), at=job_event.at, message=message)
        return TaskStatusUpdate(task_id=self._task_id, context_id=self._context_id, status=status, is_last=True)

    def build_final_updates(self, job: Job) -> list[A2AUpdate]:
        """The rest of the answer, and the final status."""
        updates: list[A2AUpdate] = []
        if job.result is not None:
            record = record_from_job(job)
            for artifact in artifacts_from_result(job.result, record.modes if record else ()):
                updates += self._end_artifact(artifact)
        status = status_from_job(job)
        metadata = task_from_job(job).metadata
        updates.append(
            TaskStatusUpdate(
                task_id=job.job_id, context_id=self._context_id, status=status, metadata=metadata, is_last=True
            )
        )
        return updates

    def _end_artifact(self, artifact: A2AArtifact) -> list[A2AUpdate]:
        """What was not sent yet of an artifact, as its last chunk.

        A client learns that an artifact is complete only from its last chunk. If all of it was sent before the node
        knew that, the last chunk is an empty text.
        """
        streamed = self._streamed.get(artifact.id)
        if streamed is None or streamed.diff.is_empty:
            return [self._build_artifact_update(artifact, append=False, last=True)]
        remainder = streamed.diff.find_remainder(artifact.parts)
        if remainder is None:
            return [self._build_artifact_update(artifact, append=False, last=True)]
        if not remainder and (streamed.is_ended or (self._has_own_artifacts and not streamed.diff.ends_with_text)):
            return []
        last_parts = remainder or (Part(kind="text", text=""),)
        return [self._build_artifact_update(replace(artifact, parts=last_parts), append=True, last=True)]

    def build_partial_artifacts(self) -> tuple[A2AArtifact, ...] | None:
        """The streamed part of an unfinished answer; None if it is long."""
        artifacts: list[A2AArtifact] = []
        for streamed in self._streamed.values():
            parts = streamed.diff.to_parts()
            if parts is None:
                return None
            if parts:
                artifacts.append(replace(streamed.header, parts=parts))
        return tuple(artifacts)

    def _build_artifact_update(self, artifact: A2AArtifact, *, append: bool, last: bool) -> TaskArtifactUpdate:
        return TaskArtifactUpdate(
            task_id=self._task_id, context_id=self._context_id, artifact=artifact, append=append, last_chunk=last
        )


def parts_from_event(event: Event) -> tuple[Part, ...]:
    """An artifact event holds one part, several, or any other data of its agent."""
    data = event.data
    for value, kind in ((data.get("parts"), tuple[Part, ...]), (data, Part)):
        try:
            converted = msgspec.convert(value, kind)
        except msgspec.ValidationError:
            continue
        parts = converted if isinstance(converted, tuple) else (converted,)
        if parts:
            return parts
    return (Part(kind="json", data=data),)


def questions_from_event(event: Event) -> Questions:
    data = event.data
    try:
        questions = msgspec.convert(data.get("questions", {}), dict[str, Question])
    except msgspec.ValidationError:
        questions = {}
    return Questions(questions=questions, continuation="")


def user_message_from_event(job_event: JobEvent) -> dict[str, Any] | None:
    """The user's message in this event, if there is one."""
    stored = job_event.event.data.get(USER_MESSAGE_KEY) if job_event.event.kind == "status" else None
    return stored if isinstance(stored, dict) else None
