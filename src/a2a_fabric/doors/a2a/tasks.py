"""A2A tasks, which are jobs: start, answer directly, get, cancel, subscribe.

A message creates a job (`task_creator.py`). The job continues without its sender, survives restarts, and is the same
job at every other door. All methods raise A2AProtocolError and FabricError."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from msgspec.structs import asdict, replace

from a2a_fabric.core.call import ignore_event
from a2a_fabric.core.job import Job, JobEvent, JobSummary, is_final_state
from a2a_fabric.core.propagation import new_id
from a2a_fabric.core.result import Answer, OriginalMessage, PassedOnAnswer, Result
from a2a_fabric.doors.a2a import task_view
from a2a_fabric.doors.a2a.errors import A2AProtocolError, invalid_params_error, task_not_found_error
from a2a_fabric.doors.a2a.requests import A2ARequestContext, UserMessage
from a2a_fabric.doors.a2a.settings import A2ADoorSettings
from a2a_fabric.doors.a2a.skill_choice import parse_answers
from a2a_fabric.doors.a2a.task_creator import TaskCreator
from a2a_fabric.doors.a2a.task_updates import (
    LONG_ANSWER_BYTES,
    USER_MESSAGE_KEY,
    TaskUpdateBuilder,
    estimate_size,
    questions_from_event,
    user_message_from_event,
)
from a2a_fabric.doors.a2a.task_view import trim_history
from a2a_fabric.gateway import Gateway
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.jobs.settings import JobOptions
from a2a_fabric.protocols.a2a.models import (
    AGENT_STATUS_KEY,
    FINAL_TASK_STATES,
    A2AMessage,
    A2AStreamEvent,
    A2ATask,
    A2AUpdate,
    TaskStatusUpdate,
    is_a2a,
)

_QUESTION_TIMEOUT = 5.0
_FIRST_REPLY_TIMEOUT = 2.0
_POLL_INTERVAL = 0.005


class A2ATasks:
    def __init__(self, jobs: Jobs, creator: TaskCreator, settings: A2ADoorSettings) -> None:
        self._jobs = jobs
        self._creator = creator
        self._settings = settings

    async def render_outcome(
        self, job: Job, user_message: UserMessage, context: A2ARequestContext
    ) -> A2ATask | A2AMessage:
        """The answer; for a caller that does not wait, the task as it is."""
        if user_message.is_blocking:
            job = await self._jobs.wait_until_settled(job, self._settings.blocking_seconds)
        message = task_view.message_from_job(job) if user_message.is_blocking else None
        return message or await self._render_task(job, context, user_message.history_length)

    async def answer_switch(self, user_message: UserMessage, context: A2ARequestContext) -> A2AMessage | None:
        """See `TaskCreator.answer_switch`."""
        return await self._creator.answer_switch(user_message, context)

    async def start(self, user_message: UserMessage, context: A2ARequestContext, *, waits: bool = False) -> Job:
        """The job of this message, as it was when it was stored."""
        if user_message.task_id:
            return await self._answer_questions(user_message, context)
        call, summary = await self._creator.accept(user_message, context, waits=waits)
        is_fresh = summary.events == 1 and not isinstance(summary, Job)
        return (
            Job(call=call, **asdict(summary)) if is_fresh else await self._jobs.get(context.principal, summary.job_id)
        )

    async def find(self, task_id: str, context: A2ARequestContext) -> Job:
        """Jobs of other callers, and of other agents than the one in the path, are not found."""
        job = await self._jobs.get(context.principal, task_id)
        if context.agent is not None and job.agent_id != context.agent.agent_id:
            raise task_not_found_error(task_id)
        return job

    async def get(self, task_id: str, context: A2ARequestContext, history_length: int | None = None) -> A2ATask:
        return await self._render_task(await self.find(task_id, context), context, history_length)

    async def cancel(self, task_id: str, context: A2ARequestContext) -> A2ATask:
        """Waits a few seconds for the agent to stop, then returns the task as it is."""
        job = await self.find(task_id, context)
        if job.has_ended:
            raise A2AProtocolError("TASK_NOT_CANCELABLE", f"Task '{task_id}' has already ended: it is {job.state}")
        cancelled_job = await self._jobs.cancel_and_wait(context.principal, task_id)
        return await self._render_task(cancelled_job, context, None)

    async def subscribe(self, task_id: str, context: A2ARequestContext) -> AsyncGenerator[A2AStreamEvent]:
        """Later events, or, for a returning client, those after its last one."""
        job = await self.find(task_id, context)
        if job.has_ended and context.last_event_id is None:
            raise A2AProtocolError("UNSUPPORTED_OPERATION", f"Task '{task_id}' has already ended: it is {job.state}")
        return self.stream_updates(job, context, context.last_event_id, None, past_questions=True)

    async def _answer_questions(self, user_message: UserMessage, context: A2ARequestContext) -> Job:
        job = await self.find(user_message.task_id, context)
        if context.agent is not None:
            context.extensions.activate(context.agent, user_message.extensions)
        if user_message.context_id and user_message.context_id != task_view.find_context_id(job):
            raise invalid_params_error("The contextId is not that of the task", "message.contextId")
        if await self._is_repeated_message(user_message, job, context):
            return job
        questions = job.open_questions
        if questions is None:
            state = "has ended" if job.has_ended else "is running and has no open question"
            raise A2AProtocolError("UNSUPPORTED_OPERATION", f"Task '{job.job_id}' {state}, so it accepts no message")
        event_data = {USER_MESSAGE_KEY: {"message": user_message.raw, "dialect": user_message.dialect}}
        answers = parse_answers(user_message, questions)
        if is_a2a(job.call.original):  # the agent speaks A2A, too
            original = await self._creator.make_original(user_message, context, names_skill=False)
            answers = {key: _pass_on_answer(answer, original) for key, answer in answers.items()}
        summary = await self._jobs.answer(context.principal, job.job_id, answers, event_data)
        return replace(job, state=summary.state, events=summary.events, updated_at=summary.updated_at)

    async def _is_repeated_message(self, user_message: UserMessage, job: Job, context: A2ARequestContext) -> bool:
        """Whether the client repeats an identical message, because the reply to the first one was lost."""
        if not self._settings.replay_seconds or not _may_have_questions(job):
            return False
        return any(
            message.raw == user_message.raw for message in await self._load_later_messages(job, context) if message.raw
        )

    async def _render_task(self, job: Job, context: A2ARequestContext, history_length: int | None) -> A2ATask:
        needs_history = history_length is None or history_length > 0
        later_messages = (
            await self._load_later_messages(job, context) if needs_history and _may_have_questions(job) else []
        )
        return trim_history(task_view.task_from_job(job, later_messages), history_length)

    async def _load_later_messages(self, job: Job, context: A2ARequestContext) -> list[A2AMessage]:
        """The questions that were answered, and the user's messages that answered them."""
        messages: list[A2AMessage] = []
        question: A2AMessage | None = None
        async with aclosing(self._jobs.follow(job, past_questions=True)) as job_events:
            async for job_event in job_events:
                if job_event.event.kind == "input_required":
                    parts = task_view.build_question_parts(questions_from_event(job_event.event))
                    question = task_view.build_agent_message(job, parts, f"{job.job_id}-{job_event.number}")
                elif (stored := user_message_from_event(job_event)) is not None:
                    messages += [question] if question is not None else []
                    messages.append(
                        task_view.build_user_message(
                            stored["message"], stored["dialect"], task_view.find_context_id(job), job.job_id
                        )
                    )
                    question = None
                if job_event.number >= job.events:
                    break
        return messages

    async def stream_updates(
        self,
        job: Job,
        context: A2ARequestContext,
        after: int | None,
        history_length: int | None,
        *,
        past_questions: bool = False,
    ) -> AsyncGenerator[A2AStreamEvent]:
        """The task as it is, then all events after the given one, or after the current one, without a gap.

        A long answer follows the task in pieces, as it was emitted; a returning client has them already.
        """
        if is_a2a(job.call.original) and after is None and not past_questions:
            message = task_view.message_from_job(await self._wait_for_first_reply(job, context))
            if message is not None:
                yield A2AStreamEvent(update=message)
                return
        task_id = job.job_id
        last_known_number = job.events if after is None else min(after, job.events)
        caught_up_builder, new_builder = TaskUpdateBuilder(job), TaskUpdateBuilder(job)
        if last_known_number and not _is_fresh(job):
            await self._catch_up(caught_up_builder, job, last_known_number)
        full_task = await self._render_task(job, context, history_length)
        if last_known_number < job.events:  # the rest of the answer follows as updates
            full_task = replace(full_task, artifacts=())
        task, is_complete = _build_initial_task(full_task, caught_up_builder)
        start, builder = (
            (last_known_number, caught_up_builder) if is_complete or after is not None else (0, new_builder)
        )
        async with aclosing(self._jobs.follow(job, start, past_questions=past_questions)) as job_events:
            del job  # frees a long answer while a slow client reads
            yield A2AStreamEvent(update=task, number=start or None)
            async for job_event in job_events:
                updates = await self._complete_updates(
                    job_event, builder.build_updates(job_event), builder, task_id, context
                )
                for index, update in enumerate(updates, 1):
                    if job_event.number > last_known_number or not _is_past_status(update):
                        # Only the last one has the number, so that a client that comes back misses none of them.
                        yield A2AStreamEvent(update=update, number=job_event.number if index == len(updates) else None)

    async def _wait_for_first_reply(self, job: Job, context: A2ARequestContext) -> Job:
        """The job when its A2A agent has answered for the first time: an agent that sends a message has no task.

        An agent that does not stream answers only at its end. Then the client gets a task soon, so that it can cancel.
        """
        capability = context.agent.find_capability(job.capability) if context.agent is not None else None
        timeout = None if capability is not None and capability.streaming else _FIRST_REPLY_TIMEOUT
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(timeout),
                aclosing(self._jobs.follow(job)) as job_events,
            ):
                async for job_event in job_events:
                    if not _is_of_the_node(job_event):
                        break
        return await self._jobs.get(context.principal, job.job_id)

    async def _catch_up(self, builder: TaskUpdateBuilder, job: Job, last_number: int) -> None:
        """Feeds the builder the events that the client has already."""
        async with aclosing(self._jobs.follow(job, past_questions=True)) as job_events:
            async for job_event in job_events:
                builder.build_updates(job_event)
                if job_event.number >= last_number:
                    return

    async def _complete_updates(
        self,
        job_event: JobEvent,
        updates: list[A2AUpdate],
        builder: TaskUpdateBuilder,
        task_id: str,
        context: A2ARequestContext,
    ) -> list[A2AUpdate]:
        """The updates of an event, once the job has the state that the event announces."""
        if job_event.event.kind == "input_required":
            await self._wait_for_question(task_id, job_event.number, context)
        elif is_final_state(job_event.event.data.get("state", "running")):
            return builder.build_final_updates(await self._jobs.get(context.principal, task_id))
        return updates

    async def _wait_for_question(self, task_id: str, number: int, context: A2ARequestContext) -> None:
        """Waits until the question can be answered: its event is logged a moment earlier."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_QUESTION_TIMEOUT):
                while True:
                    job = await self._jobs.get(context.principal, task_id)
                    if job.state != "running" or job.events > number:
                        return
                    await asyncio.sleep(_POLL_INTERVAL)


def _pass_on_answer(answer: Answer, original: OriginalMessage) -> Answer:
    """The message itself is the answer, unless it only says that the question is not answered."""
    return PassedOnAnswer(content=answer.content, original=original) if answer.action == "accept" else answer


def _is_fresh(job: JobSummary) -> bool:
    """Whether the job has no events but its creation."""
    return job.state == "queued" and job.events == 1


def _is_of_the_node(job_event: JobEvent) -> bool:
    """Whether the event only says that the node queued or began the job."""
    data = job_event.event.data
    is_running = not is_final_state(data.get("state", "running"))
    return job_event.event.kind == "status" and is_running and AGENT_STATUS_KEY not in data


def _is_past_status(update: A2AUpdate) -> bool:
    """Whether the update is a status that the task has left since."""
    return isinstance(update, TaskStatusUpdate) and update.status.state not in FINAL_TASK_STATES


def _build_initial_task(task: A2ATask, builder: TaskUpdateBuilder) -> tuple[A2ATask, bool]:
    """The first event of a stream, and whether it holds all artifacts; long ones are sent in pieces."""
    artifacts = task.artifacts or builder.build_partial_artifacts()
    if artifacts is None or sum(estimate_size(each.parts) for each in artifacts) > LONG_ANSWER_BYTES:
        return replace(task, artifacts=()), False
    return replace(task, artifacts=artifacts), True


def _may_have_questions(job: Job) -> bool:
    """Each answer starts a new attempt, so the first attempt has no answered questions to look for."""
    return job.attempt > 1 or job.question is not None


CONTINUATION_KEY = "a2a-fabric/continuation"


class DirectReplies:
    """Answers with a message instead of a task, as far as the settings allow."""

    def __init__(
        self, gateway: Gateway, jobs: Jobs, creator: TaskCreator, tasks: A2ATasks, settings: A2ADoorSettings
    ) -> None:
        self._gateway = gateway
        self._jobs = jobs
        self._creator = creator
        self._tasks = tasks
        self._settings = settings

    def accepts(self, user_message: UserMessage) -> bool:
        is_enabled = self._settings.tasks != "always"
        return is_enabled and user_message.is_blocking and not user_message.task_id and user_message.push is None

    async def answer(self, user_message: UserMessage, context: A2ARequestContext) -> A2ATask | A2AMessage:
        """Raises A2AProtocolError and the errors of the call."""
        prepared = await self._creator.build_call(user_message, context, self._gateway.clamp_timeout(None))
        call, reason = prepared.call, prepared.reason
        if prepared.parts:  # work of several agents is always a job
            job = await self._tasks.start(user_message, context)
            return await self._tasks.render_outcome(job, user_message, context)
        if self._settings.tasks == "never":
            result = await self._gateway.call(call, ignore_event)
        else:
            options = JobOptions(job_after=self._settings.task_after_ms / 1000)
            result = await self._jobs.call(call, ignore_event, options)
        if result.job_id is not None:
            job = await self._jobs.get(context.principal, result.job_id)
            return await self._tasks.render_outcome(job, user_message, context)
        message = _message_from_result(result, user_message, str(call.conversation_id))
        chosen = (
            {}
            if reason is None or is_a2a(result.original)
            else {task_view.SKILL_KEY: {"id": call.target.capability, "reason": reason}}
        )
        return replace(message, metadata={**message.metadata, **chosen})


def _message_from_result(result: Result, user_message: UserMessage, context_id: str) -> A2AMessage:
    if result.asked is not None:
        parts = task_view.build_question_parts(result.asked)
        return A2AMessage(
            id=new_id(), parts=parts, context_id=context_id, metadata={CONTINUATION_KEY: result.asked.continuation}
        )
    reply = task_view.reply_from_result(result)
    if reply is not None and reply.message is not None:
        return replace(reply.message, id=reply.message.id or new_id(), context_id=context_id, task_id="")
    parts = task_view.parts_from_result(result, user_message.output_modes)
    return A2AMessage(id=new_id(), parts=parts, context_id=context_id, metadata=task_view.build_result_metadata(result))
