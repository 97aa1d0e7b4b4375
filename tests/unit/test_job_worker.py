"""A worker and those who wait for jobs: they hear each end at once, also of what it has lost to another."""

from __future__ import annotations

import asyncio
import time

import pytest

from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.errors import StoreUnavailable
from a2a_fabric.core.job import FencingToken, HoldRequest, Job, JobOutcome, JobSummary
from a2a_fabric.core.result import Result, token
from a2a_fabric.core.retry import RetryPolicy
from a2a_fabric.jobs.reader import JobReader
from a2a_fabric.jobs.run import JobHandlers, NullJobListener, release_job
from a2a_fabric.jobs.settings import JobSettings
from a2a_fabric.jobs.worker import Worker
from a2a_fabric.stores.sqlite import MemoryStore
from a2a_fabric.stores.sqlite.jobs import SqliteJobs
from tests.contracts.stores import claim_request, completed, log_of, new_job

SOON = 30.0  # seconds
HEIR = HoldRequest(worker="heir", lease=60.0)
pytestmark = pytest.mark.usefixtures("without_polling")


class NotifyingJobs(SqliteJobs):
    """As in a database: those who wait hear of a write before the writer has its answer."""

    async def release(self, held: FencingToken, outcome: JobOutcome) -> JobSummary:
        left = await super().release(held, outcome)
        await asyncio.sleep(0.05)
        return left


class Shaky(SqliteJobs):
    """The first end fails, before it is written or after."""

    def __init__(self, *, is_written: bool) -> None:
        store = MemoryStore()
        super().__init__(store.writer, store.reader, time.time)
        self._is_written = is_written
        self.ends = 0

    async def release(self, held: FencingToken, outcome: JobOutcome) -> JobSummary:
        self.ends += 1
        if self.ends == 1:
            if self._is_written:
                await super().release(held, outcome)
            raise StoreUnavailable("gone")
        return await super().release(held, outcome)


class WorkerSetup:
    """A store, one worker on it, the agent that it asks, and the store's clock."""

    def __init__(self, lease: float = 1.0) -> None:
        self.ahead = 0.0
        self.begun = asyncio.Event()
        self.speak = asyncio.Event()
        self.end = asyncio.Event()
        self.store = MemoryStore(self._clock)
        self.store.jobs = NotifyingJobs(self.store.writer, self.store.reader, self._clock)
        assignment = JobHandlers(self._agent, lambda agent_id, name: None, RetryPolicy(), {})
        self.worker = Worker(self.store, assignment, JobSettings(lease_seconds=lease), "node", 0.0, NullJobListener())
        self.reader = JobReader(self.store, self.worker.local_state)

    def _clock(self) -> float:
        return time.time() + self.ahead

    async def _agent(self, call: Call, emit: Emit) -> Result:
        self.begun.set()
        await self.speak.wait()
        await emit(token("a word"))
        await self.end.wait()
        return Result(data={"answer": "42"})

    async def job(self) -> str:
        """One that the worker has begun."""
        new = new_job()
        await self.store.jobs.accept(new)
        async with asyncio.timeout(SOON):
            await self.begun.wait()
        return new.job_id

    async def taken_over(self) -> Job:
        """In one step of the event loop, as if our node had slept: its lease is over, and another has the job."""
        self.ahead += 60.0
        (job,) = await self.store.jobs.take_over(HEIR)
        return job


async def test_who_waits_hears_of_the_end_even_before_the_worker_knows_that_it_is_written() -> None:
    setup = WorkerSetup()
    async with setup.worker:
        job_id = await setup.job()
        waiting = asyncio.ensure_future(setup.reader.wait_until_settled(job_id))
        setup.speak.set()
        await asyncio.sleep(0.01)
        setup.end.set()
        async with asyncio.timeout(SOON):
            await waiting


async def test_who_waits_here_for_a_job_that_another_took_over_and_ended_hears_of_it_at_once() -> None:
    setup = WorkerSetup()
    async with setup.worker:
        job_id = await setup.job()
        waiting = asyncio.ensure_future(setup.reader.wait_until_settled(job_id))
        await asyncio.sleep(0.01)
        job = await setup.taken_over()
        await setup.store.jobs.release(job.fencing_token, completed())
        async with asyncio.timeout(SOON):
            await waiting


async def test_a_worker_that_learns_by_its_own_words_that_it_lost_a_job_tells_who_waits_for_it() -> None:
    setup = WorkerSetup()
    async with setup.worker:
        job_id = await setup.job()
        waiting = asyncio.ensure_future(setup.reader.wait_until_settled(job_id))
        await asyncio.sleep(0.01)
        job = await setup.taken_over()
        setup.speak.set()
        await setup.store.jobs.release(job.fencing_token, completed("42", "the end"))
        async with asyncio.timeout(SOON):
            await waiting
    assert await log_of(setup.store, job_id) == [(1, "the end")]


async def test_a_crowd_of_jobs_whose_time_is_over_at_once_ends_at_once() -> None:
    setup = WorkerSetup(lease=60.0)  # now and then is every two seconds
    jobs = [new_job(run_at=time.time() + 3600, expires_at=time.time()) for _ in range(500)]
    for job in jobs:
        await setup.store.jobs.accept(job)
    async with setup.worker, asyncio.timeout(SOON):
        for job in jobs:
            await setup.reader.wait_until_settled(job.job_id)
    assert (await setup.store.status()).jobs == {"timeout": len(jobs)}


@pytest.mark.parametrize(("is_written", "ends"), [(False, 2), (True, 1)])
async def test_an_end_that_may_have_been_written_is_written_once(is_written: bool, ends: int) -> None:
    jobs = Shaky(is_written=is_written)
    await jobs.accept(new_job())
    [job] = await jobs.claim(claim_request())
    left = await release_job(jobs, job, completed("42", "the end"))
    assert (left.state, left.events, jobs.ends) == ("completed", 1, ends)
