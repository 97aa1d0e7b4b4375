"""The transitions of a job as pure functions, and which waiting jobs a worker may claim.

A store reads a job, calls a function of this module and writes what it returns. So every
store follows the same rules, and a rule is changed in one place. The numbering of the event
log follows from `events` and `size` of the new value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec.structs import replace

from a2a_fabric.core.errors import BadInput, Conflict, LeaseLost
from a2a_fabric.core.job import (
    LOW,
    PRIORITIES,
    URGENT,
    ClaimRequest,
    FencingToken,
    HeartbeatReply,
    HoldRequest,
    JobError,
    JobOutcome,
    JobSummary,
    Lease,
    NewJob,
    can_transition,
    is_final_state,
)
from a2a_fabric.core.limits import share_to_multiple

S = TypeVar("S", bound=JobSummary)


def create_job(new: NewJob, size: int, now: float) -> JobSummary:
    """The job as it is first stored; `size` is of its call and events. Raises BadInput for an unknown priority."""
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
        lease=_make_lease(new.hold, now) if new.hold else None,
        created_at=now,
        updated_at=now,
        started_at=now if is_held else None,
        retention=new.retention,
        events=len(new.events),
        size=size,
        meta=new.meta,
    )


def match_existing_job(existing: S, new: NewJob) -> S:
    """The job that already has this key (or id). Raises Conflict if it is for another request."""
    if (existing.owner, existing.key, existing.digest) != (new.owner, new.key, new.digest):
        raise Conflict(
            f"The key '{(new.key or '')[:64]}' was used for another request; take a new one", job_id=existing.job_id
        )
    return existing


def claim_job(job: S, hold: HoldRequest, events: int, size: int, now: float) -> S:
    """The job as a worker begins it."""
    return replace(
        _record_change(job, events, size, now),
        state="running",
        attempt=job.attempt + 1,
        fence=job.fence + 1,
        lease=_make_lease(hold, now),
        started_at=now,
    )


def take_over_job(job: S, hold: HoldRequest, now: float) -> S:
    """The job in the hands of another worker: not a new attempt, but a new fence, which shuts the old worker out."""
    return replace(
        _record_change(job, 0, 0, now), state="running", fence=job.fence + 1, lease=_make_lease(hold, now)
    )  # fmt: skip


def is_abandoned(job: JobSummary, now: float) -> bool:
    """Whether its lease ran out, or it waits although it has expired or was cancelled."""
    if job.state == "running":
        return job.lease is None or job.lease.until <= now
    is_late = job.expires_at is not None and job.expires_at <= now
    return not job.has_ended and (is_late or job.cancel_requested)


def is_held_by(job: JobSummary | None, token: FencingToken) -> bool:
    return job is not None and job.state == "running" and job.fence == token.fence


def renew_lease(job: S, lease: float, now: float) -> S:
    """Extend the lease. Readers need not see this, so the version stays."""
    worker = job.lease.worker if job.lease else ""
    return replace(job, lease=Lease(worker=worker, until=now + lease), updated_at=now)


def make_heartbeat_reply(job: JobSummary | None, token: FencingToken) -> HeartbeatReply:
    if not is_held_by(job, token) or job is None:
        return HeartbeatReply(job_id=token.job_id, is_held=False)
    return HeartbeatReply(job_id=token.job_id, is_held=True, cancel_requested=job.cancel_requested)


def append_events(job: S, token: FencingToken, events: int, size: int, now: float) -> S:
    """Raises LeaseLost for a worker that was replaced."""
    if not is_held_by(job, token):
        raise LeaseLost(token.job_id, token.fence)
    return _record_change(job, events, size, now)


def release_job(job: S, token: FencingToken, outcome: JobOutcome, size: int, now: float) -> S:
    """The worker releases the job; `size` is of events and result. Raises LeaseLost for a worker that was replaced."""
    if not is_held_by(job, token):
        raise LeaseLost(token.job_id, token.fence)
    return _apply_outcome(job, outcome, size, now)


def answer_job(job: S, events: int, size: int, now: float, part_of: int | None = None) -> S:
    """The caller's answer queues a waiting job again. Raises Conflict if the job waits for no answer.

    A part of the answer, given to the job in version `part_of`, leaves it waiting; Conflict if it has changed since.
    """
    if job.state != "input_required":
        raise Conflict(f"Job '{job.job_id}' is {job.state} and waits for no input", job_id=job.job_id, state=job.state)
    if part_of is not None and part_of != job.version:
        raise Conflict(f"Job '{job.job_id}' has changed since; read it again", job_id=job.job_id)
    updated = _record_change(job, events, size, now)
    return updated if part_of is not None else replace(updated, state="queued", run_at=now)


def cancel_job(job: S, outcome: JobOutcome, size: int, now: float) -> S:
    """End a waiting job; ask the worker of a running one; leave an ended one as it is."""
    if job.has_ended or (job.state == "running" and job.cancel_requested):
        return job
    if job.state == "running":
        return replace(_record_change(job, 0, 0, now), cancel_requested=True)
    return _apply_outcome(replace(job, cancel_requested=True), outcome, size, now)


def summary_from_job(job: JobSummary) -> JobSummary:
    """The job without its call and result."""
    return JobSummary(**{name: getattr(job, name) for name in JobSummary.__struct_fields__})


def compute_retention_end(job: JobSummary) -> float | None:
    """When the job's own retention ends; None if it has none, or the job has not ended."""
    if job.ended_at is None or job.retention is None:
        return None
    return job.ended_at + job.retention


INTERRUPTED_ERROR = JobError(
    code="UPSTREAM_ERROR",
    message="The work was interrupted and may have been done in part, so it is not repeated. Retry it if that is safe",
    details={"reason": "interrupted"},
)
EXPIRED_ERROR = JobError(code="TIMEOUT", message="The job was not begun in time", details={"reason": "expired"})


def decide_after_takeover(job: JobSummary, *, may_repeat: bool, now: float) -> JobOutcome:
    """The outcome of a job whose worker no longer runs.

    `may_repeat`: the work is idempotent and has attempts left. A job that was never begun
    may always be begun, unless it has expired.
    """
    if job.cancel_requested:
        return JobOutcome(state="cancelled")
    if job.expires_at is not None and job.expires_at <= now:
        return _make_expired_outcome(job)
    if job.attempt == 0 or may_repeat:
        return JobOutcome(state="queued", run_at=now)
    return JobOutcome(state="failed", error=INTERRUPTED_ERROR)


def _make_expired_outcome(job: JobSummary) -> JobOutcome:
    """A job that was attempted ends as its last attempt did; one that never was ends as a timeout."""
    if job.error is None:
        return JobOutcome(state="timeout", error=EXPIRED_ERROR)
    return JobOutcome(state="timeout" if job.error.code == EXPIRED_ERROR.code else "failed", error=job.error)


def _apply_outcome(job: S, outcome: JobOutcome, size: int, now: float) -> S:
    if not can_transition(job.state, outcome.state):
        raise Conflict(f"A job that is {job.state} cannot become {outcome.state}", job_id=job.job_id, state=job.state)
    ended = is_final_state(outcome.state)
    return replace(
        _record_change(job, len(outcome.events), size, now),
        state=outcome.state,
        attempt=job.attempt - outcome.is_postponed,
        lease=None,
        run_at=job.run_at if outcome.run_at is None else outcome.run_at,
        # A job that is retried keeps the error of its last attempt, which may remain the last one.
        error=(outcome.error or job.error) if outcome.state == "queued" else outcome.error,
        ended_at=now if ended else None,
    )


def _record_change(job: S, events: int, size: int, now: float) -> S:
    return replace(
        job, events=job.events + events, size=job.size + size, version=job.version + 1, updated_at=now
    )  # fmt: skip


def _make_lease(hold: HoldRequest, now: float) -> Lease:
    return Lease(worker=hold.worker, until=now + hold.lease)


T = TypeVar("T")


class AgentQuota:
    """How many more jobs of each agent may run now. `count` is called once per agent, and only if it has a limit."""

    def __init__(self, request: ClaimRequest, count: Callable[[str], int]) -> None:
        self._limits = request.limits
        self._default_limit = request.default_limit
        self._count = count
        self._remaining: dict[str, int | None] = {}

    def remaining_for(self, agent_id: str) -> int | None:
        """None means no limit."""
        if agent_id not in self._remaining:
            limit = self._limits.get(agent_id, self._default_limit)
            self._remaining[agent_id] = max(0, limit - self._count(agent_id)) if limit else limit
        return self._remaining[agent_id]

    def take(self, agent_id: str) -> bool:
        """Take one slot of the agent, if there is one."""
        remaining = self.remaining_for(agent_id)
        if remaining is not None:
            self._remaining[agent_id] = remaining - 1 if remaining else 0
        return remaining != 0

    def choose(self, candidates: Iterable[tuple[str, T]], limit: int) -> Iterator[T]:
        """The first `limit` of (agent, candidate), in their order, whose agent has a free slot."""
        for agent_id, candidate in candidates:
            if limit <= 0:
                return
            if self.take(agent_id):
                limit -= 1
                yield candidate


class WorkerSlots:
    """The slots of a worker, shared among owners by the rule of `core.limits`: at most a multiple of what is free.

    `held` is how many jobs of each owner run. Calls that became jobs while they ran may exceed an owner's share of
    the slots; the excess takes no slot from other owners.
    """

    def __init__(self, slots: int, share: float, held: Mapping[str, int]) -> None:
        self._multiple = share_to_multiple(share)
        self._held = held
        max_alone = max(1, math.ceil(slots * share))
        self._free = slots - sum(min(number, max_alone) for number in held.values())

    def list_blocked_owners(self) -> tuple[str, ...]:
        """Owners that may begin no further job now."""
        if self._free <= 0:
            return tuple(self._held)
        return tuple(owner for owner, number in self._held.items() if number >= self._multiple * self._free)

    def count_claimable(self) -> int:
        """How many jobs may begin now even if all of them belong to one owner."""
        if self._free <= 0:
            return 0
        largest_count = max((n for n in self._held.values() if n < self._multiple * self._free), default=0)
        return max(1, math.ceil((self._multiple * self._free - largest_count) / (1 + self._multiple)))
