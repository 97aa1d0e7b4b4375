"""Recovery of jobs whose worker is gone: each is queued again or ended.

The choice depends on whether the capability may be repeated. A node that has just
started may not have asked the agent yet; then it holds the job for a while before
it decides."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from a2a_fabric.core.errors import JobNotFound, LeaseLost
from a2a_fabric.core.job import HoldRequest, Job
from a2a_fabric.core.job_lifecycle import decide_after_takeover
from a2a_fabric.core.stores import JobStore
from a2a_fabric.jobs import outcomes
from a2a_fabric.jobs.run import JobHandlers, JobListener, release_job

_log = logging.getLogger(__name__)
_DESCRIBE_TIMEOUT = 10.0  # seconds in which an agent that is online should have described itself
_BATCH = 100
_MAX_ATTEMPTS = 10  # a job whose worker dies each time may be the cause


class LeaseRecovery:
    """`recover_abandoned` is called at intervals, at once if there may be more, and again after a StoreError."""

    def __init__(
        self,
        jobs: JobStore,
        handlers: JobHandlers,
        hold: HoldRequest,
        listener: JobListener,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = jobs
        self._handlers = handlers
        self._hold = hold
        self._listener = listener
        self._clock = clock
        self._undecided: dict[str, tuple[Job, float]] = {}  # with the moment when the decision is due

    async def recover_abandoned(self) -> bool:
        """Returns whether there may be more."""
        await self._renew_leases()
        abandoned = await self._jobs.take_over(self._hold, _BATCH)
        for job in abandoned:
            self._undecided[job.job_id] = (job, self._clock() + _DESCRIBE_TIMEOUT)
        undecided = self._undecided.values()
        await asyncio.gather(*(self._decide(job) for job, decide_by in undecided if self._can_decide(job, decide_by)))
        return len(abandoned) == _BATCH

    def _can_decide(self, job: Job, decide_by: float) -> bool:
        return not _depends_on_repeat(job) or self._handlers.knows_repeatability(job) or self._clock() >= decide_by

    async def _renew_leases(self) -> None:
        """Keep the undecided jobs, except those that another worker has taken."""
        if not self._undecided:
            return
        tokens = [job.fencing_token for job, _ in self._undecided.values()]
        for reply in await self._jobs.heartbeat(tokens, self._hold.lease):
            if not reply.is_held:
                del self._undecided[reply.job_id]

    async def _decide(self, job: Job) -> None:
        job_handler = self._handlers.find(job)
        may_repeat = job_handler.may_restart and job.attempt < max(_MAX_ATTEMPTS, job_handler.retry.max_attempts)
        outcome = outcomes.decide_after_interruption(job, may_repeat=may_repeat, now=time.time())
        _log.info("job %s was abandoned and is %s now", job.job_id, outcome.state)
        with suppress(LeaseLost, JobNotFound):
            self._listener.on_released(await release_job(self._jobs, job, outcome))
        self._undecided.pop(job.job_id, None)


def _depends_on_repeat(job: Job) -> bool:
    """Whether the decision depends on `may_repeat`: not if the job never began, was cancelled, or has expired."""
    now = time.time()
    end_states = {decide_after_takeover(job, may_repeat=may_repeat, now=now).state for may_repeat in (False, True)}
    return len(end_states) > 1
