"""The local copy of the state: a SQLite database that may be thrown away, and the sequence that it has applied.

Reads use it as they use a SQLite store. A group of writes runs in a transaction that stays open until the log has
the batch; then it is committed, or rolled back if another node was first. Every method blocks, so it runs in a thread,
one at a time; only `reader` is used by the event loop.

The database is a file, because readers of a database in memory would see what is not committed. It is removed from
its folder as soon as it is open, so a killed node leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from a2a_fabric.core.errors import StoreCorrupt
from a2a_fabric.stores.migrate import find_pending, load_migrations
from a2a_fabric.stores.nats.batches import (
    NO_BATCH,
    Batch,
    PartCollector,
    RecordingTransaction,
    create_batch_id,
    decode_batch,
    encode_batch,
    read_part,
    run_statements,
)
from a2a_fabric.stores.nats.log import LogMessage
from a2a_fabric.stores.sqlite.connections import CREATE_MIGRATIONS, SqliteConnections, apply_migration, read_applied
from a2a_fabric.stores.sqlite.database import FinishedWork, PendingWork, run_units

_FORBIDDEN = (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA)
_TRANSIENT = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_NOMEM)
_SET_POSITION = "UPDATE log_position SET sequence = ?, batch = ?"


class CopyDiverged(Exception):
    """The copy differs from the one on which a batch was made, so the batch cannot be repeated on it."""


class GroupOutcome(NamedTuple):
    """What a group came to. Without `body` it changed nothing, and its transaction is over."""

    finished: list[FinishedWork]
    topics: set[str]
    batch_id: bytes
    body: bytes | None


class AppliedMessages(NamedTuple):
    sequence: int
    topics: set[str]


class Replica:
    def __init__(self, address: str, folder: Path | None = None) -> None:
        """`folder` is where the file is created; default: where the system keeps temporary files."""
        self._address = address
        self._folder = Path(tempfile.mkdtemp(prefix="a2a-fabric-", dir=folder))
        try:
            path = self._folder / "copy.db"
            self._writer = _connect(path)
            self._writer.execute("PRAGMA journal_mode = WAL")
            self._writer.execute("PRAGMA synchronous = OFF")  # the log is what lasts
            self._writer.execute("PRAGMA cache_size = -32768")
            self._writer.execute("PRAGMA wal_autocheckpoint = 4000")
            self._writer.execute("CREATE TABLE log_position (sequence INTEGER NOT NULL, batch BLOB NOT NULL)")
            self._writer.execute("INSERT INTO log_position VALUES (0, ?)", (NO_BATCH,))
            self.reader = _connect(path)
            self.reader.execute("PRAGMA query_only = ON")
            self.reader.execute("PRAGMA cache_size = -16384")
            self._copier = _connect(path)
            for connection in (self.reader, self._copier):
                connection.execute("SELECT sequence FROM log_position").fetchall()  # opens all files
            self._writer.execute("PRAGMA trusted_schema = OFF")
            self._writer.set_authorizer(_authorize)
        finally:
            with suppress(OSError):  # Windows keeps open files; `close` removes them
                shutil.rmtree(self._folder)
        self._collector = PartCollector()
        self.sequence = 0  # the last message that was seen; it may be a part of a batch
        self._complete = 0  # the last message that completed a batch; this one is noted in the database
        self.batch_id = NO_BATCH

    def build_connections(self) -> SqliteConnections:
        """For the ports of the SQLite store. They never use `writer` themselves."""
        return SqliteConnections(self._writer, self.reader, len(load_migrations("sqlite")))

    @property
    def is_inside_batch(self) -> bool:
        """The last message was a part of a batch of another node, which has more."""
        return self._collector.is_inside_batch

    # Groups of writes

    def run_group(self, group: Sequence[PendingWork], now: float, node: str, topics: set[str]) -> GroupOutcome:
        """Run the units. If they changed something, the transaction is open until `commit` or `rollback`.

        Raises GroupFailed and sqlite3.Error; then nothing was changed.
        """
        transaction = RecordingTransaction(self._writer, now)
        return self._record(transaction, node, topics, lambda: run_units(transaction, group))

    def migrate(self, now: float, node: str) -> GroupOutcome:
        """Apply the pending migrations. Raises SchemaTooNew, SchemaChanged."""
        transaction = RecordingTransaction(self._writer, now)

        def work() -> list[FinishedWork]:
            pending = find_pending(load_migrations("sqlite"), read_applied(self._writer), self._address)
            if pending:
                transaction.execute(CREATE_MIGRATIONS)
            for migration in pending:
                apply_migration(transaction.execute, migration)
            return []

        return self._record(transaction, node, set(), work)

    def _record(
        self, transaction: RecordingTransaction, node: str, topics: set[str], work: Callable[[], list[FinishedWork]]
    ) -> GroupOutcome:
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            before = self._writer.total_changes
            finished = work()
            changes = self._writer.total_changes - before
            topics = topics | transaction.topics
            if changes == 0:  # also statements that met no row: a copy may not even note that they were run
                self._writer.execute("ROLLBACK")
                return GroupOutcome(finished, set(), NO_BATCH, None)
            batch = Batch(
                previous=self.batch_id, node=node, at=transaction.now, changes=changes, topics=list(topics),
                statements=transaction.statements,
            )  # fmt: skip
            return GroupOutcome(finished, topics, create_batch_id(), encode_batch(batch))
        except BaseException:
            self.rollback()
            raise

    def commit(self, sequence: int, batch_id: bytes) -> None:
        """The batch of the open transaction is in the log; its last message has this sequence.

        Raises sqlite3.Error; then the copy is as before, and the batch is applied from the log like any other.
        """
        try:
            self._writer.execute(_SET_POSITION, (sequence, batch_id))
            self._writer.execute("COMMIT")
        except BaseException:
            self.rollback()
            raise
        self._set_position(sequence, batch_id)

    def rollback(self) -> None:
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")

    # Batches of other nodes

    def apply(self, messages: Sequence[LogMessage]) -> AppliedMessages:
        """Repeat the batches in these messages, which follow `sequence` without a gap, in one transaction.

        Raises UnreadableMessage, CopyDiverged and sqlite3.Error; then the copy is as before.
        """
        sequence, complete, batch_id, topics = self.sequence, self._complete, self.batch_id, set[str]()
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            for message in messages:
                if message.sequence != sequence + 1:
                    raise CopyDiverged(f"message {message.sequence} comes after {sequence}")
                part = read_part(message.data)
                sequence = message.sequence
                body = self._collector.add(part)
                if body is not None:
                    batch = decode_batch(body)
                    self._repeat(batch, batch_id)
                    complete, batch_id = sequence, part.batch_id
                    topics.update(batch.topics)
            self._writer.execute(_SET_POSITION, (complete, batch_id))
            self._writer.execute("COMMIT")
        except BaseException:
            self.rollback()
            self._set_position(self._complete, self.batch_id)  # parts of a batch are read again
            raise
        self.sequence, self._complete, self.batch_id = sequence, complete, batch_id
        return AppliedMessages(sequence, topics)

    def _repeat(self, batch: Batch, last_batch: bytes) -> None:
        if batch.previous != last_batch:
            raise CopyDiverged("a batch follows another batch than the last one of this copy")
        before = self._writer.total_changes
        try:
            run_statements(self._writer, batch.statements)
        except (sqlite3.Error, TypeError, ValueError, OverflowError) as exc:
            if getattr(exc, "sqlite_errorcode", None) in _TRANSIENT:
                raise
            raise CopyDiverged(f"a batch of {batch.node} cannot be repeated: {exc}") from exc
        changes = self._writer.total_changes - before
        if changes != batch.changes:
            raise CopyDiverged(f"a batch of {batch.node} changed {batch.changes} rows there, and {changes} here")

    # Snapshots

    def copy_to(self, path: Path) -> int:
        """Write the copy to a file; the sequence that it has applied. Reads and writes go on meanwhile.

        Unlike the other methods, this one may run beside them.
        """
        with closing(_connect(path)) as target:
            self._copier.backup(target)
            [(sequence,)] = target.execute("SELECT sequence FROM log_position").fetchall()
            return int(sequence)

    def load(self, path: Path) -> None:
        """Replace the whole copy by a file that `copy_to` wrote. Raises StoreCorrupt; then the copy is as before."""
        try:
            with closing(_connect(path)) as source:
                [(sequence, batch_id)] = source.execute("SELECT sequence, batch FROM log_position").fetchall()
                source.backup(self._writer)
        except (sqlite3.Error, ValueError) as exc:
            raise StoreCorrupt(self._address, f"its snapshot cannot be read: {exc}") from exc
        self._set_position(int(sequence), bytes(batch_id))

    def _set_position(self, sequence: int, batch_id: bytes) -> None:
        self.sequence = self._complete = sequence
        self.batch_id = batch_id
        self._collector.clear()

    def measure(self) -> int:
        """Bytes, as the event loop sees the copy."""
        [(pages, size)] = self.reader.execute(
            "SELECT page_count, page_size FROM pragma_page_count(), pragma_page_size()"
        ).fetchall()
        return int(pages) * int(size)

    def close(self) -> None:
        """The ports close `reader` and the writer's connection themselves, so both may be closed already."""
        for connection in (self._copier, self.reader, self._writer):
            connection.close()
        if os.name == "nt":
            shutil.rmtree(self._folder, ignore_errors=True)


def _authorize(action: int, *_: object) -> int:
    """Statements of the log change tables, and reach nothing outside of the copy."""
    return sqlite3.SQLITE_DENY if action in _FORBIDDEN else sqlite3.SQLITE_OK


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False, cached_statements=256)
