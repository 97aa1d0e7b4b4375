"""Store: a PostgreSQL database, shared by any number of nodes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

try:
    import asyncpg
except ModuleNotFoundError as exc:
    raise ImportError("it needs asyncpg, which comes with: pip install 'a2a-fabric[postgres]'") from exc

from a2a_fabric.core.store_errors import StoreUnusable
from a2a_fabric.core.stores import StoreStatus
from a2a_fabric.stores.notices import NoticeBoard
from a2a_fabric.stores.postgres import marks
from a2a_fabric.stores.postgres.archive import PostgresArchive
from a2a_fabric.stores.postgres.connections import Connections, connect
from a2a_fabric.stores.postgres.crying import Crier
from a2a_fabric.stores.postgres.health import PostgresHealthLog
from a2a_fabric.stores.postgres.jobs import PostgresJobs
from a2a_fabric.stores.postgres.messages import PostgresMessages
from a2a_fabric.stores.postgres.migrating import migrate
from a2a_fabric.stores.postgres.patience import AT_FIRST, Patience
from a2a_fabric.stores.postgres.registrations import PostgresRegistrations
from a2a_fabric.stores.postgres.settings import PostgresSettings
from a2a_fabric.stores.postgres.watching import Ear, Lookout

__all__ = ["PostgresSettings", "PostgresStore", "build"]

_STATES = "SELECT state, count(*) FROM a2a_fabric.jobs GROUP BY state"
_COUNTS = """
SELECT (SELECT count(*) FROM a2a_fabric.agents WHERE NOT removed), (SELECT count(*) FROM a2a_fabric.messages),
       (SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::int8 FROM pg_class
        WHERE relnamespace = 'a2a_fabric'::regnamespace AND relkind = 'r')
"""
_OLDEST_SERVER = (13, 0)


class PostgresStore:
    """All ports over one database. Belongs to the event loop in which it was opened."""

    def __init__(self, connections: Connections, schema: int, listen: str | None) -> None:
        self._connections = connections
        self._schema = schema
        self.notices = NoticeBoard()
        self._crier = Crier(connections)
        connections.rang = self._ring
        self.jobs = PostgresJobs(connections)
        self.registrations = PostgresRegistrations(connections)
        self.health = PostgresHealthLog(connections)
        self.messages = PostgresMessages(connections)
        self.archive = PostgresArchive(connections)
        ear = Ear(connections, listen, self.notices) if listen is not None else None
        watching = [self._crier.cry(), Lookout(connections, self.notices, ear).watch()]
        if ear is not None:
            watching.append(ear.listen())
        self._watching = [asyncio.create_task(each) for each in watching]
        self._is_open = True

    @classmethod
    async def open(cls, settings: PostgresSettings) -> PostgresStore:
        """Raises StoreError; then the database is as it was."""
        patience = Patience(2 * settings.patience, settings.place, AT_FIRST)  # nobody waits for an answer yet
        is_pooled, schema = await patience.attempt(lambda: _prepare(settings))
        connections = await Connections.open(settings, is_pooled)
        return cls(connections, schema, settings.listen or (None if is_pooled else settings.address))

    async def status(self) -> StoreStatus:
        states = await self._connections.read(_STATES)
        counts: Any = await self._connections.read_one(_COUNTS)
        return StoreStatus(
            kind="postgresql",
            place=self._connections.place,
            schema=self._schema,
            jobs={row[0]: row[1] for row in states},
            agents=counts[0],
            messages=counts[1],
            bytes=counts[2],
        )

    async def aclose(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        for task in self._watching:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await asyncio.gather(self.jobs.aclose(), self.messages.aclose())
        await self._crier.cry_once()
        await self._connections.aclose()

    def _ring(self, topics: set[str]) -> None:
        self.notices.post_all(topics)
        self._crier.tell(topics)


async def _prepare(settings: PostgresSettings) -> tuple[bool, int]:
    """Whether a pooler is in between, and the schema's number once it is up to date."""
    connection = await connect(settings)
    try:
        if connection.get_server_version()[:2] < _OLDEST_SERVER:
            raise StoreUnusable(f"{settings.place} is older than PostgreSQL {_OLDEST_SERVER[0]}", store=settings.place)
        schema = await migrate(connection, settings.place)
        await connection.execute(marks.FORGET)
        return await _is_pooled(connection), schema
    finally:
        connection.terminate()


async def _is_pooled(connection: asyncpg.Connection) -> bool:
    """A pooler tells its clients a process number of its own, not that of whoever serves this transaction."""
    async with connection.transaction():
        return bool(await connection.fetchval("SELECT pg_backend_pid()") != connection.get_server_pid())


async def build(address: str) -> PostgresStore:
    """The store at `postgresql://USER@HOST/DATABASE`. Raises StoreError."""
    return await PostgresStore.open(PostgresSettings(address=address))
