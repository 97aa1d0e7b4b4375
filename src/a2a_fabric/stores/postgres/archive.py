"""Export and import of everything in a PostgreSQL database, as records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from a2a_fabric.core.job import JobEvent
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
from a2a_fabric.stores.postgres import messages, registrations
from a2a_fabric.stores.postgres.connections import PostgresConnections
from a2a_fabric.stores.postgres.job_writes import insert_jobs
from a2a_fabric.stores.postgres.jobs import SELECT_FULL_JOBS
from a2a_fabric.stores.postgres.transactions import PostgresTransaction, Row, to_columns, unnest_parameters
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

_PAGE = 200
_PAGE_BYTES = 4 << 20


def _build_page_query(sql: str, key: str, size: str) -> str:
    """Rows in the order of their key: up to _PAGE rows and _PAGE_BYTES bytes, and at least one row."""
    return f"""
    SELECT * FROM (
        SELECT page.*, row_number() OVER ordered AS place, sum({size}) OVER ordered AS bytes
        FROM ({sql} ORDER BY {key} LIMIT {_PAGE}) AS page WINDOW ordered AS (ORDER BY {key})
    ) AS sized WHERE bytes <= {_PAGE_BYTES} OR place = 1 ORDER BY {key}
    """  # noqa: S608


_JOBS = _build_page_query(
    f"{SELECT_FULL_JOBS} WHERE jobs.seq > $1", "seq", "octet_length(call) + coalesce(octet_length(result), 0)"
)
_EVENTS = _build_page_query(
    "SELECT number, at, kind, data FROM a2a_fabric.job_events WHERE job = $1 AND number > $2 AND number <= $3",
    "number",
    "octet_length(data)",
)
_MESSAGES = _build_page_query(
    "SELECT seq, message FROM a2a_fabric.messages WHERE seq > $1", "seq", "octet_length(message)"
)
_NUMBERINGS = f"""
SELECT conversation_id, last FROM a2a_fabric.conversations WHERE conversation_id > $1 AND NOT EXISTS (
    SELECT 1 FROM a2a_fabric.messages WHERE messages.conversation_id = conversations.conversation_id AND number = last
) ORDER BY conversation_id LIMIT {_PAGE}
"""  # noqa: S608
_ENTRIES = f"""
SELECT entry, inbox, message_id, attempt, visible_at
FROM a2a_fabric.inbox_entries AS entries JOIN a2a_fabric.messages AS messages ON messages.seq = entries.message
WHERE entry > $1 ORDER BY entry LIMIT {_PAGE}
"""  # noqa: S608
_AGENTS = f"""
SELECT revision, {AGENT_COLUMNS} FROM a2a_fabric.agents
WHERE revision > $1 AND NOT removed ORDER BY revision LIMIT {_PAGE}
"""  # noqa: S608
_CHECKS = f"""
SELECT {HEALTH_COLUMNS} FROM a2a_fabric.health_checks
WHERE (agent_id, checked_at, node_id) > ($1, $2, $3) ORDER BY agent_id, checked_at, node_id LIMIT {_PAGE}
"""  # noqa: S608
_SUBSCRIPTIONS = f"""
SELECT topic, inbox FROM a2a_fabric.subscriptions WHERE (topic, inbox) > ($1, $2) ORDER BY topic, inbox LIMIT {_PAGE}
"""  # noqa: S608
_PUT_BODIES = """
INSERT INTO a2a_fabric.job_bodies (job, result, question, answer)
SELECT seq, result, question, answer
FROM unnest($1::text[], $2::bytea[], $3::bytea[], $4::bytea[]) AS given (job_id, result, question, answer)
JOIN a2a_fabric.jobs USING (job_id)
"""
_PUT_EVENTS = f"""
INSERT INTO a2a_fabric.job_events (job, number, at, kind, data)
SELECT seq, number, at, kind, data
FROM unnest({unnest_parameters(("text", "int8", "float8", "text", "bytea"))}) AS given (job_id, number, at, kind, data)
JOIN a2a_fabric.jobs USING (job_id) WHERE jobs.events >= number ON CONFLICT DO NOTHING RETURNING 1
"""  # noqa: S608


class PostgresArchive:
    """Exports page by page, so that a large store is never held in memory; the pages are no common snapshot."""

    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections

    async def dump(self) -> AsyncIterator[ArchiveRecord]:
        async for row in self._read_pages(_AGENTS, (-1,)):
            yield agent_record_from_row(row)
        async for row in self._read_pages(_CHECKS, ("", float("-inf"), "")):
            yield health_record_from_row(row)
        async for row in self._read_pages(_JOBS, (-1,)):
            yield JobRecord(job=(job := job_from_row(row)))
            async for event in self._read_events(row[0], job.events):
                yield JobEventRecord(job_id=row[1], event=event)
        async for row in self._read_pages(_MESSAGES, (-1,)):
            yield message_record_from_row(row)
        async for row in self._read_pages(_NUMBERINGS, ("",)):
            yield numbering_record_from_row(row)
        async for row in self._read_pages(_ENTRIES, (-1,)):
            yield inbox_record_from_row(row)
        async for row in self._read_pages(_SUBSCRIPTIONS, ("", "")):
            yield subscription_record_from_row(row)

    async def restore(self, records: Sequence[ArchiveRecord]) -> int:
        async def work(tx: PostgresTransaction) -> int:
            return sum([await restore_kind(tx, records) for restore_kind in _RESTORERS])

        return await self._connections.write(work)

    async def _read_pages(self, sql: str, after: tuple[Any, ...]) -> AsyncIterator[Row]:
        """All rows of a query that begins after a key; the key is the first columns of each row."""
        while rows := await self._connections.read(sql, *after):
            for row in rows:
                yield row
            after = tuple(rows[-1][: len(after)])

    async def _read_events(self, seq: int, upto: int) -> AsyncIterator[JobEvent]:
        """The log up to where it was when the job was read; it may have grown since."""
        after = 0
        while rows := await self._connections.read(_EVENTS, seq, after, upto):
            for row in rows:
                yield event_from_row(row[:4])
            after = rows[-1][0]


async def _restore_agents(tx: PostgresTransaction, records: Sequence[ArchiveRecord]) -> int:
    rows = [each.registration for each in records if isinstance(each, AgentRecord)]
    return sum([await registrations.restore_registration(tx, row) for row in rows])


async def _restore_checks(tx: PostgresTransaction, records: Sequence[ArchiveRecord]) -> int:
    checks = [each.check for each in records if isinstance(each, HealthRecord)]
    return await registrations.insert_checks(tx, checks) if checks else 0


async def _restore_jobs(tx: PostgresTransaction, records: Sequence[ArchiveRecord]) -> int:
    jobs = {each.job.job_id: each.job for each in records if isinstance(each, JobRecord)}
    if not jobs:
        return 0
    written_ids = await insert_jobs(tx, [(EncodedJob(job.call), job) for job in jobs.values()])
    bodies = [
        (job_id, encode_optional(job.result), encode_optional(job.question), encode_optional(job.answer))
        for job_id, job in jobs.items()
        if job_id in written_ids
    ]
    await tx.write(_PUT_BODIES, *to_columns(bodies, 4))
    return len(written_ids)


async def _restore_events(tx: PostgresTransaction, records: Sequence[ArchiveRecord]) -> int:
    rows = [
        (each.job_id, each.event.number, each.event.at, each.event.event.kind, encode(each.event.event.data))
        for each in records
        if isinstance(each, JobEventRecord)
    ]
    return len(await tx.write(_PUT_EVENTS, *to_columns(rows, 5))) if rows else 0


async def _restore_messages(tx: PostgresTransaction, records: Sequence[ArchiveRecord]) -> int:
    batch = [each.message for each in records if isinstance(each, MessageRecord)]
    return await messages.restore_messages(tx, batch) if batch else 0


async def _restore_numberings(tx: PostgresTransaction, records: Sequence[ArchiveRecord]) -> int:
    numberings = [each.numbering for each in records if isinstance(each, NumberingRecord)]
    return await messages.restore_numberings(tx, numberings) if numberings else 0


async def _restore_entries(tx: PostgresTransaction, records: Sequence[ArchiveRecord]) -> int:
    entries = [each.entry for each in records if isinstance(each, InboxRecord)]
    return await messages.restore_entries(tx, entries) if entries else 0


async def _restore_subscriptions(tx: PostgresTransaction, records: Sequence[ArchiveRecord]) -> int:
    subscriptions = [each.subscription for each in records if isinstance(each, SubscriptionRecord)]
    return await messages.insert_subscriptions(tx, subscriptions) if subscriptions else 0


# In this order, because events refer to jobs and inbox entries to messages.
_RESTORERS: tuple[Callable[[PostgresTransaction, Sequence[ArchiveRecord]], Awaitable[int]], ...] = (
    _restore_agents,
    _restore_checks,
    _restore_jobs,
    _restore_events,
    _restore_messages,
    _restore_numberings,
    _restore_entries,
    _restore_subscriptions,
)
