"""All that a store keeps as records, so that everything of one engine can go into another. A line of an export each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from a2a_fabric.core.job import Job, JobEvent
from a2a_fabric.core.message import InboxEntry, Message, Numbering, Subscription
from a2a_fabric.core.registration import HealthCheck, Registration


class JobLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="event"):
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
    subscription: Subscription


_MessageRecords = MessageRecord | NumberingRecord | InboxRecord | SubscriptionRecord
Record = JobRecord | JobLine | AgentRecord | HealthRecord | _MessageRecords


class Archive(Protocol):
    """Everything out of one engine and into another. Called by `store export` and `store import` only."""

    def dump(self) -> AsyncIterator[Record]:
        """Every record, a job before its events, a message before its inbox entries."""
        ...

    async def restore(self, records: Sequence[Record]) -> int:
        """Write records as they are, ids, numbers and fences included; those that exist stay. How many were new.

        Events beyond the end of a job that exists are left out: its log goes on by itself.
        """
        ...
