"""Prompts and resources of an MCP server: listed from memory, requested over the session that all calls share.

The lists are loaded when the session opens, when the server reports a change, and after
health checks, always in a task of their own, so a slow server blocks no caller. A list that cannot
be loaded stays as it was.

Subscriptions to resources are kept up as long as there is a subscriber. In the handshake era the server is told
by `resources/subscribe`, in the stateless era by one `subscriptions/listen` stream. After a lost connection
everything is subscribed again and all subscribers are notified, because changes may have been missed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, NamedTuple

import mcp_types as types
import msgspec
from mcp.client.session import ClientSession
from mcp.client.subscriptions import ResourceUpdated, Subscription, SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter, ValidationError

from a2a_fabric.core.call import Emit, ignore_event
from a2a_fabric.core.errors import (
    AgentOffline,
    BadInput,
    FabricError,
    UpstreamRefused,
)
from a2a_fabric.core.propagation import chain_to_headers, chain_to_metadata, format_traceparent
from a2a_fabric.core.result import Question, Result
from a2a_fabric.core.tasks import Deadline
from a2a_fabric.protocols.mcp.questions import AnswerCapabilities
from a2a_fabric.protocols.mcp.runtime_ports import EMPTY_LISTING, Entries, PromptResourceListing, PromptResourceQuery
from a2a_fabric.protocols.mcp.wire import RESOURCE_NOT_FOUND
from a2a_fabric.runtimes.mcp.back_channel import McpBackChannel, lacks_back_channel
from a2a_fabric.runtimes.mcp.content import UpstreamRpcError, error_from_rpc_error
from a2a_fabric.runtimes.mcp.dispatcher import current_request
from a2a_fabric.runtimes.mcp.questions import (
    CONTINUATION_PREFIX,
    McpPendingQuestions,
    PendingMcpRequest,
    SessionReply,
    answers_from_params,
    make_progress_callback,
    to_input_required,
)
from a2a_fabric.runtimes.mcp.sessions import McpConnection
from a2a_fabric.runtimes.mcp.supervisor import McpConnectionSupervisor
from a2a_fabric.runtimes.mcp.transports import call_headers

_log = logging.getLogger(__name__)

MAX_ENTRIES = 1000  # of each kind
MAX_ENTRY_BYTES = 64 * 1024
MAX_LIST_BYTES = 4 * 1024 * 1024
_MAX_PAGES = 200
_LIST_TIMEOUT = 30.0  # seconds for all lists
_FRESH_SECONDS = 5.0  # seconds in which a health check does not load the lists again
MAX_RESOURCES = 1000  # of one server
_ANSWER_TIMEOUT = 10.0
_RESTART_MARGIN = 0.05
_RELISTEN_DELAY = 0.5  # seconds, after the server has ended its stream
_OFFLINE_DELAY = 5.0  # seconds, after the server was offline
_ANY_OBJECT = TypeAdapter(dict[str, Any])


class McpPromptResourceProvider:
    """The prompts and resources of one server. `on_change` is called when their lists have changed."""

    def __init__(
        self,
        agent_id: str,
        supervisor: McpConnectionSupervisor,
        back_channel: McpBackChannel,
        pending_questions: McpPendingQuestions,
        on_change: Callable[[], None],
    ) -> None:
        self.listing = EMPTY_LISTING
        self._pending_questions = pending_questions
        self._subscriptions = McpResourceSubscriptions(agent_id, supervisor)
        self._agent_id = agent_id
        self._supervisor = supervisor
        self._back_channel = back_channel
        self._on_change = on_change
        self._reload_task: asyncio.Task[None] | None = None
        self._is_reload_due = False
        self._reloaded_at = float("-inf")
        self._is_closed = False

    def reload(self) -> None:
        """Load the lists soon; once more if they are being loaded now."""
        self._is_reload_due = True
        if self._reload_task is None and not self._is_closed:
            self._reload_task = asyncio.ensure_future(self._reload())

    def reload_if_stale(self) -> None:
        """Load the lists, unless they were loaded just now."""
        if self._reload_task is None and asyncio.get_running_loop().time() - self._reloaded_at > _FRESH_SECONDS:
            self.reload()

    async def load(self) -> PromptResourceListing:
        self.reload_if_stale()
        if self._reload_task is not None:
            await asyncio.wait([self._reload_task])
        return self.listing

    async def ask(self, query: PromptResourceQuery, emit: Emit | None = None) -> dict[str, Any]:
        with Deadline(query.timeout):
            reply = await self._request_or_resume(query, emit)
            if (
                isinstance(reply, UpstreamRpcError) and reply.transport_problem == "gone"
            ):  # the server no longer knows the session
                reply = await self._request_or_resume(query, emit)
            if lacks_back_channel(reply) and await self._back_channel.open(
                _make_request_key(query), query.start_timeout
            ):
                reply = await self._request_or_resume(query, emit)
        if isinstance(reply, UpstreamRpcError):
            raise self._error_from_reply(reply, query)
        return reply

    async def subscribe(
        self, uri: str, on_change: Callable[[], None], on_lost: Callable[[], None], start_timeout: float
    ) -> Callable[[], None]:
        return await self._subscriptions.subscribe(uri, on_change, on_lost, start_timeout)

    def notify_updated(self, uri: str) -> None:
        """The server reports that a resource has changed."""
        self._subscriptions.notify(uri)

    async def aclose(self) -> None:
        self._is_closed = True
        await self._subscriptions.aclose()
        if self._reload_task is not None:
            self._reload_task.cancel()
            await asyncio.wait([self._reload_task])

    async def _reload(self) -> None:
        try:
            while self._is_reload_due:
                self._is_reload_due = False
                async with asyncio.timeout(_LIST_TIMEOUT):
                    await self._reload_lists()
        except TimeoutError:
            _log.warning("%s: listing its prompts and resources took more than %g s", self._agent_id, _LIST_TIMEOUT)
        except Exception:
            _log.exception("%s: listing its prompts and resources failed", self._agent_id)
        finally:
            self._reload_task = None
            self._reloaded_at = asyncio.get_running_loop().time()

    async def _reload_lists(self) -> None:
        connection = self._supervisor.current
        server_capabilities = connection.session.server_capabilities if connection is not None else None
        if connection is None or server_capabilities is None:
            return
        has_prompts, has_resources = server_capabilities.prompts is not None, server_capabilities.resources is not None
        previous = self.listing
        current = PromptResourceListing(
            prompts=await self._list_entries(connection, types.ListPromptsRequest, previous.prompts)
            if has_prompts
            else (),
            resources=await self._list_entries(connection, types.ListResourcesRequest, previous.resources)
            if has_resources
            else (),
            templates=await self._list_entries(connection, types.ListResourceTemplatesRequest, previous.templates)
            if has_resources
            else (),
        )
        if current != previous:
            self.listing = current
            self._on_change()

    async def _list_entries(self, connection: McpConnection, request: Any, previous: Entries) -> Entries:
        """The entries of all pages, within bounds; the previous ones if they cannot be loaded."""
        try:
            return _limit_entries(await self._fetch_entries(connection.session, request), self._agent_id)
        except MCPError as error:
            if error.code == types.METHOD_NOT_FOUND:
                return ()
            _log.info("%s: %s: %s", self._agent_id, _read_method_name(request), error)
        except ValidationError:
            _log.warning(
                "%s: the answer to %s does not follow the protocol", self._agent_id, _read_method_name(request)
            )
        return previous

    async def _fetch_entries(self, session: ClientSession, request: Any) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        cursor: str | None = None
        seen_cursors: set[str] = set()
        for _ in range(_MAX_PAGES):
            page_request = request(params=types.PaginatedRequestParams(cursor=cursor))
            page: dict[str, Any] = await session.send_request(page_request, _ANY_OBJECT)  # type: ignore[type-var]  # any JSON
            entries += page[_RESULT_KEYS[_read_method_name(request)]]
            cursor = page.get("nextCursor")
            if cursor is None or cursor in seen_cursors or len(entries) >= MAX_ENTRIES:
                break
            seen_cursors.add(cursor)
        return entries

    async def _request_or_resume(self, query: PromptResourceQuery, emit: Emit | None) -> SessionReply:
        """The server's reply, or its questions, while the request waits for the answers."""
        state = query.params.get("requestState")
        if isinstance(state, str) and state.startswith(CONTINUATION_PREFIX):
            pending = self._pending_questions.resume(
                answers_from_params(query.params, state), query.principal, _make_request_key(query)
            )
        else:
            connection = await self._back_channel.get_connection(_make_request_key(query), query.start_timeout)
            if query.method == "completion/complete":
                return await self._complete(connection, query)
            pending = self._start_request(connection, query, stream=emit is not None)
        outcome = await self._pending_questions.wait_for_outcome(
            pending, emit or ignore_event, partial(_can_answer, query.client_capabilities)
        )
        if isinstance(outcome, Result):
            return to_input_required(outcome.asked) if outcome.asked is not None else {}
        return outcome

    def _start_request(
        self, connection: McpConnection, query: PromptResourceQuery, *, stream: bool
    ) -> PendingMcpRequest:
        pending = PendingMcpRequest(query.principal, _make_request_key(query))
        request_token = current_request.set(pending)
        try:
            pending.start(
                self._send_query(connection, query, pending if stream else None), on_end=connection.pending_requests.pop
            )
            connection.pending_requests[pending] = None
        finally:
            current_request.reset(request_token)
        return pending

    async def _complete(self, connection: McpConnection, query: PromptResourceQuery) -> SessionReply:
        server_capabilities = connection.session.server_capabilities
        if server_capabilities is None or server_capabilities.completions is None:
            return {"completion": {"values": []}}
        with connection.decline_questions():
            return await self._send_query(connection, query, None)

    async def _send_query(
        self, connection: McpConnection, query: PromptResourceQuery, pending: PendingMcpRequest | None
    ) -> SessionReply:
        params = {**query.params, "_meta": _build_meta(query)}
        on_progress = None
        if connection.era != "stateless":
            params = {name: value for name, value in params.items() if name not in ("inputResponses", "requestState")}
        if pending is not None:
            on_progress = make_progress_callback(pending)
            if connection.era == "stateless":
                params["_meta"][types.LOG_LEVEL_META_KEY] = "info"
        trace_token = call_headers.set(
            {"traceparent": format_traceparent(query.trace), **chain_to_headers(query.delegation_chain)}
        )
        try:
            reply = await connection.request(
                query.method, params, on_progress=on_progress, capabilities=query.client_capabilities
            )
        finally:
            call_headers.reset(trace_token)
        if isinstance(reply, UpstreamRpcError) and reply.transport_problem == "gone":
            self._supervisor.drop(connection)
        return reply

    def _error_from_reply(self, reply: UpstreamRpcError, query: PromptResourceQuery) -> FabricError:
        if reply.code == RESOURCE_NOT_FOUND and reply.transport_problem is None:
            return BadInput(reply.message[:500] or "Unknown resource", upstream_code=RESOURCE_NOT_FOUND)
        return error_from_rpc_error(reply, self._agent_id, query.method, ())


_RESULT_KEYS = {
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


def _read_method_name(request: Any) -> str:
    return str(request.model_fields["method"].default)


def _limit_entries(entries: Iterable[dict[str, Any]], agent_id: str) -> Entries:
    accepted: list[dict[str, Any]] = []
    remaining_bytes = MAX_LIST_BYTES
    for entry in entries:
        size = len(msgspec.json.encode(entry))
        if len(accepted) == MAX_ENTRIES or size > remaining_bytes:
            _log.warning(
                "%s: it lists more than %d entries or %d bytes; the rest was dropped",
                agent_id,
                MAX_ENTRIES,
                MAX_LIST_BYTES,
            )
            break
        if size <= MAX_ENTRY_BYTES:
            accepted.append(entry)
            remaining_bytes -= size
    return tuple(accepted)


def _make_request_key(query: PromptResourceQuery) -> str:
    """The same for the first request and its repetition with answers."""
    return f"{query.method} {query.params.get('name') or query.params.get('uri')}"


def _can_answer(capabilities: Mapping[str, Any], questions: Mapping[str, Question]) -> bool:
    client = msgspec.convert(capabilities, AnswerCapabilities)
    return all(map(client.can_answer_one, questions.values()))


def _build_meta(query: PromptResourceQuery) -> dict[str, Any]:
    return {"traceparent": format_traceparent(query.trace), **chain_to_metadata(query.delegation_chain)}


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
