"""`MessageDesk`, the face of the message engine: post, look, follow.

Everything is asked in the name of a principal. Somebody else's message is not found,
as if it did not exist; of a conversation everybody sees what they wrote and what is
for them. All methods may raise StoreError.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call, Principal, ResponseForm, Target
from a2a_fabric.core.content import check_attachments
from a2a_fabric.core.errors import AgentNotFound, Conflict
from a2a_fabric.core.job import NORMAL, Job, JobSummary, owner_of
from a2a_fabric.core.message import Message, NewMessage, Party, Posted, new_message_id, size_of_parts
from a2a_fabric.core.part import Part
from a2a_fabric.core.policy import check_named, check_scope, narrowed
from a2a_fabric.core.shares import SHARE, Shares
from a2a_fabric.core.states import word_for
from a2a_fabric.core.store_errors import JobNotFound
from a2a_fabric.core.stores import Messages
from a2a_fabric.core.trace import Trace
from a2a_fabric.jobs.desk import JobDesk
from a2a_fabric.jobs.patience import patiently
from a2a_fabric.jobs.wish import JobWish
from a2a_fabric.messages.bells import Bells, rung
from a2a_fabric.messages.content import capability_for, input_of
from a2a_fabric.messages.errors import ConversationNotFound, MessageNotFound
from a2a_fabric.messages.ids import conversation_for, delivery_id
from a2a_fabric.messages.parties import Parties
from a2a_fabric.messages.replies import MESSAGE, reply_key
from a2a_fabric.messages.settings import MessageSettings

_GIVEN = "id:"  # before the sender's own id for a message, where keys are kept
_KEPT = "kept"  # before the key of what is for its sender alone
_DELIVERED = {"completed": "delivered", "input_required": "delivered"}
_PAGE = 100
_DELIVERIES = 100  # that are looked at for one page of a conversation
_PAGE_BYTES = 8 << 20  # about


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A message as its sender wants it. What is None is made up: the sender is the caller, the conversation new."""

    recipient: Party
    parts: tuple[Part, ...]
    sender: Party | None = None
    conversation_id: str | None = None
    given_id: str | None = None  # the sender's own; the same twice is the same message
    key: str | None = None  # to the same end, for senders without ids
    metadata: dict[str, Any] = {}
    reply_to: str | None = None
    capability: str | None = None  # of the agent that it is for
    ttl: float | None = None
    timeout_ms: int | None = None
    priority: int = NORMAL
    delegation_chain: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """`job` brings it to its agent; there is none for a message that waits in an inbox."""

    message: Message
    is_new: bool
    job: JobSummary | None = None


class MessageDesk:
    def __init__(
        self,
        store: Messages,
        jobs: JobDesk,
        parties: Parties,
        find: Callable[[str], Manifest | None],
        settings: MessageSettings,
        bells: Bells,
        sent: Callable[[], None] = lambda: None,
        share: float = SHARE,
    ) -> None:
        self.settings = settings
        self.jobs = jobs
        self._store = store
        self._parties = parties
        self._find = find
        self._bells = bells
        self._followers = Shares("followed conversations", settings.max_followers, share, retry_after=10.0)
        self._sent = sent  # told of each message, for metrics

    async def post(self, principal: Principal, trace: Trace, draft: Draft) -> Sent:
        """Write it down, and see to it that it gets there. The same id or key again gives the same message.

        Raises Forbidden, AgentNotFound, BadInput, Conflict, RateLimited and what else can be said of a call at once.
        """
        new = self._new(principal, draft)
        if draft.recipient.kind == "client":
            if draft.recipient != self._parties.self_of(principal):
                check_scope(principal, f"message:{draft.recipient.id}")
            posted = await self._written(new, None)
            return Sent(message=posted.message, is_new=posted.is_new)
        call = self._call(principal, trace, draft, new.conversation_id)
        await self.jobs.admit(call)
        posted = await self._written(new, call)
        job = posted.job or await self.delivery_of(principal, posted.message)
        return Sent(message=posted.message, is_new=posted.is_new, job=job)

    async def get(self, principal: Principal, message_id: str) -> Message:
        """By the caller's own id for it, or by ours. Raises MessageNotFound."""
        own = await patiently(lambda: self._store.find(owner_of(principal), _GIVEN + message_id))
        found = own or await patiently(lambda: self._store.get(message_id))
        if found is None or not self._parties.may_read(principal, found):
            raise MessageNotFound(message_id)
        return found

    async def keep(self, principal: Principal, key: str, part: Part) -> None:
        """Something that the caller wants to find again: a message to nobody. Raises Conflict for something else."""
        sender, owner = self._parties.self_of(principal), owner_of(principal)
        new = NewMessage(
            message_id=new_message_id(),
            conversation_id=conversation_for(owner, _KEPT),
            owner=owner,
            sender=sender,
            parts=(part,),
            key=f"{_KEPT}:{key}",
        )
        await patiently(lambda: self._store.append(new))

    async def kept(self, principal: Principal, key: str) -> Part | None:
        found = await patiently(lambda: self._store.find(owner_of(principal), f"{_KEPT}:{key}"))
        return None if found is None else found.parts[0]

    async def delivery_of(self, principal: Principal, message: Message) -> Job | None:
        """The job that brings it, for whoever wrote it."""
        if not message.is_brought or message.owner != owner_of(principal):
            return None
        with suppress(JobNotFound):
            return await self.jobs.get(principal, delivery_id(message.message_id))
        return None

    async def deliveries_of(self, principal: Principal, messages: Sequence[Message]) -> dict[str, Job]:
        """The jobs of those messages that have no reply among the others, by message: the newest, a bounded number."""
        replied = {message.reply_to for message in messages}
        waiting = [each for each in messages if each.is_brought and each.message_id not in replied]
        found = {each.message_id: await self.delivery_of(principal, each) for each in waiting[-_DELIVERIES:]}
        return {message_id: job for message_id, job in found.items() if job is not None}

    async def reply_to(self, principal: Principal, message: Message) -> Message | None:
        """What the agent said, if it has."""
        found = await patiently(lambda: self._store.find(message.owner, reply_key(message.message_id)))
        return found if found is not None and self._parties.may_read(principal, found) else None

    async def conversation(
        self, principal: Principal, conversation_id: str, *, after: int = 0, limit: int = _PAGE
    ) -> tuple[list[Message], int | None]:
        """In order, and where the next page begins: after `limit` messages, or fewer if they are large.

        Raises ConversationNotFound if nothing is the caller's to see.
        """
        seen: list[Message] = []
        at, room = after, _PAGE_BYTES
        while len(seen) < limit and room > 0:
            most = min(_PAGE, limit - len(seen))
            page = await patiently(
                lambda at=at, most=most: self._store.conversation(conversation_id, after=at, limit=most)  # type: ignore[misc]
            )
            if not page:
                break
            at = page[-1].number
            mine = [message for message in page if self._parties.may_read(principal, message)]
            seen += mine
            room -= sum(size_of_parts(message.parts) for message in mine)
        else:
            return seen, at
        if not seen and after == 0:
            raise ConversationNotFound(conversation_id)
        return seen, None

    def check_followers(self, principal: Principal) -> None:
        """Whether this caller may follow one conversation more. Raises RateLimited."""
        self._followers.check(principal.principal_id)

    async def follow(self, principal: Principal, conversation_id: str, after: int = 0) -> AsyncGenerator[Message]:
        """What was said after a number, and then what is said, until the node stops.

        Raises ConversationNotFound, RateLimited.
        """
        await self.conversation(principal, conversation_id, limit=1)
        with self._followers.held(principal.principal_id), self._bells.at(conversation_id) as bell:
            while not self._bells.is_over:
                page = await patiently(lambda at=after: self._store.conversation(conversation_id, after=at))  # type: ignore[misc]
                for message in page:
                    if self._parties.may_read(principal, message):
                        yield message
                    after = message.number
                if not page:
                    await rung(bell)

    def _new(self, principal: Principal, draft: Draft) -> NewMessage:
        """Raises Forbidden."""
        sender = draft.sender or self._parties.self_of(principal)
        self._parties.check(principal, sender, "sender.id")
        owner, key = owner_of(principal), _key_of(draft)
        return NewMessage(
            message_id=draft.given_id or new_message_id(),
            conversation_id=draft.conversation_id or conversation_for(owner, key),
            owner=owner,
            sender=sender,
            recipients=(draft.recipient,),
            parts=draft.parts,
            metadata=draft.metadata,
            key=key,
            reply_to=draft.reply_to,
            priority=draft.priority,
            expires_at=time.time() + self.settings.time_for(draft.ttl),
            is_brought=draft.recipient.kind == "agent",
        )

    def _call(self, principal: Principal, trace: Trace, draft: Draft, conversation_id: str) -> Call:
        """Raises AgentNotFound, CapabilityNotFound, BadInput."""
        known = self._find(draft.recipient.id)
        manifest = None if known is None else narrowed(principal, known)
        if manifest is None:
            check_named(principal, draft.recipient.id)
            raise AgentNotFound(draft.recipient.id)
        given = input_of(draft.parts)
        check_attachments(given)
        capability = capability_for(manifest, draft.capability, given)
        timeout_ms = self.jobs.settings.time_for(draft.timeout_ms)
        return Call(
            trace=trace,
            auth=principal,
            target=Target(agent_id=manifest.agent_id, capability=capability, timeout_ms=timeout_ms),
            input=given,
            response=ResponseForm(stream=True),
            conversation_id=conversation_id,
            delegation_chain=draft.delegation_chain,
        )

    async def _written(self, new: NewMessage, call: Call | None) -> Posted:
        """An id that somebody else has taken is only the sender's own name for it."""
        try:
            posted = await self._append(new, call)
        except Conflict:
            if new.key is None:
                return await self._own(new)
            if await self._sent_as(new.owner, new.key) is not None:
                raise
            posted = await self._append(msgspec.structs.replace(new, message_id=new_message_id()), call)
        if posted.is_new:
            self._sent()
            self._bells.ring(new.conversation_id)
        if posted.job is not None:
            self.jobs.begin(posted.job)
        return posted

    async def _sent_as(self, owner: str, key: str) -> Message | None:
        return await patiently(lambda: self._store.find(owner, key))

    async def _own(self, new: NewMessage) -> Posted:
        """Nobody else knows an id that we made up: the store had written it before it went away. Raises Conflict."""
        known = await patiently(lambda: self._store.get(new.message_id))
        if known is None or known.owner != new.owner:
            raise Conflict(f"There is a message '{new.message_id[:64]}' already")
        return Posted(known, True)

    async def _append(self, new: NewMessage, call: Call | None) -> Posted:
        """The message and the job that brings it are one write: neither is ever there without the other."""
        job = None if call is None else self.jobs.drafted(call, _wish(new, self.settings.keep_seconds))
        return await patiently(lambda: self._store.append(new, job))


def _wish(new: NewMessage, keep_seconds: float) -> JobWish:
    """What came of a message is remembered as long as the message is."""
    job_id = delivery_id(new.message_id)
    return JobWish(
        at_once=True,
        job_id=job_id,
        key=job_id,
        priority=new.priority,
        expires_at=new.expires_at,
        retention=keep_seconds,
        meta={MESSAGE: new.message_id},
    )


def delivery_view(job: JobSummary) -> dict[str, Any]:
    """How far a message has come on its way to the agent; `error` is why it failed, or why it is tried again."""
    view: dict[str, Any] = {
        "status": _DELIVERED.get(job.state, word_for(job.state, "rest")),
        "task_id": job.job_id,
        "attempts": job.attempt,
    }
    if job.error is not None:
        view["error"] = {"code": job.error.code, "message": job.error.message, "details": job.error.details}
    return view


def shown_id(message: Message) -> str:
    """The sender's own name for it, if it has one."""
    key = message.key or ""
    return key.removeprefix(_GIVEN) if key.startswith(_GIVEN) else message.message_id


def _key_of(draft: Draft) -> str | None:
    if draft.given_id is not None:
        return _GIVEN + draft.given_id
    return None if draft.key is None else f"key:{draft.key}"
