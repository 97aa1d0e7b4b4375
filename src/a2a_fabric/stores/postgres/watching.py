"""What other nodes changed: told by the server's notices, and by a look each second for what they miss.

Notices need a connection of their own, straight to the server. There may be none
(behind a pooler, or while it is being made anew); then the look serves alone,
more often.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import asyncpg
import msgspec

from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.stores import AGENTS, WORK, inbox_topic, job_topic
from a2a_fabric.stores.notices import NoticeBoard
from a2a_fabric.stores.postgres.connections import Connections, connect
from a2a_fabric.stores.postgres.crying import CHANNEL, EVERYTHING, OURS
from a2a_fabric.stores.postgres.stalled import END_UNHEARD, UNHEARD
from a2a_fabric.stores.seldom import Seldom

_EVERY, _EVERY_ALONE = 1.0, 0.4
_PROBE_EVERY = 15.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

_VERSIONS = "SELECT job_id, version FROM a2a_fabric.jobs WHERE job_id = ANY($1::text[])"
_REVISION = "SELECT max(revision) FROM a2a_fabric.agents"
_NOW = "extract(epoch FROM clock_timestamp())::float8"
_FILLED = f"""
SELECT name FROM unnest($1::text[]) AS name WHERE EXISTS (
    SELECT 1 FROM a2a_fabric.inbox_entries WHERE inbox = name AND visible_at <= {_NOW}
    AND (expires_at IS NULL OR expires_at > {_NOW})
)
"""  # noqa: S608
_DUE = f"""
SELECT 1 FROM unnest('{{4,3,2,1}}'::int4[]) AS level (priority) CROSS JOIN LATERAL (
    SELECT 1 FROM a2a_fabric.jobs WHERE state = 'queued' AND jobs.priority = level.priority AND run_at <= {_NOW}
    ORDER BY run_at, seq LIMIT 1
) AS due LIMIT 1
"""  # noqa: S608

_JOB, _INBOX = job_topic(""), inbox_topic("")

log = logging.getLogger("a2a_fabric.stores.postgres")


class Ear:
    """Listens on a connection of its own, which is made anew whenever it breaks."""

    def __init__(self, connections: Connections, address: str, board: NoticeBoard) -> None:
        self._settings = connections.settings
        self._address = address
        self._board = board
        self.is_listening = False

    async def listen(self) -> None:
        """Until cancelled."""
        pause = _FIRST_PAUSE
        while True:
            try:
                connection = await connect(self._settings, self._address)
                try:
                    await connection.add_listener(CHANNEL, self._hear)
                    pause = _FIRST_PAUSE
                    await self._until_it_breaks(connection)
                finally:
                    connection.terminate()
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
                log.info("not listening to %s for now (%s)", self._settings.place, exc)
            except asyncpg.InternalClientError as exc:
                log.warning("not listening to %s for now (%s)", self._settings.place, exc)
            finally:
                self.is_listening = False
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _until_it_breaks(self, connection: Any) -> None:
        broken = asyncio.Event()
        connection.add_termination_listener(lambda _: broken.set())
        self.is_listening = True
        self._board.post_all()  # whatever was said meanwhile
        while not broken.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_PROBE_EVERY):
                    await broken.wait()
                    return
            await connection.execute("SELECT 1", timeout=5.0)  # a line that fell silent looks like one without news

    def _hear(self, connection: Any, pid: int, channel: str, payload: str) -> None:
        try:
            whose, *topics = msgspec.json.decode(payload, type=list[str])
        except (msgspec.DecodeError, ValueError):
            self._board.post_all()  # not ours; better ring once too often
            return
        if whose != OURS:
            self._board.post_all(None if EVERYTHING in topics else topics)


class Lookout:
    """Rings the board's bells for changes that nobody told of."""

    def __init__(self, connections: Connections, board: NoticeBoard, ear: Ear | None) -> None:
        self._connections = connections
        self._board = board
        self._ear = ear
        self._seen: dict[str, object] = {}
        self._ended_at = 0.0
        self._troubles = Seldom(log)

    async def watch(self) -> None:
        """Until cancelled. A server that is away is looked for again later."""
        while True:
            await asyncio.sleep(_EVERY if self._ear is not None and self._ear.is_listening else _EVERY_ALONE)
            try:
                await self.look()
                await self._end_unheard(asyncio.get_running_loop().time())
            except FabricError as exc:
                self._troubles.warn(exc.message)

    async def look(self) -> None:
        topics = self._board.watched
        if not topics:
            return
        seen = await self._signatures(topics)
        self._board.post_all(topic for topic, sign in seen.items() if sign != self._seen.get(topic, self))
        self._seen = seen
        inboxes = _names(topics, _INBOX)
        if inboxes:
            self._board.post_all(inbox_topic(row[0]) for row in await self._connections.read(_FILLED, inboxes))
        if WORK in topics and await self._connections.read(_DUE):
            self._board.post(WORK)

    async def _end_unheard(self, now: float) -> None:
        """Now and then: transactions of other nodes whose answers nobody reads any more."""
        longest = self._connections.settings.statement_timeout * UNHEARD
        if now - self._ended_at < longest / 2:
            return
        self._ended_at = now
        found = await self._connections.read_one(END_UNHEARD, longest)
        if found and found[0]:
            log.warning("ended %d transactions of a node that fell asleep", found[0])

    async def _signatures(self, topics: Iterable[str]) -> dict[str, object]:
        """What changes when a watched job or the registrations do."""
        ids = _names(topics, _JOB)
        found: dict[str, object] = dict.fromkeys(map(job_topic, ids))
        if ids:
            found |= {job_topic(row[0]): row[1] for row in await self._connections.read(_VERSIONS, ids)}
        if AGENTS in topics:
            found[AGENTS] = tuple(await self._connections.read_one(_REVISION) or ())
        return found


def _names(topics: Iterable[str], prefix: str) -> list[str]:
    return [topic[len(prefix) :] for topic in topics if topic.startswith(prefix)]
