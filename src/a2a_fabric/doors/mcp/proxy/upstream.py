"""Sessions with an agent's MCP server over message streams, shared by many requests, and the pool of them.

Ids and progress tokens are rewritten per session, so each message of the server finds its request. A message
that names no request goes to the request that has the session exclusively, or else to the latest one; changes
go to the pool's listeners. Requests of one principal share a session. With a server of the handshake era each
client has its own sessions, because the server was told the client's capabilities; a request that may cause
unaddressed messages has its session exclusively."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import mcp_types as types
import msgspec
from mcp.shared.message import ClientMessageMetadata, SessionMessage

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentOffline, FabricError, UpstreamInterrupted
from a2a_fabric.core.limits import Share
from a2a_fabric.core.propagation import DELEGATION_META_KEY, chain_from_metadata, chain_to_headers
from a2a_fabric.doors.mcp.sessions import OpenSession, OpenSessions
from a2a_fabric.protocols.mcp import eras
from a2a_fabric.protocols.mcp.eras import SUBSCRIPTION_ID, is_change
from a2a_fabric.protocols.mcp.runtime_ports import OpenTunnel
from a2a_fabric.protocols.mcp.wire import HANDSHAKE_VERSION, VERSION_HEADER, Era, McpProtocolError

_START_TIMEOUT = 30.0
_CLOSE_TIMEOUT = 10.0
_SEND_TIMEOUT = 15.0
_PROBE_TIMEOUT = 3.0  # seconds, for a server that ignores a method it does not know
_MAX_BUFFERED = 1024  # messages for a slow reader; then the oldest are dropped
_MAX_PAGES = 100

JsonRpcMessage = types.JSONRPCMessage
ServerMessage = types.JSONRPCRequest | types.JSONRPCNotification
OnMessage = Callable[[ServerMessage], Awaitable[None]]


class SessionTask:
    """A session that runs in a task of its own: it must open in time, is cancelled once, and closes within a bound."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self._task: asyncio.Task[None] | None = None
        self._is_ending = False

    async def start(self, run: Callable[[asyncio.Future[None]], Coroutine[Any, Any, None]]) -> None:
        """Start `run`, and wait until it sets the future that it gets. Raises AgentOffline, or its FabricError."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(run(ready))
        try:
            await asyncio.wait({ready, self._task}, return_when=asyncio.FIRST_COMPLETED, timeout=_START_TIMEOUT)
        except asyncio.CancelledError:
            self.end()
            raise
        if not ready.done():
            self.end()
            error = self._task.exception() if self._task.done() and not self._task.cancelled() else None
            if isinstance(error, FabricError):
                raise error
            reason = f"The MCP server did not start within {_START_TIMEOUT:g} s"
            raise AgentOffline(reason, agent_id=self.agent_id) from error

    def end(self) -> None:
        """Cancel the task, but only once: a second cancellation would interrupt the cleanup after the first."""
        if self._task is not None and not self._is_ending:
            self._is_ending = True
            self._task.cancel()

    async def aclose(self) -> None:
        self.end()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_CLOSE_TIMEOUT)


def result_of(message: JsonRpcMessage) -> dict[str, Any] | None:
    """The result in a message; None if it is not an answer. Raises McpProtocolError if the answer is an error."""
    if isinstance(message, types.JSONRPCError):
        raise McpProtocolError(message.error.code, message.error.message, message.error.data)
    return message.result if isinstance(message, types.JSONRPCResponse) else None


class UpstreamRequest:
    """A request in flight. `progress_token` and `client_id` are those that the client itself chose."""

    def __init__(self, upstream_id: int, progress_token: Any, client_id: Any) -> None:
        self.upstream_id = upstream_id
        self.progress_token = progress_token
        self.client_id = client_id
        self._messages: deque[JsonRpcMessage] = deque(maxlen=_MAX_BUFFERED)
        self._has_ended = False
        self._arrived = asyncio.Event()

    def deliver(self, message: JsonRpcMessage) -> None:
        """Never waits, so a slow reader does not hold up the other requests of the session."""
        self._messages.append(message)
        self._arrived.set()

    def end(self) -> None:
        self._has_ended = True
        self._arrived.set()

    async def next_message(self) -> JsonRpcMessage:
        """The server's next message. Raises UpstreamInterrupted when the session has ended."""
        while not self._messages:
            if self._has_ended:
                raise UpstreamInterrupted("The MCP server has ended")
            self._arrived.clear()
            await self._arrived.wait()
        return self._messages.popleft()

    def take_buffered(self) -> list[JsonRpcMessage]:
        messages = list(self._messages)
        self._messages.clear()
        return messages

    async def wait_for_result(self, on_message: OnMessage | None = None) -> dict[str, Any]:
        """The result; messages before it go to `on_message`. Raises McpProtocolError, UpstreamInterrupted."""
        while True:
            message = await self.next_message()
            result = result_of(message)
            if result is not None:
                return result
            if on_message is not None and isinstance(message, ServerMessage):
                await on_message(message)


class UpstreamSession(SessionTask):
    """`on_change` gets notifications of changes; `on_end` is called when the session has ended."""

    def __init__(
        self,
        agent_id: str,
        connect: OpenTunnel,
        on_change: Callable[[JsonRpcMessage], None],
        on_end: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(agent_id)
        self.has_ended = False
        self.exclusive_request: UpstreamRequest | None = None
        self.on_end = on_end
        self._connect = connect
        self._on_change = on_change
        self._ids = itertools.count(1)
        self._requests: dict[int, UpstreamRequest] = {}
        self._writer: Any = None

    async def open(self) -> None:
        """Raises AgentOffline."""
        await self.start(self._run)

    def end(self) -> None:
        self.has_ended = True
        super().end()

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        headers: Mapping[str, str],
        timeout: float,
        on_message: OnMessage | None = None,
    ) -> dict[str, Any]:
        """Send a request and wait for its result. Raises McpProtocolError, FabricError or TimeoutError."""
        upstream_request = await self.send_request(method, params, headers=headers)
        try:
            async with asyncio.timeout(timeout):
                return await upstream_request.wait_for_result(on_message)
        except McpProtocolError:
            raise
        except BaseException:
            await self.cancel(upstream_request, headers)
            raise
        finally:
            self.forget(upstream_request)

    async def send_request(
        self, method: str, params: Mapping[str, Any], *, headers: Mapping[str, str] = {}, client_id: Any = None
    ) -> UpstreamRequest:
        """Raises UpstreamInterrupted. The caller also calls `forget` or `cancel`."""
        upstream_id = next(self._ids)
        meta = dict(params.get("_meta") or {})
        upstream_request = UpstreamRequest(upstream_id, meta.get("progressToken"), client_id)
        if upstream_request.progress_token is not None:
            params = {**params, "_meta": {**meta, "progressToken": upstream_id}}
        self._requests[upstream_id] = upstream_request
        if self.has_ended:
            upstream_request.end()
        request = types.JSONRPCRequest(jsonrpc="2.0", id=upstream_id, method=method, params=dict(params))
        await self.send(request, headers)
        return upstream_request

    def add_listener(self, client_id: Any) -> UpstreamRequest:
        """A listener gets messages as a request does, but sends none. It ends with the session."""
        listener = UpstreamRequest(next(self._ids), None, client_id)
        self._requests[listener.upstream_id] = listener
        return listener

    async def send(self, message: JsonRpcMessage, headers: Mapping[str, str] = {}) -> None:
        """Raises UpstreamInterrupted."""
        if self._writer is None or self.has_ended:
            raise UpstreamInterrupted("The MCP server has ended", agent_id=self.agent_id)
        metadata = ClientMessageMetadata(headers=dict(headers)) if headers else None
        try:
            async with asyncio.timeout(_SEND_TIMEOUT):
                await self._writer.send(SessionMessage(message, metadata))
        except Exception as exc:  # the SDK's stream is closed, or the server does not read
            self.end()
            raise UpstreamInterrupted("The MCP server does not read its input", agent_id=self.agent_id) from exc

    def forget(self, upstream_request: UpstreamRequest) -> None:
        self._requests.pop(upstream_request.upstream_id, None)

    async def cancel(self, upstream_request: UpstreamRequest, headers: Mapping[str, str] = {}) -> None:
        """Tell the server that the answer is not needed any more. Never raises."""
        if self._requests.pop(upstream_request.upstream_id, None) is None or self.has_ended:
            return
        params = {"requestId": upstream_request.upstream_id, "reason": "The caller has disconnected"}
        notification = types.JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params)
        with suppress(UpstreamInterrupted):
            await self.send(notification, headers)

    async def _run(self, ready: asyncio.Future[None]) -> None:
        try:
            async with self._connect() as (reader, writer):
                self._writer = writer
                ready.set_result(None)
                async for message in reader:
                    if isinstance(message, SessionMessage):
                        await self._dispatch(message.message)
        finally:
            self.has_ended = True
            for upstream_request in self._requests.values():
                upstream_request.end()
            if self.on_end is not None:
                self.on_end()

    async def _dispatch(self, message: JsonRpcMessage) -> None:
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            upstream_request = self._requests.get(message.id) if isinstance(message.id, int) else None
            if upstream_request is not None:
                upstream_request.deliver(message)
        elif isinstance(message, types.JSONRPCRequest) and message.method == "ping":
            await self.send(types.JSONRPCResponse(jsonrpc="2.0", id=message.id, result={}))
        elif (upstream_request := self._find_request(message)) is not None:
            upstream_request.deliver(_restore_client_ids(message, upstream_request))
        elif is_change(message.method):
            self._on_change(message)
        elif (upstream_request := self.exclusive_request or next(reversed(self._requests.values()), None)) is not None:
            upstream_request.deliver(message)
        elif isinstance(message, types.JSONRPCRequest):
            error = types.ErrorData(code=types.METHOD_NOT_FOUND, message="No client is connected to answer this")
            await self.send(types.JSONRPCError(jsonrpc="2.0", id=message.id, error=error))

    def _find_request(self, message: ServerMessage) -> UpstreamRequest | None:
        """The request that a message itself names."""
        params = message.params or {}
        upstream_id = params.get("progressToken") if message.method == "notifications/progress" else None
        if upstream_id is None:
            upstream_id = (params.get("_meta") or {}).get(SUBSCRIPTION_ID)
        return self._requests.get(upstream_id) if isinstance(upstream_id, int) else None


def _restore_client_ids(message: ServerMessage, upstream_request: UpstreamRequest) -> JsonRpcMessage:
    """The message with the client's own progress token and subscription id."""
    params = dict(message.params or {})
    if message.method == "notifications/progress":
        params["progressToken"] = upstream_request.progress_token
    meta = params.get("_meta") or {}
    if SUBSCRIPTION_ID in meta:
        params["_meta"] = {**meta, SUBSCRIPTION_ID: upstream_request.client_id}
    return message.model_copy(update={"params": params})


def read_tools(page: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools of one page of `tools/list`."""
    return [tool for tool in page.get("tools") or () if isinstance(tool, dict) and isinstance(tool.get("name"), str)]


async def list_pages(
    request_page: Callable[[dict[str, Any]], Awaitable[Mapping[str, Any]]],
) -> AsyncIterator[Mapping[str, Any]]:
    """All pages of a list; `request_page` gets the parameters that name one."""
    params: dict[str, Any] = {}
    for _ in range(_MAX_PAGES):
        page = await request_page(params)
        yield page
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str):
            return
        params = {"cursor": cursor}


class PooledSession(UpstreamSession):
    """A session of the pool, with what is known about its client and its server."""

    def __init__(
        self,
        agent_id: str,
        connect: OpenTunnel,
        principal: Principal,
        open_session: OpenSession,
        on_change: Callable[[JsonRpcMessage], None],
    ) -> None:
        super().__init__(agent_id, connect, on_change)
        self.principal = principal
        self.open_session = open_session
        self.user_count = 0  # requests and listeners that use it
        self.idle_since = 0.0
        self.client_key = b""  # the client's `initialize`, if there was a handshake
        self.server_info: Mapping[str, Any] = {}  # the server's answer to it
        self.log_level: str | None = None  # as last set
        self.is_exclusive = False


Listener = Callable[[JsonRpcMessage], None]


class UpstreamPool:
    def __init__(
        self,
        agent_id: str,
        connect: OpenTunnel,
        *,
        idle_timeout: float,
        max_sessions: int,
        share: Share = 1.0,
        era: Era | None = None,
    ) -> None:
        self.agent_id = agent_id
        self.connect = connect
        self.era = era
        self.tool_schemas: dict[str, Any] = {}  # of tools, by name
        self._idle_timeout = idle_timeout
        self._sessions: list[PooledSession] = []
        self._open_sessions = OpenSessions(f"conversations with agent '{agent_id}'", max_sessions, share=share)
        self._open_lock = asyncio.Lock()
        self._listeners: dict[Principal, set[Listener]] = {}

    async def acquire(self, principal: Principal, meta: Mapping[str, Any], *, exclusive: bool) -> PooledSession:
        """Raises RateLimited or AgentOffline. The caller also calls `release`."""
        session = self._find_free(principal, meta, exclusive=exclusive)
        if session is None:
            async with self._open_lock:  # one at a time: requests that can share the new session do
                session = self._find_free(principal, meta, exclusive=exclusive) or await self._open_session(
                    principal, meta
                )
        session.user_count += 1
        session.open_session.requests += 1
        session.is_exclusive = session.is_exclusive or exclusive
        return session

    def release(self, session: PooledSession, *, exclusive: bool) -> None:
        session.user_count -= 1
        self._open_sessions.finish_request(session.open_session)
        if exclusive:
            session.is_exclusive, session.exclusive_request = False, None
        if not session.user_count:
            loop = asyncio.get_running_loop()
            session.idle_since = loop.time()
            loop.call_later(self._idle_timeout, self._end_if_idle, session, session.idle_since)

    def listen(self, principal: Principal, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each change, until the returned function is called."""
        listeners = self._listeners.setdefault(principal, set())
        listeners.add(listener)

        def stop() -> None:
            listeners.discard(listener)
            if not listeners:
                self._listeners.pop(principal, None)

        return stop

    async def aclose(self) -> None:
        await asyncio.gather(*(session.aclose() for session in list(self._sessions)))

    def _find_free(self, principal: Principal, meta: Mapping[str, Any], *, exclusive: bool) -> PooledSession | None:
        client_key = self._make_client_key(meta)
        candidates = (
            each
            for each in self._sessions
            if each.principal == principal
            and each.client_key == client_key
            and each.open_session.is_open
            and not each.has_ended
            and not (exclusive and each.is_exclusive)
        )
        return min(candidates, key=lambda each: each.is_exclusive, default=None)

    def _make_client_key(self, meta: Mapping[str, Any]) -> bytes:
        if self.era != "handshake":
            return b""
        return msgspec.json.encode(eras.to_initialize_params(meta), order="sorted")

    async def _open_session(self, principal: Principal, meta: Mapping[str, Any]) -> PooledSession:
        """Raises RateLimited if all sessions that are allowed are in use."""
        try:
            return await self._open_once(principal, meta)
        except UpstreamInterrupted as error:
            if self.era is not None:
                raise AgentOffline(error.message, agent_id=self.agent_id) from error
            self.era = "handshake"  # the server ended because of a method that it did not know
            return await self._open_once(principal, meta)

    async def _open_once(self, principal: Principal, meta: Mapping[str, Any]) -> PooledSession:
        open_session = await self._open_sessions.open(principal.principal_id)
        session = PooledSession(self.agent_id, self.connect, principal, open_session, partial(self._notify, principal))
        session.on_end = partial(self._remove, session)
        open_session.close = session.aclose
        try:
            await session.open()
        except BaseException:
            self._open_sessions.end(open_session)
            raise
        self._sessions.append(session)
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                self.era, session.server_info = await negotiate_era(session, meta, self.era)
        except TimeoutError as exc:
            session.end()
            reason = f"The MCP server did not answer within {_START_TIMEOUT:g} s of its start"
            raise AgentOffline(reason, agent_id=self.agent_id) from exc
        except BaseException:
            session.end()
            raise
        finally:
            self._open_sessions.finish_request(open_session)
        session.client_key = self._make_client_key(meta)
        return session

    def _notify(self, principal: Principal, message: JsonRpcMessage) -> None:
        if isinstance(message, types.JSONRPCNotification) and message.method == "notifications/tools/list_changed":
            self.tool_schemas.clear()
        for listener in list(self._listeners.get(principal, ())):
            listener(message)

    def _remove(self, session: PooledSession) -> None:
        if session in self._sessions:
            self._sessions.remove(session)
        self._open_sessions.end(session.open_session)

    def _end_if_idle(self, session: PooledSession, since: float) -> None:
        if not session.user_count and session.idle_since == since:
            session.end()

    def store_tool_schemas(self, tools: Iterable[dict[str, Any]]) -> None:
        self.tool_schemas.update((tool["name"], tool.get("inputSchema")) for tool in tools)


async def negotiate_era(
    session: UpstreamSession, meta: Mapping[str, Any], era: Era | None
) -> tuple[Era, Mapping[str, Any]]:
    """The era of the server, and its description of itself. Raises FabricError, or TimeoutError."""
    if era == "stateless":
        return era, {}
    chain_headers = chain_to_headers(chain_from_metadata(meta.get(DELEGATION_META_KEY)))
    if era == "handshake":
        return "handshake", await _initialize(session, meta, chain_headers)
    discover = await _send_discover(session, meta, chain_headers)
    is_late = False
    try:
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT):
                return "stateless", await discover.wait_for_result()
        except McpProtocolError:
            pass
        except TimeoutError:  # the server ignores methods that it does not know, or is slow to start
            is_late = True
        try:
            return "handshake", await _initialize(session, meta, chain_headers)
        except AgentOffline:
            if is_late:  # a stateless server that was slow to start answers the first request now
                with suppress(McpProtocolError):
                    return "stateless", await discover.wait_for_result()
            raise
    finally:
        session.forget(discover)


async def _initialize(
    session: UpstreamSession, meta: Mapping[str, Any], chain_headers: Mapping[str, str]
) -> dict[str, Any]:
    """Make the handshake. Raises AgentOffline if the server refuses it."""
    request = await session.send_request("initialize", eras.to_initialize_params(meta), headers=chain_headers)
    try:
        result = await request.wait_for_result()
    except McpProtocolError as error:
        reason = f"The MCP server refused to initialize: {error.message}"[:500]
        raise AgentOffline(reason, agent_id=session.agent_id) from error
    finally:
        session.forget(request)
    version = str(result.get("protocolVersion", HANDSHAKE_VERSION))
    initialized = types.JSONRPCNotification(jsonrpc="2.0", method="notifications/initialized")
    await session.send(initialized, {VERSION_HEADER: version, **chain_headers})
    return result


async def _send_discover(
    session: UpstreamSession, meta: Mapping[str, Any], chain_headers: Mapping[str, str]
) -> UpstreamRequest:
    params = eras.add_envelope({}, eras.to_initialize_params(meta))
    headers = {**eras.make_stateless_headers("server/discover", params), **chain_headers}
    return await session.send_request("server/discover", params, headers=headers)
