"""Push notifications: where to tell of a task's changes, kept beside it, and told by errands that survive a crash.

A config is a job of the node's own that never runs. While a task goes on, one follower per
task reads its log and sends an errand for every change of state, in order, each once: the
errand's id says which change it tells. Followers begin again after a restart.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from a2a_fabric.a2a_wire.parts import Dialect
from a2a_fabric.core.call import Call, Input, Principal, Target
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.events import status
from a2a_fabric.core.job import Job, JobEvent, JobFilter, NewJob, new_job_id
from a2a_fabric.core.states import ENDED
from a2a_fabric.core.store_errors import JobNotFound, StoreError
from a2a_fabric.core.trace import new_id, new_trace
from a2a_fabric.doors.a2a import seen
from a2a_fabric.doors.a2a.faults import Fault, invalid
from a2a_fabric.doors.a2a.narration import Narration
from a2a_fabric.doors.a2a.shapes import PushConfig, StatusUpdate, Update
from a2a_fabric.doors.a2a.visit import Visit
from a2a_fabric.doors.a2a.writing import WRITERS
from a2a_fabric.jobs.desk import JobDesk
from a2a_fabric.jobs.webhook import delivery
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.outbound.port import Refused

_log = logging.getLogger(__name__)

_AGENT = "fabric.a2a-push"  # in whose name configs are kept while there may be something to tell
_OVER = "fabric.a2a-push-over"  # and when all has been told
_KEPT = 30 * 24 * 3600.0
_NEVER = 10.0**10.5  # a moment that nobody will see: configs wait for it
_LOOK_EVERY = 20.0
_MOST_FOLLOWED = 2000
_IN_ORDER_WITHIN = 10.0  # seconds that the next notification waits for the one before
_TOKEN_HEADER = "X-A2A-Notification-Token"  # noqa: S105  # the name of a header


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A config as it is kept, with whose task it is about."""

    config: PushConfig
    principal: Principal
    dialect: Dialect


class PushDesk:
    """Use it as an async context manager: inside, tasks are followed."""

    def __init__(self, desk: JobDesk, secret: str | None, most: int) -> None:
        self._desk = desk
        self._secret = secret
        self._most = most
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._sweep: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._most:
            self._sweep = asyncio.create_task(self._look_again())
        return self

    async def __aexit__(self, *exc: object) -> None:
        running = [*self._followers.values(), *([self._sweep] if self._sweep else [])]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    @property
    def is_supported(self) -> bool:
        return self._most > 0

    def check_supported(self) -> None:
        """Raises Fault."""
        if not self._most:
            raise Fault("PUSH_NOTIFICATION_NOT_SUPPORTED", "This node sends no push notifications")

    def check(self, config: PushConfig) -> None:
        """Raises Fault for what can never be delivered."""
        self.check_supported()
        try:
            Guard().check_url(config.url)
        except Refused as exc:
            raise invalid(f"url: {exc}"[:300], "url") from exc
        for name, value in (("token", config.token), ("scheme", config.scheme), ("credentials", config.credentials)):
            if any(ord(letter) < 32 or ord(letter) > 126 for letter in value):
                raise invalid(f"{name} cannot stand in a header", name)

    async def set(
        self, config: PushConfig, visit: Visit, dialect: Dialect = "1.0", *, from_the_start: bool = False
    ) -> PushConfig:
        """New, or in place of the one with its id; one that came with the message hears of everything since then.

        Raises Fault, StoreError.
        """
        self.check(config)
        config = replace(config, id=config.id or new_id())
        known = await self._entries(config.task_id)
        if config.id not in known and len(known) >= self._most:
            raise invalid(f"A task has at most {self._most} push notification configs")
        entry = _Entry(config=config, principal=visit.principal, dialect=dialect)
        is_over = not from_the_start and (await self._desk.get(visit.principal, config.task_id)).has_ended
        await self._keep(entry, _OVER if is_over else _AGENT, known.get(config.id))
        if not is_over:
            self._follow(config.task_id, visit.principal)
        return config

    async def _keep(self, entry: _Entry, agent_id: str, before: tuple[str, _Entry] | None) -> None:
        """In place of what was there before."""
        await self._desk.send_errand(_kept(entry, agent_id))
        if before is not None:
            with suppress(JobNotFound):
                await self._desk.drop_errand(before[0])

    async def get(self, task_id: str, config_id: str | None) -> PushConfig:
        """Without an id, the first. Raises Fault."""
        known = await self.all(task_id)
        for config in known:
            if config_id in (None, "", config.id):
                return config
        raise Fault("TASK_NOT_FOUND", "There is no such push notification config")

    async def all(self, task_id: str) -> list[PushConfig]:
        return [entry.config for _, entry in (await self._entries(task_id)).values()]

    async def delete(self, task_id: str, config_id: str | None) -> None:
        """What is not there is deleted already."""
        for config_id_known, (job_id, _) in (await self._entries(task_id)).items():
            if config_id == config_id_known:
                with suppress(JobNotFound):
                    await self._desk.drop_errand(job_id)

    async def _entries(self, task_id: str) -> dict[str, tuple[str, _Entry]]:
        """By config id, oldest first; of two with one id the newer counts."""
        page = await self._desk.errands(JobFilter(owner=_owner(task_id), states=("queued",)))
        found: dict[str, tuple[str, _Entry]] = {}
        for job in reversed(page.jobs):
            entry = msgspec.convert(job.meta["push"], _Entry)
            found[entry.config.id] = (job.job_id, entry)
        return found

    async def _look_again(self) -> None:
        """Tasks of a node that is gone, or of this one before it was stopped, are followed on."""
        while True:
            try:
                page = await self._desk.errands(JobFilter(agent_id=_AGENT, states=("queued",)))
                for job in page.jobs:
                    entry = msgspec.convert(job.meta["push"], _Entry)
                    self._follow(entry.config.task_id, entry.principal)
            except StoreError as error:
                _log.warning("push notifications wait for the store: %s", error.message)
            except Exception:
                _log.exception("looking for push notifications failed")
            await asyncio.sleep(_LOOK_EVERY)

    def _follow(self, task_id: str, principal: Principal) -> None:
        if task_id in self._followers or len(self._followers) >= _MOST_FOLLOWED:
            return
        follower = asyncio.create_task(self._follow_on(task_id, principal))
        self._followers[task_id] = follower
        follower.add_done_callback(lambda _: self._followers.pop(task_id, None))

    async def _follow_on(self, task_id: str, principal: Principal) -> None:
        try:
            job = await self._desk.get(principal, task_id)
            narration = Narration(job)
            async with aclosing(self._desk.events(principal, task_id, past_questions=True)) as lines:
                async for line in lines:
                    await self._tell(line, narration.tell(line), task_id, principal)
            for known in (await self._entries(task_id)).values():
                await self._keep(known[1], _OVER, known)
        except FabricError as error:
            _log.info("push notifications of task %s end: %s", task_id, error.message)
        except Exception:
            _log.exception("push notifications of task %s failed", task_id)

    async def _tell(self, line: JobEvent, updates: Sequence[Update], task_id: str, principal: Principal) -> None:
        if not _is_news(line):
            return
        job = await self._desk.get(principal, task_id)
        entries = [entry for _, entry in (await self._entries(task_id)).values()]
        errands = [self._errand(entry, line, updates, job) for entry in entries]
        for errand in errands:
            await self._desk.send_errand(errand)
        for errand in errands:
            await self._desk.errand_done(errand.job_id, _IN_ORDER_WITHIN)

    def _errand(self, entry: _Entry, line: JobEvent, updates: Sequence[Update], job: Job) -> NewJob:
        config, writer = entry.config, WRITERS[entry.dialect]
        task = seen.task_of(job)
        update: Update = next((each for each in updates if isinstance(each, StatusUpdate)), task)
        if entry.dialect != "1.0" and isinstance(update, StatusUpdate):
            update = replace(task, status=update.status)  # there, nothing but whole tasks is told
        body = writer.said(update) if entry.dialect == "1.0" else writer.bare(update)
        headers = {_TOKEN_HEADER: config.token} if config.token else {}
        if config.scheme:
            headers["Authorization"] = f"{config.scheme} {config.credentials}".strip()
        context: dict[str, Any] = {
            "url": config.url,
            "body": msgspec.json.encode(body).decode(),
            "headers": headers,
            "secret": self._secret,
        }
        name = hashlib.sha256(f"{job.job_id}\0{config.id}\0{config.url}\0{line.number}".encode()).hexdigest()[:40]
        return delivery(f"push_{name}", new_trace(), context)


def _is_news(line: JobEvent) -> bool:
    """Changes of state; not every word on the way."""
    data = line.event.data
    if line.event.kind != "status":
        return line.event.kind == "input_required"
    return data.get("state") in ENDED or (data.get("status") == "running" and not data.get("message"))


def _kept(entry: _Entry, agent_id: str) -> NewJob:
    call = Call(
        trace=new_trace(),
        auth=Principal(),
        target=Target(agent_id=agent_id, capability="config"),
        input=Input(),
    )
    return NewJob(
        job_id=f"cfg_{new_job_id()}",
        owner=_owner(entry.config.task_id),
        call=call,
        run_at=_NEVER,
        expires_at=time.time() + _KEPT,
        retention=0.0,
        meta={"kind": "webhook", "push": msgspec.to_builtins(entry)},
        events=(status("queued"),),
    )


def _owner(task_id: str) -> str:
    return f"fabric:a2a-push:{task_id}"
