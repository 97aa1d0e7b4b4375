"""`PostOffice`: inboxes that somebody fetches from, and topics that inboxes subscribe to.

Everything is asked in the name of a principal, who acts for itself, for an agent of
its own, or, with the node's own key, for anybody, as far as its scopes go. What is received and not
acknowledged comes again. All methods may raise StoreError.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import RateLimited
from a2a_fabric.core.job import NORMAL, owner_of
from a2a_fabric.core.message import (
    Delivery,
    InboxStatus,
    NewMessage,
    Party,
    Posted,
    new_message_id,
)
from a2a_fabric.core.part import Part
from a2a_fabric.core.policy import check_inbox, check_publish, check_send, check_subscribe, is_limited, may_know_topic
from a2a_fabric.core.shares import Shares
from a2a_fabric.core.stores import Messages, Notices, inbox_topic
from a2a_fabric.jobs.patience import once, patiently
from a2a_fabric.messages.bells import Bells
from a2a_fabric.messages.ids import conversation_for
from a2a_fabric.messages.parties import Parties
from a2a_fabric.messages.settings import MessageSettings

_COUNT_EVERY = 1.0
_INBOXES_REMEMBERED = 10_000
_RETRY_AFTER = 5.0
_TOPICS_AT_ONCE = 1000
_MOST_TOPICS = 20_000  # looked at for one page of a caller who may know of few


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """Something for an inbox or a topic."""

    parts: tuple[Part, ...]
    metadata: dict[str, Any] = {}
    sender: Party | None = None
    conversation_id: str | None = None
    reply_to: str | None = None
    key: str | None = None
    priority: int = NORMAL
    ttl: float | None = None


class PostOffice:
    def __init__(
        self,
        store: Messages,
        notices: Notices,
        parties: Parties,
        settings: MessageSettings,
        bells: Bells,
        *,
        find: Callable[[str], Manifest | None] = lambda agent_id: None,
        sent: Callable[[], None] = lambda: None,
        received: Callable[[int], None] = lambda number: None,
        waiting: Shares | None = None,
    ) -> None:
        self._store = store
        self._notices = notices
        self._parties = parties
        self._settings = settings
        self._bells = bells
        self._find = find
        self._sent = sent  # both are told for metrics
        self._received = received
        self._waiting = waiting or Shares("requests that wait", 1 << 30)
        self._depths = _Depths(store)

    async def send(self, principal: Principal, recipient: Party, letter: Letter) -> Posted:
        """Into the recipient's inbox. Raises Forbidden, Conflict, and RateLimited if that is full."""
        check_send(principal, recipient.id, self._find(recipient.id))
        new = self._new(principal, letter, (recipient,))
        if await self._depths.of(recipient.inbox) >= self._settings.inbox_size:
            raise RateLimited(f"The inbox of {recipient.inbox[:128]} is full; try again later", _RETRY_AFTER)
        return self._told(await patiently(lambda: self._store.append(new)))

    async def publish(self, principal: Principal, topic: str, letter: Letter) -> Posted:
        """Into every inbox that has subscribed and is not full: nobody waits for who never reads.

        Raises Forbidden, Conflict.
        """
        check_publish(principal, topic)
        new, most = self._new(principal, letter, ()), self._settings.inbox_size
        return self._told(await patiently(lambda: self._store.publish(topic, new, most=most)))

    async def receive(
        self, principal: Principal, party: Party, *, limit: int, hold: float, wait: float = 0.0
    ) -> Sequence[Delivery]:
        """What waits, or comes within so many seconds. Raises Forbidden, and RateLimited for who waits too often."""
        self._check_inbox(principal, party)
        inbox, ends_at = party.inbox, time.monotonic() + wait
        place = self._waiting.held(principal.principal_id) if wait > 0 else nullcontext()
        with place, self._notices.watch(inbox_topic(inbox)) as bell:
            while True:
                found = await once(lambda: self._store.receive(inbox, limit=limit, hold=hold))
                left = ends_at - time.monotonic()
                if found or left <= 0 or self._bells.is_over:
                    break
                await bell.wait(min(left, 1.0))
        self._received(len(found))
        return found

    async def acknowledge(self, principal: Principal, party: Party, entries: Sequence[int]) -> Sequence[int]:
        """Raises Forbidden."""
        self._check_inbox(principal, party)
        return await patiently(lambda: self._store.acknowledge(party.inbox, entries))

    async def receive_own(self, principal: Principal, *, limit: int, hold: float, wait: float) -> Sequence[Delivery]:
        return await self.receive(principal, self._parties.self_of(principal), limit=limit, hold=hold, wait=wait)

    async def acknowledge_own(self, principal: Principal, entries: Sequence[int]) -> Sequence[int]:
        return await self.acknowledge(principal, self._parties.self_of(principal), entries)

    def self_of(self, principal: Principal) -> Party:
        return self._parties.self_of(principal)

    async def status(self, principal: Principal, party: Party) -> InboxStatus:
        """Raises Forbidden."""
        self._check_inbox(principal, party)
        return await patiently(lambda: self._store.status(party.inbox))

    async def subscribe(self, principal: Principal, party: Party, topic: str) -> bool:
        """From now on. False if it was already. Raises Forbidden, and RateLimited if it has as many as it may."""
        self._check_inbox(principal, party)
        check_subscribe(principal, topic)
        most = self._settings.topics_per_inbox
        is_full = await patiently(lambda: self._store.count_topics(party.inbox, most)) >= most
        if is_full and party.inbox not in await patiently(lambda: self._store.subscribers(topic)):
            raise RateLimited(f"The inbox of {party.inbox[:128]} subscribes to {most} topics, which is the limit", 60.0)
        return await patiently(lambda: self._store.subscribe(topic, party.inbox))

    async def unsubscribe(self, principal: Principal, party: Party, topic: str) -> bool:
        """False if it was not. Raises Forbidden."""
        self._check_inbox(principal, party)
        check_subscribe(principal, topic)
        return await patiently(lambda: self._store.unsubscribe(topic, party.inbox))

    async def topics(self, principal: Principal, *, after: str = "", limit: int = 1000) -> Sequence[tuple[str, int]]:
        """Names with their number of subscribers, in order; of those topics that the caller may use."""
        if not is_limited(principal):
            return await patiently(lambda: self._store.topics(after=after, limit=limit))
        seen: list[tuple[str, int]] = []
        for _ in range(0, _MOST_TOPICS, _TOPICS_AT_ONCE):
            page = await patiently(lambda at=after: self._store.topics(after=at, limit=_TOPICS_AT_ONCE))  # type: ignore[misc]
            seen += [(name, number) for name, number in page if may_know_topic(principal, name)]
            if len(page) < _TOPICS_AT_ONCE or len(seen) >= limit:
                break
            after = page[-1][0]
        return seen[:limit]

    def _check_inbox(self, principal: Principal, party: Party) -> None:
        """Raises Forbidden."""
        self._parties.check(principal, party, "agent_id")
        check_inbox(principal, party.id, is_own=party == self._parties.self_of(principal))

    def _new(self, principal: Principal, letter: Letter, recipients: tuple[Party, ...]) -> NewMessage:
        sender = letter.sender or Party(id=self._parties.self_of(principal).id)
        if letter.sender is not None:
            self._parties.check(principal, sender, "from_agent")
        return NewMessage(
            message_id=new_message_id(),
            conversation_id=letter.conversation_id or conversation_for(owner_of(principal), letter.key),
            owner=owner_of(principal),
            sender=sender,
            recipients=recipients,
            parts=letter.parts,
            metadata=letter.metadata,
            key=None if letter.key is None else f"key:{letter.key}",
            reply_to=letter.reply_to,
            priority=letter.priority,
            expires_at=time.time() + self._settings.time_for(letter.ttl),
        )

    def _told(self, posted: Posted) -> Posted:
        if posted.is_new:
            self._sent()
            self._bells.ring(posted.message.conversation_id)
        return posted


class _Depths:
    """How much waits in each inbox, counted now and then; in between what is sent is added."""

    def __init__(self, store: Messages) -> None:
        self._store = store
        self._known: OrderedDict[str, tuple[float, int]] = OrderedDict()

    async def of(self, inbox: str) -> int:
        """With the message that is about to be sent, next time."""
        at, depth = self._known.get(inbox, (float("-inf"), 0))
        if time.monotonic() - at > _COUNT_EVERY:
            status = await patiently(lambda: self._store.status(inbox))
            at, depth = time.monotonic(), status.waiting + status.held
        self._known[inbox] = at, depth + 1
        self._known.move_to_end(inbox)
        if len(self._known) > _INBOXES_REMEMBERED:
            self._known.popitem(last=False)
        return depth
