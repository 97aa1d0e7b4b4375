"""The in-memory store: nothing outlives the process. For tests, and for `store: memory`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import assert_never

from a2a_fabric.core.message import TopicSubscription
from a2a_fabric.core.plugin import StorePlugin
from a2a_fabric.core.stores import (
    AgentRecord,
    ArchiveRecord,
    HealthRecord,
    InboxRecord,
    JobEventRecord,
    JobRecord,
    MessageRecord,
    NumberingRecord,
    StoreStatus,
    SubscriptionRecord,
)
from a2a_fabric.core.tasks import TopicSignals
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

    async def dump(self) -> AsyncIterator[ArchiveRecord]:
        for record in [*self._dump_agents(), *self._dump_jobs(), *self._dump_messages()]:
            yield record

    async def restore(self, records: Sequence[ArchiveRecord]) -> int:
        return sum(self._restore_record(record) for record in records)

    def _restore_record(self, record: ArchiveRecord) -> bool:
        match record:
            case JobRecord(job=job):
                return self._jobs.restore(job)
            case JobEventRecord(job_id=job_id, event=event):
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

    def _dump_agents(self) -> Iterator[ArchiveRecord]:
        for row in sorted(self._registrations.by_id.values(), key=lambda row: row.revision):
            yield AgentRecord(registration=row)
        for checks in self._health.by_agent.values():
            yield from (HealthRecord(check=check) for check in checks.values())

    def _dump_jobs(self) -> Iterator[ArchiveRecord]:
        for job_id, job in self._jobs.by_id.items():
            yield JobRecord(job=job)
            yield from (JobEventRecord(job_id=job_id, event=event) for event in self._jobs.logs[job_id])

    def _dump_messages(self) -> Iterator[ArchiveRecord]:
        yield from (MessageRecord(message=message) for message in self._messages.by_id.values())
        yield from (NumberingRecord(numbering=each) for each in self._messages.list_numberings())
        for entries in self._messages.inboxes.values():
            yield from (InboxRecord(entry=entry) for entry in entries.values())
        for topic, inboxes in self._messages.by_topic.items():
            yield from (
                SubscriptionRecord(subscription=TopicSubscription(topic=topic, inbox=inbox)) for inbox in inboxes
            )


class MemoryStore:
    """All ports over plain dictionaries; every method is one step of the event loop, so nothing interleaves."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.notices = TopicSignals()
        self.jobs = MemoryJobs(self.notices, clock)
        self.messages = MemoryMessages(self.notices, clock, self.jobs.accept_at)
        self.registrations = MemoryRegistrations(self.notices, clock, self.messages.clear_inbox)
        self.health = MemoryHealthLog()
        self.archive = MemoryArchive(self.jobs, self.registrations, self.health, self.messages)

    async def status(self) -> StoreStatus:
        states = Counter(str(job.state) for job in self.jobs.by_id.values())
        return StoreStatus(
            kind="memory",
            place="memory",
            schema=0,
            jobs=dict(states),
            agents=len(self.registrations.by_id),
            messages=len(self.messages.by_id),
        )

    async def aclose(self) -> None:
        pass


async def build(address: str) -> MemoryStore:
    """The store for `memory` or `memory:`; the address says nothing more."""
    return MemoryStore()


plugin = StorePlugin(build=build)
