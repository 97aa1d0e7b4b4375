"""Jobs: a call that is stored, with an id, a state, a lease and a numbered log of events.

A job waits (`queued`), is worked on (`running`), waits for its caller's answer
(`input_required`), and ends in one of five states. Doors and runtimes translate states
into the words of their protocols through the one table below and nowhere else.

`JobSummary` is what lists and decisions need; `Job` adds the call and its result,
which may be large. Times are seconds since 1970 by the store's clock."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import FabricError, error_from_code
from a2a_fabric.core.events import Event
from a2a_fabric.core.question import Questions
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import new_id

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

# stream: documents 000 and 001; directory: 002; card: 003; rest: 004; rpc: the platform of 004 (its RPC client);
# a2a: the Linux Foundation's, 1.0 and 0.3; mcp: the tasks extension; acp: the Agent Communication Protocol.
# 002 has words for ends only, so work that goes on keeps ours; 004 says `running` and explains in its metadata.
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
    vocabulary: {state: words[at] for state, words in _STATE_WORDS.items()}
    for at, vocabulary in enumerate(_VOCABULARIES)
}
_STATES_BY_WORD: Mapping[StateVocabulary, Mapping[str, tuple[JobState, ...]]] = {
    vocabulary: {
        word: tuple(state for state in JOB_STATES if spoken[state] == word) for word in dict.fromkeys(spoken.values())
    }
    for vocabulary, spoken in _WORD_BY_STATE.items()
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
        """The error again, for those who would have heard it had they waited."""
        return error_from_code(self.code, self.message, self.details)


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Who works on a job, and until when nobody else may."""

    worker: str
    until: float


class FencingToken(msgspec.Struct, frozen=True):
    """The proof of holding a job. Each claim gets a higher fence, so a holder that was replaced can be told."""

    job_id: str
    fence: int


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A job without its call and its result."""

    job_id: str
    owner: str
    agent_id: str
    capability: str
    state: JobState
    priority: int = NORMAL
    run_at: float
    expires_at: float | None = None  # not begun (or not answered) by then: it ends as `timeout`
    key: str | None = None  # the caller's own name for it, unique per owner
    digest: str | None = None  # of what was asked, so that a key is not used for two things
    attempt: int = 0  # how often somebody began to work on it, and was not put off
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
    meta: dict[str, Any] = {}  # what doors want to find again: webhook, context, protocol

    @property
    def fencing_token(self) -> FencingToken:
        return FencingToken(self.job_id, self.fence)

    @property
    def failure(self) -> JobError | None:
        """Why it ended as it did. `error` also says, while it waits for another attempt, what the last one came to."""
        return self.error if self.has_ended else None

    @property
    def has_ended(self) -> bool:
        return is_final_state(self.state)


class Job(JobSummary, frozen=True, kw_only=True):
    """A job with everything that was asked and answered."""

    call: Call
    result: Result | None = None
    question: dict[str, Any] | None = None  # what is asked while `input_required`, with the agent's continuation
    answer: dict[str, Any] | None = None  # what was answered, for the worker that goes on; while it is parked, a part

    @property
    def open_questions(self) -> Questions | None:
        """What it still waits for, if it does."""
        if self.state != "input_required" or self.question is None:
            return None
        pending = msgspec.convert(self.question, Questions)
        answers = self.answer or {}
        return replace(pending, questions={key: each for key, each in pending.questions.items() if key not in answers})


class JobEvent(msgspec.Struct, frozen=True):
    """One line of a job's log. Numbers begin at 1 and have no gaps."""

    number: int
    at: float
    event: Event


class HoldRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A wish to be a job's holder: who, and for how many seconds until the next heartbeat."""

    worker: str
    lease: float


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the store when a job is accepted."""

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
    hold: HoldRequest | None = (
        None  # for a call that already runs and becomes a job: born `running`, held by this worker
    )


class AcceptResult(msgspec.Struct, frozen=True):
    """`is_new` is false when the key was known: then the job is the one accepted before, as it is now."""

    job: JobSummary
    is_new: bool


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a holder leaves a job: ended, parked with a question, or back in the queue.

    Events and follow-up jobs (a webhook to deliver, say) are written in the
    same moment, so there is no end without its last event.
    """

    state: JobState
    events: tuple[Event, ...] = ()
    result: Result | None = None
    error: JobError | None = None
    question: dict[str, Any] | None = None
    run_at: float | None = None  # queued again: not before
    is_postponed: bool = False  # queued again without having begun: that was no attempt
    follow_ups: tuple[NewJob, ...] = ()


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is ready for. `limits` are jobs at a time of one agent, over all workers; 0 leaves it alone."""

    hold: HoldRequest
    limit: int = 1
    limits: dict[str, int] = {}
    default_limit: int | None = None  # for agents that `limits` does not name; None: no limit
    events: tuple[Event, ...] = ()  # written to each claimed job's log
    blocked_owners: tuple[str, ...] = ()  # owners whose jobs wait: they have their share of the worker


class HeartbeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a heartbeat brings back for one job."""

    job_id: str
    is_held: bool  # False: somebody else has it, or it has ended; stop at once and write nothing
    cancel_requested: bool = False


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list; what is None does not narrow."""

    owner: str | None = None
    agent_id: str | None = None
    states: tuple[JobState, ...] | None = None


class JobPage(msgspec.Struct, frozen=True):
    """Newest first. `cursor` goes into the next request; None when this is the last page."""

    jobs: tuple[JobSummary, ...]
    cursor: str | None = None


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a job's log, and the job's state in the same moment.

    A reader is done when `is_complete`: the job has ended and nothing comes after this page.
    """

    events: tuple[JobEvent, ...]
    state: JobState
    last: int  # the number of the last event that exists
    upto: int  # where the next request goes on

    @property
    def is_complete(self) -> bool:
        return is_final_state(self.state) and self.upto >= self.last


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what has ended is kept: by age, and by size (the oldest go first)."""

    max_age: float | None = None
    max_bytes: int | None = None


class PruneResult(msgspec.Struct, frozen=True):
    """`is_done` is false when there is more to remove than was allowed at once."""

    jobs: int
    bytes: int
    is_done: bool = True


def new_job_id(now: float | None = None) -> str:
    """`job_` and 32 digits that grow with time, so that ids sort by age; the tail cannot be guessed."""
    milliseconds = int((time.time() if now is None else now) * 1000)
    return f"job_{milliseconds:012x}{new_id().replace('-', '')[12:]}"


def compute_call_digest(call: Call) -> str:
    """The same for two calls that ask the same; trace, deadline and credentials do not count."""
    request = (call.target.agent_id, call.target.capability, call.input, call.response.format)
    return hashlib.sha256(msgspec.json.encode(request, order="deterministic")).hexdigest()
