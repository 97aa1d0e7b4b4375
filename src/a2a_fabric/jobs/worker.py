"""Claims jobs, sees them through, and keeps their leases.

Whatever the store does, the loops go on: what cannot be done now is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from a2a_fabric.core.claiming import Places
from a2a_fabric.core.job import ClaimWish, Hold, Job, JobSummary, Pulse
from a2a_fabric.core.result import Result
from a2a_fabric.core.shares import SHARE
from a2a_fabric.core.store_errors import StoreError
from a2a_fabric.core.stores import WORK, Store, Watch, job_topic
from a2a_fabric.core.trace import new_id
from a2a_fabric.jobs import outcomes
from a2a_fabric.jobs.news import JobNews
from a2a_fabric.jobs.reader import Standing
from a2a_fabric.jobs.recorder import Recorder
from a2a_fabric.jobs.run import Run
from a2a_fabric.jobs.settings import JobSettings
from a2a_fabric.jobs.takeover import Takeover
from a2a_fabric.jobs.webhook import AGENT as ERRANDS
from a2a_fabric.jobs.work import Assignment, asked

_log = logging.getLogger(__name__)
_POLL = 1.0  # seconds; for jobs that become due, and should a bell ever be missed
_LONGEST_TICK = 2.0
_AFTER_A_FAILURE = 0.5
_LAST_WORDS = 5.0
_TELL_EVERY = 30.0


class Worker:
    """Use it as an async context manager; leaving waits `patience` seconds for running jobs, then gives them back."""

    def __init__(
        self,
        store: Store,
        assignment: Assignment,
        settings: JobSettings,
        node_id: str,
        patience: float,
        news: JobNews,
        share: float = SHARE,
    ) -> None:
        self.hold = Hold(worker=f"{node_id}:{new_id()}", lease=settings.lease_seconds)
        self._store = store
        self._assignment = assignment
        self._settings = settings
        self._patience = patience
        self._news = news
        self._share = share
        self._takeover = Takeover(store.jobs, assignment, self.hold, news)
        self._runs: dict[str, Run] = {}
        self._errands: set[Run] = set()  # of these, those that go out into the world
        self._tasks: set[asyncio.Task[None]] = set()
        self._bell: Watch | None = None
        self._may_wait = True  # somebody for a place here
        self._is_stopping = False
        self._claiming: asyncio.Task[None] | None = None
        self._loops: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._loops = [asyncio.create_task(self._for_ever(self._tend))]
        if self._settings.concurrent:
            self._claiming = asyncio.create_task(self._for_ever(self._claim))
            self._loops.append(self._claiming)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.stop()
        try:
            if self._claiming is not None:
                await asyncio.wait({self._claiming}, timeout=_LAST_WORDS)  # what it is just claiming must not get lost
            await self._wait(self._patience)
        finally:
            for run in list(self._runs.values()):
                run.stop("stopping")
            await self._wait(_LAST_WORDS)
            await _end([*self._loops, *self._tasks])

    def stop(self) -> None:
        """Begin nothing new."""
        self._is_stopping = True
        self._wake()

    def standing(self, job_id: str) -> Standing:
        run = self._runs.get(job_id)
        if run is None:
            return "elsewhere"
        return "leaving" if run.is_leaving else "working"

    def cancel(self, job_id: str) -> None:
        """If it is in our hands, its agent hears of it now; else its holder learns it from the store."""
        run = self._runs.get(job_id)
        if run is not None:
            run.stop("asked")

    def recorder(self, job: JobSummary) -> Recorder:
        return Recorder(self._store.jobs, job, self._settings.event_bytes, lambda: self._drop(job))

    def adopt(self, job: JobSummary, task: asyncio.Task[Result], recorder: Recorder) -> None:
        """See work through that is already being done."""
        run = Run(self._store.jobs, job, lambda: self._assignment.of(job), task, recorder)
        self._runs[job.job_id] = run
        if self._assignment.is_errand(job):
            self._errands.add(run)
        seen = asyncio.create_task(self._see_through(run))
        self._tasks.add(seen)
        seen.add_done_callback(self._tasks.discard)

    async def _see_through(self, run: Run) -> None:
        try:
            left = await run.see_through()
            if left is not None:
                self._news.left(left)
        except Exception:
            _log.exception("job %s was left without a word", run.job.job_id)
        finally:
            if self._runs.get(run.job.job_id) is run:
                del self._runs[run.job.job_id]
            self._errands.discard(run)
            if self._may_wait:
                self._wake()
            if run.again_at is not None:
                asyncio.get_running_loop().call_later(max(0.0, run.again_at - time.time()), self._wake)

    def _drop(self, job: JobSummary) -> None:
        run = self._runs.get(job.job_id)
        if run is not None and run.job.fence == job.fence:
            self._lose(run)

    def _lose(self, run: Run) -> None:
        """Its end may have come already, while those who wait for it took it to be in our hands."""
        run.stop("lost")
        self._store.notices.post(job_topic(run.job.job_id))

    def _wake(self) -> None:
        """There may be something to claim, or nothing any more."""
        if self._bell is not None:
            self._bell.ring()

    async def _claim(self) -> None:
        with self._store.notices.watch(WORK) as self._bell:
            while not self._is_stopping:
                await self._claim_all()
                await self._bell.wait(_POLL)

    async def _claim_all(self) -> None:
        """As many as there is room for, and of each owner as many as its share allows."""
        while not self._is_stopping:
            places = self._places()
            room, held_back = places.at_once(), places.held_back()
            self._may_wait = room <= 0 or bool(held_back) or self._has_limits
            if room <= 0:
                return
            claimed = await self._store.jobs.claim(self._wish(room, held_back))
            for job in claimed:
                self._begin(job)
            if len(claimed) < room:
                return

    @property
    def _has_limits(self) -> bool:
        """Then some may wait though there is room: for their agent, or for other errands."""
        settings = self._settings
        is_limited = bool(settings.agents) or settings.concurrent_per_agent is not None
        return is_limited or len(self._errands) >= settings.concurrent

    def _places(self) -> Places:
        """Errands take nobody's place: whom they go to may be slow to answer."""
        held = Counter(run.job.owner for run in self._runs.values() if run not in self._errands)
        return Places(self._settings.concurrent, self._share, held)

    def _wish(self, room: int, held_back: tuple[str, ...]) -> ClaimWish:
        settings = self._settings
        limits = settings.agents
        if len(self._errands) >= settings.concurrent:
            limits = {**limits, ERRANDS: 0}  # they wait, or go from another node
        elif settings.concurrent_per_agent is not None:
            limits = {ERRANDS: settings.concurrent, **limits}  # they are no agent's
        return ClaimWish(
            hold=self.hold,
            limit=room,
            limits=limits,
            default_limit=settings.concurrent_per_agent,
            held_back=held_back,
        )

    def _begin(self, job: Job) -> None:
        recorder = self.recorder(job)
        handler = self._assignment.of(job).handler
        self.adopt(job, asyncio.create_task(asked(handler, outcomes.continued(job), recorder.emit)), recorder)

    async def _tend(self) -> None:
        """First our own leases: if it was we who slept, nobody has to take anything over."""
        while True:
            runs = list(self._runs.values())
            if runs:
                self._hear(runs, await self._store.jobs.heartbeat([run.job.held for run in runs], self.hold.lease))
            is_more = await self._takeover.look()
            await asyncio.sleep(0 if is_more else min(self.hold.lease / 5, _LONGEST_TICK))

    def _hear(self, runs: Sequence[Run], pulses: Sequence[Pulse]) -> None:
        for run, pulse in zip(runs, pulses, strict=True):
            if not pulse.is_held:
                self._lose(run)
            elif pulse.cancel_requested:
                run.stop("asked")

    async def _for_ever(self, loop: Callable[[], Awaitable[None]]) -> None:
        told_at = 0.0
        while not self._is_stopping or loop == self._tend:
            try:
                await loop()
                continue
            except StoreError as error:
                if time.monotonic() - told_at > _TELL_EVERY:
                    told_at = time.monotonic()
                    _log.error("jobs wait for the store: %s", error.message)
            except Exception:
                _log.exception("the job worker failed; it goes on")
            await asyncio.sleep(_AFTER_A_FAILURE)

    async def _wait(self, seconds: float) -> None:
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
