"""Changes between nodes: sent and received with NOTIFY, and polled each second for what NOTIFY misses.

A NOTIFY inside a transaction would make all commits of the database wait for one
another's flush to the disk. So topics are sent right after the commit, many at a
time, in a transaction that waits for no flush; the poll makes up for a lost one.
Listening needs a connection of its own, straight to the server. Without one (behind
a pooler, or while it reconnects), the poll runs alone and more often."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import msgspec

from a2a_fabric.core.errors import STORE_AWAY, FabricError
from a2a_fabric.core.keys import KEYS_TOPIC
from a2a_fabric.core.propagation import new_id
from a2a_fabric.core.stores import AGENTS_TOPIC, WORK_TOPIC, inbox_topic, job_topic
from a2a_fabric.core.tasks import TopicSignals
from a2a_fabric.stores.changes import ChangedTopics, LogThrottle, ids_from_topics
from a2a_fabric.stores.postgres.connections import PostgresConnections, connect
from a2a_fabric.stores.postgres.transactions import HUNG_FACTOR, TERMINATE_HUNG

CHANNEL = "a2a_fabric"
ALL_TOPICS = "*"
SENDER_ID = new_id()  # first in each payload, so that a node skips its own: it has woken its waiters already

_MAX_PAYLOAD = 7500  # bytes; the server takes up to 8000
_MAX_TOPICS = 5000  # that may wait to be sent; beyond it, ALL_TOPICS is sent instead
# Commands that are sent together are one transaction, and one round trip. Hexadecimal digits need no quoting.
_NO_FLUSH = "SET LOCAL synchronous_commit = off"
_NOTIFY = f"SELECT pg_notify('{CHANNEL}', convert_from(decode('%s', 'hex'), 'UTF8'))"


class NotifySender:
    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections
        self._topics: set[str] = set()
        self._has_topics = asyncio.Event()

    def add(self, topics: Iterable[str]) -> None:
        self._topics.update(topics)
        if len(self._topics) > _MAX_TOPICS:
            self._topics = {ALL_TOPICS}
        if self._topics:
            self._has_topics.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._has_topics.wait()
            await self.send_pending()

    async def send_pending(self) -> None:
        self._has_topics.clear()
        commands, self._topics = [_NOTIFY % payload.hex() for payload in encode_payloads(self._topics)], set()
        if not commands:
            return
        with suppress(FabricError):  # the polls of the other nodes will notice the changes
            await self._connections.execute("; ".join((_NO_FLUSH, *commands)))


def encode_payloads(topics: Iterable[str]) -> Iterator[bytes]:
    """The topics in as few payloads of bounded size as possible."""
    payload, size = [SENDER_ID], 0
    for topic in topics:
        length = len(msgspec.json.encode(topic)) + 1
        if length > _MAX_PAYLOAD:
            topic, length = ALL_TOPICS, 4
        if size + length > _MAX_PAYLOAD:
            yield msgspec.json.encode(payload)
            payload, size = [SENDER_ID], 0
        payload.append(topic)
        size += length
    if len(payload) > 1:
        yield msgspec.json.encode(payload)


_POLL_INTERVAL, _POLL_INTERVAL_ALONE = 1.0, 0.4
_PROBE_INTERVAL = 15.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

_VERSIONS = "SELECT job_id, version FROM a2a_fabric.jobs WHERE job_id = ANY($1::text[])"
_REVISION = "SELECT max(revision) FROM a2a_fabric.agents"
_KEYS_REVISION = "SELECT max(revision) FROM a2a_fabric.keys"
_NOW = "extract(epoch FROM clock_timestamp())::float8"
_NONEMPTY_INBOXES = f"""
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

_LISTEN_FAILED = "listening for changes in %s failed (%s); polling until the connection is back"

log = logging.getLogger("a2a_fabric.stores.postgres.store")


class NotifyListener:
    """Listens on a connection of its own, and reconnects whenever it breaks."""

    def __init__(self, connections: PostgresConnections, address: str, signals: TopicSignals) -> None:
        self._settings = connections.settings
        self._address = address
        self._signals = signals
        self.is_listening = False

    async def listen(self) -> None:
        """Runs until cancelled."""
        pause = _FIRST_PAUSE
        while True:
            try:
                connection = await connect(self._settings, self._address)
                try:
                    await connection.add_listener(CHANNEL, self._on_notify)
                    pause = _FIRST_PAUSE
                    await self._wait_until_broken(connection)
                finally:
                    connection.terminate()
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
                log.info(_LISTEN_FAILED, self._settings.safe_address, exc, extra=STORE_AWAY)
            except asyncpg.InternalClientError as exc:
                log.warning(_LISTEN_FAILED, self._settings.safe_address, exc, extra=STORE_AWAY)
            finally:
                self.is_listening = False
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _wait_until_broken(self, connection: Any) -> None:
        broken = asyncio.Event()
        connection.add_termination_listener(lambda _: broken.set())
        self.is_listening = True
        self._signals.post_all()  # changes may have been missed while nothing listened
        while not broken.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_PROBE_INTERVAL):
                    await broken.wait()
                    return
            await connection.execute("SELECT 1", timeout=5.0)  # a dead connection looks like a quiet one

    def _on_notify(self, connection: Any, pid: int, channel: str, payload: str) -> None:
        try:
            sender, *topics = msgspec.json.decode(payload, type=list[str])
        except (msgspec.DecodeError, ValueError):
            self._signals.post_all()  # not a payload of this program; a needless wake-up does no harm
            return
        if sender != SENDER_ID:
            self._signals.post_all(None if ALL_TOPICS in topics else topics)


class PostgresChangePoller:
    """Posts changes whose NOTIFY was lost or never sent."""

    def __init__(
        self, connections: PostgresConnections, signals: TopicSignals, listener: NotifyListener | None
    ) -> None:
        self._connections = connections
        self._signals = signals
        self._listener = listener
        self._changed_topics = ChangedTopics(signals)
        self._terminated_at = 0.0
        self._log_throttle = LogThrottle(log)

    async def run(self) -> None:
        """Runs until cancelled. While the server is away it tries again."""
        while True:
            is_listening = self._listener is not None and self._listener.is_listening
            await asyncio.sleep(_POLL_INTERVAL if is_listening else _POLL_INTERVAL_ALONE)
            try:
                await self.poll()
                await self._terminate_hung(asyncio.get_running_loop().time())
            except FabricError as exc:
                self._log_throttle.warn(exc.message)

    async def poll(self) -> None:
        topics = self._signals.watched_topics
        if not topics:
            return
        self._changed_topics.update(await self._read_signatures(topics))
        if inboxes := ids_from_topics(topics, inbox_topic("")):
            rows = await self._connections.read(_NONEMPTY_INBOXES, inboxes)
            self._signals.post_all(inbox_topic(row[0]) for row in rows)
        if WORK_TOPIC in topics and await self._connections.read(_DUE):
            self._signals.post(WORK_TOPIC)

    async def _terminate_hung(self, now: float) -> None:
        """From time to time, end transactions of nodes that no longer read the server's answers."""
        longest = self._connections.settings.statement_timeout * HUNG_FACTOR
        if now - self._terminated_at < longest / 2:
            return
        self._terminated_at = now
        row = await self._connections.read_one(TERMINATE_HUNG, longest)
        if row and row[0]:
            log.warning("ended %d hung transactions of a node that stopped reading", row[0])

    async def _read_signatures(self, topics: Iterable[str]) -> dict[str, object]:
        """The versions of the watched jobs, and the revisions of registrations and keys."""
        ids = ids_from_topics(topics, job_topic(""))
        signatures: dict[str, object] = dict.fromkeys(map(job_topic, ids))
        if ids:
            signatures |= {job_topic(row[0]): row[1] for row in await self._connections.read(_VERSIONS, ids)}
        if AGENTS_TOPIC in topics:
            signatures[AGENTS_TOPIC] = tuple(await self._connections.read_one(_REVISION) or ())
        if KEYS_TOPIC in topics:
            signatures[KEYS_TOPIC] = tuple(await self._connections.read_one(_KEYS_REVISION) or ())
        return signatures
