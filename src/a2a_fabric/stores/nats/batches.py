"""What the log holds: batches of SQL statements with their values, and how a batch becomes messages.

A batch is one transaction. It names the batch before it, so that a log that was cut off or replaced is noticed, and
it says how many rows it changed where it was first run, so that a copy that differs is noticed.

Statements are repeated on every node. So they must have one meaning: times and ids are values, never functions of
SQL, and a statement that changes only some rows says by ORDER BY which ones.

A batch that is larger than the server's `max_payload` becomes several messages, one after the other. The last one
makes it count: a batch that is interrupted by a message of another one is void."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any
from uuid import uuid4

import msgspec

from a2a_fabric.stores.sqlite.database import SqliteTransaction, Values

FORMAT = 1
NO_BATCH = bytes(16)  # comes before the first batch
_HEADER = struct.Struct(">B16sII")  # format, id of the batch, number of this part from 0, count of parts
_READ_ONLY = ("SELECT", "WITH", "PRAGMA", "EXPLAIN")


class Statement(msgspec.Struct, array_like=True):
    """One statement, run once for each of its rows of values."""

    sql: str
    rows: list[Any]


class Batch(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    previous: bytes
    node: str  # who wrote it; for people
    at: float
    changes: int
    topics: list[str]
    statements: list[Statement]


class BatchPart(msgspec.Struct, frozen=True):
    """One message of the log."""

    batch_id: bytes
    index: int
    count: int
    body: bytes


class UnreadableMessage(Exception):
    """The log holds a message that this program did not write, or that a newer one wrote."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Batch)


def create_batch_id() -> bytes:
    return uuid4().bytes


def encode_batch(batch: Batch) -> bytes:
    return _encoder.encode(batch)


def decode_batch(body: bytes) -> Batch:
    """Raises UnreadableMessage."""
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as exc:
        raise UnreadableMessage(str(exc)) from exc


def split_batch(batch_id: bytes, body: bytes, part_size: int) -> list[bytes]:
    """The messages of a batch, none larger than `part_size`."""
    size = part_size - _HEADER.size
    bodies = [body[start : start + size] for start in range(0, len(body), size)] or [b""]
    return [_HEADER.pack(FORMAT, batch_id, index, len(bodies)) + each for index, each in enumerate(bodies)]


def read_part(message: bytes) -> BatchPart:
    """Raises UnreadableMessage."""
    if len(message) < _HEADER.size:
        raise UnreadableMessage("it is too short")
    version, batch_id, index, count = _HEADER.unpack_from(message)
    if version != FORMAT or index >= count:
        raise UnreadableMessage(f"it has format {version}, and this program reads {FORMAT}")
    return BatchPart(batch_id, index, count, message[_HEADER.size :])


class PartCollector:
    """Puts batches together again. Parts of one batch follow each other without a gap."""

    def __init__(self) -> None:
        self._batch_id = NO_BATCH
        self._bodies: list[bytes] = []

    @property
    def is_inside_batch(self) -> bool:
        """The last part that was added has successors."""
        return bool(self._bodies)

    def clear(self) -> None:
        self._bodies = []

    def add(self, part: BatchPart) -> bytes | None:
        """The whole body, if this part completes it."""
        if part.count == 1:
            self._bodies = []
            return part.body
        if part.index == 0:
            self._batch_id, self._bodies = part.batch_id, []
        elif part.batch_id != self._batch_id or part.index != len(self._bodies):
            self._bodies = []  # the beginning was interrupted, so the rest is void
            return None
        self._bodies.append(part.body)
        if len(self._bodies) < part.count:
            return None
        whole, self._bodies = b"".join(self._bodies), []
        return whole


class RecordingTransaction(SqliteTransaction):
    """A transaction that notes its writing statements, in order."""

    __slots__ = ("statements",)

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        super().__init__(connection, now)
        self.statements: list[Statement] = []
        self.execute = self._execute  # type: ignore[assignment]
        self.executemany = self._executemany  # type: ignore[assignment]

    def _execute(self, sql: str, values: Values = ()) -> sqlite3.Cursor:
        cursor = self.connection.execute(sql, values)
        if is_write(sql):
            self._note(sql, (values,))
        return cursor

    def _executemany(self, sql: str, rows: Iterable[Values]) -> sqlite3.Cursor:
        values = rows if isinstance(rows, Sequence) else list(rows)
        cursor = self.connection.executemany(sql, values)
        if values and is_write(sql):
            self._note(sql, values)
        return cursor

    def _note(self, sql: str, rows: Sequence[Values]) -> None:
        if self.statements and self.statements[-1].sql == sql:
            self.statements[-1].rows.extend(rows)
        else:
            self.statements.append(Statement(sql, list(rows)))


@lru_cache(1024)
def is_write(sql: str) -> bool:
    return not sql.lstrip().upper().startswith(_READ_ONLY)


def run_statements(connection: sqlite3.Connection, statements: Sequence[Statement]) -> None:
    """Repeat what another node has run."""
    for statement in statements:
        if len(statement.rows) == 1:
            connection.execute(statement.sql, statement.rows[0])
        else:
            connection.executemany(statement.sql, statement.rows)
