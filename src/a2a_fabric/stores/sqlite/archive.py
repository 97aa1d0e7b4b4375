"""Export and import of everything in a SQLite file, as records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, assert_never

from a2a_fabric.core.job import Job
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
from a2a_fabric.stores.rows import EncodedJob, encode, encode_optional
from a2a_fabric.stores.sqlite import calls, keys, messages, receipts, registrations
from a2a_fabric.stores.sqlite.database import Row, SqliteReader, SqliteTransaction, Writer
from a2a_fabric.stores.sqlite.jobs import SELECT_FULL_JOBS, insert_job
from a2a_fabric.stores.transfer import PageQuery, dump_records

_PAGE_ROWS = 500
_PAGE_BYTES = 4 << 20
_JOBS = PageQuery(f"{SELECT_FULL_JOBS} WHERE jobs.seq > $1", "jobs.seq")
_RESTORE_EVENT = """
INSERT OR IGNORE INTO job_events (job, number, at, kind, data)
SELECT seq, ?1, ?2, ?3, ?4 FROM jobs WHERE job_id = ?5 AND events >= ?1
"""


class SqliteArchive:
    def __init__(self, writer: Writer, reader: SqliteReader) -> None:
        self._writer = writer
        self._reader = reader

    def dump(self, *, with_keys: bool = False) -> AsyncIterator[ArchiveRecord]:
        return dump_records(self._read_page, _JOBS, with_keys=with_keys)

    async def restore(self, records: Sequence[ArchiveRecord]) -> int:
        return await self._writer.run(lambda tx: sum(_restore_record(tx, record) for record in records))

    async def _read_page(self, query: PageQuery, values: tuple[Any, ...]) -> list[Row]:
        """At least one row, and no more than fit into _PAGE_BYTES."""
        page: list[Row] = []
        size = 0
        with self._reader.iterate_rows(query.for_sqlite(_PAGE_ROWS), values) as rows:
            for row in rows:
                size += sum(len(value) for value in row if isinstance(value, bytes))
                if page and size > _PAGE_BYTES:
                    break
                page.append(row)
        return page


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
        case DescriptionRecord(description=description):
            return registrations.put_description(tx, description, "IGNORE")
        case MessageRecord(message=message):
            return messages.restore_message(tx, message)
        case NumberingRecord(numbering=numbering):
            return messages.restore_numbering(tx, numbering)
        case InboxRecord(entry=entry):
            return messages.restore_entry(tx, entry)
        case SubscriptionRecord(subscription=subscription):
            return messages.insert_subscription(tx, subscription)
        case PastCallRecord(call=call):
            return calls.insert_call(tx, call)
        case KeyRecord(key=key):
            return keys.restore_key(tx, key)
        case ReceiptRecord(receipt=receipt):
            return receipts.restore_receipt(tx, receipt)
        case _:
            assert_never(record)


def _restore_job(tx: SqliteTransaction, job: Job) -> bool:
    seq = insert_job(tx, job, EncodedJob(job.call))
    if seq is None:
        return False
    body = [encode_optional(each) for each in (job.result, job.question, job.answer)]
    tx.execute("INSERT INTO job_bodies (job, result, question, answer) VALUES (?, ?, ?, ?)", (seq, *body))
    return True
