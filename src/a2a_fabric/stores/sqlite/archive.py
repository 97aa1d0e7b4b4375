"""Everything in a SQLite file as records, and back."""

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
from a2a_fabric.core.job import Job, JobEvent
from a2a_fabric.core.message import InboxEntry, Numbering, Subscription
from a2a_fabric.stores.agent_rows import registration_from
from a2a_fabric.stores.job_rows import changing, encode, event_from, fixed, job_from
from a2a_fabric.stores.sqlite import messages, registrations
from a2a_fabric.stores.sqlite.job_rows import INSERT, SELECT_WHOLE
from a2a_fabric.stores.sqlite.reader import Reader, Row
from a2a_fabric.stores.sqlite.writer import Transaction, Writer

_PAGE = 500
_JOBS = f"{SELECT_WHOLE} WHERE jobs.seq > ? ORDER BY jobs.seq LIMIT {_PAGE}"
_EVENTS = f"""
SELECT number, at, kind, data FROM job_events WHERE job = ? AND number > ? AND number <= ? ORDER BY number LIMIT {_PAGE}
"""  # noqa: S608
_MESSAGES = f"SELECT seq, message FROM messages WHERE seq > ? ORDER BY seq LIMIT {_PAGE}"  # noqa: S608
_NUMBERINGS = f"""
SELECT conversation_id, last FROM conversations WHERE conversation_id > ? AND NOT EXISTS (
    SELECT 1 FROM messages WHERE messages.conversation_id = conversations.conversation_id AND number = last
) ORDER BY conversation_id LIMIT {_PAGE}
"""  # noqa: S608
_ENTRIES = f"""
SELECT entry, inbox, message_id, attempt, visible_at
FROM inbox_entries JOIN messages ON messages.seq = inbox_entries.message
WHERE entry > ? ORDER BY entry LIMIT {_PAGE}
"""  # noqa: S608
_AGENTS = f"""
SELECT revision, agent_id, revision, removed, owner, registered_at, updated_at, seen_at, lease_until, manifest
FROM agents WHERE revision > ? AND removed = 0 ORDER BY revision LIMIT {_PAGE}
"""  # noqa: S608
_CHECKS = f"""
SELECT agent_id, checked_at, node_id, status, latency, error FROM health_checks
WHERE (agent_id, checked_at, node_id) > (?, ?, ?) ORDER BY agent_id, checked_at, node_id LIMIT {_PAGE}
"""  # noqa: S608
_SUBSCRIPTIONS = f"""
SELECT topic, inbox FROM subscriptions WHERE (topic, inbox) > (?, ?) ORDER BY topic, inbox LIMIT {_PAGE}
"""  # noqa: S608
_RESTORE_EVENT = """
INSERT OR IGNORE INTO job_events (job, number, at, kind, data)
SELECT seq, ?1, ?2, ?3, ?4 FROM jobs WHERE job_id = ?5 AND events >= ?1
"""


class SqliteArchive:
    """Read page by page, so that a large store is never held in memory; not one snapshot of all of it."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def dump(self) -> AsyncIterator[Record]:
        for rows, made in (
            (self._pages(_AGENTS, 1, (-1,)), _agent),
            (self._pages(_CHECKS, 3, ("", 0.0, "")), _check),
        ):
            for row in rows:
                yield made(row)
        for row in self._pages(_JOBS, 1, (-1,)):
            yield JobRecord(job=(job := job_from(row)))
            for line in self._log(row[0], job.events):
                yield JobLine(job_id=row[1], event=line)
        for rows, made in (
            (self._pages(_MESSAGES, 1, (-1,)), _message),
            (self._pages(_NUMBERINGS, 1, ("",)), _numbering),
            (self._pages(_ENTRIES, 1, (-1,)), _entry),
            (self._pages(_SUBSCRIPTIONS, 2, ("", "")), _subscription),
        ):
            for row in rows:
                yield made(row)

    async def restore(self, records: Sequence[Record]) -> int:
        return await self._writer.run(lambda tx: sum(_restore(tx, record) for record in records))

    def _pages(self, sql: str, width: int, after: Row) -> Iterator[Row]:
        """All rows of a query that begins after a key, which is the first columns of each row."""
        last: Row | None = after
        while last is not None:
            after, last = last[:width], None
            with self._reader.rows(sql, after) as rows:
                for last in rows:
                    yield last

    def _log(self, seq: int, upto: int) -> Iterator[JobEvent]:
        """As long as it was when the job was read; it may have grown since."""
        after = 0
        while after < upto:
            line = None
            with self._reader.rows(_EVENTS, (seq, after, upto)) as rows:
                for line in map(event_from, rows):
                    yield line
            if line is None:  # it was removed meanwhile
                return
            after = line.number


def _agent(row: Row) -> Record:
    return AgentRecord(registration=registration_from(row[1:]))


def _check(row: Row) -> Record:
    return HealthRecord(check=registrations.check_from(row))


def _message(row: Row) -> Record:
    return MessageRecord(message=messages.decode(row[1]))


def _numbering(row: Row) -> Record:
    return NumberingRecord(numbering=Numbering(conversation_id=row[0], last=row[1]))


def _entry(row: Row) -> Record:
    _, inbox, message_id, attempt, visible_at = row
    return InboxRecord(
        entry=InboxEntry(inbox=inbox, message_id=message_id, attempt=attempt, visible_at=visible_at)
    )  # fmt: skip


def _subscription(row: Row) -> Record:
    return SubscriptionRecord(subscription=Subscription(topic=row[0], inbox=row[1]))


def _restore(tx: Transaction, record: Record) -> bool:
    match record:
        case JobRecord(job=job):
            return _restore_job(tx, job)
        case JobLine(job_id=job_id, event=line):
            values = (line.number, line.at, line.event.kind, encode(line.event.data), job_id)
            return tx.execute(_RESTORE_EVENT, values).rowcount > 0
        case AgentRecord(registration=registration):
            return registrations.restore(tx, registration)
        case HealthRecord(check=check):
            return registrations.note(tx, check)
        case MessageRecord(message=message):
            return messages.restore(tx, message)
        case NumberingRecord(numbering=numbering):
            return messages.restore_numbering(tx, numbering)
        case InboxRecord(entry=entry):
            return messages.restore_entry(tx, entry)
        case SubscriptionRecord(subscription=subscription):
            return messages.subscribe(tx, subscription)
        case _:
            assert_never(record)


def _restore_job(tx: Transaction, job: Job) -> bool:
    cursor = tx.execute(INSERT, (*fixed(job), *changing(job)))
    if cursor.rowcount == 0:
        return False
    seq = cursor.lastrowid
    tx.execute("INSERT INTO job_calls (job, call) VALUES (?, ?)", (seq, encode(job.call)))
    body = [None if each is None else encode(each) for each in (job.result, job.question, job.answer)]
    tx.execute("INSERT INTO job_bodies (job, result, question, answer) VALUES (?, ?, ?, ?)", (seq, *body))
    return True
