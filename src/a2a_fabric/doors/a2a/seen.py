"""A job as a task: plain functions from what is written down to what clients see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from a2a_fabric.a2a_wire.parts import Dialect
from a2a_fabric.core.call import Input
from a2a_fabric.core.content import KIND_KEY, parts_of
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.job import Job, JobError, JobSummary
from a2a_fabric.core.part import Part
from a2a_fabric.core.question import Question, Questions
from a2a_fabric.core.result import Result
from a2a_fabric.doors.a2a.faults import plain_details, speakable
from a2a_fabric.doors.a2a.incoming import Asking
from a2a_fabric.doors.a2a.shapes import Artifact, Message, State, Status, Task

KEY = "a2a"  # under which a job keeps what this door wants to find again
RESULT = "result"  # the id of the one artifact that is the answer
ERROR, FALLBACK, NOTES, TRACE, AGENT = (
    f"a2a-fabric/{name}" for name in ("error", "fallback", "notes", "trace_id", "agent_id")
)
AS_MESSAGE = "a2a-fabric/message"  # in the meta of a part
_JSON = ("application/json", "application/*", "*/*", "json", "data", "application/a2a+json")
_ANSWER = "answer"


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of the message that began a task. `modes` are the kinds of content that its sender takes."""

    context_id: str
    message: dict[str, Any] = {}
    dialect: Dialect = "1.0"
    metadata: dict[str, Any] = {}
    modes: tuple[str, ...] = ()


def kept_from(asking: Asking, context_id: str) -> Kept:
    return Kept(
        context_id=context_id,
        message=asking.raw,
        dialect=asking.dialect,
        metadata=asking.request_metadata,
        modes=asking.modes,
    )


def kept_in(job: JobSummary) -> Kept | None:
    """None if the job came through another door."""
    found = job.meta.get(KEY)
    return None if found is None else msgspec.convert(found, Kept)


def context_of(job: JobSummary) -> str:
    kept = kept_in(job)
    if kept is not None:
        return kept.context_id
    given = job.call.conversation_id if isinstance(job, Job) else None
    return given if isinstance(given, str) and given else job.job_id


def task_of(job: Job, said_since: Sequence[Message] = (), *, artifacts: bool = True) -> Task:
    """`said_since` is what was said after the first message. The history is cut by whoever asks."""
    context_id, kept = context_of(job), kept_in(job)
    modes = kept.modes if kept else ()
    made = artifacts_of(job.result, modes) if job.result is not None else ()
    return Task(
        id=job.job_id,
        context_id=context_id,
        status=status_of(job),
        artifacts=made if artifacts else None,
        history=(first_message(job), *said_since),
        metadata={**(kept.metadata if kept else {}), **_about(job)},
    )


def as_message(job: Job) -> Message | None:
    """An answer whose parts all say so is no task's work, but something said in a conversation."""
    parts = job.result.parts if job.result is not None else ()
    if not parts or not all(part.meta.get(AS_MESSAGE) is True for part in parts):
        return None
    said = tuple(
        msgspec.structs.replace(part, meta={key: value for key, value in part.meta.items() if key != AS_MESSAGE})
        for part in parts
    )
    return Message(id=f"{job.job_id}-answer", parts=said, context_id=context_of(job))


def first_message(job: Job) -> Message:
    kept, context_id = kept_in(job), context_of(job)
    if kept is not None and kept.message:
        return said_by_user(kept.message, kept.dialect, context_id, job.job_id)
    return Message(
        id=f"{job.job_id}-0",
        role="user",
        parts=_parts_of_input(job.call.input),
        context_id=context_id,
        task_id=job.job_id,
    )


def said_by_user(raw: dict[str, Any], dialect: Dialect, context_id: str, task_id: str) -> Message:
    return Message(
        id=str(raw.get("messageId", "")),
        role="user",
        raw=raw,
        dialect=dialect,
        context_id=context_id,
        task_id=task_id,
    )


def _parts_of_input(given: Input) -> tuple[Part, ...]:
    words = (Part(kind="text", text=given.task),) if given.task else ()
    arguments = (Part(kind="json", data=given.context),) if given.context else ()
    return (*words, *arguments, *parts_of(given)) or (Part(kind="json", data={}),)


def status_of(job: Job) -> Status:
    message = None
    state: State = job.state
    if job.state == "input_required" and job.question is not None:
        asked = job.unanswered
        assert asked is not None  # noqa: S101  # it waits
        state, message = state_asking(asked), question_message(asked, job)
    elif job.failure is not None:
        message = error_message(job.failure, job)
    return Status(state=state, at=job.updated_at, message=message)


def state_asking(asked: Questions) -> State:
    """For somebody to have logged in somewhere, or for input."""
    kinds = {question.kind for question in asked.questions.values()}
    return "auth_required" if kinds == {"url"} else "input_required"


def question_message(asked: Questions, job: JobSummary) -> Message:
    return agent_message(job, question_parts(asked), f"{job.job_id}-{job.events}")


def question_parts(asked: Questions) -> tuple[Part, ...]:
    """As the agent itself put it, if it speaks this protocol too; else its words, and the form that it wants filled."""
    questions = asked.questions
    if len(questions) == 1:
        [question] = questions.values()
        own = _own_words(question)
        if own:
            return own
        words = Part(kind="text", text=asked.words or "The agent needs more input")
        told = _form(question)
        return (words, Part(kind="json", data=told)) if told else (words,)
    words = Part(kind="text", text=asked.words or "The agent needs more input")
    forms = {key: {"message": each.message, **(_form(each) or {})} for key, each in questions.items()}
    return words, Part(kind="json", data={"questions": forms})


def _own_words(question: Question) -> tuple[Part, ...]:
    try:
        return msgspec.convert(question.params.get("parts", ()), tuple[Part, ...])
    except msgspec.ValidationError:
        return ()


def _form(question: Question) -> dict[str, Any] | None:
    told: dict[str, Any] = {}
    if question.schema:
        told["schema"] = question.schema
    if question.kind != "form":
        told["kind"] = question.kind
    if isinstance(url := question.params.get("url"), str):
        told["url"] = url
    return told or None


def error_message(error: JobError | FabricError, job: JobSummary) -> Message:
    told = {"code": error.code, "message": speakable(error.message), "details": plain_details(error.details)}
    parts = (Part(kind="text", text=speakable(error.message) or error.code),)
    return agent_message(job, parts, f"{job.job_id}-error", {ERROR: told})


def agent_message(
    job: JobSummary, parts: tuple[Part, ...], message_id: str, metadata: dict[str, Any] | None = None
) -> Message:
    return Message(id=message_id, parts=parts, context_id=context_of(job), task_id=job.job_id, metadata=metadata or {})


def artifacts_of(result: Result, modes: Sequence[str] = ()) -> tuple[Artifact, ...]:
    parts = result_parts(result, modes)
    return (Artifact(id=RESULT, name=RESULT, parts=parts, metadata=beside(result)),) if parts else ()


def result_parts(result: Result, modes: Sequence[str] = ()) -> tuple[Part, ...]:
    """The answer's words are text, what else it holds is data; its parts follow, and nothing is said twice."""
    data, parts = dict(result.data), result.parts
    said = _said_in(parts)
    left = {key: value for key, value in data.items() if key not in said or said[key] != value}
    made: list[Part] = []
    if isinstance(left.get(_ANSWER), str):
        words = left.pop(_ANSWER)
        made += [Part(kind="text", text=words)] if words else []
    if left or not (made or parts):
        made.append(Part(kind="json", data=left))
    if _ANSWER not in data and _ANSWER in said:
        parts = tuple(_no_answer(part) for part in parts)
    if result.fallback is not None and result.fallback.sentence is not None:
        parts = (*parts, _no_answer(Part(kind="text", text=result.fallback.sentence)))
    return tuple(_as_taken(part, modes) for part in (*made, *parts))


def _no_answer(part: Part) -> Part:
    """Text that comes with an answer and is not its words says so."""
    return msgspec.structs.replace(part, meta={**part.meta, KIND_KEY: "text"}) if part.kind == "text" else part


def _said_in(parts: Sequence[Part]) -> dict[str, Any]:
    """What can be read off the parts alone."""
    said: dict[str, Any] = {}
    for part in parts:
        if part.kind == "json" and isinstance(part.data, dict):
            said.update(part.data)
    words = "\n".join(part.text for part in parts if part.kind == "text" and part.text)
    return {_ANSWER: words, **said} if words else said


def _as_taken(part: Part, modes: Sequence[str]) -> Part:
    """Who takes no JSON gets it as text."""
    if part.kind != "json" or not modes or any(mode.lower() in _JSON for mode in modes):
        return part
    return Part(kind="text", text=msgspec.json.encode(part.data).decode(), mime_type="application/json", meta=part.meta)


def beside(result: Result) -> dict[str, Any]:
    """How the answer was come by."""
    told: dict[str, Any] = {}
    if result.fallback is not None:
        told[FALLBACK] = msgspec.to_builtins(result.fallback)
    if result.notes:
        told[NOTES] = list(result.notes)
    return told


def _about(job: Job) -> dict[str, Any]:
    told = {AGENT: job.agent_id, TRACE: job.meta.get("trace_id")}
    return {**told, **(beside(job.result) if job.result is not None else {})}
