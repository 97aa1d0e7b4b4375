"""Every operation of the protocol, once: from parameters in any dialect to what is to be written.

JSON-RPC, HTTP+JSON and gRPC differ in where the parameters stand, and in nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from a2a_fabric.a2a_wire.parts import Dialect
from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import AgentNotFound
from a2a_fabric.core.job import Job
from a2a_fabric.doors.a2a import incoming
from a2a_fabric.doors.a2a.cards import Cards
from a2a_fabric.doors.a2a.faults import Fault, invalid
from a2a_fabric.doors.a2a.incoming import Asking, CardArgument, ListParams, PushArgument, TaskArgument
from a2a_fabric.doors.a2a.listing import Listing
from a2a_fabric.doors.a2a.push import PushDesk
from a2a_fabric.doors.a2a.quick import Quick
from a2a_fabric.doors.a2a.shapes import Message, Task, Told
from a2a_fabric.doors.a2a.tasks import Tasks
from a2a_fabric.doors.a2a.visit import Visit
from a2a_fabric.doors.a2a.writing import WRITERS, Writer
from a2a_fabric.gateway import Gateway

Given = dict[str, Any]
Operation = Callable[[Given, Dialect, Visit], Awaitable[Any]]
Streaming = Callable[[Given, Dialect, Visit], Awaitable[AsyncGenerator[Told]]]


@dataclass(frozen=True, kw_only=True)
class Operations:
    """The seam between bindings and what they bind."""

    gateway: Gateway
    tasks: Tasks
    quick: Quick
    listing: Listing
    cards: Cards
    push: PushDesk

    def by_name(self) -> Mapping[str, Operation]:
        """What is answered in one piece."""
        return {
            "SendMessage": self.send,
            "GetTask": self.get,
            "ListTasks": self.list,
            "CancelTask": self.cancel,
            "CreateTaskPushNotificationConfig": self.set_push,
            "GetTaskPushNotificationConfig": self.get_push,
            "ListTaskPushNotificationConfigs": self.list_push,
            "DeleteTaskPushNotificationConfig": self.delete_push,
            "GetExtendedAgentCard": self.card,
        }

    def streaming(self) -> Mapping[str, Streaming]:
        return {"SendStreamingMessage": self.stream, "SubscribeToTask": self.subscribe}

    async def said(self, asking: Asking, visit: Visit) -> Task | Message:
        """The answer to a message."""
        visit = self._at(visit, asking.tenant)
        if self.quick.takes(asking):
            return await self.quick.answer(asking, visit)
        job = await self._begun(asking, visit)
        return await self.tasks.finished(job, asking, visit)

    async def events(self, asking: Asking, visit: Visit) -> AsyncGenerator[Told]:
        visit = self._at(visit, asking.tenant)
        job = await self._begun(asking, visit)
        return self.tasks.told(job, visit, None, asking.history_length)

    async def _begun(self, asking: Asking, visit: Visit) -> Job:
        """With the push notifications that it is to send."""
        if asking.push is None:
            return await self.tasks.begun(asking, visit)
        await self.push.check(asking.push, visit.principal)
        job = await self.tasks.begun(asking, visit)
        config = replace(asking.push, task_id=job.job_id)
        await self.push.set_with(config, visit.principal, asking.dialect, job.events if asking.task_id else 0)
        return job

    async def send(self, given: Given, dialect: Dialect, visit: Visit) -> Given:
        return WRITERS[dialect].said(await self.said(incoming.read_asking(given, dialect), visit))

    async def stream(self, given: Given, dialect: Dialect, visit: Visit) -> AsyncGenerator[Told]:
        return await self.events(incoming.read_asking(given, dialect), visit)

    async def subscribe(self, given: Given, dialect: Dialect, visit: Visit) -> AsyncGenerator[Told]:
        params = incoming.read(given, TaskArgument)
        return await self.tasks.subscribe(params.id, self._at(visit, params.tenant))

    async def get(self, given: Given, dialect: Dialect, visit: Visit) -> Given:
        params = incoming.read(given, TaskArgument)
        task = await self.tasks.get(params.id, self._at(visit, params.tenant), params.history_length)
        return WRITERS[dialect].bare(task)

    async def cancel(self, given: Given, dialect: Dialect, visit: Visit) -> Given:
        params = incoming.read(given, TaskArgument)
        return WRITERS[dialect].bare(await self.tasks.cancel(params.id, self._at(visit, params.tenant)))

    async def list(self, given: Given, dialect: Dialect, visit: Visit) -> Given:
        if dialect != "1.0":
            raise Fault("METHOD_NOT_FOUND", "Version 0.3 lists no tasks")
        params = incoming.read(given, ListParams)
        page = await self.listing.page(params, self._at(visit, params.tenant))
        writer = WRITERS[dialect]
        tasks = [_listed(task, writer, with_artifacts=bool(params.include_artifacts)) for task in page.tasks]
        return {"tasks": tasks, "nextPageToken": page.token, "pageSize": page.size, "totalSize": page.total}

    async def set_push(self, given: Given, dialect: Dialect, visit: Visit) -> Given:
        self.push.check_supported()
        config = incoming.read_push(given, dialect)
        visit = self._at(visit, given.get("tenant"))
        job = await self.tasks.find(config.task_id, visit)
        return WRITERS[dialect].push(await self.push.set(config, visit.principal, dialect, job))

    async def get_push(self, given: Given, dialect: Dialect, visit: Visit) -> Given:
        task_id, config_id = await self._which(given, dialect, visit)
        return WRITERS[dialect].push(await self.push.get(task_id, config_id))

    async def list_push(self, given: Given, dialect: Dialect, visit: Visit) -> Any:
        task_id, _ = await self._which(given, dialect, visit)
        configs = [WRITERS[dialect].push(each) for each in await self.push.all(task_id)]
        return configs if dialect == "0.3" else {"configs": configs, "nextPageToken": ""}

    async def delete_push(self, given: Given, dialect: Dialect, visit: Visit) -> None:
        task_id, config_id = await self._which(given, dialect, visit)
        await self.push.delete(task_id, config_id)

    async def _which(self, given: Given, dialect: Dialect, visit: Visit) -> tuple[str, str | None]:
        """The task, which is the caller's, and the config. 0.3 calls the task's id `id`."""
        params = incoming.read(given, PushArgument)
        is_old = dialect == "0.3"
        task_id = params.id if is_old and params.task_id is None else params.task_id
        config_id = params.push_notification_config_id if is_old else params.id
        if not task_id:
            raise invalid("Invalid params: `taskId` is missing", "taskId")
        self.push.check_supported()
        await self.tasks.find(task_id, self._at(visit, params.tenant))
        return task_id, config_id

    async def card(self, given: Given, dialect: Dialect, visit: Visit) -> Given:
        """Of who asks with credentials, everything that they may see."""
        visit = self._at(visit, incoming.read(given, CardArgument).tenant)
        return self.cards.extended(visit)

    def _at(self, visit: Visit, tenant: str | None) -> Visit:
        """At the gateway's address a tenant is an agent of ours; at an agent's own it can only be itself."""
        if not tenant or not isinstance(tenant, str):
            return visit
        if visit.agent is None:
            return self.meeting(tenant, visit)
        if tenant != visit.agent.agent_id:
            raise AgentNotFound(tenant)
        return visit

    def meeting(self, agent_id: str, visit: Visit) -> Visit:
        """Raises AgentNotFound."""
        agent = self._agent(agent_id, visit)
        visit.extensions.meet(agent)
        return replace(visit, agent=agent)

    def _agent(self, agent_id: str, visit: Visit) -> Manifest:
        """Raises AgentNotFound."""
        return self.gateway.registry.agent_for(visit.principal, agent_id)


def _listed(task: Task, writer: Writer, *, with_artifacts: bool) -> Given:
    body = writer.bare(task)
    return {**body, "artifacts": body.get("artifacts", [])} if with_artifacts else body
