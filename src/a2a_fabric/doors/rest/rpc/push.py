"""Push configurations of the RPC client, kept as job subscriptions, which survive a restart of the node.

Each notification is an internal job: signed if the node has a secret, retried, and never sent to private addresses."""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.job import Job, JobEvent, NewJob, derive_job_id
from a2a_fabric.core.limits import FairLimit
from a2a_fabric.core.trace import new_trace
from a2a_fabric.doors.rest.rpc import task_view
from a2a_fabric.doors.rest.rpc.errors import NoPushConfig
from a2a_fabric.doors.rest.rpc.params import RpcPushConfig
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.jobs.subscriptions import JobSubscription, JobSubscriptions
from a2a_fabric.jobs.webhooks import new_delivery

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

    async def set(self, principal: Principal, job: Job, config: RpcPushConfig) -> RpcPushConfig:
        """Push events from now on. Raises BadInput for an endpoint that is not allowed, RateLimited for too many."""
        if config.enabled:
            await self._check(config)
        subscription = JobSubscription(
            job_id=job.job_id, principal=principal, terms=msgspec.to_builtins(config), after=job.events
        )  # fmt: skip
        await self.subscriptions.add(subscription, is_ended=job.has_ended)
        return config

    async def _check(self, config: RpcPushConfig) -> None:
        if not config.endpoint:
            raise BadInput("config.endpoint is required", field="config.endpoint", issue="required")
        if config.auth_token and not (config.auth_token.isascii() and config.auth_token.isprintable()):
            raise BadInput(
                "config.authToken cannot be sent in a header. Use printable ASCII.",
                field="config.authToken",
                issue="not printable",
            )
        await self._addresses.check(config.endpoint, "config.endpoint")

    async def get(self, job: Job) -> RpcPushConfig:
        """Raises NoPushConfig."""
        subscription = await self.subscriptions.get(job.job_id)
        if subscription is None:
            raise NoPushConfig(f"Task '{job.job_id}' has no push config", issue="no push config")
        return msgspec.convert(subscription.terms, RpcPushConfig)


def _build_delivery(subscription: JobSubscription, job_event: JobEvent, job: Job) -> NewJob | None:
    config = msgspec.convert(subscription.terms, RpcPushConfig)
    name = _find_event_name(job_event)
    if name is None or not _is_subscribed(name, config):
        return None
    body = {"type": name, "taskId": job.job_id, "task": task_view.render_rpc_task(job)}
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


def _is_subscribed(name: str, config: RpcPushConfig) -> bool:
    if not config.enabled or not config.endpoint:
        return False
    return not config.events or not {name}.union(_ALIASES.get(name, _STATUS_ALIASES)).isdisjoint(config.events)
