"""`Jobs`, the facade of the job engine: accept, list, follow, answer, cancel and retry jobs.

Every method acts for a principal. A job of another owner is reported as not found.
All methods may raise StoreError."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from types import MappingProxyType
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Call, Emit, Handler, Principal, ignore_event, owner_from_principal
from a2a_fabric.core.errors import (
    BadInput,
    CallTimeout,
    Conflict,
    FabricError,
    JobNotFound,
    RateLimited,
    StoreUnavailable,
    suggest_nearest,
)
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
from a2a_fabric.core.limits import DEFAULT_SHARE, FairLimit, Share
from a2a_fabric.core.logins import login_error_from_questions
from a2a_fabric.core.propagation import make_sibling_trace
from a2a_fabric.core.result import Answer, Event, Result
from a2a_fabric.core.stores import RETRY_SECONDS, JobStore, Store, call_store, call_store_within, retry_store_call
from a2a_fabric.core.tasks import Deadline, cancel_and_wait, prune_forever
from a2a_fabric.jobs.promotion import Promotion
from a2a_fabric.jobs.reader import JobReader, is_settled
from a2a_fabric.jobs.run import (
    MAY_REPEAT,
    HandlerOverride,
    JobHandler,
    JobHandlers,
    JobListener,
    NullJobListener,
    Recorder,
    add_webhook_delivery,
    job_from_release,
    keep_handler,
    make_cancelled_outcome,
    note_span,
    status_event,
)
from a2a_fabric.jobs.settings import JobOptions, JobSettings
from a2a_fabric.jobs.views import event_from_log, handle_from_job, result_from_job, result_or_handle
from a2a_fabric.jobs.webhooks import (
    WEBHOOK_KIND,
    WEBHOOK_RETRY,
    WebhookSender,
    WebhookUrlPolicy,
    check_webhook,
)
from a2a_fabric.jobs.worker import Worker
from a2a_fabric.outbound.port import HTTPClient


def check_answers(job: Job, answers: Mapping[str, Answer]) -> None:
    """Raises BadInput for answers to other questions, and for missing answers. An agent may also ask without keys."""
    open_questions = job.open_questions
    if open_questions is None or job.question is None or not job.question["questions"]:
        return
    questions = job.question["questions"]
    for key in answers:
        if key not in questions:
            hint = suggest_nearest(key, questions)
            open_keys = _join_keys(open_questions.questions)
            raise BadInput(f"answers: there is no question {key[:64]!r}{hint}; open: {open_keys}", field="answers")
    missing = open_questions.questions.keys() - answers.keys()
    if missing:
        raise BadInput(f"answers: {_join_keys(missing)} missing; to leave a question open, decline it", field="answers")


def merge_answers(job: Job, answers: Mapping[str, Answer]) -> dict[str, Any]:
    """The new answers together with those given before."""
    previous = job.answer if job.state == "input_required" else None
    return {**(previous or {}), **msgspec.to_builtins(answers)}


def _join_keys(keys: Iterable[str]) -> str:
    return ", ".join(sorted(keys))[:300]


_log = logging.getLogger(__name__)
_JOB_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")
CANCEL_TIMEOUT = 5.0  # seconds for which callers wait for an agent to stop
_MAX_PAGE = 1000
_PRUNE_INTERVAL = 60.0
_PRUNE_BATCH = 500
_MAX_ANSWER_ATTEMPTS = 16
_MAX_RESUMED = 100  # jobs that go on after one login
_RECOUNT_AFTER = 10.0  # seconds
_RECOUNT_AFTER_AT_LIMIT = 0.5
_RETRY_AFTER = 2.0
_MAX_OWNERS = 10_000
_QUEUED_EVENTS = (status_event("queued"),)


class JobDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """What the job engine needs from the node: how a call runs, and whether it may."""

    handler: Handler
    handler_for_jobs: Handler | None = None  # for accepted jobs, which were counted then; None: `handler`
    check_call: Handler  # raises what the call would be refused with at once
    find_capability: Callable[[str, str], Capability | None]
    node_id: str
    count_calls: Callable[[str | None, int], None] = lambda principal_id, calls: None  # raises RateLimited
    drain_timeout: float  # seconds that running jobs have to finish when the node stops
    listener: JobListener = NullJobListener()
    waiting_requests: FairLimit = msgspec.field(default_factory=lambda: FairLimit("requests that wait", 1 << 30))
    share: Share = DEFAULT_SHARE  # of the slots for jobs that one owner may have
    override_handler: HandlerOverride = keep_handler  # replaces the handler of some jobs


class Jobs:
    """Use it as an async context manager; inside, a worker runs jobs."""

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
        self.waiting_requests = dependencies.waiting_requests  # requests that callers keep open until something happens
        self._store = store
        self._dependencies = dependencies
        webhook_sender = WebhookSender(store.jobs, http, settings.webhook_secret)
        self._internal_handlers = {
            WEBHOOK_KIND: JobHandler(handler=webhook_sender, may_repeat=True, retry=WEBHOOK_RETRY)
        }
        handlers = JobHandlers(
            dependencies.handler_for_jobs or dependencies.handler,
            dependencies.find_capability,
            settings.retry,
            self._internal_handlers,
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

    def set_drain_timeout(self, seconds: float) -> None:
        self._worker.drain_timeout = seconds

    def stop(self) -> None:
        """Begin no more jobs; readers get an error that says to continue later."""
        self._worker.stop()
        self._reader.stop()
        self._worker.dismiss_waiters()

    def find_job_after(self, agent_id: str, capability: str) -> float | None:
        """Seconds after which a call becomes a job, if its caller sets nothing; 0: always, None: never."""
        return self.job_after_of_capability(self._dependencies.find_capability(agent_id, capability))

    def job_after_of_capability(self, capability: Capability | None) -> float | None:
        own = capability.job_after_ms if capability is not None else None
        after_ms = own if own is not None else self.settings.job_after_ms
        return None if after_ms is None else after_ms / 1000

    async def call(self, call: Call, emit: Emit, options: JobOptions) -> Result:
        """Make a call that may become a job: returns its result, or one with `job_id` that shows the job.

        Raises what the call raises; with `at_once` only refusals before it runs.
        """
        event_sink = emit if call.response.stream else ignore_event
        if not options.is_durable:
            return await self._call_or_promote(_with_streaming(call), event_sink, options)
        job = await self.accept(call, options)
        if options.at_once:
            return handle_from_job(job)
        timeout = call.target.timeout_ms / 1000 if options.job_after is None else options.job_after
        settled_job, waiting_requests, caller = None, self.waiting_requests, call.auth.principal_id
        if waiting_requests.can_acquire(caller):
            waiting_requests.acquire(caller)
            try:
                if event_sink is ignore_event:
                    settled_job = await self._try_wait_until_settled(job.job_id, call, timeout)
                else:
                    await self.relay_events(job.job_id, event_sink, timeout)
            finally:
                waiting_requests.release(caller)
        return result_or_handle(settled_job or await self.get(call.auth, job.job_id))

    async def accept(self, call: Call, options: JobOptions, *, calls: int = 1) -> JobSummary:
        """Store a job. A key that was used for the same request returns that job; Conflict for another request.

        Raises what the call would be refused with before it runs, and RateLimited if too many jobs of this caller
        wait, or the caller calls too often; `calls` is how many calls this job counts for.
        """
        await self.admit(call, calls)
        if options.webhook is not None:
            await self.webhook_url_policy.check(options.webhook.url, "webhook.url")
        new_call, owner = _with_streaming(call), owner_from_principal(call.auth)
        # A caller that does not wait is shown a job that is queued.
        hold = None if options.at_once or options.run_at is not None else self._worker.reserve_hold(owner)
        new_job = self._build_new_job(new_call, options, _QUEUED_EVENTS, hold, note_span(call))
        return await (self._store_job(new_job) if hold is None else self._worker.begin(new_job, self._store_job))

    async def admit(self, call: Call, calls: int = 1) -> None:
        """The checks of `accept`, for code that stores the job together with something else: see `draft_job`."""
        self.waiting_requests.check(call.auth.principal_id)
        await self._dependencies.check_call(call, ignore_event)
        if calls:
            self._dependencies.count_calls(call.auth.principal_id, calls)
        await self._quota.take(owner_from_principal(call.auth))

    def draft_job(self, call: Call, options: JobOptions) -> NewJob:
        """A job to store after `admit`; call `report_accepted` once it is stored."""
        return self._build_new_job(_with_streaming(call), options, _QUEUED_EVENTS, meta=note_span(call))

    def report_accepted(self, job: JobSummary) -> None:
        """Report a job that was stored by other code than `accept`."""
        self._dependencies.listener.on_accepted(job)

    async def get(self, principal: Principal, job_id: str) -> Job:
        """Raises JobNotFound."""
        job = await self.get_any(job_id)
        if job.owner != owner_from_principal(principal):
            raise JobNotFound(job_id)
        return job

    async def get_any(self, job_id: str) -> Job:
        """A job of any caller, for operators. Raises JobNotFound."""
        if not _JOB_ID.fullmatch(job_id):
            raise JobNotFound(job_id)
        return await self._load_job(job_id)

    async def list(
        self,
        principal: Principal,
        *,
        states: Sequence[JobState] | None = None,
        agent_id: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> JobPage:
        """Newest first. Raises BadInput for an invalid cursor."""
        query = JobFilter(
            owner=owner_from_principal(principal), agent_id=agent_id, states=tuple(states) if states else None
        )
        page_limit = min(max(1, limit), _MAX_PAGE)
        return await retry_store_call(self._store.jobs.list, query, cursor=cursor, limit=page_limit)

    async def events(
        self, principal: Principal, job_id: str, after: int = 0, *, past_questions: bool = False
    ) -> AsyncGenerator[JobEvent]:
        """As `follow`. Raises JobNotFound if the job is another caller's."""
        async with aclosing(
            self.follow(await self.get(principal, job_id), after, past_questions=past_questions)
        ) as events:
            async for event in events:
                yield event

    def follow(self, job: JobSummary, after: int = 0, *, past_questions: bool = False) -> AsyncGenerator[JobEvent]:
        """The log of a job that its owner was given, after a number and then live.

        It ends with the job, and (unless `past_questions`) when the job asks something.
        Raises JobNotFound; StoreUnavailable when the node stops: continue elsewhere after the last number.
        """
        return self._reader.follow(job.job_id, after, past_questions=past_questions)

    async def result(self, principal: Principal, job_id: str, wait: float = 0.0) -> Result:
        """The result of the call, or its question; waits at most `wait` seconds. Raises the error of the call.

        Raises JobNotFound, and Conflict while the job has not ended.
        """
        job = await self.get(principal, job_id)
        return result_from_job(await self.wait_until_settled(job, wait) if wait > 0 else job)

    async def wait_until_settled(self, job: Job, timeout: float, *, past_questions: bool = False) -> Job:
        """The job once it has ended or (unless `past_questions`) asks something, or as it is after `timeout` seconds.

        A caller that holds its share of waiting requests does not wait.
        Raises JobNotFound if it is gone; StoreUnavailable when the node stops.
        """
        if job.has_ended:
            return job
        waiting_requests, caller, settled_job = self.waiting_requests, job.call.auth.principal_id, None
        if waiting_requests.can_acquire(caller):
            waiting_requests.acquire(caller)
            try:
                settled_job = await self._try_wait_until_settled(
                    job.job_id, job.call, timeout, past_questions=past_questions
                )
            finally:
                waiting_requests.release(caller)
        return settled_job or await self._load_job(job.job_id)

    async def cancel(self, principal: Principal, job_id: str) -> JobSummary:
        """A second time, or after the end, it changes nothing. Raises JobNotFound."""
        job = await self.get(principal, job_id)
        outcome = add_webhook_delivery(make_cancelled_outcome(), job)
        updated = await retry_store_call(self._store.jobs.cancel, job_id, outcome)
        if updated.cancel_requested and not updated.has_ended:
            self._worker.cancel(job_id)
        elif not job.has_ended:
            self._dependencies.listener.on_released(updated)
        return updated

    async def cancel_and_wait(self, principal: Principal, job_id: str, timeout: float = CANCEL_TIMEOUT) -> Job:
        """The job once it has ended, or as it is when time is up: an agent may be slow to stop. Raises JobNotFound."""
        job = await self.get(principal, job_id)
        await self.cancel(principal, job_id)
        return await self.wait_until_settled(job, timeout, past_questions=True)

    async def find(self, principal: Principal, given_id: str, derived_id: str) -> Job:
        """`given_id` is the node's id, or the caller's, from which `derived_id` was made. Raises JobNotFound."""
        with suppress(JobNotFound):
            return await self.get(principal, derived_id)
        return await self.get(principal, given_id)

    async def answer(
        self, principal: Principal, job_id: str, answers: dict[str, Answer], event_data: dict[str, Any] | None = None
    ) -> JobSummary:
        """Answer the agent's questions. Raises JobNotFound, Conflict if there are none, BadInput for wrong answers.

        `event_data` is added to the event in the log: what a door keeps of the caller's own message.
        """
        job = await self.get(principal, job_id)
        check_answers(job, answers)
        queued_event = status_event("queued", "Answered")
        event = Event(queued_event.kind, {**queued_event.data, **event_data}) if event_data else queued_event
        return await call_store(self._store.jobs.answer, job_id, merge_answers(job, answers), (event,))

    async def answer_some(self, principal: Principal, job_id: str, answers: dict[str, Answer]) -> JobSummary:
        """Answer some of the questions; the job continues once it has all answers. Other answers are ignored.

        Raises JobNotFound, and Conflict if too many answers come at the same moment.
        """
        for _ in range(_MAX_ANSWER_ATTEMPTS):
            job = await self.get(principal, job_id)
            open_questions = job.open_questions
            if open_questions is None:
                return job
            new_answers = {key: answer for key, answer in answers.items() if key in open_questions.questions}
            if not new_answers and open_questions.questions:
                return job
            with suppress(Conflict, BadInput):  # the job has changed since, or asks something else
                if len(new_answers) == len(open_questions.questions):
                    return await self.answer(principal, job_id, new_answers)
                return await call_store(
                    self._store.jobs.answer, job.job_id, merge_answers(job, new_answers), part_of=job.version
                )
        raise Conflict(f"Job '{job_id}' got other answers at the same moment; try again", job_id=job_id)

    async def answer_named(self, principal: Principal, job_id: str, answers: dict[str, Answer]) -> JobSummary:
        """As `answer_some`. Raises BadInput, too, if the job has open questions and none of these answers fits."""
        questions = (await self.get(principal, job_id)).open_questions
        if questions is not None and questions.questions and answers.keys().isdisjoint(questions.questions):
            names = ", ".join(f"'{key}'" for key in questions.questions)
            raise BadInput(f"No open question has such a key. Answer under {names}.", field="answers")
        return await self.answer_some(principal, job_id, answers)

    async def resume_after_login(self, owner: str, agent_id: str) -> None:
        """The owner has signed in to the agent: its jobs that wait for that go on. Never raises a FabricError."""
        query = JobFilter(owner=owner, agent_id=agent_id, states=("input_required",))
        try:
            for summary in (await self.list_internal(query, limit=_MAX_RESUMED)).jobs:
                job = await self._load_job(summary.job_id)
                if job.open_questions is not None and login_error_from_questions(job.open_questions) is not None:
                    answers = {key: Answer() for key in job.open_questions.questions}
                    event = status_event("queued", "Signed in")
                    await call_store(self._store.jobs.answer, job.job_id, merge_answers(job, answers), (event,))
        except FabricError as error:  # a message to the task lets it go on as well
            _log.info("jobs that waited for a login at agent %s could not be resumed: %s", agent_id, error.message)

    async def retry(self, principal: Principal, job_id: str) -> JobSummary:
        """Run the same call as a new job. Raises JobNotFound, and Conflict while the first job has not ended."""
        job = await self.get(principal, job_id)
        if not job.has_ended:
            raise Conflict(f"Job '{job_id}' is {job.state}; it can be retried when it has ended", job_id=job_id)
        return await self.accept(
            replace(job.call, auth=principal, trace=make_sibling_trace(job.call.trace)),
            JobOptions(at_once=True, priority=job.priority, meta={"retry_of": job_id}),
        )

    def add_internal_handler(self, kind: str, job_handler: JobHandler) -> None:
        """How internal jobs of a kind (`meta["kind"]`) run. Call it before the worker starts."""
        self._internal_handlers[kind] = job_handler

    async def accept_internal(self, new_job: NewJob) -> JobSummary:
        """Store an internal job that its owner may see and cancel; it counts like any other. Raises RateLimited."""
        self.waiting_requests.check(new_job.call.auth.principal_id)
        self._dependencies.count_calls(new_job.call.auth.principal_id, 1)
        await self._quota.take(new_job.owner)
        digest = None if new_job.key is None else compute_call_digest(new_job.call)
        return await self._store_job(replace(new_job, digest=digest, events=_QUEUED_EVENTS))

    async def wait_for_end(self, job_id: str) -> Job:
        """The job once it has ended, however long it takes. Raises JobNotFound, StoreUnavailable as the node stops."""
        return await self._reader.wait_until_settled(job_id, past_questions=True)

    async def submit_internal(self, new_job: NewJob) -> JobSummary:
        """Store an internal job, which is in no caller's list; the same id again changes nothing."""
        return await self._store_job(new_job)

    async def list_internal(self, query: JobFilter, *, cursor: str | None = None, limit: int = 1000) -> JobPage:
        return await retry_store_call(self._store.jobs.list, query, cursor=cursor, limit=limit)

    async def cancel_internal(self, job_id: str) -> None:
        """Raises JobNotFound."""
        await retry_store_call(self._store.jobs.cancel, job_id, make_cancelled_outcome())

    async def wait_for_internal(self, job_id: str, timeout: float) -> None:
        """Wait until it ends, at most `timeout` seconds."""
        with suppress(CallTimeout), Deadline(timeout):
            await self._reader.wait_until_settled(job_id)

    async def _load_job(self, job_id: str) -> Job:
        job = await retry_store_call(self._store.jobs.get, job_id)
        if job is None:
            raise JobNotFound(job_id)
        return job

    async def _try_wait_until_settled(
        self, job_id: str, call: Call, timeout: float, *, past_questions: bool = False
    ) -> Job | None:
        """None after `timeout` seconds. Of a job that runs here the end is known without reading it."""
        try:
            with Deadline(timeout):
                run = self._worker.find_run(job_id)
                released = None if run is None else await run.wait()
                if released is not None and is_settled(released.job.state, past_questions=past_questions):
                    return job_from_release(released, call)
                return await self._reader.wait_until_settled(job_id, past_questions=past_questions)
        except CallTimeout:
            return None

    async def relay_events(self, job_id: str, emit: Emit, timeout: float) -> None:
        """Emit its events until it ends or asks something, at most `timeout` seconds."""
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
        accepted = await retry_store_call(self._store.jobs.accept, new_job)
        if accepted.is_new:
            self._dependencies.listener.on_accepted(accepted.job)
        return accepted.job

    def _build_new_job(
        self,
        call: Call,
        options: JobOptions,
        events: Sequence[Event],
        hold: HoldRequest | None = None,
        meta: Mapping[str, Any] = MappingProxyType({}),
    ) -> NewJob:
        meta = {**options.meta, **meta, "trace_id": call.trace.trace_id}
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
    """Creates the job of a call that already runs."""

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
    """The agent of a job streams if it can, because the caller may follow the job later."""
    return replace(call, response=replace(call.response, stream=True))


class _OwnerCount:
    __slots__ = ("at", "number", "turn")

    def __init__(self) -> None:
        self.number = 0
        self.at = float("-inf")
        self.turn = asyncio.Lock()


class JobQuota:
    """Limits how many jobs of one owner may wait.

    Between two counts every accepted job adds to the number, so the estimate is too
    high rather than too low. The store counts again only when the estimate reaches the
    limit or is old (other nodes accept jobs too); concurrent callers wait for that count.
    """

    def __init__(self, jobs: JobStore, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._jobs = jobs
        self._limit = limit
        self._clock = clock
        self._counts: OrderedDict[str, _OwnerCount] = OrderedDict()

    async def take(self, owner: str) -> None:
        """Count one more waiting job of this owner. Raises RateLimited."""
        count = self._counts.get(owner)
        if count is None:
            count = self._add_owner(owner)
        if self._is_stale(count):
            async with count.turn:
                if self._is_stale(count):
                    with suppress(StoreUnavailable):  # writing the job will raise the same error
                        count.number = await call_store_within(
                            RETRY_SECONDS, self._jobs.count_waiting, owner, self._limit
                        )
                    count.at = self._clock()
        if count.number >= self._limit:
            raise RateLimited(
                f"{self._limit} jobs of this caller wait already, which is the limit; try again in {_RETRY_AFTER:g} s",
                _RETRY_AFTER,
            )
        count.number += 1

    def _add_owner(self, owner: str) -> _OwnerCount:
        count = self._counts[owner] = _OwnerCount()
        if len(self._counts) > _MAX_OWNERS:
            self._counts.popitem(last=False)
        return count

    def _is_stale(self, count: _OwnerCount) -> bool:
        age = self._clock() - count.at
        return age > _RECOUNT_AFTER or (count.number >= self._limit and age > _RECOUNT_AFTER_AT_LIMIT)
