"""Export and import of everything in a SQLite file, as records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import assert_never

from a2a_fabric.core.job import Job, JobEvent
from a2a_fabric.core.stores import (
    AgentRecord,
    ArchiveRecord,
    HealthRecord,
    InboxRecord,
    JobEventRecord,
    JobRecord,
    MessageRecord,
    NumberingRecord,
    SubscriptionRecord,
)
from a2a_fabric.stores.rows import (
    AGENT_COLUMNS,
    HEALTH_COLUMNS,
    EncodedJob,
    agent_record_from_row,
    encode,
    encode_optional,
    event_from_row,
    health_record_from_row,
    inbox_record_from_row,
    job_from_row,
    message_record_from_row,
    numbering_record_from_row,
    subscription_record_from_row,
)
from a2a_fabric.stores.sqlite import messages, registrations
from a2a_fabric.stores.sqlite.connections import Row, SqliteReader
from a2a_fabric.stores.sqlite.job_writes import SELECT_FULL_JOBS, insert_job
from a2a_fabric.stores.sqlite.writer import SqliteTransaction, Writer

_PAGE = 500
_JOBS = f"{SELECT_FULL_JOBS} WHERE jobs.seq > ? ORDER BY jobs.seq LIMIT {_PAGE}"
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
SELECT revision, {AGENT_COLUMNS} FROM agents WHERE revision > ? AND removed = 0 ORDER BY revision LIMIT {_PAGE}
"""  # noqa: S608
_CHECKS = f"""
SELECT {HEALTH_COLUMNS} FROM health_checks
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
    """Exports page by page, so that a large store is never held in memory; the pages are no common snapshot."""

    def __init__(self, writer: Writer, reader: SqliteReader) -> None:
        self._writer = writer
        self._reader = reader

    async def dump(self) -> AsyncIterator[ArchiveRecord]:
        for row in self._read_pages(_AGENTS, (-1,)):
            yield agent_record_from_row(row)
        for row in self._read_pages(_CHECKS, ("", 0.0, "")):
            yield health_record_from_row(row)
        for row in self._read_pages(_JOBS, (-1,)):
            yield JobRecord(job=(job := job_from_row(row)))
            for event in self._read_events(row[0], job.events):
                yield JobEventRecord(job_id=row[1], event=event)
        for row in self._read_pages(_MESSAGES, (-1,)):
            yield message_record_from_row(row)
        for row in self._read_pages(_NUMBERINGS, ("",)):
            yield numbering_record_from_row(row)
        for row in self._read_pages(_ENTRIES, (-1,)):
            yield inbox_record_from_row(row)
        for row in self._read_pages(_SUBSCRIPTIONS, ("", "")):
            yield subscription_record_from_row(row)

    async def restore(self, records: Sequence[ArchiveRecord]) -> int:
        return await self._writer.run(lambda tx: sum(_restore_record(tx, record) for record in records))

    def _read_pages(self, sql: str, after: Row) -> Iterator[Row]:
        """All rows of a query that begins after a key; the key is the first columns of each row."""
        last: Row | None = after
        while last is not None:
            key, last = last[: len(after)], None
            with self._reader.iterate_rows(sql, key) as rows:
                for last in rows:
                    yield last

    def _read_events(self, seq: int, upto: int) -> Iterator[JobEvent]:
        """The log up to where it was when the job was read; it may have grown since."""
        after = 0
        while after < upto:
            event = None
            with self._reader.iterate_rows(_EVENTS, (seq, after, upto)) as rows:
                for event in map(event_from_row, rows):
                    yield event
            if event is None:  # the job was deleted meanwhile
                return
            after = event.number


def _restore_record(tx: SqliteTransaction, record: ArchiveRecord) -> bool:
    match record:
        case JobRecord(job=job):
            return _restore_job(tx, job)
        case JobEventRecord(job_id=job_id, event=event):
            values = (event.number, event.at, event.event.kind, encode(event.event.data), job_id)
            return tx.execute(_RESTORE_EVENT, values).rowcount > 0
        case AgentRecord(registration=registration):
            return registrations.restore_registration(tx, registration)
        case HealthRecord(check=check):
            return registrations.insert_check(tx, check)
        case MessageRecord(message=message):
            return messages.restore_message(tx, message)
        case NumberingRecord(numbering=numbering):
            return messages.restore_numbering(tx, numbering)
        case InboxRecord(entry=entry):
            return messages.restore_entry(tx, entry)
        case SubscriptionRecord(subscription=subscription):
            return messages.insert_subscription(tx, subscription)
        case _:
            assert_never(record)


def _restore_job(tx: SqliteTransaction, job: Job) -> bool:
    seq = insert_job(tx, job, EncodedJob(job.call))
    if seq is None:
        return False
    body = [encode_optional(each) for each in (job.result, job.question, job.answer)]
    tx.execute("INSERT INTO job_bodies (job, result, question, answer) VALUES (?, ?, ?, ?)", (seq, *body))
    return True
