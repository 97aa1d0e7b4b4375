"""The SQLite store: one file beside the node, shared by the processes of one machine; or `memory:`.

`memory:` is the same store over a database in memory, for tests and for nodes that
keep nothing. A job costs about 0.2 ms more CPU there than in a store of plain
dictionaries, which was measured and given up: it claimed slower the longer its
queue was, and was a third implementation to keep in step."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from a2a_fabric.core.errors import StoreError
from a2a_fabric.core.job import PRIORITIES
from a2a_fabric.core.keys import KEYS_TOPIC
from a2a_fabric.core.ports import StorePlugin
from a2a_fabric.core.stores import AGENTS_TOPIC, WORK_TOPIC, StoreStatus, inbox_topic, job_topic
from a2a_fabric.core.tasks import TopicSignals
from a2a_fabric.stores.changes import ChangedTopics, LogThrottle, ids_from_topics
from a2a_fabric.stores.sqlite.archive import SqliteArchive
from a2a_fabric.stores.sqlite.calls import SqliteCalls
from a2a_fabric.stores.sqlite.connections import (
    SqliteConnections,
    SqliteSettings,
    open_file,
    open_memory,
)
from a2a_fabric.stores.sqlite.database import (
    MEMORY_ADDRESS,
    FileReplacedCheck,
    FileWriter,
    MemoryWriter,
    SqliteReader,
    Writer,
)
from a2a_fabric.stores.sqlite.jobs import SqliteJobs
from a2a_fabric.stores.sqlite.keys import SqliteKeys, SqliteUsedTokens
from a2a_fabric.stores.sqlite.logins import SqliteLogins
from a2a_fabric.stores.sqlite.messages import SqliteMessages
from a2a_fabric.stores.sqlite.receipts import SqliteReceipts
from a2a_fabric.stores.sqlite.registrations import SqliteDescriptions, SqliteHealthLog, SqliteRegistrations

__all__ = ["MemoryStore", "SqliteSettings", "SqliteStore", "build", "build_memory"]

_log = logging.getLogger(__name__)

# From indexes alone: rows are many, and this runs on the event loop.
_STATES = """
SELECT state, count(*) FROM jobs INDEXED BY jobs_owner WHERE ended_at IS NOT NULL GROUP BY state
UNION ALL SELECT state, count(*) FROM jobs INDEXED BY jobs_waiting
WHERE state IN ('queued', 'input_required') GROUP BY state
UNION ALL SELECT state, count(*) FROM jobs INDEXED BY jobs_running WHERE state = 'running' GROUP BY state
"""
_COUNTS = "SELECT (SELECT count(*) FROM agents WHERE removed = 0), (SELECT count(*) FROM messages)"
# One look at the index for each priority.
_OLDEST_DUE = "SELECT min(run_at) FROM jobs WHERE state = 'queued' AND priority = ?"
_POLL_INTERVAL = 0.05
_VERSIONS = "SELECT job_id, version FROM jobs WHERE job_id IN (SELECT value FROM json_each(?))"
_LAST_ENTRY = "SELECT max(entry) FROM inbox_entries"
_FILLED_INBOXES = "SELECT DISTINCT inbox FROM inbox_entries WHERE entry > ?"
_REVISION = "SELECT max(revision) FROM agents"
_KEYS_REVISION = "SELECT max(revision) FROM keys"


class SqlitePorts:
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
        self.descriptions = SqliteDescriptions(writer, self.reader)
        self.messages = SqliteMessages(writer, self.reader, clock)
        self.logins = SqliteLogins(writer, self.reader, clock)
        self.keys = SqliteKeys(writer, self.reader)
        self.receipts = SqliteReceipts(writer, self.reader)
        self.used_tokens = SqliteUsedTokens(writer)
        self.calls = SqliteCalls(writer, self.reader)
        self.archive = SqliteArchive(writer, self.reader)
        self._connections = connections
        self._clock = clock

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
            queue_age=self._read_queue_age(),
        )

    def _read_queue_age(self) -> float:
        oldest = [self.reader.fetch_one(_OLDEST_DUE, (priority,)) for priority in PRIORITIES]
        due_at = [row[0] for row in oldest if row is not None and row[0] is not None]
        return max(0.0, self._clock() - min(due_at)) if due_at else 0.0

    async def aclose(self) -> None:
        await self.writer.aclose()
        self._connections.reader.close()
        self._connections.writer.close()

    def _measure(self) -> int | None:
        return None


class MemoryStore(SqlitePorts):
    """Nothing outlives the process, and nothing waits: every write is complete before its method yields."""

    kind = "memory"

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        connections, notices = open_memory(), TopicSignals()
        writer = MemoryWriter(connections.writer, clock, notices.post_all)
        super().__init__(connections, MEMORY_ADDRESS, writer, notices, clock)


class SqliteStore(SqlitePorts):
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
        """With the log of what was written lately, which SQLite moves into the file now and then."""
        size = self._path.stat().st_size
        with suppress(FileNotFoundError):
            size += self._path.with_name(f"{self._path.name}-wal").stat().st_size
        return size


class SqliteChangePoller:
    """Posts the topics that other processes changed in the same file, by a cheap poll many times a second.

    SQLite counts the commits of other connections (`PRAGMA data_version`). The watched
    topics are read, in one query per kind, only when that number has changed.
    """

    def __init__(self, reader: SqliteReader, signals: TopicSignals, has_due: Callable[[], bool]) -> None:
        self._reader = reader
        self._signals = signals
        self._has_due = has_due
        self._changed_topics = ChangedTopics(signals)
        self._data_version: object = None
        self._last_entry = 0
        self._log_throttle = LogThrottle(_log)

    async def run(self) -> None:
        """Runs until cancelled. After a failed read it pauses and tries again."""
        while True:
            await asyncio.sleep(_POLL_INTERVAL)
            try:
                self.poll()
            except StoreError as exc:
                self._log_throttle.warn(exc.message)
                await asyncio.sleep(1.0)

    def poll(self) -> None:
        topics = self._signals.watched_topics
        if not topics:
            return
        version = self._reader.fetch_one("PRAGMA data_version")
        if version == self._data_version:
            return
        self._changed_topics.update(self._read_signatures(topics))
        self._signals.post_all(self._read_filled_inboxes())
        if WORK_TOPIC in topics and self._has_due():
            self._signals.post(WORK_TOPIC)
        self._data_version = version  # last: after a failed read the next poll looks again

    def _read_signatures(self, topics: Iterable[str]) -> dict[str, object]:
        """The versions of the watched jobs, and the revisions of registrations and keys."""
        ids = ids_from_topics(topics, job_topic(""))
        signatures: dict[str, object] = dict.fromkeys(map(job_topic, ids))
        if ids:
            names = msgspec.json.encode(ids).decode()
            signatures |= {
                job_topic(job_id): version for job_id, version in self._reader.fetch_all(_VERSIONS, (names,))
            }
        if AGENTS_TOPIC in topics:
            signatures[AGENTS_TOPIC] = self._reader.fetch_one(_REVISION)
        if KEYS_TOPIC in topics:
            signatures[KEYS_TOPIC] = self._reader.fetch_one(_KEYS_REVISION)
        return signatures

    def _read_filled_inboxes(self) -> list[str]:
        """The inboxes that got an entry since the last poll; on the first poll, all that hold one."""
        (last,) = self._reader.fetch_one(_LAST_ENTRY) or (0,)
        rows = self._reader.fetch_all(_FILLED_INBOXES, (self._last_entry,)) if last and last > self._last_entry else []
        self._last_entry = max(self._last_entry, last or 0)
        return [inbox_topic(inbox) for (inbox,) in rows]


async def build(address: str) -> SqliteStore:
    """The store at `sqlite:PATH`. Raises StoreError."""
    return await SqliteStore.open(SqliteSettings(path=Path(address.removeprefix("sqlite:"))))


async def build_memory(address: str) -> MemoryStore:
    """The store for `memory` or `memory:`; the address says nothing more."""
    return MemoryStore()


plugin = StorePlugin(build=build)
memory_plugin = StorePlugin(build=build_memory)
