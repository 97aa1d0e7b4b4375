"""Pure decisions about how a job is released: after a result, an error, a cancellation or an interruption."""

from __future__ import annotations

import random

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import CallerError, CallTimeout, FabricError, RateLimited, UpstreamFailed
from a2a_fabric.core.events import Event, status
from a2a_fabric.core.job import Job, JobError, JobOutcome, JobState, JobSummary, is_final_state, translate_state
from a2a_fabric.core.job_lifecycle import decide_after_takeover
from a2a_fabric.core.question import Answer, Answers
from a2a_fabric.core.result import Result
from a2a_fabric.core.retry import RetryPolicy, compute_retry_pause
from a2a_fabric.jobs.recorder import NOT_JSON_ERRORS

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
    pause = compute_retry_pause(error, job.attempt, policy, may_repeat=may_repeat, jitter=random.random())
    if pause is not None and not _expires_by(job, now + pause):
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


def decide_after_interruption(job: JobSummary, *, may_repeat: bool, now: float) -> JobOutcome:
    """The worker is gone or stops: the job is queued again or ends, and its log says which."""
    outcome = decide_after_takeover(job, may_repeat=may_repeat, now=now)
    if outcome.state == "cancelled":
        return make_cancelled_outcome()
    if is_final_state(outcome.state):
        message = outcome.error.message if outcome.error else None
        return replace(outcome, events=(status_event(outcome.state, message),))
    return replace(outcome, events=(status_event("queued", "The work was interrupted; it begins again", reset=True),))


def call_from_job(job: Job) -> Call:
    """The call as it was accepted, with the caller's answers if the agent had a question."""
    if job.question is None or job.answer is None:
        return job.call
    answers = msgspec.convert(job.answer, dict[str, Answer])
    return replace(job.call, answers=Answers(continuation=job.question["continuation"], answers=answers))


def _storable_error(error: FabricError) -> JobError:
    job_error = JobError.from_error(error)
    try:
        msgspec.json.encode(job_error)
    except NOT_JSON_ERRORS:
        return JobError(code=error.code, message=error.message.encode("utf-8", "replace").decode())
    return job_error


def _expires_by(job: JobSummary, moment: float) -> bool:
    return job.expires_at is not None and job.expires_at <= moment
