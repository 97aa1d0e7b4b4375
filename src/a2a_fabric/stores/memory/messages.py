"""Messages, inboxes and topics in dictionaries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from a2a_fabric.core.errors import Conflict
from a2a_fabric.core.job import AcceptResult, NewJob
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
from a2a_fabric.core.stores import INBOX_BYTES, PAGE_BYTES, inbox_topic
from a2a_fabric.core.tasks import TopicSignals


class MemoryMessages:
    def __init__(
        self, signals: TopicSignals, clock: Callable[[], float], accept: Callable[[NewJob, float], AcceptResult]
    ) -> None:
        self.by_id: dict[str, Message] = {}
        self.inboxes: dict[str, dict[int, InboxEntry]] = defaultdict(dict)
        self.by_topic: dict[str, dict[str, None]] = defaultdict(dict)
        self._conversations: dict[str, dict[int, str]] = defaultdict(dict)
        self._numbers: dict[str, int] = defaultdict(int)
        self._keys: dict[tuple[str, str], str] = {}
        self._last_entry = 0
        self._signals = signals
        self._clock = clock
        self._accept = accept

    async def append(self, new: NewMessage, job: NewJob | None = None) -> PostResult:
        return self._append_message(new, None, (), job)

    async def publish(self, topic: str, new: NewMessage, *, most: int | None = None) -> PostResult:
        subscribers = self.by_topic.get(topic, ())
        full = {inbox for inbox in subscribers if most is not None and len(self.inboxes.get(inbox, ())) >= most}
        posted = self._append_message(new, topic, [inbox for inbox in subscribers if inbox not in full])
        return msgspec.structs.replace(posted, full=len(full) if posted.is_new else 0)

    async def get(self, message_id: str) -> Message | None:
        return self.by_id.get(message_id)

    async def find(self, owner: str, key: str) -> Message | None:
        return self.by_id.get(self._keys.get((owner, key), ""))

    async def read_conversation(
        self, conversation_id: str, *, after: int = 0, limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> Sequence[Message]:
        numbers = sorted(n for n in self._conversations.get(conversation_id, ()) if n > after)[:limit]
        page: list[Message] = []
        budget = max_bytes
        for number in numbers:
            message = self.by_id[self._conversations[conversation_id][number]]
            budget -= len(msgspec.json.encode(message))
            if budget < 0 and page:
                break
            page.append(message)
        return page

    async def prune(self, before: float, limit: int = 1000) -> int:
        expired = [message for message in self.by_id.values() if message.sent_at < before][:limit]
        for message in expired:
            self._delete(message)
        return len(expired)

    async def receive(
        self, inbox: str, *, limit: int = 10, hold: float = 30.0, max_bytes: int = INBOX_BYTES
    ) -> Sequence[Delivery]:
        now, entries = self._clock(), self.inboxes.get(inbox, {})
        waiting = [(number, entry) for number, entry in entries.items() if self._is_waiting(entry, now)]
        waiting.sort(key=lambda each: (-self.by_id[each[1].message_id].priority, each[0]))
        deliveries: list[Delivery] = []
        budget = max_bytes
        for number, entry in waiting[:limit]:
            budget -= len(msgspec.json.encode(self.by_id[entry.message_id]))
            if budget < 0 and deliveries:
                break
            deliveries.append(self._deliver(inbox, number, now + hold))
        return deliveries

    async def acknowledge(self, inbox: str, entries: Sequence[int]) -> Sequence[int]:
        inbox_entries = self.inboxes.get(inbox, {})
        return [entry for entry in entries if inbox_entries.pop(entry, None) is not None]

    async def status(self, inbox: str) -> InboxStatus:
        now, entries = self._clock(), self.inboxes.get(inbox, {}).values()
        waiting = sum(self._is_waiting(entry, now) for entry in entries)
        return InboxStatus(inbox=inbox, waiting=waiting, held=sum(entry.visible_at > now for entry in entries))

    async def expire(self, limit: int = 1000) -> int:
        now = self._clock()
        expired = [
            (entries, number)
            for entries in self.inboxes.values()
            for number, entry in entries.items()
            if entry.visible_at <= now and not self._is_waiting(entry, now)
        ][:limit]
        for entries, number in expired:
            del entries[number]
        return len(expired)

    async def subscribe(self, topic: str, inbox: str) -> bool:
        return self.restore_subscription(TopicSubscription(topic=topic, inbox=inbox))

    async def unsubscribe(self, topic: str, inbox: str) -> bool:
        subscribers = self.by_topic.get(topic, {})
        was_subscribed = inbox in subscribers
        subscribers.pop(inbox, None)
        if was_subscribed and not subscribers:
            del self.by_topic[topic]
        return was_subscribed

    def clear_inbox(self, inbox: str) -> None:
        """Empty it, and end its subscriptions."""
        self.inboxes.pop(inbox, None)
        for topic in [topic for topic, subscribers in self.by_topic.items() if inbox in subscribers]:
            del self.by_topic[topic][inbox]
            if not self.by_topic[topic]:
                del self.by_topic[topic]

    async def list_subscribers(self, topic: str) -> Sequence[str]:
        return sorted(self.by_topic.get(topic, ()))

    async def count_topics(self, inbox: str, most: int) -> int:
        return min(most, sum(inbox in subscribers for subscribers in self.by_topic.values()))

    async def list_topics(self, *, after: str = "", limit: int = 1000) -> Sequence[tuple[str, int]]:
        names = [topic for topic in sorted(self.by_topic) if topic > after][:limit]
        return [(topic, len(self.by_topic[topic])) for topic in names]

    def restore(self, message: Message) -> bool:
        numbers = self._conversations[message.conversation_id]
        if message.message_id in self.by_id or message.number in numbers:
            return False
        self.by_id[message.message_id] = message
        numbers[message.number] = message.message_id
        self._numbers[message.conversation_id] = max(self._numbers[message.conversation_id], message.number)
        if message.key is not None:
            self._keys[message.owner, message.key] = message.message_id
        return True

    def list_numberings(self) -> Iterator[Numbering]:
        for conversation_id, last in self._numbers.items():
            if last not in self._conversations[conversation_id]:
                yield Numbering(conversation_id=conversation_id, last=last)

    def restore_numbering(self, numbering: Numbering) -> bool:
        is_new = self._numbers[numbering.conversation_id] < numbering.last
        if is_new:
            self._numbers[numbering.conversation_id] = numbering.last
        return is_new

    def restore_entry(self, entry: InboxEntry) -> bool:
        inbox_entries = self.inboxes[entry.inbox]
        if entry.message_id not in self.by_id or any(
            existing.message_id == entry.message_id for existing in inbox_entries.values()
        ):
            return False
        self._last_entry += 1
        inbox_entries[self._last_entry] = entry
        return True

    def restore_subscription(self, subscription: TopicSubscription) -> bool:
        subscribers = self.by_topic[subscription.topic]
        is_new = subscription.inbox not in subscribers
        subscribers[subscription.inbox] = None
        return is_new

    def _append_message(
        self, new: NewMessage, topic: str | None, subscribers: Iterable[str], job: NewJob | None = None
    ) -> PostResult:
        existing = self.by_id.get(self._keys.get((new.owner, new.key), "")) if new.key is not None else None
        if existing is not None:
            return PostResult(match_existing_message(existing, new), False)
        if new.message_id in self.by_id:
            raise Conflict(f"There is a message '{new.message_id[:64]}' already")
        accepted = (
            None if job is None else require_new_job(self._accept(job, self._clock()))
        )  # nothing else is written yet
        message = Message(
            **msgspec.structs.asdict(new),
            number=self._numbers[new.conversation_id] + 1,
            sent_at=self._clock(),
            topic=topic,
        )
        self.restore(message)
        inboxes = dict.fromkeys([*new.inboxes, *subscribers])
        for inbox in inboxes:
            self.restore_entry(InboxEntry(inbox=inbox, message_id=message.message_id))
            self._signals.post(inbox_topic(inbox))
        return PostResult(message, True, len(inboxes), accepted)

    def _is_waiting(self, entry: InboxEntry, now: float) -> bool:
        expires_at = self.by_id[entry.message_id].expires_at
        return entry.visible_at <= now and (expires_at is None or expires_at > now)

    def _deliver(self, inbox: str, number: int, until: float) -> Delivery:
        entry = self.inboxes[inbox][number]
        attempt = entry.attempt + 1
        self.inboxes[inbox][number] = msgspec.structs.replace(entry, attempt=attempt, visible_at=until)
        return Delivery(entry=number, attempt=attempt, message=self.by_id[entry.message_id])

    def _delete(self, message: Message) -> None:
        del self.by_id[message.message_id], self._conversations[message.conversation_id][message.number]
        if message.key is not None:
            del self._keys[message.owner, message.key]
        for entries in self.inboxes.values():
            for number in [number for number, entry in entries.items() if entry.message_id == message.message_id]:
                del entries[number]
