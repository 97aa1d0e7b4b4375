"""Subscriptions to a job's changes: every change is delivered, also after a restart of the node.

A subscription is stored as an internal job that never runs. While its job goes on,
one follower reads the job's log and submits an internal delivery job for each event
that the door renders, in order, each once: the id of the delivery job names event and
subscriber. Followers start again after a restart, also on another node of the same store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import Any, Self

import msgspec

from a2a_fabric.core.call import Call, Input, Principal, Target
from a2a_fabric.core.errors import STORE_AWAY, FabricError, JobNotFound, StoreError
from a2a_fabric.core.job import Job, JobEvent, JobFilter, JobSummary, NewJob, new_job_id
from a2a_fabric.core.limits import FairLimit
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.core.result import status
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.jobs.webhooks import DELIVERY_RETENTION, WEBHOOK_KIND

_log = logging.getLogger(__name__)
_META_KEY = "order"  # in the meta of the internal job that stores it
_RETENTION = 30 * 24 * 3600.0
_NEVER_DUE = 10.0**10.5  # in the far future: the internal job never runs
_SWEEP_INTERVAL = 20.0
_DELIVERY_WAIT = 10.0  # seconds that a delivery waits for the one before


class JobSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """`terms` belong to the door; only events after the number `after` are delivered.

    Several subscriptions to one job differ by their `name`.
    """

    job_id: str
    principal: Principal
    terms: dict[str, Any]
    after: int = 0
    name: str = ""


RenderDelivery = Callable[[JobSubscription, JobEvent, Job], NewJob | None]
EventFilter = Callable[[JobEvent], bool]


def _accept_all(event: JobEvent) -> bool:
    return True


class JobSubscriptions:
    """The subscriptions of one door, which `name` is; `event_filter` chooses the events that are delivered.

    Use it as an async context manager; inside, jobs are followed.
    """

    def __init__(
        self, jobs: Jobs, name: str, render: RenderDelivery, shares: FairLimit, event_filter: EventFilter = _accept_all
    ) -> None:
        self._jobs = jobs
        self._name = name
        self._render = render
        self._event_filter = event_filter
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._shares = shares
        self._sweep_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._sweep_task = asyncio.create_task(self._sweep_forever())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await cancel_and_wait(*self._followers.values(), *([self._sweep_task] if self._sweep_task else []))

    def check_limit(self, principal: Principal, job_id: str | None = None) -> None:
        """Raises RateLimited if the caller may follow no further job; a job that is followed already passes."""
        if job_id not in self._followers:
            self._shares.check(principal.principal_id)

    async def add(self, subscription: JobSubscription, *, is_ended: bool = False) -> None:
        """Store a subscription, in place of the one with the same name. Raises RateLimited, StoreError."""
        if not is_ended:
            self.check_limit(subscription.principal, subscription.job_id)
        previous = (await self._load(subscription.job_id)).get(subscription.name)
        await self._store(subscription, previous, is_ended=is_ended)
        if not is_ended:
            self._start_following(subscription)

    async def get(self, job_id: str, name: str = "") -> JobSubscription | None:
        stored = (await self._load(job_id)).get(name)
        return None if stored is None else stored[1]

    async def list_for(self, job_id: str) -> list[JobSubscription]:
        """All subscriptions to a job, the oldest first."""
        return [subscription for _, subscription in (await self._load(job_id)).values()]

    async def remove(self, job_id: str, name: str = "") -> None:
        """A subscription that does not exist is no error."""
        stored = (await self._load(job_id)).get(name)
        if stored is not None:
            with suppress(JobNotFound):
                await self._jobs.cancel_internal(stored[0])

    async def _load(self, job_id: str) -> dict[str, tuple[str, JobSubscription]]:
        """By name, each with the id of the internal job that stores it; of two with one name the newer counts."""
        page = await self._jobs.list_internal(JobFilter(owner=self._owner_of(job_id), states=("queued",)))
        subscriptions = [(job.job_id, _subscription_from_job(job)) for job in reversed(page.jobs)]
        return {subscription.name: (record_id, subscription) for record_id, subscription in subscriptions}

    async def _store(
        self, subscription: JobSubscription, previous: tuple[str, JobSubscription] | None, *, is_ended: bool
    ) -> None:
        agent_id = f"{self._agent_id}-over" if is_ended else self._agent_id
        await self._jobs.submit_internal(
            _job_from_subscription(subscription, self._owner_of(subscription.job_id), agent_id)
        )
        if previous is not None:
            with suppress(JobNotFound):
                await self._jobs.cancel_internal(previous[0])

    async def _sweep_forever(self) -> None:
        """Also follow the jobs of a node that is gone, and those from before this node was restarted."""
        while True:
            try:
                async for subscription in self._load_all():
                    self._start_following(subscription)
            except StoreError as error:
                _log.warning("%s: subscriptions wait for the store: %s", self._name, error.message, extra=STORE_AWAY)
            except Exception:
                _log.exception("%s: reading the subscriptions failed", self._name)
            await asyncio.sleep(_SWEEP_INTERVAL)

    async def _load_all(self) -> AsyncIterator[JobSubscription]:
        query, cursor = JobFilter(agent_id=self._agent_id, states=("queued",)), None
        while True:
            page = await self._jobs.list_internal(query, cursor=cursor)
            for job in page.jobs:
                yield _subscription_from_job(job)
            if (cursor := page.cursor) is None:
                return

    def _start_following(self, subscription: JobSubscription) -> None:
        job_id = subscription.job_id
        caller = subscription.principal.principal_id
        if job_id in self._followers or not self._shares.can_acquire(caller):
            return  # the next sweep finds it again
        self._shares.acquire(caller)
        follower = asyncio.create_task(self._follow_job(subscription))
        self._followers[job_id] = follower
        follower.add_done_callback(lambda _: self._stop_following(job_id, caller))

    def _stop_following(self, job_id: str, caller: str | None) -> None:
        self._followers.pop(job_id, None)
        self._shares.release(caller)

    async def _follow_job(self, subscription: JobSubscription) -> None:
        job_id, principal = subscription.job_id, subscription.principal
        try:
            after = min(each.after for each in [subscription, *await self.list_for(job_id)])
            events = self._jobs.events(principal, job_id, after, past_questions=True)
            async with aclosing(events):
                async for event in events:
                    await self._notify(job_id, principal, event)
            for stored in (await self._load(job_id)).values():
                await self._store(stored[1], stored, is_ended=True)
        except JobNotFound:
            with suppress(FabricError):
                for record_id, _ in (await self._load(job_id)).values():
                    await self._jobs.cancel_internal(record_id)
        except FabricError as error:
            _log.info("%s: events of job %s are delivered later: %s", self._name, job_id, error.message)
        except Exception:
            _log.exception("%s: delivering the events of job %s failed", self._name, job_id)

    async def _notify(self, job_id: str, principal: Principal, event: JobEvent) -> None:
        if not self._event_filter(event) or event.at < time.time() - DELIVERY_RETENTION:
            return  # its delivery job may be pruned, so it might be delivered twice
        due = [subscription for subscription in await self.list_for(job_id) if event.number > subscription.after]
        if not due:
            return
        job = await self._jobs.get(principal, job_id)
        deliveries = [
            delivery for subscription in due if (delivery := self._render(subscription, event, job)) is not None
        ]
        for delivery in deliveries:
            await self._jobs.submit_internal(delivery)
        for delivery in deliveries:
            await self._jobs.wait_for_internal(delivery.job_id, _DELIVERY_WAIT)

    @property
    def _agent_id(self) -> str:
        """The agent id of the internal jobs of subscriptions that are still active."""
        return f"fabric.{self._name}"

    def _owner_of(self, job_id: str) -> str:
        return f"fabric:{self._name}:{job_id}"


def _subscription_from_job(job: JobSummary) -> JobSubscription:
    return msgspec.convert(job.meta[_META_KEY], JobSubscription)


def _job_from_subscription(subscription: JobSubscription, owner: str, agent_id: str) -> NewJob:
    call = Call(
        trace=new_trace(), auth=Principal(), target=Target(agent_id=agent_id, capability="order"), input=Input()
    )
    return NewJob(
        job_id=f"order_{new_job_id()}",
        owner=owner,
        call=call,
        run_at=_NEVER_DUE,
        expires_at=time.time() + _RETENTION,
        retention=0.0,
        meta={"kind": WEBHOOK_KIND, _META_KEY: msgspec.to_builtins(subscription)},
        events=(status("queued"),),
    )
