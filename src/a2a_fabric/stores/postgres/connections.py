"""Connections to the server: settings, migration, reads, transactions that survive a lost connection.

What holds:
- Nothing is kept in a session, so a pooler that gives every transaction another session may stand in between.
- A write is reported as done only after COMMIT returned or, if the connection broke during COMMIT, after its commit
  marker was read. So no write is done twice, and none that was reported is lost. The same holds for a statement that
  is a transaction by itself, whenever the connection breaks.
- While the server is unreachable, callers wait up to `reconnect_timeout`.

The tables are inspected before they are changed, and migrated by the first node that opens the database. They all live
in the schema a2a_fabric, so the database may be shared with other programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import asyncpg
import msgspec

from a2a_fabric.core.errors import BadInput, StoreBusy, StoreUnavailable
from a2a_fabric.stores.address import redact_address
from a2a_fabric.stores.migrate import AppliedMigration, SchemaStatus, check_schema, find_pending, load_migrations
from a2a_fabric.stores.postgres import transactions
from a2a_fabric.stores.postgres.errors import (
    STARTUP_ADVICE,
    CommitUnknown,
    RestartTransaction,
    ServerRetry,
    is_connection_lost,
)
from a2a_fabric.stores.postgres.hosts import PostgresHosts
from a2a_fabric.stores.postgres.transactions import (
    BEGIN,
    CommitMarker,
    CommitMarkers,
    PostgresTransaction,
    Row,
    SingleStatement,
)


class PostgresSettings(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    # The server itself, if `address` is a pooler. Without it, changes of other nodes are noticed by polling only.
    listen_address: str | None = None
    connections: int = 8
    reconnect_timeout: float = 5.0  # seconds in which a lost server may come back before callers get an error
    statement_timeout: float = 20.0

    @property
    def safe_address(self) -> str:
        """The address without its secrets, for messages."""
        return redact_address(self.address)


T = TypeVar("T")

_MAX_WAITING = 20_000  # callers that may wait for a connection
_RELEASE_TIMEOUT = 1.0  # seconds to cancel a statement whose caller has left; then the connection is closed

# Every query has an index that also gives its order. So nothing depends on what the planner believes about tables
# that were empty or had no statistics when it made a plan.
_PLANNER_SETTINGS = {"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_sort": "off", "jit": "off"}
_DIRECT_OPTIONS: dict[str, Any] = {
    "statement_cache_size": 256,
    "max_cached_statement_lifetime": 0,
    "server_settings": {
        "application_name": "a2a-fabric",
        "plan_cache_mode": "force_generic_plan",
        **_PLANNER_SETTINGS,
    },
}
# A pooler keeps neither statements nor settings, so the settings are sent with each transaction.
_POOLED_OPTIONS: dict[str, Any] = {"statement_cache_size": 0}
_BEGIN_POOLED = "; ".join((BEGIN, *(f"SET LOCAL {name} = {value}" for name, value in _PLANNER_SETTINGS.items())))


async def connect(settings: PostgresSettings, address: str | None = None) -> Any:
    """One connection. Raises what asyncpg and the sockets raise."""
    return await PostgresHosts(address or settings.address).connect(**_build_options(settings), **_POOLED_OPTIONS)


def _build_options(settings: PostgresSettings) -> dict[str, Any]:
    return {"timeout": max(1.0, settings.reconnect_timeout / 2), "command_timeout": settings.statement_timeout}


class PostgresConnections:
    """Belongs to the event loop in which it was created. `on_commit` is called with the topics of each commit."""

    def __init__(self, settings: PostgresSettings, pool: Any, is_pooled: bool) -> None:
        self.settings = settings
        self.safe_address = settings.safe_address
        self._pool = pool
        self._is_pooled = is_pooled
        self._begin = _BEGIN_POOLED if is_pooled else BEGIN
        self.on_commit: Callable[[set[str]], None] = lambda topics: None
        self._markers = CommitMarkers()
        # A server that became a standby answers reads: they do not end the outage of the writes.
        self._read_retry = ServerRetry(settings.reconnect_timeout, settings.safe_address)
        self._write_retry = ServerRetry(settings.reconnect_timeout, settings.safe_address)
        self._waiting_count = 0
        self._is_open = True

    @classmethod
    async def open(cls, settings: PostgresSettings, is_pooled: bool) -> PostgresConnections:
        """Makes no connection yet. `is_pooled` says that there is a pooler before the server."""
        hosts = PostgresHosts(settings.address)

        async def open_connection(*_: Any, **options: Any) -> Any:
            return await hosts.connect(**options)

        pool = await asyncpg.create_pool(
            min_size=0,
            max_size=settings.connections,
            connect=open_connection,
            reset=_skip_reset,
            **_build_options(settings),
            **(_POOLED_OPTIONS if is_pooled else _DIRECT_OPTIONS),
        )
        return cls(settings, pool, is_pooled)

    async def read(self, sql: str, *values: Any) -> list[Row]:
        """The rows of one query. A value that cannot be stored matches no row."""
        try:
            return await self._read_retry.run(lambda: self._read(sql, values))
        except BadInput:
            return []

    async def read_one(self, sql: str, *values: Any) -> Row | None:
        rows = await self.read(sql, *values)
        return rows[0] if rows else None

    async def write(self, work: Callable[[PostgresTransaction], Awaitable[T]]) -> T:
        """What the work returns, once it is on disk. The work may run several times; only one run is committed."""
        unconfirmed: list[tuple[T, PostgresTransaction]] = []  # at most one: a COMMIT whose answer was lost

        async def run_once() -> T:
            if unconfirmed:
                result, transaction = unconfirmed[0]
                if await self._is_committed(transaction):
                    self.on_commit(transaction.topics)
                    return result
                unconfirmed.clear()
            return await self._transact(work, lambda *doubt: unconfirmed.append(doubt))

        return await self._write_retry.run(run_once)

    async def write_single(self, statement: SingleStatement) -> tuple[float, list[Row]]:
        """The server's clock, and the rows of what the statement has written, once it is on disk; it runs once."""
        unconfirmed: list[CommitMarker] = []  # at most one: a statement whose answer was lost

        async def run_once() -> list[Row]:
            if unconfirmed:
                rows = await self._recover_rows(statement, unconfirmed[0])
                self._markers.release(unconfirmed.pop())
                if rows is not None:
                    return rows
            return await self._run_single(statement, unconfirmed.append)

        rows = await self._write_retry.run(run_once)
        return rows[0][0], [row for row in rows if row[1] is not None]

    async def execute(self, sql: str) -> None:
        """Run commands without values, as one transaction and in one round trip. It may run several times."""
        await self._write_retry.run(lambda: self._execute(sql))

    def count_connections(self) -> dict[str, int]:
        """How many are used and idle, and how many callers wait for one."""
        idle = self._pool.get_idle_size()
        return {"used": self._pool.get_size() - idle, "idle": idle, "waiting": self._waiting_count}

    async def aclose(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            await asyncio.wait_for(self._pool.close(), 5.0)
        except Exception:  # the connections are closed either way
            self._pool.terminate()

    async def _transact(
        self,
        work: Callable[[PostgresTransaction], Awaitable[T]],
        on_unconfirmed: Callable[[T, PostgresTransaction], None],
    ) -> T:
        """One transaction. `on_unconfirmed` is called if the connection broke during COMMIT."""
        async with (
            self._borrow_connection() as connection,
            self._with_marker() as marker,
            _rollback_on_error(connection),
        ):
            transaction = await PostgresTransaction.begin(connection, self._begin, marker)
            result = await work(transaction)
            try:
                await transaction.finish()
            except Exception as exc:
                if not transaction.has_written or not is_connection_lost(exc):
                    raise
                on_unconfirmed(result, transaction)
                raise CommitUnknown(str(exc)) from exc
        self.on_commit(transaction.topics)
        return result

    async def _run_single(
        self, statement: SingleStatement, on_unconfirmed: Callable[[CommitMarker], None]
    ) -> list[Row]:
        """`on_unconfirmed` is called if the connection broke, at whatever moment."""
        async with self._borrow_connection() as connection, self._with_marker() as marker:
            try:
                rows = await self._fetch(connection, statement.sql, (marker.slot, marker.number, *statement.values))
            except Exception as exc:
                if not is_connection_lost(exc):
                    raise
                on_unconfirmed(marker)
                raise CommitUnknown(str(exc)) from exc
        if not rows:
            raise RestartTransaction(f"the slot {marker.slot} has a higher number than {marker.number}")
        return rows

    async def _recover_rows(self, statement: SingleStatement, marker: CommitMarker) -> list[Row] | None:
        """What the statement returned; None if it was not committed, and now never will be."""
        try:
            fence = (marker.slot, marker.number, self._markers.next_number())
            ((number, at),) = await self._read(transactions.FENCE_MARKER, fence)
            if number != marker.number:
                return None
            return await self._read(statement.recovery, (at, *statement.recovery_values)) or [(at, None)]
        except Exception as exc:
            raise CommitUnknown(str(exc)) from exc

    async def _execute(self, sql: str) -> None:
        async with self._borrow_connection() as connection:
            await connection.execute(sql)

    @asynccontextmanager
    async def _with_marker(self) -> AsyncIterator[CommitMarker]:
        """A marker whose slot is free again afterwards, unless the server may still be working on the transaction."""
        marker = self._markers.take()
        try:
            yield marker
        except BaseException as exc:
            if isinstance(exc, Exception) and not is_connection_lost(exc):
                self._markers.release(marker)
            raise
        self._markers.release(marker)

    async def _read(self, sql: str, values: tuple[Any, ...]) -> list[Row]:
        async with self._borrow_connection() as connection:
            return await self._fetch(connection, sql, values)

    async def _fetch(self, connection: Any, sql: str, values: tuple[Any, ...]) -> list[Row]:
        """The rows of a statement that is a transaction by itself."""
        if not self._is_pooled:
            return list(await connection.fetch(sql, *values))
        async with _rollback_on_error(connection):
            await connection.execute(self._begin)  # parsing and running have to reach the same session
            rows = await connection.fetch(sql, *values)
            await connection.execute("COMMIT")
        return list(rows)

    async def _is_committed(self, transaction: PostgresTransaction) -> bool:
        """Reads the commit marker, which waits until the server has finished the transaction."""
        marker = transaction.marker
        try:
            rows = await self._read(transactions.READ_MARKER, (marker.slot,))
        except Exception as exc:
            raise CommitUnknown(str(exc)) from exc
        self._markers.release(marker)
        return bool(rows and rows[0][0] == marker.number)

    @asynccontextmanager
    async def _borrow_connection(self) -> AsyncIterator[Any]:
        connection = await self._acquire_connection()
        try:
            yield connection
        except Exception as exc:
            if is_connection_lost(exc):
                await self._pool.expire_connections()  # the other connections lead to the same server
            raise
        finally:
            with suppress(Exception):  # a connection that broke afterwards changes nothing of what was done on it
                await self._pool.release(connection, timeout=_RELEASE_TIMEOUT)

    async def _acquire_connection(self) -> Any:
        if not self._is_open:
            raise StoreUnavailable(f"{self.safe_address} is closed", store=self.safe_address)
        if self._waiting_count >= _MAX_WAITING:
            raise StoreBusy(
                f"{self.safe_address} has {_MAX_WAITING} callers waiting already; try again", store=self.safe_address
            )
        self._waiting_count += 1
        try:
            return await self._pool.acquire(timeout=2 * self.settings.reconnect_timeout)
        finally:
            self._waiting_count -= 1


@asynccontextmanager
async def _rollback_on_error(connection: Any) -> AsyncIterator[None]:
    try:
        yield
    except (asyncio.CancelledError, TimeoutError):
        _terminate(connection)  # faster than a ROLLBACK, which a hung server would never answer
        raise
    except BaseException:
        try:
            await connection.execute("ROLLBACK", timeout=5.0)
        except Exception:
            _terminate(connection)
        raise


def _terminate(connection: Any) -> None:
    with suppress(asyncpg.InterfaceError):  # the connection is closed already
        connection.terminate()


async def _skip_reset(connection: Any) -> None:
    """Sessions keep nothing, so there is nothing to reset."""


_MIGRATION_TIMEOUT = 300.0  # another node may be running a long migration
_HAS_SCHEMA = "SELECT to_regnamespace('a2a_fabric') IS NOT NULL"
_HAS_TABLE = "SELECT to_regclass('a2a_fabric.schema_migrations') IS NOT NULL"
_APPLIED = "SELECT number, name, checksum FROM a2a_fabric.schema_migrations ORDER BY number"
_CREATE_TABLE = """
CREATE TABLE a2a_fabric.schema_migrations (
    number integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, applied_at double precision NOT NULL
)
"""
_INSERT_MIGRATION = """
INSERT INTO a2a_fabric.schema_migrations VALUES ($1, $2, $3, extract(epoch FROM clock_timestamp())::float8)
"""


async def migrate(connection: Any, safe_address: str) -> int:
    """The number of the schema. Raises SchemaTooNew or SchemaChanged; then nothing was changed."""
    available = load_migrations("postgres")
    async with connection.transaction():
        is_done = not find_pending(available, await _read_applied(connection), safe_address)
    if not is_done:
        async with connection.transaction():
            await connection.execute(transactions.SET_IDLE_TIMEOUT)
            # Of several nodes one migrates, and the others find nothing pending when they get the lock.
            await connection.execute(
                transactions.build_lock_query(transactions.MIGRATION_LOCK), timeout=_MIGRATION_TIMEOUT
            )
            await _apply_pending(connection, safe_address)
    return len(available)


async def _apply_pending(connection: Any, safe_address: str) -> None:
    if not await connection.fetchval(_HAS_SCHEMA):
        await connection.execute("CREATE SCHEMA a2a_fabric")
    if not await connection.fetchval(_HAS_TABLE):
        await connection.execute(_CREATE_TABLE)
    for migration in find_pending(load_migrations("postgres"), await _read_applied(connection), safe_address):
        await connection.execute(migration.sql, timeout=_MIGRATION_TIMEOUT)
        await connection.execute(_INSERT_MIGRATION, migration.number, migration.name, migration.checksum)


async def _read_applied(connection: Any) -> list[AppliedMigration]:
    if not await connection.fetchval(_HAS_TABLE):
        return []
    return [AppliedMigration(number=row[0], name=row[1], checksum=row[2]) for row in await connection.fetch(_APPLIED)]


async def inspect_schema(address: str) -> SchemaStatus | None:
    """The schema, read without changing it; 0 for a database without our tables. Raises StoreError."""
    settings = PostgresSettings(address=address)
    return await ServerRetry(settings.reconnect_timeout, settings.safe_address, STARTUP_ADVICE).run(
        lambda: _inspect_schema(settings)
    )


async def _inspect_schema(settings: PostgresSettings) -> SchemaStatus:
    connection = await connect(settings)
    try:
        async with connection.transaction():
            return check_schema("postgres", await _read_applied(connection), settings.safe_address)
    finally:
        connection.terminate()
