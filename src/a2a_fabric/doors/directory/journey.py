"""A task on its way: hop after hop, each routed anew, each a job, the output of one the input of the next.

Nobody holds a journey but its jobs. Whoever looks at it walks it from the beginning:
hops that are done are read, the one under way is waited for, the next one is begun. So
several may walk the same one, on any node and after a restart, and nothing is done twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.call import Call, Principal, ResponseForm, Target
from a2a_fabric.core.errors import CallTimeout, Conflict, FabricError
from a2a_fabric.core.events import Event
from a2a_fabric.core.job import Job, JobError, JobSummary, owner_of
from a2a_fabric.core.result import Result
from a2a_fabric.core.store_errors import JobNotFound, StoreError
from a2a_fabric.core.trace import Trace, continue_trace
from a2a_fabric.doors.directory.entries import Entries
from a2a_fabric.doors.directory.task import (
    Ending,
    Task,
    check_same,
    ending_of,
    input_of,
    job_id_of,
    kept_in,
    passed_on,
    restored,
)
from a2a_fabric.doors.directory.visit import Visit
from a2a_fabric.jobs.desk import JobDesk
from a2a_fabric.jobs.wish import JobWish

_log = logging.getLogger(__name__)

STEP = 10**9  # one hop has fewer events, so that numbers grow over all hops
_ENDINGS_KEPT = 1000
_MOST_DRIVEN = 1000


class Line(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    hop: int
    event: Event


class Leg(msgspec.Struct, frozen=True, kw_only=True):
    """In whose name a hop is begun, and until when it has to be done."""

    principal: Principal
    trace: Trace
    ends_at: float
    delegation_chain: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class Journeys:
    def __init__(self, desk: JobDesk, entries: Entries) -> None:
        self._desk = desk
        self._entries = entries
        self._driven: dict[str, asyncio.Task[None]] = {}
        self._endings: OrderedDict[str, Ending] = OrderedDict()  # of journeys that ended between two jobs

    async def aclose(self) -> None:
        """Journeys under way stop where they are, and go on when somebody looks at them again."""
        drivers = list(self._driven.values())
        for driver in drivers:
            driver.cancel()
        await asyncio.gather(*drivers, return_exceptions=True)

    async def begin(self, task: Task, visit: Visit, seconds: float) -> None:
        """Write the first hop down, unless it is. Raises Conflict, BadInput and what else can be said at once."""
        principal = visit.principal
        try:
            known: JobSummary = await self._desk.get(principal, task.first_id)
        except JobNotFound:
            for hop in task.hops[1:]:
                self._entries.target(hop.agent_id, hop.action, principal)  # if nobody does it, that is said now
            leg = Leg(
                principal=principal,
                trace=visit.trace,
                ends_at=time.time() + seconds,
                delegation_chain=visit.delegation_chain,
            )
            known = await self._accepted(task, 0, None, leg)
        check_same(task, known)
        self.drive(task, principal)

    async def find(self, principal: Principal, task_id: str) -> Task:
        """Also a job of another door, by its own id. Raises JobNotFound."""
        try:
            return restored(await self._desk.get(principal, job_id_of(owner_of(principal), task_id)))
        except JobNotFound:
            job = await self._desk.get(principal, task_id)
        kept = kept_in(job)
        if kept is not None and kept.hop:
            raise JobNotFound(task_id)
        return restored(job)

    def drive(self, task: Task, principal: Principal) -> None:
        """See it through without anybody looking on; one hop alone needs nobody."""
        if len(task.hops) == 1 or task.first_id in self._driven or len(self._driven) >= _MOST_DRIVEN:
            return
        driver = asyncio.create_task(self._drive(task, principal))
        self._driven[task.first_id] = driver
        driver.add_done_callback(lambda _: self._driven.pop(task.first_id, None))

    async def _drive(self, task: Task, principal: Principal) -> None:
        try:
            async with aclosing(self.walk(task, principal)) as steps:
                async for _ in steps:
                    pass
        except FabricError as error:
            _log.warning("task %s stops between two hops: %s", task.first_id, error.message)
        except Exception:
            _log.exception("task %s failed inside the gateway", task.first_id)

    async def walk(self, task: Task, principal: Principal, after: int = 0) -> AsyncGenerator[Line | Ending]:
        """Its events after a number, then how it ended, or what it asks. Raises StoreError, JobNotFound."""
        done: list[Job] = []
        for number in range(len(task.hops)):
            stopped = await self._begun(task, done, principal) if done else None
            if stopped is not None:
                yield stopped
                return
            job_id = task.job_id(number)
            async with aclosing(self._desk.events(principal, job_id, max(0, after - number * STEP))) as lines:
                async for line in lines:
                    yield Line(number=number * STEP + line.number, hop=number, event=line.event)
            job = await self._desk.get(principal, job_id)
            if job.state != "completed" or number == len(task.hops) - 1:
                yield _placed(ending_of(job), task, done)
                return
            done.append(job)

    async def look(self, task: Task, principal: Principal) -> Ending:
        """How it stands, without waiting. Raises StoreError, JobNotFound."""
        if task.first_id in self._endings:
            return self._endings[task.first_id]
        *done, job = await self._so_far(task, principal)
        if job.state == "completed" and len(done) < len(task.hops) - 1:
            self.drive(task, principal)
            return Ending(status="running")
        return _placed(ending_of(job), task, done)

    async def latest(self, task: Task, principal: Principal) -> Job:
        """Of the hops that have begun. Raises StoreError, JobNotFound."""
        return (await self._so_far(task, principal))[-1]

    async def cancel(self, task: Task, principal: Principal) -> None:
        """What has ended stays as it is. Raises StoreError, JobNotFound."""
        *done, job = await self._so_far(task, principal)
        if job.state == "completed" and len(done) < len(task.hops) - 1:
            self._keep(task, Ending(status="cancelled"))
        else:
            await self._desk.cancel(principal, job.job_id)

    async def _so_far(self, task: Task, principal: Principal) -> list[Job]:
        jobs = [await self._desk.get(principal, task.first_id)]
        while jobs[-1].state == "completed" and len(jobs) < len(task.hops):
            try:
                jobs.append(await self._desk.get(principal, task.job_id(len(jobs))))
            except JobNotFound:
                break
        return jobs

    async def _begun(self, task: Task, done: Sequence[Job], principal: Principal) -> Ending | None:
        """Make sure that the next hop is under way; if it cannot be, that is the end. Raises StoreError."""
        try:
            await self._desk.get(principal, task.job_id(len(done)))
            return None
        except JobNotFound:
            if task.first_id in self._endings:
                return self._endings[task.first_id]
        try:
            await self._go_on(task, done, principal)
        except StoreError:
            raise
        except FabricError as error:
            status = "timeout" if isinstance(error, CallTimeout) else "failed"
            return self._keep(task, _placed(Ending(status=status, error=JobError.of(error)), task, done))
        return None

    async def _go_on(self, task: Task, done: Sequence[Job], principal: Principal) -> None:
        first, last = done[0], done[-1]
        ends_at = first.expires_at or first.created_at + first.call.target.timeout_ms / 1000
        if ends_at <= time.time():
            raise CallTimeout(round(ends_at - first.created_at, 3))
        leg = Leg(
            principal=principal,
            trace=continue_trace(first.call.trace.trace_id, first.call.trace.span_id),
            ends_at=ends_at,
            delegation_chain=first.call.delegation_chain,
        )
        await self._accepted(task, len(done), last.result, leg)

    async def _accepted(self, task: Task, number: int, before: Result | None, leg: Leg) -> JobSummary:
        hop, job_id = task.hops[number], task.job_id(number)
        manifest = self._entries.target(hop.agent_id, hop.action, leg.principal)
        capability = manifest.capability(hop.action)
        given = hop.input if before is None else {**passed_on(before, capability), **hop.input}
        timeout_ms = max(1, round((leg.ends_at - time.time()) * 1000))
        call = Call(
            trace=leg.trace,
            auth=leg.principal,
            target=Target(agent_id=manifest.agent_id, capability=hop.action, timeout_ms=timeout_ms),
            input=input_of(given, capability),
            response=ResponseForm(stream=True, format="json"),
            conversation_id=task.conversation_id,
            delegation_chain=leg.delegation_chain,
            any_agent=True if hop.agent_id is None else msgspec.UNSET,
        )
        wish = JobWish(at_once=True, job_id=job_id, key=job_id, expires_at=leg.ends_at, meta=task.meta(number))
        try:
            return await self._desk.accept(call, wish, calls=0 if number else len(task.hops))
        except Conflict:  # somebody was quicker, and it was routed elsewhere
            return await self._desk.get(leg.principal, job_id)

    def _keep(self, task: Task, ending: Ending) -> Ending:
        self._endings[task.first_id] = ending
        if len(self._endings) > _ENDINGS_KEPT:
            self._endings.popitem(last=False)
        return ending


def _placed(ending: Ending, task: Task, done: Sequence[Job]) -> Ending:
    """Of several hops: which one this is about, and what the others have come to, if that was not all."""
    if len(task.hops) == 1 or ending.status == "completed":
        return ending
    before = [
        {"hop": number, "action": job.capability, "agentId": job.agent_id, "output": ending_of(job).output}
        for number, job in enumerate(done, start=1)
    ]
    return replace(ending, where={"hop": len(done) + 1, "action": task.hops[len(done)].action, "completed": before})
