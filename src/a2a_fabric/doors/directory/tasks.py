"""The methods about tasks: `a2a/task` and `a2a/stream` begin one or join it, the others look after it.

Who waits hears of a failure as an error, as the document has it. Who looks at a task,
or follows it, sees how it ended as its status.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from a2a_fabric.core.errors import CallTimeout, FabricError, InternalError
from a2a_fabric.core.job import JobError, owner_of
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.directory.faults import INVALID_PARAMS, TASK_FAILED, Fault, fault_of
from a2a_fabric.doors.directory.journey import Journeys, Line
from a2a_fabric.doors.directory.task import AnswerParams, Ending, Task, TaskArgument, TaskParams, planned, view
from a2a_fabric.doors.directory.visit import Stream, Told, Visit

_GRACE = 2.0  # seconds that a task whose time is over has to say so itself
_CANCELLED_WITHIN = 5.0
_FAILURES = ("failed", "timeout")


class Tasks:
    def __init__(self, context: DoorContext, journeys: Journeys, most_hops: int) -> None:
        self._context = context
        self._journeys = journeys
        self._most_hops = most_hops

    async def do(self, params: TaskParams, visit: Visit) -> dict[str, Any]:
        """The outcome, or with `async` a look at the task. The same id for the same again joins what is under way."""
        waits = visit.waits and not params.is_async
        try:
            task = await self._begun(params, visit, waits=waits)
            if not waits:
                return view(task, await self._journeys.look(task, visit.principal))
            return await self._waited_for(task, visit, params.timeout_ms)
        except FabricError as error:
            raise fault_of(error, visit.trace.trace_id, taskId=params.task_id) from error

    async def stream(self, params: TaskParams, visit: Visit) -> Stream:
        """Begins a task if it says what to do; else joins one, from any event on."""
        self._context.streams.check(visit.principal.principal_id)
        if params.is_new:
            task = await self._begun(params, visit, waits=False)
        else:
            task = await self._journeys.find(visit.principal, params.task_id)
            self._journeys.drive(task, visit.principal)
        return Stream(self._told(task, visit, params.after if visit.after is None else visit.after))

    async def status(self, params: TaskArgument, visit: Visit) -> dict[str, Any]:
        task = await self._journeys.find(visit.principal, params.task_id)
        return view(task, await self._journeys.look(task, visit.principal))

    async def cancel(self, params: TaskArgument, visit: Visit) -> dict[str, Any]:
        """An agent that is slow to stop is not waited for any longer than a moment."""
        task = await self._journeys.find(visit.principal, params.task_id)
        await self._journeys.cancel(task, visit.principal)
        try:
            async with asyncio.timeout(_CANCELLED_WITHIN):
                ending = await self._ending(task, visit)
        except TimeoutError:
            ending = await self._journeys.look(task, visit.principal)
        return view(task, ending)

    async def answer(self, params: AnswerParams, visit: Visit) -> dict[str, Any]:
        """What an agent wanted to know; then it goes on, and is waited for."""
        task = await self._journeys.find(visit.principal, params.task_id)
        asking = await self._journeys.latest(task, visit.principal)
        await self._context.jobs.answer_some(visit.principal, asking.job_id, params.answers)
        self._journeys.drive(task, visit.principal)
        return await self._waited_for(task, visit, params.timeout_ms)

    async def _begun(self, params: TaskParams, visit: Visit, *, waits: bool) -> Task:
        """Who waits has as much time as a call; who does not, as much as a job."""
        task = planned(params, owner_of(visit.principal), visit.agent_id, self._most_hops)
        limits = self._context.gateway if waits else self._context.jobs.settings
        seconds = limits.time_for(params.timeout_ms) / 1000
        await self._journeys.begin(task, visit, seconds)
        return task

    async def _waited_for(self, task: Task, visit: Visit, timeout_ms: int | None) -> dict[str, Any]:
        """Raises Fault for a task that failed, or is not done in time; RateLimited."""
        seconds = self._context.gateway.time_for(timeout_ms) / 1000
        try:
            with self._context.jobs.waiting.held(visit.principal.principal_id):
                async with asyncio.timeout(seconds + _GRACE):
                    ending = await self._ending(task, visit)
        except TimeoutError:
            ending = Ending(status="timeout", error=JobError.of(CallTimeout(seconds)))
        if ending.status in _FAILURES:
            raise _failure(ending, task, visit)
        return view(task, ending)

    async def _ending(self, task: Task, visit: Visit) -> Ending:
        async with aclosing(self._journeys.walk(task, visit.principal)) as steps:
            async for step in steps:
                if isinstance(step, Ending):
                    return step
        raise AssertionError("a walk ends with an ending")

    async def _told(self, task: Task, visit: Visit, after: int) -> AsyncGenerator[Told]:
        async with aclosing(self._journeys.walk(task, visit.principal, after)) as steps:
            async for step in steps:
                if isinstance(step, Ending):
                    yield Told(event="final", body=view(task, step), is_answer=True)
                else:
                    yield Told(event=step.event.kind, body=_event(task, step), number=step.number)


def _failure(ending: Ending, task: Task, visit: Visit) -> Fault:
    error = ending.error.as_raised() if ending.error is not None else InternalError()
    fault = fault_of(error, visit.trace.trace_id, taskId=task.task_id, **ending.where)
    if ending.where.get("completed") and fault.code == INVALID_PARAMS:
        fault.code, fault.message = TASK_FAILED, "Task failed"  # some of it was done: to send it again is no remedy
    return fault


def _event(task: Task, line: Line) -> dict[str, Any]:
    body: dict[str, Any] = {
        "taskId": task.task_id,
        "number": line.number,
        "event": line.event.kind,
        "data": line.event.data,
    }
    return body if len(task.hops) == 1 else {**body, "hop": line.hop + 1, "action": task.hops[line.hop].action}
