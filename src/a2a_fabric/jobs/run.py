"""One job while this process holds it: the handler that runs it, its execution, and how it is released."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import FabricError, InternalError, JobNotFound, LeaseLost, StoreUnavailable
from a2a_fabric.core.job import JobOutcome, JobSummary
from a2a_fabric.core.job_lifecycle import is_held_by
from a2a_fabric.core.pipeline import Emit, Handler
from a2a_fabric.core.result import Result
from a2a_fabric.core.retry import RetryPolicy
from a2a_fabric.core.stores import JobStore
from a2a_fabric.jobs import outcomes
from a2a_fabric.jobs.recorder import Recorder
from a2a_fabric.jobs.webhooks import add_webhook_delivery


class JobListener(Protocol):
    """Called on each node for the jobs that it accepts and runs. Must not raise or wait."""

    def on_accepted(self, job: JobSummary) -> None:
        """The job is stored."""
        ...

    def on_released(self, job: JobSummary) -> None:
        """The worker has released the job: ended, waiting for an answer, or queued again."""
        ...


class NullJobListener:
    def on_accepted(self, job: JobSummary) -> None:
        pass

    def on_released(self, job: JobSummary) -> None:
        pass


MAY_REPEAT = "may_repeat"


class JobHandler(msgspec.Struct, frozen=True, kw_only=True):
    """`restarts` says whether the job begins again after its worker died; None: if it may be repeated."""

    handler: Handler
    may_repeat: bool
    retry: RetryPolicy
    restarts: bool | None = None

    @property
    def may_restart(self) -> bool:
        return self.may_repeat if self.restarts is None else self.restarts


HandlerOverride = Callable[[JobSummary, JobHandler], JobHandler]


def keep_handler(job: JobSummary, job_handler: JobHandler) -> JobHandler:
    """The default override, which changes nothing."""
    return job_handler


class JobHandlers:
    """Finds the handler of a job: most jobs are calls to agents, those with a `kind` are internal jobs."""

    def __init__(
        self,
        handler: Handler,
        find_capability: Callable[[str, str], Capability | None],
        retry: RetryPolicy,
        internal_handlers: Mapping[str, JobHandler],
        override: HandlerOverride = keep_handler,
    ) -> None:
        self._handler = handler
        self._find_capability = find_capability
        self._retry = retry
        self._internal_handlers = internal_handlers
        self._override = override

    def find(self, job: JobSummary) -> JobHandler:
        internal_handler = self._internal_handlers.get(job.meta.get("kind", ""))
        return internal_handler if internal_handler is not None else self._override(job, self._handler_for_call(job))

    def is_internal(self, job: JobSummary) -> bool:
        return job.meta.get("kind", "") in self._internal_handlers

    def knows_repeatability(self, job: JobSummary) -> bool:
        """Whether it is known, from the catalog or from when the job was accepted, if the job may run again."""
        is_recorded = self.is_internal(job) or MAY_REPEAT in job.meta
        return is_recorded or self._find_capability(job.agent_id, job.capability) is not None

    def _handler_for_call(self, job: JobSummary) -> JobHandler:
        capability = self._find_capability(job.agent_id, job.capability)
        if capability is None:  # not in the catalog (yet): use what was known when the job was accepted
            return JobHandler(handler=self._handler, may_repeat=job.meta.get(MAY_REPEAT, False), retry=self._retry)
        return JobHandler(
            handler=self._handler, may_repeat=capability.may_repeat, retry=capability.retry or self._retry
        )


async def run_handler(handler: Handler, call: Call, emit: Emit) -> Result:
    """Call a handler as a coroutine, as a task needs it; handlers return any awaitable."""
    return await handler(call, emit)


_log = logging.getLogger(__name__)
_CANCEL_GRACE = 10.0  # seconds that an agent has to react to its cancellation
_FIRST_PAUSE, _MAX_PAUSE = 0.25, 2.0

StopReason = Literal["cancelled", "lost", "stopping"]


class JobRun:
    """One run of a job. `task` is the agent's work, already begun; its events go to `recorder`.

    `find_handler` is called only at the end, because the agent may be described while it works.
    """

    def __init__(
        self,
        jobs: JobStore,
        job: JobSummary,
        find_handler: Callable[[], JobHandler],
        task: asyncio.Task[Result],
        recorder: Recorder,
    ) -> None:
        self.job = job
        self.retry_at: float | None = None  # set once it is released for another attempt
        self.is_leaving = False
        self._jobs = jobs
        self._find_handler = find_handler
        self._task = task
        self._recorder = recorder
        self._stop_reason: StopReason | None = None
        self._abandoned = asyncio.get_running_loop().create_future()

    def stop(self, reason: StopReason) -> None:
        """`lost` overrides every other reason: then nothing more is written."""
        self.is_leaving = True
        if self._stop_reason is None:
            self._task.cancel()
            asyncio.get_running_loop().call_later(_CANCEL_GRACE, self._abandon)
        if self._stop_reason is None or reason == "lost":
            self._stop_reason = reason

    async def run_to_end(self) -> JobSummary | None:
        """Wait until the work ends and release the job. Returns the released job; None if another worker has it."""
        try:
            await asyncio.wait({self._task, self._abandoned}, return_when=asyncio.FIRST_COMPLETED)
            outcome = self._decide_outcome()
            self.is_leaving = True
            pending_events = await self._recorder.close()
            if self._stop_reason == "lost":
                raise LeaseLost(self.job.job_id, self.job.fence)
            released = await release_job(
                self._jobs, self.job, replace(outcome, events=(*pending_events, *outcome.events))
            )
            self.retry_at = outcome.run_at
            return released
        except (LeaseLost, JobNotFound):
            _log.info("job %s was taken over by another worker, or is gone", self.job.job_id)
            return None
        finally:
            self._task.cancel()
            self._abandon()

    def _abandon(self) -> None:
        if not self._abandoned.done():
            self._abandoned.set_result(None)

    def _decide_outcome(self) -> JobOutcome:
        try:
            return self._outcome_from_task()
        except FabricError as error:
            return self._outcome_from_error(error)
        except asyncio.CancelledError:
            return self._outcome_from_error(InternalError()) if self._stop_reason is None else self._outcome_from_stop()
        except Exception:
            _log.exception("job %s failed inside the gateway", self.job.job_id)
            return self._outcome_from_error(InternalError())

    def _outcome_from_task(self) -> JobOutcome:
        if not self._task.done():  # it was cancelled and did not stop in time
            return self._outcome_from_stop()
        if self._recorder.refusal is not None and not self._task.cancelled() and self._task.exception() is None:
            raise self._recorder.refusal
        return outcomes.decide_after_result(self._task.result())

    def _outcome_from_error(self, error: FabricError) -> JobOutcome:
        if self._stop_reason is not None:
            return self._outcome_from_stop()
        job_handler = self._find_handler()
        return outcomes.decide_after_error(
            self._recorder.refusal or error,
            self.job,
            job_handler.retry,
            may_repeat=job_handler.may_repeat,
            now=time.time(),
            reset=self._recorder.has_streamed,
        )

    def _outcome_from_stop(self) -> JobOutcome:
        if self._stop_reason == "cancelled":
            return outcomes.make_cancelled_outcome()
        return outcomes.decide_after_interruption(
            self.job, may_repeat=self._find_handler().may_restart, now=time.time()
        )


async def release_job(jobs: JobStore, job: JobSummary, outcome: JobOutcome) -> JobSummary:
    """Release the job, and wait for the store as long as it takes. Raises LeaseLost, JobNotFound.

    After a write with an unknown outcome, the job is read before the write is repeated.
    """
    final_outcome = add_webhook_delivery(outcome, job)
    pause = _FIRST_PAUSE
    while True:
        try:
            return await jobs.release(job.fencing_token, final_outcome)
        except StoreUnavailable as error:
            if pause == _FIRST_PAUSE:  # log it only once
                _log.warning("job %s cannot be released until the store is available: %s", job.job_id, error.message)
        await asyncio.sleep(pause)
        pause = min(pause * 2, _MAX_PAUSE)
        released = await _load_released(jobs, job)
        if released is not None:
            return released


async def _load_released(jobs: JobStore, job: JobSummary) -> JobSummary | None:
    """None while this worker holds it, or the store is unavailable. Raises JobNotFound."""
    try:
        stored = await jobs.get(job.job_id)
    except StoreUnavailable:
        return None
    if stored is None:
        raise JobNotFound(job.job_id)
    return None if is_held_by(stored, job.fencing_token) else stored
