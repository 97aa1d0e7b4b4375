"""Opening, migrating, inspecting and reading the database file.

The file is inspected before it is changed, and migrated by the first process that
opens it. Opening blocks and runs in a thread. Reads run on the event loop itself:
they take microseconds and never wait for the writer."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
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
from a2a_fabric.stores.sqlite.errors import UNSTORABLE, translate

_PAGE_SIZE = 4096
_RETRY_PAUSE = 0.02
_CREATE_MIGRATIONS = """
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
        time.sleep(_RETRY_PAUSE)  # while others start too, SQLite says "locked" without having waited


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
    """A new file is its owner's alone: what people ask of agents may be secret. Whoever wants it shared says so."""
    with suppress(OSError):  # it is there, or SQLite will say why it cannot be made
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))


def read_applied(connection: sqlite3.Connection) -> list[AppliedMigration]:
    """What has been applied; empty for a file without tables of ours."""
    if not _list_tables(connection) & {"schema_migrations"}:
        return []
    rows = connection.execute("SELECT number, name, checksum FROM schema_migrations ORDER BY number")
    return [AppliedMigration(number=number, name=name, checksum=checksum) for number, name, checksum in rows]


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


def _migrate(connection: sqlite3.Connection, address: str) -> int:
    available = load_migrations("sqlite")
    refuse_foreign_database(connection, address)
    if find_pending(available, read_applied(connection), address):
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")  # the lock: whoever waits here finds the work done
        try:
            connection.execute(_CREATE_MIGRATIONS)
            for migration in find_pending(available, read_applied(connection), address):
                _apply(connection, migration)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
    return len(available)


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    for statement in _split_statements(migration.sql):
        connection.execute(statement)
    connection.execute(
        "INSERT INTO schema_migrations VALUES (?, ?, ?, ?)",
        (migration.number, migration.name, migration.checksum, time.time()),
    )


def _split_statements(sql: str) -> Iterator[str]:
    """One by one: `executescript` would commit what was begun."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def refuse_foreign_database(connection: sqlite3.Connection, address: str) -> None:
    tables = _list_tables(connection)
    if tables and "schema_migrations" not in tables:
        raise StoreUnusable(
            f"{address} is another program's database (its tables: {', '.join(sorted(tables)[:5])}); name another file",
            store=address,
        )


def _list_tables(connection: sqlite3.Connection) -> set[str]:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return {name for (name,) in rows}


def _tune_writer(connection: sqlite3.Connection, settings: SqliteSettings) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")  # an answered write has reached the disk
    connection.execute("PRAGMA cache_size = -32768")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    connection.execute("PRAGMA journal_size_limit = 67108864")
    if settings.max_bytes is not None:
        connection.execute(f"PRAGMA max_page_count = {max(1, settings.max_bytes // _PAGE_SIZE)}")


def _open_reader(settings: SqliteSettings) -> sqlite3.Connection:
    connection = _connect(settings)
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA busy_timeout = 1000")  # it runs on the event loop
    connection.execute("PRAGMA cache_size = -16384")
    return connection


_INSPECT_TIMEOUT = 10.0


async def inspect_schema(address: str) -> SchemaStatus | None:
    """None if there is no such file. Raises StoreError."""
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
        refuse_foreign_database(connection, address)
        return check_schema("sqlite", read_applied(connection), address)


class FileReplacedCheck:
    """Made when the file has just been opened."""

    def __init__(self, path: Path, address: str) -> None:
        self._path = path
        self._address = address
        self._identity = self._read_identity()

    def check(self) -> None:
        """Raises StoreUnusable."""
        if self._read_identity() != self._identity:
            raise StoreUnusable(
                f"{self._address} was removed or replaced while it is in use, so nothing more is written to it: "
                "put the file back, or restart the node to begin with what is there now",
                store=self._address,
            )

    def _read_identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino


Row = tuple[Any, ...]
Values = tuple[Any, ...] | dict[str, Any]


class SqliteReader:
    def __init__(self, connection: sqlite3.Connection, address: str) -> None:
        self._connection = connection
        self._address = address

    def fetch_all(self, sql: str, values: Values = ()) -> list[Row]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except UNSTORABLE:
            return []
        except sqlite3.Error as exc:
            raise translate(exc, self._address) from exc

    def fetch_one(self, sql: str, values: Values = ()) -> Row | None:
        rows = self.fetch_all(sql, values)
        return rows[0] if rows else None

    @contextmanager
    def iterate_rows(self, sql: str, values: Values = ()) -> Iterator[Iterator[Row]]:
        """One by one, for results of which only a part may fit into memory."""
        cursor = self._connection.cursor()
        try:
            yield self._execute(cursor, sql, values)
        except sqlite3.Error as exc:
            raise translate(exc, self._address) from exc
        finally:
            cursor.close()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Several reads of the same moment."""
        self.fetch_all("BEGIN")
        try:
            yield
        finally:
            self.fetch_all("COMMIT")

    @staticmethod
    def _execute(cursor: sqlite3.Cursor, sql: str, values: Values) -> Iterator[Row]:
        try:
            return cursor.execute(sql, values)
        except UNSTORABLE:
            return iter(())

    def close(self) -> None:
        self._connection.close()
