"""Everything in a PostgreSQL database as records, and back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

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
from a2a_fabric.stores.agent_rows import COLUMNS, registration_from
from a2a_fabric.stores.job_rows import encode, event_from, job_from
from a2a_fabric.stores.postgres import health, message_writes, messages, registrations
from a2a_fabric.stores.postgres.arrays import arrays, columns_of
from a2a_fabric.stores.postgres.connections import Connections
from a2a_fabric.stores.postgres.job_writes import Written, insert_jobs
from a2a_fabric.stores.postgres.jobs import WHOLE
from a2a_fabric.stores.postgres.transaction import Row, Transaction

_PAGE = 200
_PAGE_BYTES = 4 << 20


def _page(sql: str, key: str, size: str) -> str:
    """Rows in the order of their key: a page full, or as many as go into so many bytes, and at least one."""
    return f"""
    SELECT * FROM (
        SELECT page.*, row_number() OVER ordered AS place, sum({size}) OVER ordered AS bytes
        FROM ({sql} ORDER BY {key} LIMIT {_PAGE}) AS page WINDOW ordered AS (ORDER BY {key})
    ) AS sized WHERE bytes <= {_PAGE_BYTES} OR place = 1 ORDER BY {key}
    """  # noqa: S608


_JOBS = _page(f"{WHOLE} WHERE jobs.seq > $1", "seq", "octet_length(call) + coalesce(octet_length(result), 0)")
_EVENTS = _page(
    "SELECT number, at, kind, data FROM a2a_fabric.job_events WHERE job = $1 AND number > $2 AND number <= $3",
    "number",
    "octet_length(data)",
)
_MESSAGES = _page("SELECT seq, message FROM a2a_fabric.messages WHERE seq > $1", "seq", "octet_length(message)")
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
SELECT revision, {COLUMNS} FROM a2a_fabric.agents
WHERE revision > $1 AND NOT removed ORDER BY revision LIMIT {_PAGE}
"""  # noqa: S608
_CHECKS = f"""
SELECT {health.COLUMNS} FROM a2a_fabric.health_checks
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
_PUT_LINES = f"""
INSERT INTO a2a_fabric.job_events (job, number, at, kind, data)
SELECT seq, number, at, kind, data
FROM unnest({arrays(("text", "int8", "float8", "text", "bytea"))}) AS given (job_id, number, at, kind, data)
JOIN a2a_fabric.jobs USING (job_id) WHERE jobs.events >= number ON CONFLICT DO NOTHING RETURNING 1
"""  # noqa: S608


class PostgresArchive:
    """Read page by page, so that a large store is never held in memory; not one snapshot of all of it."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def dump(self) -> AsyncIterator[Record]:
        async for row in self._pages(_AGENTS, (-1,)):
            yield AgentRecord(registration=registration_from(row[1:]))
        async for row in self._pages(_CHECKS, ("", float("-inf"), "")):
            yield HealthRecord(check=health.check_from(row))
        async for row in self._pages(_JOBS, (-1,)):
            yield JobRecord(job=(job := job_from(row)))
            async for line in self._log(row[0], job.events):
                yield JobLine(job_id=row[1], event=line)
        async for row in self._pages(_MESSAGES, (-1,)):
            yield MessageRecord(message=message_writes.decode(row[1]))
        async for row in self._pages(_NUMBERINGS, ("",)):
            yield NumberingRecord(numbering=Numbering(conversation_id=row[0], last=row[1]))
        async for row in self._pages(_ENTRIES, (-1,)):
            yield InboxRecord(
                entry=InboxEntry(inbox=row[1], message_id=row[2], attempt=row[3], visible_at=row[4])
            )  # fmt: skip
        async for row in self._pages(_SUBSCRIPTIONS, ("", "")):
            yield SubscriptionRecord(subscription=Subscription(topic=row[0], inbox=row[1]))

    async def restore(self, records: Sequence[Record]) -> int:
        async def work(tx: Transaction) -> int:
            return sum([await restored(tx, records) for restored in _RESTORERS])

        return await self._connections.write(work)

    async def _pages(self, sql: str, after: tuple[Any, ...]) -> AsyncIterator[Row]:
        """All rows of a query that begins after a key, which is the first columns of each row."""
        while rows := await self._connections.read(sql, *after):
            for row in rows:
                yield row
            after = tuple(rows[-1][: len(after)])

    async def _log(self, seq: int, upto: int) -> AsyncIterator[JobEvent]:
        """As long as it was when the job was read; it may have grown since."""
        after = 0
        while rows := await self._connections.read(_EVENTS, seq, after, upto):
            for row in rows:
                yield event_from(row[:4])
            after = rows[-1][0]


async def _agents(tx: Transaction, records: Sequence[Record]) -> int:
    rows = [each.registration for each in records if isinstance(each, AgentRecord)]
    return sum([await registrations.restore(tx, row) for row in rows])


async def _checks(tx: Transaction, records: Sequence[Record]) -> int:
    checks = [each.check for each in records if isinstance(each, HealthRecord)]
    return await health.note(tx, checks) if checks else 0


async def _jobs(tx: Transaction, records: Sequence[Record]) -> int:
    jobs = {each.job.job_id: each.job for each in records if isinstance(each, JobRecord)}
    if not jobs:
        return 0
    written = await insert_jobs(tx, [(Written(job.call), job) for job in jobs.values()])
    bodies = [_body(job) for job_id, job in jobs.items() if job_id in written]
    await tx.change(_PUT_BODIES, *columns_of(bodies, 4))
    return len(written)


def _body(job: Job) -> tuple[Any, ...]:
    kept = (None if each is None else encode(each) for each in (job.result, job.question, job.answer))
    return (job.job_id, *kept)


async def _lines(tx: Transaction, records: Sequence[Record]) -> int:
    rows = [
        (each.job_id, each.event.number, each.event.at, each.event.event.kind, encode(each.event.event.data))
        for each in records
        if isinstance(each, JobLine)
    ]
    return len(await tx.change(_PUT_LINES, *columns_of(rows, 5))) if rows else 0


async def _messages(tx: Transaction, records: Sequence[Record]) -> int:
    found = [each.message for each in records if isinstance(each, MessageRecord)]
    return await message_writes.restore(tx, found) if found else 0


async def _numberings(tx: Transaction, records: Sequence[Record]) -> int:
    found = [each.numbering for each in records if isinstance(each, NumberingRecord)]
    return await message_writes.restore_numberings(tx, found) if found else 0


async def _entries(tx: Transaction, records: Sequence[Record]) -> int:
    entries = [each.entry for each in records if isinstance(each, InboxRecord)]
    return await message_writes.restore_entries(tx, entries) if entries else 0


async def _subscriptions(tx: Transaction, records: Sequence[Record]) -> int:
    found = [each.subscription for each in records if isinstance(each, SubscriptionRecord)]
    return await messages.subscribe(tx, found) if found else 0


# What others refer to comes first.
_RESTORERS: tuple[Callable[[Transaction, Sequence[Record]], Awaitable[int]], ...] = (
    _agents, _checks, _jobs, _lines, _messages, _numberings, _entries, _subscriptions,
)  # fmt: skip
