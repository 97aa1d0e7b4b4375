"""Push notification configurations of A2A tasks, kept as job subscriptions, which survive a restart of the node."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.job import FINAL_STATES, Job, JobEvent, NewJob, derive_job_id
from a2a_fabric.core.limits import FairLimit
from a2a_fabric.core.propagation import new_id, new_trace
from a2a_fabric.doors.a2a import task_view
from a2a_fabric.doors.a2a.errors import A2AProtocolError, invalid_params_error
from a2a_fabric.doors.a2a.task_updates import TaskUpdateBuilder
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.jobs.subscriptions import JobSubscription, JobSubscriptions
from a2a_fabric.jobs.webhooks import new_delivery
from a2a_fabric.protocols.a2a.models import A2APushConfig, A2AUpdate, A2AVersion, Dialect, TaskStatusUpdate
from a2a_fabric.protocols.a2a.render import RENDERERS

_SUBSCRIPTION_NAME = "a2a-push"
_TOKEN_HEADER = "X-A2A-Notification-Token"  # noqa: S105  # the name of a header


class _PushTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a job subscription stores of a configuration. The subscription has the configuration's id as its name."""

    config: A2APushConfig
    dialect: Dialect  # of the client's version: 0.3 has the same push bodies for all bindings


class A2APushConfigs:
    """The configurations of all tasks, at most `max_configs` of one task; 0: push is not supported."""

    def __init__(self, jobs: Jobs, secret: str | None, max_configs: int, shares: FairLimit) -> None:
        self.subscriptions = JobSubscriptions(jobs, _SUBSCRIPTION_NAME, self._build_delivery, shares, _is_state_change)
        self._addresses = jobs.webhook_url_policy
        self._secret = secret
        self._max_configs = max_configs

    @property
    def is_supported(self) -> bool:
        return self._max_configs > 0

    def check_supported(self) -> None:
        """Raises A2AProtocolError."""
        if not self._max_configs:
            raise A2AProtocolError("PUSH_NOTIFICATION_NOT_SUPPORTED", "This node sends no push notifications")

    async def check(self, config: A2APushConfig, principal: Principal) -> None:
        """Raises A2AProtocolError if no push could be delivered, RateLimited if the caller has too many configs."""
        self.check_supported()
        try:
            await self._addresses.check(config.url, "url")
        except BadInput as exc:
            raise invalid_params_error(f"Push notifications cannot be sent there: {exc.message}", "url") from exc
        for name, value in (("token", config.token), ("scheme", config.scheme), ("credentials", config.credentials)):
            if any(ord(letter) < 32 or ord(letter) > 126 for letter in value):
                raise invalid_params_error(f"{name} has characters that an HTTP header cannot hold", name)
        self.subscriptions.check_limit(principal, config.task_id)

    async def set(self, config: A2APushConfig, principal: Principal, dialect: A2AVersion, job: Job) -> A2APushConfig:
        """Push later events; replaces a config with the same id. Raises A2AProtocolError, RateLimited, StoreError."""
        config = replace(config, id=config.id or new_id())
        await self._subscribe(config, principal, dialect, job.events, has_ended=job.has_ended)
        return config

    async def set_from_message(
        self, config: A2APushConfig, principal: Principal, dialect: A2AVersion, after: int
    ) -> None:
        """Push every event since the message. The id is derived, so that a repeated message makes no second config.

        Raises A2AProtocolError, RateLimited, StoreError.
        """
        derived_id = hashlib.sha256(f"{config.task_id}\0{config.url}".encode()).hexdigest()[:32]
        await self._subscribe(replace(config, id=config.id or derived_id), principal, dialect, after)

    async def _subscribe(
        self, config: A2APushConfig, principal: Principal, dialect: A2AVersion, after: int, *, has_ended: bool = False
    ) -> None:
        await self.check(config, principal)
        existing_ids = [subscription.name for subscription in await self.subscriptions.list_for(config.task_id)]
        if config.id not in existing_ids and len(existing_ids) >= self._max_configs:
            raise invalid_params_error(f"A task has at most {self._max_configs} push notification configs")
        terms = msgspec.to_builtins(_PushTerms(config=config, dialect=dialect))
        subscription = JobSubscription(
            job_id=config.task_id, principal=principal, terms=terms, after=after, name=config.id
        )
        await self.subscriptions.add(subscription, is_ended=has_ended)

    async def get(self, task_id: str, config_id: str | None) -> A2APushConfig:
        """Without an id, the first one. Raises A2AProtocolError."""
        for config in await self.list_all(task_id):
            if config_id in (None, "", config.id):
                return config
        raise A2AProtocolError("TASK_NOT_FOUND", "Push notification config not found")

    async def list_all(self, task_id: str) -> list[A2APushConfig]:
        return [_read_terms(subscription).config for subscription in await self.subscriptions.list_for(task_id)]

    async def delete(self, task_id: str, config_id: str | None) -> None:
        """Deleting a configuration that does not exist is not an error."""
        if config_id:
            await self.subscriptions.remove(task_id, config_id)

    def _build_delivery(self, subscription: JobSubscription, job_event: JobEvent, job: Job) -> NewJob:
        terms = _read_terms(subscription)
        config = terms.config
        headers = {_TOKEN_HEADER: config.token} if config.token else {}
        if config.scheme:
            headers["Authorization"] = f"{config.scheme} {config.credentials}".strip()
        arguments: dict[str, Any] = {
            "url": config.url,
            "body": msgspec.json.encode(_render_notification(job_event, job, terms.dialect)).decode(),
            "headers": headers,
            "secret": self._secret,
        }
        delivery_id = derive_job_id(job.job_id, config.id, config.url, str(job_event.number), prefix="push")
        return new_delivery(delivery_id, new_trace(), arguments)


def _read_terms(subscription: JobSubscription) -> _PushTerms:
    return msgspec.convert(subscription.terms, _PushTerms)


def _render_notification(job_event: JobEvent, job: Job, dialect: Dialect) -> dict[str, Any]:
    """The status while the task runs, the whole task at its end; in 0.3 always the whole task."""
    task, renderer = task_view.task_from_job(job), RENDERERS[dialect]
    status_updates = (
        each for each in TaskUpdateBuilder(job).build_updates(job_event) if isinstance(each, TaskStatusUpdate)
    )
    update: A2AUpdate = next(status_updates, task)
    if dialect == "1.0":
        return renderer.render_response(update)
    return renderer.render_bare(replace(task, status=update.status) if isinstance(update, TaskStatusUpdate) else task)


def _is_state_change(job_event: JobEvent) -> bool:
    """Only changes of state are pushed, not every event."""
    data = job_event.event.data
    if job_event.event.kind != "status":
        return job_event.event.kind == "input_required"
    return data.get("state") in FINAL_STATES or (data.get("status") == "running" and not data.get("message"))
