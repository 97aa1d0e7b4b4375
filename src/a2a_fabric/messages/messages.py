"""`Messages`, the facade of the message engine: post messages, read and follow conversations.

Every method acts for a principal. A message of another owner is reported as not found;
in a conversation every caller sees what it sent and what was sent to it. All methods
may raise StoreError."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call, Principal, ResponseForm, Target, check_attachments, owner_from_principal
from a2a_fabric.core.errors import AgentNotFound, Conflict, JobNotFound
from a2a_fabric.core.guards import Guards
from a2a_fabric.core.job import NORMAL, Job, JobSummary, translate_state
from a2a_fabric.core.limits import DEFAULT_SHARE, Share
from a2a_fabric.core.message import Message, NewMessage, Party, PostResult, measure_parts, new_message_id
from a2a_fabric.core.node_limits import build_limit
from a2a_fabric.core.policy import check_agent_name, check_scope
from a2a_fabric.core.propagation import Trace
from a2a_fabric.core.result import Part
from a2a_fabric.core.shared_counts import SharedCounts
from a2a_fabric.core.stores import MessageStore, retry_store_call
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.jobs.settings import JobOptions
from a2a_fabric.messages.answers import parse_answers
from a2a_fabric.messages.conversations import (
    ConversationNotFound,
    ConversationSignals,
    MessageNotFound,
    Senders,
    derive_conversation_id,
    derive_delivery_id,
    derive_older_delivery_id,
)
from a2a_fabric.messages.delivery import (
    CHOICE_META,
    MESSAGE_META,
    QUESTION_KEY,
    REPLY_PREFIX,
    choose_capability,
    describe_choice,
    input_from_parts,
    question_suffix,
    reply_key,
)
from a2a_fabric.messages.guards import MessageContent, guard_message
from a2a_fabric.messages.settings import MessageSettings

_SENDER_ID_PREFIX = "id:"  # of the key of a message that has an id of the sender's own
_PRIVATE_PREFIX = "kept"  # of the key of a message that only its sender can read
_DELIVERY_STATUS = {"completed": "delivered", "input_required": "delivered"}
_PAGE_SIZE = 100
_POLL_INTERVAL = 1.0  # seconds; other nodes that share the store send no signal
_MAX_DELIVERIES = 100  # jobs that are read for one page of a conversation
_PAGE_BYTES = 8 << 20  # approximate


class MessageDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A message as requested. By default the caller is the sender, and the conversation is new."""

    recipient: Party
    parts: tuple[Part, ...]
    sender: Party | None = None
    conversation_id: str | None = None
    sender_message_id: str | None = None  # the sender's own id; a second message with this id is the same message
    key: str | None = None  # an idempotency key, for senders without ids
    metadata: dict[str, Any] = {}
    reply_to: str | None = None
    capability: str | None = None  # of the recipient, if that is an agent
    ttl: float | None = None
    timeout_ms: int | None = None
    priority: int = NORMAL
    delegation_chain: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class SentMessage(msgspec.Struct, frozen=True, kw_only=True):
    """`job` delivers the message to its agent; it is None for a message that waits in an inbox."""

    message: Message
    is_new: bool
    job: JobSummary | None = None


class _Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """The call that delivers a message; `reason` says why it goes to this capability, if the message names none."""

    call: Call
    reason: str | None


class Messages:
    def __init__(
        self,
        store: MessageStore,
        jobs: Jobs,
        senders: Senders,
        find_agent: Callable[[Principal, str], Manifest | None],
        settings: MessageSettings,
        signals: ConversationSignals,
        on_sent: Callable[[], None] = lambda: None,
        share: Share = DEFAULT_SHARE,
        is_learnt: Callable[[str], bool] = lambda agent_id: False,
        guards: Guards | None = None,
        counts: SharedCounts | None = None,
    ) -> None:
        """`is_learnt`: whether an agent said itself what it offers."""
        self.settings = settings
        self.jobs = jobs
        self._store = store
        self._senders = senders
        self._find_agent = find_agent
        self._is_learnt = is_learnt
        self._signals = signals
        self._followers = build_limit(counts, "followed conversations", settings.max_followers, share, retry_after=10.0)
        self._guards = guards or Guards()
        self._on_sent = on_sent  # called for each new message, for metrics

    async def post(self, principal: Principal, trace: Trace, draft: MessageDraft) -> SentMessage:
        """Store the message and schedule its delivery. A repeated id or key returns the message that is stored already.

        A message that replies to an agent's question answers it, and the delivery that asked goes on.
        Raises Forbidden, AgentNotFound, BadInput, Conflict, RateLimited, and the errors of `Jobs.admit`.
        """
        new_message = self._build_message(principal, draft)
        if draft.recipient.kind == "client":
            if draft.recipient != self._senders.party_of(principal):
                check_scope(principal, f"message:{draft.recipient.id}")
            new_message = await self._guard(principal, new_message)
            posted = await self._store_message(new_message, None)
            return SentMessage(message=posted.message, is_new=posted.is_new)
        if draft.reply_to is not None and (question := await self._find_question(principal, draft)) is not None:
            return await self._post_answer(principal, new_message, question)
        delivery = self._build_delivery(principal, trace, draft, new_message.conversation_id)
        await self.jobs.admit(delivery.call)
        if self._guards:
            guarded = await self._guard(principal, new_message)
            if guarded is not new_message:
                new_message, draft = guarded, msgspec.structs.replace(draft, parts=guarded.parts)
                delivery = self._build_delivery(principal, trace, draft, new_message.conversation_id)
        posted = await self._store_message(new_message, delivery)
        job = posted.job or await self.find_delivery(principal, posted.message)
        return SentMessage(message=posted.message, is_new=posted.is_new, job=job)

    async def get(self, principal: Principal, message_id: str) -> Message:
        """`message_id` is the sender's own id or the node's. Raises MessageNotFound."""
        own_message = await retry_store_call(
            self._store.find, owner_from_principal(principal), _SENDER_ID_PREFIX + message_id
        )
        message = own_message or await retry_store_call(self._store.get, message_id)
        if message is None or not self._senders.may_read(principal, message):
            raise MessageNotFound(message_id)
        return message

    async def save_private(self, principal: Principal, key: str, part: Part) -> None:
        """Save a part for the caller, as a message without recipients. Raises Conflict if the key has another part."""
        sender, owner = self._senders.party_of(principal), owner_from_principal(principal)
        new_message = NewMessage(
            message_id=new_message_id(),
            conversation_id=derive_conversation_id(owner, _PRIVATE_PREFIX),
            owner=owner,
            sender=sender,
            parts=(part,),
            key=f"{_PRIVATE_PREFIX}:{key}",
        )
        await retry_store_call(self._store.append, new_message)

    async def load_private(self, principal: Principal, key: str) -> Part | None:
        message = await retry_store_call(self._store.find, owner_from_principal(principal), f"{_PRIVATE_PREFIX}:{key}")
        return None if message is None else message.parts[0]

    async def record(
        self,
        principal: Principal,
        conversation_id: str,
        *,
        parts: tuple[Part, ...],
        sender: Party | None = None,
        recipients: tuple[Party, ...] = (),
        metadata: dict[str, Any] | None = None,
        reply_to: str | None = None,
    ) -> Message:
        """Add a message to a conversation that was delivered already, or needs no delivery: it waits in no inbox.

        Only code of the node chooses another sender than the caller.
        """
        new_message = NewMessage(
            message_id=new_message_id(),
            conversation_id=conversation_id,
            owner=owner_from_principal(principal),
            sender=sender or self._senders.party_of(principal),
            recipients=recipients,
            parts=parts,
            metadata=metadata or {},
            reply_to=reply_to,
            is_brought=True,
        )
        return (await self._store_message(new_message, None)).message

    async def read_new(self, conversation_id: str, after: int, limit: int) -> Sequence[Message]:
        """The messages of all senders after a number; the caller of this method decides who may read them."""
        return await retry_store_call(self._store.read_conversation, conversation_id, after=after, limit=limit)

    async def find_delivery(self, principal: Principal, message: Message) -> Job | None:
        """The job that delivers the message, or that an answer lets go on; only the owner of the message gets it."""
        if not message.is_brought or message.owner != owner_from_principal(principal):
            return None
        origin = await self._find_origin(message)
        job_ids = (derive_delivery_id(origin.message_id, origin.key), derive_older_delivery_id(origin.message_id))
        for job_id in dict.fromkeys(job_ids):
            with suppress(JobNotFound):
                return await self.jobs.get(principal, job_id)
        return None

    async def find_deliveries(self, principal: Principal, messages: Sequence[Message]) -> dict[str, Job]:
        """The delivery jobs, by message id, of the newest messages that have no reply in the list."""
        replied = {message.reply_to for message in messages}
        unanswered = [each for each in messages if each.is_brought and each.message_id not in replied]
        jobs = {each.message_id: await self.find_delivery(principal, each) for each in unanswered[-_MAX_DELIVERIES:]}
        return {message_id: job for message_id, job in jobs.items() if job is not None}

    async def find_reply(self, principal: Principal, message: Message) -> Message | None:
        """The agent's reply to the message, or its open question, or None if there is neither yet."""
        origin = await self._find_origin(message)
        reply = await retry_store_call(self._store.find, origin.owner, reply_key(origin.message_id))
        if reply is None:
            job = await self.find_delivery(principal, origin)
            questions = None if job is None else job.open_questions
            if questions is not None:
                key = reply_key(origin.message_id, question_suffix(questions.continuation))
                reply = await retry_store_call(self._store.find, origin.owner, key)
        return reply if reply is not None and self._senders.may_read(principal, reply) else None

    async def _find_origin(self, message: Message) -> Message:
        """The message whose delivery asked what this one answers; the message itself if it is no answer."""
        question = None
        if message.is_brought and message.reply_to is not None:
            question = await self._load_question(message.reply_to)
        if question is None or question.reply_to is None or question.owner != message.owner:
            return message
        origin_id = question.reply_to
        return await retry_store_call(self._store.get, origin_id) or message

    async def _load_question(self, message_id: str) -> Message | None:
        message = await retry_store_call(self._store.get, message_id)
        is_reply = message is not None and (message.key or "").startswith(REPLY_PREFIX)
        return message if message is not None and is_reply and QUESTION_KEY in message.metadata else None

    async def _find_question(self, principal: Principal, draft: MessageDraft) -> Message | None:
        """The question of the recipient's that this message replies to."""
        question = None if draft.reply_to is None else await self._load_question(draft.reply_to)
        is_own = question is not None and question.owner == owner_from_principal(principal)
        return question if question is not None and is_own and question.sender == draft.recipient else None

    async def _post_answer(self, principal: Principal, new_message: NewMessage, question: Message) -> SentMessage:
        """Raises BadInput for parts that answer nothing, Conflict for a question that is no longer open.

        The message is stored first. If the node stops before the job has the answer, sending it again brings it there.
        """
        answer = msgspec.structs.replace(new_message, conversation_id=question.conversation_id)
        origin_id, key = question.reply_to or "", answer.key
        origin = await retry_store_call(self._store.get, origin_id)
        job = None if origin is None else await self.find_delivery(principal, origin)
        questions = None if job is None else job.open_questions
        if questions is not None and question.key != reply_key(origin_id, question_suffix(questions.continuation)):
            questions = None  # the agent asks something else by now
        answers = None if questions is None else parse_answers(answer.parts, questions)
        if answers is None and (key is None or await self._find_own(answer.owner, key) is None):
            raise Conflict("This question is no longer open: it was answered, or its delivery has ended")
        posted = await self._store_message(answer, None)
        if job is not None and answers is not None:
            await self.jobs.answer_named(principal, job.job_id, answers)
        return SentMessage(
            message=posted.message,
            is_new=posted.is_new,
            job=await self.find_delivery(principal, posted.message),
        )

    async def _find_own(self, owner: str, key: str) -> Message | None:
        return await retry_store_call(self._store.find, owner, key)

    async def read_conversation(
        self, principal: Principal, conversation_id: str, *, after: int = 0, limit: int = _PAGE_SIZE
    ) -> tuple[list[Message], int | None]:
        """The messages in order, and the position of the next page. A page of large messages has fewer than `limit`.

        Raises ConversationNotFound if the caller may read none of them.
        """
        readable: list[Message] = []
        position, bytes_left = after, _PAGE_BYTES
        while len(readable) < limit and bytes_left > 0:
            page_limit = min(_PAGE_SIZE, limit - len(readable))
            page = await retry_store_call(
                self._store.read_conversation, conversation_id, after=position, limit=page_limit
            )
            if not page:
                break
            position = page[-1].number
            readable_page = [message for message in page if self._senders.may_read(principal, message)]
            readable += readable_page
            bytes_left -= sum(measure_parts(message.parts) for message in readable_page)
        else:
            return readable, position
        if not readable and after == 0:
            raise ConversationNotFound(conversation_id)
        return readable, None

    def check_follower_limit(self, principal: Principal) -> None:
        """Raises RateLimited if this caller may not follow one more conversation."""
        self._followers.check(principal.principal_id)

    async def follow(self, principal: Principal, conversation_id: str, after: int = 0) -> AsyncGenerator[Message]:
        """Yield the messages after a number, and then new ones as they arrive, until the node stops.

        Raises ConversationNotFound, RateLimited.
        """
        await self.read_conversation(principal, conversation_id, limit=1)
        with self._followers.hold(principal.principal_id), self._signals.watch(conversation_id) as signal:
            while not self._signals.is_stopped:
                page = await retry_store_call(self._store.read_conversation, conversation_id, after=after)
                for message in page:
                    if self._senders.may_read(principal, message):
                        yield message
                    after = message.number
                if not page:
                    await signal.wait(_POLL_INTERVAL)

    async def _guard(self, principal: Principal, new_message: NewMessage) -> NewMessage:
        """The same message if no guard changes it. Raises Forbidden."""
        if not self._guards:
            return new_message
        content = MessageContent(parts=new_message.parts, metadata=new_message.metadata)
        readers = [each.id for each in new_message.recipients]
        checked = await guard_message(self._guards, principal, readers, "message.send", content)
        if checked is content:
            return new_message
        return msgspec.structs.replace(new_message, parts=checked.parts, metadata=checked.metadata)

    def _build_message(self, principal: Principal, draft: MessageDraft) -> NewMessage:
        """Raises Forbidden."""
        sender = draft.sender or self._senders.party_of(principal)
        self._senders.check(principal, sender, "sender.id")
        owner, key = owner_from_principal(principal), _idempotency_key(draft)
        return NewMessage(
            message_id=draft.sender_message_id or new_message_id(),
            conversation_id=draft.conversation_id or derive_conversation_id(owner, key),
            owner=owner,
            sender=sender,
            recipients=(draft.recipient,),
            parts=draft.parts,
            metadata=draft.metadata,
            key=key,
            reply_to=draft.reply_to,
            priority=draft.priority,
            expires_at=time.time() + self.settings.clamp_ttl(draft.ttl),
            is_brought=draft.recipient.kind == "agent",
        )

    def _build_delivery(
        self, principal: Principal, trace: Trace, draft: MessageDraft, conversation_id: str
    ) -> _Delivery:
        """Raises AgentNotFound, CapabilityNotFound, BadInput."""
        manifest = self._find_agent(principal, draft.recipient.id)
        if manifest is None:
            check_agent_name(principal, draft.recipient.id)
            raise AgentNotFound(draft.recipient.id)
        call_input = input_from_parts(draft.parts)
        check_attachments(call_input)
        is_learnt = self._is_learnt(manifest.agent_id)
        choice = choose_capability(manifest, draft.capability, call_input, is_learnt=is_learnt)
        timeout_ms = self.jobs.settings.clamp_timeout(draft.timeout_ms)
        call = Call(
            trace=trace,
            auth=principal,
            target=Target(agent_id=manifest.agent_id, capability=choice.capability.name, timeout_ms=timeout_ms),
            input=call_input,
            response=ResponseForm(stream=True),
            conversation_id=conversation_id,
            delegation_chain=draft.delegation_chain,
        )
        return _Delivery(call=call, reason=choice.reason)

    async def _store_message(self, new_message: NewMessage, delivery: _Delivery | None) -> PostResult:
        """If another owner has a message with the sender's id, a new id is stored, and the sender's id only as key."""
        try:
            posted = await self._append(new_message, delivery)
        except Conflict:
            owner, key = new_message.owner, new_message.key
            if key is None:
                return await self._load_own(new_message)
            if await retry_store_call(self._store.find, owner, key) is not None:
                raise
            posted = await self._append(msgspec.structs.replace(new_message, message_id=new_message_id()), delivery)
        if posted.is_new:
            self._on_sent()
            self._signals.post(new_message.conversation_id)
        if posted.job is not None:
            self.jobs.report_accepted(posted.job)
        return posted

    async def _load_own(self, new_message: NewMessage) -> PostResult:
        """The message that an interrupted write stored: its id is random. Raises Conflict if it is another owner's."""
        stored = await retry_store_call(self._store.get, new_message.message_id)
        if stored is None or stored.owner != new_message.owner:
            raise Conflict(f"There is already a message '{new_message.message_id[:64]}'")
        return PostResult(stored, True)

    def _append(self, new_message: NewMessage, delivery: _Delivery | None) -> Awaitable[PostResult]:
        """Store the message and its delivery job in one write, so that neither exists without the other."""
        job = None
        if delivery is not None:
            options = _delivery_options(new_message, delivery.reason, self.settings.keep_seconds)
            job = self.jobs.draft_job(delivery.call, options)
        return retry_store_call(self._store.append, new_message, job)


def _delivery_options(new_message: NewMessage, reason: str | None, keep_seconds: float) -> JobOptions:
    """The options of the delivery job, which is kept as long as its message. Its id is enough to have it once."""
    return JobOptions(
        at_once=True,
        job_id=derive_delivery_id(new_message.message_id, new_message.key),
        priority=new_message.priority,
        expires_at=new_message.expires_at,
        retention=keep_seconds,
        meta={MESSAGE_META: new_message.message_id, **({} if reason is None else {CHOICE_META: reason})},
    )


def render_delivery(job: JobSummary) -> dict[str, Any]:
    """The state of a delivery; `error` says why it failed or why it will be retried."""
    view: dict[str, Any] = {
        "status": _DELIVERY_STATUS.get(job.state, translate_state(job.state, "rest")),
        "task_id": job.job_id,
        "attempts": job.attempt,
        **describe_choice(job.capability, job.meta.get(CHOICE_META)),
    }
    if job.error is not None:
        view["error"] = {"code": job.error.code, "message": job.error.message, "details": job.error.details}
    return view


def public_message_id(message: Message) -> str:
    """The sender's own id if there is one, else the node's."""
    key = message.key or ""
    return key.removeprefix(_SENDER_ID_PREFIX) if key.startswith(_SENDER_ID_PREFIX) else message.message_id


def _idempotency_key(draft: MessageDraft) -> str | None:
    if draft.sender_message_id is not None:
        return _SENDER_ID_PREFIX + draft.sender_message_id
    return None if draft.key is None else f"key:{draft.key}"
