"""The message endpoints: send, read and follow messages and conversations, and receive from the caller's inbox."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import msgspec

from a2a_fabric.core.errors import BadInput, Conflict
from a2a_fabric.core.job import PRIORITY_BY_NAME, JobSummary
from a2a_fabric.core.message import Message, Party
from a2a_fabric.core.result import format_timestamp
from a2a_fabric.doors.edge import EventStream, bad_input_from, encode_event
from a2a_fabric.doors.rest import models
from a2a_fabric.doors.rest.http import (
    ResourceNotFound,
    RestCycle,
    RestReply,
    RestRoute,
    build_location,
    build_next_link,
    parse_cursor,
    raise_conflict,
)
from a2a_fabric.doors.rest.models import parts_from_wire, parts_to_wire
from a2a_fabric.messages.inboxes import Inboxes
from a2a_fabric.messages.messages import MessageDraft, Messages, public_message_id, render_delivery

_EXAMPLE_MESSAGE = {"parts": [{"type": "text", "content": "hello"}]}
_encode = msgspec.json.Encoder().encode


class RestMessages:
    def __init__(self, messages: Messages, inboxes: Inboxes) -> None:
        self._messages = messages
        self._inboxes = inboxes

    def list_endpoints(self) -> Sequence[RestRoute]:
        return (
            RestRoute(method="POST", path="/messages", handler=self.send, summary="Send a message.", tag="messages",
                body=models.NewMessage, reply=models.Message, status=201, takes_idempotency_key=True,
                example={"recipient": {"id": "percy", "type": "agent"}, **_EXAMPLE_MESSAGE}),
            RestRoute(method="POST", path="/agents/{agent_id}/messages", handler=self.send_to_agent, tag="messages",
                summary="Send a message to an agent.", body=models.NewAgentMessage, reply=models.Message, status=201,
                takes_idempotency_key=True, example=_EXAMPLE_MESSAGE),
            RestRoute(method="GET", path="/messages/{message_id}", handler=self.show, summary="Show a message.",
                tag="messages", reply=models.Message),
            RestRoute(method="GET", path="/messages/{message_id}/reply", handler=self.reply, tag="messages",
                summary="Show what the agent said to a message.", reply=models.Message, query=models.ReplyQuery),
            RestRoute(method="GET", path="/conversations/{conversation_id}/messages", handler=self.conversation,
                tag="conversations", summary="List the messages of a conversation.", reply=models.Messages,
                query=models.PageQuery),
            RestRoute(method="GET", path="/conversations/{conversation_id}/events", handler=self.events,
                tag="conversations", summary="Follow a conversation: each message is an event.", reply=None,
                query=models.EventsQuery),
            RestRoute(method="GET", path="/inbox", handler=self.inbox, summary="Receive what waits for the caller.",
                tag="inbox", reply=models.Inbox, query=models.InboxQuery),
            RestRoute(method="POST", path="/inbox/acknowledgements", handler=self.acknowledge, tag="inbox",
                summary="Be done with what was received.", body=models.Acknowledgement, reply=models.Acknowledgement,
                example={"entries": [1]}),
        )  # fmt: skip

    def send(self, context: RestCycle) -> Awaitable[RestReply]:
        body: models.NewMessage = context.body
        return self._post_message(body, body.recipient, context)

    async def send_to_agent(self, context: RestCycle) -> RestReply:
        body: models.NewAgentMessage = context.body
        agent = models.Recipient(id=context.path["agent_id"])
        if body.recipient not in (None, agent):
            raise BadInput(
                "recipient is not the agent of this path. Leave it out, or name the same agent.",
                field="recipient",
                issue="not this agent",
            )
        return await self._post_message(body, agent, context)

    async def _post_message(
        self, body: models.NewAgentMessage, recipient: models.Recipient, context: RestCycle
    ) -> RestReply:
        try:
            posted = await self._messages.post(context.principal, context.trace, build_draft(body, recipient, context))
        except Conflict as exc:
            raise_conflict(exc, body.id, context.idempotency_key, "message")
        context.is_call = posted.is_new and posted.job is not None  # the job has its own log line
        view = self._render_message(posted.message, posted.job)
        location = build_location("messages", view.id, posted.message.message_id)
        return RestReply(body=view, status=201 if posted.is_new else 200, headers=[(b"location", location)])

    async def show(self, context: RestCycle) -> RestReply:
        message = await self._messages.get(context.principal, context.path["message_id"])
        return RestReply(
            body=self._render_message(message, await self._messages.find_delivery(context.principal, message))
        )

    async def reply(self, context: RestCycle) -> RestReply:
        """Raises the error of a failed delivery, and ResourceNotFound while there is no reply."""
        message = await self._messages.get(context.principal, context.path["message_id"])
        reply = await self._messages.find_reply(context.principal, message)
        job = await self._messages.find_delivery(context.principal, message)
        if reply is None and job is not None:
            await self._messages.jobs.result(context.principal, job.job_id, context.query.wait)
            reply = await self._messages.find_reply(context.principal, message)
        if reply is None:
            raise ResourceNotFound("There is no reply yet", issue="no reply yet")
        return RestReply(body=self._render_message(reply))

    async def conversation(self, context: RestCycle) -> RestReply:
        conversation_id, query = context.path["conversation_id"], context.query
        messages, after = await self._messages.read_conversation(
            context.principal, conversation_id, after=parse_cursor(query.cursor), limit=query.limit
        )
        cursor = None if after is None else str(after)
        jobs = await self._messages.find_deliveries(context.principal, messages)
        views = tuple(self._render_message(each, jobs.get(each.message_id)) for each in messages)
        page = models.Messages(messages=views, next_cursor=cursor)
        path = f"/conversations/{quote(conversation_id, safe='')}/messages"
        return RestReply(body=page, headers=build_next_link(context, path, cursor, query.limit))

    async def events(self, context: RestCycle) -> EventStream:
        after = context.query.after if context.head.last_event_id is None else context.head.last_event_id
        conversation_id = context.path["conversation_id"]
        await self._messages.read_conversation(context.principal, conversation_id, limit=1)
        self._messages.check_follower_limit(context.principal)

        async def frames() -> AsyncGenerator[bytes]:
            async with aclosing(self._messages.follow(context.principal, conversation_id, after or 0)) as messages:
                async for message in messages:
                    yield encode_event("message", message.number, _encode(self._render_message(message)))

        return EventStream(frames=frames(), waits_for_news=True)

    async def inbox(self, context: RestCycle) -> RestReply:
        query: models.InboxQuery = context.query
        party = self._inboxes.party_of(context.principal)
        entries = await self._inboxes.receive(
            context.principal, party, limit=query.limit, hold=query.hold, wait=query.wait
        )
        deliveries = [
            models.Delivery(entry=each.entry, attempt=each.attempt, message=self._render_message(each.message))
            for each in entries
        ]
        return RestReply(body=models.Inbox(deliveries=tuple(deliveries)))

    async def acknowledge(self, context: RestCycle) -> RestReply:
        party = self._inboxes.party_of(context.principal)
        acknowledged = await self._inboxes.acknowledge(context.principal, party, context.body.entries)
        return RestReply(body=models.Acknowledgement(entries=tuple(acknowledged)))

    def _render_message(self, message: Message, job: JobSummary | None = None) -> models.Message:
        metadata: dict[str, Any] = {**message.metadata, "conversation_id": message.conversation_id}
        if message.reply_to is not None:
            metadata["in_reply_to"] = message.reply_to
        if message.topic is not None:
            metadata["topic"] = message.topic
        if job is not None:
            metadata["delivery"] = render_delivery(job)
        recipient = message.recipients[0] if message.recipients else None
        return models.Message(
            id=public_message_id(message),
            timestamp=format_timestamp(message.sent_at),
            sender=models.Sender(id=message.sender.id, type=message.sender.kind),
            recipient=None if recipient is None else models.Recipient(id=recipient.id, type=recipient.kind),
            parts=parts_to_wire(message.parts),
            metadata=metadata,
        )


_NO_DIRECTIVES = models.MessageDirectives()


def _read_directives(metadata: dict[str, Any]) -> models.MessageDirectives:
    """Raises BadInput."""
    try:
        return msgspec.convert(metadata, models.MessageDirectives)
    except msgspec.ValidationError as exc:
        error = bad_input_from(exc)
        field = f"metadata.{error.details.get('field', '')}".rstrip(".")
        raise BadInput(f"metadata.{error.message}", field=field, issue=error.details.get("issue")) from exc


def build_draft(body: models.NewAgentMessage, recipient: models.Recipient, context: RestCycle) -> MessageDraft:
    """Raises BadInput."""
    directives = _read_directives(body.metadata) if body.metadata else _NO_DIRECTIVES
    return MessageDraft(
        recipient=Party(id=recipient.id, kind=recipient.type),
        sender=None if body.sender is None else Party(id=body.sender.id, kind=body.sender.type),
        parts=parts_from_wire(body.parts),
        conversation_id=directives.conversation_id,
        sender_message_id=body.id,
        key=context.idempotency_key,
        delegation_chain=context.delegation_chain,
        metadata=body.metadata,
        reply_to=directives.in_reply_to,
        capability=directives.capability,
        ttl=directives.ttl_seconds,
        timeout_ms=directives.timeout_ms,
        priority=PRIORITY_BY_NAME[directives.priority],
    )
