"""Conversations with the node itself: what was asked in words, who answered, and which agent the caller talks to now.

Each request and each answer is a message of the conversation, so every door can read it. A switch to an agent is
written in the metadata of the message that asked for it, and the newest such message counts. So a switch outlives the
process and holds on every node of the store; what was read before is remembered, and only newer messages are read."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.message import Message, Party
from a2a_fabric.core.result import Part, Result
from a2a_fabric.messages.delivery import metadata_from_result, parts_from_result
from a2a_fabric.messages.messages import Messages

TALKS_TO = "talks_to"  # in the metadata of a message: the agent that the caller talks to from then on, or None
_ROUTE = "route"  # in the metadata of an answer: which agent and capability, and why
_MAX_KNOWN = 10_000  # conversations
_PAGE_SIZE = 100


class RequestConversations:
    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._known: OrderedDict[tuple[str, str], tuple[int, str | None]] = OrderedDict()

    async def find_held_agent(self, principal: Principal, conversation_id: str) -> str | None:
        """The agent that the caller switched to in this conversation; None if it did not, or switched back."""
        key = (owner_from_principal(principal), conversation_id)
        number, agent_id = self._known.get(key, (0, None))
        while page := await self._messages.read_new(conversation_id, number, _PAGE_SIZE):
            for message in page:
                if message.owner == key[0] and TALKS_TO in message.metadata:
                    agent_id = message.metadata[TALKS_TO]
            number = page[-1].number
        self._known[key] = number, agent_id
        self._known.move_to_end(key)
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return agent_id

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
