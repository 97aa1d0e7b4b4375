"""The RPC methods by name: parameters and handler.

Push configurations are kept as job subscriptions, which survive a restart of the node. Each notification is an internal
job: signed if the node has a secret, retried, and never sent to private addresses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.errors import BadInput, FabricError, JobNotFound
from a2a_fabric.core.job import (
    FINAL_STATES,
    Job,
    JobEvent,
    JobState,
    NewJob,
    derive_job_id,
    states_from_word,
    translate_state,
)
from a2a_fabric.core.limits import FairLimit
from a2a_fabric.core.message import Party
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.core.result import Part, format_timestamp
from a2a_fabric.core.tasks import iterate_in_slices
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.edge import EventStream, encode_event
from a2a_fabric.doors.rest import models
from a2a_fabric.doors.rest.agents import RestAgents
from a2a_fabric.doors.rest.http import ResourceNotFound, RestCycle
from a2a_fabric.doors.rest.models import parts_from_wire
from a2a_fabric.doors.rest.rpc import models as rpc_models
from a2a_fabric.doors.rest.tasks import RestTasks, TaskQuery
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.jobs.subscriptions import JobSubscription, JobSubscriptions
from a2a_fabric.jobs.webhooks import new_delivery
from a2a_fabric.messages.delivery import parts_from_result
from a2a_fabric.messages.messages import MessageDraft
from a2a_fabric.operations.pages import MAX_ITEMS, decode_cursor, encode_cursor

_CREATED, _UPDATED, _INPUT_REQUIRED, _ARTIFACT = "taskCreated", "taskUpdated", "taskInputRequired", "artifactAdded"
_NAMES_BY_STATE = {
    "completed": "taskCompleted",
    "failed": "taskFailed",
    "timeout": "taskFailed",
    "rejected": "taskFailed",
    "cancelled": "taskCanceled",
    "input_required": _INPUT_REQUIRED,
}
_ALIASES = {_ARTIFACT: frozenset({"taskArtifactUpdate"})}
_STATUS_ALIASES = frozenset({"taskStatusUpdate", _UPDATED})


class RpcPushConfigs:
    def __init__(self, jobs: Jobs, shares: FairLimit) -> None:
        self.subscriptions = JobSubscriptions(jobs, "rest-push", _build_delivery, shares)
        self._addresses = jobs.webhook_url_policy

    async def set(self, principal: Principal, job: Job, config: rpc_models.RpcPushConfig) -> rpc_models.RpcPushConfig:
        """Push events from now on. Raises BadInput for an endpoint that is not allowed, RateLimited for too many."""
        if config.enabled:
            await self._check(config)
        subscription = JobSubscription(
            job_id=job.job_id, principal=principal, terms=msgspec.to_builtins(config), after=job.events
        )  # fmt: skip
        await self.subscriptions.add(subscription, is_ended=job.has_ended)
        return config

    async def _check(self, config: rpc_models.RpcPushConfig) -> None:
        if not config.endpoint:
            raise BadInput("config.endpoint is required", field="config.endpoint", issue="required")
        if config.auth_token and not (config.auth_token.isascii() and config.auth_token.isprintable()):
            raise BadInput(
                "config.authToken cannot be sent in a header. Use printable ASCII.",
                field="config.authToken",
                issue="not printable",
            )
        await self._addresses.check(config.endpoint, "config.endpoint")

    async def get(self, job: Job) -> rpc_models.RpcPushConfig:
        """Raises NoPushConfig."""
        subscription = await self.subscriptions.get(job.job_id)
        if subscription is None:
            raise rpc_models.NoPushConfig(f"Task '{job.job_id}' has no push config", issue="no push config")
        return msgspec.convert(subscription.terms, rpc_models.RpcPushConfig)


def _build_delivery(subscription: JobSubscription, job_event: JobEvent, job: Job) -> NewJob | None:
    config = msgspec.convert(subscription.terms, rpc_models.RpcPushConfig)
    name = _find_event_name(job_event)
    if name is None or not _is_subscribed(name, config):
        return None
    body = {"type": name, "taskId": job.job_id, "task": rpc_models.render_rpc_task(job)}
    arguments: dict[str, Any] = {
        "url": config.endpoint,
        "body": msgspec.json.encode(body).decode(),
        "headers": {"Authorization": f"Bearer {config.auth_token}"} if config.auth_token else {},
    }
    delivery_id = derive_job_id(job.job_id, str(config.endpoint), str(job_event.number), prefix="push")
    return new_delivery(delivery_id, new_trace(), arguments)


def _find_event_name(job_event: JobEvent) -> str | None:
    """None for an event that this client does not know."""
    kind, data = job_event.event.kind, job_event.event.data
    if kind == "input_required":
        return _INPUT_REQUIRED
    if kind == "artifact":
        return _ARTIFACT
    if kind != "status":
        return None
    if job_event.number == 1:
        return _CREATED
    return _NAMES_BY_STATE.get(data.get("state", ""), _UPDATED)


def _is_subscribed(name: str, config: rpc_models.RpcPushConfig) -> bool:
    if not config.enabled or not config.endpoint:
        return False
    return not config.events or not {name}.union(_ALIASES.get(name, _STATUS_ALIASES)).isdisjoint(config.events)


_MAX_REMEMBERED_STREAMS = 10_000
_HEARTBEAT_TYPE = "heartbeat"
_ARTIFACT_PREFIX = "artifact:"  # before the id of an uploaded artifact
_EXECUTE_TIMEOUT = 4.0  # seconds; the client gives up after five
CLOSE_FRAME = encode_event("close", None, b"{}")
HEARTBEAT_FRAME = encode_event(None, None, b'{"type":"heartbeat"}')
_encode = msgspec.json.Encoder().encode

RpcHandler = Callable[[Any, RestCycle], Awaitable[Any]]


class RpcMethod(NamedTuple):
    params: type[msgspec.Struct]
    handler: RpcHandler


class RpcMethods:
    def __init__(self, context: DoorContext, agents: RestAgents, tasks: RestTasks) -> None:
        self._jobs = context.jobs
        self._messages = context.messages
        self._agents = agents
        self._registry = context.gateway.registry
        self._tasks = tasks
        self._push = RpcPushConfigs(context.jobs, context.followed_jobs)
        self._latest_streamed: OrderedDict[tuple[str, str], str] = OrderedDict()  # by caller and agent: the latest job
        self.table: dict[str, RpcMethod] = {
            "discover": RpcMethod(rpc_models.RpcDiscoverParams, self.discover),
            "sendMessage": RpcMethod(rpc_models.RpcSendParams, self.send_message),
            "streamMessage": RpcMethod(rpc_models.RpcSendParams, self.stream_message),
            "getTaskStatus": RpcMethod(rpc_models.RpcTaskParams, self.get_task_status),
            "getTask": RpcMethod(rpc_models.RpcTaskParams, self.get_task),
            "cancelTask": RpcMethod(rpc_models.RpcTaskParams, self.cancel_task),
            "listTasks": RpcMethod(rpc_models.RpcListTasksParams, self.list_tasks),
            "updateTaskStatus": RpcMethod(rpc_models.RpcUpdateStatusParams, self.update_task_status),
            "executeTask": RpcMethod(rpc_models.RpcExecuteParams, self.execute_task),
            "resubscribeTask": RpcMethod(rpc_models.RpcResubscribeParams, self.resubscribe_task),
            "uploadArtifact": RpcMethod(rpc_models.RpcUploadParams, self.upload_artifact),
            "downloadArtifact": RpcMethod(rpc_models.RpcArtifactParams, self.download_artifact),
            "setPushConfig": RpcMethod(rpc_models.RpcSetPushParams, self.set_push_config),
            "setPushNotificationConfig": RpcMethod(rpc_models.RpcSetPushParams, self.set_push_notification_config),
            "getPushConfig": RpcMethod(rpc_models.RpcTaskParams, self.get_push_config),
            "getPushNotificationConfig": RpcMethod(rpc_models.RpcTaskParams, self.get_push_notification_config),
        }

    @property
    def lifetime(self) -> AbstractAsyncContextManager[Any]:
        return self._push.subscriptions

    async def discover(self, arguments: rpc_models.RpcDiscoverParams, context: RestCycle) -> dict[str, Any]:
        after = None if arguments.cursor is None else decode_cursor(arguments.cursor)[0]
        manifests = await self._agents.list_visible(context.principal, arguments.capability, after)
        cards: list[models.AgentCard] = []
        async for part in iterate_in_slices(manifests[:MAX_ITEMS]):
            cards += [self._agents.build_card(manifest, context) for manifest in part]
        if len(manifests) <= MAX_ITEMS:
            return {"agents": cards}
        return {"agents": cards, "nextCursor": encode_cursor((manifests[MAX_ITEMS - 1].agent_id, 0))}

    async def send_message(self, arguments: rpc_models.RpcSendParams, context: RestCycle) -> str:
        """Returns the id of the task that delivers the message."""
        parts = [part for part in arguments.parts if part.type != _HEARTBEAT_TYPE]
        if not parts:
            raise BadInput("parts: the message has no content", field="parts", issue="required")
        draft = MessageDraft(
            recipient=Party(id=arguments.agent_id),
            parts=parts_from_wire(parts),
            conversation_id=arguments.context_id,
            capability=arguments.capability,
            delegation_chain=context.delegation_chain,
        )
        posted = await self._messages.post(context.principal, context.trace, draft)
        assert posted.job is not None  # noqa: S101  # a message to an agent has one
        return posted.job.job_id

    async def stream_message(self, arguments: rpc_models.RpcSendParams, context: RestCycle) -> dict[str, Any]:
        """The client opens `/stream` next and names only the agent, so the task is remembered for it."""
        task_id = await self.send_message(arguments, context)
        key = owner_from_principal(context.principal), arguments.agent_id
        self._latest_streamed[key] = task_id
        self._latest_streamed.move_to_end(key)
        if len(self._latest_streamed) > _MAX_REMEMBERED_STREAMS:
            self._latest_streamed.popitem(last=False)
        return {"taskId": task_id}

    async def get_task_status(self, arguments: rpc_models.RpcTaskParams, context: RestCycle) -> dict[str, Any]:
        return {"task": await self.get_task(arguments, context)}

    async def get_task(self, arguments: rpc_models.RpcTaskParams, context: RestCycle) -> dict[str, Any]:
        return rpc_models.render_rpc_task(await self._tasks.find(context.principal, arguments.task_id))

    async def cancel_task(self, arguments: rpc_models.RpcTaskParams, context: RestCycle) -> dict[str, Any]:
        return rpc_models.render_rpc_task(await self._tasks.cancel_job(context.principal, arguments.task_id))

    async def list_tasks(self, arguments: rpc_models.RpcListTasksParams, context: RestCycle) -> dict[str, Any]:
        states = None if arguments.status is None else states_from_word(arguments.status, "rpc")
        if states == ():
            raise BadInput(
                f"status: '{arguments.status}' is not a status of a task", field="status", issue="no such status"
            )
        since = _parse_timestamp(arguments.since)
        query = TaskQuery(states=states, agent_id=arguments.agent_id, limit=arguments.limit)
        jobs, _ = await self._tasks.load_page(context.principal, query)
        return {"tasks": [rpc_models.render_rpc_task(job) for job in jobs if job.created_at >= since]}

    async def update_task_status(
        self, arguments: rpc_models.RpcUpdateStatusParams, context: RestCycle
    ) -> dict[str, Any]:
        """A caller may only cancel. The agent and the gateway set all other statuses."""
        target_status = arguments.status if isinstance(arguments.status, str) else arguments.status.to
        job = await self._tasks.find(context.principal, arguments.task_id)
        current_status = translate_state(job.state, "rpc")
        expected_status = None if isinstance(arguments.status, str) else arguments.status.from_
        if target_status == current_status and expected_status in (None, current_status):
            return rpc_models.render_rpc_task(job)
        if target_status != "canceled" or (expected_status is not None and expected_status != current_status):
            raise rpc_models.InvalidTaskState(
                f"A caller cannot change a task from {current_status} to {target_status[:32]}, only cancel it",
                status=current_status,
            )
        return await self.cancel_task(arguments, context)

    async def execute_task(
        self, arguments: rpc_models.RpcExecuteParams, context: RestCycle
    ) -> EventStream | dict[str, Any]:
        """Answers with the task's events if the client asks for events, else with the task when it ends or time is up.

        A task that the client received from here and sends again is continued.
        """
        job = await self._find_existing_job(arguments.task, context.principal) or await self._start_task(
            arguments.task, context
        )
        if (
            _asks_for_events(context)
            or context.head.last_event_id is not None
            or arguments.auth_token
            or arguments.last_event_id is not None
        ):
            return self._open_events(job, arguments.last_event_id, context)
        with suppress(FabricError):  # the task holds the error
            await self._jobs.result(context.principal, job.job_id, _EXECUTE_TIMEOUT)
        return rpc_models.render_rpc_task(await self._jobs.get(context.principal, job.job_id))

    async def _find_existing_job(self, task: rpc_models.RpcNewTask, principal: Principal) -> Job | None:
        """The job that this task was rendered from, if there is one."""
        if task.id is None or task.created_at is None:
            return None
        with suppress(JobNotFound):
            job = await self._tasks.find(principal, task.id)
            return job if format_timestamp(job.created_at) == task.created_at else None
        return None

    async def _start_task(self, task: rpc_models.RpcNewTask, context: RestCycle) -> Job:
        manifest = self._registry.find_agent_for(context.principal, task.agent_id)
        capability = task.name if task.name is not None and manifest.find_capability(task.name) is not None else None
        body = models.NewTask(
            agent_id=task.agent_id,
            id=task.id,
            input=task.input,
            parts=tuple(part for part in task.parts if part.type != _HEARTBEAT_TYPE),
            capability=capability,
            metadata=task.metadata,
            conversation_id=task.context_id or msgspec.UNSET,
        )
        return await self._tasks.start_job(body, context)

    async def resubscribe_task(
        self, arguments: rpc_models.RpcResubscribeParams, context: RestCycle
    ) -> EventStream | dict[str, Any]:
        """Without a request for events, the client gets the task, and executes it again to get the events."""
        job = await self._tasks.find(context.principal, arguments.task_id)
        if not _asks_for_events(context) and context.head.last_event_id is None and arguments.last_event_id is None:
            return rpc_models.render_rpc_task(job)
        return self._open_events(job, arguments.last_event_id, context)

    async def upload_artifact(self, arguments: rpc_models.RpcUploadParams, context: RestCycle) -> str:
        """Store the artifact as a private message of the caller. Raises Conflict if its id is used for another one."""
        part = Part(kind="json", data=msgspec.to_builtins(arguments.artifact))
        await self._messages.save_private(context.principal, _ARTIFACT_PREFIX + arguments.artifact.id, part)
        return arguments.artifact.id

    async def download_artifact(self, arguments: rpc_models.RpcArtifactParams, context: RestCycle) -> Any:
        """An artifact that the caller uploaded, or one from the output of its task."""
        uploaded = await self._messages.load_private(context.principal, _ARTIFACT_PREFIX + arguments.artifact_id)
        if uploaded is not None:
            return uploaded.data
        with suppress(JobNotFound):
            job = await self._tasks.find(context.principal, arguments.artifact_id.rpartition("/")[0])
            output = () if job.result is None else parts_from_result(job.result)
            for each in rpc_models.render_artifacts(job, output):
                if each["id"] == arguments.artifact_id:
                    return each
        raise ResourceNotFound(f"There is no artifact '{arguments.artifact_id[:64]}'", issue="no such artifact")

    async def set_push_config(self, arguments: rpc_models.RpcSetPushParams, context: RestCycle) -> dict[str, Any]:
        return {"config": await self.set_push_notification_config(arguments, context)}

    async def set_push_notification_config(
        self, arguments: rpc_models.RpcSetPushParams, context: RestCycle
    ) -> rpc_models.RpcPushConfig:
        job = await self._tasks.find(context.principal, arguments.task_id)
        return await self._push.set(context.principal, job, arguments.config)

    async def get_push_config(self, arguments: rpc_models.RpcTaskParams, context: RestCycle) -> dict[str, Any]:
        return {"config": await self.get_push_notification_config(arguments, context)}

    async def get_push_notification_config(
        self, arguments: rpc_models.RpcTaskParams, context: RestCycle
    ) -> rpc_models.RpcPushConfig:
        job = await self._tasks.find(context.principal, arguments.task_id)
        return await self._push.get(job)

    async def open_stream(self, query: rpc_models.RpcStreamQuery, context: RestCycle) -> EventStream:
        """The events of the named task, or of the caller's latest message to the named agent. Raises JobNotFound."""
        job = await self._find_latest_job(query, context.principal)
        return self._open_events(job, None, context)

    def _open_events(self, job: Job, last_event_id: str | int | None, context: RestCycle) -> EventStream:
        after = _choose_start_number(last_event_id, context)
        return EventStream(frames=self._stream_frames(context.principal, job, after), waits_for_news=after > 0)

    async def _find_latest_job(self, query: rpc_models.RpcStreamQuery, principal: Principal) -> Job:
        if query.task_id is not None:
            return await self._tasks.find(principal, query.task_id)
        if query.agent_id is None:
            raise BadInput("agentId is required", field="agentId", issue="required")
        job_id = self._latest_streamed.get((owner_from_principal(principal), query.agent_id))
        if job_id is not None:
            return await self._jobs.get(principal, job_id)
        page = await self._jobs.list(principal, agent_id=query.agent_id, limit=1)
        if not page.jobs:
            raise JobNotFound(f"of {query.agent_id}")
        return await self._jobs.get(principal, page.jobs[0].job_id)

    async def _stream_frames(self, principal: Principal, job: Job, after: int) -> AsyncGenerator[bytes]:
        """Tokens as text parts and each change as a task; at the end the answer, unless sent as tokens, and the task.

        The last frame is `close`, without which the client would reconnect for ever. Raises RateLimited.
        """
        with self._tasks.stream_shares.hold(principal.principal_id):
            async with aclosing(self._encode_events(principal, job, after)) as frames:
                async for frame in frames:
                    yield frame

    async def _encode_events(self, principal: Principal, job: Job, after: int) -> AsyncGenerator[bytes]:
        has_text, job_id = False, job.job_id
        async with aclosing(self._jobs.follow(job, after, past_questions=True)) as job_events:
            async for job_event in job_events:
                kind, data = job_event.event.kind, job_event.event.data
                if kind == "token":
                    has_text = True
                    yield encode_event(
                        None,
                        job_event.number,
                        _encode({"type": "text", "content": str(data.get("text", "")), "format": "plain"}),
                    )
                elif kind == "status" and data.get("state") not in FINAL_STATES:
                    state = data.get("state", "running")  # a status from the agent has no state
                    yield encode_event(None, job_event.number, await self._encode_update(principal, job_id, state))
        for part in await self._encode_answer(principal, job_id, has_text):
            yield encode_event(None, None, part)
        yield encode_event(None, None, await self._encode_update(principal, job_id, None))
        yield CLOSE_FRAME

    async def _encode_answer(self, principal: Principal, job_id: str, has_text: bool) -> Sequence[bytes]:
        result = (await self._jobs.get(principal, job_id)).result
        parts = () if result is None else parts_from_result(result)
        return [_encode(rpc_models.render_part(part)) for part in parts if not (has_text and part.kind == "text")]

    async def _encode_update(self, principal: Principal, job_id: str, state: JobState | None) -> bytes:
        """The task as it is now, or as it was in an earlier state."""
        job = await self._jobs.get(principal, job_id)
        if state is not None:
            job = msgspec.structs.replace(job, state=state, result=None, error=None)
        return _encode({"type": "taskUpdate", "task": rpc_models.render_rpc_task(job)})


def _asks_for_events(context: RestCycle) -> bool:
    """`*/*` does not ask for events here: the client sends it when it wants the task itself."""
    return "text/event-stream" in (context.head.get(b"accept") or "")


def _choose_start_number(last_event_id: str | int | None, context: RestCycle) -> int:
    if context.head.last_event_id is not None:
        return context.head.last_event_id
    text = "" if last_event_id is None else str(last_event_id)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def _parse_timestamp(value: str | float | None) -> float:
    """Raises BadInput."""
    if value is None:
        return 0.0
    if isinstance(value, int | float):
        return value / 1000
    try:
        return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError) as exc:
        raise BadInput(
            "since: not a time. Use ISO 8601 or milliseconds since 1970.", field="since", issue="not a time"
        ) from exc
