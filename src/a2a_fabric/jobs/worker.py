"""The job worker: claims jobs, runs them, renews their leases, and recovers jobs whose worker is gone.

A job whose caller waits for it here, while the worker has a free slot and no job waits for one, is not queued and
claimed: it is stored as `running` and begun once it is on disk. What holds:
- The worker holds it under a name that no other job has. So if the write had an unknown outcome and was repeated, the
  worker knows its own job, and begins it once.
- The caller may leave at any time; the task that stores the job goes on and begins it.
- A job that cannot be begun (the node stops) or may have been stored (the store is away) is put back into the queue.

The loops survive every store error and try again. A job whose worker is gone is queued
again or ended, which depends on whether the capability may be repeated. A node that has
just started may not have asked the agent yet; then it holds the job for a while before
it decides."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Self

from a2a_fabric.core.errors import (
    STORE_AWAY,
    STORE_BACK,
    FabricError,
    JobNotFound,
    LeaseLost,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from a2a_fabric.core.job import (
    ClaimRequest,
    HeartbeatReply,
    HoldRequest,
    Job,
    JobOutcome,
    JobSummary,
    NewJob,
    WorkerSlots,
    decide_after_takeover,
)
from a2a_fabric.core.limits import DEFAULT_SHARE, Share, read_share
from a2a_fabric.core.propagation import new_id
from a2a_fabric.core.result import Result
from a2a_fabric.core.stores import WORK_TOPIC, JobStore, Store, WakeHandle, job_topic
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.jobs.reader import LocalState
from a2a_fabric.jobs.run import (
    GRAPH_AGENT,
    JobHandlers,
    JobListener,
    JobRun,
    Recorder,
    call_from_job,
    decide_after_interruption,
    release_job,
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
_INTERNAL_AGENTS = (WEBHOOK_AGENT, GRAPH_AGENT)
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
        share: Share = DEFAULT_SHARE,
    ) -> None:
        self.hold = HoldRequest(worker=f"{node_id}:{new_id()}", lease=settings.lease_seconds)
        self._store = store
        self._handlers = handlers
        self._settings = settings
        self.drain_timeout = drain_timeout
        self._listener = listener
        self._share = share
        self._recovery = LeaseRecovery(store.jobs, handlers, self.hold, listener)
        self._runs: dict[str, JobRun] = {}
        self._internal_runs: set[JobRun] = set()  # the runs of internal jobs
        self._working_runs: set[JobRun] = set()  # the runs that hold a slot; they leave it before their end is written
        self._slots_by_owner: Counter[str] = Counter()  # of jobs that are about to begin, or whose agent works
        self._hold_numbers = count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake_handle: WakeHandle | None = None
        self._jobs_may_wait = True  # for a free slot of this worker
        self._is_stopping = False
        self._claim_task: asyncio.Task[None] | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._waits_for_store = False

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
            await self._wait_for_tasks(self.drain_timeout)
        finally:
            for run in list(self._runs.values()):
                run.stop("stopping")
            await self._wait_for_tasks(_STOP_TIMEOUT)
            await cancel_and_wait(*self._loops, *self._tasks)

    def stop(self) -> None:
        """Begin no more jobs."""
        self._is_stopping = True
        self._wake()

    def find_run(self, job_id: str) -> JobRun | None:
        """A run whose end callers can wait for: not one that was stopped, or is being released already."""
        run = None if self._is_stopping else self._runs.get(job_id)
        return None if run is None or run.is_leaving else run

    def dismiss_waiters(self) -> None:
        """Callers that wait for runs of this worker have to look at the store."""
        for run in self._runs.values():
            run.dismiss_waiters()

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
        if not self._handlers.is_internal(job):
            self._slots_by_owner[job.owner] += 1
        self._start_task(self._run_to_end(self._add_run(job, task, recorder)))

    def reserve_hold(self, owner: str) -> HoldRequest | None:
        """A slot for a job that is to begin as soon as it is stored; None if the job has to be queued.

        Call `begin` with a job that has this hold.
        """
        if self._is_stopping or self._jobs_may_wait or self._has_limits:
            return None
        if self._is_store_behind or not self._build_slots().can_begin(owner):
            return None
        self._slots_by_owner[owner] += 1
        return HoldRequest(worker=f"{self.hold.worker}:{next(self._hold_numbers)}", lease=self.hold.lease)

    def begin(
        self, new_job: NewJob, store_job: Callable[[NewJob], Awaitable[JobSummary]]
    ) -> asyncio.Future[JobSummary]:
        """Store a job with a hold of `reserve_hold` and begin it. The future is the caller's: what was stored."""
        stored: asyncio.Future[JobSummary] = asyncio.get_running_loop().create_future()
        self._start_task(self._store_and_run(new_job, store_job, stored))
        return stored

    async def _store_and_run(
        self,
        new_job: NewJob,
        store_job: Callable[[NewJob], Awaitable[JobSummary]],
        stored: asyncio.Future[JobSummary],
    ) -> None:
        run = None
        try:
            job = await store_job(new_job)
            if _has_hold(job, new_job) and not self._is_stopping:
                recorder = self.recorder(job)
                work = self._handlers.bind_run(job, new_job.call, recorder.emit)
                run = self._add_run(job, asyncio.create_task(work), recorder)
        except BaseException as error:
            if not stored.done():
                stored.set_exception(error)
            if isinstance(error, StoreUnavailable) and not isinstance(error, StoreFull):  # it may have been written
                await self._put_back(new_job)
            elif not isinstance(error, FabricError):
                raise
            return
        finally:
            if run is None:
                self._free_slot(new_job.owner)
        if not stored.done():
            stored.set_result(job)
        if run is not None:
            await self._run_to_end(run)
        elif _has_hold(job, new_job):
            await self._put_back(new_job)

    async def _put_back(self, new_job: NewJob) -> None:
        """Queue a job that this worker holds but has not begun, if it was stored, or is while its lease would last."""
        outcome = JobOutcome(state="queued", is_postponed=True)
        ends_at = time.monotonic() + self.hold.lease
        while time.monotonic() < ends_at:
            with suppress(StoreError, LeaseLost, JobNotFound):
                job = await self._store.jobs.get(new_job.job_id)
                if job is not None:
                    if _has_hold(job, new_job):
                        await release_job(self._store.jobs, job, outcome)
                    return
            await asyncio.sleep(_FAILURE_PAUSE)

    def _add_run(self, job: JobSummary, task: asyncio.Task[Result], recorder: Recorder) -> JobRun:
        """`attach` and `reserve_hold` have taken its slot."""
        run = JobRun(self._store.jobs, job, lambda: self._handlers.find(job), task, recorder, self._leave_slot)
        self._runs[job.job_id] = run
        (self._internal_runs if self._handlers.is_internal(job) else self._working_runs).add(run)
        return run

    def _leave_slot(self, run: JobRun) -> None:
        if run in self._working_runs:
            self._working_runs.discard(run)
            self._free_slot(run.job.owner)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _free_slot(self, owner: str) -> None:
        slots = self._slots_by_owner
        slots[owner] -= 1
        if slots[owner] <= 0:
            del slots[owner]
        if self._jobs_may_wait:
            self._wake()

    def _build_slots(self) -> WorkerSlots:
        # Internal jobs take no slots from owners, because webhook receivers may be slow.
        return WorkerSlots(self._settings.concurrent, read_share(self._share), self._slots_by_owner)

    @property
    def _is_store_behind(self) -> bool:
        """Whether as many jobs wait for their end to be written as there are slots."""
        return len(self._runs) - len(self._internal_runs) - len(self._working_runs) >= self._settings.concurrent

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
            self._leave_slot(run)
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
            slots = self._build_slots()
            limit = 0 if self._is_store_behind else slots.count_claimable()
            blocked_owners = slots.list_blocked_owners()
            self._jobs_may_wait = limit <= 0 or bool(blocked_owners) or self._has_limits
            if limit <= 0:
                return
            claimed = await self._store.jobs.claim(self._build_claim_request(limit, blocked_owners))
            for job in claimed:
                recorder = self.recorder(job)
                work = self._handlers.bind_run(job, call_from_job(job), recorder.emit)
                self.attach(job, asyncio.create_task(work), recorder)
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
            limits = {**limits, **dict.fromkeys(_INTERNAL_AGENTS, 0)}  # they wait, or another node takes them
        elif settings.concurrent_per_agent is not None:
            # The limit per agent is not for them.
            limits = {**dict.fromkeys(_INTERNAL_AGENTS, settings.concurrent), **limits}
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
            if self._waits_for_store:
                self._waits_for_store = False
                _log.info("the store answers again", extra=STORE_BACK)
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
                self._waits_for_store = True
                if time.monotonic() - logged_at > _LOG_INTERVAL:
                    logged_at = time.monotonic()
                    _log.error("the job worker waits for the store: %s", error.message, extra=STORE_AWAY)
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


def _has_hold(job: JobSummary, new_job: NewJob) -> bool:
    """Whether the job is held, not yet begun, under the name with which it was to be stored."""
    hold = new_job.hold
    return job.state == "running" and job.lease is not None and hold is not None and job.lease.worker == hold.worker


def _depends_on_repeat(job: Job) -> bool:
    """Whether the decision depends on `may_repeat`: not if the job never began, was cancelled, or has expired."""
    now = time.time()
    end_states = {decide_after_takeover(job, may_repeat=may_repeat, now=now).state for may_repeat in (False, True)}
    return len(end_states) > 1
