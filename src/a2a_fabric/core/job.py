"""Jobs: a call that is stored, with an id, a state, a lease and a numbered log of events.

A job waits (`queued`), is worked on (`running`), waits for its caller's answer
(`input_required`), and ends in one of five states. Doors and runtimes translate states
into the words of their protocols through the one table below and nowhere else.

`JobSummary` is what lists and decisions need; `Job` adds the call and its result,
which may be large. Times are seconds since 1970 by the store's clock.

The transitions are pure functions, and so is the choice of the waiting jobs that a worker may
claim. A store reads a job, calls such a function and writes what it returns. So every store
follows the same rules, and a rule is changed in one place. The numbering of the event log
follows from `events` and `size` of the new value."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar, get_args

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import BadInput, Conflict, FabricError, LeaseLost, error_from_code
from a2a_fabric.core.limits import share_to_multiple
from a2a_fabric.core.propagation import new_ordered_id
from a2a_fabric.core.result import Event, Questions, Result

JobState = Literal["queued", "running", "input_required", "completed", "failed", "cancelled", "timeout", "rejected"]
StateVocabulary = Literal["stream", "directory", "card", "rest", "rpc", "a2a", "a2a_0_3", "mcp", "acp"]

JOB_STATES: tuple[JobState, ...] = get_args(JobState)
FINAL_STATES: frozenset[JobState] = frozenset({"completed", "failed", "cancelled", "timeout", "rejected"})

_TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    "queued": frozenset({"running", "failed", "cancelled", "timeout", "rejected"}),
    "running": FINAL_STATES | {"queued", "input_required"},
    "input_required": frozenset({"queued", "running", "failed", "cancelled", "timeout"}),
    **dict.fromkeys(FINAL_STATES, frozenset()),
}

# stream: Fabric's own event streams; directory, rest: those doors; card: agent cards; rpc: the RPC client of the REST
# door's platform; a2a: A2A 1.0 and 0.3; mcp: the tasks extension; acp: the Agent Communication Protocol.
# The directory has words only for ended work, so other states keep our names; REST says `running` for a question.
_VOCABULARIES: tuple[StateVocabulary, ...] = get_args(StateVocabulary)
_STATE_WORDS: Mapping[JobState, tuple[str, ...]] = {
    "queued": ("queued", "queued", "pending", "pending", "submitted",
               "TASK_STATE_SUBMITTED", "submitted", "working", "created"),
    "running": ("running", "running", "in_progress", "running", "working",
                "TASK_STATE_WORKING", "working", "working", "in-progress"),
    "input_required": ("running", "input_required", "input_required", "running", "input_required",
                       "TASK_STATE_INPUT_REQUIRED", "input-required", "input_required", "awaiting"),
    "completed": ("complete", "completed", "completed", "completed", "completed",
                  "TASK_STATE_COMPLETED", "completed", "completed", "completed"),
    "failed": ("error", "failed", "failed", "failed", "failed",
               "TASK_STATE_FAILED", "failed", "failed", "failed"),
    "cancelled": ("error", "cancelled", "cancelled", "cancelled", "canceled",
                  "TASK_STATE_CANCELED", "canceled", "cancelled", "cancelled"),
    "timeout": ("error", "timeout", "failed", "failed", "failed",
                "TASK_STATE_FAILED", "failed", "failed", "failed"),
    "rejected": ("error", "failed", "failed", "failed", "rejected",
                 "TASK_STATE_REJECTED", "rejected", "failed", "failed"),
}  # fmt: skip

_WORD_BY_STATE: Mapping[StateVocabulary, Mapping[JobState, str]] = {
    vocabulary: {state: words[index] for state, words in _STATE_WORDS.items()}
    for index, vocabulary in enumerate(_VOCABULARIES)
}
_STATES_BY_WORD: Mapping[StateVocabulary, Mapping[str, tuple[JobState, ...]]] = {
    vocabulary: {
        word: tuple(state for state in JOB_STATES if words[state] == word) for word in dict.fromkeys(words.values())
    }
    for vocabulary, words in _WORD_BY_STATE.items()
}


def is_final_state(state: JobState) -> bool:
    return state in FINAL_STATES


def can_transition(state: JobState, next_state: JobState) -> bool:
    """Whether a job may go from the one state to the other in one step."""
    return next_state in _TRANSITIONS[state]


def translate_state(state: JobState, vocabulary: StateVocabulary) -> str:
    """What this protocol calls the state."""
    return _WORD_BY_STATE[vocabulary][state]


def states_from_word(word: str, vocabulary: StateVocabulary) -> tuple[JobState, ...]:
    """The states that a protocol's word may stand for, as a filter needs them; none for a word it does not have."""
    return _STATES_BY_WORD[vocabulary].get(word, ())


JobPriority = Literal["low", "normal", "high", "urgent"]
LOW, NORMAL, HIGH, URGENT = 1, 2, 3, 4
PRIORITIES = (URGENT, HIGH, NORMAL, LOW)  # in the order in which they are served
PRIORITY_BY_NAME: Mapping[JobPriority, int] = {"low": LOW, "normal": NORMAL, "high": HIGH, "urgent": URGENT}
PRIORITY_NAMES: Mapping[int, JobPriority] = {number: name for name, number in PRIORITY_BY_NAME.items()}


class JobError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job did not complete, as it is kept and shown."""

    code: str
    message: str
    details: dict[str, Any] = {}

    @classmethod
    def from_error(cls, error: FabricError) -> JobError:
        return cls(code=error.code, message=error.message, details=error.details)

    def to_error(self) -> FabricError:
        """The error as it was raised, for callers who ask for the result later."""
        return error_from_code(self.code, self.message, self.details)


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Which worker holds a job, and until when."""

    worker: str
    until: float


class FencingToken(msgspec.Struct, frozen=True):
    """The proof of holding a job. Each claim gets a higher fence, so a holder that was replaced is recognized."""

    job_id: str
    fence: int


SPAN_META = "span"  # in a job's meta: its span, and the door through which it came


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A job without its call and its result."""

    job_id: str
    owner: str
    agent_id: str
    capability: str
    state: JobState
    priority: int = NORMAL
    run_at: float
    expires_at: float | None = None  # if it is not begun (or not answered) by then, it ends as `timeout`
    key: str | None = None  # the caller's own name for it, unique per owner
    digest: str | None = None  # of the request, so that a key is not used for two different requests
    attempt: int = 0  # how often a worker began it; postponed starts do not count
    fence: int = 0
    lease: Lease | None = None
    cancel_requested: bool = False
    created_at: float
    updated_at: float
    started_at: float | None = None  # of the latest attempt
    ended_at: float | None = None
    retention: float | None = None  # seconds to keep it after its end; None: as long as the node's policy says
    events: int = 0  # the number of the last event
    size: int = 0  # bytes of call, events and result together
    version: int = 1  # grows with every change
    error: JobError | None = None
    meta: dict[str, Any] = {}  # what doors keep with the job: webhook, context, protocol

    @property
    def fencing_token(self) -> FencingToken:
        return FencingToken(self.job_id, self.fence)

    @property
    def failure(self) -> JobError | None:
        """Why it ended as it did. `error` is also set while it waits for another attempt."""
        return self.error if self.has_ended else None

    @property
    def has_ended(self) -> bool:
        return is_final_state(self.state)


class Job(JobSummary, frozen=True, kw_only=True):
    """A job with its call, result, question and answer."""

    call: Call
    result: Result | None = None
    question: dict[str, Any] | None = None  # the questions while `input_required`, with the agent's continuation
    answer: dict[str, Any] | None = None  # for the worker that continues; while the job waits, the answers so far

    @property
    def open_questions(self) -> Questions | None:
        """The questions without an answer, if the job waits for any."""
        if self.state != "input_required" or self.question is None:
            return None
        pending = msgspec.convert(self.question, Questions)
        answers = self.answer or {}
        return replace(pending, questions={key: each for key, each in pending.questions.items() if key not in answers})


class JobEvent(msgspec.Struct, frozen=True):
    """One entry of a job's log. Numbers begin at 1 and have no gaps."""

    number: int
    at: float
    event: Event


class HoldRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to hold a job: the worker, and the seconds until its next heartbeat."""

    worker: str
    lease: float


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the store accepts it."""

    job_id: str
    owner: str
    call: Call
    priority: int = NORMAL
    run_at: float | None = None  # None: at once
    expires_at: float | None = None
    key: str | None = None
    digest: str | None = None
    retention: float | None = None
    meta: dict[str, Any] = {}
    events: tuple[Event, ...] = ()
    hold: HoldRequest | None = None  # for a running call that becomes a job: created as `running`, held by this worker


class AcceptResult(msgspec.Struct, frozen=True):
    """`is_new` is false when the key was known: then the job is the one accepted before, as it is now."""

    job: JobSummary
    is_new: bool


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker releases a job: ended, waiting for an answer, or back in the queue.

    Events and follow-up jobs (a webhook to deliver, for example) are written in the
    same transaction, so no job ends without its last event.
    """

    state: JobState
    events: tuple[Event, ...] = ()
    result: Result | None = None
    error: JobError | None = None
    question: dict[str, Any] | None = None
    run_at: float | None = None  # if queued again: not before this moment
    is_postponed: bool = False  # queued again without having begun; not counted as an attempt
    follow_ups: tuple[NewJob, ...] = ()


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker can take. `limits` are jobs at a time per agent, over all workers; 0 claims none of that agent."""

    hold: HoldRequest
    limit: int = 1
    limits: dict[str, int] = {}
    default_limit: int | None = None  # for agents that `limits` does not name; None: no limit
    events: tuple[Event, ...] = ()  # written to each claimed job's log
    blocked_owners: tuple[str, ...] = ()  # owners that have used up their share of the worker


class HeartbeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """The store's answer to a heartbeat, for one job."""

    job_id: str
    is_held: bool  # False: another worker has it, or it has ended; stop at once and write nothing
    cancel_requested: bool = False


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list; a field that is None does not filter."""

    owner: str | None = None
    agent_id: str | None = None
    states: tuple[JobState, ...] | None = None


class JobPage(msgspec.Struct, frozen=True):
    """Newest first. `cursor` goes into the next request; None when this is the last page."""

    jobs: tuple[JobSummary, ...]
    cursor: str | None = None


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a job's log, and the job's state at the same moment.

    A reader is done when `is_complete`: the job has ended and nothing comes after this page.
    """

    events: tuple[JobEvent, ...]
    state: JobState
    last: int  # the number of the last event that exists
    upto: int  # where the next request continues

    @property
    def is_complete(self) -> bool:
        return is_final_state(self.state) and self.upto >= self.last


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How long ended jobs are kept: by age, and by total size (the oldest go first)."""

    max_age: float | None = None
    max_bytes: int | None = None


class PruneResult(msgspec.Struct, frozen=True):
    """`is_done` is false when more can be removed than the limit allowed."""

    jobs: int
    bytes: int
    is_done: bool = True


def new_job_id(now: float | None = None) -> str:
    return new_ordered_id("job_", now)


def derive_job_id(*names: str, prefix: str = "task") -> str:
    """The id of a job that is the same whenever its names are: to send it twice is to send it once."""
    digest = hashlib.sha256("\0".join(names).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{prefix}_{digest[:40]}"


def compute_call_digest(call: Call) -> str:
    """The same for two calls with the same request; trace, deadline and credentials do not count."""
    request = (call.target.agent_id, call.target.capability, call.input, call.response.format)
    return hashlib.sha256(msgspec.json.encode(request, order="deterministic")).hexdigest()


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

    def can_begin(self, owner: str) -> bool:
        """Whether one more job of this owner may begin now."""
        return self._free > 0 and self._held.get(owner, 0) < self._multiple * self._free

    def count_claimable(self) -> int:
        """How many jobs may begin now even if all of them belong to one owner."""
        if self._free <= 0:
            return 0
        largest_count = max((n for n in self._held.values() if n < self._multiple * self._free), default=0)
        return max(1, math.ceil((self._multiple * self._free - largest_count) / (1 + self._multiple)))
