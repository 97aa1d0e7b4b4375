"""Operations on inboxes and topics: send, receive, acknowledge, publish, queue status, subscribe.

The argument and result shapes are those of an older message bus. `from_agent` is
the caller itself or an agent that it registered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import AGENT_ID_PATTERN, LINE_PATTERN
from a2a_fabric.core.call import Emit
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.job import PRIORITY_BY_NAME, JobPriority
from a2a_fabric.core.message import Delivery, Message, Party
from a2a_fabric.core.result import AnyJSON, Part, Result, format_timestamp
from a2a_fabric.messages.guards import NOTES_KEY
from a2a_fabric.messages.inboxes import InboxDraft, Inboxes
from a2a_fabric.messages.messages import Messages, public_message_id, render_delivery
from a2a_fabric.operations.operation import Operation, OperationRequest, TracedArguments

_TYPE, _CORRELATION, _TTL = "message_type", "correlation_id", "ttl_seconds"
_MAX_BLOCK_MS = 60_000

AgentName = Annotated[str, Meta(max_length=128, pattern=AGENT_ID_PATTERN)]
TopicName = Annotated[str, Meta(min_length=1, max_length=256, pattern=LINE_PATTERN)]
ShortText = Annotated[str, Meta(min_length=1, max_length=256)]
MessagePriority = Annotated[
    Annotated[int, Meta(ge=1, le=4)] | JobPriority,
    Meta(description="1 (low) to 4 (urgent), or the word."),
]
InboxAgentId = Annotated[AgentName | None, Meta(description="Whose inbox: an agent of yours. Unset: your own.")]


class SendArguments(TracedArguments, frozen=True, kw_only=True):
    to_agent: Annotated[AgentName, Meta(description="Whose inbox it goes to.")]
    payload: Annotated[AnyJSON, Meta(description="Any JSON.")] = None
    from_agent: Annotated[AgentName | None, Meta(description="You, or an agent of yours. Unset: you.")] = None
    message_type: Annotated[ShortText, Meta(description="task, response, event, heartbeat, …")] = "task"
    priority: MessagePriority = 2
    ttl_seconds: Annotated[float, Meta(gt=0, lt=1e10)] | None = None
    reply_to: Annotated[ShortText | None, Meta(description="The message that this answers.")] = None
    correlation_id: ShortText | None = None
    idempotency_key: ShortText | None = None


class ReceiveArguments(TracedArguments, frozen=True, kw_only=True):
    agent_id: InboxAgentId = None
    count: Annotated[int, Meta(ge=1, le=1000, description="How many at most.")] = 10
    block_ms: Annotated[int, Meta(ge=0, description="Wait so long if there is nothing.")] = 5000
    auto_ack: Annotated[bool, Meta(description="Acknowledge at once: then nothing comes again.")] = False
    hold_ms: Annotated[int, Meta(ge=100, le=3_600_000, description="What is not acknowledged by then comes again.")] = (
        30_000
    )
    consumer_group: Annotated[str | None, Meta(description="Ignored: all receivers of an inbox share it.")] = None


class AcknowledgeArguments(TracedArguments, frozen=True, kw_only=True):
    message_ids: Annotated[
        tuple[str | int, ...], Meta(max_length=1000, description="`_stream_id` of each that you are done with.")
    ]
    agent_id: InboxAgentId = None
    consumer_group: str | None = None


class PublishArguments(TracedArguments, frozen=True, kw_only=True):
    topic: TopicName
    message: Annotated[AnyJSON, Meta(description="Any JSON.")] = None
    from_agent: AgentName | None = None
    message_type: ShortText = "event"
    priority: MessagePriority = 2
    ttl_seconds: Annotated[float, Meta(gt=0, lt=1e10)] | None = None


class InboxArguments(TracedArguments, frozen=True, kw_only=True):
    agent_id: InboxAgentId = None


class SubscribeArguments(InboxArguments, frozen=True, kw_only=True):
    topic: TopicName


class TopicsArguments(TracedArguments, frozen=True, kw_only=True):
    after: Annotated[str, Meta(max_length=256, description="Begin after this name.")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class StatusArguments(TracedArguments, frozen=True, kw_only=True):
    message_id: Annotated[ShortText, Meta(description="Your own id for it, or the one that it was given.")]


class MessageOperations:
    def __init__(self, inboxes: Inboxes, messages: Messages) -> None:
        self._inboxes = inboxes
        self._messages = messages

    def all(self) -> list[Operation[Any]]:
        return [
            Operation("fabric.message.send", "Put a message into an agent's inbox.", SendArguments, self.send,
                      scopes=("message", "agent"), read_only=False),
            Operation("fabric.message.receive", "Fetch what waits in an inbox; acknowledge it, or it comes again.",
                      ReceiveArguments, self.receive, scopes=(), read_only=False),
            Operation("fabric.message.acknowledge", "Be done with messages that you received.", AcknowledgeArguments,
                      self.acknowledge, scopes=(), read_only=False),
            Operation("fabric.message.publish", "Put a message into every inbox that subscribed to a topic.",
                      PublishArguments, self.publish, scopes=("topic", "publish"), read_only=False),
            Operation("fabric.message.queue_status", "Show how much waits in an inbox.", InboxArguments,
                      self.queue_status, scopes=()),
            Operation("fabric.message.status", "Show what became of a message that was sent to an agent, and why.",
                      StatusArguments, self.delivery_status, scopes=()),
            Operation("fabric.message.subscribe", "Let an inbox get what is published under a topic.",
                      SubscribeArguments, self.subscribe, scopes=("topic", "subscribe"), read_only=False),
            Operation("fabric.message.unsubscribe", "Let an inbox get it no longer.", SubscribeArguments,
                      self.unsubscribe, scopes=("topic", "subscribe"), read_only=False),
            Operation("fabric.message.topics", "List the topics that have subscribers.", TopicsArguments, self.topics,
                      scopes=("topic", "publish", "subscribe")),
        ]  # fmt: skip

    async def send(self, arguments: SendArguments, request: OperationRequest, emit: Emit) -> Result:
        draft = _build_draft(arguments, arguments.payload)
        draft = msgspec.structs.replace(
            draft,
            metadata={**draft.metadata, **_drop_none(correlation_id=arguments.correlation_id)},
            reply_to=arguments.reply_to,
            key=arguments.idempotency_key,
        )
        posted = await self._inboxes.send(request.principal, Party(id=arguments.to_agent), draft)
        message = posted.message
        return Result(
            data={
                "message_id": message.message_id,
                "status": "queued",
                "stream_id": f"{message.conversation_id}-{message.number}",
                "timestamp": format_timestamp(message.sent_at),
                **_drop_none(note=self._inboxes.describe_missing(Party(id=arguments.to_agent))),
                **_render_notes(message),
            }
        )

    async def receive(self, arguments: ReceiveArguments, request: OperationRequest, emit: Emit) -> Result:
        party = self._party_for(arguments.agent_id, request)
        deliveries = await self._inboxes.receive(
            request.principal,
            party,
            limit=arguments.count,
            hold=arguments.hold_ms / 1000,
            wait=min(arguments.block_ms, _MAX_BLOCK_MS) / 1000,
        )
        if arguments.auto_ack and deliveries:
            await self._inboxes.acknowledge(request.principal, party, [each.entry for each in deliveries])
        messages = [_render_delivery(each, party) for each in deliveries]
        return Result(data={"messages": messages, "count": len(messages), "agent_id": party.id})

    async def acknowledge(self, arguments: AcknowledgeArguments, request: OperationRequest, emit: Emit) -> Result:
        party = self._party_for(arguments.agent_id, request)
        entries = [_parse_entry(each) for each in arguments.message_ids]
        done = set(await self._inboxes.acknowledge(request.principal, party, [e for e in entries if e is not None]))
        acknowledged = [
            {"id": str(message_id), "acked": entry in done}
            for message_id, entry in zip(arguments.message_ids, entries, strict=True)
        ]
        return Result(data={"acknowledged": acknowledged})

    async def publish(self, arguments: PublishArguments, request: OperationRequest, emit: Emit) -> Result:
        draft = _build_draft(arguments, arguments.message)
        posted = await self._inboxes.publish(request.principal, arguments.topic, draft)
        return Result(
            data={
                "topic": arguments.topic,
                "recipients": posted.inboxes,
                **({"full": posted.full} if posted.full else {}),
                "published": True,
                "message_id": posted.message.message_id,
                **_render_notes(posted.message),
            }
        )

    async def queue_status(self, arguments: InboxArguments, request: OperationRequest, emit: Emit) -> Result:
        party = self._party_for(arguments.agent_id, request)
        inbox_status = await self._inboxes.status(request.principal, party)
        info = {"inbox": inbox_status.inbox, "waiting": inbox_status.waiting, "held": inbox_status.held}
        return Result(
            data={"agent_id": party.id, "queue_depth": inbox_status.waiting + inbox_status.held, "stream_info": info}
        )

    async def delivery_status(self, arguments: StatusArguments, request: OperationRequest, emit: Emit) -> Result:
        message = await self._messages.get(request.principal, arguments.message_id)
        job = await self._messages.find_delivery(request.principal, message)
        reply = await self._messages.find_reply(request.principal, message)
        data: dict[str, Any] = {
            "message_id": public_message_id(message),
            "conversation_id": message.conversation_id,
            "to": [party.id for party in message.recipients],
            "timestamp": format_timestamp(message.sent_at),
            "delivery": None if job is None else render_delivery(job),
            "reply_id": None if reply is None else reply.message_id,
        }
        return Result(data=data)

    async def subscribe(self, arguments: SubscribeArguments, request: OperationRequest, emit: Emit) -> Result:
        party = self._party_for(arguments.agent_id, request)
        is_new = await self._inboxes.subscribe(request.principal, party, arguments.topic)
        return Result(data={"topic": arguments.topic, "agent_id": party.id, "subscribed": True, "is_new": is_new})

    async def unsubscribe(self, arguments: SubscribeArguments, request: OperationRequest, emit: Emit) -> Result:
        party = self._party_for(arguments.agent_id, request)
        was_subscribed = await self._inboxes.unsubscribe(request.principal, party, arguments.topic)
        return Result(data={"topic": arguments.topic, "agent_id": party.id, "subscribed": False, "was": was_subscribed})

    async def topics(self, arguments: TopicsArguments, request: OperationRequest, emit: Emit) -> Result:
        rows = await self._inboxes.list_topics(request.principal, after=arguments.after, limit=arguments.limit)
        topics = [{"topic": name, "subscribers": number} for name, number in rows]
        return Result(data={"topics": topics, "count": len(topics)})

    def _party_for(self, agent_id: str | None, request: OperationRequest) -> Party:
        return self._inboxes.party_of(request.principal) if agent_id is None else Party(id=agent_id)


def _build_draft(arguments: SendArguments | PublishArguments, payload: Any) -> InboxDraft:
    return InboxDraft(
        parts=(Part(kind="json", data=payload),),
        metadata={_TYPE: arguments.message_type, **_drop_none(ttl_seconds=arguments.ttl_seconds)},
        sender=None if arguments.from_agent is None else Party(id=arguments.from_agent),
        priority=arguments.priority if isinstance(arguments.priority, int) else PRIORITY_BY_NAME[arguments.priority],
        ttl=arguments.ttl_seconds,
    )


def _drop_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _render_delivery(delivery: Delivery, party: Party) -> dict[str, Any]:
    message = delivery.message
    rendered: dict[str, Any] = {
        "id": message.message_id,
        "from_agent": message.sender.id,
        "to_agent": party.id,
        "message_type": message.metadata.get(_TYPE, "message"),
        "payload": _render_payload(message.parts),
        "timestamp": format_timestamp(message.sent_at),
        "priority": message.priority,
        "ttl_seconds": _read_ttl(message),
        "reply_to": message.reply_to,
        "correlation_id": message.metadata.get(_CORRELATION),
        "conversation_id": message.conversation_id,
        "attempt": delivery.attempt,
        "_stream_id": str(delivery.entry),
        **_render_notes(message),
    }
    return rendered if message.topic is None else {**rendered, "topic": message.topic}


def _render_notes(message: Message) -> dict[str, Any]:
    """What guards changed, if they did."""
    return _drop_none(notes=message.metadata.get(NOTES_KEY))


def _render_payload(parts: Sequence[Part]) -> Any:
    """The payload that was sent, or the parts of a message that was sent through another door."""
    if len(parts) == 1 and parts[0].kind == "json":
        return parts[0].data
    return {"parts": msgspec.to_builtins(parts)}


def _read_ttl(message: Message) -> float | None:
    ttl = message.metadata.get(_TTL)
    if ttl is not None:
        return float(ttl)
    return None if message.expires_at is None else float(round(message.expires_at - message.sent_at))


def _parse_entry(value: str | int) -> int | None:
    """The number of an entry, or None if the id is not one that this node made."""
    text = str(value)
    if not text:
        raise BadInput("message_ids contains an empty id", field="message_ids")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
