"""Messages, inboxes and topics over PostgreSQL; messages are written a group at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.job import JobSummary, NewJob
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
    measure_parts,
    require_new_job,
)
from a2a_fabric.core.stores import INBOX_BYTES, PAGE_BYTES, inbox_topic
from a2a_fabric.stores.postgres import job_inserts
from a2a_fabric.stores.postgres.connections import PostgresConnections
from a2a_fabric.stores.postgres.errors import RestartTransaction
from a2a_fabric.stores.postgres.job_inserts import JobToAccept
from a2a_fabric.stores.postgres.transactions import (
    GroupCommit,
    PostgresTransaction,
    Row,
    to_columns,
    unnest_parameters,
)
from a2a_fabric.stores.rows import (
    MAX_SEQ,
    build_duplicate_message,
    decode_message,
    message_from_optional_row,
    number_message,
    to_entry_values,
    to_message_values,
)

_FIND_EXISTING = """
SELECT message FROM a2a_fabric.messages WHERE message_id = ANY($1::text[])
UNION ALL
SELECT message FROM unnest($2::text[], $3::text[]) AS wanted (owner, key)
JOIN a2a_fabric.messages AS messages ON messages.owner = wanted.owner AND messages.key = wanted.key
"""
_NEXT_NUMBERS = """
INSERT INTO a2a_fabric.conversations AS known (conversation_id, last)
SELECT * FROM unnest($1::text[], $2::int8[])
ON CONFLICT (conversation_id) DO UPDATE SET last = known.last + excluded.last RETURNING conversation_id, last
"""
_RAISE_NUMBERS = """
INSERT INTO a2a_fabric.conversations AS known (conversation_id, last)
SELECT * FROM unnest($1::text[], $2::int8[])
ON CONFLICT (conversation_id) DO UPDATE SET last = excluded.last WHERE known.last < excluded.last RETURNING 1
"""
_MESSAGE_TYPES = ("text", "text", "int8", "text", "text", "float8", "bytea")
_INSERT_MESSAGES = f"""
INSERT INTO a2a_fabric.messages (message_id, conversation_id, number, owner, key, sent_at, message)
SELECT * FROM unnest({unnest_parameters(_MESSAGE_TYPES)}) ON CONFLICT DO NOTHING RETURNING message_id, seq
"""  # noqa: S608
_ENTRY_TYPES = ("text", "int8", "int4", "float8", "int8", "float8")
_PUT_ENTRIES = f"""
INSERT INTO a2a_fabric.inbox_entries (inbox, message, priority, expires_at, attempt, visible_at)
SELECT * FROM unnest({unnest_parameters(_ENTRY_TYPES)}) ON CONFLICT DO NOTHING RETURNING 1
"""  # noqa: S608
_SUBSCRIBERS_BY_TOPIC = "SELECT topic, inbox FROM a2a_fabric.subscriptions WHERE topic = ANY($1::text[]) ORDER BY inbox"
_COUNT_ENTRIES = """
SELECT wanted.inbox, (
    SELECT count(*) FROM (SELECT 1 FROM a2a_fabric.inbox_entries AS entries WHERE entries.inbox = wanted.inbox LIMIT $2)
    AS counted
) FROM unnest($1::text[]) AS wanted (inbox)
"""
_BY_IDS = "SELECT message_id, seq, message FROM a2a_fabric.messages WHERE message_id = ANY($1::text[])"


class _Recipients(NamedTuple):
    inboxes: list[str]
    full: int  # subscribers that were left out


class MessageToPost(NamedTuple):
    """A message to write, the topic it is published on, and the job that delivers it, if there are such.

    Subscribers whose inbox holds `most` entries are left out.
    """

    new: NewMessage
    topic: str | None = None
    job: JobToAccept | None = None
    most: int | None = None


async def post_messages(tx: PostgresTransaction, postings: Sequence[MessageToPost]) -> list[PostResult | FabricError]:
    existing = await _find_existing(tx, [each.new for each in postings])
    fresh: dict[str, MessageToPost] = {}
    for posting in postings:
        if existing.find(posting.new) is None:
            fresh[posting.new.message_id] = posting
            existing.add(posting.new)
    jobs, refused = await _accept_jobs(tx, fresh)
    messages = await _number_messages(tx, [each for message_id, each in fresh.items() if message_id not in refused])
    recipients = await _deliver(tx, messages, fresh) if messages else {}
    written = {message.message_id: message for message in messages}
    replies: list[PostResult | FabricError] = []
    for posting in postings:
        message_id = posting.new.message_id
        if fresh.get(message_id) is posting:
            if message_id in refused:
                replies.append(refused[message_id])
                continue
            inboxes, full = recipients[message_id]
            replies.append(PostResult(written[message_id], True, len(inboxes), jobs.get(message_id), full))
        else:
            replies.append(_return_existing(posting.new, existing, written, refused))
    return replies


async def _accept_jobs(
    tx: PostgresTransaction, fresh: dict[str, MessageToPost]
) -> tuple[dict[str, JobSummary], dict[str, FabricError]]:  # fmt: skip
    """The jobs that deliver the messages, and the refusals, by message id. A refused message is not written."""
    requests = {message_id: posting.job for message_id, posting in fresh.items() if posting.job is not None}
    results = await job_inserts.accept_jobs(tx, list(requests.values())) if requests else []
    jobs: dict[str, JobSummary] = {}
    refused: dict[str, FabricError] = {}
    for message_id, result in zip(requests, results, strict=True):
        try:
            if isinstance(result, FabricError):
                raise result
            jobs[message_id] = require_new_job(result)
        except FabricError as exc:
            refused[message_id] = exc
    return jobs, refused


class _ExistingMessages:
    """Messages that exist or are about to, by id and by their owners' keys."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._by_id: dict[str, NewMessage] = {}
        self._by_key: dict[tuple[str, str], NewMessage] = {}
        for message in messages:
            self.add(message)

    def add(self, message: NewMessage) -> None:
        self._by_id[message.message_id] = message
        if message.key is not None:
            self._by_key[message.owner, message.key] = message

    def find_by_key(self, new: NewMessage) -> NewMessage | None:
        return self._by_key.get((new.owner, new.key)) if new.key is not None else None

    def find(self, new: NewMessage) -> NewMessage | None:
        return self.find_by_key(new) or self._by_id.get(new.message_id)


async def _find_existing(tx: PostgresTransaction, new_messages: Sequence[NewMessage]) -> _ExistingMessages:
    keys = [(new.owner, new.key) for new in new_messages if new.key is not None]
    rows = await tx.fetch_all(_FIND_EXISTING, [new.message_id for new in new_messages], *to_columns(keys, 2))
    return _ExistingMessages([decode_message(row[0]) for row in rows])


def _return_existing(
    new: NewMessage, existing_messages: _ExistingMessages, written: dict[str, Message], refused: dict[str, FabricError]
) -> PostResult | FabricError:  # fmt: skip
    existing = existing_messages.find_by_key(new)
    if existing is None:
        return build_duplicate_message(new)
    if not isinstance(existing, Message) and existing.message_id in refused:
        return refused[existing.message_id]
    message = existing if isinstance(existing, Message) else written[existing.message_id]
    try:
        return PostResult(match_existing_message(message, new), False)
    except FabricError as exc:
        return exc


async def _number_messages(tx: PostgresTransaction, postings: Sequence[MessageToPost]) -> list[Message]:
    """Messages with the next numbers of their conversations, which stay locked until the commit."""
    if not postings:
        return []
    counts = sorted(Counter(each.new.conversation_id for each in postings).items())  # all nodes lock in this order
    rows = await tx.write(_NEXT_NUMBERS, *to_columns(counts, 2))
    numbers = {row[0]: row[1] - dict(counts)[row[0]] for row in rows}
    messages = []
    for new, topic, _, _ in postings:
        numbers[new.conversation_id] += 1
        messages.append(number_message(new, numbers[new.conversation_id], tx.now, topic))
    return messages


async def _deliver(
    tx: PostgresTransaction, messages: Sequence[Message], postings: Mapping[str, MessageToPost]
) -> dict[str, _Recipients]:  # fmt: skip
    """Write the messages and put them into inboxes; returns which ones, by message id."""
    seqs = await insert_messages(tx, messages)
    if len(seqs) != len(messages):
        raise RestartTransaction("another node wrote a message with the same key at the same time")
    recipients = await _choose_inboxes(tx, messages, postings)
    rows = [
        to_entry_values(InboxEntry(inbox=inbox, message_id=message.message_id), seqs[message.message_id], message)
        for message in messages
        for inbox in recipients[message.message_id].inboxes
    ]
    if rows:
        await tx.write(_PUT_ENTRIES, *to_columns(rows, len(_ENTRY_TYPES)))
        tx.topics.update(inbox_topic(row[0]) for row in rows)
    return recipients


async def _choose_inboxes(
    tx: PostgresTransaction, messages: Sequence[Message], postings: Mapping[str, MessageToPost]
) -> dict[str, _Recipients]:  # fmt: skip
    topics = list({message.topic for message in messages if message.topic is not None})
    subscribers: dict[str, list[str]] = {}
    for row in await tx.fetch_all(_SUBSCRIBERS_BY_TOPIC, topics) if topics else ():
        subscribers.setdefault(row[0], []).append(row[1])
    entry_counts = await _count_entries(tx, subscribers, max((each.most or 0 for each in postings.values()), default=0))
    return {
        each.message_id: _choose_recipients(
            each, subscribers.get(each.topic or "", ()), entry_counts, postings[each.message_id].most
        )
        for each in messages
    }


async def _count_entries(tx: PostgresTransaction, subscribers: Mapping[str, Sequence[str]], limit: int) -> Counter[str]:
    """How many entries the inbox of each subscriber holds, counted up to `limit`."""
    inboxes = list({inbox for topic_inboxes in subscribers.values() for inbox in topic_inboxes})
    rows = await tx.fetch_all(_COUNT_ENTRIES, inboxes, limit) if inboxes and limit else ()
    return Counter({row[0]: row[1] for row in rows})


def _choose_recipients(
    message: Message, subscribers: Sequence[str], entry_counts: Counter[str], limit: int | None
) -> _Recipients:
    """The inboxes for one message; its entries count for the later messages of the group."""
    with_capacity = [inbox for inbox in subscribers if limit is None or entry_counts[inbox] < limit]
    inboxes = list(dict.fromkeys([*message.inboxes, *with_capacity]))
    entry_counts.update(inboxes)
    return _Recipients(inboxes, len(subscribers) - len(with_capacity))


async def insert_messages(tx: PostgresTransaction, messages: Sequence[Message]) -> dict[str, int]:
    """The row numbers of the new messages, by message id; existing messages stay as they are."""
    columns = to_columns([to_message_values(each) for each in messages], len(_MESSAGE_TYPES))
    inserted = await tx.write(_INSERT_MESSAGES, *columns)
    return {row[0]: row[1] for row in inserted}


async def restore_messages(tx: PostgresTransaction, messages: Sequence[Message]) -> int:
    """Write exported messages; how many were new."""
    written = await insert_messages(tx, messages)
    highest: dict[str, int] = {}
    for message in messages:
        if message.message_id in written:
            highest[message.conversation_id] = max(message.number, highest.get(message.conversation_id, 0))
    if highest:
        await restore_numberings(tx, [Numbering(conversation_id=name, last=last) for name, last in highest.items()])
    return len(written)


async def restore_numberings(tx: PostgresTransaction, numberings: Sequence[Numbering]) -> int:
    """Raise the last numbers of conversations; how many were lower."""
    rows = sorted({each.conversation_id: each.last for each in numberings}.items())  # all nodes lock in this order
    return len(await tx.write(_RAISE_NUMBERS, *to_columns(rows, 2)))


async def restore_entries(tx: PostgresTransaction, entries: Sequence[InboxEntry]) -> int:
    rows = await tx.fetch_all(_BY_IDS, [each.message_id for each in entries])
    existing = {row[0]: (row[1], decode_message(row[2])) for row in rows}
    values = []
    for each in entries:
        if each.message_id in existing:
            values.append(to_entry_values(each, *existing[each.message_id]))
            tx.topics.add(inbox_topic(each.inbox))
    return len(await tx.write(_PUT_ENTRIES, *to_columns(values, len(_ENTRY_TYPES)))) if values else 0


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
_PRUNE = """
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
_HAS_WAITING = """
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
    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections
        self._post_queue: GroupCommit[MessageToPost, PostResult] = GroupCommit(
            connections.safe_address, self._write_postings
        )

    async def append(self, new: NewMessage, job: NewJob | None = None) -> PostResult:
        job_to_accept = None if job is None else JobToAccept(job)
        size = measure_parts(new.parts) + (0 if job_to_accept is None else job_to_accept.size)
        return await self._post_queue.add(MessageToPost(new, job=job_to_accept), size)

    async def publish(self, topic: str, new: NewMessage, *, most: int | None = None) -> PostResult:
        return await self._post_queue.add(MessageToPost(new, topic, most=most), measure_parts(new.parts))

    async def get(self, message_id: str) -> Message | None:
        return message_from_optional_row(await self._connections.read_one(_BY_ID, message_id))

    async def find(self, owner: str, key: str) -> Message | None:
        return message_from_optional_row(await self._connections.read_one(_BY_KEY, owner, key))

    async def read_conversation(
        self, conversation_id: str, *, after: int = 0, limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> Sequence[Message]:
        after = min(max(0, after), MAX_SEQ)
        rows = await self._connections.read(_CONVERSATION, conversation_id, after, limit, max_bytes)
        return [decode_message(row[0]) for row in rows]

    async def prune(self, before: float, limit: int = 1000) -> int:
        return len(await self._connections.write(lambda tx: tx.write(_PRUNE, before, limit)))

    async def receive(
        self, inbox: str, *, limit: int = 10, hold: float = 30.0, max_bytes: int = INBOX_BYTES
    ) -> Sequence[Delivery]:
        if not await self._connections.read(_HAS_WAITING, inbox):
            return []

        async def work(tx: PostgresTransaction) -> list[Row]:
            return await tx.write(_RECEIVE, inbox, tx.now, limit, tx.now + hold, max_bytes)

        rows = await self._connections.write(work)
        return [
            Delivery(entry=row[0], attempt=row[1], message=decode_message(row[3]))
            for row in sorted(rows, key=lambda row: (-row[2], row[0]))
        ]

    async def acknowledge(self, inbox: str, entries: Sequence[int]) -> Sequence[int]:
        possible = [entry for entry in entries if 0 < entry < MAX_SEQ]
        rows = await self._connections.write(lambda tx: tx.write(_ACKNOWLEDGE, inbox, possible))
        deleted = {row[0] for row in rows}
        return [entry for entry in dict.fromkeys(entries) if entry in deleted]

    async def status(self, inbox: str) -> InboxStatus:
        row = await self._connections.read_one(_STATUS, inbox)
        return InboxStatus(inbox=inbox, waiting=row[0] if row else 0, held=row[1] if row else 0)

    async def expire(self, limit: int = 1000) -> int:
        return len(await self._connections.write(lambda tx: tx.write(_EXPIRE, tx.now, limit)))

    async def subscribe(self, topic: str, inbox: str) -> bool:
        subscription = TopicSubscription(topic=topic, inbox=inbox)
        return await self._connections.write(lambda tx: insert_subscriptions(tx, [subscription])) > 0

    async def unsubscribe(self, topic: str, inbox: str) -> bool:
        return bool(await self._connections.write(lambda tx: tx.write(_UNSUBSCRIBE, topic, inbox)))

    async def list_subscribers(self, topic: str) -> Sequence[str]:
        return [row[0] for row in await self._connections.read(_SUBSCRIBERS, topic)]

    async def count_topics(self, inbox: str, most: int) -> int:
        [row] = await self._connections.read(_COUNT_TOPICS, inbox, most)
        return int(row[0])

    async def list_topics(self, *, after: str = "", limit: int = 1000) -> Sequence[tuple[str, int]]:
        return [(row[0], row[1]) for row in await self._connections.read(_TOPICS, after, limit)]

    async def aclose(self) -> None:
        await self._post_queue.aclose()

    async def _write_postings(self, postings: Sequence[MessageToPost]) -> Sequence[PostResult | FabricError]:
        return await self._connections.write(lambda tx: post_messages(tx, postings))


async def insert_subscriptions(tx: PostgresTransaction, subscriptions: Sequence[TopicSubscription]) -> int:
    """How many were new."""
    rows = [(each.topic, each.inbox) for each in subscriptions]
    return len(await tx.write(_SUBSCRIBE, *to_columns(rows, 2)))
