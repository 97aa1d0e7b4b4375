"""Tells clients that the lists have changed: sessions of the handshake era, and listeners of the stateless one.

A catalog changes often while a node starts, so changes within a moment are told once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from functools import partial
from typing import Any, Literal

from mcp.server.connection import Connection
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ServerEvent,
    ToolsListChanged,
)
from mcp_types import SubscriptionsListenRequestParams, SubscriptionsListenResult

Kind = Literal["tools", "resources", "prompts"]

_log = logging.getLogger(__name__)
_TOLD_WITHIN = 10.0
_EVENTS: dict[Kind, ServerEvent] = {
    "tools": ToolsListChanged(),
    "resources": ResourcesListChanged(),
    "prompts": PromptsListChanged(),
}


class Changes:
    def __init__(self) -> None:
        self._bus = InMemorySubscriptionBus()
        self._sessions: set[Connection] = set()
        self._telling: dict[Connection | None, asyncio.Task[None]] = {}
        self._due: dict[Connection | None, set[Kind]] = {}
        self._listening = ListenHandler(self._bus)

    async def listen(self, ctx: Any, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        """The SDK would promise to tell of changed contents too."""
        heard = params.notifications.model_copy(update={"resource_subscriptions": None})
        return await self._listening(ctx, params.model_copy(update={"notifications": heard}))

    def welcome(self, session: Connection) -> None:
        """A session of the handshake era is told until it ends."""
        self._sessions.add(session)
        session.exit_stack.callback(self._sessions.discard, session)

    def tell(self, kinds: Collection[Kind]) -> None:
        """Which lists are others now."""
        for listener in (None, *self._sessions) if kinds else ():
            self._due.setdefault(listener, set()).update(kinds)
            if listener not in self._telling:
                task = asyncio.ensure_future(self._tell(listener))
                self._telling[listener] = task
                task.add_done_callback(partial(self._forget, listener))

    def close(self) -> None:
        """End the open streams of listeners; they are told that it was on purpose."""
        self._listening.close()

    async def _tell(self, session: Connection | None) -> None:
        try:
            async with asyncio.timeout(_TOLD_WITHIN):
                while due := self._due.get(session):
                    kind = min(due, key=list(_EVENTS).index)
                    due.discard(kind)
                    if session is None:
                        await self._bus.publish(_EVENTS[kind])
                    else:
                        await _say(session, kind)
        except TimeoutError:
            _log.debug("a client does not read what it is told")

    def _forget(self, listener: Connection | None, task: asyncio.Task[None]) -> None:
        del self._telling[listener]
        self._due.pop(listener, None)


async def _say(session: Connection, kind: Kind) -> None:
    match kind:
        case "tools":
            await session.send_tool_list_changed()
        case "resources":
            await session.send_resource_list_changed()
        case "prompts":
            await session.send_prompt_list_changed()
