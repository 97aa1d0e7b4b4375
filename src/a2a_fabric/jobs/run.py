"""One job in this process's hands, from the moment it is held to the moment it is left."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Literal

from msgspec.structs import replace

from a2a_fabric.core.errors import FabricError, InternalError
from a2a_fabric.core.job import JobSummary, Outcome
from a2a_fabric.core.lifecycle import is_held_by
from a2a_fabric.core.result import Result
from a2a_fabric.core.store_errors import JobNotFound, LeaseLost, StoreUnavailable
from a2a_fabric.core.stores import Jobs
from a2a_fabric.jobs import outcomes
from a2a_fabric.jobs.recorder import Recorder
from a2a_fabric.jobs.webhook import with_webhook
from a2a_fabric.jobs.work import Work

_log = logging.getLogger(__name__)
_GRACE = 10.0  # seconds that an agent has to notice that it was cancelled
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 2.0

Reason = Literal["asked", "lost", "stopping"]


class Run:
    """`task` is the agent's work, already begun; its events go to `recorder`.

    `work` is asked at the end only: an agent may say what it offers while it works.
    """

    def __init__(
        self,
        jobs: Jobs,
        job: JobSummary,
        work: Callable[[], Work],
        task: asyncio.Task[Result],
        recorder: Recorder,
    ) -> None:
        self.job = job
        self.again_at: float | None = None  # once it is left for another attempt
        self.is_leaving = False
        self._jobs = jobs
        self._work = work
        self._task = task
        self._recorder = recorder
        self._why: Reason | None = None
        self._given_up = asyncio.get_running_loop().create_future()

    def stop(self, why: Reason) -> None:
        """`lost` wins over everything: then nothing is written any more."""
        self.is_leaving = True
        if self._why is None:
            self._task.cancel()
            asyncio.get_running_loop().call_later(_GRACE, self._give_up)
        if self._why is None or why == "lost":
            self._why = why

    async def see_through(self) -> JobSummary | None:
        """Wait for the work's end and write it down. The job as it was left; None if it is somebody else's."""
        try:
            await asyncio.wait({self._task, self._given_up}, return_when=asyncio.FIRST_COMPLETED)
            outcome = self._outcome()
            self.is_leaving = True
            rest = await self._recorder.close()
            if self._why == "lost":
                raise LeaseLost(self.job.job_id, self.job.fence)
            left = await settle(self._jobs, self.job, replace(outcome, events=(*rest, *outcome.events)))
            self.again_at = outcome.run_at
            return left
        except (LeaseLost, JobNotFound):
            _log.info("job %s is somebody else's now", self.job.job_id)
            return None
        finally:
            self._task.cancel()
            self._give_up()

    def _give_up(self) -> None:
        if not self._given_up.done():
            self._given_up.set_result(None)

    def _outcome(self) -> Outcome:
        try:
            return self._ended()
        except FabricError as error:
            return self._failed(error)
        except asyncio.CancelledError:
            return self._failed(InternalError()) if self._why is None else self._taken_away()
        except Exception:
            _log.exception("job %s failed inside the gateway", self.job.job_id)
            return self._failed(InternalError())

    def _ended(self) -> Outcome:
        if not self._task.done():  # it was cancelled and does not care
            return self._taken_away()
        if self._recorder.refusal is not None and not self._task.cancelled() and self._task.exception() is None:
            raise self._recorder.refusal
        return outcomes.after_result(self._task.result())

    def _failed(self, error: FabricError) -> Outcome:
        if self._why is not None:
            return self._taken_away()
        work = self._work()
        return outcomes.after_error(
            self._recorder.refusal or error,
            self.job,
            work.retry,
            may_repeat=work.may_repeat,
            now=time.time(),
            reset=self._recorder.has_streamed,
        )

    def _taken_away(self) -> Outcome:
        if self._why == "asked":
            return outcomes.cancelled()
        return outcomes.after_interruption(self.job, may_repeat=self._work().may_restart, now=time.time())


async def settle(jobs: Jobs, job: JobSummary, outcome: Outcome) -> JobSummary:
    """Leave the job, waiting for the store as long as it takes. Raises LeaseLost, JobNotFound.

    A write whose fate is open is looked for before it is repeated.
    """
    told = with_webhook(outcome, job)
    pause = _FIRST_PAUSE
    while True:
        try:
            return await jobs.settle(job.held, told)
        except StoreUnavailable as error:
            if pause == _FIRST_PAUSE:  # once is enough for the log
                _log.warning("the end of job %s waits for the store: %s", job.job_id, error.message)
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
        left = await _as_left(jobs, job)
        if left is not None:
            return left


async def _as_left(jobs: Jobs, job: JobSummary) -> JobSummary | None:
    """None while we hold it, or cannot know. Raises JobNotFound."""
    try:
        known = await jobs.get(job.job_id)
    except StoreUnavailable:
        return None
    if known is None:
        raise JobNotFound(job.job_id)
    return None if is_held_by(known, job.held) else known
