"""The PostgreSQL store: one database, shared by any number of nodes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import asyncpg

from a2a_fabric.core.errors import StoreUnusable
from a2a_fabric.core.job import PRIORITIES
from a2a_fabric.core.ports import StorePlugin
from a2a_fabric.core.stores import StoreStatus
from a2a_fabric.core.tasks import TopicSignals
from a2a_fabric.stores.postgres import transactions
from a2a_fabric.stores.postgres.archive import PostgresArchive
from a2a_fabric.stores.postgres.calls import PostgresCalls
from a2a_fabric.stores.postgres.connections import PostgresConnections, PostgresSettings, connect, migrate
from a2a_fabric.stores.postgres.errors import STARTUP_ADVICE, ServerRetry
from a2a_fabric.stores.postgres.jobs import PostgresJobs
from a2a_fabric.stores.postgres.keys import PostgresKeys, PostgresUsedTokens
from a2a_fabric.stores.postgres.logins import PostgresLogins
from a2a_fabric.stores.postgres.messages import PostgresMessages
from a2a_fabric.stores.postgres.notify import NotifyListener, NotifySender, PostgresChangePoller
from a2a_fabric.stores.postgres.receipts import PostgresReceipts
from a2a_fabric.stores.postgres.registrations import PostgresDescriptions, PostgresHealthLog, PostgresRegistrations

__all__ = ["PostgresSettings", "PostgresStore", "build"]

_STATES = "SELECT state, count(*) FROM a2a_fabric.jobs GROUP BY state"
_COUNTS = """
SELECT (SELECT count(*) FROM a2a_fabric.agents WHERE NOT removed), (SELECT count(*) FROM a2a_fabric.messages),
       (SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::int8 FROM pg_class
        WHERE relnamespace = 'a2a_fabric'::regnamespace AND relkind = 'r')
"""
# One look at the index for each priority, by the server's clock.
_QUEUE_AGE = """
SELECT extract(epoch FROM clock_timestamp())::float8 - min(oldest.run_at) FROM unnest($1::int[]) AS priorities (number),
LATERAL (SELECT run_at FROM a2a_fabric.jobs WHERE state = 'queued' AND priority = number ORDER BY run_at, seq LIMIT 1)
AS oldest
"""
_OLDEST_SERVER = (13, 0)


class PostgresStore:
    """All ports over one database. Belongs to the event loop in which it was opened."""

    def __init__(self, connections: PostgresConnections, schema: int, listen_address: str | None) -> None:
        self._connections = connections
        self._schema = schema
        self.notices = TopicSignals()
        self._notify_sender = NotifySender(connections)
        connections.on_commit = self._publish_topics
        self.jobs = PostgresJobs(connections)
        self.registrations = PostgresRegistrations(connections)
        self.health = PostgresHealthLog(connections)
        self.descriptions = PostgresDescriptions(connections)
        self.messages = PostgresMessages(connections)
        self.logins = PostgresLogins(connections)
        self.keys = PostgresKeys(connections)
        self.receipts = PostgresReceipts(connections)
        self.used_tokens = PostgresUsedTokens(connections)
        self.calls = PostgresCalls(connections)
        self.archive = PostgresArchive(connections)
        listener = NotifyListener(connections, listen_address, self.notices) if listen_address is not None else None
        coroutines = [self._notify_sender.run(), PostgresChangePoller(connections, self.notices, listener).run()]
        if listener is not None:
            coroutines.append(listener.listen())
        self._background_tasks = [asyncio.create_task(each) for each in coroutines]
        self._is_open = True

    @classmethod
    async def open(cls, settings: PostgresSettings) -> PostgresStore:
        """Raises StoreError; then the database is as it was."""
        # No caller waits for an answer yet, so the server gets twice the time.
        retry = ServerRetry(2 * settings.reconnect_timeout, settings.safe_address, STARTUP_ADVICE)
        is_pooled, schema = await retry.run(lambda: _prepare(settings))
        connections = await PostgresConnections.open(settings, is_pooled)
        return cls(connections, schema, settings.listen_address or (None if is_pooled else settings.address))

    async def status(self) -> StoreStatus:
        states = await self._connections.read(_STATES)
        counts: Any = await self._connections.read_one(_COUNTS)
        age: Any = await self._connections.read_one(_QUEUE_AGE, PRIORITIES)
        return StoreStatus(
            kind="postgresql",
            place=self._connections.safe_address,
            schema=self._schema,
            jobs={row[0]: row[1] for row in states},
            agents=counts[0],
            messages=counts[1],
            bytes=counts[2],
            queue_age=max(0.0, age[0] or 0.0),
            connections=self._connections.count_connections(),
        )

    async def aclose(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        for task in self._background_tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await asyncio.gather(self.jobs.aclose(), self.messages.aclose(), self.used_tokens.aclose())
        await self._notify_sender.send_pending()
        await self._connections.aclose()

    def _publish_topics(self, topics: set[str]) -> None:
        self.notices.post_all(topics)
        self._notify_sender.add(topics)


async def _prepare(settings: PostgresSettings) -> tuple[bool, int]:
    """Migrate; whether a pooler stands before the server, and the number of the schema."""
    connection = await connect(settings)
    try:
        if connection.get_server_version()[:2] < _OLDEST_SERVER:
            raise StoreUnusable(
                f"{settings.safe_address} is older than PostgreSQL {_OLDEST_SERVER[0]}", store=settings.safe_address
            )
        schema = await migrate(connection, settings.safe_address)
        await connection.execute(transactions.DELETE_OLD_MARKERS)
        return await _is_pooled(connection), schema
    finally:
        connection.terminate()


async def _is_pooled(connection: asyncpg.Connection) -> bool:
    """A pooler reports a process id of its own, not that of the server process behind this transaction."""
    async with connection.transaction():
        return bool(await connection.fetchval("SELECT pg_backend_pid()") != connection.get_server_pid())


async def build(address: str) -> PostgresStore:
    """The store at `postgresql://USER@HOST/DATABASE`. Raises StoreError."""
    return await PostgresStore.open(PostgresSettings(address=address))


plugin = StorePlugin(build=build)
