"""Writing messages, a group at a time: numbered in their conversations, put into their inboxes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from a2a_fabric.core.errors import Conflict, FabricError
from a2a_fabric.core.job import Accepted, JobSummary
from a2a_fabric.core.message import InboxEntry, Message, NewMessage, Numbering, Posted, brought_by, same_again
from a2a_fabric.core.stores import inbox_topic
from a2a_fabric.stores.postgres import job_accepts
from a2a_fabric.stores.postgres.arrays import arrays, columns_of
from a2a_fabric.stores.postgres.errors import Again
from a2a_fabric.stores.postgres.job_writes import Acceptance
from a2a_fabric.stores.postgres.transaction import Transaction

_KNOWN = """
SELECT message FROM a2a_fabric.messages WHERE message_id = ANY($1::text[])
UNION ALL
SELECT message FROM unnest($2::text[], $3::text[]) AS wanted (owner, key)
JOIN a2a_fabric.messages AS messages ON messages.owner = wanted.owner AND messages.key = wanted.key
"""
_COUNT = """
INSERT INTO a2a_fabric.conversations AS known (conversation_id, last)
SELECT * FROM unnest($1::text[], $2::int8[])
ON CONFLICT (conversation_id) DO UPDATE SET last = known.last + excluded.last RETURNING conversation_id, last
"""
_COUNT_UPTO = """
INSERT INTO a2a_fabric.conversations AS known (conversation_id, last)
SELECT * FROM unnest($1::text[], $2::int8[])
ON CONFLICT (conversation_id) DO UPDATE SET last = excluded.last WHERE known.last < excluded.last RETURNING 1
"""
_TYPES = ("text", "text", "int8", "text", "text", "float8", "bytea")
_INSERT = f"""
INSERT INTO a2a_fabric.messages (message_id, conversation_id, number, owner, key, sent_at, message)
SELECT * FROM unnest({arrays(_TYPES)}) ON CONFLICT DO NOTHING RETURNING message_id, seq
"""  # noqa: S608
_ENTRY = ("text", "int8", "int4", "float8", "int8", "float8")
_PUT = f"""
INSERT INTO a2a_fabric.inbox_entries (inbox, message, priority, expires_at, attempt, visible_at)
SELECT * FROM unnest({arrays(_ENTRY)}) ON CONFLICT DO NOTHING RETURNING 1
"""  # noqa: S608
_SUBSCRIBED = "SELECT topic, inbox FROM a2a_fabric.subscriptions WHERE topic = ANY($1::text[]) ORDER BY inbox"
_HELD = """
SELECT wanted.inbox, (
    SELECT count(*) FROM (SELECT 1 FROM a2a_fabric.inbox_entries AS entries WHERE entries.inbox = wanted.inbox LIMIT $2)
    AS counted
) FROM unnest($1::text[]) AS wanted (inbox)
"""
_BY_IDS = "SELECT message_id, seq, message FROM a2a_fabric.messages WHERE message_id = ANY($1::text[])"

decode = msgspec.json.Decoder(Message).decode


class _Reached(NamedTuple):
    inboxes: list[str]
    full: int  # subscribers who were left out


class Posting(NamedTuple):
    """A message that is asked for, the topic if it is published, and the job that brings it, if one does.

    Subscribers whose inbox holds `most` are left out.
    """

    new: NewMessage
    topic: str | None = None
    accept: Acceptance | None = None
    most: int | None = None


async def post(tx: Transaction, postings: Sequence[Posting]) -> list[Posted | FabricError]:
    known = await _known(tx, [each.new for each in postings])
    fresh: dict[str, Posting] = {}
    for posting in postings:
        if known.of(posting.new) is None:
            fresh[posting.new.message_id] = posting
            known.add(posting.new)
    jobs, refused = await _accepted(tx, fresh)
    messages = await _numbered(tx, [each for name, each in fresh.items() if name not in refused])
    reached = await _deliver(tx, messages, fresh) if messages else {}
    written = {message.message_id: message for message in messages}
    replies: list[Posted | FabricError] = []
    for posting in postings:
        name = posting.new.message_id
        if fresh.get(name) is posting:
            replies.append(refused.get(name) or _posted(written[name], jobs.get(name), reached[name]))
        else:
            replies.append(_again(posting.new, known, written, refused))
    return replies


def _posted(message: Message, job: JobSummary | None, reached: _Reached) -> Posted:
    return Posted(message, True, len(reached.inboxes), job, reached.full)


async def _accepted(
    tx: Transaction, fresh: dict[str, Posting]
) -> tuple[dict[str, JobSummary], dict[str, FabricError]]:  # fmt: skip
    """The jobs that bring them, and what is refused, by the message's id. Nothing of those is written."""
    asked = {name: posting.accept for name, posting in fresh.items() if posting.accept is not None}
    answers = await job_accepts.accept(tx, list(asked.values())) if asked else []
    jobs: dict[str, JobSummary] = {}
    refused: dict[str, FabricError] = {}
    for name, answer in zip(asked, answers, strict=True):
        try:
            jobs[name] = brought_by(_or_raised(answer))
        except FabricError as exc:
            refused[name] = exc
    return jobs, refused


def _or_raised(answer: Accepted | FabricError) -> Accepted:
    if isinstance(answer, FabricError):
        raise answer
    return answer


class _Known:
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

    def by_key(self, new: NewMessage) -> NewMessage | None:
        return self._by_key.get((new.owner, new.key)) if new.key is not None else None

    def of(self, new: NewMessage) -> NewMessage | None:
        return self.by_key(new) or self._by_id.get(new.message_id)


async def _known(tx: Transaction, wanted: Sequence[NewMessage]) -> _Known:
    keys = [(new.owner, new.key) for new in wanted if new.key is not None]
    rows = await tx.all(_KNOWN, [new.message_id for new in wanted], *columns_of(keys, 2))
    return _Known([decode(row[0]) for row in rows])


def _again(
    new: NewMessage, known: _Known, written: dict[str, Message], refused: dict[str, FabricError]
) -> Posted | FabricError:  # fmt: skip
    found = known.by_key(new)
    if found is None:
        return Conflict(f"There is a message '{new.message_id[:64]}' already")
    if not isinstance(found, Message) and found.message_id in refused:
        return refused[found.message_id]
    message = found if isinstance(found, Message) else written[found.message_id]
    try:
        return Posted(same_again(message, new), False)
    except FabricError as exc:
        return exc


async def _numbered(tx: Transaction, postings: Sequence[Posting]) -> list[Message]:
    """Each with the next number of its conversation, which stays locked until the commit."""
    if not postings:
        return []
    counts = sorted(Counter(each.new.conversation_id for each in postings).items())  # all nodes lock in this order
    rows = await tx.change(_COUNT, *columns_of(counts, 2))
    numbers = {row[0]: row[1] - dict(counts)[row[0]] for row in rows}
    messages = []
    for new, topic, _, _ in postings:
        numbers[new.conversation_id] += 1
        asked = {name: getattr(new, name) for name in NewMessage.__struct_fields__}
        messages.append(Message(**asked, number=numbers[new.conversation_id], sent_at=tx.now, topic=topic))
    return messages


async def _deliver(
    tx: Transaction, messages: Sequence[Message], postings: Mapping[str, Posting]
) -> dict[str, _Reached]:  # fmt: skip
    """Into which inboxes each went."""
    seqs = await insert(tx, messages)
    if len(seqs) != len(messages):
        raise Again("somebody else took a key at the same time")
    reached = await _inboxes(tx, messages, postings)
    rows = [
        (inbox, seqs[message.message_id], message.priority, message.expires_at, 0, 0.0)
        for message in messages
        for inbox in reached[message.message_id].inboxes
    ]
    if rows:
        await tx.change(_PUT, *columns_of(rows, len(_ENTRY)))
        tx.topics.update(inbox_topic(row[0]) for row in rows)
    return reached


async def _inboxes(
    tx: Transaction, messages: Sequence[Message], postings: Mapping[str, Posting]
) -> dict[str, _Reached]:  # fmt: skip
    topics = list({message.topic for message in messages if message.topic is not None})
    subscribed: dict[str, list[str]] = {}
    for row in await tx.all(_SUBSCRIBED, topics) if topics else ():
        subscribed.setdefault(row[0], []).append(row[1])
    held = await _held(tx, subscribed, max((each.most or 0 for each in postings.values()), default=0))
    return {
        each.message_id: _reached(each, subscribed.get(each.topic or "", ()), held, postings[each.message_id].most)
        for each in messages
    }


async def _held(tx: Transaction, subscribed: Mapping[str, Sequence[str]], most: int) -> Counter[str]:
    """How much each subscriber's inbox holds, counted up to the most that anybody asks about."""
    inboxes = list({inbox for several in subscribed.values() for inbox in several})
    rows = await tx.all(_HELD, inboxes, most) if inboxes and most else ()
    return Counter({row[0]: row[1] for row in rows})


def _reached(message: Message, subscribed: Sequence[str], held: Counter[str], most: int | None) -> _Reached:
    """What it is put into counts for the messages after it."""
    with_room = [inbox for inbox in subscribed if most is None or held[inbox] < most]
    inboxes = list(dict.fromkeys([*message.inboxes, *with_room]))
    held.update(inboxes)
    return _Reached(inboxes, len(subscribed) - len(with_room))


async def insert(tx: Transaction, messages: Sequence[Message]) -> dict[str, int]:
    """The row numbers of those that were written, by message id; what is there already stays."""
    rows = [
        (each.message_id, each.conversation_id, each.number, each.owner, each.key, each.sent_at,
         msgspec.json.encode(each))
        for each in messages
    ]  # fmt: skip
    made = await tx.change(_INSERT, *columns_of(rows, len(_TYPES)))
    return {row[0]: row[1] for row in made}


async def restore(tx: Transaction, messages: Sequence[Message]) -> int:
    """As they are; how many were new."""
    written = await insert(tx, messages)
    highest: dict[str, int] = {}
    for message in messages:
        if message.message_id in written:
            highest[message.conversation_id] = max(message.number, highest.get(message.conversation_id, 0))
    if highest:
        await restore_numberings(tx, [Numbering(conversation_id=name, last=last) for name, last in highest.items()])
    return len(written)


async def restore_numberings(tx: Transaction, numberings: Sequence[Numbering]) -> int:
    """How many conversations were not that far yet."""
    rows = sorted({each.conversation_id: each.last for each in numberings}.items())  # all nodes lock in this order
    return len(await tx.change(_COUNT_UPTO, *columns_of(rows, 2)))


async def restore_entries(tx: Transaction, entries: Sequence[InboxEntry]) -> int:
    rows = await tx.all(_BY_IDS, [each.message_id for each in entries])
    known = {row[0]: (row[1], decode(row[2])) for row in rows}
    values = []
    for each in entries:
        if each.message_id in known:
            seq, message = known[each.message_id]
            values.append((each.inbox, seq, message.priority, message.expires_at, each.attempt, each.visible_at))
            tx.topics.add(inbox_topic(each.inbox))
    return len(await tx.change(_PUT, *columns_of(values, len(_ENTRY)))) if values else 0
