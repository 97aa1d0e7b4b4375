"""A look at a database's schema that changes nothing."""

from __future__ import annotations

from a2a_fabric.stores.migrate import SchemaLook, looked
from a2a_fabric.stores.postgres.connections import connect
from a2a_fabric.stores.postgres.migrating import applied
from a2a_fabric.stores.postgres.patience import AT_FIRST, Patience
from a2a_fabric.stores.postgres.settings import PostgresSettings


async def look(address: str) -> SchemaLook | None:
    """Schema 0 for a database that is not ours yet. Raises StoreError."""
    settings = PostgresSettings(address=address)
    return await Patience(settings.patience, settings.place, AT_FIRST).attempt(lambda: _look(settings))


async def _look(settings: PostgresSettings) -> SchemaLook:
    connection = await connect(settings)
    try:
        async with connection.transaction():
            return looked("postgres", await applied(connection), settings.place)
    finally:
        connection.terminate()
