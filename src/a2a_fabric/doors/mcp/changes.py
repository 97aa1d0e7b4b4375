"""Tells clients what has changed: sessions of the handshake era, and listeners of the stateless one.

A catalog changes often while a node starts, so changes within a moment are told once.
Which resources a client watches is known to `watching`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal

from mcp.server.connection import Connection
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp_types import SubscriptionsListenRequestParams, SubscriptionsListenResult

Kind = Literal["tools", "resources", "prompts"]
News = Kind | ResourceUpdated

_log = logging.getLogger(__name__)
_TOLD_WITHIN = 10.0
_EVENTS: dict[Kind, ServerEvent] = {
    "tools": ToolsListChanged(),
    "resources": ResourcesListChanged(),
    "prompts": PromptsListChanged(),
}


class Ear:
    """One listener of the stateless era, for what concerns nobody else: the same URI may not mean the same to all."""

    def __init__(self) -> None:
        self.hear: Callable[[ServerEvent], None] | None = None

    def updated(self, uri: str) -> None:
        if self.hear is not None:
            self.hear(ResourceUpdated(uri=uri))


_listening: ContextVar[Ear | None] = ContextVar("mcp_listening", default=None)


class _Bus(InMemorySubscriptionBus):
    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """The SDK subscribes in the midst of serving a listener, so we know whose it is."""
        ear = _listening.get()
        if ear is not None:
            ear.hear = listener
        return super().subscribe(listener)


class Changes:
    def __init__(self) -> None:
        self._bus = _Bus()
        self._sessions: set[Connection] = set()
        self._telling: dict[Connection | None, asyncio.Task[None]] = {}
        self._due: dict[Connection | None, set[News]] = {}
        self._listening = ListenHandler(self._bus)

    async def listen(self, ctx: Any, params: SubscriptionsListenRequestParams, ear: Ear) -> SubscriptionsListenResult:
        token = _listening.set(ear)
        try:
            return await self._listening(ctx, params)
        finally:
            _listening.reset(token)

    def welcome(self, session: Connection) -> None:
        """A session of the handshake era is told until it ends."""
        self._sessions.add(session)
        session.exit_stack.callback(self._sessions.discard, session)

    def tell(self, kinds: Collection[Kind]) -> None:
        """Which lists are others now."""
        for listener in (None, *self._sessions) if kinds else ():
            self._tell_soon(listener, kinds)

    def updated(self, session: Connection, uri: str) -> None:
        """A resource that this session watches is another now."""
        self._tell_soon(session, (ResourceUpdated(uri=uri),))

    def close(self) -> None:
        """End the open streams of listeners; they are told that it was on purpose."""
        self._listening.close()

    def _tell_soon(self, listener: Connection | None, news: Collection[News]) -> None:
        self._due.setdefault(listener, set()).update(news)
        if listener not in self._telling:
            task = asyncio.ensure_future(self._tell(listener))
            self._telling[listener] = task
            task.add_done_callback(partial(self._forget, listener))

    async def _tell(self, session: Connection | None) -> None:
        try:
            async with asyncio.timeout(_TOLD_WITHIN):
                while due := self._due.get(session):
                    news = min(due, key=_order)
                    due.discard(news)
                    if session is not None:
                        await _say(session, news)
                    elif isinstance(news, str):
                        await self._bus.publish(_EVENTS[news])
        except TimeoutError:
            _log.debug("a client does not read what it is told")

    def _forget(self, listener: Connection | None, task: asyncio.Task[None]) -> None:
        del self._telling[listener]
        self._due.pop(listener, None)


def _order(news: News) -> int:
    """Lists first: what is told of may be on one that is new."""
    return list(_EVENTS).index(news) if isinstance(news, str) else len(_EVENTS)


async def _say(session: Connection, news: News) -> None:
    match news:
        case "tools":
            await session.send_tool_list_changed()
        case "resources":
            await session.send_resource_list_changed()
        case "prompts":
            await session.send_prompt_list_changed()
        case ResourceUpdated(uri):
            await session.send_resource_updated(uri)
