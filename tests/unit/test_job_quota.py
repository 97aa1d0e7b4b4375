"""How many jobs of one owner may wait, with a clock and a store that the test holds in its hands."""

from __future__ import annotations

import asyncio
import time

import pytest

from a2a_fabric.core.errors import RateLimited, StoreUnavailable
from a2a_fabric.core.job import JobOutcome
from a2a_fabric.jobs.jobs import JobQuota
from a2a_fabric.stores.sqlite import MemoryStore
from a2a_fabric.stores.sqlite.jobs import SqliteJobs
from tests.contracts.stores import claim_request, new_job

ALICE = "psk:alice"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Counted(SqliteJobs):
    """A store that remembers how often it was asked to count."""

    counts = 0
    is_away = False

    async def count_waiting(self, owner: str, most: int) -> int:
        self.counts += 1
        await asyncio.sleep(0)  # as a store that has to be asked
        if self.is_away:
            raise StoreUnavailable("away")
        return await super().count_waiting(owner, most)


class Gate:
    """A quota in front of a store, and time that passes when it is told to."""

    def __init__(self, most: int) -> None:
        self.clock = Clock()
        store = MemoryStore()
        self.jobs = Counted(store.writer, store.reader, time.time)
        self._quota = JobQuota(self.jobs, most, self.clock)

    async def accept(self, owner: str = ALICE) -> None:
        await self._quota.take(owner)
        await self.jobs.accept(new_job(owner=owner))

    async def is_full(self) -> bool:
        try:
            await self.accept()
        except RateLimited as error:
            return error.retry_after > 0
        return False


async def test_the_limit_is_kept_for_each_owner_alone() -> None:
    gate = Gate(3)
    for _ in range(3):
        await gate.accept()
    with pytest.raises(RateLimited, match="3 jobs of this caller wait already"):
        await gate.accept()
    await gate.accept("psk:bob")


async def test_jobs_are_not_counted_for_each_that_comes() -> None:
    gate = Gate(1000)
    for _ in range(500):
        await gate.accept()
    assert gate.jobs.counts == 1


async def test_a_full_queue_is_counted_anew_a_moment_later_and_not_by_everybody_who_asks() -> None:
    gate = Gate(2)
    await gate.accept()
    await gate.accept()
    [job] = await gate.jobs.claim(claim_request())
    assert all([await gate.is_full() for _ in range(5)])
    assert gate.jobs.counts == 1
    gate.clock.now += 1.0
    assert not await gate.is_full()
    assert await gate.is_full()
    assert gate.jobs.counts == 2
    await gate.jobs.release(job.fencing_token, JobOutcome(state="completed"))


async def test_what_other_nodes_accept_counts_too_after_a_while() -> None:
    gate = Gate(5)
    await gate.accept()
    for _ in range(4):
        await gate.jobs.accept(new_job(owner=ALICE))
    assert not await gate.is_full()
    gate.clock.now += 11.0
    assert await gate.is_full()


async def test_who_comes_while_jobs_are_counted_waits_for_the_count() -> None:
    gate = Gate(5)
    for _ in range(3):
        await gate.jobs.accept(new_job(owner=ALICE))
    refused = await asyncio.gather(*(gate.is_full() for _ in range(20)))
    assert (refused.count(False), gate.jobs.counts) == (2, 1)


async def test_a_store_that_is_away_says_so_itself() -> None:
    gate = Gate(2)
    gate.jobs.is_away = True
    await gate.accept()
    assert gate.jobs.counts == 1
