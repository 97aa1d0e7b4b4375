"""Telling an address of a task's changes, as this client's push configs ask for it.

Each notification is an errand of the job engine: signed if the node has a secret, tried
again, and kept away from private addresses. The configs themselves live as long as the node.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from contextlib import aclosing
from typing import Any

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import BadInput, FabricError, RateLimited
from a2a_fabric.core.job import Job, JobEvent
from a2a_fabric.core.trace import new_trace
from a2a_fabric.doors.rest.rpc import views
from a2a_fabric.doors.rest.rpc.faults import NoPushConfig
from a2a_fabric.doors.rest.rpc.params import PushConfig
from a2a_fabric.jobs.desk import JobDesk
from a2a_fabric.jobs.webhook import delivery
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.outbound.port import Refused

_log = logging.getLogger(__name__)
_MOST_FOLLOWED = 1000
_CONFIGS_KEPT = 10_000
_NAMES = {
    "completed": "taskCompleted",
    "failed": "taskFailed",
    "timeout": "taskFailed",
    "rejected": "taskFailed",
    "cancelled": "taskCanceled",
    "input_required": "taskInputRequired",
}
_ANY = frozenset({"taskStatusUpdate", "taskUpdated"})


class Push:
    def __init__(self, desk: JobDesk) -> None:
        self._desk = desk
        self._configs: OrderedDict[str, PushConfig] = OrderedDict()
        self._followers: dict[str, asyncio.Task[None]] = {}

    async def aclose(self) -> None:
        followers = list(self._followers.values())
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)

    async def set(self, principal: Principal, job: Job, config: PushConfig) -> PushConfig:
        """Raises BadInput for an address that may not be told, RateLimited if there are too many."""
        if config.enabled:
            _check(config)
            if job.job_id not in self._followers and len(self._followers) >= _MOST_FOLLOWED:
                raise RateLimited(f"{_MOST_FOLLOWED} tasks are told of already, which is the limit", 10.0)
        self._configs[job.job_id] = config
        if len(self._configs) > _CONFIGS_KEPT:
            self._configs.popitem(last=False)
        if config.enabled and job.job_id not in self._followers:
            follower = asyncio.create_task(self._follow(principal, job.job_id))
            self._followers[job.job_id] = follower
            follower.add_done_callback(lambda _: self._followers.pop(job.job_id, None))
        return config

    def get(self, principal: Principal, job: Job) -> PushConfig:
        """Raises NoPushConfig."""
        config = self._configs.get(job.job_id)
        if config is None:
            raise NoPushConfig(f"Task '{job.job_id}' has no push config", issue="no push config")
        return config

    async def _follow(self, principal: Principal, job_id: str) -> None:
        try:
            async with aclosing(self._desk.events(principal, job_id, past_questions=True)) as lines:
                async for line in lines:
                    if line.event.kind in ("status", "input_required"):
                        await self._tell(await self._desk.get(principal, job_id), line)
        except FabricError as error:
            _log.info("notifications of task %s end: %s", job_id, error.message)
        except Exception:
            _log.exception("notifications of task %s failed", job_id)

    async def _tell(self, job: Job, line: JobEvent) -> None:
        config = self._configs.get(job.job_id)
        if config is None or not config.enabled or not config.endpoint:
            return
        name = _name_of(line)
        if config.events and not _ANY.union({name}).intersection(config.events):
            return
        body = {"type": name, "taskId": job.job_id, "task": views.task_of(job)}
        headers = {"Authorization": f"Bearer {config.auth_token}"} if config.auth_token else {}
        given: dict[str, Any] = {
            "url": config.endpoint,
            "body": msgspec.json.encode(body).decode(),
            "headers": headers,
        }
        mark = hashlib.sha256(f"{job.job_id}\0{config.endpoint}\0{line.number}".encode()).hexdigest()[:40]
        await self._desk.send_errand(delivery(f"push_{mark}", new_trace(), given))


def _name_of(line: JobEvent) -> str:
    if line.event.kind == "input_required":
        return "taskInputRequired"
    return _NAMES.get(line.event.data.get("state", ""), "taskUpdated")


def _check(config: PushConfig) -> None:
    if not config.endpoint:
        raise BadInput("config.endpoint is required", field="config.endpoint", issue="required")
    try:
        Guard().check_url(config.endpoint)
    except Refused as exc:
        raise BadInput(f"config.endpoint: {exc}"[:300], field="config.endpoint", issue="refused") from exc
    if config.auth_token and not (config.auth_token.isascii() and config.auth_token.isprintable()):
        raise BadInput("config.authToken cannot stand in a header", field="config.authToken", issue="not printable")
