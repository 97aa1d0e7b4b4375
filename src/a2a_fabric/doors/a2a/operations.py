"""Every operation of the A2A protocol, once: parameters of any dialect in, the rendered reply out.

JSON-RPC, HTTP+JSON and gRPC differ only in where the parameters are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import AgentNotFound
from a2a_fabric.core.job import Job
from a2a_fabric.doors.a2a import parse
from a2a_fabric.doors.a2a.cards import CardCache
from a2a_fabric.doors.a2a.errors import A2AProtocolError, invalid_params_error
from a2a_fabric.doors.a2a.parse import A2ATaskParams, ExtendedCardParams, ListTasksParams, PushConfigParams, UserMessage
from a2a_fabric.doors.a2a.push import A2APushConfigs
from a2a_fabric.doors.a2a.request_context import A2ARequestContext
from a2a_fabric.doors.a2a.tasks import A2ATasks, DirectReplies, TaskListing
from a2a_fabric.gateway import Gateway
from a2a_fabric.protocols.a2a.models import A2AMessage, A2AStreamEvent, A2ATask
from a2a_fabric.protocols.a2a.parts import Dialect
from a2a_fabric.protocols.a2a.render import RENDERERS, DialectRenderer

JsonObject = dict[str, Any]
A2AOperation = Callable[[JsonObject, Dialect, A2ARequestContext], Awaitable[Any]]
A2AStreamingOperation = Callable[[JsonObject, Dialect, A2ARequestContext], Awaitable[AsyncGenerator[A2AStreamEvent]]]


@dataclass(frozen=True, kw_only=True)
class A2AOperations:
    """What JSON-RPC, HTTP+JSON and gRPC have in common."""

    gateway: Gateway
    tasks: A2ATasks
    direct_replies: DirectReplies
    task_listing: TaskListing
    cards: CardCache
    push_configs: A2APushConfigs

    def list_plain_operations(self) -> Mapping[str, A2AOperation]:
        """The operations with a single reply."""
        return {
            "SendMessage": self.send_message,
            "GetTask": self.get_task,
            "ListTasks": self.list_tasks,
            "CancelTask": self.cancel_task,
            "CreateTaskPushNotificationConfig": self.create_push_config,
            "GetTaskPushNotificationConfig": self.get_push_config,
            "ListTaskPushNotificationConfigs": self.list_push_configs,
            "DeleteTaskPushNotificationConfig": self.delete_push_config,
            "GetExtendedAgentCard": self.get_extended_card,
        }

    def list_streaming_operations(self) -> Mapping[str, A2AStreamingOperation]:
        return {"SendStreamingMessage": self.send_streaming_message, "SubscribeToTask": self.subscribe_to_task}

    async def answer_message(self, user_message: UserMessage, context: A2ARequestContext) -> A2ATask | A2AMessage:
        context = self._resolve_tenant(context, user_message.tenant)
        if self.direct_replies.accepts(user_message):
            return await self.direct_replies.answer(user_message, context)
        job = await self._start_job(user_message, context)
        return await self.tasks.render_outcome(job, user_message, context)

    async def stream_answer(
        self, user_message: UserMessage, context: A2ARequestContext
    ) -> AsyncGenerator[A2AStreamEvent]:
        context = self._resolve_tenant(context, user_message.tenant)
        job = await self._start_job(user_message, context)
        return self.tasks.stream_updates(job, context, None, user_message.history_length)

    async def _start_job(self, user_message: UserMessage, context: A2ARequestContext) -> Job:
        """The job of a message, with the push configuration that came with it."""
        if user_message.push is None:
            return await self.tasks.start(user_message, context)
        await self.push_configs.check(user_message.push, context.principal)
        job = await self.tasks.start(user_message, context)
        config = replace(user_message.push, task_id=job.job_id)
        await self.push_configs.set_from_message(
            config, context.principal, user_message.dialect, job.events if user_message.task_id else 0
        )
        return job

    async def send_message(self, raw_params: JsonObject, dialect: Dialect, context: A2ARequestContext) -> JsonObject:
        return RENDERERS[dialect].render_response(
            await self.answer_message(parse.parse_user_message(raw_params, dialect), context)
        )

    async def send_streaming_message(
        self, raw_params: JsonObject, dialect: Dialect, context: A2ARequestContext
    ) -> AsyncGenerator[A2AStreamEvent]:
        return await self.stream_answer(parse.parse_user_message(raw_params, dialect), context)

    async def subscribe_to_task(
        self, raw_params: JsonObject, dialect: Dialect, context: A2ARequestContext
    ) -> AsyncGenerator[A2AStreamEvent]:
        params = parse.parse_params(raw_params, A2ATaskParams)
        return await self.tasks.subscribe(params.id, self._resolve_tenant(context, params.tenant))

    async def get_task(self, raw_params: JsonObject, dialect: Dialect, context: A2ARequestContext) -> JsonObject:
        params = parse.parse_params(raw_params, A2ATaskParams)
        task = await self.tasks.get(params.id, self._resolve_tenant(context, params.tenant), params.history_length)
        return RENDERERS[dialect].render_bare(task)

    async def cancel_task(self, raw_params: JsonObject, dialect: Dialect, context: A2ARequestContext) -> JsonObject:
        params = parse.parse_params(raw_params, A2ATaskParams)
        return RENDERERS[dialect].render_bare(
            await self.tasks.cancel(params.id, self._resolve_tenant(context, params.tenant))
        )

    async def list_tasks(self, raw_params: JsonObject, dialect: Dialect, context: A2ARequestContext) -> JsonObject:
        if dialect != "1.0":
            raise A2AProtocolError("METHOD_NOT_FOUND", "A2A 0.3 has no method that lists tasks; use A2A 1.0")
        params = parse.parse_params(raw_params, ListTasksParams)
        page = await self.task_listing.load_page(params, self._resolve_tenant(context, params.tenant))
        renderer = RENDERERS[dialect]
        tasks = [
            _render_listed_task(task, renderer, with_artifacts=bool(params.include_artifacts)) for task in page.tasks
        ]
        return {"tasks": tasks, "nextPageToken": page.token, "pageSize": page.size, "totalSize": page.total}

    async def create_push_config(
        self, raw_params: JsonObject, dialect: Dialect, context: A2ARequestContext
    ) -> JsonObject:
        self.push_configs.check_supported()
        config = parse.parse_push_config(raw_params, dialect)
        context = self._resolve_tenant(context, raw_params.get("tenant"))
        job = await self.tasks.find(config.task_id, context)
        return RENDERERS[dialect].render_push_config(
            await self.push_configs.set(config, context.principal, dialect, job)
        )

    async def get_push_config(self, raw_params: JsonObject, dialect: Dialect, context: A2ARequestContext) -> JsonObject:
        task_id, config_id = await self._find_push_target(raw_params, dialect, context)
        return RENDERERS[dialect].render_push_config(await self.push_configs.get(task_id, config_id))

    async def list_push_configs(self, raw_params: JsonObject, dialect: Dialect, context: A2ARequestContext) -> Any:
        task_id, _ = await self._find_push_target(raw_params, dialect, context)
        configs = [RENDERERS[dialect].render_push_config(each) for each in await self.push_configs.list_all(task_id)]
        return configs if dialect == "0.3" else {"configs": configs, "nextPageToken": ""}

    async def delete_push_config(self, raw_params: JsonObject, dialect: Dialect, context: A2ARequestContext) -> None:
        task_id, config_id = await self._find_push_target(raw_params, dialect, context)
        await self.push_configs.delete(task_id, config_id)

    async def _find_push_target(
        self, raw_params: JsonObject, dialect: Dialect, context: A2ARequestContext
    ) -> tuple[str, str | None]:
        """The ids of the caller's task and of the configuration. In 0.3 the task's id is `id`."""
        params = parse.parse_params(raw_params, PushConfigParams)
        is_0_3 = dialect == "0.3"
        task_id = params.id if is_0_3 and params.task_id is None else params.task_id
        config_id = params.push_notification_config_id if is_0_3 else params.id
        if not task_id:
            raise invalid_params_error("Invalid params: `taskId` is missing", "taskId")
        self.push_configs.check_supported()
        await self.tasks.find(task_id, self._resolve_tenant(context, params.tenant))
        return task_id, config_id

    async def get_extended_card(
        self, raw_params: JsonObject, dialect: Dialect, context: A2ARequestContext
    ) -> JsonObject:
        """The card for a caller with credentials: everything that the caller may see."""
        context = self._resolve_tenant(context, parse.parse_params(raw_params, ExtendedCardParams).tenant)
        return self.cards.build_extended_card(context)

    def _resolve_tenant(self, context: A2ARequestContext, tenant: str | None) -> A2ARequestContext:
        """At the gateway's address a tenant names an agent; at an agent's address it can only be that agent."""
        if not tenant or not isinstance(tenant, str):
            return context
        if context.agent is None:
            return self.attach_agent(tenant, context)
        if tenant != context.agent.agent_id:
            raise AgentNotFound(tenant)
        return context

    def attach_agent(self, agent_id: str, context: A2ARequestContext) -> A2ARequestContext:
        """Raises AgentNotFound."""
        agent = self._find_agent(agent_id, context)
        context.extensions.activate(agent)
        return replace(context, agent=agent)

    def _find_agent(self, agent_id: str, context: A2ARequestContext) -> Manifest:
        """Raises AgentNotFound."""
        return self.gateway.registry.find_agent_for(context.principal, agent_id)


def _render_listed_task(task: A2ATask, renderer: DialectRenderer, *, with_artifacts: bool) -> JsonObject:
    body = renderer.render_bare(task)
    return {**body, "artifacts": body.get("artifacts", [])} if with_artifacts else body
