"""Everything of one store as JSON lines, and into another, whatever the engines.

The first line names the format, the last one counts the records before it, so
that a file cut short is noticed. Importing again what is there already changes
nothing, so an import that broke off may simply be repeated.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator

import msgspec

from a2a_fabric.core.archive import Archive, Record
from a2a_fabric.core.errors import BadInput

FORMAT = "a2a-fabric-store"
VERSION = 1
_BATCH = 200
_BATCH_BYTES = 4 << 20


class _Head(msgspec.Struct, tag_field="kind", tag="head", forbid_unknown_fields=True):
    format: str
    version: int


class _End(msgspec.Struct, tag_field="kind", tag="end", forbid_unknown_fields=True):
    records: int


class Imported(msgspec.Struct, frozen=True):
    """`new` of `read` records were not there before."""

    read: int
    new: int


_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[_Head | _End | Record] = msgspec.json.Decoder(_Head | _End | Record)


async def export_lines(archive: Archive) -> AsyncGenerator[bytes]:
    """Each line with its line end."""
    yield _encode(_Head(FORMAT, VERSION)) + b"\n"
    count = 0
    async for record in archive.dump():
        count += 1
        yield _encode(record) + b"\n"
    yield _encode(_End(count)) + b"\n"


async def import_lines(archive: Archive, lines: Iterable[bytes]) -> Imported:
    """Raises BadInput naming the line; what came before it is kept."""
    read = new = 0
    for batch in _batches(_records(lines)):
        read += len(batch)
        new += await archive.restore(batch)
    return Imported(read, new)


def _records(lines: Iterable[bytes]) -> Iterator[tuple[Record, int]]:
    """Records and their sizes."""
    count = -1
    for number, line in enumerate(lines, 1):
        value = _read(line, number)
        if isinstance(value, _Head) != (number == 1) or count == -2:
            raise BadInput(f"Line {number}: this is not where such a line belongs in an export of a store")
        if isinstance(value, _Head):
            _check_head(value)
            count = 0
        elif isinstance(value, _End):
            _check_end(value, count)
            count = -2
        else:
            count += 1
            yield value, len(line)
    if count != -2:
        raise BadInput("The export is cut short: its last line is missing. Import a whole one to complete it")


def _read(line: bytes, number: int) -> _Head | _End | Record:
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BadInput(f"Line {number} is not a line of an export of a store: {exc}") from exc


def _check_head(head: _Head) -> None:
    if head.format != FORMAT or head.version > VERSION:
        raise BadInput(f"An export of format {head.format} {head.version}; this program reads {FORMAT} {VERSION}")


def _check_end(end: _End, count: int) -> None:
    if end.records != count:
        raise BadInput(f"The export says that it has {end.records} records, and {count} were read")


def _batches(records: Iterator[tuple[Record, int]]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    size = 0
    for record, length in records:
        batch.append(record)
        size += length
        if len(batch) >= _BATCH or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
