"""Opening, migrating and inspecting a database.

A file is inspected before it is changed, and migrated by the first process that
opens it. Opening blocks, so it runs in a thread."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

import msgspec

from a2a_fabric.core.errors import StoreBusy, StoreUnusable
from a2a_fabric.stores.migrate import (
    AppliedMigration,
    Migration,
    SchemaStatus,
    check_schema,
    find_pending,
    load_migrations,
)
from a2a_fabric.stores.sqlite.database import MEMORY_ADDRESS, translate

_PAGE_SIZE = 4096
_RETRY_PAUSE = 0.02
_INSPECT_TIMEOUT = 10.0
CREATE_MIGRATIONS = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at REAL NOT NULL
)
"""


class SqliteSettings(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    lock_timeout: float = 10.0  # seconds to wait for another program's lock
    max_bytes: int | None = None  # the file grows no larger; further writes are refused as if the disk were full

    @property
    def address(self) -> str:
        return f"sqlite:{self.path}"


class SqliteConnections(msgspec.Struct, frozen=True):
    """For a database in memory, `reader` and `writer` are the same connection: a second one would not see it."""

    writer: sqlite3.Connection
    reader: sqlite3.Connection
    schema: int


def open_file(settings: SqliteSettings) -> SqliteConnections:
    """Raises StoreError; then the file is as it was."""
    deadline = time.monotonic() + settings.lock_timeout
    while True:
        try:
            return _open(settings)
        except sqlite3.Error as exc:
            error = translate(exc, settings.address)
            if not isinstance(error, StoreBusy) or time.monotonic() > deadline:
                raise error from exc
        time.sleep(_RETRY_PAUSE)  # while other processes start too, SQLite reports "locked" without having waited


def open_memory() -> SqliteConnections:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, cached_statements=256)
    return SqliteConnections(connection, connection, _migrate(connection, MEMORY_ADDRESS))


def _open(settings: SqliteSettings) -> SqliteConnections:
    _create_private(settings.path)
    writer = _connect(settings)
    try:
        schema = _migrate(writer, settings.address)
        _tune_writer(writer, settings)
        return SqliteConnections(writer, _open_reader(settings), schema)
    except BaseException:
        writer.close()
        raise


def _create_private(path: Path) -> None:
    """Create a new file readable by its owner alone, because calls may hold secrets. The operator may widen it."""
    with suppress(OSError):  # the file exists, or SQLite will report why it cannot be created
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))


def _connect(settings: SqliteSettings) -> sqlite3.Connection:
    connection = sqlite3.connect(
        settings.path,
        timeout=settings.lock_timeout,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    connection.execute(f"PRAGMA busy_timeout = {int(settings.lock_timeout * 1000)}")
    return connection


def _tune_writer(connection: sqlite3.Connection, settings: SqliteSettings) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    # The promise of the whole store: COMMIT returns only after fsync, so an acknowledged write survives a power cut.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -32768")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    connection.execute("PRAGMA journal_size_limit = 67108864")
    if settings.max_bytes is not None:
        connection.execute(f"PRAGMA max_page_count = {max(1, settings.max_bytes // _PAGE_SIZE)}")


def _open_reader(settings: SqliteSettings) -> sqlite3.Connection:
    connection = _connect(settings)
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA busy_timeout = 1000")  # reads run on the event loop, so they may not wait for long
    connection.execute("PRAGMA cache_size = -16384")
    return connection


def _migrate(connection: sqlite3.Connection, address: str) -> int:
    available = load_migrations("sqlite")
    _refuse_foreign_database(connection, address)
    if find_pending(available, read_applied(connection), address):
        connection.execute("PRAGMA journal_mode = WAL")
        # The write lock: of several processes one migrates, and the others find nothing pending when they get it.
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(CREATE_MIGRATIONS)
            for migration in find_pending(available, read_applied(connection), address):
                apply_migration(connection.execute, migration)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
    return len(available)


def apply_migration(execute: Callable[..., object], migration: Migration) -> None:
    """`execute` runs one statement with its values, inside an open transaction."""
    for statement in _split_statements(migration.sql):
        execute(statement)
    execute(
        "INSERT INTO schema_migrations VALUES (?, ?, ?, ?)",
        (migration.number, migration.name, migration.checksum, time.time()),
    )


def _split_statements(sql: str) -> Iterator[str]:
    """The statements one by one, because `executescript` would commit the open transaction."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def read_applied(connection: sqlite3.Connection) -> list[AppliedMigration]:
    """The applied migrations; empty for a file without tables of this program."""
    if "schema_migrations" not in _list_tables(connection):
        return []
    rows = connection.execute("SELECT number, name, checksum FROM schema_migrations ORDER BY number")
    return [AppliedMigration(number=number, name=name, checksum=checksum) for number, name, checksum in rows]


def _refuse_foreign_database(connection: sqlite3.Connection, address: str) -> None:
    tables = _list_tables(connection)
    if tables and "schema_migrations" not in tables:
        raise StoreUnusable(
            f"{address} is another program's database (its tables: {', '.join(sorted(tables)[:5])}); name another file",
            store=address,
        )


def _list_tables(connection: sqlite3.Connection) -> set[str]:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return {name for (name,) in rows}


async def inspect_schema(address: str) -> SchemaStatus | None:
    """The schema of a file, read without changing it; None if there is no such file. Raises StoreError."""
    path = Path(address.removeprefix("sqlite:"))
    try:
        return await asyncio.to_thread(_inspect_file, path, address)
    except sqlite3.Error as exc:
        raise translate(exc, address) from exc


def _inspect_file(path: Path, address: str) -> SchemaStatus | None:
    if not path.exists():
        return None
    if path.is_dir():
        raise StoreUnusable(f"{address} is a folder; name a file in it", store=address)
    uri = f"file:{quote(str(path.absolute()))}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=_INSPECT_TIMEOUT)) as connection:
        _refuse_foreign_database(connection, address)
        return check_schema("sqlite", read_applied(connection), address)
