"""Notifies clients of changed lists and resources: handshake sessions and stateless listeners.

A client can subscribe to an agent's manifest, or to a resource of an agent that is an MCP server. Changes
within a short time are sent once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import ExitStack
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal

import mcp_types as types
from mcp.server.connection import Connection
from mcp.server.context import HandlerResult
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp_types import SubscriptionsListenRequestParams, SubscriptionsListenResult

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentNotFound, BadInput, FabricError, RateLimited
from a2a_fabric.core.logins import find_login_owner
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.edge import to_encodable_text
from a2a_fabric.doors.mcp.prompts_resources import (
    ItemSource,
    PromptsAndResources,
    choose_start_timeout,
    error_code_for,
    run_at_agent,
    to_mcp_error,
)
from a2a_fabric.doors.mcp.sdk_request import SdkContext, get_connection, get_request_context
from a2a_fabric.doors.mcp.servers import ManifestSubscriptions
from a2a_fabric.doors.mcp.tools import ToolCatalog
from a2a_fabric.protocols.mcp.resource_uris import AGENT_URI_PREFIX
from a2a_fabric.protocols.mcp.runtime_ports import PromptResourceProvider

ListKind = Literal["tools", "resources", "prompts"]
Change = ListKind | ResourceUpdated

_log = logging.getLogger(__name__)
_SEND_TIMEOUT = 10.0
_LIST_EVENTS: dict[ListKind, ServerEvent] = {
    "tools": ToolsListChanged(),
    "resources": ResourcesListChanged(),
    "prompts": PromptsListChanged(),
}


class StatelessListener:
    """A listener of the stateless era. Updates of resources go to it alone, because URIs differ between callers."""

    def __init__(self, owner: str | None) -> None:
        self.owner = owner  # of the logins of the caller that listens
        self.deliver: Callable[[ServerEvent], None] | None = None

    def notify_updated(self, uri: str) -> None:
        if self.deliver is not None:
            self.deliver(ResourceUpdated(uri=uri))


_current_listener: ContextVar[StatelessListener | None] = ContextVar("mcp_listening", default=None)


class _SubscriptionBus(InMemorySubscriptionBus):
    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """The SDK subscribes while it serves a listener, so the context variable tells which one."""
        current = _current_listener.get()
        if current is not None:
            current.deliver = listener
        return super().subscribe(listener)


class ChangeNotifier:
    def __init__(self) -> None:
        self._bus = _SubscriptionBus()
        self._sessions: dict[Connection, str | None] = {}  # with the owner of the logins of its caller
        self._listeners: set[StatelessListener] = set()
        self._send_tasks: dict[Connection | None, asyncio.Task[None]] = {}
        self._pending: dict[Connection | None, set[Change]] = {}
        self._listen_handler = ListenHandler(self._bus)

    async def listen(
        self, ctx: Any, params: SubscriptionsListenRequestParams, listener: StatelessListener
    ) -> SubscriptionsListenResult:
        token = _current_listener.set(listener)
        self._listeners.add(listener)
        try:
            return await self._listen_handler(ctx, params)
        finally:
            self._listeners.discard(listener)
            _current_listener.reset(token)

    def add_session(self, session: Connection, owner: str | None) -> None:
        """Notify a session of the handshake era until it ends."""
        self._sessions[session] = owner
        session.exit_stack.callback(self._sessions.pop, session, None)

    def notify_lists(self, kinds: Collection[ListKind]) -> None:
        """These lists have changed."""
        for listener in (None, *self._sessions) if kinds else ():
            self._schedule(listener, kinds)

    def notify_owner(self, owner: str) -> None:
        """What agents offer to the caller with these logins has changed. No other caller hears of it."""
        for session, session_owner in self._sessions.items():
            if session_owner == owner:
                self._schedule(session, tuple(_LIST_EVENTS))
        for listener in self._listeners:
            if listener.owner == owner and listener.deliver is not None:
                for event in _LIST_EVENTS.values():
                    listener.deliver(event)

    def notify_resource(self, session: Connection, uri: str) -> None:
        """A resource to which this session is subscribed has changed."""
        self._schedule(session, (ResourceUpdated(uri=uri),))

    def close_streams(self) -> None:
        """End the streams of listeners with a final result."""
        self._listen_handler.close()

    def _schedule(self, listener: Connection | None, changes: Collection[Change]) -> None:
        self._pending.setdefault(listener, set()).update(changes)
        if listener not in self._send_tasks:
            task = asyncio.ensure_future(self._send_pending(listener))
            self._send_tasks[listener] = task
            task.add_done_callback(partial(self._remove_task, listener))

    async def _send_pending(self, session: Connection | None) -> None:
        try:
            async with asyncio.timeout(_SEND_TIMEOUT):
                while pending := self._pending.get(session):
                    change = min(pending, key=_send_order)
                    pending.discard(change)
                    if session is not None:
                        await _send_change(session, change)
                    elif isinstance(change, str):
                        await self._bus.publish(_LIST_EVENTS[change])
        except TimeoutError:
            _log.debug("A client is not reading its notifications; they were dropped after %g s", _SEND_TIMEOUT)

    def _remove_task(self, listener: Connection | None, task: asyncio.Task[None]) -> None:
        del self._send_tasks[listener]
        self._pending.pop(listener, None)


def _send_order(change: Change) -> int:
    """Lists come first: an updated resource may be new on its list."""
    return list(_LIST_EVENTS).index(change) if isinstance(change, str) else len(_LIST_EVENTS)


async def _send_change(session: Connection, change: Change) -> None:
    match change:
        case "tools":
            await session.send_tool_list_changed()
        case "resources":
            await session.send_resource_list_changed()
        case "prompts":
            await session.send_prompt_list_changed()
        case ResourceUpdated(uri):
            await session.send_resource_updated(uri)


MAX_SUBSCRIPTIONS = 1000  # of one client
_NOTIFY_DELAY = 0.1  # seconds
_START_TIMEOUT = 10.0
_FIRST_PAUSE, _MAX_PAUSE = 0.5, 30.0  # seconds, before a lost subscription is renewed
_STATE_KEY = "fabric.watched"

Unsubscribe = Callable[[], None]
ActiveSubscriptions = dict[str, Unsubscribe]


class ResourceSubscriptions:
    """The subscriptions of one MCP server's clients."""

    def __init__(
        self,
        context: DoorContext,
        catalog: ToolCatalog,
        prompts_resources: PromptsAndResources,
        manifest_subscriptions: ManifestSubscriptions,
        notifier: ChangeNotifier,
    ) -> None:
        self._context = context
        self._catalog = catalog
        self._prompts_resources = prompts_resources
        self._manifest_subscriptions = manifest_subscriptions
        self._notifier = notifier

    async def subscribe(self, ctx: SdkContext, params: types.SubscribeRequestParams) -> HandlerResult:
        session, uri = get_connection(ctx), params.uri
        active = _get_active(session)
        if uri in active:
            return {}
        try:
            if len(active) >= MAX_SUBSCRIPTIONS:
                raise BadInput(f"A client may subscribe to at most {MAX_SUBSCRIPTIONS} resources", uri=uri[:256])
            unsubscribe = await self._subscribe_counted(
                get_request_context(ctx).principal, uri, partial(self._notifier.notify_resource, session, uri)
            )
        except FabricError as error:
            raise to_mcp_error(ctx, error, error_code_for(ctx, error, "resources/read")) from error
        if uri in active:  # the client subscribed twice at the same time
            unsubscribe()
        active.setdefault(uri, unsubscribe)
        return {}

    async def unsubscribe(self, ctx: SdkContext, params: types.UnsubscribeRequestParams) -> HandlerResult:
        _get_active(get_connection(ctx)).pop(params.uri, _do_nothing)()
        return {}

    async def listen(
        self, ctx: SdkContext, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """URIs that cannot be subscribed to are left out of the acknowledgement."""
        uris = list(dict.fromkeys(params.notifications.resource_subscriptions or ()))
        if len(uris) > MAX_SUBSCRIPTIONS:
            raise MCPError(types.INVALID_PARAMS, f"A client may subscribe to at most {MAX_SUBSCRIPTIONS} resources")
        principal = get_request_context(ctx).principal
        listener = StatelessListener(find_login_owner(principal))
        active: ActiveSubscriptions = {}
        with ExitStack() as stack:
            try:
                for _ in uris:
                    stack.enter_context(self._context.subscriptions.hold(principal.principal_id))
            except RateLimited as error:
                raise to_mcp_error(ctx, error, error_code_for(ctx, error, "resources/read")) from error
            stack.callback(_unsubscribe_all, active)
            await asyncio.gather(*(self._try_subscribe(principal, uri, listener, active) for uri in uris))
            active_uris = [uri for uri in uris if uri in active]
            notifications = params.notifications.model_copy(update={"resource_subscriptions": active_uris or None})
            return await self._notifier.listen(
                ctx, params.model_copy(update={"notifications": notifications}), listener
            )

    async def _try_subscribe(
        self, principal: Principal, uri: str, listener: StatelessListener, active: ActiveSubscriptions
    ) -> None:
        try:
            active[uri] = await self._subscribe(principal, uri, partial(listener.notify_updated, uri))
        except FabricError as error:
            _log.debug("Subscribing to %s failed: %s", uri[:256], error.message)

    async def _subscribe_counted(self, principal: Principal, uri: str, notify: Callable[[], None]) -> Unsubscribe:
        """As `_subscribe`, counted as one of the caller's subscriptions. Raises FabricError."""
        subscriptions, caller = self._context.subscriptions, principal.principal_id
        subscriptions.acquire(caller)
        try:
            unsubscribe = await self._subscribe(principal, uri, notify)
        except BaseException:
            subscriptions.release(caller)
            raise
        return _join(unsubscribe, partial(subscriptions.release, caller))

    async def _subscribe(self, principal: Principal, uri: str, notify: Callable[[], None]) -> Unsubscribe:
        """Raises FabricError."""
        debounce = _Debounce(notify)
        agent_id = self._find_manifest_agent(principal, uri)
        if agent_id is not None:
            return _join(self._manifest_subscriptions.subscribe(agent_id, debounce.trigger), debounce.stop)
        source = self._prompts_resources.find_resource(uri, principal)
        if source is None:
            raise BadInput(f"Unknown resource: {to_encodable_text(uri[:256])}", uri=uri[:256], upstream_code=-32002)
        subscription = _RestartingSubscription(partial(self._subscribe_at_agent, source, principal), debounce.trigger)
        await subscription.start()
        return _join(subscription.stop, debounce.stop)

    def _find_manifest_agent(self, principal: Principal, uri: str) -> str | None:
        """The agent whose manifest has this URI."""
        if not uri.startswith(AGENT_URI_PREFIX):
            return None
        try:
            agent_ids = (manifest.agent_id for manifest in self._catalog.list_visible_agents(principal))
            return next((agent_id for agent_id in agent_ids if AGENT_URI_PREFIX + agent_id == uri), None)
        except AgentNotFound:
            return None

    async def _subscribe_at_agent(
        self, source: ItemSource, principal: Principal, on_change: Callable[[], None], on_lost: Callable[[], None]
    ) -> Unsubscribe:
        """Raises FabricError."""
        start_timeout = choose_start_timeout(self._context, source.manifest, _START_TIMEOUT)

        def ask(provider: PromptResourceProvider) -> Awaitable[Unsubscribe]:
            return provider.subscribe(source.original, on_change, on_lost, start_timeout)

        return await run_at_agent(self._context, source.manifest, principal, ask)


class _Debounce:
    """Calls `notify` once for all triggers within a short time."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._timer: asyncio.TimerHandle | None = None

    def trigger(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_NOTIFY_DELAY, self._fire)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        self._timer = None
        self._notify()


class _RestartingSubscription:
    """Subscribes again after the agent's runtime was replaced; that counts as a change, because some may be missed."""

    def __init__(
        self,
        subscribe: Callable[[Callable[[], None], Callable[[], None]], Awaitable[Unsubscribe]],
        on_change: Callable[[], None],
    ) -> None:
        self._subscribe = subscribe
        self._on_change = on_change
        self._unsubscribe: Unsubscribe = _do_nothing
        self._restart_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises FabricError."""
        self._unsubscribe = await self._subscribe(self._on_change, self._on_lost)

    def stop(self) -> None:
        if self._restart_task is not None:
            self._restart_task.cancel()
        self._unsubscribe()

    def _on_lost(self) -> None:
        self._unsubscribe = _do_nothing
        self._restart_task = asyncio.ensure_future(self._restart())

    async def _restart(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            await asyncio.sleep(pause)
            try:
                await self.start()
            except FabricError:
                pause = min(2 * pause, _MAX_PAUSE)
                continue
            self._on_change()
            return


def _get_active(session: Connection) -> ActiveSubscriptions:
    """The subscriptions of a session; they end with it."""
    if _STATE_KEY not in session.state:
        new: ActiveSubscriptions = {}
        session.state[_STATE_KEY] = new
        session.exit_stack.callback(_unsubscribe_all, new)
    active: ActiveSubscriptions = session.state[_STATE_KEY]
    return active


def _unsubscribe_all(active: ActiveSubscriptions) -> None:
    while active:
        active.popitem()[1]()


def _join(first: Unsubscribe, second: Unsubscribe) -> Unsubscribe:
    def unsubscribe_both() -> None:
        first()
        second()

    return unsubscribe_both


def _do_nothing() -> None:
    pass
