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
from a2a_fabric.core.stores import AGENTS, WORK
from a2a_fabric.stores.notices import NoticeBoard
from a2a_fabric.stores.sqlite.reader import Reader

_EVERY = 0.05
_VERSIONS = "SELECT job_id, version FROM jobs WHERE job_id IN (SELECT value FROM json_each(?))"
_ENTRIES = """
SELECT value, (SELECT max(entry) FROM inbox_entries WHERE inbox = value) FROM json_each(?)
"""
_REVISION = "SELECT max(revision) FROM agents"

log = logging.getLogger("a2a_fabric.stores.sqlite")


class Lookout:
    """Rings the board's bells for changes that did not come through this process."""

    def __init__(self, reader: Reader, board: NoticeBoard, has_due: Callable[[], bool]) -> None:
        self._reader = reader
        self._board = board
        self._has_due = has_due
        self._seen: dict[str, object] = {}
        self._version: object = None

    async def watch(self) -> None:
        """Until cancelled. A store that cannot be read for a while is looked at again later."""
        while True:
            await asyncio.sleep(_EVERY)
            try:
                self.look()
            except StoreError as exc:
                log.warning("%s", exc.message)
                await asyncio.sleep(1.0)

    def look(self) -> None:
        topics = self._board.watched
        if not topics:
            return
        version = self._reader.one("PRAGMA data_version")
        if version == self._version:
            return
        self._version = version
        now_seen = self._signatures(topics)
        changed = [topic for topic in topics if now_seen.get(topic) != self._seen.get(topic, self)]
        self._seen = now_seen
        self._board.post_all(changed)
        if WORK in topics and self._has_due():
            self._board.post(WORK)

    def _signatures(self, topics: Iterable[str]) -> dict[str, object]:
        kinds: dict[str, list[str]] = {"job": [], "inbox": []}
        found: dict[str, object] = {WORK: None}
        for topic in topics:
            kind, _, name = topic.partition(":")
            if topic == AGENTS:
                found[topic] = self._reader.one(_REVISION)
            elif kind in kinds:
                kinds[kind].append(name)
        for kind, sql in (("job", _VERSIONS), ("inbox", _ENTRIES)):
            if kinds[kind]:
                names = msgspec.json.encode(kinds[kind]).decode()
                found |= {f"{kind}:{name}": sign for name, sign in self._reader.all(sql, (names,))}
        return found
