"""Messages, inboxes and topics over SQLite."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.job import NewJob
from a2a_fabric.core.message import (
    Delivery,
    InboxEntry,
    InboxStatus,
    Message,
    NewMessage,
    Numbering,
    PostResult,
    TopicSubscription,
    match_existing_message,
    require_new_job,
)
from a2a_fabric.core.stores import INBOX_BYTES, PAGE_BYTES, WORK_TOPIC, inbox_topic
from a2a_fabric.stores.rows import (
    MAX_SEQ,
    build_duplicate_message,
    decode_message,
    encode,
    message_from_optional_row,
    number_message,
    take_fitting,
    to_entry_values,
    to_message_values,
)
from a2a_fabric.stores.sqlite.database import BatchedWork, SqliteReader, SqliteTransaction, Writer
from a2a_fabric.stores.sqlite.jobs import AcceptJob, insert_jobs

_BY_ID = "SELECT message FROM messages WHERE message_id = ?"
_BY_KEY = "SELECT message FROM messages WHERE owner = ? AND key = ?"
_CONVERSATION = "SELECT message FROM messages WHERE conversation_id = ? AND number > ? ORDER BY number LIMIT ?"
_NEXT_NUMBER = """
INSERT INTO conversations (conversation_id, last) VALUES (?, 1)
ON CONFLICT (conversation_id) DO UPDATE SET last = last + 1 RETURNING last
"""
_LAST_NUMBERS = """
SELECT conversation_id, last FROM json_each(?) JOIN conversations ON conversation_id = json_each.value
"""
_RAISE_NUMBER = """
INSERT INTO conversations (conversation_id, last) VALUES (?, ?)
ON CONFLICT (conversation_id) DO UPDATE SET last = excluded.last WHERE last < excluded.last
"""
_INSERT_MESSAGE = """
INSERT INTO messages (message_id, conversation_id, number, owner, key, sent_at, message) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
"""
_INSERT_WITHOUT_KEY = """
INSERT INTO messages (message_id, conversation_id, number, owner, sent_at, message) VALUES (?, ?, ?, ?, ?, ?)
"""
_PUT_ENTRY = """
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
    WHERE expires_at IS NOT NULL AND expires_at <= :now AND visible_at <= :now
    ORDER BY expires_at, entry LIMIT :limit
)
"""
_COUNT_ENTRIES = "SELECT count(*) FROM (SELECT 1 FROM inbox_entries WHERE inbox = ? LIMIT ?)"
_SUBSCRIBERS = "SELECT inbox FROM subscriptions WHERE topic = ? ORDER BY inbox"
_TOPICS = "SELECT topic, count(*) FROM subscriptions WHERE topic > ? GROUP BY topic ORDER BY topic LIMIT ?"
_COUNT_TOPICS = "SELECT count(*) FROM (SELECT 1 FROM subscriptions WHERE inbox = ? LIMIT ?)"
_OLD_MESSAGES = "SELECT seq FROM messages WHERE sent_at < ? ORDER BY sent_at LIMIT ?"


class SqliteMessages:
    def __init__(self, writer: Writer, reader: SqliteReader, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock

    async def append(self, new: NewMessage, job: NewJob | None = None) -> PostResult:
        if job is None:
            return await self._writer.run(lambda tx: _append_message(tx, new, None))
        return await self._writer.run_announced(WORK_TOPIC, AppendWithJob(new, AcceptJob(job, is_announced=True)))

    async def publish(self, topic: str, new: NewMessage, *, most: int | None = None) -> PostResult:
        return await self._writer.run(lambda tx: _append_message(tx, new, topic, limit=most))

    async def get(self, message_id: str) -> Message | None:
        return message_from_optional_row(self._reader.fetch_one(_BY_ID, (message_id,)))

    async def find(self, owner: str, key: str) -> Message | None:
        return message_from_optional_row(self._reader.fetch_one(_BY_KEY, (owner, key)))

    async def read_conversation(
        self, conversation_id: str, *, after: int = 0, limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> Sequence[Message]:
        after = min(max(0, after), MAX_SEQ)
        with self._reader.iterate_rows(_CONVERSATION, (conversation_id, after, limit)) as rows:
            return [decode_message(row[-1]) for row in take_fitting(rows, max_bytes)]

    async def prune(self, before: float, limit: int = 1000) -> int:
        def work(tx: SqliteTransaction) -> int:
            old = tx.execute(_OLD_MESSAGES, (before, limit)).fetchall()
            tx.executemany("DELETE FROM inbox_entries WHERE message = ?", old)
            tx.executemany("DELETE FROM messages WHERE seq = ?", old)
            return len(old)

        return await self._writer.run(work)

    async def receive(
        self, inbox: str, *, limit: int = 10, hold: float = 30.0, max_bytes: int = INBOX_BYTES
    ) -> Sequence[Delivery]:
        if not self._reader.fetch_one(_WAITING, {"inbox": inbox, "now": self._clock(), "limit": 1}):
            return []

        def work(tx: SqliteTransaction) -> list[Delivery]:
            waiting = tx.execute(_WAITING, {"inbox": inbox, "now": tx.now, "limit": limit})
            rows = list(take_fitting(waiting, max_bytes))
            tx.executemany(_HOLD, [(tx.now + hold, entry) for entry, _, _ in rows])
            return [
                Delivery(entry=entry, attempt=attempt + 1, message=decode_message(message))
                for entry, attempt, message in rows
            ]

        return await self._writer.run(work)

    async def acknowledge(self, inbox: str, entries: Sequence[int]) -> Sequence[int]:
        possible = [entry for entry in entries if 0 < entry < MAX_SEQ]
        return await self._writer.run(
            lambda tx: [entry for entry in possible if tx.execute(_ACKNOWLEDGE, (inbox, entry)).rowcount]
        )

    async def status(self, inbox: str) -> InboxStatus:
        waiting, held_count = self._reader.fetch_one(_STATUS, {"inbox": inbox, "now": self._clock()}) or (0, 0)
        return InboxStatus(inbox=inbox, waiting=waiting, held=held_count)

    async def expire(self, limit: int = 1000) -> int:
        return await self._writer.run(lambda tx: tx.execute(_EXPIRE, {"now": tx.now, "limit": limit}).rowcount)

    async def subscribe(self, topic: str, inbox: str) -> bool:
        return await self._writer.run(lambda tx: insert_subscription(tx, TopicSubscription(topic=topic, inbox=inbox)))

    async def unsubscribe(self, topic: str, inbox: str) -> bool:
        sql = "DELETE FROM subscriptions WHERE topic = ? AND inbox = ?"
        return await self._writer.run(lambda tx: tx.execute(sql, (topic, inbox)).rowcount > 0)

    async def list_subscribers(self, topic: str) -> Sequence[str]:
        return [inbox for (inbox,) in self._reader.fetch_all(_SUBSCRIBERS, (topic,))]

    async def count_topics(self, inbox: str, most: int) -> int:
        [(count,)] = self._reader.fetch_all(_COUNT_TOPICS, (inbox, most))
        return int(count)

    async def list_topics(self, *, after: str = "", limit: int = 1000) -> Sequence[tuple[str, int]]:
        return [(topic, count) for topic, count in self._reader.fetch_all(_TOPICS, (after, limit))]


class AppendWithJob(BatchedWork):
    """A message and the job that delivers it.

    Messages without a key have random ids, and so have their jobs: they are new and are written together.
    """

    __slots__ = ("accept_job", "new")

    def __init__(self, new: NewMessage, accept_job: AcceptJob) -> None:
        self.new = new
        self.accept_job = accept_job

    def __call__(self, tx: SqliteTransaction) -> PostResult:
        return _append_message(tx, self.new, None, self.accept_job)

    @staticmethod
    def run_batch(tx: SqliteTransaction, batch: Sequence[AppendWithJob]) -> Sequence[PostResult | FabricError]:
        random = [each for each in batch if each._has_random_id]
        jobs = insert_jobs(tx, [each.accept_job for each in random])
        numbers = _take_numbers(tx, [each.new.conversation_id for each in random])
        messages = [
            number_message(each.new, number, tx.now, None) for each, number in zip(random, numbers, strict=True)
        ]
        tx.executemany(_INSERT_WITHOUT_KEY, map(_to_values_without_key, messages))
        posted = {
            id(each): PostResult(message, True, 0, job)
            for each, message, (_, job) in zip(random, messages, jobs, strict=True)
        }
        return [posted.get(id(each)) or each._run_alone(tx) for each in batch]

    @property
    def _has_random_id(self) -> bool:
        return self.new.key is None and not self.new.inboxes

    def _run_alone(self, tx: SqliteTransaction) -> PostResult | FabricError:
        before = tx.connection.total_changes
        try:
            return self(tx)
        except FabricError as exc:
            if tx.connection.total_changes != before:
                raise  # the group is run again, each unit alone
            return exc


def _take_number(tx: SqliteTransaction, new: NewMessage) -> int:
    """The next number of the conversation."""
    return int(tx.execute(_NEXT_NUMBER, (new.conversation_id,)).fetchall()[0][0])


def _take_numbers(tx: SqliteTransaction, conversation_ids: Sequence[str]) -> list[int]:
    """The same for many messages, with two statements; most begin a conversation."""
    last = dict(tx.execute(_LAST_NUMBERS, (encode(list(set(conversation_ids))).decode(),)).fetchall())
    numbers = []
    for conversation_id in conversation_ids:
        number = last[conversation_id] = last.get(conversation_id, 0) + 1
        numbers.append(number)
    tx.executemany(_RAISE_NUMBER, last.items())
    return numbers


def _to_values_without_key(message: Message) -> tuple[str, str, int, str, float, bytearray]:
    """For `_INSERT_WITHOUT_KEY`. Python's sqlite3 looks for an adapter of each None and bytes, which takes longer."""
    encoded = bytearray(encode(message))
    return message.message_id, message.conversation_id, message.number, message.owner, message.sent_at, encoded


def insert_subscription(tx: SqliteTransaction, subscription: TopicSubscription) -> bool:
    sql = "INSERT OR IGNORE INTO subscriptions (topic, inbox) VALUES (?, ?)"
    return tx.execute(sql, (subscription.topic, subscription.inbox)).rowcount > 0


def restore_message(tx: SqliteTransaction, message: Message) -> bool:
    """Write an exported message; False if it exists."""
    if _insert_message(tx, message) is None:
        return False
    restore_numbering(tx, Numbering(conversation_id=message.conversation_id, last=message.number))
    return True


def restore_numbering(tx: SqliteTransaction, numbering: Numbering) -> bool:
    """Raise the last number of a conversation; False if it is that high already."""
    return tx.execute(_RAISE_NUMBER, (numbering.conversation_id, numbering.last)).rowcount > 0


def restore_entry(tx: SqliteTransaction, entry: InboxEntry) -> bool:
    row = tx.execute("SELECT seq, message FROM messages WHERE message_id = ?", (entry.message_id,)).fetchone()
    if row is None:
        return False
    return _put_entry(tx, entry, row[0], decode_message(row[1]))


def _append_message(
    tx: SqliteTransaction,
    new: NewMessage,
    topic: str | None,
    accept_job: AcceptJob | None = None,
    limit: int | None = None,
) -> PostResult:
    if new.key is not None and (existing := tx.execute(_BY_KEY, (new.owner, new.key)).fetchone()):
        return PostResult(match_existing_message(decode_message(existing[0]), new), False)
    if tx.execute(_BY_ID, (new.message_id,)).fetchone():
        raise build_duplicate_message(new)
    job = None if accept_job is None else require_new_job(accept_job(tx))  # may refuse, so it comes before any write
    message = number_message(new, _take_number(tx, new), tx.now, topic)
    seq = _insert_message(tx, message) or 0
    subscribers = [] if topic is None else [inbox for (inbox,) in tx.execute(_SUBSCRIBERS, (topic,)).fetchall()]
    with_capacity = [inbox for inbox in subscribers if limit is None or _has_capacity(tx, inbox, limit)]
    inboxes = dict.fromkeys([*new.inboxes, *with_capacity])
    for inbox in inboxes:
        _put_entry(tx, InboxEntry(inbox=inbox, message_id=new.message_id), seq, message)
    return PostResult(message, True, len(inboxes), job, len(subscribers) - len(with_capacity))


def _has_capacity(tx: SqliteTransaction, inbox: str, limit: int) -> bool:
    (entry_count,) = tx.execute(_COUNT_ENTRIES, (inbox, limit)).fetchone()
    return int(entry_count) < limit


def _insert_message(tx: SqliteTransaction, message: Message) -> int | None:
    """The number of the new row, or None if the id, the key or the number in its conversation is taken."""
    cursor = tx.execute(_INSERT_MESSAGE, to_message_values(message))
    return cursor.lastrowid if cursor.rowcount else None


def _put_entry(tx: SqliteTransaction, entry: InboxEntry, seq: int, message: Message) -> bool:
    tx.topics.add(inbox_topic(entry.inbox))
    return tx.execute(_PUT_ENTRY, to_entry_values(entry, seq, message)).rowcount > 0
