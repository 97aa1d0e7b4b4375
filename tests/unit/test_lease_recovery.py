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
from tests.contracts.stores import CANCELLED, claim_request, new_job

HEIR = HoldRequest(worker="heir", lease=60.0)


async def _unasked(call: Call, emit: Emit) -> Result:
    raise AssertionError("nobody begins anything here")


class RecoverySetup:
    """A store, a node that takes over, what it knows of the agent, and its clock."""

    def __init__(self) -> None:
        self.known: Capability | None = None
        self.now = 0.0
        self.jobs = MemoryStore().jobs
        assignment = JobHandlers(_unasked, lambda agent_id, name: self.known, RetryPolicy(), {})
        self._takeover = LeaseRecovery(self.jobs, assignment, HEIR, NullJobListener(), lambda: self.now)

    async def abandoned(self, **about: Any) -> str:
        """A job that a worker began and left."""
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
    setup = RecoverySetup()
    setup.known = Capability(name="reason", idempotent=idempotent)
    assert await setup.state_of(await setup.abandoned()) == state


@pytest.mark.parametrize(("idempotent", "state"), [(True, "queued"), (False, "failed")])
async def test_an_agent_that_was_not_heard_yet_is_waited_for(idempotent: bool, state: str) -> None:
    setup = RecoverySetup()
    job_id = await setup.abandoned()
    assert await setup.state_of(job_id) == "running"
    setup.now += 9.0
    assert await setup.state_of(job_id) == "running"
    setup.known = Capability(name="reason", idempotent=idempotent)
    assert await setup.state_of(job_id) == state


async def test_a_job_of_unknown_repeatability_is_not_repeated() -> None:
    setup = RecoverySetup()
    job_id = await setup.abandoned()
    assert await setup.state_of(job_id) == "running"
    setup.now += 11.0
    assert await setup.state_of(job_id) == "failed"


@pytest.mark.parametrize(("may_repeat", "state"), [(True, "queued"), (False, "failed")])
async def test_what_was_known_when_it_was_accepted_is_enough(may_repeat: bool, state: str) -> None:
    setup = RecoverySetup()
    assert await setup.state_of(await setup.abandoned(meta={MAY_REPEAT: may_repeat})) == state


async def test_what_was_cancelled_or_is_late_needs_nobodys_word() -> None:
    setup = RecoverySetup()
    cancelled = await setup.abandoned()
    await setup.jobs.cancel(cancelled, CANCELLED)
    late = new_job(expires_at=1.0)
    await setup.jobs.accept(late)
    assert await setup.state_of(cancelled) == "cancelled"
    assert await setup.state_of(late.job_id) == "timeout"


async def test_a_postponed_job_is_left_alone_once_another_worker_has_it() -> None:
    setup = RecoverySetup()
    job_id = await setup.abandoned()
    assert await setup.state_of(job_id) == "running"
    held = await _held(setup, job_id)
    await setup.jobs.heartbeat([held.fencing_token], 0.0)
    [theirs] = await setup.jobs.take_over(HoldRequest(worker="another", lease=60.0))
    setup.known = Capability(name="reason", idempotent=True)
    assert await setup.state_of(job_id) == "running"
    assert (await _held(setup, job_id)).fencing_token == theirs.fencing_token
    assert await setup.jobs.claim(claim_request()) == []


async def _held(setup: RecoverySetup, job_id: str) -> JobSummary:
    job = await setup.jobs.get(job_id)
    assert job is not None
    return job


async def test_work_whose_worker_dies_each_time_is_not_begun_for_ever() -> None:
    setup = RecoverySetup()
    setup.known = Capability(name="reason", idempotent=True)
    job_id = await setup.abandoned()
    beginnings = 1
    while await setup.state_of(job_id) == "queued":
        beginnings += 1
        assert await setup.jobs.claim(claim_request(lease=0.0))
    job = await setup.jobs.get(job_id)
    assert job is not None
    assert (job.state, job.error and job.error.details["reason"]) == ("failed", "interrupted")
    assert job.attempt == beginnings == 10
