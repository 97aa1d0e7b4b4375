"""Tells clients that the lists have changed: sessions of the handshake era, and listeners of the stateless one.

A catalog changes often while a node starts, so changes within a moment are told once.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from mcp.server.connection import Connection
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourcesListChanged, ToolsListChanged

_log = logging.getLogger(__name__)
_TOLD_WITHIN = 10.0


class Changes:
    def __init__(self) -> None:
        self._bus = InMemorySubscriptionBus()
        self._sessions: set[Connection] = set()
        self._telling: dict[Connection | None, asyncio.Task[None]] = {}
        self.listen = ListenHandler(self._bus)

    def welcome(self, session: Connection) -> None:
        """A session of the handshake era is told until it ends."""
        self._sessions.add(session)
        session.exit_stack.callback(self._sessions.discard, session)

    def tell(self) -> None:
        for listener in (None, *self._sessions):
            if listener not in self._telling:  # whoever is still being told will look only after that
                task = asyncio.ensure_future(self._tell(listener))
                self._telling[listener] = task
                task.add_done_callback(partial(self._forget, listener))

    def close(self) -> None:
        """End the open streams of listeners; they are told that it was on purpose."""
        self.listen.close()

    async def _tell(self, session: Connection | None) -> None:
        try:
            async with asyncio.timeout(_TOLD_WITHIN):
                if session is None:
                    await self._bus.publish(ToolsListChanged())
                    await self._bus.publish(ResourcesListChanged())
                else:
                    await session.send_tool_list_changed()
                    await session.send_resource_list_changed()
        except TimeoutError:
            _log.debug("a client does not read what it is told")

    def _forget(self, listener: Connection | None, task: asyncio.Task[None]) -> None:
        del self._telling[listener]
