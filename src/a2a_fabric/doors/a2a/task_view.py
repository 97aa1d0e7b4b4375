"""A job as an A2A task, and its events as updates of that task: what a client sees of what the node stored.

Text that an agent emits extends the artifact that will be the answer. If the final answer starts with that text, only
the remainder is sent; otherwise the answer replaces it. Many clients may follow a task, some of them slowly, so only
digests of a long answer are kept in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.call import KIND_KEY, Input, join_text, parts_from_input
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.job import FINAL_STATES, Job, JobError, JobEvent, JobSummary
from a2a_fabric.core.result import Event, Part, Question, Questions, Result
from a2a_fabric.doors.a2a.requests import UserMessage
from a2a_fabric.doors.edge import to_encodable_text, to_json_details
from a2a_fabric.protocols.a2a.models import (
    AGENT_STATUS_KEY,
    A2AArtifact,
    A2AMessage,
    A2ATask,
    A2ATaskState,
    A2ATaskStatus,
    A2AUpdate,
    AgentsReply,
    Dialect,
    TaskArtifactUpdate,
    TaskStatusUpdate,
    is_a2a,
    task_state_from_job,
)

JOB_META_KEY = "a2a"  # of the record that this door keeps in a job
RESULT_ARTIFACT_ID = "result"  # of the artifact that holds the answer
ERROR_KEY, FALLBACK_KEY, NOTES_KEY, TRACE_KEY, AGENT_KEY, SKILL_KEY = (
    f"a2a-fabric/{name}" for name in ("error", "fallback", "notes", "trace_id", "agent_id", "skill")
)
AS_MESSAGE_KEY = "a2a-fabric/message"  # in the meta of a part
_JSON_MODES = ("application/json", "application/*", "*/*", "json", "data", "application/a2a+json")
_ANSWER_FIELD = "answer"


class A2ATaskRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts about the message that started a task. `modes` are the media types that its sender accepts."""

    context_id: str
    message: dict[str, Any] = {}
    dialect: Dialect = "1.0"
    metadata: dict[str, Any] = {}
    modes: tuple[str, ...] = ()
    reason: str = ""  # why this capability answers, if the message names none


def record_from_message(user_message: UserMessage, context_id: str, reason: str) -> A2ATaskRecord:
    return A2ATaskRecord(
        context_id=context_id,
        message=user_message.raw,
        dialect=user_message.dialect,
        metadata=user_message.request_metadata,
        modes=user_message.output_modes,
        reason=reason,
    )


def record_from_job(job: JobSummary) -> A2ATaskRecord | None:
    """None if the job came through another door."""
    stored = job.meta.get(JOB_META_KEY)
    return None if stored is None else msgspec.convert(stored, A2ATaskRecord)


def find_context_id(job: JobSummary) -> str:
    record = record_from_job(job)
    if record is not None:
        return record.context_id
    conversation_id = job.call.conversation_id if isinstance(job, Job) else None
    return conversation_id if isinstance(conversation_id, str) and conversation_id else job.job_id


def task_from_job(job: Job, later_messages: Sequence[A2AMessage] = (), *, artifacts: bool = True) -> A2ATask:
    """`later_messages` are those after the first one. The history is complete; callers shorten it."""
    context_id, record = find_context_id(job), record_from_job(job)
    modes = record.modes if record else ()
    result_artifacts = artifacts_from_result(job.result, modes) if job.result is not None else ()
    return A2ATask(
        id=job.job_id,
        context_id=context_id,
        status=status_from_job(job),
        artifacts=result_artifacts if artifacts else None,
        history=(build_first_message(job), *later_messages),
        metadata={
            **(reply.task.metadata if (reply := reply_from_job(job)) is not None and reply.task is not None else {}),
            **(record.metadata if record else {}),
            AGENT_KEY: job.agent_id,
            TRACE_KEY: job.meta.get("trace_id"),
            **_describe_choice(job, record),
            **(build_result_metadata(job.result) if job.result is not None else {}),
        },
    )


def _describe_choice(job: Job, record: A2ATaskRecord | None) -> dict[str, Any]:
    """Which skill answers, and why, unless the message names one or the agent behind chose it."""
    if record is None or not record.reason or reply_from_job(job) is not None:
        return {}
    return {SKILL_KEY: {"id": job.capability, "reason": record.reason}}


def reply_from_job(job: Job) -> AgentsReply | None:
    return reply_from_result(job.result) if job.result is not None else None


def reply_from_result(result: Result) -> AgentsReply | None:
    """The agent's own message or task, if it speaks A2A."""
    if not is_a2a(result.original):
        return None
    reply = msgspec.convert(result.original.content, AgentsReply)
    if reply.message is not None and not reply.message.parts:
        return replace(reply, message=replace(reply.message, parts=result.parts))
    if reply.task is None or not reply.part_counts:
        return reply
    parts = iter(result.parts)
    artifacts = tuple(
        replace(each, parts=tuple(islice(parts, count)))
        for each, count in zip(reply.task.artifacts or (), reply.part_counts, strict=True)
    )
    return replace(reply, task=replace(reply.task, artifacts=artifacts))


def message_from_job(job: Job) -> A2AMessage | None:
    """The answer as a message, if all its parts are marked as one; else None, and the answer is a task."""
    reply = reply_from_job(job)
    if reply is not None and reply.message is not None:
        message_id = reply.message.id or f"{job.job_id}-answer"
        return replace(reply.message, id=message_id, context_id=find_context_id(job), task_id="")
    parts = job.result.parts if job.result is not None else ()
    if not parts or not all(part.meta.get(AS_MESSAGE_KEY) is True for part in parts):
        return None
    message_parts = tuple(
        replace(part, meta={key: value for key, value in part.meta.items() if key != AS_MESSAGE_KEY}) for part in parts
    )
    return A2AMessage(id=f"{job.job_id}-answer", parts=message_parts, context_id=find_context_id(job))


def build_first_message(job: Job) -> A2AMessage:
    record, context_id = record_from_job(job), find_context_id(job)
    if record is not None and record.message:
        return build_user_message(record.message, record.dialect, context_id, job.job_id)
    return A2AMessage(
        id=f"{job.job_id}-0",
        role="user",
        parts=_parts_from_input(job.call.input),
        context_id=context_id,
        task_id=job.job_id,
    )


def build_user_message(raw: dict[str, Any], dialect: Dialect, context_id: str, task_id: str) -> A2AMessage:
    return A2AMessage(
        id=str(raw.get("messageId", "")),
        role="user",
        raw=raw,
        dialect=dialect,
        context_id=context_id,
        task_id=task_id,
    )


def _parts_from_input(call_input: Input) -> tuple[Part, ...]:
    text_parts = (Part(kind="text", text=call_input.task),) if call_input.task else ()
    argument_parts = (Part(kind="json", data=call_input.context),) if call_input.context else ()
    return (*text_parts, *argument_parts, *parts_from_input(call_input)) or (Part(kind="json", data={}),)


def status_from_job(job: Job) -> A2ATaskStatus:
    message = None
    state = task_state_from_job(job.state)
    if job.state == "input_required" and job.question is not None:
        questions = job.open_questions
        assert questions is not None  # noqa: S101  # the job waits for answers
        state = choose_question_state(questions)
        message = build_agent_message(job, build_question_parts(questions), f"{job.job_id}-{job.events}")
    elif job.failure is not None:
        message = build_error_message(job.failure, job)
        if job.failure.details.get("state") == "rejected":
            state = "rejected"
    elif (reply := reply_from_job(job)) is not None and reply.task is not None and reply.task.status.message:
        message = replace(reply.task.status.message, context_id=find_context_id(job), task_id=job.job_id)
    return A2ATaskStatus(state=state, at=job.updated_at, message=message)


def choose_question_state(questions: Questions) -> A2ATaskState:
    """`auth-required` if every question asks the user to open a URL."""
    kinds = {question.kind for question in questions.questions.values()}
    return "auth-required" if kinds == {"url"} else "input-required"


def build_question_parts(pending: Questions) -> tuple[Part, ...]:
    """The parts of the agent itself if it is an A2A agent; else the text of the questions, and their forms."""
    questions = pending.questions
    if len(questions) == 1:
        [question] = questions.values()
        own_parts = _read_own_parts(question)
        if own_parts:
            return own_parts
        text_part = Part(kind="text", text=pending.message or "The agent needs more input")
        form = _render_form(question)
        return (text_part, Part(kind="json", data=form)) if form else (text_part,)
    text_part = Part(kind="text", text=pending.message or "The agent needs more input")
    forms = {key: {"message": each.message, **(_render_form(each) or {})} for key, each in questions.items()}
    return text_part, Part(kind="json", data={"questions": forms})


def _read_own_parts(question: Question) -> tuple[Part, ...]:
    try:
        return msgspec.convert(question.params.get("parts", ()), tuple[Part, ...])
    except msgspec.ValidationError:
        return ()


def _render_form(question: Question) -> dict[str, Any] | None:
    form: dict[str, Any] = {}
    if question.schema:
        form["schema"] = question.schema
    if question.kind != "form":
        form["kind"] = question.kind
    if isinstance(url := question.params.get("url"), str):
        form["url"] = url
    return form or None


def build_error_message(error: JobError | FabricError, job: JobSummary) -> A2AMessage:
    error_data = {
        "code": error.code,
        "message": to_encodable_text(error.message),
        "details": to_json_details(error.details),
    }
    parts = (Part(kind="text", text=to_encodable_text(error.message) or error.code),)
    return build_agent_message(job, parts, f"{job.job_id}-error", {ERROR_KEY: error_data})


def build_agent_message(
    job: JobSummary, parts: tuple[Part, ...], message_id: str, metadata: dict[str, Any] | None = None
) -> A2AMessage:
    return A2AMessage(
        id=message_id, parts=parts, context_id=find_context_id(job), task_id=job.job_id, metadata=metadata or {}
    )


def artifacts_from_result(result: Result, modes: Sequence[str] = ()) -> tuple[A2AArtifact, ...]:
    """The agent's own artifacts, or one that holds the answer."""
    reply = reply_from_result(result)
    if reply is not None and reply.task is not None:
        artifacts = reply.task.artifacts or ()
        return tuple(
            replace(each, parts=tuple(_adapt_to_modes(part, modes) for part in each.parts)) for each in artifacts
        )
    parts = parts_from_result(result, modes)
    return (
        (
            A2AArtifact(
                id=RESULT_ARTIFACT_ID, name=RESULT_ARTIFACT_ID, parts=parts, metadata=build_result_metadata(result)
            ),
        )
        if parts
        else ()
    )


def parts_from_result(result: Result, modes: Sequence[str] = ()) -> tuple[Part, ...]:
    """The answer's text and data, then the parts of the result, without data that those parts repeat."""
    data, parts = dict(result.data), result.parts
    parts_data = _read_data_from_parts(parts)
    remaining = {key: value for key, value in data.items() if key not in parts_data or parts_data[key] != value}
    data_parts: list[Part] = []
    if isinstance(remaining.get(_ANSWER_FIELD), str):
        text = remaining.pop(_ANSWER_FIELD)
        data_parts += [Part(kind="text", text=text)] if text else []
    if remaining or not (data_parts or parts):
        data_parts.append(Part(kind="json", data=remaining))
    if _ANSWER_FIELD not in data and _ANSWER_FIELD in parts_data:
        parts = tuple(_mark_as_not_answer(part) for part in parts)
    if result.fallback is not None and result.fallback.note is not None:
        parts = (*parts, _mark_as_not_answer(Part(kind="text", text=result.fallback.note)))
    return tuple(_adapt_to_modes(part, modes) for part in (*data_parts, *parts))


def _mark_as_not_answer(part: Part) -> Part:
    """Marks a text part that comes with the answer but is not its text."""
    return replace(part, meta={**part.meta, KIND_KEY: "text"}) if part.kind == "text" else part


def _read_data_from_parts(parts: Sequence[Part]) -> dict[str, Any]:
    """The fields that a reader can reconstruct from the parts alone."""
    data: dict[str, Any] = {}
    for part in parts:
        if part.kind == "json" and isinstance(part.data, dict):
            data.update(part.data)
    text = join_text(parts)
    return {_ANSWER_FIELD: text, **data} if text else data


def _adapt_to_modes(part: Part, modes: Sequence[str]) -> Part:
    """A client that does not accept JSON gets it as text."""
    if part.kind != "json" or not modes or any(mode.lower() in _JSON_MODES for mode in modes):
        return part
    return Part(kind="text", text=msgspec.json.encode(part.data).decode(), mime_type="application/json", meta=part.meta)


def build_result_metadata(result: Result) -> dict[str, Any]:
    """Which fallback answered, and notes on the way to the answer."""
    metadata: dict[str, Any] = {}
    if result.fallback is not None:
        metadata[FALLBACK_KEY] = msgspec.to_builtins(result.fallback)
    if result.notes:
        metadata[NOTES_KEY] = list(result.notes)
    return metadata


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
