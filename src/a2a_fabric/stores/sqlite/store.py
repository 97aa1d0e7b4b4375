"""The SQLite store: one file beside the node, shared by the processes of one machine; or `memory:`.

`memory:` is the same store over a database in memory, for tests and for nodes that
keep nothing. A job costs about 0.2 ms more CPU there than in a store of plain
dictionaries, which was measured and given up: it claimed slower the longer its
queue was, and was a third implementation to keep in step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from a2a_fabric.core.plugin import StorePlugin
from a2a_fabric.core.stores import StoreStatus
from a2a_fabric.core.tasks import TopicSignals
from a2a_fabric.stores.sqlite.archive import SqliteArchive
from a2a_fabric.stores.sqlite.change_poller import SqliteChangePoller
from a2a_fabric.stores.sqlite.connections import (
    MEMORY_ADDRESS,
    FileReplacedCheck,
    SqliteConnections,
    SqliteReader,
    SqliteSettings,
    open_file,
    open_memory,
)
from a2a_fabric.stores.sqlite.jobs import SqliteJobs
from a2a_fabric.stores.sqlite.messages import SqliteMessages
from a2a_fabric.stores.sqlite.registrations import SqliteHealthLog, SqliteRegistrations
from a2a_fabric.stores.sqlite.writer import FileWriter, MemoryWriter, Writer

__all__ = ["MemoryStore", "SqliteSettings", "SqliteStore", "build", "build_memory"]

_STATES = "SELECT state, count(*) FROM jobs GROUP BY state"
_COUNTS = "SELECT (SELECT count(*) FROM agents WHERE removed = 0), (SELECT count(*) FROM messages)"


class _SqlitePorts:
    """All ports over one database. Belongs to the event loop in which it was opened."""

    kind: str

    def __init__(
        self,
        connections: SqliteConnections,
        address: str,
        writer: Writer,
        notices: TopicSignals,
        clock: Callable[[], float],
    ) -> None:
        self.address = address
        self.notices = notices
        self.writer = writer
        self.reader = SqliteReader(connections.reader, address)
        self.jobs = SqliteJobs(writer, self.reader, clock)
        self.registrations = SqliteRegistrations(writer, self.reader, clock)
        self.health = SqliteHealthLog(writer, self.reader)
        self.messages = SqliteMessages(writer, self.reader, clock)
        self.archive = SqliteArchive(writer, self.reader)
        self._connections = connections

    async def status(self) -> StoreStatus:
        agents, messages = self.reader.fetch_one(_COUNTS) or (0, 0)
        return StoreStatus(
            kind=self.kind,
            place=self.address,
            schema=self._connections.schema,
            jobs=dict(self.reader.fetch_all(_STATES)),
            agents=agents,
            messages=messages,
            bytes=self._measure(),
        )

    async def aclose(self) -> None:
        await self.writer.aclose()
        self._connections.reader.close()
        self._connections.writer.close()

    def _measure(self) -> int | None:
        return None


class MemoryStore(_SqlitePorts):
    """Nothing outlives the process, and nothing waits: every write is complete before its method yields."""

    kind = "memory"

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        connections, notices = open_memory(), TopicSignals()
        writer = MemoryWriter(connections.writer, clock, notices.post_all)
        super().__init__(connections, MEMORY_ADDRESS, writer, notices, clock)


class SqliteStore(_SqlitePorts):
    kind = "sqlite"

    def __init__(self, settings: SqliteSettings, connections: SqliteConnections, clock: Callable[[], float]) -> None:
        notices = TopicSignals()
        file_check = FileReplacedCheck(settings.path, settings.address)
        writer = FileWriter(connections.writer, settings.address, clock, notices.post_all, file_check.check)
        super().__init__(connections, settings.address, writer, notices, clock)
        self._path = settings.path
        self._poll_task = asyncio.create_task(SqliteChangePoller(self.reader, notices, self.jobs.has_due).run())

    @classmethod
    async def open(cls, settings: SqliteSettings, clock: Callable[[], float] = time.time) -> SqliteStore:
        """Raises StoreError; then the file is as it was."""
        return cls(settings, await asyncio.to_thread(open_file, settings), clock)

    async def aclose(self) -> None:
        self._poll_task.cancel()
        with suppress(asyncio.CancelledError):
            await self._poll_task
        await super().aclose()

    def _measure(self) -> int:
        return self._path.stat().st_size


async def build(address: str) -> SqliteStore:
    """The store at `sqlite:PATH`. Raises StoreError."""
    return await SqliteStore.open(SqliteSettings(path=Path(address.removeprefix("sqlite:"))))


async def build_memory(address: str) -> MemoryStore:
    """The store for `memory` or `memory:`; the address says nothing more."""
    return MemoryStore()


plugin = StorePlugin(build=build)
memory_plugin = StorePlugin(build=build_memory)
