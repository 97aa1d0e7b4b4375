"""Telling an address of a task's changes, as this client's push configs ask for it.

A config is a standing order to the job engine, so it outlives the node. Each notification
is an errand: signed if the node has a secret, tried again, and kept away from private addresses.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.job import Job, JobEvent, NewJob
from a2a_fabric.core.shares import Shares
from a2a_fabric.core.trace import new_trace
from a2a_fabric.doors.rest.rpc import views
from a2a_fabric.doors.rest.rpc.faults import NoPushConfig
from a2a_fabric.doors.rest.rpc.params import PushConfig
from a2a_fabric.jobs.desk import JobDesk
from a2a_fabric.jobs.standing import Order, StandingOrders
from a2a_fabric.jobs.webhook import delivery

_CREATED, _UPDATED, _ASKS, _ARTIFACT = "taskCreated", "taskUpdated", "taskInputRequired", "artifactAdded"
_NAMES = {
    "completed": "taskCompleted",
    "failed": "taskFailed",
    "timeout": "taskFailed",
    "rejected": "taskFailed",
    "cancelled": "taskCanceled",
    "input_required": _ASKS,
}
_ALSO = {_ARTIFACT: frozenset({"taskArtifactUpdate"})}
_ANY_STATUS = frozenset({"taskStatusUpdate", _UPDATED})


class Push:
    def __init__(self, desk: JobDesk, shares: Shares) -> None:
        self.orders = StandingOrders(desk, "rest-push", _errand, shares)
        self._addresses = desk.addresses

    async def set(self, principal: Principal, job: Job, config: PushConfig) -> PushConfig:
        """From now on. Raises BadInput for an address that may not be told, RateLimited if there are too many."""
        if config.enabled:
            await self._check(config)
        order = Order(
            job_id=job.job_id, principal=principal, terms=msgspec.to_builtins(config), after=job.events
        )  # fmt: skip
        await self.orders.give(order, is_over=job.has_ended)
        return config

    async def _check(self, config: PushConfig) -> None:
        if not config.endpoint:
            raise BadInput("config.endpoint is required", field="config.endpoint", issue="required")
        if config.auth_token and not (config.auth_token.isascii() and config.auth_token.isprintable()):
            raise BadInput("config.authToken cannot stand in a header", field="config.authToken", issue="not printable")
        await self._addresses.check(config.endpoint, "config.endpoint")

    async def get(self, job: Job) -> PushConfig:
        """Raises NoPushConfig."""
        order = await self.orders.of(job.job_id)
        if order is None:
            raise NoPushConfig(f"Task '{job.job_id}' has no push config", issue="no push config")
        return msgspec.convert(order.terms, PushConfig)


def _errand(order: Order, line: JobEvent, job: Job) -> NewJob | None:
    config = msgspec.convert(order.terms, PushConfig)
    name = _name_of(line)
    if name is None or not _is_wanted(name, config):
        return None
    body = {"type": name, "taskId": job.job_id, "task": views.task_of(job)}
    given: dict[str, Any] = {
        "url": config.endpoint,
        "body": msgspec.json.encode(body).decode(),
        "headers": {"Authorization": f"Bearer {config.auth_token}"} if config.auth_token else {},
    }
    mark = hashlib.sha256(f"{job.job_id}\0{config.endpoint}\0{line.number}".encode()).hexdigest()[:40]
    return delivery(f"push_{mark}", new_trace(), given)


def _name_of(line: JobEvent) -> str | None:
    """None for what this client has no word for."""
    kind, data = line.event.kind, line.event.data
    if kind == "input_required":
        return _ASKS
    if kind == "artifact":
        return _ARTIFACT
    if kind != "status":
        return None
    if line.number == 1:
        return _CREATED
    return _NAMES.get(data.get("state", ""), _UPDATED)


def _is_wanted(name: str, config: PushConfig) -> bool:
    if not config.enabled or not config.endpoint:
        return False
    return not config.events or not {name}.union(_ALSO.get(name, _ANY_STATUS)).isdisjoint(config.events)
