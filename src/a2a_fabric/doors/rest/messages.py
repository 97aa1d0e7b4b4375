"""Messages and conversations: sent, looked at, followed, and fetched from the caller's own inbox."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import msgspec

from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.job import JobSummary
from a2a_fabric.core.message import Message, Party
from a2a_fabric.doors.replying import frame
from a2a_fabric.doors.rest import faults, wire
from a2a_fabric.doors.rest.moments import iso
from a2a_fabric.doors.rest.paging import next_page, number_in, place_of
from a2a_fabric.doors.rest.parts import received, shown
from a2a_fabric.doors.rest.priorities import PRIORITIES
from a2a_fabric.doors.rest.visit import Answer, Endpoint, Stream, Visit
from a2a_fabric.messages.desk import Draft, MessageDesk, delivery_view, shown_id
from a2a_fabric.messages.post_office import PostOffice

_HELLO = {"parts": [{"type": "text", "content": "hello"}]}
_encode = msgspec.json.Encoder().encode


class Messages:
    def __init__(self, desk: MessageDesk, office: PostOffice) -> None:
        self._desk = desk
        self._office = office

    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint(verb="POST", path="/messages", handler=self.send, summary="Send a message.", tag="messages",
                     body=wire.NewMessage, reply=wire.Message, status=201, is_keyed=True,
                     example={"recipient": {"id": "percy", "type": "agent"}, **_HELLO}),
            Endpoint(verb="POST", path="/agents/{agent_id}/messages", handler=self.send_to_agent, tag="messages",
                     summary="Send a message to an agent.", body=wire.NewAgentMessage, reply=wire.Message, status=201,
                     is_keyed=True, example=_HELLO),
            Endpoint(verb="GET", path="/messages/{message_id}", handler=self.show, summary="Show a message.",
                     tag="messages", reply=wire.Message),
            Endpoint(verb="GET", path="/messages/{message_id}/reply", handler=self.reply, tag="messages",
                     summary="Show what the agent said to a message.", reply=wire.Message, query=wire.ReplyQuery),
            Endpoint(verb="GET", path="/conversations/{conversation_id}/messages", handler=self.conversation,
                     tag="conversations", summary="List the messages of a conversation.", reply=wire.Messages,
                     query=wire.PageQuery),
            Endpoint(verb="GET", path="/conversations/{conversation_id}/events", handler=self.events,
                     tag="conversations", summary="Follow a conversation: each message is an event.", reply=None,
                     query=wire.EventsQuery),
            Endpoint(verb="GET", path="/inbox", handler=self.inbox, summary="Receive what waits for the caller.",
                     tag="inbox", reply=wire.Inbox, query=wire.InboxQuery),
            Endpoint(verb="POST", path="/inbox/acknowledgements", handler=self.acknowledge, tag="inbox",
                     summary="Be done with what was received.", body=wire.Acknowledgement, reply=wire.Acknowledgement,
                     example={"entries": [1]}),
        )  # fmt: skip

    async def send(self, visit: Visit) -> Answer:
        body: wire.NewMessage = visit.body
        return await self._sent(body, body.recipient, visit)

    async def send_to_agent(self, visit: Visit) -> Answer:
        body: wire.NewAgentMessage = visit.body
        agent = wire.Recipient(id=visit.path["agent_id"])
        if body.recipient not in (None, agent):
            raise BadInput("recipient is another than the address names", field="recipient", issue="not this agent")
        return await self._sent(body, agent, visit)

    async def _sent(self, body: wire.NewAgentMessage, recipient: wire.Recipient, visit: Visit) -> Answer:
        with faults.used_once(body.id, visit.key, "message"):
            sent = await self._desk.post(visit.principal, visit.trace, drafted(body, recipient, visit))
        view = self._view(sent.message, sent.job)
        address = place_of("messages", view.id, sent.message.message_id)
        return Answer(body=view, status=201 if sent.is_new else 200, headers=[(b"location", address)])

    async def show(self, visit: Visit) -> Answer:
        message = await self._desk.get(visit.principal, visit.path["message_id"])
        return Answer(body=self._view(message, await self._desk.delivery_of(visit.principal, message)))

    async def reply(self, visit: Visit) -> Answer:
        """Raises what the delivery came to, if nobody will reply any more; NothingHere while nobody has."""
        message = await self._desk.get(visit.principal, visit.path["message_id"])
        reply = await self._desk.reply_to(visit.principal, message)
        job = await self._desk.delivery_of(visit.principal, message)
        if reply is None and job is not None:
            await self._desk.jobs.result(visit.principal, job.job_id, visit.query.wait)
            reply = await self._desk.reply_to(visit.principal, message)
        if reply is None:
            raise faults.NothingHere("There is no reply yet", issue="no reply yet")
        return Answer(body=self._view(reply))

    async def conversation(self, visit: Visit) -> Answer:
        conversation_id, query = visit.path["conversation_id"], visit.query
        messages, after = await self._desk.conversation(
            visit.principal, conversation_id, after=number_in(query.cursor), limit=query.limit
        )
        cursor = None if after is None else str(after)
        jobs = await self._desk.deliveries_of(visit.principal, messages)
        views = tuple(self._view(each, jobs.get(each.message_id)) for each in messages)
        page = wire.Messages(messages=views, next_cursor=cursor)
        where = f"/conversations/{quote(conversation_id, safe='')}/messages"
        return Answer(body=page, headers=next_page(visit, where, cursor, query.limit))

    async def events(self, visit: Visit) -> Stream:
        after = visit.query.after if visit.after is None else visit.after
        conversation_id = visit.path["conversation_id"]
        await self._desk.conversation(visit.principal, conversation_id, limit=1)
        self._desk.check_followers(visit.principal)

        async def frames() -> AsyncGenerator[bytes]:
            async with aclosing(self._desk.follow(visit.principal, conversation_id, after or 0)) as messages:
                async for message in messages:
                    yield frame("message", message.number, _encode(self._view(message)))

        return Stream(frames=frames())

    async def inbox(self, visit: Visit) -> Answer:
        query: wire.InboxQuery = visit.query
        found = await self._office.receive_own(visit.principal, limit=query.limit, hold=query.hold, wait=query.wait)
        deliveries = [
            wire.Delivery(entry=each.entry, attempt=each.attempt, message=self._view(each.message)) for each in found
        ]
        return Answer(body=wire.Inbox(deliveries=tuple(deliveries)))

    async def acknowledge(self, visit: Visit) -> Answer:
        done = await self._office.acknowledge_own(visit.principal, visit.body.entries)
        return Answer(body=wire.Acknowledgement(entries=tuple(done)))

    def _view(self, message: Message, job: JobSummary | None = None) -> wire.Message:
        metadata: dict[str, Any] = {**message.metadata, "conversation_id": message.conversation_id}
        if message.reply_to is not None:
            metadata["in_reply_to"] = message.reply_to
        if message.topic is not None:
            metadata["topic"] = message.topic
        if job is not None:
            metadata["delivery"] = delivery_view(job)
        recipient = message.recipients[0] if message.recipients else None
        return wire.Message(
            id=shown_id(message),
            timestamp=iso(message.sent_at),
            sender=wire.Sender(id=message.sender.id, type=message.sender.kind),
            recipient=None if recipient is None else wire.Recipient(id=recipient.id, type=recipient.kind),
            parts=shown(message.parts),
            metadata=metadata,
        )


def drafted(body: wire.NewAgentMessage, recipient: wire.Recipient, visit: Visit) -> Draft:
    """Raises BadInput."""
    try:
        said = msgspec.convert(body.metadata, wire.Directions)
    except msgspec.ValidationError as exc:
        error = faults.invalid(exc)
        field = f"metadata.{error.details.get('field', '')}".rstrip(".")
        raise BadInput(f"metadata.{error.message}", field=field, issue=error.details.get("issue")) from exc
    return Draft(
        recipient=Party(id=recipient.id, kind=recipient.type),
        sender=None if body.sender is None else Party(id=body.sender.id, kind=body.sender.type),
        parts=received(body.parts),
        conversation_id=said.conversation_id,
        given_id=body.id,
        key=visit.key,
        delegation_chain=visit.delegation_chain,
        metadata=body.metadata,
        reply_to=said.in_reply_to,
        capability=said.capability,
        ttl=said.ttl_seconds,
        timeout_ms=said.timeout_ms,
        priority=PRIORITIES[said.priority],
    )
