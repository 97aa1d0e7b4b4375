"""The operations on tasks, which are jobs: send, stream, get, list, cancel, subscribe.

A message makes a job; it goes on without its sender, survives restarts, and is the
same job through every other door. All methods raise Fault and FabricError.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from msgspec.structs import asdict, replace

from a2a_fabric.core.call import Call
from a2a_fabric.core.job import Job, JobEvent, JobSummary
from a2a_fabric.core.states import ENDED, has_ended
from a2a_fabric.doors.a2a import seen
from a2a_fabric.doors.a2a.answers import answers_in
from a2a_fabric.doors.a2a.beginning import Beginning
from a2a_fabric.doors.a2a.faults import Fault, invalid, task_not_found
from a2a_fabric.doors.a2a.incoming import Asking
from a2a_fabric.doors.a2a.narration import SAID, Narration, questions_in, said_in
from a2a_fabric.doors.a2a.saying import LONG, weight_of
from a2a_fabric.doors.a2a.settings import A2ADoorSettings
from a2a_fabric.doors.a2a.shapes import Message, StatusUpdate, Task, Told, Update
from a2a_fabric.doors.a2a.visit import Visit
from a2a_fabric.jobs.desk import JobDesk

_CANCELLED_WITHIN = 5.0
_PARKED_WITHIN = 5.0
_LOOK_EVERY = 0.005


class Tasks:
    def __init__(self, desk: JobDesk, beginning: Beginning, settings: A2ADoorSettings) -> None:
        self._desk = desk
        self._beginning = beginning
        self._settings = settings

    async def finished(self, job: Job, asking: Asking, visit: Visit) -> Task | Message:
        """What became of it; or, for a caller who will not wait, how it stands."""
        if asking.waits:
            job = await self._desk.settled(job, self._settings.blocking_seconds)
        message = seen.as_message(job) if asking.waits else None
        return message or await self._shown(job, visit, asking.history_length)

    async def begun(self, asking: Asking, visit: Visit) -> Job:
        """The job of this message, as it was when it was written down."""
        if asking.task_id:
            return await self._answered(asking, visit)
        call, summary = await self._beginning.accept(asking, visit)
        is_fresh = summary.events == 1 and not isinstance(summary, Job)
        return _as_job(summary, call) if is_fresh else await self._desk.get(visit.principal, summary.job_id)

    async def find(self, task_id: str, visit: Visit) -> Job:
        """Somebody else's, and another agent's, are not found."""
        job = await self._desk.get(visit.principal, task_id)
        if visit.agent is not None and job.agent_id != visit.agent.agent_id:
            raise task_not_found(task_id)
        return job

    async def get(self, task_id: str, visit: Visit, history_length: int | None = None) -> Task:
        return await self._shown(await self.find(task_id, visit), visit, history_length)

    async def cancel(self, task_id: str, visit: Visit) -> Task:
        """An agent that is slow to stop is not waited for any longer than a moment."""
        job = await self.find(task_id, visit)
        if job.has_ended:
            raise Fault("TASK_NOT_CANCELABLE", f"Task '{task_id}' is over: it is {job.state}")
        await self._desk.cancel(visit.principal, task_id)
        left = await self._desk.settled(job, _CANCELLED_WITHIN, past_questions=True)
        return await self._shown(left, visit, None)

    async def subscribe(self, task_id: str, visit: Visit) -> AsyncGenerator[Told]:
        """From now on, or from the event after the one that a returning reader has."""
        job = await self.find(task_id, visit)
        if job.has_ended and visit.after is None:
            raise Fault("UNSUPPORTED_OPERATION", f"Task '{task_id}' is over: it is {job.state}")
        return self.told(job, visit, visit.after, None, past_questions=True)

    async def _answered(self, asking: Asking, visit: Visit) -> Job:
        job = await self.find(asking.task_id, visit)
        if visit.agent is not None:
            visit.extensions.meet(visit.agent, asking.extensions)
        if asking.context_id and asking.context_id != seen.context_of(job):
            raise invalid("contextId is not that of the task", "message.contextId")
        if await self._was_said(asking, job, visit):
            return job
        asked = job.unanswered
        if asked is None:
            state = "is over" if job.has_ended else "is at work, and has asked nothing"
            raise Fault("UNSUPPORTED_OPERATION", f"Task '{job.job_id}' {state}: it takes no message now")
        said = {SAID: {"message": asking.raw, "dialect": asking.dialect}}
        summary = await self._desk.answer(visit.principal, job.job_id, answers_in(asking, asked), said)
        return replace(job, state=summary.state, events=summary.events, updated_at=summary.updated_at)

    async def _was_said(self, asking: Asking, job: Job, visit: Visit) -> bool:
        """Whether it is a message that comes a second time, as its answer was lost. What differs is another one."""
        if not self._settings.replay_seconds or not _may_have_asked(job):
            return False
        return any(message.raw == asking.raw for message in await self._said_since(job, visit) if message.raw)

    async def _shown(self, job: Job, visit: Visit, history_length: int | None) -> Task:
        wants_all = history_length is None or history_length > 0
        since = await self._said_since(job, visit) if wants_all and _may_have_asked(job) else []
        return with_history(seen.task_of(job, since), history_length)

    async def _said_since(self, job: Job, visit: Visit) -> list[Message]:
        """Questions that were answered, and the answers as they were put."""
        said: list[Message] = []
        question: Message | None = None
        async with aclosing(self._desk.events(visit.principal, job.job_id, past_questions=True)) as lines:
            async for line in lines:
                if line.event.kind == "input_required":
                    parts = seen.question_parts(questions_in(line.event))
                    question = seen.agent_message(job, parts, f"{job.job_id}-{line.number}")
                elif (found := said_in(line)) is not None:
                    said += [question] if question is not None else []
                    said.append(seen.said_by_user(found["message"], found["dialect"], seen.context_of(job), job.job_id))
                    question = None
                if line.number >= job.events:
                    break
        return said

    async def told(
        self,
        job: Job,
        visit: Visit,
        after: int | None,
        history_length: int | None,
        *,
        past_questions: bool = False,
    ) -> AsyncGenerator[Told]:
        """The task as it is, then everything after the given line, or after that moment. There is no gap.

        If it has said much already, that follows the task in pieces, as it came; whoever is back has it.
        """
        principal, task_id = visit.principal, job.job_id
        silent = job.events if after is None else min(after, job.events)
        before, anew = Narration(job), Narration(job)
        if silent and not _is_fresh(job):
            await self._catch_up(before, task_id, silent, visit)
        shown = await self._shown(job, visit, history_length)
        if silent < job.events:  # the rest of its answer follows
            shown = replace(shown, artifacts=())
        task, is_all = _beginning(shown, before)
        del job  # its answer may be long, and the reader slow
        start, narration = (silent, before) if is_all or after is not None else (0, anew)
        yield Told(update=task, number=start or None)
        async with aclosing(self._desk.events(principal, task_id, start, past_questions=past_questions)) as lines:
            async for line in lines:
                for update in await self._known(line, narration.tell(line), narration, task_id, visit):
                    if line.number > silent or not _is_past(update):
                        yield Told(update=update, number=line.number)

    async def _catch_up(self, narration: Narration, task_id: str, upto: int, visit: Visit) -> None:
        """With what was told before."""
        async with aclosing(self._desk.events(visit.principal, task_id, past_questions=True)) as lines:
            async for line in lines:
                narration.tell(line)
                if line.number >= upto:
                    return

    async def _known(
        self, line: JobEvent, updates: list[Update], narration: Narration, task_id: str, visit: Visit
    ) -> list[Update]:
        """What a line means, once it is so."""
        if line.event.kind == "input_required":
            await self._parked(task_id, line.number, visit)
        elif has_ended(line.event.data.get("state", "running")):
            return narration.end(await self._desk.get(visit.principal, task_id))
        return updates

    async def _parked(self, task_id: str, number: int, visit: Visit) -> None:
        """A question is told once it can be answered: the log has it a moment earlier."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PARKED_WITHIN):
                while True:
                    job = await self._desk.get(visit.principal, task_id)
                    if job.state != "running" or job.events > number:
                        return
                    await asyncio.sleep(_LOOK_EVERY)


def _is_fresh(job: JobSummary) -> bool:
    """Nobody has said anything yet."""
    return job.state == "queued" and job.events == 1


def _is_past(update: Update) -> bool:
    """A status that the task had before its present one."""
    return isinstance(update, StatusUpdate) and update.status.state not in ENDED


def _beginning(task: Task, narration: Narration) -> tuple[Task, bool]:
    """How a stream begins, and whether that is all that there is: long artifacts come in pieces."""
    made = task.artifacts or narration.so_far()
    if made is None or sum(weight_of(each.parts) for each in made) > LONG:
        return replace(task, artifacts=()), False
    return replace(task, artifacts=made), True


def with_history(task: Task, length: int | None) -> Task:
    """The newest so many messages; None: all."""
    if length is None or length >= len(task.history):
        return task
    return replace(task, history=task.history[-length:] if length else ())


def _may_have_asked(job: Job) -> bool:
    """Each answer is a new attempt; only then is the log worth looking through."""
    return job.attempt > 1 or job.question is not None


def _as_job(summary: JobSummary, call: Call) -> Job:
    return Job(call=call, **asdict(summary))
