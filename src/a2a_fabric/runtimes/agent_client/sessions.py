"""One session of the agent per conversation; the one that was quiet longest is forgotten first.

A session takes one turn at a time, so a conversation's next call waits for the one
before. A call without a conversation gets a session for itself alone.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from a2a_fabric.core.errors import Conflict
from a2a_fabric.runtimes.agent_client.link import Link
from a2a_fabric.runtimes.agent_client.turn import Turn

Key = str  # a conversation id that is bound to its caller

_FORGOTTEN = "the agent was started anew and has forgotten this conversation; it begins again"
_WAITS = "The agent waits for the answer to a question of its own in this conversation: answer that first"


class Session:
    def __init__(self) -> None:
        self.id = ""
        self.link: Link | None = None
        self.turn: Turn | None = None
        self._free = asyncio.Lock()

    @property
    def is_free(self) -> bool:
        return not self._free.locked()

    async def take(self) -> None:
        """Raises Conflict if the turn that has it waits for somebody."""
        if self.turn is not None and self.turn.questions:
            raise Conflict(_WAITS)
        await self._free.acquire()

    def leave(self) -> None:
        self.turn = None
        self._free.release()

    async def settle(self, link: Link) -> tuple[str, ...]:
        """Make it one of this start of the agent; notes if it is not what it was. Raises FabricError."""
        if self.link is link:
            return ()
        was_known = self.id != ""
        if not (was_known and await link.revive_session(self.id)):
            self.id = await link.new_session()
            self.link = link
            return (_FORGOTTEN,) if was_known else ()
        self.link = link
        return ()


class Sessions:
    """`close` is told of each session that nobody will ask for again."""

    def __init__(self, most: int, close: Callable[[Session], None]) -> None:
        self._most = most
        self._close = close
        self._by_key: OrderedDict[Key, Session] = OrderedDict()

    async def take(self, key: Key | None) -> Session:
        """The conversation's, once it is free."""
        session = Session() if key is None else self._of(key)
        await session.take()
        return session

    def leave(self, session: Session, key: Key | None) -> None:
        session.leave()
        if key is None:
            self._close(session)
        else:
            self._trim()

    def _of(self, key: Key) -> Session:
        session = self._by_key.setdefault(key, Session())
        self._by_key.move_to_end(key)
        return session

    def _trim(self) -> None:
        free = [key for key, session in self._by_key.items() if session.is_free]
        for key in free[: max(0, len(self._by_key) - self._most)]:
            self._close(self._by_key.pop(key))
