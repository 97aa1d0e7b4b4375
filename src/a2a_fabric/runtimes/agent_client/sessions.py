"""One agent session per conversation; the least recently used one is closed first.

A session takes one turn at a time, so the next call of a conversation waits for the previous one. A call
without a conversation gets a session of its own."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from a2a_fabric.core.errors import Conflict
from a2a_fabric.runtimes.agent_client.process import AgentProcess
from a2a_fabric.runtimes.agent_client.turn import PromptTurn

ConversationKey = str  # a conversation id that is bound to its caller

_FORGOTTEN_NOTE = "the agent was restarted and has lost this conversation, so the conversation begins again"
_AWAITS_ANSWER = "The agent waits for the answer to a question of its own in this conversation: answer that first"


class AgentSession:
    def __init__(self) -> None:
        self.id = ""
        self.process: AgentProcess | None = None
        self.turn: PromptTurn | None = None
        self._lock = asyncio.Lock()

    @property
    def is_free(self) -> bool:
        return not self._lock.locked()

    async def acquire(self) -> None:
        """Raises Conflict if the turn that uses the session waits for an answer."""
        if self.turn is not None and self.turn.questions:
            raise Conflict(_AWAITS_ANSWER)
        await self._lock.acquire()

    def release(self) -> None:
        self.turn = None
        self._lock.release()

    async def attach(self, process: AgentProcess) -> tuple[str, ...]:
        """Open or restore the session in this process; the notes say if its history was lost. Raises FabricError."""
        if self.process is process:
            return ()
        has_history = self.id != ""
        if not (has_history and await process.restore_session(self.id)):
            self.id = await process.new_session()
            self.process = process
            return (_FORGOTTEN_NOTE,) if has_history else ()
        self.process = process
        return ()


class AgentSessions:
    """`close` is called for each session that no call can reach any more."""

    def __init__(self, max_sessions: int, close: Callable[[AgentSession], None]) -> None:
        self._max_sessions = max_sessions
        self._close = close
        self._by_key: OrderedDict[ConversationKey, AgentSession] = OrderedDict()

    async def acquire(self, key: ConversationKey | None) -> AgentSession:
        """The session of the conversation, once no other call uses it."""
        session = AgentSession() if key is None else self._get_or_create(key)
        await session.acquire()
        return session

    def release(self, session: AgentSession, key: ConversationKey | None) -> None:
        session.release()
        if key is None:
            self._close(session)
        else:
            self._trim()

    def _get_or_create(self, key: ConversationKey) -> AgentSession:
        session = self._by_key.setdefault(key, AgentSession())
        self._by_key.move_to_end(key)
        return session

    def _trim(self) -> None:
        free = [key for key, session in self._by_key.items() if session.is_free]
        for key in free[: max(0, len(self._by_key) - self._max_sessions)]:
            self._close(self._by_key.pop(key))
