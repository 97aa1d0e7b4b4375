"""Clients that want to hear of changed resources: by `resources/subscribe`, or on a stream of `subscriptions/listen`.

What is watched is an agent's manifest, or a resource of an agent that is an MCP server and
tells of changes itself. Changes within a moment are told once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial

import mcp_types as types
from mcp.server.connection import Connection
from mcp.server.context import HandlerResult
from mcp.shared.exceptions import MCPError

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentNotFound, BadInput, FabricError, RateLimited
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.mcp import answer
from a2a_fabric.doors.mcp.addresses import AGENTS
from a2a_fabric.doors.mcp.asker import Context, connection_of, visit_of
from a2a_fabric.doors.mcp.changes import Changes, Ear
from a2a_fabric.doors.mcp.library import Found, Library
from a2a_fabric.doors.mcp.manifests import ManifestNews
from a2a_fabric.doors.mcp.reading import code_of, told_as
from a2a_fabric.doors.mcp.shelf import Shelf

_log = logging.getLogger(__name__)

MOST = 1000  # resources that one client watches
_TOLD_AFTER = 0.1  # seconds
_PATIENCE = 10.0
_AWAY_PATIENCE = 1.0  # for an agent that is known to be away
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # before an agent that was lost is watched again
_KEY = "fabric.watched"

Leave = Callable[[], None]
Watched = dict[str, Leave]


class Watching:
    """Of one room."""

    def __init__(
        self, context: DoorContext, shelf: Shelf, library: Library, manifests: ManifestNews, changes: Changes
    ) -> None:
        self._context = context
        self._shelf = shelf
        self._library = library
        self._manifests = manifests
        self._changes = changes

    async def subscribe(self, ctx: Context, params: types.SubscribeRequestParams) -> HandlerResult:
        session, uri = connection_of(ctx), params.uri
        watched = _watched(session)
        if uri in watched:
            return {}
        try:
            if len(watched) >= MOST:
                raise BadInput(f"A client watches at most {MOST} resources", uri=uri[:256])
            leave = await self._counted(visit_of(ctx).principal, uri, partial(self._changes.updated, session, uri))
        except FabricError as error:
            raise told_as(ctx, error, code_of(ctx, error, "resources/read")) from error
        if uri in watched:  # asked twice at a time
            leave()
        watched.setdefault(uri, leave)
        return {}

    async def unsubscribe(self, ctx: Context, params: types.UnsubscribeRequestParams) -> HandlerResult:
        _watched(connection_of(ctx)).pop(params.uri, _nothing)()
        return {}

    async def listen(
        self, ctx: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """What cannot be watched is left out of what we promise to tell."""
        wanted = list(dict.fromkeys(params.notifications.resource_subscriptions or ()))
        if len(wanted) > MOST:
            raise MCPError(types.INVALID_PARAMS, f"A client watches at most {MOST} resources")
        ear, principal = Ear(), visit_of(ctx).principal
        watched: Watched = {}
        with ExitStack() as held:
            try:
                for _ in wanted:
                    held.enter_context(self._context.subscriptions.held(principal.principal_id))
            except RateLimited as error:
                raise told_as(ctx, error, code_of(ctx, error, "resources/read")) from error
            held.callback(_leave_all, watched)
            await asyncio.gather(*(self._try(principal, uri, ear, watched) for uri in wanted))
            kept = [uri for uri in wanted if uri in watched]
            heard = params.notifications.model_copy(update={"resource_subscriptions": kept or None})
            return await self._changes.listen(ctx, params.model_copy(update={"notifications": heard}), ear)

    async def _try(self, principal: Principal, uri: str, ear: Ear, watched: Watched) -> None:
        try:
            watched[uri] = await self._watch(principal, uri, partial(ear.updated, uri))
        except FabricError as error:
            _log.debug("%s is not watched: %s", uri[:256], error.message)

    async def _counted(self, principal: Principal, uri: str, tell: Callable[[], None]) -> Leave:
        """As `_watch`, as one of the caller's subscriptions. Raises FabricError."""
        subscriptions, caller = self._context.subscriptions, principal.principal_id
        subscriptions.take(caller)
        try:
            leave = await self._watch(principal, uri, tell)
        except BaseException:
            subscriptions.give_back(caller)
            raise
        return _both(leave, partial(subscriptions.give_back, caller))

    async def _watch(self, principal: Principal, uri: str, tell: Callable[[], None]) -> Leave:
        """Raises FabricError."""
        pulse = _Pulse(tell)
        agent_id = self._agent(principal, uri)
        if agent_id is not None:
            return _both(self._manifests.watch(agent_id, pulse.beat), pulse.stop)
        found = self._library.resource(uri, principal)
        if found is None:
            raise BadInput(f"Unknown resource: {answer.speakable(uri[:256])}", uri=uri[:256], upstream_code=-32002)
        keeper = _Keeper(partial(self._theirs, found, principal), pulse.beat)
        await keeper.start()
        return _both(keeper.stop, pulse.stop)

    def _agent(self, principal: Principal, uri: str) -> str | None:
        """Whose manifest it is."""
        if not uri.startswith(AGENTS):
            return None
        try:
            known = (manifest.agent_id for manifest in self._shelf.agents(principal))
            return next((agent_id for agent_id in known if AGENTS + agent_id == uri), None)
        except AgentNotFound:
            return None

    async def _theirs(
        self, found: Found, principal: Principal, told: Callable[[], None], lost: Callable[[], None]
    ) -> Leave:
        """Through the agent's gate, like everything that reaches it. Raises FabricError."""
        manifest, leaving = found.manifest, list[Leave]()

        async def work() -> None:
            library = self._context.libraries.of(manifest.agent_id)
            if library is None:
                raise AgentNotFound(manifest.agent_id)
            leaving.append(await library.watch(found.original, told, lost, self._patience(manifest)))

        passage = self._context.passage
        await (work() if passage is None else passage.request(manifest, work, principal.principal_id))
        return leaving[0]

    def _patience(self, manifest: Manifest) -> float:
        is_away = self._context.gateway.registry.health.of(manifest.agent_id).status == "offline"
        return _AWAY_PATIENCE if is_away else _PATIENCE


class _Pulse:
    """However often it is told, it tells once in a moment."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._due: asyncio.TimerHandle | None = None

    def beat(self) -> None:
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(_TOLD_AFTER, self._fire)

    def stop(self) -> None:
        if self._due is not None:
            self._due.cancel()

    def _fire(self) -> None:
        self._due = None
        self._tell()


class _Keeper:
    """Watches again after the way to the agent was replaced; what was missed meanwhile counts as a change."""

    def __init__(
        self, watch: Callable[[Callable[[], None], Callable[[], None]], Awaitable[Leave]], told: Callable[[], None]
    ) -> None:
        self._watch = watch
        self._told = told
        self._leave: Leave = _nothing
        self._again: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises FabricError."""
        self._leave = await self._watch(self._told, self._lost)

    def stop(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._leave()

    def _lost(self) -> None:
        self._leave = _nothing
        self._again = asyncio.ensure_future(self._start_again())

    async def _start_again(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            await asyncio.sleep(pause)
            try:
                await self.start()
            except FabricError:
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            self._told()
            return


def _watched(session: Connection) -> Watched:
    """A session's own; they end with it."""
    if _KEY not in session.state:
        watched: Watched = {}
        session.state[_KEY] = watched
        session.exit_stack.callback(_leave_all, watched)
    found: Watched = session.state[_KEY]
    return found


def _leave_all(watched: Watched) -> None:
    while watched:
        watched.popitem()[1]()


def _both(first: Leave, second: Leave) -> Leave:
    def leave() -> None:
        first()
        second()

    return leave


def _nothing() -> None:
    pass
