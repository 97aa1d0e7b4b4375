"""Standing orders: somebody wants to be told of a job's changes, and is, whatever becomes of the node meanwhile.

An order is kept as a job of the node's own that never runs. While the job that it is
about goes on, one follower reads its log and sends errands for each change that the
orders' door has words for, in order, each once: the errand's id says which change it
tells whom. Followers begin again after a restart, and on another node of the same store.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import Any, Self

import msgspec

from a2a_fabric.core.call import Call, Input, Principal, Target
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.events import status
from a2a_fabric.core.job import Job, JobEvent, JobFilter, JobSummary, NewJob, new_job_id
from a2a_fabric.core.shares import Shares
from a2a_fabric.core.store_errors import JobNotFound, StoreError
from a2a_fabric.core.trace import new_trace
from a2a_fabric.jobs.desk import JobDesk
from a2a_fabric.jobs.webhook import KEPT as ERRANDS_KEPT
from a2a_fabric.jobs.webhook import KIND

_log = logging.getLogger(__name__)
_ORDER = "order"  # in the meta of the job that keeps it
_KEPT = 30 * 24 * 3600.0
_NEVER = 10.0**10.5  # a moment that nobody will see: orders wait for it
_LOOK_EVERY = 20.0
_IN_ORDER_WITHIN = 10.0  # seconds that the next errand waits for the one before


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """`terms` are the door's own; `after` is the last event of the job that need not be told.

    Orders about one job differ by their `name`.
    """

    job_id: str
    principal: Principal
    terms: dict[str, Any]
    after: int = 0
    name: str = ""


Render = Callable[[Order, JobEvent, Job], NewJob | None]
IsNews = Callable[[JobEvent], bool]


def _is_any(line: JobEvent) -> bool:
    return True


class StandingOrders:
    """`name` keeps those of one door apart; lines that are no news are told to nobody.

    Use it as an async context manager: inside, jobs are followed.
    """

    def __init__(self, desk: JobDesk, name: str, render: Render, shares: Shares, is_news: IsNews = _is_any) -> None:
        self._desk = desk
        self._name = name
        self._render = render
        self._is_news = is_news
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._shares = shares
        self._sweep: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._sweep = asyncio.create_task(self._look_again())
        return self

    async def __aexit__(self, *exc: object) -> None:
        running = [*self._followers.values(), *([self._sweep] if self._sweep else [])]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def check_room(self, principal: Principal, job_id: str | None = None) -> None:
        """Raises RateLimited if too many jobs are followed for one more of this caller's, if it is one more."""
        if job_id not in self._followers:
            self._shares.check(principal.principal_id)

    async def give(self, order: Order, *, is_over: bool = False) -> None:
        """In place of the one before of that name. Raises RateLimited if too many jobs are followed, StoreError."""
        if not is_over:
            self.check_room(order.principal, order.job_id)
        before = (await self._kept(order.job_id)).get(order.name)
        await self._keep(order, before, is_over=is_over)
        if not is_over:
            self._follow(order)

    async def of(self, job_id: str, name: str = "") -> Order | None:
        found = (await self._kept(job_id)).get(name)
        return None if found is None else found[1]

    async def all_of(self, job_id: str) -> list[Order]:
        """The oldest first."""
        return [order for _, order in (await self._kept(job_id)).values()]

    async def drop(self, job_id: str, name: str = "") -> None:
        """What is not there is dropped already."""
        found = (await self._kept(job_id)).get(name)
        if found is not None:
            with suppress(JobNotFound):
                await self._desk.drop_errand(found[0])

    async def _kept(self, job_id: str) -> dict[str, tuple[str, Order]]:
        """By name, each with the job that keeps it; of two with one name the newer counts."""
        page = await self._desk.errands(JobFilter(owner=self._owner(job_id), states=("queued",)))
        orders = [(job.job_id, _order_in(job)) for job in reversed(page.jobs)]
        return {order.name: (kept_by, order) for kept_by, order in orders}

    async def _keep(self, order: Order, before: tuple[str, Order] | None, *, is_over: bool) -> None:
        agent_id = f"{self._agent}-over" if is_over else self._agent
        await self._desk.send_errand(_written(order, self._owner(order.job_id), agent_id))
        if before is not None:
            with suppress(JobNotFound):
                await self._desk.drop_errand(before[0])

    async def _look_again(self) -> None:
        """Jobs of a node that is gone, or of this one before it was stopped, are followed on."""
        while True:
            try:
                async for order in self._all():
                    self._follow(order)
            except StoreError as error:
                _log.warning("%s: standing orders wait for the store: %s", self._name, error.message)
            except Exception:
                _log.exception("%s: looking for standing orders failed", self._name)
            await asyncio.sleep(_LOOK_EVERY)

    async def _all(self) -> AsyncIterator[Order]:
        wish, cursor = JobFilter(agent_id=self._agent, states=("queued",)), None
        while True:
            page = await self._desk.errands(wish, cursor=cursor)
            for job in page.jobs:
                yield _order_in(job)
            if (cursor := page.cursor) is None:
                return

    def _follow(self, order: Order) -> None:
        job_id = order.job_id
        caller = order.principal.principal_id
        if job_id in self._followers or not self._shares.has_room(caller):
            return  # the next look finds it again
        self._shares.take(caller)
        follower = asyncio.create_task(self._follow_on(order))
        self._followers[job_id] = follower
        follower.add_done_callback(lambda _: self._unfollow(job_id, caller))

    def _unfollow(self, job_id: str, caller: str | None) -> None:
        self._followers.pop(job_id, None)
        self._shares.give_back(caller)

    async def _follow_on(self, order: Order) -> None:
        job_id, principal = order.job_id, order.principal
        try:
            after = min(each.after for each in [order, *await self.all_of(job_id)])
            lines = self._desk.events(principal, job_id, after, past_questions=True)
            async with aclosing(lines):
                async for line in lines:
                    await self._tell(job_id, principal, line)
            for last in (await self._kept(job_id)).values():
                await self._keep(last[1], last, is_over=True)
        except JobNotFound:
            await self._forget(job_id)
        except FabricError as error:
            _log.info("%s: job %s is told of later: %s", self._name, job_id, error.message)
        except Exception:
            _log.exception("%s: telling of job %s failed", self._name, job_id)

    async def _tell(self, job_id: str, principal: Principal, line: JobEvent) -> None:
        if not self._is_news(line) or line.at < time.time() - ERRANDS_KEPT:
            return  # of what is older nobody remembers whether it was told
        wanted = [order for order in await self.all_of(job_id) if line.number > order.after]
        if not wanted:
            return
        job = await self._desk.get(principal, job_id)
        errands = [errand for order in wanted if (errand := self._render(order, line, job)) is not None]
        for errand in errands:
            await self._desk.send_errand(errand)
        for errand in errands:
            await self._desk.errand_done(errand.job_id, _IN_ORDER_WITHIN)

    async def _forget(self, job_id: str) -> None:
        with suppress(FabricError):
            for kept_by, _ in (await self._kept(job_id)).values():
                await self._desk.drop_errand(kept_by)

    @property
    def _agent(self) -> str:
        """In whose name they are kept while there may be something to tell."""
        return f"fabric.{self._name}"

    def _owner(self, job_id: str) -> str:
        return f"fabric:{self._name}:{job_id}"


def _order_in(job: JobSummary) -> Order:
    return msgspec.convert(job.meta[_ORDER], Order)


def _written(order: Order, owner: str, agent_id: str) -> NewJob:
    call = Call(
        trace=new_trace(), auth=Principal(), target=Target(agent_id=agent_id, capability="order"), input=Input()
    )
    return NewJob(
        job_id=f"order_{new_job_id()}",
        owner=owner,
        call=call,
        run_at=_NEVER,
        expires_at=time.time() + _KEPT,
        retention=0.0,
        meta={"kind": KIND, _ORDER: msgspec.to_builtins(order)},
        events=(status("queued"),),
    )
