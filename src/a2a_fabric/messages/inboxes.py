"""`Inboxes`: messages that agents and clients receive by polling, topics that inboxes subscribe to, and their pruning.

Every method acts for a principal: for itself, for an agent that it registered, or, with
the node's own key, for anyone, as far as its scopes allow. A message that is received
and not acknowledged is delivered again. All methods may raise StoreError."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.errors import RateLimited
from a2a_fabric.core.guards import Guards
from a2a_fabric.core.job import NORMAL
from a2a_fabric.core.limits import FairLimit
from a2a_fabric.core.message import Delivery, InboxStatus, NewMessage, Party, PostResult, new_message_id
from a2a_fabric.core.policy import check_inbox, check_publish, check_send, check_subscribe, is_limited, may_know_topic
from a2a_fabric.core.result import Part
from a2a_fabric.core.stores import ChangeNotices, MessageStore, call_store, inbox_topic, retry_store_call
from a2a_fabric.core.tasks import prune_forever
from a2a_fabric.messages.conversations import ConversationSignals, Senders, derive_conversation_id
from a2a_fabric.messages.guards import MessageContent, guard_message
from a2a_fabric.messages.settings import MessageSettings

_RECOUNT_AFTER = 1.0
_MAX_INBOXES = 10_000
_RETRY_AFTER = 5.0
_TOPIC_PAGE = 1000
_MAX_TOPICS = 20_000  # topics that are read for one page of a caller with limited scopes


class InboxDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A message for an inbox or a topic."""

    parts: tuple[Part, ...]
    metadata: dict[str, Any] = {}
    sender: Party | None = None
    conversation_id: str | None = None
    reply_to: str | None = None
    key: str | None = None
    priority: int = NORMAL
    ttl: float | None = None


class Inboxes:
    def __init__(
        self,
        store: MessageStore,
        notices: ChangeNotices,
        senders: Senders,
        settings: MessageSettings,
        signals: ConversationSignals,
        *,
        find_agent: Callable[[str], Manifest | None] = lambda agent_id: None,
        on_sent: Callable[[], None] = lambda: None,
        on_received: Callable[[int], None] = lambda number: None,
        waiting_requests: FairLimit | None = None,
        guards: Guards | None = None,
    ) -> None:
        self._store = store
        self._notices = notices
        self._senders = senders
        self._settings = settings
        self._signals = signals
        self._find_agent = find_agent
        self._on_sent = on_sent  # both callbacks are for metrics
        self._on_received = on_received
        self._waiting_requests = waiting_requests or FairLimit("requests that wait", 1 << 30)
        self._depths = _InboxDepths(store)
        self._guards = guards or Guards()

    async def send(self, principal: Principal, recipient: Party, draft: InboxDraft) -> PostResult:
        """Put a message into the recipient's inbox. Raises Forbidden, Conflict, and RateLimited if it is full."""
        if draft.sender is not None:
            self.check_sender(principal, draft.sender)
        return await self.send_from_agent(principal, recipient, draft)

    def check_sender(self, principal: Principal, sender: Party) -> None:
        """Raises Forbidden if the caller may not speak for this sender."""
        self._senders.check(principal, sender, "from_agent")

    async def send_from_agent(self, principal: Principal, recipient: Party, draft: InboxDraft) -> PostResult:
        """As `send`, for code of the node: the sender is an agent that answered this caller."""
        check_send(principal, recipient.id, self._find_agent(recipient.id))
        draft = await self._guard(principal, (recipient.id,), "message.send", draft)
        new_message = self._build_message(principal, draft, (recipient,))
        if await self._depths.estimate(recipient.inbox) >= self._settings.inbox_size:
            raise RateLimited(f"The inbox of {recipient.inbox[:128]} is full; try again later", _RETRY_AFTER)
        return self._announce(await retry_store_call(self._store.append, new_message))

    def describe_missing(self, recipient: Party) -> str | None:
        """What a sender should know if no agent with the recipient's id is listed now."""
        if self._find_agent(recipient.id) is not None:
            return None
        return (
            f"No agent '{recipient.id[:128]}' is listed now. The message waits for the owner that this id had last, or "
            "for the key of this name; a caller that registers the id for the first time does not get it."
        )

    async def publish(self, principal: Principal, topic: str, draft: InboxDraft) -> PostResult:
        """Put a message into every inbox that has subscribed, except those that are full.

        Raises Forbidden, Conflict.
        """
        check_publish(principal, topic)
        if draft.sender is not None:
            self.check_sender(principal, draft.sender)
        if self._guards:
            inboxes = await retry_store_call(self._store.list_subscribers, topic)
            readers = (f"topic:{topic}", *(inbox.partition(":")[2] for inbox in inboxes))
            draft = await self._guard(principal, readers, "message.publish", draft)
        new_message, inbox_size = self._build_message(principal, draft, ()), self._settings.inbox_size
        return self._announce(await retry_store_call(self._store.publish, topic, new_message, most=inbox_size))

    async def receive(
        self, principal: Principal, party: Party, *, limit: int, hold: float, wait: float = 0.0
    ) -> Sequence[Delivery]:
        """The messages that are there or arrive within `wait` seconds.

        Raises Forbidden, and RateLimited if too many requests of this caller wait.
        """
        self._check_inbox(principal, party)
        inbox, ends_at = party.inbox, time.monotonic() + wait
        request_share = self._waiting_requests.hold(principal.principal_id) if wait > 0 else nullcontext()
        with request_share, self._notices.watch(inbox_topic(inbox)) as wake_handle:
            while True:
                deliveries = await call_store(self._store.receive, inbox, limit=limit, hold=hold)
                time_left = ends_at - time.monotonic()
                if deliveries or time_left <= 0 or self._signals.is_stopped:
                    break
                await wake_handle.wait(min(time_left, 1.0))
        self._on_received(len(deliveries))
        return deliveries

    async def acknowledge(self, principal: Principal, party: Party, entries: Sequence[int]) -> Sequence[int]:
        """Raises Forbidden."""
        self._check_inbox(principal, party)
        return await retry_store_call(self._store.acknowledge, party.inbox, entries)

    def party_of(self, principal: Principal) -> Party:
        return self._senders.party_of(principal)

    async def status(self, principal: Principal, party: Party) -> InboxStatus:
        """Raises Forbidden."""
        self._check_inbox(principal, party)
        return await retry_store_call(self._store.status, party.inbox)

    async def subscribe(self, principal: Principal, party: Party, topic: str) -> bool:
        """Returns False if the inbox was subscribed. Raises Forbidden, and RateLimited if it has too many topics."""
        self._check_inbox(principal, party)
        check_subscribe(principal, topic)
        topic_limit = self._settings.topics_per_inbox
        is_full = await retry_store_call(self._store.count_topics, party.inbox, topic_limit) >= topic_limit
        if is_full and party.inbox not in await retry_store_call(self._store.list_subscribers, topic):
            raise RateLimited(
                f"The inbox of {party.inbox[:128]} subscribes to {topic_limit} topics, which is the limit", 60.0
            )
        return await retry_store_call(self._store.subscribe, topic, party.inbox)

    async def unsubscribe(self, principal: Principal, party: Party, topic: str) -> bool:
        """Returns False if the inbox was not subscribed. Raises Forbidden."""
        self._check_inbox(principal, party)
        check_subscribe(principal, topic)
        return await retry_store_call(self._store.unsubscribe, topic, party.inbox)

    async def list_topics(
        self, principal: Principal, *, after: str = "", limit: int = 1000
    ) -> Sequence[tuple[str, int]]:
        """Names and numbers of subscribers of the topics that the caller may use, in order of the names."""
        if not is_limited(principal):
            return await retry_store_call(self._store.list_topics, after=after, limit=limit)
        visible: list[tuple[str, int]] = []
        for _ in range(0, _MAX_TOPICS, _TOPIC_PAGE):
            page = await retry_store_call(self._store.list_topics, after=after, limit=_TOPIC_PAGE)
            visible += [(name, number) for name, number in page if may_know_topic(principal, name)]
            if len(page) < _TOPIC_PAGE or len(visible) >= limit:
                break
            after = page[-1][0]
        return visible[:limit]

    def _check_inbox(self, principal: Principal, party: Party) -> None:
        """Raises Forbidden."""
        self._senders.check(principal, party, "agent_id")
        check_inbox(principal, party.id, is_own=party == self._senders.party_of(principal))

    async def _guard(self, principal: Principal, readers: Sequence[str], what: str, draft: InboxDraft) -> InboxDraft:
        """Raises Forbidden."""
        if not self._guards:
            return draft
        content = MessageContent(parts=draft.parts, metadata=draft.metadata)
        checked = await guard_message(self._guards, principal, readers, what, content)
        return msgspec.structs.replace(draft, parts=checked.parts, metadata=checked.metadata)

    def _build_message(self, principal: Principal, draft: InboxDraft, recipients: tuple[Party, ...]) -> NewMessage:
        sender = draft.sender or Party(id=self._senders.party_of(principal).id)
        return NewMessage(
            message_id=new_message_id(),
            conversation_id=draft.conversation_id or derive_conversation_id(owner_from_principal(principal), draft.key),
            owner=owner_from_principal(principal),
            sender=sender,
            recipients=recipients,
            parts=draft.parts,
            metadata=draft.metadata,
            key=None if draft.key is None else f"key:{draft.key}",
            reply_to=draft.reply_to,
            priority=draft.priority,
            expires_at=time.time() + self._settings.clamp_ttl(draft.ttl),
        )

    def _announce(self, posted: PostResult) -> PostResult:
        if posted.is_new:
            self._on_sent()
            self._signals.post(posted.message.conversation_id)
        return posted


class _InboxDepths:
    """Estimates how many messages wait in each inbox: counted once a second, plus those sent since then."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._estimates: OrderedDict[str, tuple[float, int]] = OrderedDict()

    async def estimate(self, inbox: str) -> int:
        """The number before the message that is about to be sent; the next estimate includes that message."""
        counted_at, depth = self._estimates.get(inbox, (float("-inf"), 0))
        if time.monotonic() - counted_at > _RECOUNT_AFTER:
            status = await retry_store_call(self._store.status, inbox)
            counted_at, depth = time.monotonic(), status.waiting + status.held
        self._estimates[inbox] = counted_at, depth + 1
        self._estimates.move_to_end(inbox)
        if len(self._estimates) > _MAX_INBOXES:
            self._estimates.popitem(last=False)
        return depth


_log = logging.getLogger(__name__)
_PRUNE_INTERVAL = 300.0
_EXPIRE_INTERVAL = 15.0
_PRUNE_BATCH = 500


class MessagePruner:
    """Removes expired messages, and messages that were kept long enough."""

    def __init__(self, store: MessageStore, keep_seconds: float, expire_interval: float = _EXPIRE_INTERVAL) -> None:
        self._store = store
        self._keep_seconds = keep_seconds
        self._expire_interval = expire_interval

    async def run(self) -> None:
        await asyncio.gather(
            prune_forever(self._prune, _PRUNE_INTERVAL, _log, "old messages"),
            prune_forever(self._expire, self._expire_interval, _log, "expired messages"),
        )

    async def _prune(self) -> bool:
        return await self._store.prune(time.time() - self._keep_seconds, _PRUNE_BATCH) < _PRUNE_BATCH

    async def _expire(self) -> bool:
        return await self._store.expire(_PRUNE_BATCH) < _PRUNE_BATCH
