"""Jobs that are begun by the write that stores them, and what becomes of them when that goes wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.errors import StoreUnavailable
from a2a_fabric.core.job import AcceptResult, ClaimRequest, Job, JobSummary, NewJob
from a2a_fabric.core.result import Result
from a2a_fabric.core.retry import RetryPolicy
from a2a_fabric.jobs.run import JobHandlers, NullJobListener
from a2a_fabric.jobs.settings import JobSettings
from a2a_fabric.jobs.worker import Worker
from a2a_fabric.stores.sqlite import MemoryStore
from a2a_fabric.stores.sqlite.jobs import SqliteJobs
from tests.contracts.stores import new_job

SOON = 30.0  # seconds
OWNER = new_job().owner


class SlowJobs(SqliteJobs):
    """Accepts when the test lets it, and may lose the reply. Remembers what was claimed."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store.writer, store.reader, time.time)
        self.may_accept = asyncio.Event()
        self.may_accept.set()
        self.lost_replies = 0
        self.claimed: list[str] = []

    async def accept(self, new: NewJob) -> AcceptResult:
        await self.may_accept.wait()
        accepted = await super().accept(new)
        if self.lost_replies:
            self.lost_replies -= 1
            raise StoreUnavailable("gone")
        return accepted

    async def claim(self, request: ClaimRequest) -> Sequence[Job]:
        jobs = await super().claim(request)
        self.claimed += [job.job_id for job in jobs]
        return jobs


class Setup:
    """A worker on a store in memory, and an agent that answers when the test lets it."""

    def __init__(self, **settings: Any) -> None:
        self.store = MemoryStore()
        self.jobs = self.store.jobs = SlowJobs(self.store)
        self.begun: list[str] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        handlers = JobHandlers(self._work, lambda agent_id, name: None, RetryPolicy(), {})
        self.worker = Worker(self.store, handlers, JobSettings(**settings), "node", SOON, NullJobListener())

    async def _work(self, call: Call, emit: Emit) -> Result:
        self.begun.append(call.input.task)
        await self.may_end.wait()
        return Result(data={"answer": "42"})

    async def begin(self, **fields: Any) -> tuple[NewJob, asyncio.Future[JobSummary]]:
        hold = self.worker.reserve_hold(OWNER)
        assert hold is not None
        new = new_job(hold=hold, **fields)
        return new, self.worker.begin(new, self._store_job)

    async def _store_job(self, new: NewJob) -> JobSummary:
        return (await self.jobs.accept(new)).job

    async def ended(self, job_id: str) -> Job:
        async with asyncio.timeout(SOON):
            while True:
                job = await self.jobs.get(job_id)
                if job is not None and job.has_ended:
                    return job
                await asyncio.sleep(0.01)


@asynccontextmanager
async def working(**settings: Any) -> AsyncIterator[Setup]:
    """A worker that has seen that no job waits."""
    setup = Setup(**settings)
    async with setup.worker:
        async with asyncio.timeout(SOON):
            while (hold := setup.worker.reserve_hold("nobody")) is None:  # noqa: ASYNC110  # until its first claim
                await asyncio.sleep(0.01)
        assert hold.worker != setup.worker.hold.worker
        yield setup


async def test_a_job_is_running_when_it_is_stored_and_is_never_claimed() -> None:
    async with working() as setup:
        setup.may_end.clear()
        new, stored = await setup.begin()
        job = await stored
        assert (job.state, job.attempt) == ("running", 1)
        setup.may_end.set()
        ended = await setup.ended(new.job_id)
        assert (ended.state, ended.attempt, setup.jobs.claimed) == ("completed", 1, [])


async def test_a_caller_that_leaves_while_its_job_is_stored_leaves_a_job_that_is_done() -> None:
    async with working() as setup:
        setup.jobs.may_accept.clear()
        new, stored = await setup.begin()
        await asyncio.sleep(0)
        stored.cancel()
        setup.jobs.may_accept.set()
        assert (await setup.ended(new.job_id)).state == "completed"
        assert len(setup.begun) == 1


async def test_a_job_whose_reply_was_lost_is_queued_and_done_once() -> None:
    async with working() as setup:
        setup.jobs.lost_replies = 1
        new, stored = await setup.begin()
        with pytest.raises(StoreUnavailable):
            await stored
        ended = await setup.ended(new.job_id)
        assert (ended.state, ended.attempt) == ("completed", 1)
        assert (len(setup.begun), setup.jobs.claimed) == (1, [new.job_id])


async def test_a_job_that_is_stored_while_the_node_stops_is_queued_for_another_node() -> None:
    async with working() as setup:
        setup.jobs.may_accept.clear()
        new, stored = await setup.begin()
        await asyncio.sleep(0)
        setup.worker.stop()
        setup.jobs.may_accept.set()
        await stored
    job = await setup.jobs.get(new.job_id)
    assert job is not None
    assert (job.state, job.attempt, setup.begun) == ("queued", 0, [])


async def test_a_job_that_was_stored_before_under_the_same_key_is_not_begun_again() -> None:
    async with working() as setup:
        setup.may_end.clear()
        first, stored = await setup.begin(key="k", digest="d")
        await stored
        _, again = await setup.begin(key="k", digest="d")
        assert (await again).job_id == first.job_id
        setup.may_end.set()
        await setup.ended(first.job_id)
        assert len(setup.begun) == 1


async def test_a_job_is_queued_if_there_is_no_free_slot_and_while_others_wait_for_one() -> None:
    async with working(concurrent=2, lease_seconds=60.0) as setup:  # one slot is reserved already
        setup.may_end.clear()
        _, stored = await setup.begin()
        await stored
        assert setup.worker.reserve_hold(OWNER) is None
        assert setup.worker.reserve_hold("another") is None
        waiting = new_job()
        await setup.jobs.accept(waiting)
        setup.may_end.set()
        assert (await setup.ended(waiting.job_id)).state == "completed"
        assert setup.jobs.claimed == [waiting.job_id]
