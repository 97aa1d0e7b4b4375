"""Store: one SQLite file beside the node, shared by the processes of one machine. The embedded default."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from a2a_fabric.core.stores import StoreStatus
from a2a_fabric.stores.notices import NoticeBoard
from a2a_fabric.stores.sqlite.archive import SqliteArchive
from a2a_fabric.stores.sqlite.jobs import SqliteJobs
from a2a_fabric.stores.sqlite.messages import SqliteMessages
from a2a_fabric.stores.sqlite.opening import Opened, SqliteSettings, open_file
from a2a_fabric.stores.sqlite.presence import Presence
from a2a_fabric.stores.sqlite.reader import Reader
from a2a_fabric.stores.sqlite.registrations import SqliteHealthLog, SqliteRegistrations
from a2a_fabric.stores.sqlite.watching import Lookout
from a2a_fabric.stores.sqlite.writer import Writer

__all__ = ["SqliteSettings", "SqliteStore", "build"]

_STATES = "SELECT state, count(*) FROM jobs GROUP BY state"
_COUNTS = "SELECT (SELECT count(*) FROM agents WHERE removed = 0), (SELECT count(*) FROM messages)"


class SqliteStore:
    """All ports over one file. Belongs to the event loop in which it was opened."""

    def __init__(self, settings: SqliteSettings, opened: Opened, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._opened = opened
        self.notices = NoticeBoard()
        self._reader = Reader(opened.reader, settings.place)
        presence = Presence(settings.path, settings.place)
        self._writer = Writer(opened.writer, settings.place, clock, self.notices.post_all, presence.check)
        self.jobs = SqliteJobs(self._writer, self._reader, clock)
        self.registrations = SqliteRegistrations(self._writer, self._reader, clock)
        self.health = SqliteHealthLog(self._writer, self._reader)
        self.messages = SqliteMessages(self._writer, self._reader, clock)
        self.archive = SqliteArchive(self._writer, self._reader)
        lookout = Lookout(self._reader, self.notices, self.jobs.has_due)
        self._lookout = asyncio.create_task(lookout.watch())
        self._is_open = True

    @classmethod
    async def open(cls, settings: SqliteSettings, clock: Callable[[], float] = time.time) -> SqliteStore:
        """Raises StoreError; then the file is as it was."""
        return cls(settings, await asyncio.to_thread(open_file, settings), clock)

    async def status(self) -> StoreStatus:
        agents, messages = self._reader.one(_COUNTS) or (0, 0)
        return StoreStatus(
            kind="sqlite",
            place=self._settings.place,
            schema=self._opened.schema,
            jobs=dict(self._reader.all(_STATES)),
            agents=agents,
            messages=messages,
            bytes=self._settings.path.stat().st_size,
        )

    async def aclose(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._lookout.cancel()
        with suppress(asyncio.CancelledError):
            await self._lookout
        await self._writer.aclose()
        self._reader.close()
        self._opened.writer.close()


async def build(address: str) -> SqliteStore:
    """The store at `sqlite:PATH`. Raises StoreError."""
    return await SqliteStore.open(SqliteSettings(path=Path(address.removeprefix("sqlite:"))))
