"""Which session of Claude Code belongs to which conversation.

A session's id follows from the conversation, so it is found again after a restart and by
another node; only whether it has begun must be remembered, or else found out by trying.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict

import msgspec

from a2a_fabric.core.call import Call
from a2a_fabric.core.conversation import agent_conversation_id

_NAMESPACE = uuid.UUID("5a1c9a44-5a4c-4d3e-9d42-6f0f0a1f7c11")


class Conversation:
    """One turn at a time; `ending` is the process of the turn before, as long as it lives."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.has_begun = False
        self.turn = asyncio.Lock()
        self.ending: asyncio.Task[None] | None = None

    async def quiet(self) -> None:
        """Until nobody writes to the session any more."""
        if self.ending is not None:
            await asyncio.wait([self.ending])


class Conversations:
    """The one that was quiet longest is forgotten first."""

    def __init__(self, agent_id: str, most: int) -> None:
        self._agent_id = agent_id
        self._most = most
        self._known: OrderedDict[str, Conversation] = OrderedDict()

    def of(self, call: Call) -> Conversation | None:
        """None for a call without a conversation. Another caller who names the same id gets another session."""
        conversation_id = agent_conversation_id(call)
        if conversation_id is None:
            return None
        session_id = self._session_id(conversation_id)
        found = self._known.setdefault(session_id, Conversation(session_id))
        self._known.move_to_end(session_id)
        self._trim()
        return found

    def _session_id(self, conversation_id: str) -> str:
        parts = [self._agent_id, conversation_id]
        return str(uuid.uuid5(_NAMESPACE, msgspec.json.encode(parts).decode()))

    def _trim(self) -> None:
        """Those in use stay, and the newest."""
        if len(self._known) <= self._most:
            return
        quiet = [key for key, known in self._known.items() if not known.turn.locked()][:-1]
        for key in quiet[: len(self._known) - self._most]:
            del self._known[key]
