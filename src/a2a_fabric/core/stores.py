"""The store ports: jobs, registrations, health, messages, change notices and the archive.

Rules that hold for every method:

- A write that returned is durable: it survives the death of the process and the machine.
- A write is atomic. If it is cancelled while awaited, or raises StoreUnavailable, it may or may
  not have happened; ids and keys allow it to be repeated without harm.
- Every method may raise StoreError (core/errors.py), and otherwise only what it names.
- "Missing" is None where one value is requested, an empty sequence where several are.
- The store's own clock counts (the database server's, where there is one). Leases are given in seconds;
  a lease of 0 is over at once.
- Values go in and come out; no live rows.

Stores report by themselves, after a few seconds, that they are unavailable. A store that does not
answer at all (a frozen server, a locked file) is given up by `call_store` after `STORE_TIMEOUT`,
because callers have deadlines of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import CallTimeout, StoreFull, StoreUnavailable
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
from a2a_fabric.core.keys import KeyStore, StoredKey
from a2a_fabric.core.logins import LoginStore
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
from a2a_fabric.core.receipts import ReceiptStore, StoredReceipt
from a2a_fabric.core.registration import (
    AgentChange,
    HealthCheck,
    IdReservation,
    Registration,
    RegistrationFilter,
    StoredDescription,
)
from a2a_fabric.core.result import Event
from a2a_fabric.core.spans import CallStore, StoredCall
from a2a_fabric.core.tasks import Deadline

P = ParamSpec("P")
T = TypeVar("T")

RETRY_SECONDS = 3.0
STORE_TIMEOUT = 12.0
_FIRST_PAUSE = 0.05
_MAX_PAUSE = 1.0


def retry_store_call(
    operation: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
) -> Coroutine[Any, Any, T]:  # not a coroutine around another one: every job makes such calls
    """Repeat `operation` while the store is unavailable. Only for operations that may be repeated without harm."""
    return retry_store_call_for(RETRY_SECONDS, operation, *args, **kwargs)


async def retry_store_call_for(
    seconds: float, operation: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    ends_at = time.monotonic() + seconds
    pause = _FIRST_PAUSE
    while True:
        try:
            return await call_store_within(STORE_TIMEOUT, operation, *args, **kwargs)
        except StoreFull:
            raise
        except StoreUnavailable:
            if time.monotonic() + pause >= ends_at:
                raise
        await asyncio.sleep(pause)
        pause = min(pause * 2, _MAX_PAUSE)


async def call_store(operation: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Raises StoreUnavailable if the store does not answer within `STORE_TIMEOUT`."""
    return await call_store_within(STORE_TIMEOUT, operation, *args, **kwargs)


async def call_store_within(
    timeout: float, operation: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    try:
        with Deadline(timeout):
            return await operation(*args, **kwargs)
    except CallTimeout as exc:
        raise StoreUnavailable(
            f"The store did not answer within {timeout:g} s; a change that was requested may have been made"
        ) from exc


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


class DescriptionRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="description"):
    description: StoredDescription


class MessageRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="message"):
    message: Message


class NumberingRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="numbering"):
    numbering: Numbering


class InboxRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="inbox"):
    entry: InboxEntry


class SubscriptionRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="subscription"):
    subscription: TopicSubscription


class PastCallRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="call"):
    """A call of the call history."""

    call: StoredCall


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="key"):
    key: StoredKey


class ReceiptRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="receipt"):
    receipt: StoredReceipt


_AgentRecords = AgentRecord | HealthRecord | DescriptionRecord
_MessageRecords = MessageRecord | NumberingRecord | InboxRecord | SubscriptionRecord
ArchiveRecord = (
    JobRecord | JobEventRecord | _AgentRecords | _MessageRecords | PastCallRecord | KeyRecord | ReceiptRecord
)


class Archive(Protocol):
    """Copies everything from one store to another, except logins; keys only if they are asked for.

    Called by `store export` and `store import` only.
    """

    def dump(self, *, with_keys: bool = False) -> AsyncIterator[ArchiveRecord]:
        """Every record, a job before its events, a message before its inbox entries, receipts at the end."""
        ...

    async def restore(self, records: Sequence[ArchiveRecord]) -> int:
        """Write records as they are, ids, numbers and fences included; those that exist stay. How many were new.

        Events beyond the end of a job that exists are left out: its log goes on by itself. Raises Conflict for a
        receipt of another chain with the same name (`core.receipts.is_next_link`); then none of them was written.
        """
        ...


PAGE_BYTES = 1 << 20
INBOX_BYTES = 8 << 20


class JobStore(Protocol):
    """Called by the job engine only; who may see which job is decided there, by `owner`.

    A job is held under a fence number; a write with an old one raises LeaseLost and changes nothing.
    """

    async def accept(self, new: NewJob) -> AcceptResult:
        """Store a job. A known key of the same owner returns that job; raises Conflict if its digest differs.

        Raises BadInput for an unknown priority. Calls that come at the same time share one transaction.
        """
        ...

    async def get(self, job_id: str) -> Job | None: ...

    async def find(self, owner: str, key: str) -> Job | None:
        """Find a job by the caller's own key."""
        ...

    async def list(self, query: JobFilter, *, cursor: str | None = None, limit: int = 100) -> JobPage:
        """Newest first; any page of an owner's, and of jobs that have not ended, costs the same.

        Raises BadInput for an invalid cursor.
        """
        ...

    async def count_waiting(self, owner: str, most: int) -> int:
        """How many jobs of an owner are queued; counting stops at `most`."""
        ...

    async def claim(self, request: ClaimRequest) -> Sequence[Job]:
        """Take the next jobs that are due: by priority, then `run_at`, then age; none of an agent beyond its limit.

        No job is given to two workers. Does not wait: watch `WORK_TOPIC` for that.
        """
        ...

    async def take_over(self, hold: HoldRequest, limit: int = 100) -> Sequence[Job]:
        """Hold, under a new fence, abandoned jobs (`is_abandoned`).

        Their lease has run out; or they wait and have expired, or were cancelled just as their worker left them.
        `decide_after_takeover` decides about each, and `release` stores the decision.
        """
        ...

    async def heartbeat(self, tokens: Sequence[FencingToken], lease: float) -> Sequence[HeartbeatReply]:
        """Extend the leases of all jobs that a worker holds; one reply for each, in order."""
        ...

    async def append(self, token: FencingToken, events: Sequence[Event]) -> int:
        """Append to the log; returns the last number. Raises LeaseLost, JobNotFound."""
        ...

    async def release(self, token: FencingToken, outcome: JobOutcome) -> JobSummary:
        """Release the job, and store its last events and follow-ups in the same transaction.

        Raises LeaseLost, JobNotFound, and Conflict for a state that cannot follow `running`.
        """
        ...

    async def answer(
        self, job_id: str, answer: dict[str, Any], events: Sequence[Event] = (), *, part_of: int | None = None
    ) -> JobSummary:
        """Queue a waiting job again, with its caller's answer. Raises JobNotFound, Conflict.

        With `part_of`, the version that the caller has seen, it waits on and `answer` replaces the answers so far.
        """
        ...

    async def cancel(self, job_id: str, outcome: JobOutcome) -> JobSummary:
        """End a waiting job with `outcome`; ask the worker of a running one, which polls and is notified.

        A second time, or after the end, it changes nothing and returns the job as it is. Raises JobNotFound.
        """
        ...

    async def events(self, job_id: str, *, after: int = 0, limit: int = 1000, max_bytes: int = PAGE_BYTES) -> EventPage:
        """The log after a number, at least one event however large; empty beyond the end. Raises JobNotFound."""
        ...

    async def prune(self, retention: RetentionPolicy, limit: int = 1000) -> PruneResult:
        """Remove ended jobs that are too old by their own retention or the policy, then the oldest beyond its size."""
        ...


class RegistrationStore(Protocol):
    """Called by the registry: agents that registered at run time, on any node that shares the store."""

    async def register(
        self, manifest: Manifest, owner: str, lease: float | None = None, reservation: IdReservation | None = None
    ) -> Registration:
        """Store or replace. Raises Forbidden while another owner's lease runs, or the id is still reserved for them.

        A new owner begins with an empty inbox and no subscriptions (`has_new_inbox`).
        """
        ...

    async def renew(self, agent_id: str, owner: str, lease: float | None = None) -> Registration:
        """Extend the lease. This is no change for `read_changes`. Raises AgentNotFound, Forbidden."""
        ...

    async def remove(self, agent_id: str, owner: str) -> bool:
        """Returns False if there was no registration. Raises Forbidden."""
        ...

    async def get(self, agent_id: str) -> Registration | None:
        """Also returns one whose lease has run out, until `expire` removes it."""
        ...

    async def list(self, query: RegistrationFilter, *, after: str = "", limit: int = 1000) -> Sequence[Registration]:
        """In order of agent id, beginning after the given one."""
        ...

    async def read_changes(self, after: int, limit: int = 1000) -> Sequence[AgentChange]:
        """What changed after a revision, oldest first, each agent once with its latest state. 0: everything.

        No change ever appears behind a revision that was already handed out. Watch `AGENTS_TOPIC` to know when to read.
        """
        ...

    async def expire(self, limit: int = 1000) -> Sequence[str]:
        """Remove the registrations whose lease has run out; the ids of those that this call removed."""
        ...


class HealthLog(Protocol):
    """Called by the registry: the health history of every agent."""

    async def append(self, checks: Sequence[HealthCheck]) -> None: ...

    async def read(
        self, agent_id: str, *, since: float = 0.0, until: float | None = None, limit: int = 100
    ) -> Sequence[HealthCheck]:
        """Newest first, `since` <= checked_at < `until`."""
        ...

    async def prune(self, before: float) -> int:
        """Remove older rows; returns how many."""
        ...


class DescriptionStore(Protocol):
    """Called by the registry: what agents published about themselves, so that a node knows it when it starts."""

    async def read(self, *, after: tuple[str, str] = ("", ""), limit: int = 1000) -> Sequence[StoredDescription]:
        """In order of agent id and connection, beginning after the given ones; at least one, and about 16 MB."""
        ...

    async def put(self, descriptions: Sequence[StoredDescription]) -> None:
        """Add or replace, by agent id and connection."""
        ...

    async def prune(self, before: float) -> int:
        """Remove those that were last seen before that moment; returns how many."""
        ...


class ConversationStore(Protocol):
    """Called by the messages package, which decides who may read what."""

    async def append(self, new: NewMessage, job: NewJob | None = None) -> PostResult:
        """Number it in its conversation and put it into its recipients' inboxes; accept the job that delivers it.

        A known key of the same owner returns that message, without a job. Raises Conflict if the content differs,
        or if the id of the message or of the job is taken.
        """
        ...

    async def get(self, message_id: str) -> Message | None: ...

    async def find(self, owner: str, key: str) -> Message | None:
        """Find a message by the sender's own key."""
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
    """At-least-once delivery: a message that is received and not acknowledged is delivered again."""

    async def receive(
        self, inbox: str, *, limit: int = 10, hold: float = 30.0, max_bytes: int = INBOX_BYTES
    ) -> Sequence[Delivery]:
        """The next messages (by priority, then age), hidden from other receivers for `hold` seconds.

        At least one however large; those that do not fit wait for the next receiver.
        Does not wait: watch `inbox_topic(inbox)` for that.
        """
        ...

    async def acknowledge(self, inbox: str, entries: Sequence[int]) -> Sequence[int]:
        """Remove these entries; returns those that existed."""
        ...

    async def status(self, inbox: str) -> InboxStatus: ...

    async def expire(self, limit: int = 1000) -> int:
        """Remove expired messages from all inboxes; how many. Conversations keep them.

        A message that a receiver holds stays until the hold ends, so that it can be acknowledged.
        """
        ...


class TopicStore(Protocol):
    async def subscribe(self, topic: str, inbox: str) -> bool:
        """False if the inbox was subscribed already."""
        ...

    async def unsubscribe(self, topic: str, inbox: str) -> bool: ...

    async def list_subscribers(self, topic: str) -> Sequence[str]: ...

    async def count_topics(self, inbox: str, most: int) -> int:
        """To how many topics this inbox has subscribed; `most` if it is more."""
        ...

    async def list_topics(self, *, after: str = "", limit: int = 1000) -> Sequence[tuple[str, int]]:
        """Names of topics with at least one subscriber, and the numbers of subscribers; in order."""
        ...

    async def publish(self, topic: str, new: NewMessage, *, most: int | None = None) -> PostResult:
        """Append, and put it into every subscribed inbox besides those of its recipients.

        Subscribers whose inbox holds `most` already are left out, and counted.
        """
        ...


class MessageStore(ConversationStore, InboxStore, TopicStore, Protocol):
    """Everything that a store keeps of messages."""


# Topics that can be watched, besides those of the functions below.
WORK_TOPIC = "work"  # a job can be claimed now, or by the time that a claim is granted
AGENTS_TOPIC = "agents"  # a registration was added, changed or removed


def job_topic(job_id: str) -> str:
    return f"job:{job_id}"


def inbox_topic(inbox: str) -> str:
    return f"inbox:{inbox}"


class WakeHandle(Protocol):
    """Wakes its owner when something may have changed. It may wake up for nothing, but never misses a change."""

    def wake(self) -> None:
        """Wake the waiting task for another reason than a change."""
        ...

    async def wait(self, timeout: float) -> bool:
        """Return at a change since the last wait (or since the watch began); False when the time is up."""
        ...


class ChangeNotices(Protocol):
    """Tells waiting tasks of changes. First watch, then read, then wait: so no change is missed.

    A change in this process wakes up at once, a change in another process or on another node within a second.
    """

    def watch(self, topic: str) -> AbstractContextManager[WakeHandle]: ...

    def post(self, topic: str) -> None:
        """Wake all that watch the topic in this process, because something besides the store has changed."""
        ...


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal["memory", "sqlite", "postgresql", "nats"] | str
    place: str
    schema: int
    jobs: dict[str, int] = {}  # by state
    agents: int = 0
    messages: int = 0
    bytes: int | None = None
    queue_age: float | None = None  # seconds that the oldest due job has waited, 0 if none waits; None: not known
    connections: dict[str, int] = {}  # to a server, by state: used, idle, waiting (callers without one)


class Store(Protocol):
    """One store for everything. Built by the plug-in of its kind, closed once by its owner."""

    @property
    def jobs(self) -> JobStore: ...
    @property
    def registrations(self) -> RegistrationStore: ...
    @property
    def health(self) -> HealthLog: ...
    @property
    def descriptions(self) -> DescriptionStore: ...
    @property
    def messages(self) -> MessageStore: ...
    @property
    def logins(self) -> LoginStore: ...
    @property
    def keys(self) -> KeyStore: ...
    @property
    def receipts(self) -> ReceiptStore: ...
    @property
    def calls(self) -> CallStore: ...
    @property
    def notices(self) -> ChangeNotices: ...
    @property
    def archive(self) -> Archive: ...

    async def status(self) -> StoreStatus:
        """Facts for operators; raises StoreError when the store cannot be used now."""
        ...

    async def aclose(self) -> None:
        """Finish pending writes and close; never raises, may be called twice."""
        ...
