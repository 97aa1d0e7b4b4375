"""Everything in memory as records, and back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import assert_never

from a2a_fabric.core.archive import (
    AgentRecord,
    HealthRecord,
    InboxRecord,
    JobLine,
    JobRecord,
    MessageRecord,
    NumberingRecord,
    Record,
    SubscriptionRecord,
)
from a2a_fabric.core.message import Subscription
from a2a_fabric.stores.memory.jobs import MemoryJobs
from a2a_fabric.stores.memory.messages import MemoryMessages
from a2a_fabric.stores.memory.registrations import MemoryHealthLog, MemoryRegistrations


class MemoryArchive:
    def __init__(
        self,
        jobs: MemoryJobs,
        registrations: MemoryRegistrations,
        health: MemoryHealthLog,
        messages: MemoryMessages,
    ) -> None:
        self._jobs = jobs
        self._registrations = registrations
        self._health = health
        self._messages = messages

    async def dump(self) -> AsyncIterator[Record]:
        for record in [*self._agents(), *self._all_jobs(), *self._all_messages()]:
            yield record

    async def restore(self, records: Sequence[Record]) -> int:
        return sum(self._restore(record) for record in records)

    def _restore(self, record: Record) -> bool:
        match record:
            case JobRecord(job=job):
                return self._jobs.restore(job)
            case JobLine(job_id=job_id, event=event):
                return self._jobs.restore_event(job_id, event)
            case AgentRecord(registration=registration):
                return self._registrations.restore(registration)
            case HealthRecord(check=check):
                return self._health.restore(check)
            case MessageRecord(message=message):
                return self._messages.restore(message)
            case NumberingRecord(numbering=numbering):
                return self._messages.restore_numbering(numbering)
            case InboxRecord(entry=entry):
                return self._messages.restore_entry(entry)
            case SubscriptionRecord(subscription=subscription):
                return self._messages.restore_subscription(subscription)
            case _:
                assert_never(record)

    def _agents(self) -> Iterator[Record]:
        for row in sorted(self._registrations.by_id.values(), key=lambda row: row.revision):
            yield AgentRecord(registration=row)
        for checks in self._health.by_agent.values():
            yield from (HealthRecord(check=check) for check in checks.values())

    def _all_jobs(self) -> Iterator[Record]:
        for job_id, job in self._jobs.by_id.items():
            yield JobRecord(job=job)
            yield from (JobLine(job_id=job_id, event=line) for line in self._jobs.logs[job_id])

    def _all_messages(self) -> Iterator[Record]:
        yield from (MessageRecord(message=message) for message in self._messages.by_id.values())
        yield from (NumberingRecord(numbering=each) for each in self._messages.numberings())
        for entries in self._messages.inboxes.values():
            yield from (InboxRecord(entry=entry) for entry in entries.values())
        for topic, inboxes in self._messages.by_topic.items():
            yield from (SubscriptionRecord(subscription=Subscription(topic=topic, inbox=inbox)) for inbox in inboxes)
