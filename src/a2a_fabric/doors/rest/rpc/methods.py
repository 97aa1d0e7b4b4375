"""The methods by name: what each takes, and who does it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import BadInput, FabricError
from a2a_fabric.core.job import Job, owner_of
from a2a_fabric.core.message import Party
from a2a_fabric.core.part import Part
from a2a_fabric.core.states import ENDED, JobState, states_meant
from a2a_fabric.core.store_errors import JobNotFound
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.replying import frame
from a2a_fabric.doors.rest import faults, wire
from a2a_fabric.doors.rest.agents import Agents
from a2a_fabric.doors.rest.moments import iso
from a2a_fabric.doors.rest.parts import received
from a2a_fabric.doors.rest.rpc import params, views
from a2a_fabric.doors.rest.rpc.faults import InvalidState
from a2a_fabric.doors.rest.rpc.push import Push
from a2a_fabric.doors.rest.tasks import Tasks, Wanted
from a2a_fabric.doors.rest.visit import Stream, Visit
from a2a_fabric.messages.content import parts_of_result
from a2a_fabric.messages.desk import Draft

_STREAMS_REMEMBERED = 10_000
_HEARTBEAT = "heartbeat"
_ARTIFACT = "artifact:"  # before the id of one that was brought
_WAIT = 4.0  # seconds; the client gives up after five
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
        self._push = Push(context.jobs, context.subscriptions)
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
            "uploadArtifact": Row(params.Upload, self.upload),
            "downloadArtifact": Row(params.ArtifactArgument, self.download),
            "setPushConfig": Row(params.SetPush, self.set_push),
            "setPushNotificationConfig": Row(params.SetPush, self.set_own_push),
            "getPushConfig": Row(params.TaskArgument, self.get_push),
            "getPushNotificationConfig": Row(params.TaskArgument, self.get_own_push),
        }

    @property
    def lifetime(self) -> AbstractAsyncContextManager[Any]:
        return self._push.orders

    async def discover(self, given: params.Discover, visit: Visit) -> dict[str, Any]:
        found = self._agents.known_to(visit.principal, given.capability)
        return {"agents": [self._agents.card(manifest, visit) for manifest in found]}

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
            delegation_chain=visit.delegation_chain,
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
        since = _moment(given.since)
        wanted = Wanted(states=states, agent_id=given.agent_id, limit=given.limit)
        jobs, _ = await self._tasks.page(visit.principal, wanted)
        return {"tasks": [views.task_of(job) for job in jobs if job.created_at >= since]}

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

    async def execute(self, given: params.Execute, visit: Visit) -> Stream | dict[str, Any]:
        """Its events as they come, or, for whoever does not ask for events, the task: as it ends, or as it is by then.

        A task of ours that comes back is followed on.
        """
        job = await self._ours(given.task, visit.principal) or await self._begun(given.task, visit)
        if visit.takes_events or visit.after is not None or given.auth_token or given.last_event_id is not None:
            return Stream(frames=self.frames(visit.principal, job.job_id, _number(given.last_event_id, visit)))
        with suppress(FabricError):  # how it failed stands in the task
            await self._desk.result(visit.principal, job.job_id, _WAIT)
        return views.task_of(await self._desk.get(visit.principal, job.job_id))

    async def _ours(self, task: params.NewTask, principal: Principal) -> Job | None:
        """The job that this was a picture of."""
        if task.id is None or task.created_at is None:
            return None
        with suppress(JobNotFound):
            job = await self._tasks.find(principal, task.id)
            return job if iso(job.created_at) == task.created_at else None
        return None

    async def _begun(self, task: params.NewTask, visit: Visit) -> Job:
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
        return await self._tasks.begun(body, visit)

    async def resubscribe(self, given: params.Resubscribe, visit: Visit) -> Stream | dict[str, Any]:
        """The client takes the task as it is now, and then asks for its events by executing it once more."""
        job = await self._tasks.find(visit.principal, given.task_id)
        if not visit.takes_events and visit.after is None and given.last_event_id is None:
            return views.task_of(job)
        return Stream(frames=self.frames(visit.principal, job.job_id, _number(given.last_event_id, visit)))

    async def upload(self, given: params.Upload, visit: Visit) -> str:
        """Kept for the caller like a message to nobody. The same id for something else is a conflict."""
        part = Part(kind="json", data=msgspec.to_builtins(given.artifact))
        await self._messages.keep(visit.principal, _ARTIFACT + given.artifact.id, part)
        return given.artifact.id

    async def download(self, given: params.ArtifactArgument, visit: Visit) -> Any:
        """One that the caller brought, or one that came out of a task of theirs."""
        own = await self._messages.kept(visit.principal, _ARTIFACT + given.artifact_id)
        if own is not None:
            return own.data
        with suppress(JobNotFound):
            job = await self._tasks.find(visit.principal, given.artifact_id.rpartition("/")[0])
            output = () if job.result is None else parts_of_result(job.result)
            for each in views.artifacts_of(job, output):
                if each["id"] == given.artifact_id:
                    return each
        raise faults.NothingHere(f"There is no artifact '{given.artifact_id[:64]}'", issue="no such artifact")

    async def set_push(self, given: params.SetPush, visit: Visit) -> dict[str, Any]:
        return {"config": await self.set_own_push(given, visit)}

    async def set_own_push(self, given: params.SetPush, visit: Visit) -> params.PushConfig:
        job = await self._tasks.find(visit.principal, given.task_id)
        return await self._push.set(visit.principal, job, given.config)

    async def get_push(self, given: params.TaskArgument, visit: Visit) -> dict[str, Any]:
        return {"config": await self.get_own_push(given, visit)}

    async def get_own_push(self, given: params.TaskArgument, visit: Visit) -> params.PushConfig:
        job = await self._tasks.find(visit.principal, given.task_id)
        return await self._push.get(job)

    async def open_stream(self, query: params.StreamQuery, visit: Visit) -> Stream:
        """Of the caller's latest message to that agent. Raises JobNotFound."""
        job = await self._latest(query, visit.principal)
        return Stream(frames=self.frames(visit.principal, job.job_id, visit.after or 0))

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

    async def frames(self, principal: Principal, job_id: str, after: int) -> AsyncGenerator[bytes]:
        """Words as text parts, every change as a task; then the answer, if it did not come in words, and the task.

        At the end stands `close`, without which the client would come back for ever. A reader
        may be slow: nothing is held here but what it is just being sent.
        """
        has_spoken = False
        async with aclosing(self._desk.events(principal, job_id, after, past_questions=True)) as lines:
            async for line in lines:
                kind, data = line.event.kind, line.event.data
                if kind == "token":
                    has_spoken = True
                    yield frame(None, line.number, _encode(views.words(str(data.get("text", "")))))
                elif kind == "status" and data.get("state") not in ENDED:
                    state = data.get("state", "running")  # an agent's own line says no more than that
                    yield frame(None, line.number, await self._update(principal, job_id, state))
        for part in await self._answer(principal, job_id, has_spoken):
            yield frame(None, None, part)
        yield frame(None, None, await self._update(principal, job_id, None))
        yield CLOSE

    async def _answer(self, principal: Principal, job_id: str, has_spoken: bool) -> Sequence[bytes]:
        result = (await self._desk.get(principal, job_id)).result
        parts = () if result is None else parts_of_result(result)
        return [_encode(views.part_of(part)) for part in parts if not (has_spoken and part.kind == "text")]

    async def _update(self, principal: Principal, job_id: str, state: JobState | None) -> bytes:
        """The task as it is, or as it was in a state before its end."""
        job = await self._desk.get(principal, job_id)
        if state is not None:
            job = msgspec.structs.replace(job, state=state, result=None, error=None)
        return _encode(views.update(views.task_of(job)))


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
