"""Operations on inboxes and topics: send, receive, acknowledge, publish, queue status, subscribe.

The shapes are those of the older platform's message bus. Nobody sends in somebody
else's name: `from_agent` is the caller itself or an agent of the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import AGENT_ID_PATTERN
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.message import Delivery, Message, Party
from a2a_fabric.core.part import AnyJSON, Part
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.result import Result
from a2a_fabric.messages.desk import MessageDesk, delivery_view, shown_id
from a2a_fabric.messages.post_office import Letter, PostOffice
from a2a_fabric.operations.operation import Operation, Request, Traced

_PRIORITY_WORDS = {"low": 1, "normal": 2, "high": 3, "urgent": 4}
_TYPE, _CORRELATION, _TTL = "message_type", "correlation_id", "ttl_seconds"
_OBJECT: dict[str, Any] = {"type": "object"}
_MOST_WAITED_MS = 60_000

Name = Annotated[str, Meta(max_length=128, pattern=AGENT_ID_PATTERN)]
Topic = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]
Word = Annotated[str, Meta(min_length=1, max_length=256)]
Priority = Annotated[
    Annotated[int, Meta(ge=1, le=4)] | Literal["low", "normal", "high", "urgent"],
    Meta(description="1 (low) to 4 (urgent), or the word."),
]
Whose = Annotated[Name | None, Meta(description="Whose inbox: an agent of yours. Unset: your own.")]


class SendArguments(Traced, frozen=True, kw_only=True):
    to_agent: Annotated[Name, Meta(description="Whose inbox it goes to.")]
    payload: Annotated[AnyJSON, Meta(description="Any JSON.")] = None
    from_agent: Annotated[Name | None, Meta(description="You, or an agent of yours. Unset: you.")] = None
    message_type: Annotated[Word, Meta(description="task, response, event, heartbeat, …")] = "task"
    priority: Priority = 2
    ttl_seconds: Annotated[float, Meta(gt=0, lt=1e10)] | None = None
    reply_to: Annotated[Word | None, Meta(description="The message that this answers, or whoever waits.")] = None
    correlation_id: Word | None = None
    idempotency_key: Word | None = None


class ReceiveArguments(Traced, frozen=True, kw_only=True):
    agent_id: Whose = None
    count: Annotated[int, Meta(ge=1, le=1000, description="How many at most.")] = 10
    block_ms: Annotated[int, Meta(ge=0, description="Wait so long if there is nothing.")] = 5000
    auto_ack: Annotated[bool, Meta(description="Acknowledge at once: then nothing comes again.")] = False
    hold_ms: Annotated[int, Meta(ge=100, le=3_600_000, description="What is not acknowledged by then comes again.")] = (
        30_000
    )
    consumer_group: Annotated[str | None, Meta(description="Ignored: all receivers of an inbox share it.")] = None


class AcknowledgeArguments(Traced, frozen=True, kw_only=True):
    message_ids: Annotated[
        tuple[str | int, ...], Meta(max_length=1000, description="`_stream_id` of each that you are done with.")
    ]
    agent_id: Whose = None
    consumer_group: str | None = None


class PublishArguments(Traced, frozen=True, kw_only=True):
    topic: Topic
    message: Annotated[AnyJSON, Meta(description="Any JSON.")] = None
    from_agent: Name | None = None
    message_type: Word = "event"
    priority: Priority = 2
    ttl_seconds: Annotated[float, Meta(gt=0, lt=1e10)] | None = None


class InboxArguments(Traced, frozen=True, kw_only=True):
    agent_id: Whose = None


class SubscribeArguments(InboxArguments, frozen=True, kw_only=True):
    topic: Topic


class TopicsArguments(Traced, frozen=True, kw_only=True):
    after: Annotated[str, Meta(max_length=256, description="Begin after this name.")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class StatusArguments(Traced, frozen=True, kw_only=True):
    message_id: Annotated[Word, Meta(description="Your own id for it, or the one that it was given.")]


class MessageOperations:
    def __init__(self, office: PostOffice, desk: MessageDesk) -> None:
        self._office = office
        self._desk = desk

    def all(self) -> list[Operation[Any]]:
        return [
            Operation("fabric.message.send", "Put a message into an agent's inbox.", SendArguments, self.send,
                      output=_OBJECT, scopes=("message", "agent"), read_only=False),
            Operation("fabric.message.receive", "Fetch what waits in an inbox; acknowledge it, or it comes again.",
                      ReceiveArguments, self.receive, output=_OBJECT, scopes=(), read_only=False),
            Operation("fabric.message.acknowledge", "Be done with messages that you received.", AcknowledgeArguments,
                      self.acknowledge, output=_OBJECT, scopes=(), read_only=False),
            Operation("fabric.message.publish", "Put a message into every inbox that subscribed to a topic.",
                      PublishArguments, self.publish, output=_OBJECT, scopes=("topic", "publish"), read_only=False),
            Operation("fabric.message.queue_status", "Show how much waits in an inbox.", InboxArguments, self.status,
                      output=_OBJECT, scopes=()),
            Operation("fabric.message.status", "Show what became of a message that was sent to an agent, and why.",
                      StatusArguments, self.delivery, output=_OBJECT, scopes=()),
            Operation("fabric.message.subscribe", "Let an inbox get what is published under a topic.",
                      SubscribeArguments, self.subscribe, output=_OBJECT, scopes=("topic", "subscribe"),
                      read_only=False),
            Operation("fabric.message.unsubscribe", "Let an inbox get it no longer.", SubscribeArguments,
                      self.unsubscribe, output=_OBJECT, scopes=("topic", "subscribe"), read_only=False),
            Operation("fabric.message.topics", "List the topics that somebody subscribed to.", TopicsArguments,
                      self.topics, output=_OBJECT, scopes=("topic", "publish", "subscribe")),
        ]  # fmt: skip

    async def send(self, arguments: SendArguments, request: Request, emit: Emit) -> Result:
        letter = _letter(arguments, arguments.payload)
        letter = msgspec.structs.replace(
            letter,
            metadata={**letter.metadata, **_present(correlation_id=arguments.correlation_id)},
            reply_to=arguments.reply_to,
            key=arguments.idempotency_key,
        )
        posted = await self._office.send(request.principal, Party(id=arguments.to_agent), letter)
        message = posted.message
        return Result(
            data={
                "message_id": message.message_id,
                "status": "queued",
                "stream_id": f"{message.conversation_id}-{message.number}",
                "timestamp": _iso(message.sent_at),
            }
        )

    async def receive(self, arguments: ReceiveArguments, request: Request, emit: Emit) -> Result:
        party = self._party(arguments.agent_id, request)
        found = await self._office.receive(
            request.principal,
            party,
            limit=arguments.count,
            hold=arguments.hold_ms / 1000,
            wait=min(arguments.block_ms, _MOST_WAITED_MS) / 1000,
        )
        if arguments.auto_ack and found:
            await self._office.acknowledge(request.principal, party, [each.entry for each in found])
        messages = [_received(each, party) for each in found]
        return Result(data={"messages": messages, "count": len(messages), "agent_id": party.id})

    async def acknowledge(self, arguments: AcknowledgeArguments, request: Request, emit: Emit) -> Result:
        party = self._party(arguments.agent_id, request)
        entries = [_entry(each) for each in arguments.message_ids]
        done = set(await self._office.acknowledge(request.principal, party, [e for e in entries if e is not None]))
        told = [
            {"id": str(given), "acked": entry in done}
            for given, entry in zip(arguments.message_ids, entries, strict=True)
        ]
        return Result(data={"acknowledged": told})

    async def publish(self, arguments: PublishArguments, request: Request, emit: Emit) -> Result:
        letter = _letter(arguments, arguments.message)
        posted = await self._office.publish(request.principal, arguments.topic, letter)
        return Result(
            data={
                "topic": arguments.topic,
                "recipients": posted.inboxes,
                **({"full": posted.full} if posted.full else {}),
                "published": True,
                "message_id": posted.message.message_id,
            }
        )

    async def status(self, arguments: InboxArguments, request: Request, emit: Emit) -> Result:
        party = self._party(arguments.agent_id, request)
        found = await self._office.status(request.principal, party)
        info = {"inbox": found.inbox, "waiting": found.waiting, "held": found.held}
        return Result(data={"agent_id": party.id, "queue_depth": found.waiting + found.held, "stream_info": info})

    async def delivery(self, arguments: StatusArguments, request: Request, emit: Emit) -> Result:
        message = await self._desk.get(request.principal, arguments.message_id)
        job = await self._desk.delivery_of(request.principal, message)
        reply = await self._desk.reply_to(request.principal, message)
        told: dict[str, Any] = {
            "message_id": shown_id(message),
            "conversation_id": message.conversation_id,
            "to": [party.id for party in message.recipients],
            "timestamp": _iso(message.sent_at),
            "delivery": None if job is None else delivery_view(job),
            "reply_id": None if reply is None else reply.message_id,
        }
        return Result(data=told)

    async def subscribe(self, arguments: SubscribeArguments, request: Request, emit: Emit) -> Result:
        party = self._party(arguments.agent_id, request)
        is_new = await self._office.subscribe(request.principal, party, arguments.topic)
        return Result(data={"topic": arguments.topic, "agent_id": party.id, "subscribed": True, "is_new": is_new})

    async def unsubscribe(self, arguments: SubscribeArguments, request: Request, emit: Emit) -> Result:
        party = self._party(arguments.agent_id, request)
        was = await self._office.unsubscribe(request.principal, party, arguments.topic)
        return Result(data={"topic": arguments.topic, "agent_id": party.id, "subscribed": False, "was": was})

    async def topics(self, arguments: TopicsArguments, request: Request, emit: Emit) -> Result:
        found = await self._office.topics(request.principal, after=arguments.after, limit=arguments.limit)
        topics = [{"topic": name, "subscribers": number} for name, number in found]
        return Result(data={"topics": topics, "count": len(topics)})

    def _party(self, agent_id: str | None, request: Request) -> Party:
        return self._office.self_of(request.principal) if agent_id is None else Party(id=agent_id)


def _letter(arguments: SendArguments | PublishArguments, payload: Any) -> Letter:
    return Letter(
        parts=(Part(kind="json", data=payload),),
        metadata={_TYPE: arguments.message_type, **_present(ttl_seconds=arguments.ttl_seconds)},
        sender=None if arguments.from_agent is None else Party(id=arguments.from_agent),
        priority=_priority(arguments.priority),
        ttl=arguments.ttl_seconds,
    )


def _priority(given: int | str) -> int:
    return given if isinstance(given, int) else _PRIORITY_WORDS[given]


def _present(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _received(delivery: Delivery, party: Party) -> dict[str, Any]:
    message = delivery.message
    told: dict[str, Any] = {
        "id": message.message_id,
        "from_agent": message.sender.id,
        "to_agent": party.id,
        "message_type": message.metadata.get(_TYPE, "message"),
        "payload": _payload(message.parts),
        "timestamp": _iso(message.sent_at),
        "priority": message.priority,
        "ttl_seconds": _ttl(message),
        "reply_to": message.reply_to,
        "correlation_id": message.metadata.get(_CORRELATION),
        "conversation_id": message.conversation_id,
        "attempt": delivery.attempt,
        "_stream_id": str(delivery.entry),
    }
    return told if message.topic is None else {**told, "topic": message.topic}


def _payload(parts: Sequence[Part]) -> Any:
    """What was sent; of a message that came through another door, its parts."""
    if len(parts) == 1 and parts[0].kind == "json":
        return parts[0].data
    return {"parts": msgspec.to_builtins(parts)}


def _ttl(message: Message) -> float | None:
    given = message.metadata.get(_TTL)
    if given is not None:
        return float(given)
    return None if message.expires_at is None else float(round(message.expires_at - message.sent_at))


def _entry(given: str | int) -> int | None:
    """None for what is none of our ids, which then is not there."""
    text = str(given)
    if not text:
        raise BadInput("message_ids: an empty one", field="message_ids")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
