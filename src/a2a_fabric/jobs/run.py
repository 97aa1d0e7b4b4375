"""One job while this process holds it: its handler, its event log, its execution, its outcome and its release.

The recorder writes a job's events in batches, in order, each once, up to the size limit
of a job. While one batch is written the next one fills. An agent that is faster than the
store waits for the store; readers are never waited for. How a job is released (after a
result, an error, a cancellation or an interruption) is decided by pure functions."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Call, Emit, Handler
from a2a_fabric.core.errors import (
    STORE_AWAY,
    CallerError,
    CallTimeout,
    FabricError,
    InternalError,
    JobNotFound,
    LeaseLost,
    RateLimited,
    StoreUnavailable,
    UpstreamFailed,
)
from a2a_fabric.core.job import (
    SPAN_META,
    Job,
    JobError,
    JobOutcome,
    JobState,
    JobSummary,
    decide_after_takeover,
    is_final_state,
    is_held_by,
    translate_state,
)
from a2a_fabric.core.logins import LoginRequired
from a2a_fabric.core.propagation import make_child_trace
from a2a_fabric.core.recording import CallOrigin, current_origin
from a2a_fabric.core.result import (
    Answer,
    Answers,
    Event,
    PassedOnAnswer,
    Questions,
    Result,
    make_input_required,
    status,
)
from a2a_fabric.core.retry import RetryPolicy, compute_retry_pause
from a2a_fabric.core.stores import JobStore
from a2a_fabric.jobs.webhooks import delivery_for_job

_log = logging.getLogger(__name__)
_CANCEL_GRACE = 10.0  # seconds that an agent has to react to its cancellation
_FIRST_PAUSE, _MAX_PAUSE = 0.25, 2.0
_BATCH_DELAY = 0.002  # seconds; events that come close together are written together
_MAX_PENDING = 1000
_MAX_PENDING_BYTES = 1 << 20
_WRITE_RETRY_PAUSE = 0.25
NOT_JSON_ERRORS = (TypeError, ValueError, OverflowError, RecursionError)


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
RETRY_META = "retry"  # in a job's meta: its own retry policy
GRAPH_KIND, GRAPH_AGENT = "graph", "fabric.graphs"  # of internal jobs that run task graphs
WAITS_FOR_LOGIN = "waits_for_login"  # in the meta of a job whose caller can be told so; others end with the error


class JobHandler(msgspec.Struct, frozen=True, kw_only=True):
    """`restarts` says whether the job begins again after its worker died; None: if it may be repeated.

    `refusal_is_final`: when the agent itself refuses, it is not asked again, even if the job may be repeated.
    """

    handler: Handler
    may_repeat: bool
    retry: RetryPolicy
    restarts: bool | None = None
    refusal_is_final: bool = False

    @property
    def may_restart(self) -> bool:
        return self.may_repeat if self.restarts is None else self.restarts

    def may_repeat_after(self, error: FabricError) -> bool:
        return self.may_repeat and not (self.refusal_is_final and error.is_answer)


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

    def bind_run(self, job: JobSummary, call: Call, emit: Emit) -> Coroutine[Any, Any, Result]:
        """One run of a job: its calls are spans below the job's. Internal jobs make calls of their own, or none."""
        if SPAN_META in job.meta and not self.is_internal(job):
            call = replace(call, trace=make_child_trace(call.trace))
        return run_handler(self.find(job).handler, call, emit, origin_from_job(job))

    def is_internal(self, job: JobSummary) -> bool:
        return job.meta.get("kind", "") in self._internal_handlers

    def knows_repeatability(self, job: JobSummary) -> bool:
        """Whether it is known, from the catalog or from when the job was accepted, if the job may run again."""
        is_recorded = self.is_internal(job) or MAY_REPEAT in job.meta
        return is_recorded or self._find_capability(job.agent_id, job.capability) is not None

    def _handler_for_call(self, job: JobSummary) -> JobHandler:
        capability = self._find_capability(job.agent_id, job.capability)
        own_retry = msgspec.convert(job.meta[RETRY_META], RetryPolicy) if RETRY_META in job.meta else None
        if capability is None:  # not in the catalog (yet): use what was known when the job was accepted
            may_repeat = job.meta.get(MAY_REPEAT, False)
            return JobHandler(handler=self._handler, may_repeat=may_repeat, retry=own_retry or self._retry)
        retry = own_retry or capability.retry or self._retry
        return JobHandler(handler=self._handler, may_repeat=capability.may_repeat, retry=retry)


async def run_handler(handler: Handler, call: Call, emit: Emit, origin: CallOrigin) -> Result:
    """Call a handler in a task of its own, whose calls are recorded with this origin."""
    current_origin.set(origin)
    return await handler(call, emit)


def note_span(call: Call) -> dict[str, Any]:
    """For the meta of a job: its span and its door. The span of the accepted call is that of the job."""
    origin, trace = current_origin.get(), call.trace
    fields = {"span_id": trace.span_id, "parent_span_id": trace.parent_span_id}
    named = {"door": origin.door, "protocol": origin.protocol}
    sampled = {"sampled": False} if trace.sampled is False else {}
    return {SPAN_META: {name: value for name, value in (*fields.items(), *named.items()) if value} | sampled}


def origin_from_job(job: JobSummary) -> CallOrigin:
    span = job.meta.get(SPAN_META) or {}
    return CallOrigin(door=span.get("door", ""), protocol=span.get("protocol", ""), job_id=job.job_id)


class EventsTooLarge(FabricError):
    """Neither another agent nor a retry would help: they would write as much again."""

    code = "UPSTREAM_ERROR"
    never_ran = False

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The agent sent more than {limit} bytes of events, which is the limit for one job",
            reason="events_too_large",
            limit=limit,
        )


def measure_event(event: Event) -> int:
    """Raises UpstreamFailed for an event that is not JSON."""
    try:
        return len(msgspec.json.encode(event.data))
    except NOT_JSON_ERRORS as exc:
        raise UpstreamFailed(f"An event of the agent is not JSON: {exc}"[:300]) from exc


class Recorder:
    """Writes the log of one job for its worker. `on_lost` is called when another worker holds the job."""

    def __init__(self, jobs: JobStore, job: JobSummary, limit: int, on_lost: Callable[[], None]) -> None:
        self.has_streamed = False
        self.refusal: FabricError | None = None
        self._jobs = jobs
        self._token = job.fencing_token
        self._last = job.events
        self._bytes_left = limit - job.size
        self._limit = limit
        self._on_lost = on_lost
        self._pending: list[Event] = []
        self._pending_bytes = 0
        self._timer: asyncio.TimerHandle | None = None  # set while events come together for the next batch
        self._write_task: asyncio.Task[None] | None = None
        self._is_closing = False

    async def emit(self, event: Event) -> None:
        self.add(event)
        while self._is_full and not self._is_closing:
            if self._timer is not None:
                self._timer.cancel()
                self._begin_write()
            if self._write_task is None or self._write_task.done():
                return
            await asyncio.wait({self._write_task}, timeout=_WRITE_RETRY_PAUSE)

    def add(self, event: Event) -> None:
        """Queue an event for writing, without waiting. Raises EventsTooLarge, UpstreamFailed."""
        size = measure_event(event)
        self._bytes_left -= size
        if self._bytes_left < 0:
            self.refusal = EventsTooLarge(self._limit)
            raise self.refusal
        self.has_streamed = self.has_streamed or event.kind in ("token", "artifact")
        self._pending.append(event)
        self._pending_bytes += size
        if self._timer is None and (self._write_task is None or self._write_task.done()):
            self._timer = asyncio.get_running_loop().call_later(_BATCH_DELAY, self._begin_write)

    async def close(self) -> tuple[Event, ...]:
        """Stop writing. Returns the events that are not written yet; they belong to the job's last write."""
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        if self._write_task is not None:
            await asyncio.wait({self._write_task})
        return tuple(self._pending)

    def _begin_write(self) -> None:
        self._timer = None
        self._write_task = asyncio.ensure_future(self._write())

    @property
    def _is_full(self) -> bool:
        return len(self._pending) >= _MAX_PENDING or self._pending_bytes >= _MAX_PENDING_BYTES

    async def _write(self) -> None:
        try:
            while self._pending and not self._is_closing:
                batch, self._pending, self._pending_bytes = self._pending, [], 0
                await self._append(batch)
        except FabricError:  # LeaseLost, or the job is gone
            self._on_lost()

    async def _append(self, batch: Sequence[Event]) -> None:
        """After a write with an unknown outcome, read the log before repeating it: only this recorder writes to it."""
        expected = self._last + len(batch)
        while True:
            try:
                self._last = await self._jobs.append(self._token, batch)
                return
            except StoreUnavailable:
                await asyncio.sleep(_WRITE_RETRY_PAUSE)
            if await self._has_reached(expected):
                self._last = expected
                return

    async def _has_reached(self, number: int) -> bool:
        try:
            return (await self._jobs.events(self._token.job_id, after=number - 1, limit=1)).last >= number
        except StoreUnavailable:
            return False


CANCELLED = JobError(code="CANCELLED", message="The job was cancelled")


def status_event(state: JobState, message: str | None = None, *, reset: bool = False) -> Event:
    """The log event for a state; `reset` means: discard the text so far."""
    extra = {"reset": True} if reset else {}
    return status(translate_state(state, "stream"), message, state=state, **extra)  # type: ignore[arg-type]  # from the table


def make_cancelled_outcome() -> JobOutcome:
    return JobOutcome(state="cancelled", error=CANCELLED, events=(status_event("cancelled", CANCELLED.message),))


def decide_after_result(result: Result) -> JobOutcome:
    """Raises UpstreamFailed if the answer of an agent in this process is not JSON."""
    if result.asked is not None:
        return JobOutcome(state="input_required", question=msgspec.to_builtins(result.asked))
    try:
        msgspec.json.encode(result)
    except NOT_JSON_ERRORS as exc:
        raise UpstreamFailed(f"The agent's answer is not JSON: {exc}"[:300]) from exc
    return JobOutcome(state="completed", result=result, events=(status_event("completed"),))


def decide_after_error(
    error: FabricError, job: JobSummary, policy: RetryPolicy, *, may_repeat: bool, now: float, reset: bool
) -> JobOutcome:
    if isinstance(error, LoginRequired) and job.meta.get(WAITS_FOR_LOGIN) and error.questions is not None:
        return _wait_for_login(error.questions)
    pause = compute_retry_pause(error, job.attempt, policy, may_repeat=may_repeat, jitter=random.random())
    if pause is not None and (job.expires_at is None or job.expires_at > now + pause):
        is_postponed = isinstance(error, RateLimited)
        attempt = job.attempt if is_postponed else job.attempt + 1
        event = status_event("queued", f"{error.message}; attempt {attempt} in {pause:.1f} s", reset=reset)
        return JobOutcome(
            state="queued", run_at=now + pause, is_postponed=is_postponed, error=_storable_error(error), events=(event,)
        )
    state: JobState = "timeout" if isinstance(error, CallTimeout) else "failed"
    if isinstance(error, CallerError):
        state = "rejected"
    return JobOutcome(state=state, error=_storable_error(error), events=(status_event(state, error.message),))


def _wait_for_login(login_questions: Questions) -> JobOutcome:
    """The job goes on when its caller has signed in and says so, as after any question."""
    result = make_input_required(login_questions.questions, login_questions.continuation)
    event = Event("input_required", result.data["input_required"])
    return replace(decide_after_result(result), events=(event,))


def decide_after_interruption(job: JobSummary, *, may_repeat: bool, now: float) -> JobOutcome:
    """The worker is gone or stops: the job is queued again or ends, and its log says which."""
    outcome = decide_after_takeover(job, may_repeat=may_repeat, now=now)
    if outcome.state == "cancelled":
        return make_cancelled_outcome()
    if is_final_state(outcome.state):
        message = outcome.error.message if outcome.error else None
        return replace(outcome, events=(status_event(outcome.state, message),))
    return replace(outcome, events=(status_event("queued", "The work was interrupted; it begins again", reset=True),))


def add_webhook_delivery(outcome: JobOutcome, job: JobSummary) -> JobOutcome:
    """Add the delivery job to a final outcome, so that both are written together."""
    if "webhook" not in job.meta or not is_final_state(outcome.state):
        return outcome
    return replace(outcome, follow_ups=(*outcome.follow_ups, delivery_for_job(job)))


def call_from_job(job: Job) -> Call:
    """The call as it was accepted, with the caller's answers if the agent had a question."""
    if job.question is None or job.answer is None:
        return job.call
    answers = {
        key: msgspec.convert(answer, PassedOnAnswer if "original" in answer else Answer)
        for key, answer in job.answer.items()
    }
    continuation = job.question["continuation"]
    return replace(job.call, answers=Answers(continuation=continuation, answers=answers, is_trusted=True))


def _storable_error(error: FabricError) -> JobError:
    job_error = JobError.from_error(error)
    try:
        msgspec.json.encode(job_error)
    except NOT_JSON_ERRORS:
        return JobError(code=error.code, message=error.message.encode("utf-8", "replace").decode())
    return job_error


StopReason = Literal["cancelled", "lost", "stopping"]


class ReleasedJob(NamedTuple):
    """A job as its worker released it, with what was written about its end."""

    job: JobSummary
    outcome: JobOutcome


def job_from_release(released: ReleasedJob, call: Call) -> Job:
    """The job of this call as the store would return it: what a Python agent answers has the types of JSON there."""
    summary, outcome = released
    result = outcome.result
    return Job(
        **{name: getattr(summary, name) for name in JobSummary.__struct_fields__},
        call=call,
        result=None if result is None else msgspec.json.decode(msgspec.json.encode(result), type=Result),
        question=outcome.question,
    )


class JobRun:
    """One run of a job. `task` is the agent's work, already begun; its events go to `recorder`.

    `find_handler` is called only at the end, because the agent may be described while it works. `on_work_done` is
    called once, when the agent's work is over and only the end of the job is still to be written.
    """

    def __init__(
        self,
        jobs: JobStore,
        job: JobSummary,
        find_handler: Callable[[], JobHandler],
        task: asyncio.Task[Result],
        recorder: Recorder,
        on_work_done: Callable[[JobRun], None] = lambda run: None,
    ) -> None:
        self.job = job
        self.retry_at: float | None = None  # set once it is released for another attempt
        self.is_leaving = False
        self._jobs = jobs
        self._find_handler = find_handler
        self._task = task
        self._recorder = recorder
        self._on_work_done = on_work_done
        self._stop_reason: StopReason | None = None
        self._work_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # done, or abandoned
        self._waiters: list[asyncio.Future[ReleasedJob | None]] = []
        task.add_done_callback(self._end_work)

    def wait(self) -> asyncio.Future[ReleasedJob | None]:
        """A future of the caller's own: the job once it is released, None if it has to be read from the store."""
        waiter: asyncio.Future[ReleasedJob | None] = self._work_over.get_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def dismiss_waiters(self, released: ReleasedJob | None = None) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(released)
        self._waiters = []

    def stop(self, reason: StopReason) -> None:
        """`lost` overrides every other reason: then nothing more is written."""
        self.is_leaving = True
        if self._stop_reason is None:
            self._task.cancel()
            asyncio.get_running_loop().call_later(_CANCEL_GRACE, self._abandon)
        if self._stop_reason is None or reason == "lost":
            self._stop_reason = reason
        if reason == "lost":  # another worker ends it, and the agent here may be slow to stop
            self.dismiss_waiters()

    async def run_to_end(self) -> JobSummary | None:
        """Wait until the work ends and release the job. Returns the released job; None if another worker has it."""
        try:
            await self._work_over
            outcome = self._decide_outcome()
            self.is_leaving = True
            self._on_work_done(self)
            pending_events = await self._recorder.close()
            if self._stop_reason == "lost":
                raise LeaseLost(self.job.job_id, self.job.fence)
            released = await release_job(
                self._jobs, self.job, replace(outcome, events=(*pending_events, *outcome.events))
            )
            self.retry_at = outcome.run_at
            self.dismiss_waiters(ReleasedJob(released, outcome))
            return released
        except (LeaseLost, JobNotFound):
            _log.info("job %s was taken over by another worker, or is gone", self.job.job_id)
            return None
        finally:
            self._task.cancel()
            self._abandon()
            self.dismiss_waiters()

    def _end_work(self, task: asyncio.Task[Result]) -> None:
        self._abandon()

    def _abandon(self) -> None:
        if not self._work_over.done():
            self._work_over.set_result(None)

    def _decide_outcome(self) -> JobOutcome:
        try:
            if not self._task.done():  # it was cancelled and did not stop in time
                return self._outcome_from_stop()
            if self._recorder.refusal is not None and not self._task.cancelled() and self._task.exception() is None:
                raise self._recorder.refusal
            return decide_after_result(self._task.result())
        except FabricError as error:
            return self._outcome_from_error(error)
        except asyncio.CancelledError:
            return self._outcome_from_error(InternalError()) if self._stop_reason is None else self._outcome_from_stop()
        except Exception:
            _log.exception("job %s failed inside the gateway", self.job.job_id)
            return self._outcome_from_error(InternalError())

    def _outcome_from_error(self, error: FabricError) -> JobOutcome:
        if self._stop_reason is not None:
            return self._outcome_from_stop()
        job_handler = self._find_handler()
        error = self._recorder.refusal or error
        return decide_after_error(
            error,
            self.job,
            job_handler.retry,
            may_repeat=job_handler.may_repeat_after(error),
            now=time.time(),
            reset=self._recorder.has_streamed,
        )

    def _outcome_from_stop(self) -> JobOutcome:
        if self._stop_reason == "cancelled":
            return make_cancelled_outcome()
        return decide_after_interruption(self.job, may_repeat=self._find_handler().may_restart, now=time.time())


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
                _log.warning(
                    "job %s cannot be released until the store is available: %s",
                    job.job_id,
                    error.message,
                    extra=STORE_AWAY,
                )
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
