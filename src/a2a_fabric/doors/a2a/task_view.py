"""A job as an A2A task: its status, messages and artifacts, as a client sees what the node stored."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.call import KIND_KEY, Input, join_text, parts_from_input
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.job import Job, JobError, JobSummary
from a2a_fabric.core.result import Part, Question, Questions, Result
from a2a_fabric.doors.a2a.requests import UserMessage
from a2a_fabric.doors.edge import to_encodable_text, to_json_details
from a2a_fabric.protocols.a2a.models import (
    A2AArtifact,
    A2AMessage,
    A2ATask,
    A2ATaskState,
    A2ATaskStatus,
    AgentsReply,
    Dialect,
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


def trim_history(task: A2ATask, length: int | None) -> A2ATask:
    """The task with only the newest `length` messages; None keeps all."""
    if length is None or length >= len(task.history):
        return task
    return replace(task, history=task.history[-length:] if length else ())
