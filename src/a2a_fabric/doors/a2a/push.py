"""Push notifications: where to tell of a task's changes, kept as standing orders, which outlive the node."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from msgspec.structs import replace

from a2a_fabric.a2a_wire.parts import Dialect
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.job import Job, JobEvent, NewJob
from a2a_fabric.core.shares import Shares
from a2a_fabric.core.states import ENDED
from a2a_fabric.core.trace import new_id, new_trace
from a2a_fabric.doors.a2a import seen
from a2a_fabric.doors.a2a.faults import Fault, invalid
from a2a_fabric.doors.a2a.narration import Narration
from a2a_fabric.doors.a2a.shapes import PushConfig, StatusUpdate, Update
from a2a_fabric.doors.a2a.writing import WRITERS
from a2a_fabric.jobs.desk import JobDesk
from a2a_fabric.jobs.standing import Order, StandingOrders
from a2a_fabric.jobs.webhook import delivery

_NAME = "a2a-push"
_TOKEN_HEADER = "X-A2A-Notification-Token"  # noqa: S105  # the name of a header


class _Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Of an order, which has the name of the config."""

    config: PushConfig
    dialect: Dialect


class PushDesk:
    """`most` configs of one task; 0: there are none."""

    def __init__(self, desk: JobDesk, secret: str | None, most: int, shares: Shares) -> None:
        self.orders = StandingOrders(desk, _NAME, self._errand, shares, _is_news)
        self._addresses = desk.addresses
        self._secret = secret
        self._most = most

    @property
    def is_supported(self) -> bool:
        return self._most > 0

    def check_supported(self) -> None:
        """Raises Fault."""
        if not self._most:
            raise Fault("PUSH_NOTIFICATION_NOT_SUPPORTED", "This node sends no push notifications")

    async def check(self, config: PushConfig, principal: Principal) -> None:
        """Raises Fault for what can never be delivered, RateLimited for what cannot now."""
        self.check_supported()
        try:
            await self._addresses.check(config.url, "url")
        except BadInput as exc:
            raise invalid(f"Push notifications cannot be sent there: {exc.message}", "url") from exc
        for name, value in (("token", config.token), ("scheme", config.scheme), ("credentials", config.credentials)):
            if any(ord(letter) < 32 or ord(letter) > 126 for letter in value):
                raise invalid(f"{name} cannot stand in a header", name)
        self.orders.check_room(principal, config.task_id)

    async def set(self, config: PushConfig, principal: Principal, dialect: Dialect, job: Job) -> PushConfig:
        """From now on; new, or in place of the one with its id. Raises Fault, RateLimited, StoreError."""
        config = replace(config, id=config.id or new_id())
        await self._order(config, principal, dialect, job.events, is_over=job.has_ended)
        return config

    async def set_with(self, config: PushConfig, principal: Principal, dialect: Dialect, after: int) -> None:
        """One that came with a message hears of all since then; if the message comes again, it is still the same one.

        Raises Fault, RateLimited, StoreError.
        """
        mark = hashlib.sha256(f"{config.task_id}\0{config.url}".encode()).hexdigest()[:32]
        await self._order(replace(config, id=config.id or mark), principal, dialect, after)

    async def _order(
        self, config: PushConfig, principal: Principal, dialect: Dialect, after: int, *, is_over: bool = False
    ) -> None:
        await self.check(config, principal)
        known = [order.name for order in await self.orders.all_of(config.task_id)]
        if config.id not in known and len(known) >= self._most:
            raise invalid(f"A task has at most {self._most} push notification configs")
        terms = msgspec.to_builtins(_Terms(config=config, dialect=dialect))
        order = Order(job_id=config.task_id, principal=principal, terms=terms, after=after, name=config.id)
        await self.orders.give(order, is_over=is_over)

    async def get(self, task_id: str, config_id: str | None) -> PushConfig:
        """Without an id, the first. Raises Fault."""
        for config in await self.all(task_id):
            if config_id in (None, "", config.id):
                return config
        raise Fault("TASK_NOT_FOUND", "There is no such push notification config")

    async def all(self, task_id: str) -> list[PushConfig]:
        return [_terms(order).config for order in await self.orders.all_of(task_id)]

    async def delete(self, task_id: str, config_id: str | None) -> None:
        """What is not there is deleted already."""
        if config_id:
            await self.orders.drop(task_id, config_id)

    def _errand(self, order: Order, line: JobEvent, job: Job) -> NewJob:
        terms = _terms(order)
        config = terms.config
        headers = {_TOKEN_HEADER: config.token} if config.token else {}
        if config.scheme:
            headers["Authorization"] = f"{config.scheme} {config.credentials}".strip()
        context: dict[str, Any] = {
            "url": config.url,
            "body": msgspec.json.encode(_told(line, job, terms.dialect)).decode(),
            "headers": headers,
            "secret": self._secret,
        }
        name = hashlib.sha256(f"{job.job_id}\0{config.id}\0{config.url}\0{line.number}".encode()).hexdigest()[:40]
        return delivery(f"push_{name}", new_trace(), context)


def _terms(order: Order) -> _Terms:
    return msgspec.convert(order.terms, _Terms)


def _told(line: JobEvent, job: Job, dialect: Dialect) -> dict[str, Any]:
    """The status while it goes on, the whole task at its end; 0.3 tells nothing but whole tasks."""
    task, writer = seen.task_of(job), WRITERS[dialect]
    changed = (each for each in Narration(job).tell(line) if isinstance(each, StatusUpdate))
    update: Update = next(changed, task)
    if dialect == "1.0":
        return writer.said(update)
    return writer.bare(replace(task, status=update.status) if isinstance(update, StatusUpdate) else task)


def _is_news(line: JobEvent) -> bool:
    """Changes of state; not every word on the way."""
    data = line.event.data
    if line.event.kind != "status":
        return line.event.kind == "input_required"
    return data.get("state") in ENDED or (data.get("status") == "running" and not data.get("message"))
