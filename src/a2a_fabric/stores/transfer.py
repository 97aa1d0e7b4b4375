"""Export of a whole store as JSON lines, and import into another store, whatever the engines.

The first line names the format; the last one counts the records before it, so
that a truncated file is noticed. A record that exists already is not changed,
so an interrupted import can be repeated."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator

import msgspec

from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.stores import Archive, ArchiveRecord

FORMAT = "a2a-fabric-store"
VERSION = 1
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


async def export_lines(archive: Archive) -> AsyncGenerator[bytes]:
    """The lines of the export, each with its line end."""
    yield _encode(_Header(FORMAT, VERSION)) + b"\n"
    count = 0
    async for record in archive.dump():
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
        batch.append(record)
        size += length
        if len(batch) >= _BATCH or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
