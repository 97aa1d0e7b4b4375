"""Subscriptions to resources of an MCP server, kept up as long as there is a subscriber.

In the handshake era the server is told by `resources/subscribe`, in the stateless era by one
`subscriptions/listen` stream. After a lost connection everything is subscribed again and all
subscribers are notified, because changes may have been missed."""

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
from a2a_fabric.protocols.mcp.frames import RESOURCE_NOT_FOUND
from a2a_fabric.runtimes.mcp.content import UpstreamRpcError, error_from_rpc_error
from a2a_fabric.runtimes.mcp.sessions import McpConnection, McpConnectionSupervisor

_log = logging.getLogger(__name__)

MAX_RESOURCES = 1000  # of one server
_ANSWER_TIMEOUT = 10.0
_RESTART_MARGIN = 0.05
_RELISTEN_DELAY = 0.5  # seconds, after the server has ended its stream
_OFFLINE_DELAY = 5.0  # seconds, after the server was offline

Callback = Callable[[], None]


class _Subscriber(NamedTuple):
    on_change: Callback
    on_lost: Callback


class McpResourceSubscriptions:
    """The subscriptions of one server. `notify` is called with the URI of each resource that has changed."""

    def __init__(self, agent_id: str, supervisor: McpConnectionSupervisor) -> None:
        self._agent_id = agent_id
        self._supervisor = supervisor
        self._subscribers: dict[str, list[_Subscriber]] = {}
        self._unconfirmed: dict[str, asyncio.Future[None]] = {}  # the server has not confirmed them yet
        self._uris_changed = asyncio.Event()
        self._sync_task: asyncio.Task[None] | None = None
        self._unsubscribe_tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def subscribe(self, uri: str, on_change: Callback, on_lost: Callback, timeout: float) -> Callable[[], None]:
        """Subscribe until the returned function is called. Raises FabricError."""
        subscriber = _Subscriber(on_change, on_lost)
        if uri not in self._subscribers and len(self._subscribers) >= MAX_RESOURCES:
            raise UpstreamRefused(
                f"There are too many subscriptions to resources of '{self._agent_id}'", agent_id=self._agent_id
            )
        connection = await self._supervisor.get_connection(timeout)
        server_capabilities = connection.session.server_capabilities
        if (
            server_capabilities is None
            or server_capabilities.resources is None
            or not server_capabilities.resources.subscribe
        ):
            raise UpstreamRefused("The MCP server does not support subscriptions to resources", agent_id=self._agent_id)
        self._subscribers.setdefault(uri, []).append(subscriber)
        try:
            await self._wait_for_confirmation(uri, timeout)
        except BaseException:
            self._remove(uri, subscriber)
            raise
        return lambda: self._remove(uri, subscriber)

    def notify(self, uri: str) -> None:
        """A change of a part counts as a change of the whole resource."""
        for subscribed_uri in [
            each for each in self._subscribers if uri == each or uri.startswith(each.rstrip("/") + "/")
        ]:
            for subscriber in list(self._subscribers[subscribed_uri]):
                subscriber.on_change()

    async def aclose(self) -> None:
        self._is_closed = True
        tasks = [task for task in (self._sync_task, *self._unsubscribe_tasks) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        remaining, self._subscribers = self._subscribers, {}
        for subscriber in [subscriber for subscribers in remaining.values() for subscriber in subscribers]:
            subscriber.on_lost()

    async def _wait_for_confirmation(self, uri: str, timeout: float) -> None:
        if self._sync_task is None and not self._is_closed:
            self._sync_task = asyncio.ensure_future(self._run())
        if len(self._subscribers[uri]) == 1 or uri in self._unconfirmed:
            confirmation = self._unconfirmed.setdefault(uri, asyncio.get_running_loop().create_future())
            self._uris_changed.set()
            try:
                async with asyncio.timeout(timeout):
                    await asyncio.shield(confirmation)
            except TimeoutError as exc:
                raise AgentOffline("The MCP server did not confirm the subscription", agent_id=self._agent_id) from exc

    def _remove(self, uri: str, subscriber: _Subscriber) -> None:
        subscribers = self._subscribers.get(uri, [])
        if subscriber in subscribers:
            subscribers.remove(subscriber)
        if not subscribers and self._subscribers.pop(uri, None) is not None:
            self._resolve(uri, None)
            self._uris_changed.set()
            connection = self._supervisor.current
            if connection is not None and connection.era == "handshake" and not self._is_closed:
                unsubscribe_task = asyncio.ensure_future(_unsubscribe(connection, uri))
                self._unsubscribe_tasks.add(unsubscribe_task)
                unsubscribe_task.add_done_callback(self._unsubscribe_tasks.discard)

    def _resolve(self, uri: str, error: FabricError | None) -> None:
        confirmation = self._unconfirmed.pop(uri, None)
        if confirmation is None or confirmation.done():
            return
        if error is None:
            confirmation.set_result(None)
        else:
            confirmation.set_exception(error)
            confirmation.exception()  # so that it is not reported as never retrieved

    async def _run(self) -> None:
        is_first = True
        try:
            while self._subscribers:
                try:
                    connection = await self._supervisor.get_connection(_ANSWER_TIMEOUT)
                    if not is_first:
                        self._notify_all()
                    is_first = False
                    await (
                        self._subscribe_by_stream(connection)
                        if connection.era == "stateless"
                        else self._subscribe_by_requests(connection)
                    )
                except (FabricError, MCPError, SubscriptionLost, TimeoutError, ValidationError) as error:
                    self._fail_unconfirmed(error)
                    await asyncio.sleep(_choose_pause(error))
        except Exception:
            _log.exception("%s: the subscriptions to its resources failed", self._agent_id)
        finally:
            self._sync_task = None

    def _notify_all(self) -> None:
        for uri in list(self._subscribers):
            for subscriber in list(self._subscribers[uri]):
                subscriber.on_change()

    def _fail_unconfirmed(self, error: Exception) -> None:
        """Report the error to subscribers that wait for a confirmation; the others stay subscribed."""
        failure = error if isinstance(error, FabricError) else _to_fabric_error(error, self._agent_id)
        for uri in list(self._unconfirmed):
            self._resolve(uri, failure)

    async def _subscribe_by_requests(self, connection: McpConnection) -> None:
        """Run until the connection is closed or the last subscription has ended."""
        subscribed: set[str] = set()
        closed = asyncio.ensure_future(connection.wait_until_closed())
        try:
            while self._subscribers and not closed.done():
                self._uris_changed.clear()
                subscribed &= self._subscribers.keys()
                for uri in self._subscribers.keys() - subscribed:
                    await self._subscribe(connection, uri)
                    subscribed.add(uri)
                await _wait_for_either(closed, self._uris_changed)
        finally:
            closed.cancel()

    async def _subscribe(self, connection: McpConnection, uri: str) -> None:
        request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT):
                await connection.session.send_request(request, types.EmptyResult)
        except (MCPError, TimeoutError, ValidationError) as error:
            self._resolve(uri, _to_fabric_error(error, self._agent_id))
        else:
            self._resolve(uri, None)

    async def _subscribe_by_stream(self, connection: McpConnection) -> None:
        """The next stream is opened before the last one is closed, so no change is missed."""
        async with AsyncExitStack() as previous_stream:
            while self._subscribers:
                self._uris_changed.clear()
                uris = sorted(self._subscribers)
                async with AsyncExitStack() as next_stream:
                    async with asyncio.timeout(_ANSWER_TIMEOUT):
                        subscription = await next_stream.enter_async_context(
                            listen(connection.session, resource_subscriptions=uris)
                        )
                    await previous_stream.aclose()
                    previous_stream.push_async_exit(next_stream.pop_all())
                self._acknowledge(uris, subscription.honored.resource_subscriptions or ())
                if not await self._read_stream(subscription):
                    raise SubscriptionLost("The server has ended the stream")

    def _acknowledge(self, uris: Iterable[str], honored: Iterable[str]) -> None:
        honored_uris = set(honored)
        refusal = UpstreamRefused(
            "The MCP server does not support a subscription to this resource", agent_id=self._agent_id
        )
        for uri in uris:
            self._resolve(uri, None if uri in honored_uris else refusal)

    async def _read_stream(self, subscription: Subscription) -> bool:
        """Read until the set of URIs changes; False if the server ended the stream."""
        while not self._uris_changed.is_set():
            next_event = asyncio.ensure_future(anext(subscription, None))
            try:
                await _wait_for_either(next_event, self._uris_changed)
            finally:
                if not next_event.done():
                    next_event.cancel()
                    await asyncio.wait([next_event])
            if next_event.cancelled():
                return True
            event = next_event.result()
            if event is None:
                return False
            if isinstance(event, ResourceUpdated):
                self.notify(event.uri)
        return True


async def _wait_for_either(task: asyncio.Future[Any], event: asyncio.Event) -> None:
    waiter = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([task, waiter], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()


async def _unsubscribe(connection: McpConnection, uri: str) -> None:
    request = types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=uri))
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT):
            await connection.session.send_request(request, types.EmptyResult)
    except (MCPError, TimeoutError, ValidationError, RuntimeError) as error:
        _log.debug("%s: ending the subscription to %s failed: %s", connection.name, uri, error)


def _choose_pause(error: Exception) -> float:
    """Wait for the back-off of a restart; a server that only ended its stream is asked again soon."""
    if isinstance(error, SubscriptionLost):
        return _RELISTEN_DELAY
    retry_after = error.details.get("retry_after") if isinstance(error, AgentOffline) else None
    return (
        min(_OFFLINE_DELAY, retry_after + _RESTART_MARGIN) if isinstance(retry_after, int | float) else _OFFLINE_DELAY
    )


def _to_fabric_error(error: Exception, agent_id: str) -> FabricError:
    if isinstance(error, MCPError) and error.code == RESOURCE_NOT_FOUND:
        return BadInput(error.message[:500] or "Unknown resource", upstream_code=RESOURCE_NOT_FOUND)
    if isinstance(error, MCPError):
        return error_from_rpc_error(
            UpstreamRpcError(error.code, error.message, error.data), agent_id, "resources/subscribe", ()
        )
    return AgentOffline("The MCP server did not confirm the subscription", agent_id=agent_id)
