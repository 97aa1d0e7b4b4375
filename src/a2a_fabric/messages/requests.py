"""Conversations with the node itself: what was asked in words, who answered, and which agent the caller talks to now.

Each request and each answer is a message of the conversation, so every door can read it. A switch to an agent is
written in the metadata of the message that asked for it, and the newest such message counts. So a switch outlives the
process and holds on every node of the store; what was read before is remembered, and only newer messages are read."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.message import Message, Party
from a2a_fabric.core.result import Part, Result
from a2a_fabric.messages.delivery import metadata_from_result, parts_from_result
from a2a_fabric.messages.messages import Messages

TALKS_TO = "talks_to"  # in the metadata of a message: the agent that the caller talks to from then on, or None
_ROUTE = "route"  # in the metadata of an answer: which agent and capability, and why
_MAX_KNOWN = 10_000  # conversations
_PAGE_SIZE = 100


class ConversationState(NamedTuple):
    """`held_id`: the agent that the caller switched to; None if it did not, or switched back.

    `last_id`: the agent that answered last, since the last switch. `switched_at`: when that was. `number` is that of
    the newest message read.
    """

    number: int = 0
    held_id: str | None = None
    last_id: str | None = None
    switched_at: float = 0.0


_NEW_CONVERSATION = ConversationState()


class RequestConversations:
    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._known: OrderedDict[tuple[str, str], ConversationState] = OrderedDict()

    async def read_state(self, principal: Principal, conversation_id: str | None) -> ConversationState:
        """That of a new conversation for a request outside of conversations."""
        if conversation_id is None:
            return _NEW_CONVERSATION
        key = (owner_from_principal(principal), conversation_id)
        number, held_id, last_id, switched_at = self._known.get(key, _NEW_CONVERSATION)
        while page := await self._messages.read_new(conversation_id, number, _PAGE_SIZE):
            for message in page:
                if message.owner != key[0]:
                    continue
                if TALKS_TO in message.metadata:
                    held_id, last_id, switched_at = message.metadata[TALKS_TO], None, message.sent_at
                elif _ROUTE in message.metadata:
                    last_id = message.sender.id
            number = page[-1].number
        state = self._known[key] = ConversationState(number, held_id, last_id, switched_at)
        self._known.move_to_end(key)
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return state

    async def record_request(
        self, principal: Principal, conversation_id: str, text: str, agent_id: str | None, **metadata: Any
    ) -> Message:
        """`agent_id` is None for what the node answers itself."""
        recipients = () if agent_id is None else (Party(id=agent_id),)
        parts = (Part(kind="text", text=text),)
        return await self._messages.record(
            principal, conversation_id, recipients=recipients, parts=parts, metadata=metadata
        )

    async def record_answer(
        self, principal: Principal, request: Message, agent_id: str, result: Result, route: dict[str, Any]
    ) -> None:
        await self._messages.record(
            principal,
            request.conversation_id,
            sender=Party(id=agent_id),
            recipients=(request.sender,),
            parts=parts_from_result(result),
            metadata={**metadata_from_result(result), _ROUTE: route},
            reply_to=request.message_id,
        )
