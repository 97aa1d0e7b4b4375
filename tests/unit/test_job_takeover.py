"""What becomes of jobs whose worker is gone, when it is known what their agent offers, later, or never."""

from __future__ import annotations

from typing import Any

import pytest

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.job import HoldRequest, JobSummary
from a2a_fabric.core.result import Result
from a2a_fabric.core.retry import RetryPolicy
from a2a_fabric.jobs.run import MAY_REPEAT, JobHandlers, NullJobListener
from a2a_fabric.jobs.worker import LeaseRecovery
from a2a_fabric.stores.sqlite import MemoryStore
from tests.contracts.stores import CANCELLED, new_job, wish

HEIR = HoldRequest(worker="heir", lease=60.0)


async def _unasked(call: Call, emit: Emit) -> Result:
    raise AssertionError("nobody begins anything here")


class House:
    """A store, a node that takes over, what it knows of the agent, and its clock."""

    def __init__(self) -> None:
        self.known: Capability | None = None
        self.now = 0.0
        self.jobs = MemoryStore().jobs
        assignment = JobHandlers(_unasked, lambda agent_id, name: self.known, RetryPolicy(), {})
        self._takeover = LeaseRecovery(self.jobs, assignment, HEIR, NullJobListener(), lambda: self.now)

    async def abandoned(self, **about: Any) -> str:
        """A job that somebody began and left."""
        new = new_job(hold=HoldRequest(worker="gone", lease=0.0), **about)
        await self.jobs.accept(new)
        return new.job_id

    async def state_of(self, job_id: str) -> str:
        await self._takeover.recover_abandoned()
        job = await self.jobs.get(job_id)
        assert job is not None
        return job.state


@pytest.mark.parametrize(("idempotent", "state"), [(True, "queued"), (False, "failed")])
async def test_what_is_known_is_decided_at_once(idempotent: bool, state: str) -> None:
    house = House()
    house.known = Capability(name="reason", idempotent=idempotent)
    assert await house.state_of(await house.abandoned()) == state


@pytest.mark.parametrize(("idempotent", "state"), [(True, "queued"), (False, "failed")])
async def test_an_agent_that_was_not_heard_yet_is_waited_for(idempotent: bool, state: str) -> None:
    house = House()
    job_id = await house.abandoned()
    assert await house.state_of(job_id) == "running"
    house.now += 9.0
    assert await house.state_of(job_id) == "running"
    house.known = Capability(name="reason", idempotent=idempotent)
    assert await house.state_of(job_id) == state


async def test_what_nobody_ever_hears_of_is_not_repeated() -> None:
    house = House()
    job_id = await house.abandoned()
    assert await house.state_of(job_id) == "running"
    house.now += 11.0
    assert await house.state_of(job_id) == "failed"


@pytest.mark.parametrize(("may_repeat", "state"), [(True, "queued"), (False, "failed")])
async def test_what_was_known_when_it_was_accepted_is_enough(may_repeat: bool, state: str) -> None:
    house = House()
    assert await house.state_of(await house.abandoned(meta={MAY_REPEAT: may_repeat})) == state


async def test_what_was_cancelled_or_is_late_needs_nobodys_word() -> None:
    house = House()
    cancelled = await house.abandoned()
    await house.jobs.cancel(cancelled, CANCELLED)
    late = new_job(expires_at=1.0)
    await house.jobs.accept(late)
    assert await house.state_of(cancelled) == "cancelled"
    assert await house.state_of(late.job_id) == "timeout"


async def test_what_is_waited_with_is_left_alone_once_somebody_else_has_it() -> None:
    house = House()
    job_id = await house.abandoned()
    assert await house.state_of(job_id) == "running"
    held = await _held(house, job_id)
    await house.jobs.heartbeat([held.fencing_token], 0.0)
    [theirs] = await house.jobs.take_over(HoldRequest(worker="another", lease=60.0))
    house.known = Capability(name="reason", idempotent=True)
    assert await house.state_of(job_id) == "running"
    assert (await _held(house, job_id)).fencing_token == theirs.fencing_token
    assert await house.jobs.claim(wish()) == []


async def _held(house: House, job_id: str) -> JobSummary:
    job = await house.jobs.get(job_id)
    assert job is not None
    return job


async def test_work_whose_worker_dies_each_time_is_not_begun_for_ever() -> None:
    house = House()
    house.known = Capability(name="reason", idempotent=True)
    job_id = await house.abandoned()
    beginnings = 1
    while await house.state_of(job_id) == "queued":
        beginnings += 1
        assert await house.jobs.claim(wish(lease=0.0))
    job = await house.jobs.get(job_id)
    assert job is not None
    assert (job.state, job.error and job.error.details["reason"]) == ("failed", "interrupted")
    assert job.attempt == beginnings == 10
