"""The task endpoints. A task is a job, and its owner sees it here no matter which door created it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import UNSET

from a2a_fabric.core.call import (
    ATTACHMENTS,
    Call,
    Input,
    Principal,
    ResponseForm,
    Target,
    check_attachments,
    owner_from_principal,
)
from a2a_fabric.core.errors import Conflict, JobNotFound
from a2a_fabric.core.job import (
    PRIORITY_BY_NAME,
    Job,
    JobEvent,
    JobState,
    JobSummary,
    derive_job_id,
    new_job_id,
    states_from_word,
    translate_state,
)
from a2a_fabric.core.node_limits import build_limit
from a2a_fabric.core.result import Answer as Said
from a2a_fabric.core.result import format_timestamp
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.edge import EventStream, bad_input_from, encode_event
from a2a_fabric.doors.rest import models
from a2a_fabric.doors.rest.http import (
    RestCycle,
    RestReply,
    RestRoute,
    TaskAlreadyEnded,
    build_location,
    build_next_link,
    raise_conflict,
)
from a2a_fabric.doors.rest.models import parts_from_wire, parts_to_wire
from a2a_fabric.jobs.settings import JobOptions
from a2a_fabric.messages.delivery import choose_capability, describe_choice, input_from_parts, split_input

_JOB_META_KEY = "rest_task"  # in a job's meta
_MAX_PAGE_BYTES = 16 << 20
_encode = msgspec.json.Encoder().encode


class RestTaskRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The task, stored with its job."""

    id: str | None = None  # chosen by the caller
    metadata: dict[str, Any] = {}


class TaskQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for the list of tasks."""

    states: Sequence[JobState] | None = None
    agent_id: str | None = None
    limit: int = 20


class RestTasks:
    def __init__(self, context: DoorContext, max_streams: int) -> None:
        self._jobs = context.jobs
        self._registry = context.gateway.registry
        self.stream_shares = build_limit(
            context.counts, "open streams of tasks", max_streams, context.caller_share, retry_after=10.0
        )

    def list_endpoints(self) -> Sequence[RestRoute]:
        return (
            RestRoute(method="POST", path="/tasks", handler=self.create, summary="Create a task.", tag="tasks",
                body=models.NewTask, reply=models.Task, status=201, takes_idempotency_key=True,
                example={"agentId": "percy", "input": {"text": "hello"}}),
            RestRoute(method="GET", path="/tasks", handler=self.list, summary="List your tasks, newest first.",
                tag="tasks", reply=models.Tasks, query=models.TasksQuery),
            RestRoute(method="GET", path="/tasks/{task_id}", handler=self.show, summary="Show a task.", tag="tasks",
                reply=models.Task),
            RestRoute(method="DELETE", path="/tasks/{task_id}", handler=self.cancel, summary="Cancel a task.",
                tag="tasks", reply=models.Task),
            RestRoute(method="GET", path="/tasks/{task_id}/status", handler=self.status, tag="tasks",
                summary="Show how a task stands.", reply=models.TaskState),
            RestRoute(method="GET", path="/tasks/{task_id}/events", handler=self.events, tag="tasks",
                summary="Follow a task; the last event, `final`, is the task.", reply=None,
                query=models.EventsQuery),
            RestRoute(method="POST", path="/tasks/{task_id}/answers", handler=self.answer, tag="tasks",
                summary="Answer what a task's agent wants to know.", body=models.Answers, reply=models.Task,
                example={"answers": {"question": "answer"}}),
        )  # fmt: skip

    async def create(self, context: RestCycle) -> RestReply:
        job = await self.start_job(context.body, context)
        is_new = job.meta.get("trace_id") == context.trace.trace_id
        context.is_call = is_new  # the job has its own log line
        view = render_task(job if is_new else await self._jobs.get(context.principal, job.job_id))
        location = build_location("tasks", view.id, job.job_id)
        return RestReply(body=view, status=201 if is_new else 200, headers=[(b"location", location)])

    async def start_job(self, body: models.NewTask, context: RestCycle) -> Job:
        """Raises FabricError for a task that cannot start. Sending a task again with its id returns the same task."""
        principal = context.principal
        manifest = self._registry.find_for(principal, body.agent_id)
        call_input = input_from_parts(parts_from_wire(body.parts), body.input)
        is_learnt = self._registry.catalog.is_discovered(manifest.agent_id)
        choice = choose_capability(manifest, body.capability, _take_text(call_input), is_learnt=is_learnt)
        name = choice.capability.name
        call_input = split_input(call_input, manifest.find_capability(name))
        check_attachments(call_input)
        call = Call(
            trace=context.trace,
            auth=principal,
            target=Target(
                agent_id=manifest.agent_id,
                capability=name,
                timeout_ms=self._jobs.settings.clamp_timeout(body.timeout_ms),
            ),
            input=call_input,
            response=ResponseForm(stream=True, format="json"),
            conversation_id=body.conversation_id,
            delegation_chain=context.delegation_chain,
        )
        options = _build_job_options(body, context, describe_choice(name, choice.reason))
        try:
            summary = await self._jobs.accept(call, options)
        except Conflict as exc:
            raise_conflict(exc, body.id, context.idempotency_key, "task")
        return Job(**msgspec.structs.asdict(summary), call=call)

    async def list(self, context: RestCycle) -> RestReply:
        query: models.TasksQuery = context.query
        task_query = TaskQuery(
            states=None if query.status is None else states_from_word(query.status, "rest"),
            agent_id=query.agent_id,
            limit=query.limit,
        )
        jobs, cursor = await self.load_page(context.principal, task_query, query.cursor)
        tasks = models.Tasks(tasks=tuple(map(render_task, jobs)), next_cursor=cursor)
        return RestReply(body=tasks, headers=build_next_link(context, "/tasks", cursor, query.limit))

    async def load_page(
        self, principal: Principal, task_query: TaskQuery, cursor: str | None = None
    ) -> tuple[Sequence[Job], str | None]:  # fmt: skip
        """Whole jobs, newest first, and the cursor of the next page. A page of large jobs holds fewer of them."""
        states, agent_id = task_query.states, task_query.agent_id
        page = await self._jobs.list(principal, states=states, agent_id=agent_id, cursor=cursor, limit=task_query.limit)
        count = _count_fitting(page.jobs)
        if count < len(page.jobs):
            page = await self._jobs.list(principal, states=states, agent_id=agent_id, cursor=cursor, limit=count)
        jobs = await asyncio.gather(*(self._get_if_present(principal, job.job_id) for job in page.jobs))
        return [job for job in jobs if job is not None], page.cursor

    async def show(self, context: RestCycle) -> RestReply:
        return RestReply(body=render_task(await self.find(context.principal, context.path["task_id"])))

    async def status(self, context: RestCycle) -> RestReply:
        task = render_task(await self.find(context.principal, context.path["task_id"]))
        state = models.TaskState(
            id=task.id, status=task.status, updated_at=task.updated_at, error=task.error, metadata=task.metadata
        )
        return RestReply(body=state)

    async def cancel(self, context: RestCycle) -> RestReply:
        """Cancelling again changes nothing. Raises TaskAlreadyEnded for a task that ended in another way."""
        return RestReply(body=render_task(await self.cancel_job(context.principal, context.path["task_id"])))

    async def cancel_job(self, principal: Principal, task_id: str) -> Job:
        """Raises TaskAlreadyEnded."""
        job = await self.find(principal, task_id)
        if job.has_ended and job.state != "cancelled":
            word = translate_state(job.state, "rest")
            raise TaskAlreadyEnded(f"Task '{task_id[:64]}' is {word} already", status=word)
        return await self._jobs.cancel_and_wait(principal, job.job_id)

    async def answer(self, context: RestCycle) -> RestReply:
        job = await self.find(context.principal, context.path["task_id"])
        answers = {key: _parse_answer(value) for key, value in context.body.answers.items()}
        await self._jobs.answer_named(context.principal, job.job_id, answers)
        return RestReply(body=render_task(await self._jobs.get(context.principal, job.job_id)))

    async def events(self, context: RestCycle) -> EventStream:
        job = await self.find(context.principal, context.path["task_id"])
        after = context.query.after if context.head.last_event_id is None else context.head.last_event_id
        frames = self._stream_frames(context.principal, job, after or 0)
        return EventStream(frames=frames, waits_for_news=bool(after))

    async def _stream_frames(self, principal: Principal, job: Job, after: int) -> AsyncGenerator[bytes]:
        """Stored events, live events, and at the end the task. Questions do not end the stream. Raises RateLimited."""
        job_id, task_id = job.job_id, render_task(job).id
        with self.stream_shares.hold(principal.principal_id):
            async with aclosing(self._jobs.follow(job, after, past_questions=True)) as job_events:
                del job  # frees a long answer while a slow client reads
                async for job_event in job_events:
                    yield encode_event(
                        job_event.event.kind, job_event.number, _encode(_render_event(task_id, job_event))
                    )
            yield encode_event("final", None, _encode(render_task(await self._jobs.get(principal, job_id))))

    async def find(self, principal: Principal, task_id: str) -> Job:
        """Find a task by the id that its caller chose, or by its job id. Raises JobNotFound."""
        try:
            return await self._jobs.find(principal, task_id, _derive_job_id(owner_from_principal(principal), task_id))
        except JobNotFound as error:
            error.message = f"Task '{task_id[:64]}' not found"
            raise

    async def _get_if_present(self, principal: Principal, job_id: str) -> Job | None:
        """None if the job was removed since it was listed."""
        try:
            return await self._jobs.get(principal, job_id)
        except JobNotFound:
            return None


def _count_fitting(jobs: Sequence[JobSummary]) -> int:
    """The number of jobs that fit into one reply, at least one."""
    remaining_bytes = _MAX_PAGE_BYTES
    for index, job in enumerate(jobs):
        remaining_bytes -= job.size
        if remaining_bytes < 0 and index:
            return index
    return len(jobs)


def _derive_job_id(owner: str, task_id: str) -> str:
    """The id of the job of a task whose id its caller chose."""
    return derive_job_id("rest", owner, task_id)


def _take_text(call_input: Input) -> Input:
    """`task` in the arguments is text, for the choice of a capability that is not known yet."""
    task = call_input.context.get("task")
    return call_input if call_input.task or not isinstance(task, str) else split_input(call_input, None)


def _build_job_options(body: models.NewTask, context: RestCycle, choice: dict[str, Any]) -> JobOptions:
    owner = owner_from_principal(context.principal)
    job_id = f"task_{new_job_id().removeprefix('job_')}" if body.id is None else _derive_job_id(owner, body.id)
    extra_metadata = choice if body.capability is None else {"capability": body.capability}
    record = msgspec.to_builtins(RestTaskRecord(id=body.id, metadata={**body.metadata, **extra_metadata}))
    key = None if context.idempotency_key is None else f"rest:{context.idempotency_key}"
    return JobOptions(
        at_once=True,
        job_id=job_id,
        key=key if body.id is None else job_id,
        priority=PRIORITY_BY_NAME[body.priority],
        expires_at=None if body.ttl_seconds is None else time.time() + body.ttl_seconds,
        meta={_JOB_META_KEY: record} if record else {},
    )


def _parse_answer(value: Any) -> Said:
    """The answer is `{"content": …}`, as at other doors, or the bare content."""
    if isinstance(value, dict) and value.keys() <= {"action", "content"} and value:
        try:
            return msgspec.convert(value, Said)
        except msgspec.ValidationError as exc:
            raise bad_input_from(exc) from exc
    return Said(content=value)


def render_task(job: Job) -> models.Task:
    record = msgspec.convert(job.meta.get(_JOB_META_KEY, {}), RestTaskRecord)
    result, failure = job.result, job.failure
    return models.Task(
        id=record.id or job.job_id,
        agent_id=job.agent_id,
        status=translate_state(job.state, "rest"),  # type: ignore[arg-type]  # one of the literals
        input=_render_input(job.call.input),
        created_at=format_timestamp(job.created_at),
        updated_at=format_timestamp(job.updated_at),
        output=UNSET if result is None else result.data,
        parts=() if result is None else parts_to_wire(result.parts),
        error=None
        if failure is None
        else models.TaskError(code=failure.code, message=failure.message, details=failure.details),
        metadata=_build_metadata(job, record),
    )


def _render_input(call_input: Input) -> dict[str, Any]:
    """The input in the form in which it was sent."""
    rendered: dict[str, Any] = dict(call_input.context)
    if call_input.task:
        rendered["task"] = call_input.task
    if call_input.attachments:
        rendered[ATTACHMENTS] = msgspec.to_builtins(call_input.attachments)
    return rendered


def _build_metadata(job: Job, record: RestTaskRecord) -> dict[str, Any]:
    """The caller's own metadata, and facts for which the protocol has no field."""
    metadata = dict(record.metadata)
    if job.call.conversation_id:
        metadata["conversation_id"] = job.call.conversation_id
    questions = job.open_questions
    if questions is not None:
        metadata["input_required"] = {
            "message": questions.message,
            "questions": msgspec.to_builtins(questions.questions),
        }
    if job.result is not None and job.result.notes:
        metadata["notes"] = list(job.result.notes)
    if job.result is not None and job.result.fallback is not None:
        metadata["fallback"] = msgspec.to_builtins(job.result.fallback)
    return metadata


def _render_event(task_id: str, job_event: JobEvent) -> dict[str, Any]:
    return {
        "taskId": task_id,
        "number": job_event.number,
        "event": job_event.event.kind,
        "timestamp": format_timestamp(job_event.at),
        "data": job_event.event.data,
    }
