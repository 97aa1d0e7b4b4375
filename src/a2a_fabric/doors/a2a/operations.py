"""Every operation of the A2A protocol, once: parameters of any dialect in, the rendered reply out.

JSON-RPC, HTTP+JSON and gRPC differ only in where the parameters are. `A2ADoorState` is what they share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentNotFound
from a2a_fabric.core.job import Job
from a2a_fabric.core.node_limits import build_limit
from a2a_fabric.core.propagation import Trace
from a2a_fabric.doors.a2a.cards import CardCache
from a2a_fabric.doors.a2a.errors import A2AProtocolError, invalid_params_error
from a2a_fabric.doors.a2a.push import A2APushConfigs
from a2a_fabric.doors.a2a.requests import (
    EXTENSION_HEADERS,
    SUPPORTED_VERSIONS,
    A2ARequestContext,
    A2ATaskParams,
    ExtendedCardParams,
    ExtensionNegotiation,
    ListTasksParams,
    PushConfigParams,
    UserMessage,
    parse_params,
    parse_push_config,
    parse_user_message,
    take_credentials,
)
from a2a_fabric.doors.a2a.settings import A2ADoorSettings
from a2a_fabric.doors.a2a.task_list import TaskListing
from a2a_fabric.doors.a2a.tasks import A2ATasks, DirectReplies
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.edge import AnonymousPolicy, RequestHead, base_url_for
from a2a_fabric.gateway import Gateway
from a2a_fabric.identity.resolver import Credentials, MessageCredential
from a2a_fabric.protocols.a2a.models import A2AMessage, A2AStreamEvent, A2ATask, A2AVersion
from a2a_fabric.protocols.a2a.render import RENDERERS

JsonObject = dict[str, Any]
StreamEvents = AsyncGenerator[A2AStreamEvent]
A2AOperation = Callable[[JsonObject, A2ARequestContext], Awaitable[Any]]
A2AStreamingOperation = Callable[[JsonObject, A2ARequestContext], Awaitable[StreamEvents]]


async def _stream_message(message: A2AMessage) -> StreamEvents:
    yield A2AStreamEvent(update=message)


class A2AOperations(msgspec.Struct, frozen=True, kw_only=True):
    gateway: Gateway
    tasks: A2ATasks
    direct_replies: DirectReplies
    task_listing: TaskListing
    cards: CardCache
    push_configs: A2APushConfigs
    add_credentials: Callable[[Principal, Iterable[MessageCredential]], Awaitable[Principal]]

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

    async def send_message(self, raw_params: JsonObject, context: A2ARequestContext) -> JsonObject:
        reply = await self._answer_message(*await self._read_message(raw_params, context))
        return RENDERERS[context.dialect].render_response(reply)

    async def _answer_message(self, user_message: UserMessage, context: A2ARequestContext) -> A2ATask | A2AMessage:
        if context.agent is None and (answer := await self.tasks.answer_switch(user_message, context)) is not None:
            return answer
        if self.direct_replies.accepts(user_message):
            return await self.direct_replies.answer(user_message, context)
        job = await self._start_job(user_message, context, waits=user_message.is_blocking)
        return await self.tasks.render_outcome(job, user_message, context)

    async def send_streaming_message(self, raw_params: JsonObject, context: A2ARequestContext) -> StreamEvents:
        user_message, context = await self._read_message(raw_params, context)
        if context.agent is None and (answer := await self.tasks.answer_switch(user_message, context)) is not None:
            return _stream_message(answer)
        job = await self._start_job(user_message, context)
        return self.tasks.stream_updates(job, context, None, user_message.history_length)

    async def _read_message(
        self, raw_params: JsonObject, context: A2ARequestContext
    ) -> tuple[UserMessage, A2ARequestContext]:
        """The message, and the context with its agent and with the caller that the message names."""
        params, credentials = take_credentials(raw_params)
        user_message = parse_user_message(params, context.dialect)
        if credentials:
            context = replace(context, principal=await self.add_credentials(context.principal, credentials))
            if context.agent is not None:
                context = self.attach_agent(context.agent.agent_id, context)
        return user_message, await self.await_skills(self._resolve_tenant(context, user_message.tenant))

    async def _start_job(self, user_message: UserMessage, context: A2ARequestContext, *, waits: bool = False) -> Job:
        """The job of a message, with the push configuration that came with it."""
        if user_message.push is None:
            return await self.tasks.start(user_message, context, waits=waits)
        await self.push_configs.check(user_message.push, context.principal)
        job = await self.tasks.start(user_message, context)
        config = replace(user_message.push, task_id=job.job_id)
        await self.push_configs.set_from_message(
            config, context.principal, context.version, job.events if user_message.task_id else 0
        )
        return job

    async def subscribe_to_task(self, raw_params: JsonObject, context: A2ARequestContext) -> StreamEvents:
        params = parse_params(raw_params, A2ATaskParams)
        return await self.tasks.subscribe(params.id, self._resolve_tenant(context, params.tenant))

    async def get_task(self, raw_params: JsonObject, context: A2ARequestContext) -> JsonObject:
        params = parse_params(raw_params, A2ATaskParams)
        task = await self.tasks.get(params.id, self._resolve_tenant(context, params.tenant), params.history_length)
        return RENDERERS[context.dialect].render_bare(task)

    async def cancel_task(self, raw_params: JsonObject, context: A2ARequestContext) -> JsonObject:
        params = parse_params(raw_params, A2ATaskParams)
        task = await self.tasks.cancel(params.id, self._resolve_tenant(context, params.tenant))
        return RENDERERS[context.dialect].render_bare(task)

    async def list_tasks(self, raw_params: JsonObject, context: A2ARequestContext) -> JsonObject:
        if context.dialect != "1.0":
            raise A2AProtocolError("METHOD_NOT_FOUND", "A2A 0.3 has no method that lists tasks; use A2A 1.0")
        params = parse_params(raw_params, ListTasksParams)
        page = await self.task_listing.load_page(params, self._resolve_tenant(context, params.tenant))
        tasks = [RENDERERS["1.0"].render_bare(task) for task in page.tasks]
        if params.include_artifacts:
            tasks = [{"artifacts": [], **task} for task in tasks]
        return {"tasks": tasks, "nextPageToken": page.token, "pageSize": page.size, "totalSize": page.total}

    async def create_push_config(self, raw_params: JsonObject, context: A2ARequestContext) -> JsonObject:
        self.push_configs.check_supported()
        config = parse_push_config(raw_params, context.dialect)
        context = self._resolve_tenant(context, raw_params.get("tenant"))
        job = await self.tasks.find(config.task_id, context)
        config = await self.push_configs.set(config, context.principal, context.version, job)
        return RENDERERS[context.dialect].render_push_config(config)

    async def get_push_config(self, raw_params: JsonObject, context: A2ARequestContext) -> JsonObject:
        task_id, config_id = await self._find_push_target(raw_params, context)
        return RENDERERS[context.dialect].render_push_config(await self.push_configs.get(task_id, config_id))

    async def list_push_configs(self, raw_params: JsonObject, context: A2ARequestContext) -> Any:
        task_id, _ = await self._find_push_target(raw_params, context)
        render = RENDERERS[context.dialect].render_push_config
        configs = [render(each) for each in await self.push_configs.list_all(task_id)]
        return configs if context.dialect == "0.3" else {"configs": configs, "nextPageToken": ""}

    async def delete_push_config(self, raw_params: JsonObject, context: A2ARequestContext) -> None:
        task_id, config_id = await self._find_push_target(raw_params, context)
        await self.push_configs.delete(task_id, config_id)

    async def _find_push_target(self, raw_params: JsonObject, context: A2ARequestContext) -> tuple[str, str | None]:
        """The ids of the caller's task and of the configuration. In 0.3 the task's id is `id`."""
        params = parse_params(raw_params, PushConfigParams)
        is_0_3 = context.dialect == "0.3"
        task_id = params.id if is_0_3 and params.task_id is None else params.task_id
        config_id = params.push_notification_config_id if is_0_3 else params.id
        if not task_id:
            raise invalid_params_error("Invalid params: `taskId` is missing", "taskId")
        self.push_configs.check_supported()
        await self.tasks.find(task_id, self._resolve_tenant(context, params.tenant))
        return task_id, config_id

    async def get_extended_card(self, raw_params: JsonObject, context: A2ARequestContext) -> JsonObject:
        """The card for a caller with credentials: everything that the caller may see."""
        tenant = parse_params(raw_params, ExtendedCardParams).tenant
        context = await self.await_skills(self._resolve_tenant(context, tenant))
        return await self.cards.build_extended_card(context)

    def _resolve_tenant(self, context: A2ARequestContext, tenant: str | None) -> A2ARequestContext:
        """At the gateway's address a tenant names an agent; at an agent's address it can only be that agent."""
        if not tenant or not isinstance(tenant, str):
            return context
        if context.agent is None:
            return self.attach_agent(tenant, context)
        if tenant != context.agent.agent_id:
            raise AgentNotFound(tenant)
        return context

    async def await_skills(self, context: A2ARequestContext) -> A2ARequestContext:
        """The context once its agent (for the gateway, each agent) was asked for its skills; soon, in any case."""
        pending, agent = self.gateway.registry.pending_descriptions, context.agent
        if not pending.has_any or (agent is not None and not pending.includes(agent.agent_id)):
            return context
        await pending.wait()
        return context if agent is None else self.attach_agent(agent.agent_id, context)

    def attach_agent(self, agent_id: str, context: A2ARequestContext) -> A2ARequestContext:
        """Raises AgentNotFound."""
        agent = self.gateway.registry.find_agent_for(context.principal, agent_id)
        context.extensions.activate(agent)
        return replace(context, agent=agent)


class A2ADoorState:
    """What all requests of the door share: settings, operations, authentication, stream limits."""

    def __init__(self, context: DoorContext, operations: A2AOperations, settings: A2ADoorSettings) -> None:
        self.context = context
        self.operations = operations
        self.settings = settings
        self.plain_operations = operations.list_plain_operations()
        self.streaming_operations = operations.list_streaming_operations()
        self.body_limit = context.body_limit.at_least(settings.body_bytes)
        self.versions: tuple[A2AVersion, ...] = SUPPORTED_VERSIONS if settings.version_0_3 else ("1.0",)
        self._local_policy = AnonymousPolicy(context, "local")
        self._remote_policy = AnonymousPolicy(context, "public" if settings.public_cards else None)
        self.stream_shares = build_limit(
            context.counts, "open A2A streams", settings.max_streams, context.caller_share, retry_after=5.0
        )

    def build_context(
        self, scope: Any, head: RequestHead, agent_id: str | None, trace: Trace, principal: Principal | None = None
    ) -> A2ARequestContext:
        """`principal` is the caller if it was identified before. Raises FabricError if the caller is refused or the
        agent is not found.
        """
        # The extensions header has another name in each version.
        extensions = next((value for name in EXTENSION_HEADERS.values() if (value := head.get(name))), "")
        context = A2ARequestContext(
            principal=principal or self.context.identify(head.credentials),
            trace=trace,
            base_url=self._find_base_url(scope, head),
            last_event_id=head.last_event_id,
            delegation_chain=head.delegation_chain,
            extensions=ExtensionNegotiation(extensions),
        )
        return self._attach_agent(context, agent_id)

    def build_card_context(
        self, scope: Any, head: RequestHead, agent_id: str | None, trace: Trace
    ) -> A2ARequestContext:
        """A card may also be shown to an anonymous caller. Raises FabricError."""
        policy = self._local_policy if _is_local_client(scope, head.credentials) else self._remote_policy
        context = A2ARequestContext(
            principal=policy(head.credentials), trace=trace, base_url=self._find_base_url(scope, head)
        )
        return self._attach_agent(context, agent_id)

    def _attach_agent(self, context: A2ARequestContext, agent_id: str | None) -> A2ARequestContext:
        return context if agent_id is None else self.operations.attach_agent(agent_id, context)

    def _find_base_url(self, scope: Any, head: RequestHead) -> str:
        """The base URL of this caller's HTTP request; empty for a gRPC request without a configured public URL."""
        public_url = self.context.public_url
        return base_url_for(public_url, scope, head) if public_url is not None or "scheme" in scope else ""

    @contextmanager
    def hold_stream(self, context: A2ARequestContext) -> Iterator[None]:
        """Count a stream against the caller's share before its task starts. Raises RateLimited."""
        self.context.streams.check(context.principal.principal_id)
        with self.stream_shares.hold(context.principal.principal_id):
            yield


def _is_local_client(scope: Any, credentials: Credentials) -> bool:
    """Whether the client is a program on this machine: not a proxy, and not a web page of another site."""
    client = scope.get("client")
    try:
        return client is not None and ip_address(client[0]).is_loopback and not credentials.is_from_elsewhere
    except ValueError:
        return False
