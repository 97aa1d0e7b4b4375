"""`Jobs`, the facade of the job engine: accept, list, follow, answer, cancel and retry jobs.

Every method acts for a principal. A job of another owner is reported as not found.
All methods may raise StoreError."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Call, Principal, owner_from_principal
from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.errors import BadInput, CallTimeout, Conflict, JobNotFound, suggest_nearest
from a2a_fabric.core.events import Event
from a2a_fabric.core.job import (
    HoldRequest,
    Job,
    JobEvent,
    JobFilter,
    JobPage,
    JobState,
    JobSummary,
    NewJob,
    RetentionPolicy,
    compute_call_digest,
    new_job_id,
)
from a2a_fabric.core.limits import DEFAULT_SHARE, FairLimit
from a2a_fabric.core.pipeline import Emit, Handler, ignore_event
from a2a_fabric.core.question import Answer
from a2a_fabric.core.result import Result
from a2a_fabric.core.stores import Store
from a2a_fabric.core.tasks import cancel_and_wait, prune_forever
from a2a_fabric.jobs import outcomes
from a2a_fabric.jobs.promotion import Promotion
from a2a_fabric.jobs.quota import JobQuota
from a2a_fabric.jobs.reader import JobReader
from a2a_fabric.jobs.recorder import Recorder
from a2a_fabric.jobs.retry import call_store, retry_store_call
from a2a_fabric.jobs.run import (
    MAY_REPEAT,
    HandlerOverride,
    JobHandler,
    JobHandlers,
    JobListener,
    NullJobListener,
    keep_handler,
)
from a2a_fabric.jobs.settings import JobOptions, JobSettings
from a2a_fabric.jobs.views import event_from_log, handle_from_job, result_from_job, result_or_handle
from a2a_fabric.jobs.webhooks import (
    WEBHOOK_KIND,
    WEBHOOK_RETRY,
    WebhookSender,
    WebhookUrlPolicy,
    add_webhook_delivery,
    check_webhook,
)
from a2a_fabric.jobs.worker import Worker
from a2a_fabric.outbound.port import HTTPClient


def check_answers(job: Job, answers: Mapping[str, Answer]) -> None:
    """Raises BadInput for what was not asked, and for what is left unanswered; an agent may also ask without keys."""
    open_questions = job.open_questions
    if open_questions is None or job.question is None or not job.question["questions"]:
        return
    questions = job.question["questions"]
    for key in answers:
        if key not in questions:
            raise BadInput(
                f"answers: nobody asked {key[:64]!r}{suggest_nearest(key, questions)}; asked: {_join_keys(open_questions.questions)}",
                field="answers",
            )
    missing = open_questions.questions.keys() - answers.keys()
    if missing:
        raise BadInput(f"answers: {_join_keys(missing)} missing; to leave one open, decline it", field="answers")


def merge_answers(job: Job, answers: Mapping[str, Answer]) -> dict[str, Any]:
    """All that was answered, with what was said before."""
    previous = job.answer if job.state == "input_required" else None
    return {**(previous or {}), **msgspec.to_builtins(answers)}


def _join_keys(keys: Iterable[str]) -> str:
    return ", ".join(sorted(keys))[:300]


_log = logging.getLogger(__name__)
_JOB_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_MAX_PAGE = 1000
_PRUNE_INTERVAL = 60.0
_PRUNE_BATCH = 500
_MAX_ANSWER_ATTEMPTS = 16
_QUEUED_EVENTS = (outcomes.status_event("queued"),)


class JobDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """What the desk needs of the node: how a call runs, and whether it could."""

    handler: Handler
    handler_for_jobs: Handler | None = None  # for what was accepted as a job, and counted then; unset: as any call
    check_call: Callable[[Call], Awaitable[object]]  # raises what the call would be refused with at once
    find_capability: Callable[[str, str], Capability | None]
    node_id: str
    count_calls: Callable[[Principal, int], None] = lambda principal, calls: (
        None
    )  # so many more calls; raises RateLimited
    drain_timeout: float  # seconds that running jobs have to finish when the node stops
    listener: JobListener = NullJobListener()
    waiting_requests: FairLimit = msgspec.field(
        default_factory=lambda: FairLimit("requests that wait", 1 << 30)
    )  # callers' own
    share: float = DEFAULT_SHARE  # of the places for jobs that one owner may have
    override_handler: HandlerOverride = keep_handler  # what is done besides for jobs of some kind


class Jobs:
    """Use it as an async context manager: inside, jobs are worked on."""

    def __init__(
        self,
        store: Store,
        dependencies: JobDependencies,
        settings: JobSettings,
        http: HTTPClient,
        webhook_url_policy: WebhookUrlPolicy,
    ) -> None:
        self.settings = settings
        self.webhook_url_policy = webhook_url_policy
        self.waiting_requests = dependencies.waiting_requests  # requests that are kept open until something happens
        self._store = store
        self._dependencies = dependencies
        webhook_sender = WebhookSender(store.jobs, http, settings.webhook_secret)
        internal_handlers = {WEBHOOK_KIND: JobHandler(handler=webhook_sender, may_repeat=True, retry=WEBHOOK_RETRY)}
        handlers = JobHandlers(
            dependencies.handler_for_jobs or dependencies.handler,
            dependencies.find_capability,
            settings.retry,
            internal_handlers,
            dependencies.override_handler,
        )
        self._worker = Worker(
            store,
            handlers,
            settings,
            dependencies.node_id,
            dependencies.drain_timeout,
            dependencies.listener,
            dependencies.share,
        )
        self._reader = JobReader(store, self._worker.local_state)
        self._quota = JobQuota(store.jobs, settings.waiting_per_principal)
        self._lifetimes = AsyncExitStack()

    async def __aenter__(self) -> Self:
        prune_task = asyncio.create_task(prune_forever(self._prune, _PRUNE_INTERVAL, _log, "ended jobs"))
        self._lifetimes.push_async_callback(cancel_and_wait, prune_task)
        await self._lifetimes.enter_async_context(self._worker)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.stop()
        await self._lifetimes.aclose()

    async def _prune(self) -> bool:
        retention = RetentionPolicy(max_age=self.settings.keep_seconds, max_bytes=self.settings.keep_bytes)
        return (await self._store.jobs.prune(retention, _PRUNE_BATCH)).is_done

    def stop(self) -> None:
        """Begin no more jobs; readers are told to come back later."""
        self._worker.stop()
        self._reader.stop()

    def find_job_after(self, agent_id: str, capability: str) -> float | None:
        """Seconds after which a call to this capability becomes a job, if its caller says nothing; 0: it always is."""
        return self.job_after_of_capability(self._dependencies.find_capability(agent_id, capability))

    def job_after_of_capability(self, capability: Capability | None) -> float | None:
        own = capability.job_after_ms if capability is not None else None
        after_ms = own if own is not None else self.settings.job_after_ms
        return None if after_ms is None else after_ms / 1000

    async def call(self, call: Call, emit: Emit, options: JobOptions) -> Result:
        """A call as its caller wishes it: the answer, or a result with `job_id` that shows the job.

        Raises what the call would; with `at_once` only what can be said before it runs.
        """
        event_sink = emit if call.response.stream else ignore_event
        if not options.is_durable:
            return await self._call_or_promote(_with_streaming(call), event_sink, options)
        job = await self.accept(call, options)
        if options.at_once:
            return handle_from_job(job)
        timeout = call.target.timeout_ms / 1000 if options.job_after is None else options.job_after
        if self.waiting_requests.can_acquire(call.auth.principal_id):
            with self.waiting_requests.hold(call.auth.principal_id):
                await self._relay_events(job.job_id, event_sink, timeout)
        return result_or_handle(await self.get(call.auth, job.job_id))

    async def accept(self, call: Call, options: JobOptions, *, calls: int = 1) -> JobSummary:
        """Write a job down. A key that was used for the same gives that job; Conflict if it was for something else.

        Raises BadInput, AgentNotFound and whatever else can be said of the call before it runs, and RateLimited if
        too many of this caller's wait already, or it calls too often; `calls` is how many this job counts for.
        """
        await self.admit(call, calls)
        if options.webhook is not None:
            await self.webhook_url_policy.check(options.webhook.url, "webhook.url")
        return await self._store_job(self.draft_job(call, options))

    async def admit(self, call: Call, calls: int = 1) -> None:
        """All that `accept` may refuse before anything is written, for those who write something else with it."""
        self.waiting_requests.check(call.auth.principal_id)
        await self._dependencies.check_call(call)
        if calls:
            self._dependencies.count_calls(call.auth, calls)
        await self._quota.take(owner_from_principal(call.auth))

    def draft_job(self, call: Call, options: JobOptions) -> NewJob:
        """What was admitted, for whoever writes it down; once that is done `begin` wants to know."""
        return self._build_new_job(_with_streaming(call), options, _QUEUED_EVENTS)

    def report_accepted(self, job: JobSummary) -> None:
        """It was written down by somebody else."""
        self._dependencies.listener.on_accepted(job)

    async def get(self, principal: Principal, job_id: str) -> Job:
        """Raises JobNotFound."""
        if not _JOB_ID.fullmatch(job_id):
            raise JobNotFound(job_id)
        job = await self._load_job(job_id)
        if job.owner != owner_from_principal(principal):
            raise JobNotFound(job_id)
        return job

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
        query = JobFilter(
            owner=owner_from_principal(principal), agent_id=agent_id, states=tuple(states) if states else None
        )
        page_limit = min(max(1, limit), _MAX_PAGE)
        return await retry_store_call(lambda: self._store.jobs.list(query, cursor=cursor, limit=page_limit))

    async def events(
        self, principal: Principal, job_id: str, after: int = 0, *, past_questions: bool = False
    ) -> AsyncGenerator[JobEvent]:
        """Its log after a number and then live, until it has ended, or (unless `past_questions`) asks something.

        Raises JobNotFound; StoreUnavailable when the node stops: go on elsewhere with the last number.
        """
        await self.get(principal, job_id)
        async with aclosing(self._reader.follow(job_id, after, past_questions=past_questions)) as events:
            async for event in events:
                yield event

    async def result(self, principal: Principal, job_id: str, wait: float = 0.0) -> Result:
        """What the call came to, within so many seconds: its answer or its question, or its error raised.

        Raises JobNotFound, and Conflict while it has not ended.
        """
        job = await self.get(principal, job_id)
        return result_from_job(await self.wait_until_settled(job, wait) if wait > 0 else job)

    async def wait_until_settled(self, job: Job, timeout: float, *, past_questions: bool = False) -> Job:
        """The job that its caller has, once it has ended, or (unless `past_questions`) asks something.

        When time is up, as it is then; and now, if this caller has its share of requests that wait.
        Raises JobNotFound if it is gone; StoreUnavailable when the node stops.
        """
        if job.has_ended:
            return job
        waiting_requests, caller, settled_job = self.waiting_requests, job.call.auth.principal_id, None
        if waiting_requests.can_acquire(caller):
            waiting_requests.acquire(caller)
            try:
                settled_job = await self._try_wait_until_settled(job.job_id, timeout, past_questions=past_questions)
            finally:
                waiting_requests.release(caller)
        return settled_job or await self._load_job(job.job_id)

    async def cancel(self, principal: Principal, job_id: str) -> JobSummary:
        """Twice, or after the end, it changes nothing. Raises JobNotFound."""
        job = await self.get(principal, job_id)
        outcome = add_webhook_delivery(outcomes.make_cancelled_outcome(), job)
        updated = await retry_store_call(lambda: self._store.jobs.cancel(job_id, outcome))
        if updated.cancel_requested and not updated.has_ended:
            self._worker.cancel(job_id)
        elif not job.has_ended:
            self._dependencies.listener.on_released(updated)
        return updated

    async def answer(
        self, principal: Principal, job_id: str, answers: dict[str, Answer], event_data: dict[str, Any] | None = None
    ) -> JobSummary:
        """What its agent asked. Raises JobNotFound, Conflict if it asked nothing, and BadInput if it asked else.

        `said` is what a door wants to find in the log: how the caller put it.
        """
        job = await self.get(principal, job_id)
        check_answers(job, answers)
        queued_event = outcomes.status_event("queued", "Answered")
        event = Event(queued_event.kind, {**queued_event.data, **event_data}) if event_data else queued_event
        return await call_store(lambda: self._store.jobs.answer(job_id, merge_answers(job, answers), (event,)))

    async def answer_some(self, principal: Principal, job_id: str, answers: dict[str, Answer]) -> JobSummary:
        """Of what its agent asked; it goes on once it knows all, and what it did not ask is left out.

        Raises JobNotFound, and Conflict if too many answer in the same moment.
        """
        for _ in range(_MAX_ANSWER_ATTEMPTS):
            job = await self.get(principal, job_id)
            open_questions = job.open_questions
            if open_questions is None:
                return job
            new_answers = {key: answer for key, answer in answers.items() if key in open_questions.questions}
            if not new_answers and open_questions.questions:
                return job
            with suppress(Conflict, BadInput):  # it has changed since, or asks something else
                if len(new_answers) == len(open_questions.questions):
                    return await self.answer(principal, job_id, new_answers)
                return await self._answer_partially(job, new_answers)
        raise Conflict(f"Job '{job_id}' is answered by others in the same moment; try again", job_id=job_id)

    async def _answer_partially(self, job: Job, new_answers: dict[str, Answer]) -> JobSummary:
        return await call_store(
            lambda: self._store.jobs.answer(job.job_id, merge_answers(job, new_answers), part_of=job.version)
        )

    async def retry(self, principal: Principal, job_id: str) -> JobSummary:
        """The same again as a new job. Raises JobNotFound, and Conflict while the first has not ended."""
        job = await self.get(principal, job_id)
        if not job.has_ended:
            raise Conflict(f"Job '{job_id}' is {job.state}; it can be retried when it has ended", job_id=job_id)
        return await self.accept(
            replace(job.call, auth=principal),
            JobOptions(at_once=True, priority=job.priority, meta={"retry_of": job_id}),
        )

    async def submit_internal(self, new_job: NewJob) -> JobSummary:
        """A job of the node's own, in nobody's list; the same id again changes nothing."""
        return await self._store_job(new_job)

    async def list_internal(self, query: JobFilter, *, cursor: str | None = None, limit: int = 1000) -> JobPage:
        return await retry_store_call(lambda: self._store.jobs.list(query, cursor=cursor, limit=limit))

    async def cancel_internal(self, job_id: str) -> None:
        """Raises JobNotFound."""
        await retry_store_call(lambda: self._store.jobs.cancel(job_id, outcomes.make_cancelled_outcome()))

    async def wait_for_internal(self, job_id: str, timeout: float) -> None:
        """Wait for its end, but no longer."""
        await self._try_wait_until_settled(job_id, timeout)

    async def _load_job(self, job_id: str) -> Job:
        job = await retry_store_call(lambda: self._store.jobs.get(job_id))
        if job is None:
            raise JobNotFound(job_id)
        return job

    async def _try_wait_until_settled(self, job_id: str, timeout: float, *, past_questions: bool = False) -> Job | None:
        """None if time is up."""
        try:
            with Deadline(timeout):
                return await self._reader.wait_until_settled(job_id, past_questions=past_questions)
        except CallTimeout:
            return None

    async def _relay_events(self, job_id: str, emit: Emit, timeout: float) -> None:
        """Pass its events on until it has ended or asks something, or time is up."""
        if emit is ignore_event:
            await self._try_wait_until_settled(job_id, timeout)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout), aclosing(self._reader.follow(job_id)) as events:
                async for event in events:
                    await emit(event_from_log(event))

    async def _call_or_promote(self, call: Call, emit: Emit, options: JobOptions) -> Result:
        creator = _JobFromCall(self, call, options)
        timeout = call.target.timeout_ms / 1000 if options.job_after is None else options.job_after
        outcome = await Promotion(self._dependencies.handler, creator, call, emit).wait(timeout)
        return outcome if isinstance(outcome, Result) else handle_from_job(outcome)

    async def _store_job(self, new_job: NewJob) -> JobSummary:
        accepted = await retry_store_call(lambda: self._store.jobs.accept(new_job))
        if accepted.is_new:
            self._dependencies.listener.on_accepted(accepted.job)
        return accepted.job

    def _build_new_job(
        self, call: Call, options: JobOptions, events: Sequence[Event], hold: HoldRequest | None = None
    ) -> NewJob:
        meta: dict[str, Any] = {**options.meta, "trace_id": call.trace.trace_id}
        capability = self._dependencies.find_capability(call.target.agent_id, call.target.capability)
        if capability is not None:
            meta[MAY_REPEAT] = capability.may_repeat
        if options.webhook is not None:
            meta["webhook"] = check_webhook(options.webhook, self.settings.webhook_secret)
        return NewJob(
            job_id=options.job_id or new_job_id(),
            owner=owner_from_principal(call.auth),
            call=call,
            priority=options.priority,
            run_at=options.run_at,
            expires_at=options.expires_at,
            key=options.key,
            digest=None if options.key is None else compute_call_digest(call),
            retention=options.retention,
            meta=meta,
            events=tuple(events),
            hold=hold,
        )


class _JobFromCall:
    """A call that already runs becomes a job of ours."""

    def __init__(self, jobs: Jobs, call: Call, options: JobOptions) -> None:
        self._jobs = jobs
        self._call = call
        self._options = options
        self.attach = jobs._worker.attach

    async def create_job(self, events: Sequence[Event]) -> tuple[JobSummary, Recorder]:
        jobs = self._jobs
        job = await jobs._store_job(jobs._build_new_job(self._call, self._options, events, jobs._worker.hold))
        return job, jobs._worker.recorder(job)


def _with_streaming(call: Call) -> Call:
    """A job's agent streams if it can, for whoever may follow it."""
    return replace(call, response=replace(call.response, stream=True))
