"""The methods by name: what each takes, and who does it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.job import Job, owner_of
from a2a_fabric.core.message import Party
from a2a_fabric.core.states import states_meant
from a2a_fabric.core.store_errors import JobNotFound
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.rest import faults, wire
from a2a_fabric.doors.rest.agents import Agents
from a2a_fabric.doors.rest.parts import received
from a2a_fabric.doors.rest.reply import frame
from a2a_fabric.doors.rest.rpc import params, views
from a2a_fabric.doors.rest.rpc.faults import InvalidState
from a2a_fabric.doors.rest.rpc.push import Push
from a2a_fabric.doors.rest.tasks import Tasks
from a2a_fabric.doors.rest.visit import Stream, Visit
from a2a_fabric.messages.content import parts_of_result
from a2a_fabric.messages.desk import Draft

_STREAMS_REMEMBERED = 10_000
_HEARTBEAT = "heartbeat"
CLOSE = frame("close", None, b"{}")
_encode = msgspec.json.Encoder().encode

Method = Callable[[Any, Visit], Awaitable[Any]]


class Row(NamedTuple):
    params: type[msgspec.Struct]
    method: Method


class Methods:
    def __init__(self, context: DoorContext, agents: Agents, tasks: Tasks) -> None:
        self._desk = context.jobs
        self._messages = context.messages
        self._agents = agents
        self._tasks = tasks
        self._push = Push(context.jobs)
        self._streamed: OrderedDict[tuple[str, str], str] = OrderedDict()  # by caller and agent: the latest job
        self.table: dict[str, Row] = {
            "discover": Row(params.Discover, self.discover),
            "sendMessage": Row(params.Send, self.send),
            "streamMessage": Row(params.Send, self.stream),
            "getTaskStatus": Row(params.TaskArgument, self.status),
            "getTask": Row(params.TaskArgument, self.task),
            "cancelTask": Row(params.TaskArgument, self.cancel),
            "listTasks": Row(params.ListTasks, self.list),
            "updateTaskStatus": Row(params.UpdateStatus, self.update),
            "executeTask": Row(params.Execute, self.execute),
            "resubscribeTask": Row(params.Resubscribe, self.resubscribe),
            "downloadArtifact": Row(params.Artifact, self.artifact),
            "setPushConfig": Row(params.SetPush, self.set_push),
            "setPushNotificationConfig": Row(params.SetPush, self.set_push),
            "getPushConfig": Row(params.TaskArgument, self.get_push),
            "getPushNotificationConfig": Row(params.TaskArgument, self.get_own_push),
        }

    async def aclose(self) -> None:
        await self._push.aclose()

    async def discover(self, given: params.Discover, visit: Visit) -> dict[str, Any]:
        found = self._agents.known_to(visit.principal, given.capability)
        return {"agents": [self._agents.card(manifest, visit.base) for manifest in found]}

    async def send(self, given: params.Send, visit: Visit) -> str:
        """The id of the task that the message is brought by."""
        parts = [part for part in given.parts if part.type != _HEARTBEAT]
        if not parts:
            raise BadInput("parts: nothing is said", field="parts", issue="required")
        draft = Draft(
            recipient=Party(id=given.agent_id),
            parts=received(parts),
            conversation_id=given.context_id,
            capability=given.capability,
        )
        sent = await self._messages.post(visit.principal, visit.trace, draft)
        assert sent.job is not None  # noqa: S101  # it is for an agent
        return sent.job.job_id

    async def stream(self, given: params.Send, visit: Visit) -> dict[str, Any]:
        """The client now opens `/stream` with the agent's id; what is remembered is which task it means."""
        task_id = await self.send(given, visit)
        key = owner_of(visit.principal), given.agent_id
        self._streamed[key] = task_id
        self._streamed.move_to_end(key)
        if len(self._streamed) > _STREAMS_REMEMBERED:
            self._streamed.popitem(last=False)
        return {"taskId": task_id}

    async def status(self, given: params.TaskArgument, visit: Visit) -> dict[str, Any]:
        return {"task": await self.task(given, visit)}

    async def task(self, given: params.TaskArgument, visit: Visit) -> dict[str, Any]:
        return views.task_of(await self._tasks.find(visit.principal, given.task_id))

    async def cancel(self, given: params.TaskArgument, visit: Visit) -> dict[str, Any]:
        return views.task_of(await self._tasks.cancelled(visit.principal, given.task_id))

    async def list(self, given: params.ListTasks, visit: Visit) -> dict[str, Any]:
        states = None if given.status is None else states_meant(given.status, "rpc")
        if states == ():
            raise BadInput(f"status: there is no '{given.status}'", field="status", issue="no such status")
        page = await self._desk.list(
            visit.principal, states=states, agent_id=given.agent_id, limit=given.limit
        )  # fmt: skip
        since = _moment(given.since)
        jobs = [await self._desk.get(visit.principal, job.job_id) for job in page.jobs if job.created_at >= since]
        return {"tasks": [views.task_of(job) for job in jobs]}

    async def update(self, given: params.UpdateStatus, visit: Visit) -> dict[str, Any]:
        """What a user may do: cancel. All else is for the agent and the gateway to say."""
        wanted = given.status if isinstance(given.status, str) else given.status.to
        job = await self._tasks.find(visit.principal, given.task_id)
        here = views.state_word(job.state)
        named = None if isinstance(given.status, str) else given.status.from_
        if wanted == here and named in (None, here):
            return views.task_of(job)
        if wanted != "canceled" or (named is not None and named != here):
            raise InvalidState(f"A task that is {here} does not become {wanted[:32]} by its caller's word", status=here)
        return await self.cancel(given, visit)

    async def execute(self, given: params.Execute, visit: Visit) -> Stream:
        """Its events as they come, or, for a client that takes no events, the task when it is done."""
        task = given.task
        manifest = self._agents.one(task.agent_id, visit.principal)
        named = task.name if task.name is not None and manifest.capability(task.name) is not None else None
        body = wire.NewTask(
            agent_id=task.agent_id,
            id=task.id,
            input=task.input,
            parts=tuple(part for part in task.parts if part.type != _HEARTBEAT),
            capability=named,
            metadata=task.metadata,
            conversation_id=task.context_id or msgspec.UNSET,
        )
        job = await self._tasks.begun(body, visit)
        return Stream(frames=self.frames(visit.principal, job, _number(given.last_event_id, visit)))

    async def resubscribe(self, given: params.Resubscribe, visit: Visit) -> Stream:
        job = await self._tasks.find(visit.principal, given.task_id)
        return Stream(frames=self.frames(visit.principal, job, _number(given.last_event_id, visit)))

    async def artifact(self, given: params.Artifact, visit: Visit) -> dict[str, Any]:
        job = await self._tasks.find(visit.principal, given.task_id)
        output = () if job.result is None else parts_of_result(job.result)
        for each in views.artifacts_of(job, output):
            if each["id"] == given.artifact_id:
                return each
        raise faults.NothingHere(f"The task has no artifact '{given.artifact_id[:64]}'", issue="no such artifact")

    async def set_push(self, given: params.SetPush, visit: Visit) -> dict[str, Any]:
        job = await self._tasks.find(visit.principal, given.task_id)
        return {"config": await self._push.set(visit.principal, job, given.config)}

    async def get_push(self, given: params.TaskArgument, visit: Visit) -> dict[str, Any]:
        return {"config": await self.get_own_push(given, visit)}

    async def get_own_push(self, given: params.TaskArgument, visit: Visit) -> params.PushConfig:
        job = await self._tasks.find(visit.principal, given.task_id)
        return self._push.get(visit.principal, job)

    async def open_stream(self, query: params.StreamQuery, visit: Visit) -> Stream:
        """Of the caller's latest message to that agent. Raises JobNotFound."""
        job = await self._latest(query, visit.principal)
        return Stream(frames=self.frames(visit.principal, job, visit.after or 0))

    async def _latest(self, query: params.StreamQuery, principal: Principal) -> Job:
        if query.task_id is not None:
            return await self._tasks.find(principal, query.task_id)
        if query.agent_id is None:
            raise BadInput("agentId is required", field="agentId", issue="required")
        known = self._streamed.get((owner_of(principal), query.agent_id))
        if known is not None:
            return await self._desk.get(principal, known)
        page = await self._desk.list(principal, agent_id=query.agent_id, limit=1)
        if not page.jobs:
            raise JobNotFound(f"of {query.agent_id}")
        return await self._desk.get(principal, page.jobs[0].job_id)

    async def frames(self, principal: Principal, job: Job, after: int) -> AsyncGenerator[bytes]:
        """Words as text parts, artifacts as parts, every change as a task; the answer too, if it did not come in words.

        At the end stands `close`, without which the client would come back for ever.
        """
        has_spoken = False
        async with aclosing(self._desk.events(principal, job.job_id, after, past_questions=True)) as lines:
            async for line in lines:
                kind, data = line.event.kind, line.event.data
                if kind == "token":
                    has_spoken = True
                    yield frame(None, line.number, _encode(views.words(str(data.get("text", "")))))
                elif kind == "status":
                    now = await self._desk.get(principal, job.job_id)
                    yield frame(None, line.number, _encode(views.update(views.task_of(now))))
        ended = await self._desk.get(principal, job.job_id)
        for part in () if ended.result is None else parts_of_result(ended.result):
            if not (has_spoken and part.kind == "text"):
                yield frame(None, None, _encode(views.part_of(part)))
        yield frame(None, None, _encode(views.update(views.task_of(ended))))
        yield CLOSE


def _number(given: str | int | None, visit: Visit) -> int:
    if visit.after is not None:
        return visit.after
    text = "" if given is None else str(given)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def _moment(given: str | float | None) -> float:
    """Raises BadInput."""
    if given is None:
        return 0.0
    if isinstance(given, int | float):
        return given / 1000
    try:
        return datetime.fromisoformat(given.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError) as exc:
        raise BadInput("since: no moment", field="since", issue="no moment") from exc
