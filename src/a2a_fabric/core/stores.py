"""The store ports: jobs, registrations, health, messages, change notices and the archive.

Rules that hold for every method:

- A write that returned is durable: it survives the death of the process and the machine.
- A write is atomic. If it is cancelled while awaited, or raises StoreUnavailable, it may or may
  not have happened; ids and keys allow it to be repeated without harm.
- Every method may raise StoreError (core/errors.py), and otherwise only what it names.
- "Missing" is None where one value is requested, an empty sequence where several are.
- The store's own clock counts (the database server's, where there is one). Leases are given in seconds;
  a lease of 0 is over at once.
- Values go in and come out; no live rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.events import Event
from a2a_fabric.core.job import (
    AcceptResult,
    ClaimRequest,
    EventPage,
    FencingToken,
    HeartbeatReply,
    HoldRequest,
    Job,
    JobEvent,
    JobFilter,
    JobOutcome,
    JobPage,
    JobSummary,
    NewJob,
    PruneResult,
    RetentionPolicy,
)
from a2a_fabric.core.message import (
    Delivery,
    InboxEntry,
    InboxStatus,
    Message,
    NewMessage,
    Numbering,
    PostResult,
    TopicSubscription,
)
from a2a_fabric.core.registration import AgentChange, HealthCheck, IdReservation, Registration, RegistrationFilter


class JobEventRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="event"):
    """An event of a job, as an export carries it."""

    job_id: str
    event: JobEvent


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="job"):
    job: Job


class AgentRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="agent"):
    registration: Registration


class HealthRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="health"):
    check: HealthCheck


class MessageRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="message"):
    message: Message


class NumberingRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="numbering"):
    numbering: Numbering


class InboxRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="inbox"):
    entry: InboxEntry


class SubscriptionRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="subscription"):
    subscription: TopicSubscription


_MessageRecords = MessageRecord | NumberingRecord | InboxRecord | SubscriptionRecord
ArchiveRecord = JobRecord | JobEventRecord | AgentRecord | HealthRecord | _MessageRecords


class Archive(Protocol):
    """Everything out of one engine and into another. Called by `store export` and `store import` only."""

    def dump(self) -> AsyncIterator[ArchiveRecord]:
        """Every record, a job before its events, a message before its inbox entries."""
        ...

    async def restore(self, records: Sequence[ArchiveRecord]) -> int:
        """Write records as they are, ids, numbers and fences included; those that exist stay. How many were new.

        Events beyond the end of a job that exists are left out: its log goes on by itself.
        """
        ...


PAGE_BYTES = 1 << 20
INBOX_BYTES = 8 << 20


class JobStore(Protocol):
    """Called by the job engine only; who may see which job is decided there, by `owner`.

    A job is held under a fence number; a write with an old one raises LeaseLost and changes nothing.
    """

    async def accept(self, new: NewJob) -> AcceptResult:
        """Write a job down. A known key of the same owner gives that job back; Conflict if its digest differs.

        BadInput for a priority that there is not.
        Callers that come at the same time share one transaction.
        """
        ...

    async def get(self, job_id: str) -> Job | None: ...

    async def find(self, owner: str, key: str) -> Job | None:
        """By the caller's own name for it."""
        ...

    async def list(self, query: JobFilter, *, cursor: str | None = None, limit: int = 100) -> JobPage:
        """Newest first; any page costs the same. BadInput for a cursor that is none of ours."""
        ...

    async def count_waiting(self, owner: str, most: int) -> int:
        """How many jobs of an owner are queued; counting stops at `most`."""
        ...

    async def claim(self, request: ClaimRequest) -> Sequence[Job]:
        """Take the next jobs that are due: by priority, then `run_at`, then age; none of an agent beyond its limit.

        No job is given to two workers. Does not wait: watch `WORK` for that.
        """
        ...

    async def take_over(self, hold: HoldRequest, limit: int = 100) -> Sequence[Job]:
        """Hold, under a new fence, jobs that nobody looks after (`lifecycle.is_abandoned`).

        Their lease has run out; or they wait, and their time is over or their cancelling came as they were left.
        What becomes of each is decided by `lifecycle.after_takeover` and said with `settle`.
        """
        ...

    async def heartbeat(self, tokens: Sequence[FencingToken], lease: float) -> Sequence[HeartbeatReply]:
        """Extend the leases of all jobs that a worker holds; one pulse for each, in order."""
        ...

    async def append(self, token: FencingToken, events: Sequence[Event]) -> int:
        """Write to the log; returns the last number. Raises LeaseLost, JobNotFound."""
        ...

    async def release(self, token: FencingToken, outcome: JobOutcome) -> JobSummary:
        """Leave the job, with its last events and follow-ups in the same transaction.

        Raises LeaseLost, JobNotFound, and Conflict for a state that cannot follow `running`.
        """
        ...

    async def answer(
        self, job_id: str, answer: dict[str, Any], events: Sequence[Event] = (), *, part_of: int | None = None
    ) -> JobSummary:
        """Send a parked job back to the queue with its caller's answer. Raises JobNotFound, Conflict.

        With `part_of`, the version that the caller has seen, it stays parked and keeps `answer` as all that was said.
        """
        ...

    async def cancel(self, job_id: str, outcome: JobOutcome) -> JobSummary:
        """End it with `outcome` if nobody works on it; else ask its holder, who hears of it by heartbeat and watch.

        A second time, or after the end, it changes nothing and returns the job as it is. Raises JobNotFound.
        """
        ...

    async def events(self, job_id: str, *, after: int = 0, limit: int = 1000, max_bytes: int = PAGE_BYTES) -> EventPage:
        """The log after a number, at least one event however large; empty beyond the end. Raises JobNotFound."""
        ...

    async def prune(self, retention: RetentionPolicy, limit: int = 1000) -> PruneResult:
        """Remove ended jobs that are too old by their own retention or by `keep`, then the oldest beyond its size."""
        ...


class RegistrationStore(Protocol):
    """Called by the registry: agents that came at run time, on whichever node."""

    async def register(
        self, manifest: Manifest, owner: str, lease: float | None = None, reservation: IdReservation | None = None
    ) -> Registration:
        """Write or replace. Raises Forbidden if the agent is somebody else's whose lease still runs, or was, and the
        id is still reserved for them.

        Another owner than the last one begins with an empty inbox and no subscriptions: what waited there was the
        last one's.
        """
        ...

    async def renew(self, agent_id: str, owner: str, lease: float | None = None) -> Registration:
        """A sign of life; not a change that others are told of. Raises AgentNotFound, Forbidden."""
        ...

    async def remove(self, agent_id: str, owner: str) -> bool:
        """False if there was none. Raises Forbidden."""
        ...

    async def get(self, agent_id: str) -> Registration | None:
        """Also one whose lease has run out, until `expire` removes it."""
        ...

    async def list(self, query: RegistrationFilter, *, after: str = "", limit: int = 1000) -> Sequence[Registration]:
        """In order of agent id, beginning after the given one."""
        ...

    async def read_changes(self, after: int, limit: int = 1000) -> Sequence[AgentChange]:
        """What changed after a revision, oldest first, each agent once with its latest state. 0: everything.

        No change ever appears behind a revision that was already handed out. Watch `AGENTS` to know when to ask.
        """
        ...

    async def expire(self, limit: int = 1000) -> Sequence[str]:
        """Remove the registrations whose lease has run out; the ids of those that this call removed."""
        ...


class HealthLog(Protocol):
    """Called by the health checks: a history for every agent, wherever it came from."""

    async def append(self, checks: Sequence[HealthCheck]) -> None: ...

    async def read(
        self, agent_id: str, *, since: float = 0.0, until: float | None = None, limit: int = 100
    ) -> Sequence[HealthCheck]:
        """Newest first, `since` <= checked_at < `until`."""
        ...

    async def prune(self, before: float) -> int:
        """Remove what is older; how many."""
        ...


class ConversationStore(Protocol):
    """Called by the operations of messages; who may read what is decided there."""

    async def append(self, new: NewMessage, job: NewJob | None = None) -> PostResult:
        """Number it in its conversation and put it into its recipients' inboxes; accept the job that brings it.

        A known key of the same owner gives that message back, without a job; Conflict if it says something else,
        if its id is taken, or if the job's is.
        """
        ...

    async def get(self, message_id: str) -> Message | None: ...

    async def find(self, owner: str, key: str) -> Message | None:
        """By the sender's own id for it."""
        ...

    async def read_conversation(
        self, conversation_id: str, *, after: int = 0, limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> Sequence[Message]:
        """In the order of writing, beginning after a number; at least one however large, and none beyond the end."""
        ...

    async def prune(self, before: float, limit: int = 1000) -> int:
        """Remove messages sent before that moment from conversations and inboxes; how many. Numbers stay used."""
        ...


class InboxStore(Protocol):
    """At-least-once: what is received and not acknowledged comes again."""

    async def receive(
        self, inbox: str, *, limit: int = 10, hold: float = 30.0, max_bytes: int = INBOX_BYTES
    ) -> Sequence[Delivery]:
        """The next messages (by priority, then age), hidden from other receivers for `hold` seconds.

        At least one however large; those that do not fit wait for the next receiver.
        Does not wait: watch `inbox_topic(inbox)` for that.
        """
        ...

    async def acknowledge(self, inbox: str, entries: Sequence[int]) -> Sequence[int]:
        """Done with these for good; returns those that were there."""
        ...

    async def status(self, inbox: str) -> InboxStatus: ...

    async def expire(self, limit: int = 1000) -> int:
        """Remove from all inboxes what nobody is given any more, its time being over; how many.

        What somebody holds stays until then, so that it can be acknowledged. Conversations keep their messages.
        """
        ...


class TopicStore(Protocol):
    async def subscribe(self, topic: str, inbox: str) -> bool:
        """From now on. False if it was subscribed already."""
        ...

    async def unsubscribe(self, topic: str, inbox: str) -> bool: ...

    async def list_subscribers(self, topic: str) -> Sequence[str]: ...

    async def count_topics(self, inbox: str, most: int) -> int:
        """To how many topics this inbox has subscribed; `most` if it is more."""
        ...

    async def list_topics(self, *, after: str = "", limit: int = 1000) -> Sequence[tuple[str, int]]:
        """Names with their number of subscribers, of which there is at least one; in order."""
        ...

    async def publish(self, topic: str, new: NewMessage, *, most: int | None = None) -> PostResult:
        """Append, and put it into every subscribed inbox besides those of its recipients.

        Subscribers whose inbox holds `most` already are left out, and counted.
        """
        ...


class MessageStore(ConversationStore, InboxStore, TopicStore, Protocol):
    """All that is kept of messages."""


# What can be watched, besides the topics made by the functions below.
WORK_TOPIC = "work"  # a job can be claimed, or will be by the time that a claim asked for now is granted
AGENTS_TOPIC = "agents"  # a registration came, changed or went


def job_topic(job_id: str) -> str:
    return f"job:{job_id}"


def inbox_topic(inbox: str) -> str:
    return f"inbox:{inbox}"


class WakeHandle(Protocol):
    """A bell that rings when something may have changed. It may ring for nothing, never the other way round."""

    def wake(self) -> None:
        """For whoever waits and has other reasons to be woken."""
        ...

    async def wait(self, timeout: float) -> bool:
        """Return when it has rung since the last wait (or since the watch began); False when the time is up."""
        ...


class ChangeNotices(Protocol):
    """Called by whoever waits. First watch, then read, then wait: so nothing falls between.

    A change made in this process rings at once; one of another process or node within a second.
    """

    def watch(self, topic: str) -> AbstractContextManager[WakeHandle]: ...

    def post(self, topic: str) -> None:
        """Ring for whoever watches it in this process: something besides the store has changed."""
        ...


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal["memory", "sqlite", "postgresql", "nats"] | str
    place: str
    schema: int
    jobs: dict[str, int] = {}  # by state
    agents: int = 0
    messages: int = 0
    bytes: int | None = None


class Store(Protocol):
    """One place that keeps everything. Built by its kind's `build`, closed once by whoever built it."""

    @property
    def jobs(self) -> JobStore: ...
    @property
    def registrations(self) -> RegistrationStore: ...
    @property
    def health(self) -> HealthLog: ...
    @property
    def messages(self) -> MessageStore: ...
    @property
    def notices(self) -> ChangeNotices: ...
    @property
    def archive(self) -> Archive: ...

    async def status(self) -> StoreStatus:
        """A look at it; raises StoreError when it cannot be used now."""
        ...

    async def aclose(self) -> None:
        """Finish what was begun and let go; never raises, may be called twice."""
        ...
