"""Opening a database file: looked at before it is touched, migrated by whoever comes first.

Everything here blocks and runs in a thread of its own.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from a2a_fabric.core.store_errors import StoreBusy, StoreUnusable
from a2a_fabric.stores.migrate import Applied, Migration, migrations, pending
from a2a_fabric.stores.sqlite.errors import translate

_PAGE = 4096
_BREATH = 0.02
_OURS = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at REAL NOT NULL
)
"""


class SqliteSettings(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    patience: float = 10.0  # seconds to wait for another program's lock
    max_bytes: int | None = None  # the file grows no larger; further writes are refused as if the disk were full

    @property
    def place(self) -> str:
        return f"sqlite:{self.path}"


class Opened(msgspec.Struct, frozen=True):
    writer: sqlite3.Connection
    reader: sqlite3.Connection
    schema: int


def open_file(settings: SqliteSettings) -> Opened:
    """Raises StoreError; then the file is as it was."""
    ends_at = time.monotonic() + settings.patience
    while True:
        try:
            return _open(settings)
        except sqlite3.Error as exc:
            error = translate(exc, settings.place)
            if not isinstance(error, StoreBusy) or time.monotonic() > ends_at:
                raise error from exc
        time.sleep(_BREATH)  # while others start too, SQLite says "locked" without having waited


def _open(settings: SqliteSettings) -> Opened:
    _make_private(settings.path)
    writer = _connect(settings)
    try:
        schema = _migrate(writer, settings.place)
        _tune_writer(writer, settings)
        return Opened(writer, _reader(settings), schema)
    except BaseException:
        writer.close()
        raise


def _make_private(path: Path) -> None:
    """A new file is its owner's alone: what people ask of agents may be secret. Whoever wants it shared says so."""
    with suppress(OSError):  # it is there, or SQLite will say why it cannot be made
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))


def schema_of(connection: sqlite3.Connection) -> list[Applied]:
    """What has been applied; empty for a file without tables of ours."""
    if not _tables(connection) & {"schema_migrations"}:
        return []
    rows = connection.execute("SELECT number, name, checksum FROM schema_migrations ORDER BY number")
    return [Applied(number=number, name=name, checksum=checksum) for number, name, checksum in rows]


def _connect(settings: SqliteSettings) -> sqlite3.Connection:
    connection = sqlite3.connect(
        settings.path,
        timeout=settings.patience,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    connection.execute(f"PRAGMA busy_timeout = {int(settings.patience * 1000)}")
    return connection


def _migrate(connection: sqlite3.Connection, place: str) -> int:
    known = migrations("sqlite")
    refuse_strangers(connection, place)
    if pending(known, schema_of(connection), place):
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")  # the lock: whoever waits here finds the work done
        try:
            connection.execute(_OURS)
            for migration in pending(known, schema_of(connection), place):
                _apply(connection, migration)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
    return len(known)


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    for statement in _statements(migration.sql):
        connection.execute(statement)
    connection.execute(
        "INSERT INTO schema_migrations VALUES (?, ?, ?, ?)",
        (migration.number, migration.name, migration.checksum, time.time()),
    )


def _statements(sql: str) -> Iterator[str]:
    """One by one: `executescript` would commit what was begun."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def refuse_strangers(connection: sqlite3.Connection, place: str) -> None:
    tables = _tables(connection)
    if tables and "schema_migrations" not in tables:
        raise StoreUnusable(
            f"{place} is another program's database (its tables: {', '.join(sorted(tables)[:5])}); name another file",
            store=place,
        )


def _tables(connection: sqlite3.Connection) -> set[str]:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return {name for (name,) in rows}


def _tune_writer(connection: sqlite3.Connection, settings: SqliteSettings) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")  # an answered write has reached the disk
    connection.execute("PRAGMA cache_size = -32768")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    connection.execute("PRAGMA journal_size_limit = 67108864")
    if settings.max_bytes is not None:
        connection.execute(f"PRAGMA max_page_count = {max(1, settings.max_bytes // _PAGE)}")


def _reader(settings: SqliteSettings) -> sqlite3.Connection:
    connection = _connect(settings)
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA busy_timeout = 1000")  # it runs on the event loop
    connection.execute("PRAGMA cache_size = -16384")
    return connection
