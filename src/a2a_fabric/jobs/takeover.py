"""Jobs whose worker is gone: another begins anew, or they end.

Which of the two depends on what the agent says of the capability. A node that has
just started may not have heard of that yet; then the job is held for a while
before it is decided.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from a2a_fabric.core.job import Hold, Job
from a2a_fabric.core.lifecycle import after_takeover
from a2a_fabric.core.store_errors import JobNotFound, LeaseLost
from a2a_fabric.core.stores import Jobs
from a2a_fabric.jobs import outcomes
from a2a_fabric.jobs.news import JobNews
from a2a_fabric.jobs.run import settle
from a2a_fabric.jobs.work import Assignment, Work

_log = logging.getLogger(__name__)
_PATIENCE = 10.0  # seconds in which an agent that is there should have said what it offers
_AT_ONCE = 100
_MOST_BEGINNINGS = 10  # a job whose worker dies each time may be the reason for that


class Takeover:
    """`look` is called now and then, at once if there may be more, and again after a StoreError."""

    def __init__(
        self,
        jobs: Jobs,
        assignment: Assignment,
        hold: Hold,
        news: JobNews,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = jobs
        self._assignment = assignment
        self._hold = hold
        self._news = news
        self._clock = clock
        self._undecided: dict[str, tuple[Job, float]] = {}  # until when we wait

    async def look(self) -> bool:
        """Whether there may be more."""
        await self._keep()
        taken = await self._jobs.take_over(self._hold, _AT_ONCE)
        for job in taken:
            self._undecided[job.job_id] = (job, self._clock() + _PATIENCE)
        waited_for = self._undecided.values()
        await asyncio.gather(*(self._decide(job) for job, until in waited_for if self._can_decide(job, until)))
        return len(taken) == _AT_ONCE

    def _can_decide(self, job: Job, decided_by: float) -> bool:
        return not _depends(job) or self._assignment.is_sure_of(job) or self._clock() >= decided_by

    async def _keep(self) -> None:
        """What we wait with stays ours, unless somebody else has it by now."""
        if not self._undecided:
            return
        held = [job.held for job, _ in self._undecided.values()]
        for pulse in await self._jobs.heartbeat(held, self._hold.lease):
            if not pulse.is_held:
                del self._undecided[pulse.job_id]

    async def _decide(self, job: Job) -> None:
        may_repeat = _may_begin_again(job, self._assignment.of(job))
        outcome = outcomes.after_interruption(job, may_repeat=may_repeat, now=time.time())
        _log.info("job %s was abandoned and is %s now", job.job_id, outcome.state)
        with suppress(LeaseLost, JobNotFound):
            self._news.left(await settle(self._jobs, job, outcome))
        self._undecided.pop(job.job_id, None)


def _may_begin_again(job: Job, work: Work) -> bool:
    return work.may_restart and job.attempt < max(_MOST_BEGINNINGS, work.retry.max_attempts)


def _depends(job: Job) -> bool:
    """Whether it matters if the work may be repeated: not for what never began, was cancelled, or is late."""
    now = time.time()
    ends = {after_takeover(job, may_repeat=may_repeat, now=now).state for may_repeat in (False, True)}
    return len(ends) > 1
