"""Notices changes that other processes made in the same file, by a cheap poll many times a second.

SQLite counts the commits of other connections (`PRAGMA data_version`). The watched
topics are read, in one query per kind, only when that number has changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from a2a_fabric.core.errors import StoreError
from a2a_fabric.core.stores import AGENTS_TOPIC, WORK_TOPIC, inbox_topic, job_topic
from a2a_fabric.core.tasks import TopicSignals
from a2a_fabric.stores.changes import ChangedTopics, LogThrottle, ids_from_topics
from a2a_fabric.stores.sqlite.connections import SqliteReader

_POLL_INTERVAL = 0.05
_VERSIONS = "SELECT job_id, version FROM jobs WHERE job_id IN (SELECT value FROM json_each(?))"
_LAST_ENTRY = "SELECT max(entry) FROM inbox_entries"
_FILLED_INBOXES = "SELECT DISTINCT inbox FROM inbox_entries WHERE entry > ?"
_REVISION = "SELECT max(revision) FROM agents"

log = logging.getLogger("a2a_fabric.stores.sqlite.store")


class SqliteChangePoller:
    """Posts the topics that other processes changed."""

    def __init__(self, reader: SqliteReader, signals: TopicSignals, has_due: Callable[[], bool]) -> None:
        self._reader = reader
        self._signals = signals
        self._has_due = has_due
        self._changed_topics = ChangedTopics(signals)
        self._data_version: object = None
        self._last_entry = 0
        self._log_throttle = LogThrottle(log)

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
        """The versions of the watched jobs, and the revision of the registrations."""
        ids = ids_from_topics(topics, job_topic(""))
        signatures: dict[str, object] = dict.fromkeys(map(job_topic, ids))
        if ids:
            names = msgspec.json.encode(ids).decode()
            signatures |= {
                job_topic(job_id): version for job_id, version in self._reader.fetch_all(_VERSIONS, (names,))
            }
        if AGENTS_TOPIC in topics:
            signatures[AGENTS_TOPIC] = self._reader.fetch_one(_REVISION)
        return signatures

    def _read_filled_inboxes(self) -> list[str]:
        """The inboxes that got an entry since the last poll; on the first poll, all that hold one."""
        (last,) = self._reader.fetch_one(_LAST_ENTRY) or (0,)
        rows = self._reader.fetch_all(_FILLED_INBOXES, (self._last_entry,)) if last and last > self._last_entry else []
        self._last_entry = max(self._last_entry, last or 0)
        return [inbox_topic(inbox) for (inbox,) in rows]
