"""Maps conversations to Claude Code sessions.

A session's id is derived from the conversation, so it is the same after a restart and on another node.
Whether the session exists already is remembered, or found out by trying."""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict

import msgspec

from a2a_fabric.core.call import Call, derive_conversation_id

_NAMESPACE = uuid.UUID("5a1c9a44-5a4c-4d3e-9d42-6f0f0a1f7c11")


class ClaudeSession:
    """Takes one turn at a time; `exit_task` ends the process of the previous turn."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.exists = False
        self.lock = asyncio.Lock()
        self.exit_task: asyncio.Task[None] | None = None

    async def wait_idle(self) -> None:
        """Wait until no process writes to the session any more."""
        if self.exit_task is not None:
            await asyncio.wait([self.exit_task])


class ClaudeSessions:
    """The sessions by conversation; the least recently used one is forgotten first."""

    def __init__(self, agent_id: str, max_sessions: int) -> None:
        self._agent_id = agent_id
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[str, ClaudeSession] = OrderedDict()

    def get_or_create(self, call: Call) -> ClaudeSession | None:
        """None for a call without a conversation. Two callers with the same conversation id get two sessions."""
        conversation_id = derive_conversation_id(call)
        if conversation_id is None:
            return None
        session_id = str(uuid.uuid5(_NAMESPACE, msgspec.json.encode([self._agent_id, conversation_id]).decode()))
        session = self._sessions.setdefault(session_id, ClaudeSession(session_id))
        self._sessions.move_to_end(session_id)
        self._trim()
        return session

    def _trim(self) -> None:
        """Sessions in use and the newest ones stay."""
        if len(self._sessions) <= self._max_sessions:
            return
        idle = [key for key, session in self._sessions.items() if not session.lock.locked()][:-1]
        for key in idle[: len(self._sessions) - self._max_sessions]:
            del self._sessions[key]
