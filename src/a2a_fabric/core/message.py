"""Messages: parts from a sender to recipients, ordered within a conversation, kept in inboxes until acknowledged.

Each message is complete in itself. A conversation is the order in which messages were
written; an inbox holds the messages that its owner has not acknowledged yet; a topic is a
name to which inboxes subscribe."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from a2a_fabric.core.errors import Conflict
from a2a_fabric.core.job import AcceptResult, JobSummary
from a2a_fabric.core.propagation import new_ordered_id
from a2a_fabric.core.result import Part

PartyKind = Literal["client", "agent"]
EXTENSION_KEY = "extension"  # in a part's meta: the protocol's name of an unknown type


class Party(msgspec.Struct, frozen=True, kw_only=True):
    """A sender or recipient of messages."""

    id: str
    kind: PartyKind = "agent"

    @property
    def inbox(self) -> str:
        """The name of the inbox that belongs to this party."""
        return inbox_name(self.id, self.kind)


def inbox_name(party_id: str, kind: PartyKind = "agent") -> str:
    return f"{kind}:{party_id}"


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is to be stored."""

    message_id: str
    conversation_id: str
    owner: str  # owner key of the principal who wrote it
    sender: Party
    recipients: tuple[Party, ...] = ()
    parts: tuple[Part, ...] = ()
    metadata: dict[str, Any] = {}
    key: str | None = None  # the sender's own id for it, unique per owner
    reply_to: str | None = None
    priority: int = 2
    expires_at: float | None = None  # it is not delivered afterwards; the conversation keeps it
    is_brought: bool = False  # its recipients are called with it, so it waits in none of their inboxes

    @property
    def inboxes(self) -> tuple[str, ...]:
        """Where it waits for its recipients."""
        return () if self.is_brought else tuple(party.inbox for party in self.recipients)


class Message(NewMessage, frozen=True, kw_only=True):
    """A message as it was written down. `number` begins at 1 in each conversation and has no gaps."""

    number: int
    sent_at: float
    topic: str | None = None


class PostResult(msgspec.Struct, frozen=True):
    """`is_new` is false when the key was known; then nothing was written or delivered again."""

    message: Message
    is_new: bool
    inboxes: int = 0  # how many inboxes it was put into
    job: JobSummary | None = None  # the delivery job, if one was requested
    full: int = 0  # how many subscribers did not get it, as their inboxes held enough


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A message from an inbox. It is delivered again, with a higher `attempt`, unless `entry` is acknowledged."""

    entry: int
    attempt: int
    message: Message


class InboxStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`waiting` can be received now; `held` was received and is not yet acknowledged."""

    inbox: str
    waiting: int
    held: int


class InboxEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One message in one inbox, as an export carries it."""

    inbox: str
    message_id: str
    attempt: int = 0
    visible_at: float = 0.0


class Numbering(msgspec.Struct, frozen=True, kw_only=True):
    """The last number of a conversation whose last message was removed."""

    conversation_id: str
    last: int


class TopicSubscription(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    inbox: str


def new_message_id() -> str:
    return new_ordered_id("msg_")


def new_conversation_id() -> str:
    return new_ordered_id("conv_")


def make_extension_part(kind: str, content: Any, meta: dict[str, Any] | None = None) -> Part:
    """A part of an unknown type, stored unchanged so that it can be returned as it was sent."""
    return Part(kind="json", data=content, meta={**(meta or {}), EXTENSION_KEY: kind})


def measure_parts(parts: Sequence[Part]) -> int:
    """The approximate size in bytes."""
    return sum(
        len(part.text or "") + len(part.blob or "") + (len(msgspec.json.encode(part.data)) if part.data else 0)
        for part in parts
    )


def compute_message_digest(new: NewMessage) -> str:
    """Equal for two messages with the same content, recipients and conversation."""
    content = (new.conversation_id, new.sender, new.recipients, new.parts, new.metadata, new.reply_to)
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()


def require_new_job(accept_result: AcceptResult) -> JobSummary:
    """The job that was accepted with a message. Raises Conflict if it was there before the message."""
    if not accept_result.is_new:
        raise Conflict(f"There is a job '{accept_result.job.job_id}' already", job_id=accept_result.job.job_id)
    return accept_result.job


def match_existing_message(existing: Message, new: NewMessage) -> Message:
    """The message that already has this key. Raises Conflict if the new message has other content."""
    if compute_message_digest(existing) != compute_message_digest(new):
        raise Conflict(
            f"The key '{(new.key or '')[:64]}' was used for another message; use a new key",
            message_id=existing.message_id,
        )
    return existing
