"""Tasks: jobs as document 004 sees them. Whatever door a job came through, its owner finds it here."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import UNSET

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.arguments import ATTACHMENTS
from a2a_fabric.core.call import Attachment, Call, Input, Principal, ResponseForm, Target
from a2a_fabric.core.content import check_attachments
from a2a_fabric.core.job import Job, JobEvent, JobSummary, new_job_id, owner_of
from a2a_fabric.core.question import Answer as Said
from a2a_fabric.core.shares import Shares
from a2a_fabric.core.states import JobState, states_meant, word_for
from a2a_fabric.core.store_errors import JobNotFound
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.replying import frame
from a2a_fabric.doors.rest import faults, wire
from a2a_fabric.doors.rest.agents import Agents
from a2a_fabric.doors.rest.moments import iso
from a2a_fabric.doors.rest.paging import next_page, place_of
from a2a_fabric.doors.rest.parts import received, shown
from a2a_fabric.doors.rest.priorities import PRIORITIES
from a2a_fabric.doors.rest.visit import Answer, Endpoint, Stream, Visit
from a2a_fabric.jobs.wish import JobWish
from a2a_fabric.messages.content import capability_for, input_of

_KEY = "rest_task"  # in a job's meta
_CANCELLED_WITHIN = 5.0
_PAGE_BYTES = 16 << 20
_encode = msgspec.json.Encoder().encode


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job remembers of the task that it is."""

    id: str | None = None  # the caller's own
    metadata: dict[str, Any] = {}


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks are listed."""

    states: Sequence[JobState] | None = None
    agent_id: str | None = None
    limit: int = 20


class Tasks:
    def __init__(self, context: DoorContext, agents: Agents, most_streams: int) -> None:
        self._desk = context.jobs
        self._agents = agents
        self._streams = Shares("open streams of tasks", most_streams, context.share, retry_after=10.0)

    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint(verb="POST", path="/tasks", handler=self.create, summary="Create a task.", tag="tasks",
                     body=wire.NewTask, reply=wire.Task, status=201, is_keyed=True,
                     example={"agentId": "percy", "input": {"text": "hello"}}),
            Endpoint(verb="GET", path="/tasks", handler=self.list, summary="List your tasks, newest first.",
                     tag="tasks", reply=wire.Tasks, query=wire.TasksQuery),
            Endpoint(verb="GET", path="/tasks/{task_id}", handler=self.show, summary="Show a task.", tag="tasks",
                     reply=wire.Task),
            Endpoint(verb="DELETE", path="/tasks/{task_id}", handler=self.cancel, summary="Cancel a task.",
                     tag="tasks", reply=wire.Task),
            Endpoint(verb="GET", path="/tasks/{task_id}/status", handler=self.status, tag="tasks",
                     summary="Show how a task stands.", reply=wire.TaskState),
            Endpoint(verb="GET", path="/tasks/{task_id}/events", handler=self.events, tag="tasks",
                     summary="Follow a task; the last event, `final`, is the task.", reply=None,
                     query=wire.EventsQuery),
            Endpoint(verb="POST", path="/tasks/{task_id}/answers", handler=self.answer, tag="tasks",
                     summary="Answer what a task's agent wants to know.", body=wire.Answers, reply=wire.Task,
                     example={"answers": {"question": "answer"}}),
        )  # fmt: skip

    async def create(self, visit: Visit) -> Answer:
        job = await self.begun(visit.body, visit)
        is_new = job.meta.get("trace_id") == visit.trace.trace_id
        view = view_of(job if is_new else await self._desk.get(visit.principal, job.job_id))
        location = place_of("tasks", view.id, job.job_id)
        return Answer(body=view, status=201 if is_new else 200, headers=[(b"location", location)])

    async def begun(self, body: wire.NewTask, visit: Visit) -> Job:
        """Raises what can be said of the task at once; a task with the same id is the same task."""
        principal = visit.principal
        manifest = self._agents.target(body.agent_id, principal)
        given = _input(body)
        name = capability_for(manifest, body.capability, given)
        given = _divided(given, manifest.capability(name))
        check_attachments(given)
        call = Call(
            trace=visit.trace,
            auth=principal,
            target=Target(
                agent_id=manifest.agent_id,
                capability=name,
                timeout_ms=self._desk.settings.time_for(body.timeout_ms),
            ),
            input=given,
            response=ResponseForm(stream=True, format="json"),
            conversation_id=body.conversation_id,
            delegation_chain=visit.delegation_chain,
        )
        with faults.used_once(body.id, visit.key, "task"):
            accepted = await self._desk.accept(call, _wish(body, visit))
        return Job(**msgspec.structs.asdict(accepted), call=call)

    async def list(self, visit: Visit) -> Answer:
        query: wire.TasksQuery = visit.query
        wanted = Wanted(
            states=None if query.status is None else states_meant(query.status, "rest"),
            agent_id=query.agent_id,
            limit=query.limit,
        )
        jobs, cursor = await self.page(visit.principal, wanted, query.cursor)
        tasks = wire.Tasks(tasks=tuple(map(view_of, jobs)), next_cursor=cursor)
        return Answer(body=tasks, headers=next_page(visit, "/tasks", cursor, query.limit))

    async def page(
        self, principal: Principal, wanted: Wanted, cursor: str | None = None
    ) -> tuple[Sequence[Job], str | None]:  # fmt: skip
        """Newest first, whole, and where the next page begins: after so many, or fewer if they are large."""
        states, agent_id = wanted.states, wanted.agent_id
        page = await self._desk.list(principal, states=states, agent_id=agent_id, cursor=cursor, limit=wanted.limit)
        fitting = _fitting(page.jobs)
        if fitting < len(page.jobs):
            page = await self._desk.list(principal, states=states, agent_id=agent_id, cursor=cursor, limit=fitting)
        jobs = await asyncio.gather(*(self._known(principal, job.job_id) for job in page.jobs))
        return [job for job in jobs if job is not None], page.cursor

    async def show(self, visit: Visit) -> Answer:
        return Answer(body=view_of(await self.find(visit.principal, visit.path["task_id"])))

    async def status(self, visit: Visit) -> Answer:
        task = view_of(await self.find(visit.principal, visit.path["task_id"]))
        state = wire.TaskState(
            id=task.id, status=task.status, updated_at=task.updated_at, error=task.error, metadata=task.metadata
        )
        return Answer(body=state)

    async def cancel(self, visit: Visit) -> Answer:
        """Twice is once; what has ended otherwise stays as it is, and that is said."""
        return Answer(body=view_of(await self.cancelled(visit.principal, visit.path["task_id"])))

    async def cancelled(self, principal: Principal, task_id: str) -> Job:
        """Raises AlreadyEnded. An agent that is slow to stop is not waited for any longer than a moment."""
        job = await self.find(principal, task_id)
        if job.has_ended and job.state != "cancelled":
            word = word_for(job.state, "rest")
            raise faults.AlreadyEnded(f"Task '{task_id[:64]}' is {word} already", status=word)
        await self._desk.cancel(principal, job.job_id)
        try:
            async with asyncio.timeout(_CANCELLED_WITHIN):
                async with aclosing(self._desk.events(principal, job.job_id, job.events)) as lines:
                    async for _ in lines:
                        pass
        except TimeoutError:
            pass
        return await self._desk.get(principal, job.job_id)

    async def answer(self, visit: Visit) -> Answer:
        job = await self.find(visit.principal, visit.path["task_id"])
        said = {key: _said(value) for key, value in visit.body.answers.items()}
        await self._desk.answer_some(visit.principal, job.job_id, said)
        return Answer(body=view_of(await self._desk.get(visit.principal, job.job_id)))

    async def events(self, visit: Visit) -> Stream:
        job = await self.find(visit.principal, visit.path["task_id"])
        after = visit.query.after if visit.after is None else visit.after
        self._streams.check(visit.principal.principal_id)
        return Stream(frames=self._follow(visit.principal, job.job_id, view_of(job).id, after or 0))

    async def _follow(self, principal: Principal, job_id: str, task_id: str, after: int) -> AsyncGenerator[bytes]:
        """Its log and what comes, past questions, and at its end the task."""
        with self._streams.held(principal.principal_id):
            async with aclosing(self._desk.events(principal, job_id, after, past_questions=True)) as lines:
                async for line in lines:
                    yield frame(line.event.kind, line.number, _encode(_event(task_id, line)))
            yield frame("final", None, _encode(view_of(await self._desk.get(principal, job_id))))

    async def find(self, principal: Principal, task_id: str) -> Job:
        """By the caller's own id, or by ours. Raises JobNotFound."""
        try:
            return await self._desk.get(principal, job_id_of(owner_of(principal), task_id))
        except JobNotFound:
            pass
        try:
            return await self._desk.get(principal, task_id)
        except JobNotFound as error:
            error.message = f"Task '{task_id[:64]}' not found"
            raise

    async def _known(self, principal: Principal, job_id: str) -> Job | None:
        """None if it was removed in this moment."""
        try:
            return await self._desk.get(principal, job_id)
        except JobNotFound:
            return None


def _fitting(jobs: Sequence[JobSummary]) -> int:
    """How many of them go into one reply, at least one."""
    room = _PAGE_BYTES
    for place, job in enumerate(jobs):
        room -= job.size
        if room < 0 and place:
            return place
    return len(jobs)


def job_id_of(owner: str, task_id: str) -> str:
    """Of a task with an id of its caller's own."""
    name = hashlib.sha256(f"rest\0{owner}\0{task_id}".encode("utf-8", "surrogatepass"))
    return f"task_{name.hexdigest()[:40]}"


def _wish(body: wire.NewTask, visit: Visit) -> JobWish:
    owner = owner_of(visit.principal)
    job_id = f"task_{new_job_id().removeprefix('job_')}" if body.id is None else job_id_of(owner, body.id)
    named = {} if body.capability is None else {"capability": body.capability}
    kept = msgspec.to_builtins(Kept(id=body.id, metadata={**body.metadata, **named}))
    key = None if visit.key is None else f"rest:{visit.key}"
    return JobWish(
        at_once=True,
        job_id=job_id,
        key=key if body.id is None else job_id,
        priority=PRIORITIES[body.priority],
        expires_at=None if body.ttl_seconds is None else time.time() + body.ttl_seconds,
        meta={_KEY: kept} if kept else {},
    )


def _input(body: wire.NewTask) -> Input:
    """Arguments and parts as one."""
    return input_of(received(body.parts), body.input)


def _divided(given: Input, capability: Capability | None) -> Input:
    """Words and attachments are told apart from arguments, unless the schema has its own by that name."""
    own = ((capability.input_schema if capability else None) or {}).get("properties", {})
    rest, task, attachments = dict(given.context), given.task, given.attachments
    if not task and isinstance(rest.get("task"), str) and "task" not in own:
        task = rest.pop("task")
    if ATTACHMENTS in rest and ATTACHMENTS not in own:
        try:
            attachments = (*attachments, *msgspec.convert(rest[ATTACHMENTS], tuple[Attachment, ...]))
            del rest[ATTACHMENTS]
        except msgspec.ValidationError:
            pass  # something of the agent's own that is only called so
    return Input(task=task, context=rest, attachments=attachments)


def _said(value: Any) -> Said:
    """`{"content": …}` as elsewhere, or the bare answer."""
    if isinstance(value, dict) and value.keys() <= {"action", "content"} and value:
        try:
            return msgspec.convert(value, Said)
        except msgspec.ValidationError as exc:
            raise faults.invalid(exc) from exc
    return Said(content=value)


def view_of(job: Job) -> wire.Task:
    kept = msgspec.convert(job.meta.get(_KEY, {}), Kept)
    result = job.result
    return wire.Task(
        id=kept.id or job.job_id,
        agent_id=job.agent_id,
        status=word_for(job.state, "rest"),  # type: ignore[arg-type]  # its words
        input=_given(job.call.input),
        created_at=iso(job.created_at),
        updated_at=iso(job.updated_at),
        output=UNSET if result is None else result.data,
        parts=() if result is None else shown(result.parts),
        error=None if job.failure is None else faults.task_error(job.failure),
        metadata=_metadata(job, kept),
    )


def _given(given: Input) -> dict[str, Any]:
    """As it was sent."""
    told: dict[str, Any] = dict(given.context)
    if given.task:
        told["task"] = given.task
    if given.attachments:
        told[ATTACHMENTS] = msgspec.to_builtins(given.attachments)
    return told


def _metadata(job: Job, kept: Kept) -> dict[str, Any]:
    """What the caller wanted to find again, and what the document has no word for."""
    told = dict(kept.metadata)
    if job.call.conversation_id:
        told["conversation_id"] = job.call.conversation_id
    asked = job.unanswered
    if asked is not None:
        told["input_required"] = {"message": asked.words, "questions": msgspec.to_builtins(asked.questions)}
    if job.result is not None and job.result.notes:
        told["notes"] = list(job.result.notes)
    if job.result is not None and job.result.fallback is not None:
        told["fallback"] = msgspec.to_builtins(job.result.fallback)
    return told


def _event(task_id: str, line: JobEvent) -> dict[str, Any]:
    return {
        "taskId": task_id,
        "number": line.number,
        "event": line.event.kind,
        "timestamp": iso(line.at),
        "data": line.event.data,
    }
