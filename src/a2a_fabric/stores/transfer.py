"""Export of a whole store as JSON lines, and import into another store, whatever the engines.

The first line names the format; the last one counts the records before it, so
that a truncated file is noticed. A record that exists already is not changed,
so an interrupted import can be repeated.

A store is read page by page, so that a large one is never held in memory; the pages are
no common snapshot. The queries are those of PostgreSQL; SQLite has its own names for
tables and parameters (`PageQuery.for_sqlite`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.message import InboxEntry, Numbering, TopicSubscription
from a2a_fabric.core.stores import (
    AgentRecord,
    Archive,
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
from a2a_fabric.stores.rows import (
    AGENT_COLUMNS,
    DESCRIPTION_COLUMNS,
    HEALTH_COLUMNS,
    KEY_COLUMNS,
    RECEIPT_COLUMNS,
    STORED_CALL_COLUMNS,
    Row,
    call_from_row,
    decode_message,
    description_from_row,
    event_from_row,
    health_check_from_row,
    job_from_row,
    key_from_row,
    receipt_from_row,
    registration_from_row,
)

FORMAT = "a2a-fabric-store"
VERSION = 2
_BATCH = 200
_BATCH_BYTES = 4 << 20


class _Header(msgspec.Struct, tag_field="kind", tag="head", forbid_unknown_fields=True):
    format: str
    version: int


class _Footer(msgspec.Struct, tag_field="kind", tag="end", forbid_unknown_fields=True):
    records: int


class ImportCounts(msgspec.Struct, frozen=True):
    """Of `read` records, `new` did not exist before."""

    read: int
    new: int


_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[_Header | _Footer | ArchiveRecord] = msgspec.json.Decoder(
    _Header | _Footer | ArchiveRecord
)


async def export_lines(archive: Archive, *, with_keys: bool = False) -> AsyncGenerator[bytes]:
    """The lines of the export, each with its line end."""
    yield _encode(_Header(FORMAT, VERSION)) + b"\n"
    count = 0
    async for record in archive.dump(with_keys=with_keys):
        count += 1
        yield _encode(record) + b"\n"
    yield _encode(_Footer(count)) + b"\n"


async def import_lines(archive: Archive, lines: Iterable[bytes]) -> ImportCounts:
    """Raises BadInput naming the line; the records before it are kept."""
    read = new = 0
    for batch in _split_batches(_read_records(lines)):
        read += len(batch)
        new += await archive.restore(batch)
    return ImportCounts(read, new)


def _read_records(lines: Iterable[bytes]) -> Iterator[tuple[ArchiveRecord, int]]:
    """Records and their sizes."""
    count = -1
    for number, line in enumerate(lines, 1):
        value = _decode_line(line, number)
        if isinstance(value, _Header) != (number == 1) or count == -2:
            raise BadInput(f"Line {number}: the header or footer of an export is out of place")
        if isinstance(value, _Header):
            _check_header(value)
            count = 0
        elif isinstance(value, _Footer):
            _check_footer(value, count)
            count = -2
        else:
            count += 1
            yield value, len(line)
    if count != -2:
        raise BadInput(
            "The export is incomplete: its last line is missing. Import a complete one; existing records are kept"
        )


def _decode_line(line: bytes, number: int) -> _Header | _Footer | ArchiveRecord:
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BadInput(f"Line {number} is not part of a store export: {exc}") from exc


def _check_header(header: _Header) -> None:
    if header.format != FORMAT or header.version > VERSION:
        raise BadInput(
            f"The export has format {header.format} {header.version}, and this program reads {FORMAT} {VERSION}"
        )


def _check_footer(footer: _Footer, count: int) -> None:
    if footer.records != count:
        raise BadInput(f"The export should hold {footer.records} records, and {count} were read: import a complete one")


def _split_batches(records: Iterator[tuple[ArchiveRecord, int]]) -> Iterator[list[ArchiveRecord]]:
    batch: list[ArchiveRecord] = []
    size = 0
    for record, length in records:
        if batch and isinstance(record, ReceiptRecord) and not isinstance(batch[-1], ReceiptRecord):
            yield batch  # receipts may be refused, and nothing else with them
            batch, size = [], 0
        batch.append(record)
        size += length
        if len(batch) >= _BATCH or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class PageQuery(msgspec.Struct, frozen=True):
    """Rows that begin with `key`, after the key that is given. `size` is the SQL for the bytes of a large row."""

    sql: str
    key: str
    size: str | None = None

    def for_sqlite(self, page_rows: int) -> str:
        own_names = self.sql.replace("a2a_fabric.", "").replace("$", "?")
        return f"{own_names} ORDER BY {self.key} LIMIT {page_rows}"


_AGENTS = PageQuery(
    f"SELECT revision, {AGENT_COLUMNS} FROM a2a_fabric.agents WHERE revision > $1 AND NOT removed",  # noqa: S608
    "revision",
)
_CHECKS = PageQuery(
    f"SELECT {HEALTH_COLUMNS} FROM a2a_fabric.health_checks WHERE (agent_id, checked_at, node_id) > ($1, $2, $3)",  # noqa: S608
    "agent_id, checked_at, node_id",
)
_DESCRIPTIONS = PageQuery(
    f"SELECT {DESCRIPTION_COLUMNS} FROM a2a_fabric.agent_descriptions WHERE (agent_id, connection) > ($1, $2)",  # noqa: S608
    "agent_id, connection",
    "octet_length(body)",
)
_EVENTS = PageQuery(
    "SELECT number, at, kind, data FROM a2a_fabric.job_events WHERE number > $1 AND job = $2 AND number <= $3",
    "number",
    "octet_length(data)",
)
_MESSAGES = PageQuery("SELECT seq, message FROM a2a_fabric.messages WHERE seq > $1", "seq", "octet_length(message)")
_NUMBERINGS = PageQuery(
    """
    SELECT conversation_id, last FROM a2a_fabric.conversations WHERE conversation_id > $1 AND NOT EXISTS (
        SELECT 1 FROM a2a_fabric.messages
        WHERE messages.conversation_id = conversations.conversation_id AND number = last
    )
    """,
    "conversation_id",
)
_ENTRIES = PageQuery(
    """
    SELECT entry, inbox, message_id, attempt, visible_at
    FROM a2a_fabric.inbox_entries AS entries JOIN a2a_fabric.messages AS messages ON messages.seq = entries.message
    WHERE entry > $1
    """,
    "entry",
)
_SUBSCRIPTIONS = PageQuery(
    "SELECT topic, inbox FROM a2a_fabric.subscriptions WHERE (topic, inbox) > ($1, $2)", "topic, inbox"
)
_CALLS = PageQuery(
    f"SELECT {STORED_CALL_COLUMNS} FROM a2a_fabric.calls WHERE seq > $1",  # noqa: S608
    "seq",
    "octet_length(body)",
)
_KEYS = PageQuery(f"SELECT {KEY_COLUMNS} FROM a2a_fabric.keys WHERE key_id > $1", "key_id")  # noqa: S608
_RECEIPTS = PageQuery(
    f"SELECT {RECEIPT_COLUMNS} FROM a2a_fabric.receipts WHERE (chain, seq) > ($1, $2)",  # noqa: S608
    "chain, seq",
    "octet_length(body)",
)

ReadPage = Callable[[PageQuery, tuple[Any, ...]], Awaitable[Sequence[Row]]]


async def dump_records(read_page: ReadPage, full_jobs: PageQuery, *, with_keys: bool) -> AsyncIterator[ArchiveRecord]:
    """Everything but logins. `full_jobs` reads jobs with their bodies, which the engines join in their own ways."""
    async for row in _read_rows(read_page, _AGENTS, (-1,)):
        yield AgentRecord(registration=registration_from_row(row[1:]))
    async for row in _read_rows(read_page, _CHECKS, ("", 0.0, "")):
        yield HealthRecord(check=health_check_from_row(row))
    async for row in _read_rows(read_page, _DESCRIPTIONS, ("", "")):
        yield DescriptionRecord(description=description_from_row(row[:4]))
    async for row in _read_rows(read_page, full_jobs, (-1,)):
        yield JobRecord(job=(job := job_from_row(row)))
        # The log up to where it was when the job was read; it may have grown since.
        async for event_row in _read_rows(read_page, _EVENTS, (0,), (row[0], job.events)):
            yield JobEventRecord(job_id=job.job_id, event=event_from_row(event_row[:4]))
    async for row in _read_rows(read_page, _MESSAGES, (-1,)):
        yield MessageRecord(message=decode_message(row[1]))
    async for row in _read_rows(read_page, _NUMBERINGS, ("",)):
        yield NumberingRecord(numbering=Numbering(conversation_id=row[0], last=row[1]))
    async for row in _read_rows(read_page, _ENTRIES, (-1,)):
        _, inbox, message_id, attempt, visible_at = row
        yield InboxRecord(entry=InboxEntry(inbox=inbox, message_id=message_id, attempt=attempt, visible_at=visible_at))
    async for row in _read_rows(read_page, _SUBSCRIPTIONS, ("", "")):
        yield SubscriptionRecord(subscription=TopicSubscription(topic=row[0], inbox=row[1]))
    async for row in _read_rows(read_page, _CALLS, (-1,)):
        yield PastCallRecord(call=call_from_row(row[:13]))
    if with_keys:
        async for row in _read_rows(read_page, _KEYS, ("",)):
            yield KeyRecord(key=key_from_row(row))
    async for row in _read_rows(read_page, _RECEIPTS, ("", 0)):
        yield ReceiptRecord(receipt=receipt_from_row(row[:5]))


async def _read_rows(
    read_page: ReadPage, query: PageQuery, after: tuple[Any, ...], others: tuple[Any, ...] = ()
) -> AsyncIterator[Row]:
    while rows := await read_page(query, (*after, *others)):
        for row in rows:
            yield row
        after = tuple(rows[-1][: len(after)])
