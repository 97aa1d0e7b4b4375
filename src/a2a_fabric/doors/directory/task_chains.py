"""Tasks of one hop or several, and how a chain runs. Each hop is a job; the output of one is the input of the next.

A chain has no state but its jobs. Following it starts at the first hop: completed hops are read, the running one is
awaited, the next one is started. So several clients may follow the same chain, on any node and after a restart, and
nothing runs twice. The first job's id is derived from caller and task id, later ones are numbered after it: sending
the same task twice is sending it once."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from a2a_fabric.core.agent import LINE_PATTERN, Capability
from a2a_fabric.core.call import (
    ATTACHMENTS,
    Call,
    Input,
    Principal,
    ResponseForm,
    Target,
    attachment_from_part,
    owner_from_principal,
)
from a2a_fabric.core.errors import BadInput, CallTimeout, Conflict, FabricError, JobNotFound, StoreError
from a2a_fabric.core.job import Job, JobError, JobSummary, derive_job_id, translate_state
from a2a_fabric.core.propagation import Trace, continue_trace
from a2a_fabric.core.result import Event, Questions, Result
from a2a_fabric.doors.directory.agents import AgentDirectory, DirectoryId, Name
from a2a_fabric.doors.directory.jsonrpc import DirectoryRequestContext
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.jobs.settings import JobOptions
from a2a_fabric.messages.delivery import split_input

_log = logging.getLogger(__name__)

EVENTS_PER_HOP = 10**9  # more than a hop ever has, so numbers grow from hop to hop
_MAX_OUTCOMES = 1000
_MAX_DRIVERS = 1000
GATEWAY_KEY = "_fabric"  # in an output: what the gateway adds to it
_JOB_META_KEY = "directory_task"  # in a job's meta
_ANSWER_FIELD = "answer"  # the only field of an output that is plain text

TaskId = Annotated[str, Meta(min_length=1, max_length=256, pattern=LINE_PATTERN)]


class Hop(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One step: its action, its agent if one is named, and its input besides the output of the step before."""

    action: Name
    agent_id: DirectoryId | None = None
    input: dict[str, Any] = {}


class DirectoryTaskParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The protocol has taskId, action, sender and input. `chain` (or `actions`) takes the place of `action`.

    A task with neither goes to the capability that the rule for all doors chooses for its input.
    """

    task_id: TaskId
    action: Name | None = None
    sender: Annotated[str, Meta(max_length=1024)] | None = None
    input: dict[str, Any] | None = None
    agent_id: DirectoryId | None = None
    chain: tuple[Name | Hop, ...] = ()
    actions: tuple[Name | Hop, ...] = ()
    timeout_ms: int | None = None
    is_async: bool = msgspec.field(default=False, name="async")
    conversation_id: Annotated[str, Meta(min_length=1, max_length=256)] | UnsetType = UNSET
    after: Annotated[int, Meta(ge=0, lt=10**15)] = 0  # of a stream: the number of the last event received

    @property
    def is_new(self) -> bool:
        """Whether the request describes a task, and does not only name an existing one."""
        return self.names_action or bool(self.input)

    @property
    def names_action(self) -> bool:
        return bool(self.action or self.chain or self.actions)


class DirectoryTaskRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The task that a job belongs to, stored with the job. The first job holds all fields, later ones only three."""

    task_id: str
    hop: int = 0
    count: int = 1
    digest: str = ""
    sender: str = ""
    hops: tuple[Hop, ...] = ()  # if there are several
    choice: str | None = None  # why this agent and this action, if the request named none


class DirectoryTask(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    first_id: str  # of the first hop's job
    hops: tuple[Hop, ...]
    sender: str = ""
    conversation_id: str | UnsetType = UNSET
    choice: str | None = None

    def get_job_id(self, hop: int) -> str:
        return self.first_id if hop == 0 else f"{self.first_id}.{hop + 1}"

    def build_job_meta(self, hop: int) -> dict[str, Any]:
        record = DirectoryTaskRecord(task_id=self.task_id, hop=hop, count=len(self.hops))
        if hop == 0:
            hops = self.hops if len(self.hops) > 1 else ()
            record = msgspec.structs.replace(
                record, digest=self.digest, sender=self.sender, hops=hops, choice=self.choice
            )
        return {_JOB_META_KEY: msgspec.to_builtins(record)}

    @property
    def digest(self) -> str:
        """Equal for two tasks with the same hops."""
        return hashlib.sha256(msgspec.json.encode(self.hops, order="deterministic")).hexdigest()


def plan_task(params: DirectoryTaskParams, owner: str, agent_id: str | None, max_hops: int) -> DirectoryTask:
    """`agent_id` is the agent whose path was requested. Raises BadInput."""
    present = [name for name in ("action", "chain", "actions") if getattr(params, name)]
    if len(present) != 1:
        raise BadInput("A task needs exactly one of `action` and `chain`", field="action")
    steps = params.chain or params.actions or (params.action or "",)
    if len(steps) > max_hops:
        raise BadInput(f"A chain has at most {max_hops} hops", field=present[0])
    hops = [Hop(action=each) if isinstance(each, str) else each for each in steps]
    hops[0] = msgspec.structs.replace(hops[0], input={**(params.input or {}), **hops[0].input})
    default_agent_id = params.agent_id or agent_id
    return DirectoryTask(
        task_id=params.task_id,
        first_id=derive_job_id(owner, params.task_id),
        hops=tuple(hop if hop.agent_id else msgspec.structs.replace(hop, agent_id=default_agent_id) for hop in hops),
        sender=params.sender or "",
        conversation_id=params.conversation_id,
    )


def record_from_job(job: JobSummary) -> DirectoryTaskRecord | None:
    """None if the job came through another door."""
    stored = job.meta.get(_JOB_META_KEY)
    return None if stored is None else msgspec.convert(stored, DirectoryTaskRecord)


def task_from_job(job: Job) -> DirectoryTask:
    """The task whose first hop this job is. A job of another door is a task of one hop."""
    record = record_from_job(job) or DirectoryTaskRecord(task_id=job.job_id)
    single_hop = (Hop(action=job.capability, agent_id=job.agent_id),)
    return DirectoryTask(
        task_id=record.task_id,
        first_id=job.job_id,
        hops=record.hops or single_hop,
        sender=record.sender,
        conversation_id=job.call.conversation_id,
        choice=record.choice,
    )


def to_next_input(result: Result, capability: Capability | None) -> dict[str, Any]:
    """A hop's output as the input of the next. Plain text becomes the `task` if there is no field `answer`."""
    arguments = dict(result.data)
    schema = capability.input_schema if capability is not None else None
    if arguments.keys() == {_ANSWER_FIELD} and isinstance(arguments[_ANSWER_FIELD], str) and schema is not None:
        arguments = arguments if _ANSWER_FIELD in schema.get("properties", {}) else {"task": arguments[_ANSWER_FIELD]}
    if result.parts and ATTACHMENTS not in arguments:
        arguments[ATTACHMENTS] = [msgspec.to_builtins(attachment_from_part(part)) for part in result.parts]
    return arguments


class TaskOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a task. `position` names the current hop of several, and has the outputs of those before it."""

    status: str
    output: dict[str, Any] = {}
    error: JobError | None = None
    position: dict[str, Any] = {}


def outcome_from_job(job: Job) -> TaskOutcome:
    status = translate_state(job.state, "directory")
    if job.result is not None:
        return TaskOutcome(status=status, output=output_from_result(job.result))
    if job.state == "input_required" and job.question is not None:
        questions = msgspec.convert(job.question, Questions)
        question_data = {"message": questions.message, "questions": msgspec.to_builtins(questions.questions)}
        return TaskOutcome(status=status, output={"input_required": question_data})
    return TaskOutcome(status=status, error=job.failure)


def output_from_result(result: Result) -> dict[str, Any]:
    """The data of the result. Its parts, notes and fallback are added under the gateway's own key."""
    candidates = {"parts": result.parts, "notes": result.notes, "fallback": result.fallback}
    extras = {name: msgspec.to_builtins(value) for name, value in candidates.items() if value}
    return {**result.data, GATEWAY_KEY: extras} if extras else result.data


class ChainEvent(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    hop: int
    event: Event


class HopContext(msgspec.Struct, frozen=True, kw_only=True):
    """The caller, the trace and the deadline of a hop."""

    principal: Principal
    trace: Trace
    ends_at: float
    delegation_chain: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class TaskChains:
    def __init__(self, jobs: Jobs, directory: AgentDirectory) -> None:
        self._jobs = jobs
        self._directory = directory
        self._drivers: dict[str, asyncio.Task[None]] = {}
        self._outcomes: OrderedDict[str, TaskOutcome] = OrderedDict()  # of chains that ended between two jobs

    async def aclose(self) -> None:
        """Stop driving the running chains. A chain continues when a client asks for it again."""
        drivers = list(self._drivers.values())
        for driver in drivers:
            driver.cancel()
        await asyncio.gather(*drivers, return_exceptions=True)

    async def start(self, task: DirectoryTask, context: DirectoryRequestContext, timeout: float) -> None:
        """Store the first hop, unless it is stored already. Raises FabricError, such as Conflict for a used id."""
        principal = context.principal
        try:
            first_job: JobSummary = await self._jobs.get(principal, task.first_id)
        except JobNotFound:
            for hop in task.hops[1:]:
                await self._directory.find_target(hop.agent_id, hop.action, principal)  # raises if no agent has it
            hop_context = HopContext(
                principal=principal,
                trace=context.trace,
                ends_at=time.time() + timeout,
                delegation_chain=context.delegation_chain,
            )
            first_job = await self._accept_hop(task, 0, None, hop_context)
        record = record_from_job(first_job)
        if record is None or record.digest != task.digest:
            message = f"taskId '{task.task_id[:64]}' was used for another task; take a new one"
            raise Conflict(message, task_id=task.task_id)
        self.drive(task, principal)

    async def find(self, principal: Principal, task_id: str) -> DirectoryTask:
        """Find a task by its id, or a job of another door by its job id. Raises JobNotFound."""
        job = await self._jobs.find(principal, task_id, derive_job_id(owner_from_principal(principal), task_id))
        record = record_from_job(job)
        if record is not None and record.hop:
            raise JobNotFound(task_id)
        return task_from_job(job)

    def drive(self, task: DirectoryTask, principal: Principal) -> None:
        """Run the chain to its end in the background. A task of one hop needs no driver: its job runs by itself."""
        if len(task.hops) == 1 or task.first_id in self._drivers or len(self._drivers) >= _MAX_DRIVERS:
            return
        driver = asyncio.create_task(self._drive(task, principal))
        self._drivers[task.first_id] = driver
        driver.add_done_callback(lambda _: self._drivers.pop(task.first_id, None))

    async def _drive(self, task: DirectoryTask, principal: Principal) -> None:
        try:
            async with aclosing(self.follow(task, principal)) as items:
                async for _ in items:
                    pass
        except FabricError as error:
            _log.warning("Task %s stopped between two hops: %s", task.first_id, error.message)
        except Exception:
            _log.exception("Task %s failed inside the gateway", task.first_id)

    async def follow(
        self, task: DirectoryTask, principal: Principal, after: int = 0
    ) -> AsyncGenerator[ChainEvent | TaskOutcome]:
        """The task's events after a number, then its outcome or its questions. Raises StoreError, JobNotFound."""
        completed_jobs: list[Job] = []
        for hop in range(len(task.hops)):
            outcome = await self._ensure_next_hop(task, completed_jobs, principal) if completed_jobs else None
            if outcome is not None:
                yield outcome
                return
            job_id = task.get_job_id(hop)
            async with aclosing(
                self._jobs.events(principal, job_id, max(0, after - hop * EVENTS_PER_HOP))
            ) as job_events:
                async for job_event in job_events:
                    yield ChainEvent(number=hop * EVENTS_PER_HOP + job_event.number, hop=hop, event=job_event.event)
            job = await self._jobs.get(principal, job_id)
            if job.state != "completed" or hop == len(task.hops) - 1:
                yield _add_position(outcome_from_job(job), task, completed_jobs)
                return
            completed_jobs.append(job)

    async def get_outcome(self, task: DirectoryTask, principal: Principal) -> TaskOutcome:
        """The present outcome, without waiting. Raises StoreError, JobNotFound."""
        if task.first_id in self._outcomes:
            return self._outcomes[task.first_id]
        *completed_jobs, job = await self._load_jobs(task, principal)
        if job.state == "completed" and len(completed_jobs) < len(task.hops) - 1:
            self.drive(task, principal)
            return TaskOutcome(status="running")
        return _add_position(outcome_from_job(job), task, completed_jobs)

    async def get_latest_job(self, task: DirectoryTask, principal: Principal) -> Job:
        """The job of the latest hop that has started. Raises StoreError, JobNotFound."""
        return (await self._load_jobs(task, principal))[-1]

    async def cancel(self, task: DirectoryTask, principal: Principal) -> None:
        """Cancel the running hop; hops that have ended stay as they are. Raises StoreError, JobNotFound."""
        *completed_jobs, job = await self._load_jobs(task, principal)
        if job.state == "completed" and len(completed_jobs) < len(task.hops) - 1:
            self._remember_outcome(task, TaskOutcome(status="cancelled"))
        else:
            await self._jobs.cancel(principal, job.job_id)

    async def _load_jobs(self, task: DirectoryTask, principal: Principal) -> list[Job]:
        jobs = [await self._jobs.get(principal, task.first_id)]
        while jobs[-1].state == "completed" and len(jobs) < len(task.hops):
            try:
                jobs.append(await self._jobs.get(principal, task.get_job_id(len(jobs))))
            except JobNotFound:
                break
        return jobs

    async def _ensure_next_hop(
        self, task: DirectoryTask, completed_jobs: Sequence[Job], principal: Principal
    ) -> TaskOutcome | None:
        """Start the next hop unless it has started. Returns the task's outcome if that fails. Raises StoreError."""
        try:
            await self._jobs.get(principal, task.get_job_id(len(completed_jobs)))
            return None
        except JobNotFound:
            if task.first_id in self._outcomes:
                return self._outcomes[task.first_id]
        try:
            await self._start_next_hop(task, completed_jobs, principal)
        except StoreError:
            raise
        except FabricError as error:
            status = "timeout" if isinstance(error, CallTimeout) else "failed"
            return self._remember_outcome(
                task, _add_position(TaskOutcome(status=status, error=JobError.from_error(error)), task, completed_jobs)
            )
        return None

    async def _start_next_hop(self, task: DirectoryTask, completed_jobs: Sequence[Job], principal: Principal) -> None:
        first, last = completed_jobs[0], completed_jobs[-1]
        ends_at = first.expires_at or first.created_at + first.call.target.timeout_ms / 1000
        if ends_at <= time.time():
            raise CallTimeout(round(ends_at - first.created_at, 3))
        hop_context = HopContext(
            principal=principal,
            trace=continue_trace(first.call.trace.trace_id, first.call.trace.span_id),
            ends_at=ends_at,
            delegation_chain=first.call.delegation_chain,
        )
        await self._accept_hop(task, len(completed_jobs), last.result, hop_context)

    async def _accept_hop(
        self, task: DirectoryTask, number: int, previous_result: Result | None, hop_context: HopContext
    ) -> JobSummary:
        hop, job_id = task.hops[number], task.get_job_id(number)
        manifest = await self._directory.find_target(hop.agent_id, hop.action, hop_context.principal)
        capability = manifest.find_capability(hop.action)
        arguments = (
            hop.input if previous_result is None else {**to_next_input(previous_result, capability), **hop.input}
        )
        timeout_ms = max(1, round((hop_context.ends_at - time.time()) * 1000))
        call = Call(
            trace=hop_context.trace,
            auth=hop_context.principal,
            target=Target(agent_id=manifest.agent_id, capability=hop.action, timeout_ms=timeout_ms),
            input=split_input(Input(context=arguments), capability),
            response=ResponseForm(stream=True, format="json"),
            conversation_id=task.conversation_id,
            delegation_chain=hop_context.delegation_chain,
            any_agent=True if hop.agent_id is None else msgspec.UNSET,
        )
        options = JobOptions(
            at_once=True, job_id=job_id, key=job_id, expires_at=hop_context.ends_at, meta=task.build_job_meta(number)
        )
        try:
            return await self._jobs.accept(call, options, calls=0 if number else len(task.hops))
        except Conflict:  # another client started this hop first, at another agent
            return await self._jobs.get(hop_context.principal, job_id)

    def _remember_outcome(self, task: DirectoryTask, outcome: TaskOutcome) -> TaskOutcome:
        self._outcomes[task.first_id] = outcome
        if len(self._outcomes) > _MAX_OUTCOMES:
            self._outcomes.popitem(last=False)
        return outcome


def _add_position(outcome: TaskOutcome, task: DirectoryTask, completed_jobs: Sequence[Job]) -> TaskOutcome:
    """Add the current hop and the outputs of those before it, unless the task has one hop or has completed."""
    if len(task.hops) == 1 or outcome.status == "completed":
        return outcome
    completed = [
        {"hop": number, "action": job.capability, "agentId": job.agent_id, "output": outcome_from_job(job).output}
        for number, job in enumerate(completed_jobs, start=1)
    ]
    return replace(
        outcome,
        position={
            "hop": len(completed_jobs) + 1,
            "action": task.hops[len(completed_jobs)].action,
            "completed": completed,
        },
    )
