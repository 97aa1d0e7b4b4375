"""The tables of the database: inspected before they are changed, migrated by the first node that opens it.

All tables live in the schema a2a_fabric, so the database may be shared with other programs."""

from __future__ import annotations

from typing import Any

from a2a_fabric.stores.migrate import AppliedMigration, SchemaStatus, check_schema, find_pending, load_migrations
from a2a_fabric.stores.postgres.connections import PostgresSettings, connect
from a2a_fabric.stores.postgres.errors import STARTUP_ADVICE, ServerRetry
from a2a_fabric.stores.postgres.transactions import MIGRATION_LOCK, SET_IDLE_TIMEOUT, build_lock_query

_TIMEOUT = 300.0  # another node may be running a long migration
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
        is_done = not find_pending(available, await read_applied(connection), safe_address)
    if not is_done:
        async with connection.transaction():
            await connection.execute(SET_IDLE_TIMEOUT)
            # Of several nodes one migrates, and the others find nothing pending when they get the lock.
            await connection.execute(build_lock_query(MIGRATION_LOCK), timeout=_TIMEOUT)
            await _apply_pending(connection, safe_address)
    return len(available)


async def _apply_pending(connection: Any, safe_address: str) -> None:
    if not await connection.fetchval(_HAS_SCHEMA):
        await connection.execute("CREATE SCHEMA a2a_fabric")
    if not await connection.fetchval(_HAS_TABLE):
        await connection.execute(_CREATE_TABLE)
    for migration in find_pending(load_migrations("postgres"), await read_applied(connection), safe_address):
        await connection.execute(migration.sql, timeout=_TIMEOUT)
        await connection.execute(_INSERT_MIGRATION, migration.number, migration.name, migration.checksum)


async def read_applied(connection: Any) -> list[AppliedMigration]:
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
            return check_schema("postgres", await read_applied(connection), settings.safe_address)
    finally:
        connection.terminate()
