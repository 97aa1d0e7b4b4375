"""Which of a server's resources somebody watches, and the word of it when one has changed.

As long as anybody watches, a task keeps the server told of what is watched: by
`resources/subscribe` in the handshake era, by one stream of `subscriptions/listen` in the
stateless one. After the link was lost it begins anew, and all watchers are told, for
nobody knows what they missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import mcp_types as types
from mcp.client.subscriptions import ResourceUpdated, Subscription, SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from a2a_fabric.core.errors import AgentOffline, BadInput, FabricError, UpstreamRefused
from a2a_fabric.runtimes.mcp_content import RPCError, failure_of
from a2a_fabric.runtimes.mcp_keeper import Keeper
from a2a_fabric.runtimes.mcp_link import Link

_log = logging.getLogger(__name__)

MOST = 1000  # resources of one server
NOT_FOUND = -32002  # a resource, before 2026
_ANSWER_WITHIN = 10.0
_RESTART = 0.05
_LISTEN_AGAIN = 0.5  # seconds, to a server that has ended its stream
_AGAIN_AFTER = 5.0  # to one that is away

Told = Callable[[], None]


class _Watcher(NamedTuple):
    told: Told
    lost: Told


class Watching:
    """Of one server. `heard` is called with the URI of each resource that the server says has changed."""

    def __init__(self, agent_id: str, keeper: Keeper) -> None:
        self._agent_id = agent_id
        self._keeper = keeper
        self._watchers: dict[str, list[_Watcher]] = {}
        self._due: dict[str, asyncio.Future[None]] = {}  # not yet told to the server
        self._changed = asyncio.Event()
        self._tending: asyncio.Task[None] | None = None
        self._goodbyes: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def watch(self, uri: str, told: Told, lost: Told, patience: float) -> Callable[[], None]:
        """Until what is returned is called. Raises FabricError if the server cannot be asked to tell."""
        watcher = _Watcher(told, lost)
        if uri not in self._watchers and len(self._watchers) >= MOST:
            raise UpstreamRefused(f"Too many resources of '{self._agent_id}' are watched", agent_id=self._agent_id)
        link = await self._keeper.link(patience)
        offered = link.session.server_capabilities
        if offered is None or offered.resources is None or not offered.resources.subscribe:
            raise UpstreamRefused("The MCP server does not tell when a resource changes", agent_id=self._agent_id)
        self._watchers.setdefault(uri, []).append(watcher)
        try:
            await self._settled(uri, patience)
        except BaseException:
            self._leave(uri, watcher)
            raise
        return lambda: self._leave(uri, watcher)

    def heard(self, uri: str) -> None:
        """A part of a watched resource counts for the whole."""
        for watched in [each for each in self._watchers if uri == each or uri.startswith(each.rstrip("/") + "/")]:
            for watcher in list(self._watchers[watched]):
                watcher.told()

    async def aclose(self) -> None:
        self._is_closed = True
        tasks = [task for task in (self._tending, *self._goodbyes) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        left, self._watchers = self._watchers, {}
        for watcher in [watcher for watchers in left.values() for watcher in watchers]:
            watcher.lost()

    async def _settled(self, uri: str, patience: float) -> None:
        if self._tending is None and not self._is_closed:
            self._tending = asyncio.ensure_future(self._tend())
        if len(self._watchers[uri]) == 1 or uri in self._due:
            due = self._due.setdefault(uri, asyncio.get_running_loop().create_future())
            self._changed.set()
            try:
                async with asyncio.timeout(patience):
                    await asyncio.shield(due)
            except TimeoutError as exc:
                raise AgentOffline("The MCP server did not say that it will tell", agent_id=self._agent_id) from exc

    def _leave(self, uri: str, watcher: _Watcher) -> None:
        watchers = self._watchers.get(uri, [])
        if watcher in watchers:
            watchers.remove(watcher)
        if not watchers and self._watchers.pop(uri, None) is not None:
            self._settle(uri, None)
            self._changed.set()
            link = self._keeper.current
            if link is not None and link.era == "handshake" and not self._is_closed:
                goodbye = asyncio.ensure_future(_unsubscribe(link, uri))
                self._goodbyes.add(goodbye)
                goodbye.add_done_callback(self._goodbyes.discard)

    def _settle(self, uri: str, error: FabricError | None) -> None:
        due = self._due.pop(uri, None)
        if due is None or due.done():
            return
        if error is None:
            due.set_result(None)
        else:
            due.set_exception(error)
            due.exception()  # there may be nobody left who wants to know

    async def _tend(self) -> None:
        is_first = True
        try:
            while self._watchers:
                try:
                    link = await self._keeper.link(_ANSWER_WITHIN)
                    if not is_first:
                        self._tell_all()
                    is_first = False
                    await (self._by_stream(link) if link.era == "stateless" else self._by_requests(link))
                except (FabricError, MCPError, SubscriptionLost, TimeoutError, ValidationError) as error:
                    self._refuse_all(error)
                    await asyncio.sleep(_pause(error))
        except Exception:
            _log.exception("%s: watching its resources failed", self._agent_id)
        finally:
            self._tending = None

    def _tell_all(self) -> None:
        for uri in list(self._watchers):
            for watcher in list(self._watchers[uri]):
                watcher.told()

    def _refuse_all(self, error: Exception) -> None:
        """Whoever waits for an answer has it; whoever watches already goes on."""
        told = error if isinstance(error, FabricError) else _failure(error, self._agent_id)
        for uri in list(self._due):
            self._settle(uri, told)

    async def _by_requests(self, link: Link) -> None:
        """Until the link is over or nobody watches any more."""
        subscribed: set[str] = set()
        over = asyncio.ensure_future(link.over())
        try:
            while self._watchers and not over.done():
                self._changed.clear()
                subscribed &= self._watchers.keys()
                for uri in self._watchers.keys() - subscribed:
                    await self._subscribe(link, uri)
                    subscribed.add(uri)
                await _either(over, self._changed)
        finally:
            over.cancel()

    async def _subscribe(self, link: Link, uri: str) -> None:
        request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
        try:
            async with asyncio.timeout(_ANSWER_WITHIN):
                await link.session.send_request(request, types.EmptyResult)
        except (MCPError, TimeoutError, ValidationError) as error:
            self._settle(uri, _failure(error, self._agent_id))
        else:
            self._settle(uri, None)

    async def _by_stream(self, link: Link) -> None:
        """The next stream is open before the last one is closed, so nothing is missed."""
        async with AsyncExitStack() as last:
            while self._watchers:
                self._changed.clear()
                asked = sorted(self._watchers)
                async with AsyncExitStack() as opening:
                    async with asyncio.timeout(_ANSWER_WITHIN):
                        news = await opening.enter_async_context(listen(link.session, resource_subscriptions=asked))
                    await last.aclose()
                    last.push_async_exit(opening.pop_all())
                self._acknowledge(asked, news.honored.resource_subscriptions or ())
                if not await self._hear(news):
                    raise SubscriptionLost("the server has ended the stream")

    def _acknowledge(self, asked: Iterable[str], honored: Iterable[str]) -> None:
        kept = set(honored)
        refused = UpstreamRefused("The MCP server does not tell when this resource changes", agent_id=self._agent_id)
        for uri in asked:
            self._settle(uri, None if uri in kept else refused)

    async def _hear(self, news: Subscription) -> bool:
        """Until other resources are watched; False if the server ended it."""
        while not self._changed.is_set():
            coming = asyncio.ensure_future(anext(news, None))
            try:
                await _either(coming, self._changed)
            finally:
                if not coming.done():
                    coming.cancel()
                    await asyncio.wait([coming])
            if coming.cancelled():
                return True
            event = coming.result()
            if event is None:
                return False
            if isinstance(event, ResourceUpdated):
                self.heard(event.uri)
        return True


async def _either(task: asyncio.Future[Any], event: asyncio.Event) -> None:
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


async def _unsubscribe(link: Link, uri: str) -> None:
    request = types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=uri))
    try:
        async with asyncio.timeout(_ANSWER_WITHIN):
            await link.session.send_request(request, types.EmptyResult)
    except (MCPError, TimeoutError, ValidationError, RuntimeError) as error:
        _log.debug("%s: %s is watched no more, which it does not want to know: %s", link.name, uri, error)


def _pause(error: Exception) -> float:
    """A server that is being restarted says when it can be asked again; one that ended a stream may be there."""
    if isinstance(error, SubscriptionLost):
        return _LISTEN_AGAIN
    soon = error.details.get("retry_after") if isinstance(error, AgentOffline) else None
    return min(_AGAIN_AFTER, soon + _RESTART) if isinstance(soon, int | float) else _AGAIN_AFTER


def _failure(error: Exception, agent_id: str) -> FabricError:
    if isinstance(error, MCPError) and error.code == NOT_FOUND:
        return BadInput(error.message[:500] or "Unknown resource", upstream_code=NOT_FOUND)
    if isinstance(error, MCPError):
        return failure_of(RPCError(error.code, error.message, error.data), agent_id, "resources/subscribe", ())
    return AgentOffline("The MCP server did not say that it will tell of changes", agent_id=agent_id)
