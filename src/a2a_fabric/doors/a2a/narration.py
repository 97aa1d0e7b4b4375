"""A job's log as the updates of a task, one line after the other.

Words that an agent says on its way grow the artifact that is to be the answer. If in the
end they are the answer, only the rest of it is added; if not, the answer takes their place.
"""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.events import Event
from a2a_fabric.core.job import Job, JobEvent, JobSummary
from a2a_fabric.core.part import Part
from a2a_fabric.core.question import Question, Questions
from a2a_fabric.core.states import ENDED
from a2a_fabric.doors.a2a import seen
from a2a_fabric.doors.a2a.saying import Saying
from a2a_fabric.doors.a2a.shapes import Artifact, ArtifactUpdate, Message, Status, StatusUpdate, Update

SAID = "a2a_said"  # in the log: what a caller said to a task that had asked
PROGRESS, TOOL_CALL = "a2a-fabric/progress", "a2a-fabric/tool_call"


class Narration:
    """Of one task, from its first line or from any later one."""

    def __init__(self, job: JobSummary) -> None:
        self._task_id = job.job_id
        self._context_id = seen.context_of(job)
        self._saying = Saying()

    def tell(self, line: JobEvent) -> list[Update]:
        """What a line means to a client. The end is told by `end`, a question once it can be answered."""
        event, data = line.event, line.event.data
        match event.kind:
            case "status":
                return self._status(line)
            case "token":
                text = str(data.get("text", ""))
                return self._grown((Part(kind="text", text=text),)) if text else []
            case "progress":
                words = data.get("message")
                return [self._working(line, words if isinstance(words, str) else None, {PROGRESS: data})]
            case "tool_call":
                return [self._working(line, None, {TOOL_CALL: data})]
            case "artifact":
                return self._grown(made_parts(event))
            case "input_required":
                return [self._asking(line)]
        return []

    def _status(self, line: JobEvent) -> list[Update]:
        data = line.event.data
        if data.get("reset"):
            self._saying = Saying()
        state, message = data.get("state"), data.get("message")
        if state in ENDED or (state == "queued" and line.number == 1):
            return []
        words = message if isinstance(message, str) else None
        if state == "queued":
            return [self._update("queued", line, words)]
        return [self._working(line, words)]

    def _working(self, line: JobEvent, words: str | None, metadata: dict[str, Any] | None = None) -> StatusUpdate:
        return self._update("running", line, words, metadata)

    def _update(
        self, state: Any, line: JobEvent, words: str | None, metadata: dict[str, Any] | None = None
    ) -> StatusUpdate:
        message = self._message((Part(kind="text", text=words),), line) if words else None
        return StatusUpdate(
            task_id=self._task_id,
            context_id=self._context_id,
            status=Status(state=state, at=line.at, message=message),
            metadata=metadata or {},
        )

    def _message(self, parts: tuple[Part, ...], line: JobEvent) -> Message:
        message_id = f"{self._task_id}-{line.number}"
        return Message(id=message_id, parts=parts, context_id=self._context_id, task_id=self._task_id)

    def _grown(self, parts: tuple[Part, ...]) -> list[Update]:
        is_first = self._saying.is_nothing
        for part in parts:
            self._saying.add(part)
        return [self._artifact(parts, append=not is_first)]

    def _asking(self, line: JobEvent) -> StatusUpdate:
        asked = questions_in(line.event)
        message = self._message(seen.question_parts(asked), line)
        status = Status(state=seen.state_asking(asked), at=line.at, message=message)
        return StatusUpdate(task_id=self._task_id, context_id=self._context_id, status=status, is_last=True)

    def end(self, job: Job) -> list[Update]:
        """The answer, and that this was all."""
        updates: list[Update] = []
        if job.result is not None:
            updates += self._answer(job)
        status = seen.status_of(job)
        told = seen.task_of(job).metadata
        updates.append(
            StatusUpdate(task_id=job.job_id, context_id=self._context_id, status=status, metadata=told, is_last=True)
        )
        return updates

    def _answer(self, job: Job) -> list[Update]:
        assert job.result is not None  # noqa: S101  # its caller looked
        kept = seen.kept_in(job)
        parts = seen.result_parts(job.result, kept.modes if kept else ())
        rest = self._saying.rest_of(parts)
        if rest == ():
            return []
        append = rest is not None and not self._saying.is_nothing
        left = parts if rest is None else rest
        return [self._artifact(left, append=append, last=True, metadata=seen.beside(job.result))]

    def so_far(self) -> tuple[Artifact, ...] | None:
        """What has been told of an answer that is not there yet; None if it is long."""
        told = self._saying.parts()
        if told is None:
            return None
        return (Artifact(id=seen.RESULT, name=seen.RESULT, parts=told),) if told else ()

    def _artifact(
        self, parts: tuple[Part, ...], *, append: bool, last: bool = False, metadata: dict[str, Any] | None = None
    ) -> ArtifactUpdate:
        return ArtifactUpdate(
            task_id=self._task_id,
            context_id=self._context_id,
            artifact=Artifact(id=seen.RESULT, name=seen.RESULT, parts=parts, metadata=metadata or {}),
            append=append,
            last_chunk=last,
        )


def made_parts(event: Event) -> tuple[Part, ...]:
    """An artifact event holds one part, several, or anything that its agent calls one."""
    data = event.data
    for found, kind in ((data.get("parts"), tuple[Part, ...]), (data, Part)):
        try:
            made = msgspec.convert(found, kind)
        except msgspec.ValidationError:
            continue
        parts = made if isinstance(made, tuple) else (made,)
        if parts:
            return parts
    return (Part(kind="json", data=data),)


def questions_in(event: Event) -> Questions:
    data = event.data
    try:
        asked = msgspec.convert(data.get("questions", {}), dict[str, Question])
    except msgspec.ValidationError:
        asked = {}
    return Questions(questions=asked, continuation="")


def said_in(line: JobEvent) -> dict[str, Any] | None:
    """What a caller said here, if they did."""
    found = line.event.data.get(SAID) if line.event.kind == "status" else None
    return found if isinstance(found, dict) else None
