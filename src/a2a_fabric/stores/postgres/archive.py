"""Export and import of everything in a PostgreSQL database, as records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import cache
from typing import Any

from a2a_fabric.core.stores import (
    AgentRecord,
    ArchiveRecord,
    DescriptionRecord,
    HealthRecord,
    InboxRecord,
    JobEventRecord,
    JobRecord,
    KeyRecord,
    MessageRecord,
    NumberingRecord,
    PastCallRecord,
    ReceiptRecord,
    SubscriptionRecord,
)
from a2a_fabric.stores.postgres import calls, keys, messages, receipts, registrations
from a2a_fabric.stores.postgres.connections import PostgresConnections
from a2a_fabric.stores.postgres.job_inserts import insert_jobs
from a2a_fabric.stores.postgres.jobs import SELECT_FULL_JOBS
from a2a_fabric.stores.postgres.transactions import PostgresTransaction, Row, to_columns, unnest_parameters
from a2a_fabric.stores.rows import EncodedJob, encode, encode_optional
from a2a_fabric.stores.transfer import PageQuery, dump_records

_PAGE = 200
_PAGE_BYTES = 4 << 20
_JOBS = PageQuery(
    f"{SELECT_FULL_JOBS} WHERE jobs.seq > $1", "seq", "octet_length(call) + coalesce(octet_length(result), 0)"
)
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
    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections

    def dump(self, *, with_keys: bool = False) -> AsyncIterator[ArchiveRecord]:
        return dump_records(self._read_page, _JOBS, with_keys=with_keys)

    async def restore(self, records: Sequence[ArchiveRecord]) -> int:
        async def work(tx: PostgresTransaction) -> int:
            count = 0
            for kind, restore_kind in _RESTORERS:
                if of_kind := [record for record in records if isinstance(record, kind)]:
                    count += await restore_kind(tx, of_kind)
            return count

        return await self._connections.write(work)

    async def _read_page(self, query: PageQuery, values: tuple[Any, ...]) -> list[Row]:
        return await self._connections.read(_build_page_query(query), *values)


@cache
def _build_page_query(query: PageQuery) -> str:
    """Up to _PAGE rows and, if rows may be large, _PAGE_BYTES bytes; at least one row."""
    page = f"{query.sql} ORDER BY {query.key} LIMIT {_PAGE}"
    if query.size is None:
        return page
    return f"""
    SELECT * FROM (
        SELECT page.*, row_number() OVER ordered AS place, sum({query.size}) OVER ordered AS bytes
        FROM ({page}) AS page WINDOW ordered AS (ORDER BY {query.key})
    ) AS sized WHERE bytes <= {_PAGE_BYTES} OR place = 1 ORDER BY {query.key}
    """  # noqa: S608


async def _restore_agents(tx: PostgresTransaction, records: Sequence[AgentRecord]) -> int:
    return sum([await registrations.restore_registration(tx, each.registration) for each in records])


async def _restore_jobs(tx: PostgresTransaction, records: Sequence[JobRecord]) -> int:
    jobs = {each.job.job_id: each.job for each in records}
    written_ids = await insert_jobs(tx, [(EncodedJob(job.call), job) for job in jobs.values()])
    bodies = [
        (job_id, encode_optional(job.result), encode_optional(job.question), encode_optional(job.answer))
        for job_id, job in jobs.items()
        if job_id in written_ids
    ]
    await tx.write(_PUT_BODIES, *to_columns(bodies, 4))
    return len(written_ids)


async def _restore_events(tx: PostgresTransaction, records: Sequence[JobEventRecord]) -> int:
    rows = [
        (each.job_id, each.event.number, each.event.at, each.event.event.kind, encode(each.event.event.data))
        for each in records
    ]
    return len(await tx.write(_PUT_EVENTS, *to_columns(rows, 5)))


# In this order, because events refer to jobs and inbox entries to messages.
_RESTORERS: tuple[tuple[type[Any], Callable[[PostgresTransaction, Sequence[Any]], Awaitable[int]]], ...] = (
    (AgentRecord, _restore_agents),
    (HealthRecord, lambda tx, records: registrations.insert_checks(tx, [each.check for each in records])),
    (
        DescriptionRecord,
        lambda tx, records: registrations.restore_descriptions(tx, [each.description for each in records]),
    ),
    (JobRecord, _restore_jobs),
    (JobEventRecord, _restore_events),
    (MessageRecord, lambda tx, records: messages.restore_messages(tx, [each.message for each in records])),
    (NumberingRecord, lambda tx, records: messages.restore_numberings(tx, [each.numbering for each in records])),
    (InboxRecord, lambda tx, records: messages.restore_entries(tx, [each.entry for each in records])),
    (
        SubscriptionRecord,
        lambda tx, records: messages.insert_subscriptions(tx, [each.subscription for each in records]),
    ),
    (PastCallRecord, lambda tx, records: calls.insert_calls(tx, [each.call for each in records])),
    (KeyRecord, lambda tx, records: keys.restore_keys(tx, [each.key for each in records])),
    (ReceiptRecord, lambda tx, records: receipts.restore_receipts(tx, [each.receipt for each in records])),
)
