"""How a job is left, decided purely: by a result, an error, or the end of whoever worked on it."""

from __future__ import annotations

import random

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import CallerError, CallTimeout, FabricError, RateLimited, UpstreamFailed
from a2a_fabric.core.events import Event, status
from a2a_fabric.core.job import Job, JobError, JobSummary, Outcome
from a2a_fabric.core.lifecycle import after_takeover
from a2a_fabric.core.question import Answer, Answers
from a2a_fabric.core.result import Result
from a2a_fabric.core.retry import RetryPolicy, pause_before_retry
from a2a_fabric.core.states import JobState, has_ended, word_for

CANCELLED = JobError(code="CANCELLED", message="The job was cancelled")
_NOT_JSON = (TypeError, ValueError, OverflowError, RecursionError)


def told(state: JobState, message: str | None = None, *, reset: bool = False) -> Event:
    """The line of the log that says so; `reset` means: forget the words so far."""
    more = {"reset": True} if reset else {}
    return status(word_for(state, "stream"), message, state=state, **more)  # type: ignore[arg-type]  # its own words


def cancelled() -> Outcome:
    return Outcome(state="cancelled", error=CANCELLED, events=(told("cancelled", CANCELLED.message),))


def after_result(result: Result) -> Outcome:
    """Raises UpstreamFailed: agents in this process may answer with what JSON cannot hold."""
    if result.asked is not None:
        return Outcome(state="input_required", question=msgspec.to_builtins(result.asked))
    try:
        msgspec.json.encode(result)
    except _NOT_JSON as exc:
        raise UpstreamFailed(f"The agent's answer is not JSON: {exc}"[:300]) from exc
    return Outcome(state="completed", result=result, events=(told("completed"),))


def after_error(
    error: FabricError, job: JobSummary, policy: RetryPolicy, *, may_repeat: bool, now: float, reset: bool
) -> Outcome:
    pause = pause_before_retry(error, job.attempt, policy, may_repeat=may_repeat, chance=random.random())
    if pause is not None and not _is_over(job, now + pause):
        is_put_off = isinstance(error, RateLimited)
        number = job.attempt if is_put_off else job.attempt + 1
        line = told("queued", f"{error.message}; attempt {number} in {pause:.1f} s", reset=reset)
        return Outcome(state="queued", run_at=now + pause, is_put_off=is_put_off, error=_kept(error), events=(line,))
    state: JobState = "timeout" if isinstance(error, CallTimeout) else "failed"
    if isinstance(error, CallerError):
        state = "rejected"
    return Outcome(state=state, error=_kept(error), events=(told(state, error.message),))


def after_interruption(job: JobSummary, *, may_repeat: bool, now: float) -> Outcome:
    """Whoever worked on it is gone, or goes: another begins anew, or it ends; its log says which."""
    decided = after_takeover(job, may_repeat=may_repeat, now=now)
    if decided.state == "cancelled":
        return cancelled()
    if has_ended(decided.state):
        message = decided.error.message if decided.error else None
        return replace(decided, events=(told(decided.state, message),))
    return replace(decided, events=(told("queued", "The work was interrupted; it begins again", reset=True),))


def continued(job: Job) -> Call:
    """What the worker asks: the call as it was accepted, with the caller's answers if the agent had a question."""
    if job.question is None or job.answer is None:
        return job.call
    answers = msgspec.convert(job.answer, dict[str, Answer])
    return replace(job.call, answers=Answers(continuation=job.question["continuation"], answers=answers))


def _kept(error: FabricError) -> JobError:
    kept = JobError.of(error)
    try:
        msgspec.json.encode(kept)
    except _NOT_JSON:
        return JobError(code=error.code, message=error.message.encode("utf-8", "replace").decode())
    return kept


def _is_over(job: JobSummary, then: float) -> bool:
    return job.expires_at is not None and job.expires_at <= then
