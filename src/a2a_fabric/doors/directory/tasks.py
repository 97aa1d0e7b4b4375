"""The methods of tasks, of one hop or several.

`a2a/task` and `a2a/stream` start a task or join it, the others read, answer and cancel it. A caller that waits receives
a failure as an error. A caller that reads or follows a task sees it as the status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.call import owner_from_principal
from a2a_fabric.core.errors import CallTimeout, FabricError, InternalError
from a2a_fabric.core.job import JobError
from a2a_fabric.core.result import Answer
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.directory.agents import AgentDirectory
from a2a_fabric.doors.directory.jsonrpc import (
    TASK_FAILED,
    DirectoryProtocolError,
    DirectoryRequestContext,
    DirectoryStream,
    DirectoryStreamEvent,
    protocol_error_from,
)
from a2a_fabric.doors.directory.task_chains import (
    GATEWAY_KEY,
    ChainEvent,
    DirectoryTask,
    DirectoryTaskParams,
    TaskChains,
    TaskId,
    TaskOutcome,
    plan_task,
)
from a2a_fabric.jobs.jobs import CANCEL_TIMEOUT
from a2a_fabric.protocols.jsonrpc import INVALID_PARAMS


class DirectoryTaskIdParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    task_id: TaskId


class DirectoryAnswerParams(DirectoryTaskIdParams, frozen=True, kw_only=True, rename="camel"):
    answers: dict[str, Answer]
    timeout_ms: int | None = None


def render_task(task: DirectoryTask, outcome: TaskOutcome) -> dict[str, Any]:
    """Exactly the keys of the protocol. The output of a failed task is its error."""
    output = outcome.output
    if task.choice is not None:
        chosen = {"agentId": task.hops[0].agent_id, "action": task.hops[0].action, "reason": task.choice}
        output = {**output, GATEWAY_KEY: {**output.get(GATEWAY_KEY, {}), "chosen": chosen}}
    if outcome.error is not None and outcome.status in ("failed", "timeout"):
        error = outcome.error
        output = {"error": {"code": error.code, "message": error.message, "details": error.details, **outcome.position}}
    return {"taskId": task.task_id, "status": outcome.status, "output": output}


_TIMEOUT_GRACE = 2.0  # seconds for a task whose time is over to report that itself
_FAILED_STATUSES = ("failed", "timeout")


class DirectoryTasks:
    def __init__(self, door_context: DoorContext, directory: AgentDirectory, chains: TaskChains, max_hops: int) -> None:
        self._door_context = door_context
        self._directory = directory
        self._chains = chains
        self._max_hops = max_hops

    async def run_task(self, params: DirectoryTaskParams, context: DirectoryRequestContext) -> dict[str, Any]:
        """Returns the outcome, or with `async` the present status. A repeated request joins the running task."""
        is_waiting = context.expects_reply and not params.is_async
        try:
            task = await self._start_task(params, context, is_waiting=is_waiting)
            if not is_waiting:
                return render_task(task, await self._chains.get_outcome(task, context.principal))
            return await self._wait_for_task(task, context, params.timeout_ms)
        except FabricError as error:
            raise protocol_error_from(error, context.trace.trace_id, taskId=params.task_id) from error

    async def stream_task(self, params: DirectoryTaskParams, context: DirectoryRequestContext) -> DirectoryStream:
        """Start a task if the request describes one; else join an existing task after any of its events."""
        self._door_context.streams.check(context.principal.principal_id)
        if params.is_new:
            task = await self._start_task(params, context, is_waiting=False)
        else:
            task = await self._chains.find(context.principal, params.task_id)
            self._chains.drive(task, context.principal)
        after = params.after if context.last_event_id is None else context.last_event_id
        return DirectoryStream(self._stream_events(task, context, after), is_resumed=after > 0)

    async def get_task_status(self, params: DirectoryTaskIdParams, context: DirectoryRequestContext) -> dict[str, Any]:
        task = await self._chains.find(context.principal, params.task_id)
        return render_task(task, await self._chains.get_outcome(task, context.principal))

    async def cancel_task(self, params: DirectoryTaskIdParams, context: DirectoryRequestContext) -> dict[str, Any]:
        """Waits only briefly for an agent that is slow to stop."""
        task = await self._chains.find(context.principal, params.task_id)
        await self._chains.cancel(task, context.principal)
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT):
                outcome = await self._follow_to_outcome(task, context)
        except TimeoutError:
            outcome = await self._chains.get_outcome(task, context.principal)
        return render_task(task, outcome)

    async def answer_questions(self, params: DirectoryAnswerParams, context: DirectoryRequestContext) -> dict[str, Any]:
        """Answer the agent's questions, then wait for the task, which continues."""
        task = await self._chains.find(context.principal, params.task_id)
        waiting_job = await self._chains.get_latest_job(task, context.principal)
        await self._door_context.jobs.answer_named(context.principal, waiting_job.job_id, params.answers)
        self._chains.drive(task, context.principal)
        return await self._wait_for_task(task, context, params.timeout_ms)

    async def _start_task(
        self, params: DirectoryTaskParams, context: DirectoryRequestContext, *, is_waiting: bool
    ) -> DirectoryTask:
        """A task whose caller waits has the time limit of a call, any other that of a job."""
        choice = None
        if params.input and not params.names_action:
            agent_id = params.agent_id or context.agent_id
            choice = await self._directory.choose_target(agent_id, params.input, context.principal)
            params = replace(params, agent_id=choice.agent_id, action=choice.action)
        task = plan_task(params, owner_from_principal(context.principal), context.agent_id, self._max_hops)
        task = task if choice is None else replace(task, choice=choice.reason)
        limits = self._door_context.gateway if is_waiting else self._door_context.jobs.settings
        timeout = limits.clamp_timeout(params.timeout_ms) / 1000
        await self._chains.start(task, context, timeout)
        return task

    async def _wait_for_task(
        self, task: DirectoryTask, context: DirectoryRequestContext, timeout_ms: int | None
    ) -> dict[str, Any]:
        """Raises DirectoryProtocolError for a task that failed or did not end in time, and RateLimited."""
        timeout = self._door_context.gateway.clamp_timeout(timeout_ms) / 1000
        try:
            with self._door_context.jobs.waiting_requests.hold(context.principal.principal_id):
                async with asyncio.timeout(timeout + _TIMEOUT_GRACE):
                    outcome = await self._follow_to_outcome(task, context)
        except TimeoutError:
            outcome = TaskOutcome(status="timeout", error=JobError.from_error(CallTimeout(timeout)))
        if outcome.status in _FAILED_STATUSES:
            raise _protocol_error_from_outcome(outcome, task, context)
        return render_task(task, outcome)

    async def _follow_to_outcome(self, task: DirectoryTask, context: DirectoryRequestContext) -> TaskOutcome:
        async with aclosing(self._chains.follow(task, context.principal)) as items:
            async for item in items:
                if isinstance(item, TaskOutcome):
                    return item
        raise AssertionError("a chain ends with an outcome")

    async def _stream_events(
        self, task: DirectoryTask, context: DirectoryRequestContext, after: int
    ) -> AsyncGenerator[DirectoryStreamEvent]:
        async with aclosing(self._chains.follow(task, context.principal, after)) as items:
            async for item in items:
                if isinstance(item, TaskOutcome):
                    yield DirectoryStreamEvent(event="final", body=render_task(task, item), is_answer=True)
                else:
                    yield DirectoryStreamEvent(
                        event=item.event.kind, body=_render_event(task, item), number=item.number
                    )


def _protocol_error_from_outcome(
    outcome: TaskOutcome, task: DirectoryTask, context: DirectoryRequestContext
) -> DirectoryProtocolError:
    error = outcome.error.to_error() if outcome.error is not None else InternalError()
    protocol_error = protocol_error_from(error, context.trace.trace_id, taskId=task.task_id, **outcome.position)
    if outcome.position.get("completed") and protocol_error.code == INVALID_PARAMS:
        # Some hops were done, so the caller cannot correct its parameters and send the task again.
        protocol_error.code, protocol_error.message = TASK_FAILED, "Task failed"
    return protocol_error


def _render_event(task: DirectoryTask, chain_event: ChainEvent) -> dict[str, Any]:
    body: dict[str, Any] = {
        "taskId": task.task_id,
        "number": chain_event.number,
        "event": chain_event.event.kind,
        "data": chain_event.event.data,
    }
    return (
        body
        if len(task.hops) == 1
        else {**body, "hop": chain_event.hop + 1, "action": task.hops[chain_event.hop].action}
    )
