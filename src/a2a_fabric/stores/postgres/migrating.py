"""The schema: looked at before it is touched, brought up to date by whichever node comes first.

Everything of ours lives in a schema of its own, so the database may be shared
with other programs.
"""

from __future__ import annotations

from typing import Any

from a2a_fabric.stores.migrate import Applied, migrations, pending
from a2a_fabric.stores.postgres.locks import MIGRATING, locking
from a2a_fabric.stores.postgres.stalled import END_SILENT

_PATIENCE = 300.0  # another node may be at a long one
_HAS_SCHEMA = "SELECT to_regnamespace('a2a_fabric') IS NOT NULL"
_HAS_TABLE = "SELECT to_regclass('a2a_fabric.schema_migrations') IS NOT NULL"
_APPLIED = "SELECT number, name, checksum FROM a2a_fabric.schema_migrations ORDER BY number"
_TABLE = """
CREATE TABLE a2a_fabric.schema_migrations (
    number integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, applied_at double precision NOT NULL
)
"""
_NOTE = """
INSERT INTO a2a_fabric.schema_migrations VALUES ($1, $2, $3, extract(epoch FROM clock_timestamp())::float8)
"""


async def migrate(connection: Any, place: str) -> int:
    """The schema's number. Raises SchemaTooNew or SchemaChanged; then nothing was touched."""
    known = migrations("postgres")
    async with connection.transaction():
        is_done = not pending(known, await applied(connection), place)
    if not is_done:
        async with connection.transaction():
            await connection.execute(END_SILENT)
            await connection.execute(locking(MIGRATING), timeout=_PATIENCE)  # whoever waits here finds the work done
            await _apply_pending(connection, place)
    return len(known)


async def _apply_pending(connection: Any, place: str) -> None:
    if not await connection.fetchval(_HAS_SCHEMA):
        await connection.execute("CREATE SCHEMA a2a_fabric")
    if not await connection.fetchval(_HAS_TABLE):
        await connection.execute(_TABLE)
    for migration in pending(migrations("postgres"), await applied(connection), place):
        await connection.execute(migration.sql, timeout=_PATIENCE)
        await connection.execute(_NOTE, migration.number, migration.name, migration.checksum)


async def applied(connection: Any) -> list[Applied]:
    if not await connection.fetchval(_HAS_TABLE):
        return []
    return [Applied(number=row[0], name=row[1], checksum=row[2]) for row in await connection.fetch(_APPLIED)]
