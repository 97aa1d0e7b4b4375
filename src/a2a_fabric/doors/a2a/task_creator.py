"""The job that a message of an A2A client creates.

Clients repeat a message whose reply was lost, so the id of a task is derived from sender and message: for a while the
same message leads to the same task."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call, Input, ResponseForm, Target, owner_from_principal
from a2a_fabric.core.errors import JobNotFound
from a2a_fabric.core.job import Job, JobSummary, new_job_id
from a2a_fabric.core.propagation import (
    DELEGATION_META_KEY,
    TRACE_META_KEY,
    chain_from_metadata,
    new_id,
    pick_longer_chain,
    trace_from_metadata,
)
from a2a_fabric.core.result import OriginalMessage, Part
from a2a_fabric.core.word_routing import RequestPart
from a2a_fabric.doors.a2a import task_view
from a2a_fabric.doors.a2a.errors import invalid_params_error
from a2a_fabric.doors.a2a.requests import A2ARequestContext, UserMessage
from a2a_fabric.doors.a2a.skill_choice import (
    SkillRouter,
    choose_capability,
    find_named_skill,
    input_from_parts,
    may_speak_a2a,
)
from a2a_fabric.doors.a2a.task_updates import user_message_from_event
from a2a_fabric.gateway import Gateway
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.jobs.run import GRAPH_AGENT, GRAPH_KIND, WAITS_FOR_LOGIN
from a2a_fabric.jobs.settings import JobOptions
from a2a_fabric.operations.routing import MessageChoice
from a2a_fabric.operations.table import Operations
from a2a_fabric.protocols.a2a.models import ORIGINAL_PROTOCOL, A2AMessage, CallersMessage

TIMEOUT_KEY = "a2a-fabric/timeout_ms"
_IDS_OF_THIS_NODE = ("contextId", "taskId", "kind")
_RECENT_TASKS = 100  # of a caller, in which the last one of a context is looked for
_MAX_REPETITIONS = 8  # of one message whose tasks were answered or cancelled; after that its ids are not derived


class PreparedMessage(NamedTuple):
    """The call of a message; `parts` instead of it, for a message that is for several agents.

    `reason` says why this agent and capability answer, if the message names none.
    """

    call: Call
    reason: str | None
    parts: tuple[RequestPart, ...] = ()


class TaskCreator:
    def __init__(
        self,
        gateway: Gateway,
        jobs: Jobs,
        operations: Operations,
        replay_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._gateway = gateway
        self._jobs = jobs
        self._skill_router = SkillRouter(gateway, operations.routing)
        self._graphs = operations.graph_operations
        self._replay_window = replay_seconds
        self._clock = clock

    async def accept(
        self, user_message: UserMessage, context: A2ARequestContext, *, waits: bool = False
    ) -> tuple[Call, JobSummary]:
        """The job of a message; for a repeated message, the existing one. Raises A2AProtocolError, FabricError.

        The job of a caller that `waits` for its end may be running already; otherwise a new job is queued.
        A caller that has answered or cancelled a task has got the reply to its message. So if the message comes again
        after that, it is not repeated because a reply was lost, and begins a new task.
        """
        prepared = await self.build_call(user_message, context, self._read_timeout(user_message))
        call, now = prepared.call, self._clock()
        for repetition in range(_MAX_REPETITIONS if self._replay_window else 0):
            previous_id, job_id = (
                self._derive_job_id(call, user_message, context, now - offset, repetition)
                for offset in (self._replay_window, 0.0)
            )
            job = await self._find_replayed(previous_id, context, now)
            summary = job or await self._accept_job(prepared, user_message, job_id, waits=waits)
            if not await self._is_caller_past(summary, context):
                return job.call if job is not None else call, summary
        return call, await self._accept_job(prepared, user_message, new_job_id(), waits=waits)

    async def answer_switch(self, user_message: UserMessage, context: A2ARequestContext) -> A2AMessage | None:
        """The node's own answer to a message that only says to which agent its sender talks from now on."""
        if user_message.task_id:
            return None
        context_id = user_message.context_id or new_id()
        answer = await self._skill_router.take_switch(user_message, context.principal, context_id)
        if answer is None:
            return None
        return A2AMessage(id=new_id(), parts=(Part(kind="text", text=answer),), context_id=context_id)

    async def build_call(
        self, user_message: UserMessage, context: A2ARequestContext, timeout_ms: int
    ) -> PreparedMessage:
        """The call, and why this agent and capability answer if the message names none. Raises A2AProtocolError."""

        async def find_last(since: float) -> str | None:
            return await self._find_last_agent(user_message.context_id, context, since)

        choice = (
            MessageChoice(manifest=context.agent)
            if context.agent is not None
            else await self._skill_router.choose_agent(user_message, context.principal, find_last)
        )
        message_input = input_from_parts(user_message.parts)
        if choice.parts and not message_input.attachments:  # files cannot be divided
            return self._prepare_parts(choice.parts, message_input, user_message, context, timeout_ms)
        agent, named_skill = choice.manifest, find_named_skill(user_message)
        context.extensions.check_required(agent, user_message.extensions)
        may_pass = may_speak_a2a(agent)
        chooses_itself = may_pass and named_skill is None and self._sees_all_skills(agent)
        target = choose_capability(
            agent,
            user_message,
            is_learnt=self._gateway.registry.catalog.is_discovered(agent.agent_id),
            passes_as_it_is=chooses_itself and agent.runtime == "a2a",
        )
        call = Call(
            trace=trace_from_metadata(context.trace, user_message.get_metadata(TRACE_META_KEY)),
            auth=context.principal,
            target=Target(agent_id=agent.agent_id, capability=target.capability, timeout_ms=timeout_ms),
            input=target.input,
            response=ResponseForm(format="json"),  # the agent of a job streams in any case
            conversation_id=user_message.context_id or new_id(),
            delegation_chain=pick_longer_chain(
                chain_from_metadata(user_message.get_metadata(DELEGATION_META_KEY)), context.delegation_chain
            ),
            any_agent=True if context.agent is None and named_skill is not None else msgspec.UNSET,
            original=await self.make_original(user_message, context, names_skill=not chooses_itself)
            if may_pass
            else msgspec.UNSET,
        )
        return PreparedMessage(call, " ".join(filter(None, (choice.reason, target.reason))) or None)

    def _prepare_parts(
        self,
        parts: tuple[RequestPart, ...],
        message_input: Input,
        user_message: UserMessage,
        context: A2ARequestContext,
        timeout_ms: int,
    ) -> PreparedMessage:
        names = ", ".join(f"'{agent_id}'" for agent_id in dict.fromkeys(part.agent_id for part in parts))
        call = Call(
            trace=trace_from_metadata(context.trace, user_message.get_metadata(TRACE_META_KEY)),
            auth=context.principal,
            target=Target(agent_id=GRAPH_AGENT, capability=GRAPH_KIND, timeout_ms=timeout_ms),
            input=message_input,
            conversation_id=user_message.context_id or new_id(),
            delegation_chain=pick_longer_chain(
                chain_from_metadata(user_message.get_metadata(DELEGATION_META_KEY)), context.delegation_chain
            ),
        )
        return PreparedMessage(call, f"The message is for several agents: {names}.", parts)

    async def _find_last_agent(self, context_id: str, context: A2ARequestContext, since: float) -> str | None:
        """The agent of the newest of the caller's recent tasks in this context."""
        if not context_id:
            return None
        for job in (await self._jobs.list(context.principal, limit=_RECENT_TASKS)).jobs:
            record = task_view.record_from_job(job)
            if record is not None and record.context_id == context_id and job.created_at > since:
                return job.agent_id
        return None

    def _sees_all_skills(self, agent: Manifest) -> bool:
        """An agent that chooses its skill itself might choose one that this caller may not use."""
        known = self._gateway.registry.catalog.get(agent.agent_id)
        return known is not None and len(known.capabilities) == len(agent.capabilities)

    async def make_original(
        self, user_message: UserMessage, context: A2ARequestContext, *, names_skill: bool
    ) -> OriginalMessage:
        message = {key: value for key, value in user_message.raw.items() if key not in _IDS_OF_THIS_NODE}
        if references := user_message.raw.get("referenceTaskIds"):
            message["referenceTaskIds"] = [await self._find_agents_id(each, context) for each in references]
        callers_message = CallersMessage(
            message=message,
            dialect=user_message.dialect,
            metadata=user_message.request_metadata,
            extensions=context.extensions.requested,
            output_modes=user_message.output_modes,
            names_skill=names_skill,
        )
        return OriginalMessage(protocol=ORIGINAL_PROTOCOL, content=msgspec.to_builtins(callers_message))

    async def _find_agents_id(self, task_id: str, context: A2ARequestContext) -> str:
        """The id that the agent itself gave to a task of this caller; an id of another task stays as it is."""
        try:
            reply = task_view.reply_from_job(await self._jobs.get(context.principal, task_id))
        except JobNotFound:
            return task_id
        return reply.task.id if reply is not None and reply.task is not None and reply.task.id else task_id

    def _read_timeout(self, user_message: UserMessage) -> int:
        requested = user_message.get_metadata(TIMEOUT_KEY)
        if requested is not None and (
            isinstance(requested, bool) or not isinstance(requested, int | float) or requested < 1
        ):
            raise invalid_params_error(f"metadata.{TIMEOUT_KEY} must be a number of milliseconds", "metadata")
        return self._jobs.settings.clamp_timeout(None if requested is None else int(requested))

    async def _accept_job(
        self, prepared: PreparedMessage, user_message: UserMessage, job_id: str, *, waits: bool
    ) -> JobSummary:
        call = prepared.call
        record = task_view.record_from_message(user_message, str(call.conversation_id), prepared.reason or "")
        meta = {task_view.JOB_META_KEY: msgspec.to_builtins(record), WAITS_FOR_LOGIN: True}
        if prepared.parts:
            return await self._graphs.accept_parts(prepared.parts, call, job_id, meta)
        return await self._jobs.accept(call, JobOptions(at_once=not waits, job_id=job_id, key=job_id, meta=meta))

    def _derive_job_id(
        self, call: Call, user_message: UserMessage, context: A2ARequestContext, now: float, repetition: int
    ) -> str:
        identity = (
            owner_from_principal(context.principal),
            call.target.agent_id,
            int(now / self._replay_window),
            user_message.request,
            context.extensions.requested,
            repetition,
        )
        digest = hashlib.sha256(msgspec.json.encode(identity, order="deterministic")).hexdigest()
        return f"task_{digest[:40]}"

    async def _find_replayed(self, job_id: str, context: A2ARequestContext, now: float) -> Job | None:
        """The job of the same message, if it was sent late in the previous time window."""
        try:
            job = await self._jobs.get(context.principal, job_id)
        except JobNotFound:
            return None
        return job if job.created_at > now - self._replay_window else None

    async def _is_caller_past(self, job: JobSummary, context: A2ARequestContext) -> bool:
        """Whether the caller has answered or cancelled the task of its message."""
        if job.cancel_requested or job.state == "cancelled":
            return True
        if job.attempt == 0 or (job.attempt == 1 and job.state != "queued"):
            return False
        async with aclosing(self._jobs.events(context.principal, job.job_id, past_questions=True)) as job_events:
            async for job_event in job_events:
                if user_message_from_event(job_event) is not None:
                    return True
                if job_event.number >= job.events:
                    break
        return False
