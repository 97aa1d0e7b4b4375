"""What other processes changed in the same file, noticed by a cheap look many times a second.

SQLite counts commits of other connections (`PRAGMA data_version`). Only when
that number moved are the watched things looked at, in one query per kind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from a2a_fabric.core.store_errors import StoreError
from a2a_fabric.core.stores import AGENTS, WORK, inbox_topic, job_topic
from a2a_fabric.stores.notices import NoticeBoard
from a2a_fabric.stores.seldom import Seldom
from a2a_fabric.stores.sqlite.reader import Reader

_EVERY = 0.05
_VERSIONS = "SELECT job_id, version FROM jobs WHERE job_id IN (SELECT value FROM json_each(?))"
_LAST_ENTRY = "SELECT max(entry) FROM inbox_entries"
_FILLED = "SELECT DISTINCT inbox FROM inbox_entries WHERE entry > ?"
_REVISION = "SELECT max(revision) FROM agents"

_JOB = job_topic("")

log = logging.getLogger("a2a_fabric.stores.sqlite")


class Lookout:
    """Rings the board's bells for changes that did not come through this process."""

    def __init__(self, reader: Reader, board: NoticeBoard, has_due: Callable[[], bool]) -> None:
        self._reader = reader
        self._board = board
        self._has_due = has_due
        self._seen: dict[str, object] = {}
        self._version: object = None
        self._entry = 0
        self._troubles = Seldom(log)

    async def watch(self) -> None:
        """Until cancelled. A store that cannot be read for a while is looked at again later."""
        while True:
            await asyncio.sleep(_EVERY)
            try:
                self.look()
            except StoreError as exc:
                self._troubles.warn(exc.message)
                await asyncio.sleep(1.0)

    def look(self) -> None:
        topics = self._board.watched
        if not topics:
            return
        version = self._reader.one("PRAGMA data_version")
        if version == self._version:
            return
        seen = self._signatures(topics)
        self._board.post_all(topic for topic, sign in seen.items() if sign != self._seen.get(topic, self))
        self._seen = seen
        self._board.post_all(self._filled())
        if WORK in topics and self._has_due():
            self._board.post(WORK)
        self._version = version  # only now: what could not be read is looked at again

    def _signatures(self, topics: Iterable[str]) -> dict[str, object]:
        """What changes when a watched job or the registrations do."""
        ids = [topic[len(_JOB) :] for topic in topics if topic.startswith(_JOB)]
        found: dict[str, object] = dict.fromkeys(map(job_topic, ids))
        if ids:
            names = msgspec.json.encode(ids).decode()
            found |= {job_topic(job_id): version for job_id, version in self._reader.all(_VERSIONS, (names,))}
        if AGENTS in topics:
            found[AGENTS] = self._reader.one(_REVISION)
        return found

    def _filled(self) -> list[str]:
        """The inboxes that got something since the last look; at first, all that hold anything."""
        (last,) = self._reader.one(_LAST_ENTRY) or (0,)
        rows = self._reader.all(_FILLED, (self._entry,)) if last and last > self._entry else []
        self._entry = max(self._entry, last or 0)
        return [inbox_topic(inbox) for (inbox,) in rows]
