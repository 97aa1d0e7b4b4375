"""A task: what its caller asks for under an id of their own, in one hop or several, and how it ends.

Each hop is a job. The first one's id is made of the caller and the task's id, those
that follow are numbered after it: so a task is found again by whoever sent it, on any
node, and asking for the same twice is asking once.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.arguments import ATTACHMENTS
from a2a_fabric.core.call import Attachment, Input
from a2a_fabric.core.content import attachment_of
from a2a_fabric.core.errors import BadInput, Conflict
from a2a_fabric.core.job import Job, JobError, JobSummary
from a2a_fabric.core.question import Answer, Questions
from a2a_fabric.core.result import Result
from a2a_fabric.core.states import word_for
from a2a_fabric.doors.directory.joining import AgentText, Name

BESIDE = "_fabric"  # in an output: what the gateway has to say of it
_KEY = "directory_task"  # in a job's meta
_WORDS = "answer"  # in an output that is nothing else

TaskId = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]


class Hop(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One step: what is to be done, by whom if that matters, and what it gets besides the output of the step before."""

    action: Name
    agent_id: AgentText | None = None
    input: dict[str, Any] = {}


class TaskParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The document has taskId, action, sender and input. `chain` (or `actions`) stands instead of `action`."""

    task_id: TaskId
    action: Name | None = None
    sender: Annotated[str, Meta(max_length=1024)] | None = None
    input: dict[str, Any] | None = None
    agent_id: AgentText | None = None
    chain: tuple[Name | Hop, ...] = ()
    actions: tuple[Name | Hop, ...] = ()
    timeout_ms: int | None = None
    is_async: bool = msgspec.field(default=False, name="async")
    conversation_id: Annotated[str, Meta(min_length=1, max_length=256)] | UnsetType = UNSET
    after: Annotated[int, Meta(ge=0, lt=10**15)] = 0  # of a stream

    @property
    def is_new(self) -> bool:
        """Whether it says what is to be done, or only which task is meant."""
        return bool(self.action or self.chain or self.actions)


class TaskArgument(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    task_id: TaskId


class AnswerParams(TaskArgument, frozen=True, kw_only=True, rename="camel"):
    answers: dict[str, Answer]
    timeout_ms: int | None = None


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job remembers of the task that it belongs to; the first one all of it."""

    task_id: str
    hop: int = 0
    count: int = 1
    digest: str = ""
    sender: str = ""
    hops: tuple[Hop, ...] = ()  # if there are several


class Task(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    first_id: str  # of the first hop's job
    hops: tuple[Hop, ...]
    sender: str = ""
    conversation_id: str | UnsetType = UNSET

    def job_id(self, hop: int) -> str:
        return self.first_id if hop == 0 else f"{self.first_id}.{hop + 1}"

    def meta(self, hop: int) -> dict[str, Any]:
        kept = Kept(task_id=self.task_id, hop=hop, count=len(self.hops))
        if hop == 0:
            several = self.hops if len(self.hops) > 1 else ()
            kept = msgspec.structs.replace(kept, digest=self.digest, sender=self.sender, hops=several)
        return {_KEY: msgspec.to_builtins(kept)}

    @property
    def digest(self) -> str:
        """The same for two that ask the same."""
        return hashlib.sha256(msgspec.json.encode(self.hops, order="deterministic")).hexdigest()


def planned(params: TaskParams, owner: str, agent_id: str | None, most: int) -> Task:
    """`agent_id` is whose address was asked. Raises BadInput."""
    named = [name for name in ("action", "chain", "actions") if getattr(params, name)]
    if len(named) != 1:
        raise BadInput("A task needs exactly one of `action` and `chain`", field="action")
    given = params.chain or params.actions or (params.action or "",)
    if len(given) > most:
        raise BadInput(f"A chain has at most {most} hops", field=named[0])
    hops = [Hop(action=each) if isinstance(each, str) else each for each in given]
    hops[0] = msgspec.structs.replace(hops[0], input={**(params.input or {}), **hops[0].input})
    whose = params.agent_id or agent_id
    return Task(
        task_id=params.task_id,
        first_id=job_id_of(owner, params.task_id),
        hops=tuple(hop if hop.agent_id else msgspec.structs.replace(hop, agent_id=whose) for hop in hops),
        sender=params.sender or "",
        conversation_id=params.conversation_id,
    )


def job_id_of(owner: str, task_id: str) -> str:
    name = hashlib.sha256(f"{owner}\0{task_id}".encode("utf-8", "surrogatepass"))
    return f"task_{name.hexdigest()[:40]}"


def kept_in(job: JobSummary) -> Kept | None:
    """None if the job came through another door."""
    found = job.meta.get(_KEY)
    return None if found is None else msgspec.convert(found, Kept)


def restored(job: Job) -> Task:
    """The task whose first hop this is; any other job is a task of one hop."""
    kept = kept_in(job) or Kept(task_id=job.job_id)
    alone = (Hop(action=job.capability, agent_id=job.agent_id),)
    return Task(
        task_id=kept.task_id,
        first_id=job.job_id,
        hops=kept.hops or alone,
        sender=kept.sender,
        conversation_id=job.call.conversation_id,
    )


def check_same(task: Task, job: JobSummary) -> None:
    """Raises Conflict: an id stands for one thing only."""
    kept = kept_in(job)
    if kept is None or kept.digest != task.digest:
        raise Conflict(f"taskId '{task.task_id[:64]}' was used for another task; take a new one", task_id=task.task_id)


def input_of(given: dict[str, Any], capability: Capability | None) -> Input:
    """Typed arguments are context; words and attachments are told apart unless the schema has its own by that name."""
    own = ((capability.input_schema if capability else None) or {}).get("properties", {})
    rest = dict(given)
    task = rest.pop("task") if isinstance(rest.get("task"), str) and "task" not in own else ""
    attachments: tuple[Attachment, ...] = ()
    if ATTACHMENTS in rest and ATTACHMENTS not in own:
        try:
            attachments = msgspec.convert(rest[ATTACHMENTS], tuple[Attachment, ...])
            del rest[ATTACHMENTS]
        except msgspec.ValidationError:
            pass  # something of the agent's own that is only called so
    return Input(task=task, context=rest, attachments=attachments)


def passed_on(result: Result, capability: Capability | None) -> dict[str, Any]:
    """An output as the input of whoever comes next; plain words are words to who has no place for an `answer`."""
    given = dict(result.data)
    schema = capability.input_schema if capability is not None else None
    if given.keys() == {_WORDS} and isinstance(given[_WORDS], str) and schema is not None:
        given = given if _WORDS in schema.get("properties", {}) else {"task": given[_WORDS]}
    if result.parts and ATTACHMENTS not in given:
        given[ATTACHMENTS] = [msgspec.to_builtins(attachment_of(part)) for part in result.parts]
    return given


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a task stands. `where` says at which of several hops, and what came of those before."""

    status: str
    output: dict[str, Any] = {}
    error: JobError | None = None
    where: dict[str, Any] = {}


def ending_of(job: Job) -> Ending:
    status = word_for(job.state, "directory")
    if job.result is not None:
        return Ending(status=status, output=output_of(job.result))
    if job.state == "input_required" and job.question is not None:
        asked = msgspec.convert(job.question, Questions)
        told = {"message": asked.words, "questions": msgspec.to_builtins(asked.questions)}
        return Ending(status=status, output={"input_required": told})
    return Ending(status=status, error=job.failure)


def output_of(result: Result) -> dict[str, Any]:
    """The answer; content that JSON alone cannot hold, and how it was come by, stand beside it under a key of ours."""
    told = {"parts": result.parts, "notes": result.notes, "fallback": result.fallback}
    beside = {name: msgspec.to_builtins(value) for name, value in told.items() if value}
    return {**result.data, BESIDE: beside} if beside else result.data


def view(task: Task, ending: Ending) -> dict[str, Any]:
    """Exactly the keys of the document. Whoever waited for a failure has been told; to others it is the output."""
    output = ending.output
    if ending.error is not None and ending.status in ("failed", "timeout"):
        error = ending.error
        output = {"error": {"code": error.code, "message": error.message, "details": error.details, **ending.where}}
    return {"taskId": task.task_id, "status": ending.status, "output": output}
