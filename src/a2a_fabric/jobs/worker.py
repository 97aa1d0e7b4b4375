"""The job worker: claims jobs, runs them, renews their leases, and recovers jobs whose worker is gone.

The loops survive every store error and try again. A job whose worker is gone is queued
again or ended, which depends on whether the capability may be repeated. A node that has
just started may not have asked the agent yet; then it holds the job for a while before
it decides."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Self

from a2a_fabric.core.errors import JobNotFound, LeaseLost, StoreError
from a2a_fabric.core.job import (
    ClaimRequest,
    HeartbeatReply,
    HoldRequest,
    Job,
    JobSummary,
    WorkerSlots,
    decide_after_takeover,
)
from a2a_fabric.core.limits import DEFAULT_SHARE
from a2a_fabric.core.propagation import new_id
from a2a_fabric.core.result import Result
from a2a_fabric.core.stores import WORK_TOPIC, JobStore, Store, WakeHandle, job_topic
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.jobs.reader import LocalState
from a2a_fabric.jobs.run import (
    JobHandlers,
    JobListener,
    JobRun,
    Recorder,
    call_from_job,
    decide_after_interruption,
    release_job,
    run_handler,
)
from a2a_fabric.jobs.settings import JobSettings
from a2a_fabric.jobs.webhooks import WEBHOOK_AGENT

_log = logging.getLogger(__name__)
_POLL_INTERVAL = 1.0  # seconds; for jobs that become due, and in case a notice is missed
_MAX_TICK = 2.0
_FAILURE_PAUSE = 0.5
_STOP_TIMEOUT = 5.0
_LOG_INTERVAL = 30.0
_DESCRIBE_TIMEOUT = 10.0  # seconds in which an agent that is online should have described itself
_TAKEOVER_BATCH = 100
_MAX_ATTEMPTS = 10  # a job whose worker dies each time may be the cause


class Worker:
    """Use it as an async context manager; leaving it waits `drain_timeout` seconds, then releases all jobs."""

    def __init__(
        self,
        store: Store,
        handlers: JobHandlers,
        settings: JobSettings,
        node_id: str,
        drain_timeout: float,
        listener: JobListener,
        share: float = DEFAULT_SHARE,
    ) -> None:
        self.hold = HoldRequest(worker=f"{node_id}:{new_id()}", lease=settings.lease_seconds)
        self._store = store
        self._handlers = handlers
        self._settings = settings
        self._drain_timeout = drain_timeout
        self._listener = listener
        self._share = share
        self._recovery = LeaseRecovery(store.jobs, handlers, self.hold, listener)
        self._runs: dict[str, JobRun] = {}
        self._internal_runs: set[JobRun] = set()  # the runs of internal jobs
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake_handle: WakeHandle | None = None
        self._jobs_may_wait = True  # for a free slot of this worker
        self._is_stopping = False
        self._claim_task: asyncio.Task[None] | None = None
        self._loops: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._loops = [asyncio.create_task(self._run_forever(self._maintain_leases))]
        if self._settings.concurrent:
            self._claim_task = asyncio.create_task(self._run_forever(self._claim_loop))
            self._loops.append(self._claim_task)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.stop()
        try:
            if self._claim_task is not None:
                # A claim that is under way must finish, or its jobs would wait for their leases to run out.
                await asyncio.wait({self._claim_task}, timeout=_STOP_TIMEOUT)
            await self._wait_for_tasks(self._drain_timeout)
        finally:
            for run in list(self._runs.values()):
                run.stop("stopping")
            await self._wait_for_tasks(_STOP_TIMEOUT)
            await cancel_and_wait(*self._loops, *self._tasks)

    def stop(self) -> None:
        """Begin no more jobs."""
        self._is_stopping = True
        self._wake()

    def local_state(self, job_id: str) -> LocalState:
        run = self._runs.get(job_id)
        if run is None:
            return "elsewhere"
        return "leaving" if run.is_leaving else "working"

    def cancel(self, job_id: str) -> None:
        """Cancel the agent's work now if this worker runs the job; another worker learns it from the store."""
        run = self._runs.get(job_id)
        if run is not None:
            run.stop("cancelled")

    def recorder(self, job: JobSummary) -> Recorder:
        return Recorder(self._store.jobs, job, self._settings.event_bytes, lambda: self._drop_lost(job))

    def attach(self, job: JobSummary, task: asyncio.Task[Result], recorder: Recorder) -> None:
        """Look after work that has already begun."""
        run = JobRun(self._store.jobs, job, lambda: self._handlers.find(job), task, recorder)
        self._runs[job.job_id] = run
        if self._handlers.is_internal(job):
            self._internal_runs.add(run)
        run_task = asyncio.create_task(self._run_to_end(run))
        self._tasks.add(run_task)
        run_task.add_done_callback(self._tasks.discard)

    async def _run_to_end(self, run: JobRun) -> None:
        try:
            released = await run.run_to_end()
            if released is not None:
                self._listener.on_released(released)
        except Exception:
            _log.exception("job %s was not released", run.job.job_id)
        finally:
            if self._runs.get(run.job.job_id) is run:
                del self._runs[run.job.job_id]
            self._internal_runs.discard(run)
            if self._jobs_may_wait:
                self._wake()
            if run.retry_at is not None:
                asyncio.get_running_loop().call_later(max(0.0, run.retry_at - time.time()), self._wake)

    def _drop_lost(self, job: JobSummary) -> None:
        run = self._runs.get(job.job_id)
        if run is not None and run.job.fence == job.fence:
            self._mark_lost(run)

    def _mark_lost(self, run: JobRun) -> None:
        """Stop the run, and wake its readers: the job may have ended elsewhere while they took it to run here."""
        run.stop("lost")
        self._store.notices.post(job_topic(run.job.job_id))

    def _wake(self) -> None:
        """Let the claim loop check again for jobs, or for the end."""
        if self._wake_handle is not None:
            self._wake_handle.wake()

    async def _claim_loop(self) -> None:
        with self._store.notices.watch(WORK_TOPIC) as self._wake_handle:
            while not self._is_stopping:
                await self._claim_available()
                await self._wake_handle.wait(_POLL_INTERVAL)

    async def _claim_available(self) -> None:
        """Claim as many jobs as there are free slots, and of each owner as many as its share allows."""
        while not self._is_stopping:
            # Internal jobs take no slots from owners, because webhook receivers may be slow.
            running = Counter(run.job.owner for run in self._runs.values() if run not in self._internal_runs)
            slots = WorkerSlots(self._settings.concurrent, self._share, running)
            limit, blocked_owners = slots.count_claimable(), slots.list_blocked_owners()
            self._jobs_may_wait = limit <= 0 or bool(blocked_owners) or self._has_limits
            if limit <= 0:
                return
            claimed = await self._store.jobs.claim(self._build_claim_request(limit, blocked_owners))
            for job in claimed:
                recorder = self.recorder(job)
                handler = self._handlers.find(job).handler
                self.attach(job, asyncio.create_task(run_handler(handler, call_from_job(job), recorder.emit)), recorder)
            if len(claimed) < limit:
                return

    @property
    def _has_limits(self) -> bool:
        """Whether jobs may wait although slots are free: for their agent, or for other internal jobs."""
        settings = self._settings
        is_limited = bool(settings.agents) or settings.concurrent_per_agent is not None
        return is_limited or len(self._internal_runs) >= settings.concurrent

    def _build_claim_request(self, limit: int, blocked_owners: tuple[str, ...]) -> ClaimRequest:
        settings = self._settings
        limits = settings.agents
        if len(self._internal_runs) >= settings.concurrent:
            limits = {**limits, WEBHOOK_AGENT: 0}  # they wait, or another node takes them
        elif settings.concurrent_per_agent is not None:
            limits = {WEBHOOK_AGENT: settings.concurrent, **limits}  # the limit per agent is not for them
        return ClaimRequest(
            hold=self.hold,
            limit=limit,
            limits=limits,
            default_limit=settings.concurrent_per_agent,
            blocked_owners=blocked_owners,
        )

    async def _maintain_leases(self) -> None:
        """Own leases come first: after a pause of this process its jobs need not be taken over."""
        while True:
            runs = list(self._runs.values())
            if runs:
                self._apply_heartbeats(
                    runs, await self._store.jobs.heartbeat([run.job.fencing_token for run in runs], self.hold.lease)
                )
            has_more = await self._recovery.recover_abandoned()
            await asyncio.sleep(0 if has_more else min(self.hold.lease / 5, _MAX_TICK))

    def _apply_heartbeats(self, runs: Sequence[JobRun], replies: Sequence[HeartbeatReply]) -> None:
        for run, reply in zip(runs, replies, strict=True):
            if not reply.is_held:
                self._mark_lost(run)
            elif reply.cancel_requested:
                run.stop("cancelled")

    async def _run_forever(self, loop: Callable[[], Awaitable[None]]) -> None:
        logged_at = 0.0
        while not self._is_stopping or loop == self._maintain_leases:
            try:
                await loop()
                continue
            except StoreError as error:
                if time.monotonic() - logged_at > _LOG_INTERVAL:
                    logged_at = time.monotonic()
                    _log.error("the job worker waits for the store: %s", error.message)
            except Exception:
                _log.exception("the job worker failed and continues")
            await asyncio.sleep(_FAILURE_PAUSE)

    async def _wait_for_tasks(self, seconds: float) -> None:
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)


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
        abandoned = await self._jobs.take_over(self._hold, _TAKEOVER_BATCH)
        for job in abandoned:
            self._undecided[job.job_id] = (job, self._clock() + _DESCRIBE_TIMEOUT)
        undecided = self._undecided.values()
        await asyncio.gather(*(self._decide(job) for job, decide_by in undecided if self._can_decide(job, decide_by)))
        return len(abandoned) == _TAKEOVER_BATCH

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
        outcome = decide_after_interruption(job, may_repeat=may_repeat, now=time.time())
        _log.info("job %s was abandoned and is %s now", job.job_id, outcome.state)
        with suppress(LeaseLost, JobNotFound):
            self._listener.on_released(await release_job(self._jobs, job, outcome))
        self._undecided.pop(job.job_id, None)


def _depends_on_repeat(job: Job) -> bool:
    """Whether the decision depends on `may_repeat`: not if the job never began, was cancelled, or has expired."""
    now = time.time()
    end_states = {decide_after_takeover(job, may_repeat=may_repeat, now=now).state for may_repeat in (False, True)}
    return len(end_states) > 1
