"""A job's next shape, decided purely: stores read a job, ask here, and write what comes back.

So every engine follows the same rules, and a rule is changed in one place. What
happens to the log (numbering) follows from `events` and `size` of the new shape.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.errors import BadInput, Conflict
from a2a_fabric.core.events import Event
from a2a_fabric.core.job import (
    LOW,
    PRIORITIES,
    URGENT,
    Held,
    Hold,
    Job,
    JobError,
    JobSummary,
    Lease,
    NewJob,
    Outcome,
    Pulse,
)
from a2a_fabric.core.states import can_become, has_ended
from a2a_fabric.core.store_errors import LeaseLost

S = TypeVar("S", bound=JobSummary)


def accepted(new: NewJob, size: int, now: float) -> JobSummary:
    """The job as it is first written; `size` is that of its call and its events. Raises BadInput for its priority."""
    if new.priority not in PRIORITIES:
        raise BadInput(f"A priority is {LOW} (low) to {URGENT} (urgent), not {new.priority}", field="priority")
    target = new.call.target
    is_held = new.hold is not None
    return JobSummary(
        job_id=new.job_id,
        owner=new.owner,
        agent_id=target.agent_id,
        capability=target.capability,
        state="running" if is_held else "queued",
        priority=new.priority,
        run_at=now if new.run_at is None else new.run_at,
        expires_at=new.expires_at,
        key=new.key,
        digest=new.digest,
        attempt=int(is_held),
        fence=int(is_held),
        lease=_lease(new.hold, now) if new.hold else None,
        created_at=now,
        updated_at=now,
        started_at=now if is_held else None,
        retention=new.retention,
        events=len(new.events),
        size=size,
        meta=new.meta,
    )


def same_again(known: S, new: NewJob) -> S:
    """The job that already has this key (or id). Raises Conflict if it now stands for something else."""
    if (known.owner, known.key, known.digest) != (new.owner, new.key, new.digest):
        raise Conflict(
            f"The key '{(new.key or '')[:64]}' was used for another request; take a new one", job_id=known.job_id
        )
    return known


def claimed(job: S, hold: Hold, events: int, size: int, now: float) -> S:
    """A worker begins."""
    return replace(
        _changed(job, events, size, now),
        state="running",
        attempt=job.attempt + 1,
        fence=job.fence + 1,
        lease=_lease(hold, now),
        started_at=now,
    )


def is_claimable(job: JobSummary, now: float) -> bool:
    is_late = job.expires_at is not None and job.expires_at <= now
    return job.state == "queued" and job.run_at <= now and not is_late and not job.cancel_requested


def taken_over(job: S, hold: Hold, now: float) -> S:
    """Somebody else looks after it: no new attempt, but a new fence, so that the old holder is told."""
    return replace(
        _changed(job, 0, 0, now), state="running", fence=job.fence + 1, lease=_lease(hold, now)
    )  # fmt: skip


def is_abandoned(job: JobSummary, now: float) -> bool:
    """Its worker let the lease run out, nobody began (or answered) in time, or it was left just as it was cancelled."""
    if job.state == "running":
        return job.lease is None or job.lease.until <= now
    is_late = job.expires_at is not None and job.expires_at <= now
    return not job.has_ended and (is_late or job.cancel_requested)


def is_held_by(job: JobSummary | None, held: Held) -> bool:
    return job is not None and job.state == "running" and job.fence == held.fence


def renewed(job: S, lease: float, now: float) -> S:
    """The holder is alive. Not a change that anybody waits for, so the version stays."""
    worker = job.lease.worker if job.lease else ""
    return replace(job, lease=Lease(worker=worker, until=now + lease), updated_at=now)


def pulse(job: JobSummary | None, held: Held) -> Pulse:
    if not is_held_by(job, held) or job is None:
        return Pulse(job_id=held.job_id, is_held=False)
    return Pulse(job_id=held.job_id, is_held=True, cancel_requested=job.cancel_requested)


def appended(job: S, held: Held, events: int, size: int, now: float) -> S:
    """Raises LeaseLost for a holder that was replaced."""
    if not is_held_by(job, held):
        raise LeaseLost(held.job_id, held.fence)
    return _changed(job, events, size, now)


def settled(job: S, held: Held, outcome: Outcome, size: int, now: float) -> S:
    """The holder leaves the job. Raises LeaseLost for one that was replaced; `size` is of events and result."""
    if not is_held_by(job, held):
        raise LeaseLost(held.job_id, held.fence)
    return _left(job, outcome, size, now)


def answered(job: S, events: int, size: int, now: float, part_of: int | None = None) -> S:
    """The caller's answer sends a parked job back to work. Raises Conflict if it asked nothing.

    A part of the answer, given to the job in version `part_of`, leaves it parked; Conflict if it has changed since.
    """
    if job.state != "input_required":
        raise Conflict(f"Job '{job.job_id}' is {job.state} and waits for no input", job_id=job.job_id, state=job.state)
    if part_of is not None and part_of != job.version:
        raise Conflict(f"Job '{job.job_id}' has changed since; look at it again", job_id=job.job_id)
    going = _changed(job, events, size, now)
    return going if part_of is not None else replace(going, state="queued", run_at=now)


def cancelled(job: S, outcome: Outcome, size: int, now: float) -> S:
    """At once while nobody works on it; while somebody does, the holder is asked; what has ended stays as it is."""
    if job.has_ended or (job.state == "running" and job.cancel_requested):
        return job
    if job.state == "running":
        return replace(_changed(job, 0, 0, now), cancel_requested=True)
    return _left(replace(job, cancel_requested=True), outcome, size, now)


def with_body(job: Job, outcome: Outcome) -> Job:
    """What an outcome says about result, question and answer."""
    if outcome.state == "input_required":
        return replace(job, question=outcome.question, answer=None)
    if has_ended(outcome.state):
        return replace(job, result=outcome.result, question=None, answer=None)
    return job


def summary_of(job: JobSummary) -> JobSummary:
    """Without the call and the result."""
    return JobSummary(**{name: getattr(job, name) for name in JobSummary.__struct_fields__})


def keep_until(job: JobSummary) -> float | None:
    """When its own retention is over; None if it has none, or has not ended."""
    if job.ended_at is None or job.retention is None:
        return None
    return job.ended_at + job.retention


def events_size(events: tuple[Event, ...]) -> int:
    return sum(len(msgspec.json.encode(event.data)) for event in events)


INTERRUPTED = JobError(
    code="UPSTREAM_ERROR",
    message="The work was interrupted and may have been done in part; it is not repeated without being asked",
    details={"reason": "interrupted"},
)
EXPIRED = JobError(code="TIMEOUT", message="The job was not begun in time", details={"reason": "expired"})


def after_takeover(job: JobSummary, *, may_repeat: bool, now: float) -> Outcome:
    """What becomes of a job whose holder is gone.

    `may_repeat`: the work is idempotent and has attempts left. What never began
    may always be begun, unless its time is over.
    """
    if job.cancel_requested:
        return Outcome(state="cancelled")
    if job.expires_at is not None and job.expires_at <= now:
        return _expired(job)
    if job.attempt == 0 or may_repeat:
        return Outcome(state="queued", run_at=now)
    return Outcome(state="failed", error=INTERRUPTED)


def _expired(job: JobSummary) -> Outcome:
    """A job that was tried ends as its last attempt did; one that never was, for want of time."""
    if job.error is None:
        return Outcome(state="timeout", error=EXPIRED)
    return Outcome(state="timeout" if job.error.code == EXPIRED.code else "failed", error=job.error)


def _left(job: S, outcome: Outcome, size: int, now: float) -> S:
    if not can_become(job.state, outcome.state):
        raise Conflict(f"A job that is {job.state} cannot become {outcome.state}", job_id=job.job_id, state=job.state)
    ended = has_ended(outcome.state)
    return replace(
        _changed(job, len(outcome.events), size, now),
        state=outcome.state,
        attempt=job.attempt - outcome.is_put_off,
        lease=None,
        run_at=job.run_at if outcome.run_at is None else outcome.run_at,
        error=_error_left(job, outcome),
        ended_at=now if ended else None,
    )


def _error_left(job: JobSummary, outcome: Outcome) -> JobError | None:
    """A job that is tried again keeps what the last attempt came to: it may be the last one."""
    return (outcome.error or job.error) if outcome.state == "queued" else outcome.error


def _changed(job: S, events: int, size: int, now: float) -> S:
    return replace(
        job, events=job.events + events, size=job.size + size, version=job.version + 1, updated_at=now
    )  # fmt: skip


def _lease(hold: Hold, now: float) -> Lease:
    return Lease(worker=hold.worker, until=now + hold.lease)
