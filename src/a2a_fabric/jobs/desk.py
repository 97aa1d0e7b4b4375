"""`JobDesk`, the face of the job engine: accept, look, follow, answer, cancel.

Everything is asked in the name of a principal; somebody else's job is not found,
as if it did not exist. All methods may raise StoreError.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Call, Principal
from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.errors import BadInput, CallTimeout, Conflict
from a2a_fabric.core.events import Event
from a2a_fabric.core.job import (
    Hold,
    Job,
    JobEvent,
    JobFilter,
    JobPage,
    JobSummary,
    Keep,
    NewJob,
    digest_of,
    new_job_id,
    owner_of,
)
from a2a_fabric.core.pipeline import Emit, Handler, ignore
from a2a_fabric.core.question import Answer
from a2a_fabric.core.result import Result
from a2a_fabric.core.shares import SHARE, Shares
from a2a_fabric.core.states import JobState
from a2a_fabric.core.store_errors import JobNotFound
from a2a_fabric.core.stores import Store
from a2a_fabric.jobs import outcomes
from a2a_fabric.jobs.answers import all_said, check_answers
from a2a_fabric.jobs.handover import HandOver
from a2a_fabric.jobs.keeper import prune_for_ever
from a2a_fabric.jobs.news import JobNews, NoNews
from a2a_fabric.jobs.patience import once, patiently
from a2a_fabric.jobs.quota import Quota
from a2a_fabric.jobs.reader import Reader
from a2a_fabric.jobs.recorder import Recorder
from a2a_fabric.jobs.settings import JobSettings
from a2a_fabric.jobs.views import answer_or_handle, handle, numbered, outcome_of
from a2a_fabric.jobs.webhook import KIND, RETRY, Addresses, Messenger, check_webhook, with_webhook
from a2a_fabric.jobs.wish import JobWish
from a2a_fabric.jobs.work import MAY_REPEAT, Around, Assignment, Work, as_it_is
from a2a_fabric.jobs.worker import Worker
from a2a_fabric.outbound.port import HTTPClient

_JOB_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_MOST_LISTED = 1000
_MOST_AT_ONCE = 16
_QUEUED = (outcomes.told("queued"),)


class Waist(msgspec.Struct, frozen=True, kw_only=True):
    """What the desk needs of the node: how a call runs, and whether it could."""

    handler: Handler
    job_handler: Handler | None = None  # for what was accepted as a job, and counted then; unset: as any call
    check: Callable[[Call], Awaitable[object]]  # raises what the call would be refused with at once
    capability_of: Callable[[str, str], Capability | None]
    node_id: str
    count: Callable[[Principal, int], None] = lambda principal, calls: None  # so many more calls; raises RateLimited
    patience: float  # seconds that running jobs have to finish when the node stops
    news: JobNews = NoNews()
    waiting: Shares = msgspec.field(default_factory=lambda: Shares("requests that wait", 1 << 30))  # callers' own
    share: float = SHARE  # of the places for jobs that one owner may have
    around: Around = as_it_is  # what is done besides for jobs of some kind


class JobDesk:
    """Use it as an async context manager: inside, jobs are worked on."""

    def __init__(
        self, store: Store, waist: Waist, settings: JobSettings, http: HTTPClient, addresses: Addresses
    ) -> None:
        self.settings = settings
        self.addresses = addresses
        self.waiting = waist.waiting  # requests that are kept open until something happens
        self._store = store
        self._waist = waist
        messenger = Messenger(store.jobs, http, settings.webhook_secret)
        errands = {KIND: Work(handler=messenger, may_repeat=True, retry=RETRY)}
        assignment = Assignment(
            waist.job_handler or waist.handler, waist.capability_of, settings.retry, errands, waist.around
        )
        self._worker = Worker(store, assignment, settings, waist.node_id, waist.patience, waist.news, waist.share)
        self._reader = Reader(store, self._worker.standing)
        self._quota = Quota(store.jobs, settings.waiting_per_principal)
        self._lifetimes = AsyncExitStack()

    async def __aenter__(self) -> Self:
        keep = Keep(max_age=self.settings.keep_seconds, max_bytes=self.settings.keep_bytes)
        pruning = asyncio.create_task(prune_for_ever(self._store.jobs, keep))
        self._lifetimes.push_async_callback(_ended, pruning)
        await self._lifetimes.enter_async_context(self._worker)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.stop()
        await self._lifetimes.aclose()

    def stop(self) -> None:
        """Begin no more jobs; readers are told to come back later."""
        self._worker.stop()
        self._reader.stop()

    def job_after(self, agent_id: str, capability: str) -> float | None:
        """Seconds after which a call to this capability becomes a job, if its caller says nothing; 0: it always is."""
        return self.job_after_for(self._waist.capability_of(agent_id, capability))

    def job_after_for(self, capability: Capability | None) -> float | None:
        own = capability.job_after_ms if capability is not None else None
        after_ms = own if own is not None else self.settings.job_after_ms
        return None if after_ms is None else after_ms / 1000

    async def call(self, call: Call, emit: Emit, wish: JobWish) -> Result:
        """A call as its caller wishes it: the answer, or a result with `job_id` that shows the job.

        Raises what the call would; with `at_once` only what can be said before it runs.
        """
        hears = emit if call.response.stream else ignore
        if not wish.is_durable:
            return await self._until_handed_over(_listening(call), hears, wish)
        job = await self.accept(call, wish)
        if wish.at_once:
            return handle(job)
        patience = call.target.timeout_ms / 1000 if wish.job_after is None else wish.job_after
        if self.waiting.has_room(call.auth.principal_id):
            with self.waiting.held(call.auth.principal_id):
                await self._follow(job.job_id, hears, patience)
        return answer_or_handle(await self.get(call.auth, job.job_id))

    async def accept(self, call: Call, wish: JobWish, *, calls: int = 1) -> JobSummary:
        """Write a job down. A key that was used for the same gives that job; Conflict if it was for something else.

        Raises BadInput, AgentNotFound and whatever else can be said of the call before it runs, and RateLimited if
        too many of this caller's wait already, or it calls too often; `calls` is how many this job counts for.
        """
        await self.admit(call, calls)
        if wish.webhook is not None:
            await self.addresses.check(wish.webhook.url, "webhook.url")
        return await self._written(self.drafted(call, wish))

    async def admit(self, call: Call, calls: int = 1) -> None:
        """All that `accept` may refuse before anything is written, for those who write something else with it."""
        self.waiting.check(call.auth.principal_id)
        await self._waist.check(call)
        if calls:
            self._waist.count(call.auth, calls)
        await self._quota.take(owner_of(call.auth))

    def drafted(self, call: Call, wish: JobWish) -> NewJob:
        """What was admitted, for whoever writes it down; once that is done `begin` wants to know."""
        return self._new(_listening(call), wish, _QUEUED)

    def begin(self, job: JobSummary) -> None:
        """It was written down by somebody else."""
        self._waist.news.accepted(job)

    async def get(self, principal: Principal, job_id: str) -> Job:
        """Raises JobNotFound."""
        if not _JOB_ID.fullmatch(job_id):
            raise JobNotFound(job_id)
        known = await self._known(job_id)
        if known.owner != owner_of(principal):
            raise JobNotFound(job_id)
        return known

    async def list(
        self,
        principal: Principal,
        *,
        states: Sequence[JobState] | None = None,
        agent_id: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> JobPage:
        """Newest first. Raises BadInput for a cursor that is none."""
        wish = JobFilter(owner=owner_of(principal), agent_id=agent_id, states=tuple(states) if states else None)
        bounded = min(max(1, limit), _MOST_LISTED)
        return await patiently(lambda: self._store.jobs.list(wish, cursor=cursor, limit=bounded))

    async def events(
        self, principal: Principal, job_id: str, after: int = 0, *, past_questions: bool = False
    ) -> AsyncGenerator[JobEvent]:
        """Its log after a number and then live, until it has ended, or (unless `past_questions`) asks something.

        Raises JobNotFound; StoreUnavailable when the node stops: go on elsewhere with the last number.
        """
        await self.get(principal, job_id)
        async with aclosing(self._reader.follow(job_id, after, past_questions=past_questions)) as lines:
            async for line in lines:
                yield line

    async def result(self, principal: Principal, job_id: str, wait: float = 0.0) -> Result:
        """What the call came to, within so many seconds: its answer or its question, or its error raised.

        Raises JobNotFound, and Conflict while it has not ended.
        """
        job = await self.get(principal, job_id)
        return outcome_of(await self.settled(job, wait) if wait > 0 else job)

    async def settled(self, job: Job, within: float, *, past_questions: bool = False) -> Job:
        """The job that its caller has, once it has ended, or (unless `past_questions`) asks something.

        When time is up, as it is then; and now, if this caller has its share of requests that wait.
        Raises JobNotFound if it is gone; StoreUnavailable when the node stops.
        """
        if job.has_ended:
            return job
        waiting, caller, settled = self.waiting, job.call.auth.principal_id, None
        if waiting.has_room(caller):
            waiting.take(caller)
            try:
                settled = await self._until_settled(job.job_id, within, past_questions=past_questions)
            finally:
                waiting.give_back(caller)
        return settled or await self._known(job.job_id)

    async def cancel(self, principal: Principal, job_id: str) -> JobSummary:
        """Twice, or after the end, it changes nothing. Raises JobNotFound."""
        job = await self.get(principal, job_id)
        outcome = with_webhook(outcomes.cancelled(), job)
        known = await patiently(lambda: self._store.jobs.cancel(job_id, outcome))
        if known.cancel_requested and not known.has_ended:
            self._worker.cancel(job_id)
        elif not job.has_ended:
            self._waist.news.left(known)
        return known

    async def answer(
        self, principal: Principal, job_id: str, answers: dict[str, Answer], said: dict[str, Any] | None = None
    ) -> JobSummary:
        """What its agent asked. Raises JobNotFound, Conflict if it asked nothing, and BadInput if it asked else.

        `said` is what a door wants to find in the log: how the caller put it.
        """
        job = await self.get(principal, job_id)
        check_answers(job, answers)
        line = outcomes.told("queued", "Answered")
        told = Event(line.kind, {**line.data, **said}) if said else line
        return await once(lambda: self._store.jobs.answer(job_id, all_said(job, answers), (told,)))

    async def answer_some(self, principal: Principal, job_id: str, answers: dict[str, Answer]) -> JobSummary:
        """Of what its agent asked; it goes on once it knows all, and what it did not ask is left out.

        Raises JobNotFound, and Conflict if too many answer in the same moment.
        """
        for _ in range(_MOST_AT_ONCE):
            job = await self.get(principal, job_id)
            asked = job.unanswered
            if asked is None:
                return job
            new = {key: said for key, said in answers.items() if key in asked.questions}
            if not new and asked.questions:
                return job
            with suppress(Conflict, BadInput):  # it has changed since, or asks something else
                if len(new) == len(asked.questions):
                    return await self.answer(principal, job_id, new)
                return await self._answer_a_part(job, new)
        raise Conflict(f"Job '{job_id}' is answered by others in the same moment; try again", job_id=job_id)

    async def _answer_a_part(self, job: Job, new: dict[str, Answer]) -> JobSummary:
        return await once(lambda: self._store.jobs.answer(job.job_id, all_said(job, new), part_of=job.version))

    async def retry(self, principal: Principal, job_id: str) -> JobSummary:
        """The same again as a new job. Raises JobNotFound, and Conflict while the first has not ended."""
        job = await self.get(principal, job_id)
        if not job.has_ended:
            raise Conflict(f"Job '{job_id}' is {job.state}; it can be retried when it has ended", job_id=job_id)
        return await self.accept(
            replace(job.call, auth=principal), JobWish(at_once=True, priority=job.priority, meta={"retry_of": job_id})
        )

    async def send_errand(self, new: NewJob) -> JobSummary:
        """A job of the node's own, in nobody's list; the same id again changes nothing."""
        return await self._written(new)

    async def errands(self, wish: JobFilter, *, cursor: str | None = None, limit: int = 1000) -> JobPage:
        return await patiently(lambda: self._store.jobs.list(wish, cursor=cursor, limit=limit))

    async def drop_errand(self, job_id: str) -> None:
        """Raises JobNotFound."""
        await patiently(lambda: self._store.jobs.cancel(job_id, outcomes.cancelled()))

    async def errand_done(self, job_id: str, within: float) -> None:
        """Wait for its end, but no longer."""
        await self._until_settled(job_id, within)

    async def _known(self, job_id: str) -> Job:
        known = await patiently(lambda: self._store.jobs.get(job_id))
        if known is None:
            raise JobNotFound(job_id)
        return known

    async def _until_settled(self, job_id: str, within: float, *, past_questions: bool = False) -> Job | None:
        """None if time is up."""
        try:
            with Deadline(within):
                return await self._reader.settled(job_id, past_questions=past_questions)
        except CallTimeout:
            return None

    async def _follow(self, job_id: str, emit: Emit, patience: float) -> None:
        """Pass its events on until it has ended or asks something, or time is up."""
        if emit is ignore:
            await self._until_settled(job_id, patience)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(patience), aclosing(self._reader.follow(job_id)) as lines:
                async for line in lines:
                    await emit(numbered(line))

    async def _until_handed_over(self, call: Call, emit: Emit, wish: JobWish) -> Result:
        desk = _Birth(self, call, wish)
        patience = call.target.timeout_ms / 1000 if wish.job_after is None else wish.job_after
        came = await HandOver(self._waist.handler, desk, call, emit).wait(patience)
        return came if isinstance(came, Result) else handle(came)

    async def _written(self, new: NewJob) -> JobSummary:
        accepted = await patiently(lambda: self._store.jobs.accept(new))
        if accepted.is_new:
            self._waist.news.accepted(accepted.job)
        return accepted.job

    def _new(self, call: Call, wish: JobWish, events: Sequence[Event], hold: Hold | None = None) -> NewJob:
        meta: dict[str, Any] = {**wish.meta, "trace_id": call.trace.trace_id}
        capability = self._waist.capability_of(call.target.agent_id, call.target.capability)
        if capability is not None:
            meta[MAY_REPEAT] = capability.may_repeat
        if wish.webhook is not None:
            meta["webhook"] = check_webhook(wish.webhook, self.settings.webhook_secret)
        return NewJob(
            job_id=wish.job_id or new_job_id(),
            owner=owner_of(call.auth),
            call=call,
            priority=wish.priority,
            run_at=wish.run_at,
            expires_at=wish.expires_at,
            key=wish.key,
            digest=None if wish.key is None else digest_of(call),
            retention=wish.retention,
            meta=meta,
            events=tuple(events),
            hold=hold,
        )


class _Birth:
    """A call that already runs becomes a job of ours."""

    def __init__(self, desk: JobDesk, call: Call, wish: JobWish) -> None:
        self._desk = desk
        self._call = call
        self._wish = wish
        self.adopt = desk._worker.adopt

    async def born(self, events: Sequence[Event]) -> tuple[JobSummary, Recorder]:
        desk = self._desk
        job = await desk._written(desk._new(self._call, self._wish, events, desk._worker.hold))
        return job, desk._worker.recorder(job)


def _listening(call: Call) -> Call:
    """A job's agent streams if it can, for whoever may follow it."""
    return replace(call, response=replace(call.response, stream=True))


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
