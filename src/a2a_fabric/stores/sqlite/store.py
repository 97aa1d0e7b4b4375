"""The SQLite store: one file beside the node, shared by the processes of one machine. The embedded default."""

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
    FileReplacedCheck,
    SqliteConnections,
    SqliteReader,
    SqliteSettings,
    open_file,
)
from a2a_fabric.stores.sqlite.jobs import SqliteJobs
from a2a_fabric.stores.sqlite.messages import SqliteMessages
from a2a_fabric.stores.sqlite.registrations import SqliteHealthLog, SqliteRegistrations
from a2a_fabric.stores.sqlite.writer import SqliteWriter

__all__ = ["SqliteSettings", "SqliteStore", "build"]

_STATES = "SELECT state, count(*) FROM jobs GROUP BY state"
_COUNTS = "SELECT (SELECT count(*) FROM agents WHERE removed = 0), (SELECT count(*) FROM messages)"


class SqliteStore:
    """All ports over one file. Belongs to the event loop in which it was opened."""

    def __init__(self, settings: SqliteSettings, connections: SqliteConnections, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._connections = connections
        self.notices = TopicSignals()
        self._reader = SqliteReader(connections.reader, settings.address)
        file_check = FileReplacedCheck(settings.path, settings.address)
        self._writer = SqliteWriter(
            connections.writer, settings.address, clock, self.notices.post_all, file_check.check
        )
        self.jobs = SqliteJobs(self._writer, self._reader, clock)
        self.registrations = SqliteRegistrations(self._writer, self._reader, clock)
        self.health = SqliteHealthLog(self._writer, self._reader)
        self.messages = SqliteMessages(self._writer, self._reader, clock)
        self.archive = SqliteArchive(self._writer, self._reader)
        poller = SqliteChangePoller(self._reader, self.notices, self.jobs.has_due)
        self._poll_task = asyncio.create_task(poller.run())
        self._is_open = True

    @classmethod
    async def open(cls, settings: SqliteSettings, clock: Callable[[], float] = time.time) -> SqliteStore:
        """Raises StoreError; then the file is as it was."""
        return cls(settings, await asyncio.to_thread(open_file, settings), clock)

    async def status(self) -> StoreStatus:
        agents, messages = self._reader.fetch_one(_COUNTS) or (0, 0)
        return StoreStatus(
            kind="sqlite",
            place=self._settings.address,
            schema=self._connections.schema,
            jobs=dict(self._reader.fetch_all(_STATES)),
            agents=agents,
            messages=messages,
            bytes=self._settings.path.stat().st_size,
        )

    async def aclose(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._poll_task.cancel()
        with suppress(asyncio.CancelledError):
            await self._poll_task
        await self._writer.aclose()
        self._reader.close()
        self._connections.writer.close()


async def build(address: str) -> SqliteStore:
    """The store at `sqlite:PATH`. Raises StoreError."""
    return await SqliteStore.open(SqliteSettings(path=Path(address.removeprefix("sqlite:"))))


plugin = StorePlugin(build=build)
