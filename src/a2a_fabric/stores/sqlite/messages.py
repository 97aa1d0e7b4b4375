"""Messages, inboxes and topics over SQLite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.errors import Conflict
from a2a_fabric.core.job import NewJob
from a2a_fabric.core.message import (
    Delivery,
    InboxEntry,
    InboxStatus,
    Message,
    NewMessage,
    Numbering,
    Posted,
    Subscription,
    brought_by,
    same_again,
)
from a2a_fabric.core.stores import INBOX_BYTES, PAGE_BYTES, WORK, inbox_topic
from a2a_fabric.stores.cursors import NEWEST
from a2a_fabric.stores.sqlite.job_writes import Acceptance
from a2a_fabric.stores.sqlite.reader import Reader, Row
from a2a_fabric.stores.sqlite.writer import Transaction, Writer

_BY_ID = "SELECT message FROM messages WHERE message_id = ?"
_BY_KEY = "SELECT message FROM messages WHERE owner = ? AND key = ?"
_CONVERSATION = "SELECT message FROM messages WHERE conversation_id = ? AND number > ? ORDER BY number LIMIT ?"
_COUNT = """
INSERT INTO conversations (conversation_id, last) VALUES (?, 1)
ON CONFLICT (conversation_id) DO UPDATE SET last = last + 1 RETURNING last
"""
_COUNT_UPTO = """
INSERT INTO conversations (conversation_id, last) VALUES (?, ?)
ON CONFLICT (conversation_id) DO UPDATE SET last = excluded.last WHERE last < excluded.last
"""
_INSERT = """
INSERT INTO messages (message_id, conversation_id, number, owner, key, sent_at, message) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
"""
_PUT = """
INSERT OR IGNORE INTO inbox_entries (inbox, message, priority, expires_at, attempt, visible_at)
VALUES (?, ?, ?, ?, ?, ?)
"""
_WAITING = """
SELECT entry, attempt, messages.message FROM inbox_entries JOIN messages ON messages.seq = inbox_entries.message
WHERE inbox = :inbox AND visible_at <= :now AND (expires_at IS NULL OR expires_at > :now)
ORDER BY priority DESC, entry LIMIT :limit
"""
_HOLD = "UPDATE inbox_entries SET attempt = attempt + 1, visible_at = ? WHERE entry = ?"
_ACKNOWLEDGE = "DELETE FROM inbox_entries WHERE inbox = ? AND entry = ?"
_STATUS = """
SELECT count(*) FILTER (WHERE visible_at <= :now AND (expires_at IS NULL OR expires_at > :now)),
       count(*) FILTER (WHERE visible_at > :now)
FROM inbox_entries WHERE inbox = :inbox
"""
_EXPIRE = """
DELETE FROM inbox_entries WHERE entry IN (
    SELECT entry FROM inbox_entries INDEXED BY inbox_entries_expiry
    WHERE expires_at IS NOT NULL AND expires_at <= :now AND visible_at <= :now LIMIT :limit
)
"""
_HELD = "SELECT count(*) FROM (SELECT 1 FROM inbox_entries WHERE inbox = ? LIMIT ?)"
_SUBSCRIBERS = "SELECT inbox FROM subscriptions WHERE topic = ? ORDER BY inbox"
_TOPICS = "SELECT topic, count(*) FROM subscriptions WHERE topic > ? GROUP BY topic ORDER BY topic LIMIT ?"
_COUNT_TOPICS = "SELECT count(*) FROM (SELECT 1 FROM subscriptions WHERE inbox = ? LIMIT ?)"
_OLD = "SELECT seq FROM messages WHERE sent_at < ? ORDER BY sent_at LIMIT ?"

decode = msgspec.json.Decoder(Message).decode


class SqliteMessages:
    def __init__(self, writer: Writer, reader: Reader, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock

    async def append(self, new: NewMessage, job: NewJob | None = None) -> Posted:
        if job is None:
            return await self._writer.run(lambda tx: _append(tx, new, None))
        accept = Acceptance(job)
        return await self._writer.run_expected(WORK, lambda tx: _append(tx, new, None, accept))

    async def publish(self, topic: str, new: NewMessage, *, most: int | None = None) -> Posted:
        return await self._writer.run(lambda tx: _append(tx, new, topic, most=most))

    async def get(self, message_id: str) -> Message | None:
        return _message(self._reader.one(_BY_ID, (message_id,)))

    async def find(self, owner: str, key: str) -> Message | None:
        return _message(self._reader.one(_BY_KEY, (owner, key)))

    async def conversation(
        self, conversation_id: str, *, after: int = 0, limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> Sequence[Message]:
        after = min(max(0, after), NEWEST)
        with self._reader.rows(_CONVERSATION, (conversation_id, after, limit)) as rows:
            return [decode(row[-1]) for row in _fitting(rows, max_bytes)]

    async def prune(self, before: float, limit: int = 1000) -> int:
        def work(tx: Transaction) -> int:
            old = tx.execute(_OLD, (before, limit)).fetchall()
            tx.executemany("DELETE FROM inbox_entries WHERE message = ?", old)
            tx.executemany("DELETE FROM messages WHERE seq = ?", old)
            return len(old)

        return await self._writer.run(work)

    async def receive(
        self, inbox: str, *, limit: int = 10, hold: float = 30.0, max_bytes: int = INBOX_BYTES
    ) -> Sequence[Delivery]:
        if not self._reader.one(_WAITING, {"inbox": inbox, "now": self._clock(), "limit": 1}):
            return []

        def work(tx: Transaction) -> list[Delivery]:
            waiting = tx.execute(_WAITING, {"inbox": inbox, "now": tx.now, "limit": limit})
            rows = list(_fitting(waiting, max_bytes))
            tx.executemany(_HOLD, [(tx.now + hold, entry) for entry, _, _ in rows])
            return [
                Delivery(entry=entry, attempt=attempt + 1, message=decode(message)) for entry, attempt, message in rows
            ]

        return await self._writer.run(work)

    async def acknowledge(self, inbox: str, entries: Sequence[int]) -> Sequence[int]:
        possible = [entry for entry in entries if 0 < entry < NEWEST]
        return await self._writer.run(
            lambda tx: [entry for entry in possible if tx.execute(_ACKNOWLEDGE, (inbox, entry)).rowcount]
        )

    async def status(self, inbox: str) -> InboxStatus:
        waiting, held = self._reader.one(_STATUS, {"inbox": inbox, "now": self._clock()}) or (0, 0)
        return InboxStatus(inbox=inbox, waiting=waiting, held=held)

    async def expire(self, limit: int = 1000) -> int:
        return await self._writer.run(lambda tx: tx.execute(_EXPIRE, {"now": tx.now, "limit": limit}).rowcount)

    async def subscribe(self, topic: str, inbox: str) -> bool:
        return await self._writer.run(lambda tx: subscribe(tx, Subscription(topic=topic, inbox=inbox)))

    async def unsubscribe(self, topic: str, inbox: str) -> bool:
        sql = "DELETE FROM subscriptions WHERE topic = ? AND inbox = ?"
        return await self._writer.run(lambda tx: tx.execute(sql, (topic, inbox)).rowcount > 0)

    async def subscribers(self, topic: str) -> Sequence[str]:
        return [inbox for (inbox,) in self._reader.all(_SUBSCRIBERS, (topic,))]

    async def count_topics(self, inbox: str, most: int) -> int:
        [(count,)] = self._reader.all(_COUNT_TOPICS, (inbox, most))
        return int(count)

    async def topics(self, *, after: str = "", limit: int = 1000) -> Sequence[tuple[str, int]]:
        return [(topic, count) for topic, count in self._reader.all(_TOPICS, (after, limit))]


def _fitting(rows: Iterable[Row], max_bytes: int) -> Iterator[Row]:
    """As many as go into so many bytes of messages, which stand last, and at least one."""
    room = max_bytes
    for place, row in enumerate(rows):
        room -= len(row[-1])
        if room < 0 and place:
            return
        yield row


def subscribe(tx: Transaction, subscription: Subscription) -> bool:
    sql = "INSERT OR IGNORE INTO subscriptions (topic, inbox) VALUES (?, ?)"
    return tx.execute(sql, (subscription.topic, subscription.inbox)).rowcount > 0


def restore(tx: Transaction, message: Message) -> bool:
    """As it is; False if there is one already."""
    if _insert(tx, message) is None:
        return False
    restore_numbering(tx, Numbering(conversation_id=message.conversation_id, last=message.number))
    return True


def restore_numbering(tx: Transaction, numbering: Numbering) -> bool:
    """False if the conversation is that far already."""
    return tx.execute(_COUNT_UPTO, (numbering.conversation_id, numbering.last)).rowcount > 0


def restore_entry(tx: Transaction, entry: InboxEntry) -> bool:
    row = tx.execute("SELECT seq, message FROM messages WHERE message_id = ?", (entry.message_id,)).fetchone()
    if row is None:
        return False
    return _put(tx, entry, row[0], decode(row[1]))


def _append(
    tx: Transaction,
    new: NewMessage,
    topic: str | None,
    accept: Acceptance | None = None,
    most: int | None = None,
) -> Posted:
    if new.key is not None and (known := tx.execute(_BY_KEY, (new.owner, new.key)).fetchone()):
        return Posted(same_again(decode(known[0]), new), False)
    if tx.execute(_BY_ID, (new.message_id,)).fetchone():
        raise Conflict(f"There is a message '{new.message_id[:64]}' already")
    job = None if accept is None else brought_by(accept(tx))  # it may refuse, so it comes first
    number = tx.execute(_COUNT, (new.conversation_id,)).fetchall()[0][0]
    asked = {name: getattr(new, name) for name in NewMessage.__struct_fields__}
    message = Message(**asked, number=number, sent_at=tx.now, topic=topic)
    seq = _insert(tx, message) or 0
    subscribed = [] if topic is None else [inbox for (inbox,) in tx.execute(_SUBSCRIBERS, (topic,)).fetchall()]
    with_room = subscribed if most is None else [inbox for inbox in subscribed if _has_room(tx, inbox, most)]
    inboxes = dict.fromkeys([*new.inboxes, *with_room])
    for inbox in inboxes:
        _put(tx, InboxEntry(inbox=inbox, message_id=new.message_id), seq, message)
    return Posted(message, True, len(inboxes), job, len(subscribed) - len(with_room))


def _has_room(tx: Transaction, inbox: str, most: int) -> bool:
    (held,) = tx.execute(_HELD, (inbox, most)).fetchone()
    return int(held) < most


def _insert(tx: Transaction, message: Message) -> int | None:
    """The row's number, or None if something of it is there already."""
    values: tuple[Any, ...] = (
        message.message_id, message.conversation_id, message.number, message.owner, message.key, message.sent_at,
        msgspec.json.encode(message),
    )  # fmt: skip
    cursor = tx.execute(_INSERT, values)
    return cursor.lastrowid if cursor.rowcount else None


def _put(tx: Transaction, entry: InboxEntry, seq: int, message: Message) -> bool:
    values = (entry.inbox, seq, message.priority, message.expires_at, entry.attempt, entry.visible_at)
    tx.topics.add(inbox_topic(entry.inbox))
    return tx.execute(_PUT, values).rowcount > 0


def _message(row: Row | None) -> Message | None:
    return None if row is None else decode(row[0])
