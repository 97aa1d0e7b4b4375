"""Messages, inboxes and topics over PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.job import NewJob
from a2a_fabric.core.message import Delivery, InboxStatus, Message, NewMessage, Posted, Subscription, size_of_parts
from a2a_fabric.core.stores import INBOX_BYTES, PAGE_BYTES
from a2a_fabric.stores.cursors import NEWEST
from a2a_fabric.stores.postgres import message_writes
from a2a_fabric.stores.postgres.arrays import columns_of
from a2a_fabric.stores.postgres.connections import Connections
from a2a_fabric.stores.postgres.groups import Group
from a2a_fabric.stores.postgres.job_writes import Acceptance
from a2a_fabric.stores.postgres.message_writes import Posting, decode
from a2a_fabric.stores.postgres.transaction import Row, Transaction

_BY_ID = "SELECT message FROM a2a_fabric.messages WHERE message_id = $1"
_BY_KEY = "SELECT message FROM a2a_fabric.messages WHERE owner = $1 AND key = $2"
_CONVERSATION = """
SELECT message FROM (
    SELECT number, message, row_number() OVER ordered AS place, sum(octet_length(message)) OVER ordered AS bytes
    FROM (
        SELECT number, message FROM a2a_fabric.messages
        WHERE conversation_id = $1 AND number > $2 ORDER BY number LIMIT $3
    ) AS rows
    WINDOW ordered AS (ORDER BY number)
) AS page WHERE bytes <= $4 OR place = 1 ORDER BY number
"""
_OLD = """
WITH old AS MATERIALIZED (
    SELECT seq FROM a2a_fabric.messages WHERE sent_at < $1 ORDER BY sent_at LIMIT $2 FOR UPDATE SKIP LOCKED
), entries AS (
    DELETE FROM a2a_fabric.inbox_entries WHERE message IN (SELECT seq FROM old)
)
DELETE FROM a2a_fabric.messages WHERE seq IN (SELECT seq FROM old) RETURNING 1
"""
_RECEIVE = """
WITH next AS MATERIALIZED (
    SELECT entry, message, priority FROM a2a_fabric.inbox_entries
    WHERE inbox = $1 AND visible_at <= $2 AND (expires_at IS NULL OR expires_at > $2)
    ORDER BY priority DESC, entry LIMIT $3 FOR UPDATE SKIP LOCKED
), sized AS (
    SELECT next.entry, row_number() OVER ordered AS place, sum(octet_length(messages.message)) OVER ordered AS bytes
    FROM next JOIN a2a_fabric.messages AS messages ON messages.seq = next.message
    WINDOW ordered AS (ORDER BY next.priority DESC, next.entry)
)
UPDATE a2a_fabric.inbox_entries AS entries SET attempt = entries.attempt + 1, visible_at = $4
FROM sized, a2a_fabric.messages AS messages
WHERE entries.entry = sized.entry AND (sized.bytes <= $5 OR sized.place = 1) AND messages.seq = entries.message
RETURNING entries.entry, entries.attempt, entries.priority, messages.message
"""
_WAITING = """
SELECT 1 FROM a2a_fabric.inbox_entries
WHERE inbox = $1 AND visible_at <= extract(epoch FROM clock_timestamp())::float8
AND (expires_at IS NULL OR expires_at > extract(epoch FROM clock_timestamp())::float8) LIMIT 1
"""
_ACKNOWLEDGE = "DELETE FROM a2a_fabric.inbox_entries WHERE inbox = $1 AND entry = ANY($2::int8[]) RETURNING entry"
_STATUS = """
SELECT count(*) FILTER (WHERE visible_at <= clock.now AND (expires_at IS NULL OR expires_at > clock.now)),
       count(*) FILTER (WHERE visible_at > clock.now)
FROM a2a_fabric.inbox_entries, (SELECT extract(epoch FROM clock_timestamp())::float8 AS now) AS clock
WHERE inbox = $1
"""
_EXPIRE = """
WITH over AS MATERIALIZED (
    SELECT entry FROM a2a_fabric.inbox_entries
    WHERE expires_at IS NOT NULL AND expires_at <= $1 AND visible_at <= $1
    ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
DELETE FROM a2a_fabric.inbox_entries WHERE entry IN (SELECT entry FROM over) RETURNING 1
"""
_SUBSCRIBE = """
INSERT INTO a2a_fabric.subscriptions (topic, inbox) SELECT * FROM unnest($1::text[], $2::text[])
ON CONFLICT DO NOTHING RETURNING 1
"""
_UNSUBSCRIBE = "DELETE FROM a2a_fabric.subscriptions WHERE topic = $1 AND inbox = $2 RETURNING 1"
_SUBSCRIBERS = "SELECT inbox FROM a2a_fabric.subscriptions WHERE topic = $1 ORDER BY inbox"
_COUNT_TOPICS = """
SELECT count(*) FROM (SELECT 1 FROM a2a_fabric.subscriptions WHERE inbox = $1 LIMIT $2) AS found
"""
_TOPICS = """
SELECT topic, count(*) FROM a2a_fabric.subscriptions WHERE topic > $1 GROUP BY topic ORDER BY topic LIMIT $2
"""


class PostgresMessages:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._postings: Group[Posting, Posted] = Group(connections.place, self._post)

    async def append(self, new: NewMessage, job: NewJob | None = None) -> Posted:
        accept = None if job is None else Acceptance(job)
        size = size_of_parts(new.parts) + (0 if accept is None else accept.size)
        return await self._postings.add(Posting(new, accept=accept), size)

    async def publish(self, topic: str, new: NewMessage, *, most: int | None = None) -> Posted:
        return await self._postings.add(Posting(new, topic, most=most), size_of_parts(new.parts))

    async def get(self, message_id: str) -> Message | None:
        return _message(await self._connections.read_one(_BY_ID, message_id))

    async def find(self, owner: str, key: str) -> Message | None:
        return _message(await self._connections.read_one(_BY_KEY, owner, key))

    async def conversation(
        self, conversation_id: str, *, after: int = 0, limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> Sequence[Message]:
        after = min(max(0, after), NEWEST)
        rows = await self._connections.read(_CONVERSATION, conversation_id, after, limit, max_bytes)
        return [decode(row[0]) for row in rows]

    async def prune(self, before: float, limit: int = 1000) -> int:
        return len(await self._connections.write(lambda tx: tx.change(_OLD, before, limit)))

    async def receive(
        self, inbox: str, *, limit: int = 10, hold: float = 30.0, max_bytes: int = INBOX_BYTES
    ) -> Sequence[Delivery]:
        if not await self._connections.read(_WAITING, inbox):
            return []

        async def work(tx: Transaction) -> list[Row]:
            return await tx.change(_RECEIVE, inbox, tx.now, limit, tx.now + hold, max_bytes)

        rows = await self._connections.write(work)
        return [
            Delivery(entry=row[0], attempt=row[1], message=decode(row[3]))
            for row in sorted(rows, key=lambda row: (-row[2], row[0]))
        ]

    async def acknowledge(self, inbox: str, entries: Sequence[int]) -> Sequence[int]:
        possible = [entry for entry in entries if 0 < entry < NEWEST]
        rows = await self._connections.write(lambda tx: tx.change(_ACKNOWLEDGE, inbox, possible))
        gone = {row[0] for row in rows}
        return [entry for entry in dict.fromkeys(entries) if entry in gone]

    async def status(self, inbox: str) -> InboxStatus:
        row = await self._connections.read_one(_STATUS, inbox)
        return InboxStatus(inbox=inbox, waiting=row[0] if row else 0, held=row[1] if row else 0)

    async def expire(self, limit: int = 1000) -> int:
        return len(await self._connections.write(lambda tx: tx.change(_EXPIRE, tx.now, limit)))

    async def subscribe(self, topic: str, inbox: str) -> bool:
        subscription = Subscription(topic=topic, inbox=inbox)
        return await self._connections.write(lambda tx: subscribe(tx, [subscription])) > 0

    async def unsubscribe(self, topic: str, inbox: str) -> bool:
        return bool(await self._connections.write(lambda tx: tx.change(_UNSUBSCRIBE, topic, inbox)))

    async def subscribers(self, topic: str) -> Sequence[str]:
        return [row[0] for row in await self._connections.read(_SUBSCRIBERS, topic)]

    async def count_topics(self, inbox: str, most: int) -> int:
        [row] = await self._connections.read(_COUNT_TOPICS, inbox, most)
        return int(row[0])

    async def topics(self, *, after: str = "", limit: int = 1000) -> Sequence[tuple[str, int]]:
        return [(row[0], row[1]) for row in await self._connections.read(_TOPICS, after, limit)]

    async def aclose(self) -> None:
        await self._postings.aclose()

    async def _post(self, postings: Sequence[Posting]) -> Sequence[Posted | FabricError]:
        return await self._connections.write(lambda tx: message_writes.post(tx, postings))


async def subscribe(tx: Transaction, subscriptions: Sequence[Subscription]) -> int:
    """How many were new."""
    rows = [(each.topic, each.inbox) for each in subscriptions]
    return len(await tx.change(_SUBSCRIBE, *columns_of(rows, 2)))


def _message(row: Any) -> Message | None:
    return None if row is None else decode(row[0])
