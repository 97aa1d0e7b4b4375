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
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

import mcp_types as types
import msgspec
from mcp.shared.message import ClientMessageMetadata, SessionMessage

from a2a_fabric.core.call import Principal
from a2a_fabric.core.delegation import DELEGATION_META_KEY, chain_from_metadata, chain_to_headers
from a2a_fabric.core.errors import AgentOffline, FabricError, UpstreamInterrupted
from a2a_fabric.doors.mcp.proxy import eras
from a2a_fabric.doors.mcp.proxy.eras import SUBSCRIPTION_ID, is_change
from a2a_fabric.doors.mcp.sessions import OpenSession, OpenSessions
from a2a_fabric.protocols.mcp.runtime_ports import OpenTunnel

START_TIMEOUT = 30.0
CLOSE_TIMEOUT = 10.0
_SEND_TIMEOUT = 15.0
_MAX_BUFFERED = 1024  # messages for a slow reader; then the oldest are dropped

JsonRpcMessage = types.JSONRPCMessage


class UpstreamRequest:
    """One request under way. `token` is the progress token that its client gave, `client_id` the client's own id."""

    def __init__(self, upstream_id: int, progress_token: Any, client_id: Any) -> None:
        self.upstream_id = upstream_id
        self.progress_token = progress_token
        self.client_id = client_id
        self._messages: deque[JsonRpcMessage] = deque(maxlen=_MAX_BUFFERED)
        self._has_ended = False
        self._arrived = asyncio.Event()

    def deliver(self, message: JsonRpcMessage) -> None:
        """Never waits: a slow reader holds up nobody else."""
        self._messages.append(message)
        self._arrived.set()

    def end(self) -> None:
        self._has_ended = True
        self._arrived.set()

    async def next_message(self) -> JsonRpcMessage:
        """What the server says next. Raises UpstreamInterrupted when it can say no more."""
        while not self._messages:
            if self._has_ended:
                raise UpstreamInterrupted("The MCP server has ended")
            self._arrived.clear()
            await self._arrived.wait()
        return self._messages.popleft()

    def take_buffered(self) -> list[JsonRpcMessage]:
        """What has been said already."""
        messages = list(self._messages)
        self._messages.clear()
        return messages


class UpstreamSession:
    """`news` hears what changed, `over` that the line is no more."""

    def __init__(
        self,
        agent_id: str,
        connect: OpenTunnel,
        on_change: Callable[[JsonRpcMessage], None],
        on_end: Callable[[UpstreamSession], None] | None = None,
    ) -> None:
        self.agent_id = agent_id
        self.has_ended = False
        self.exclusive_request: UpstreamRequest | None = None
        self.user_count = 0  # requests and listeners that need it
        self.idle_since = 0.0
        self._connect = connect
        self._on_change = on_change
        self._on_end = on_end
        self._ids = itertools.count(1)
        self._requests: dict[int, UpstreamRequest] = {}
        self._writer: Any = None
        self._task: asyncio.Task[None] | None = None
        self._is_ending = False

    async def open(self) -> None:
        """Raises AgentOffline."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(self._run(ready))
        try:
            await asyncio.wait({ready, self._task}, return_when=asyncio.FIRST_COMPLETED, timeout=START_TIMEOUT)
        except asyncio.CancelledError:
            self.end()
            raise
        if not ready.done():
            self.end()
            error = self._task.exception() if self._task.done() and not self._task.cancelled() else None
            if isinstance(error, FabricError):
                raise error
            reason = f"The MCP server did not start within {START_TIMEOUT:g} s"
            raise AgentOffline(reason, agent_id=self.agent_id) from error

    def end(self) -> None:
        """Once: a second cancellation would hit the cleaning up after the first."""
        self.has_ended = True
        if self._task is not None and not self._is_ending:
            self._is_ending = True
            self._task.cancel()

    async def aclose(self) -> None:
        self.end()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=CLOSE_TIMEOUT)

    async def send_request(
        self, method: str, params: Mapping[str, Any], *, headers: Mapping[str, str] = {}, client_id: Any = None
    ) -> UpstreamRequest:
        """Raises UpstreamInterrupted. Whoever asks also calls `forget` or `cancel`."""
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
        """Somebody who asks nothing, and ends with the line."""
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
        except Exception as exc:  # a closed stream of the SDK's, or one that nobody reads
            self.end()
            raise UpstreamInterrupted("The MCP server does not listen", agent_id=self.agent_id) from exc

    def forget(self, upstream_request: UpstreamRequest) -> None:
        self._requests.pop(upstream_request.upstream_id, None)

    async def cancel(self, upstream_request: UpstreamRequest, headers: Mapping[str, str] = {}) -> None:
        """Tell the server that nobody waits any more. Never raises."""
        if self._requests.pop(upstream_request.upstream_id, None) is None or self.has_ended:
            return
        params = {"requestId": upstream_request.upstream_id, "reason": "The caller has gone"}
        notification = types.JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params)
        try:
            await self.send(notification, headers)
        except UpstreamInterrupted:
            pass

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
            if self._on_end is not None:
                self._on_end(self)

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
            error = types.ErrorData(code=types.METHOD_NOT_FOUND, message="Nobody is there to be asked")
            await self.send(types.JSONRPCError(jsonrpc="2.0", id=message.id, error=error))

    def _find_request(self, message: types.JSONRPCRequest | types.JSONRPCNotification) -> UpstreamRequest | None:
        """The request that a message itself names."""
        params = message.params or {}
        upstream_id = params.get("progressToken") if message.method == "notifications/progress" else None
        if upstream_id is None:
            upstream_id = (params.get("_meta") or {}).get(SUBSCRIPTION_ID)
        return self._requests.get(upstream_id) if isinstance(upstream_id, int) else None


def _restore_client_ids(message: Any, upstream_request: UpstreamRequest) -> JsonRpcMessage:
    """With the client's own token and id."""
    params = dict(message.params or {})
    if message.method == "notifications/progress":
        params["progressToken"] = upstream_request.progress_token
    meta = params.get("_meta") or {}
    if SUBSCRIPTION_ID in meta:
        params["_meta"] = {**meta, SUBSCRIPTION_ID: upstream_request.client_id}
    restored: JsonRpcMessage = message.model_copy(update={"params": params})
    return restored


_PROBE_TIMEOUT = 3.0  # for a server that ignores what it does not know; then it is asked in the old way too

Era = Literal["handshake", "stateless"]
Listener = Callable[[JsonRpcMessage], None]


class PooledSession(UpstreamSession):
    """A line with what is known about it."""

    principal: Principal
    client_key: bytes = b""  # what its client said of itself, if hands were shaken
    server_info: Mapping[str, Any] = {}  # what the server said of itself then
    log_level: str | None = None  # of its log, as last asked for
    is_exclusive = False
    open_session: OpenSession


class UpstreamPool:
    def __init__(
        self, agent_id: str, connect: OpenTunnel, *, idle_timeout: float, max_sessions: int, era: Era | None = None
    ) -> None:
        self.agent_id = agent_id
        self.connect = connect
        self.era = era
        self.tool_schemas: dict[str, Any] = {}  # of tools, by name
        self._idle_timeout = idle_timeout
        self._sessions: list[PooledSession] = []
        self._open_sessions = OpenSessions(f"conversations with agent '{agent_id}'", max_sessions)
        self._open_lock = asyncio.Lock()
        self._listeners: dict[Principal, set[Listener]] = {}

    async def acquire(self, principal: Principal, meta: Mapping[str, Any], *, exclusive: bool) -> PooledSession:
        """Raises RateLimited or AgentOffline. Whoever takes a line gives it back."""
        session = self._find_free(principal, meta, exclusive=exclusive)
        if session is None:
            async with self._open_lock:  # one at a time: those who can share the new one do
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
        """Until the returned function is called."""
        listeners = self._listeners.setdefault(principal, set())
        listeners.add(listener)

        def stop() -> None:
            listeners.discard(listener)
            if not listeners:
                self._listeners.pop(principal, None)

        return stop

    def end(self) -> None:
        for session in self._sessions:
            session.end()

    async def aclose(self) -> None:
        await asyncio.gather(*(session.aclose() for session in list(self._sessions)))

    def _find_free(self, principal: Principal, meta: Mapping[str, Any], *, exclusive: bool) -> PooledSession | None:
        client_key = self._make_client_key(meta)
        candidates = [each for each in self._sessions if each.principal == principal and each.client_key == client_key]
        candidates = [
            each
            for each in candidates
            if each.open_session.is_open and not each.has_ended and not (exclusive and each.is_exclusive)
        ]
        return min(candidates, key=lambda each: each.is_exclusive, default=None)

    def _make_client_key(self, meta: Mapping[str, Any]) -> bytes:
        if self.era != "handshake":
            return b""
        return msgspec.json.encode(eras.to_initialize_params(meta), order="sorted")

    async def _open_session(self, principal: Principal, meta: Mapping[str, Any]) -> PooledSession:
        """Raises RateLimited if all there may be are in use."""
        try:
            return await self._open_once(principal, meta)
        except UpstreamInterrupted as error:
            if self.era is not None:
                raise AgentOffline(error.message, agent_id=self.agent_id) from error
            self.era = "handshake"  # it died of a question that it did not know
            return await self._open_once(principal, meta)

    async def _open_once(self, principal: Principal, meta: Mapping[str, Any]) -> PooledSession:
        session = PooledSession(self.agent_id, self.connect, lambda said: self._notify(principal, said), self._remove)
        session.principal = principal
        session.open_session = open_session = await self._open_sessions.open(principal.principal_id)
        open_session.close = session.aclose
        try:
            await session.open()
        except BaseException:
            self._open_sessions.end(open_session)
            raise
        self._sessions.append(session)
        try:
            async with asyncio.timeout(START_TIMEOUT):
                self.era, session.server_info = await negotiate_era(session, meta, self.era)
        except TimeoutError as exc:
            session.end()
            reason = f"The MCP server did not answer within {START_TIMEOUT:g} s of its start"
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

    def _remove(self, session: UpstreamSession) -> None:
        with suppress(ValueError):
            self._sessions.remove(session)  # type: ignore[arg-type]  # all of ours are held
            self._open_sessions.end(session.open_session)  # type: ignore[attr-defined]  # as above

    def _end_if_idle(self, session: PooledSession, since: float) -> None:
        if not session.user_count and session.idle_since == since:
            session.end()


async def negotiate_era(
    session: UpstreamSession, meta: Mapping[str, Any], era: Era | None
) -> tuple[Era, Mapping[str, Any]]:
    """The era that the server speaks, and what it says of itself. Raises FabricError, or TimeoutError."""
    if era == "stateless":
        return era, {}
    chain_headers = chain_to_headers(chain_from_metadata(meta.get(DELEGATION_META_KEY)))
    discover = None if era == "handshake" else await _send_discover(session, meta, chain_headers)
    if discover is not None:
        answer = await _await_with_timeout(_PROBE_TIMEOUT, _await_answer(discover))
        if isinstance(answer, types.JSONRPCResponse):
            return "stateless", answer.result
        discover = None if isinstance(answer, types.JSONRPCError) else discover
    initialize = await session.send_request("initialize", eras.to_initialize_params(meta), headers=chain_headers)
    answer = await _await_answer(initialize)
    session.forget(initialize)
    if isinstance(answer, types.JSONRPCResponse):
        version = str(answer.result.get("protocolVersion", eras.HANDSHAKE_VERSION))
        initialized = types.JSONRPCNotification(jsonrpc="2.0", method="notifications/initialized")
        await session.send(initialized, {eras.VERSION_HEADER: version, **chain_headers})
        return "handshake", answer.result
    if discover is not None:  # a stateless server that was slow to start: it answers now what it was asked before
        late_answer = await _await_answer(discover)
        if isinstance(late_answer, types.JSONRPCResponse):
            return "stateless", late_answer.result
    raise AgentOffline(f"The MCP server refused to begin: {answer.error.message}"[:500], agent_id=session.agent_id)


async def _send_discover(
    session: UpstreamSession, meta: Mapping[str, Any], chain_headers: Mapping[str, str]
) -> UpstreamRequest:
    params = eras.add_envelope({}, eras.to_initialize_params(meta))
    return await session.send_request(
        "server/discover", params, headers={**eras.make_stateless_headers("server/discover", params), **chain_headers}
    )


async def _await_answer(upstream_request: UpstreamRequest) -> types.JSONRPCResponse | types.JSONRPCError:
    while True:
        message = await upstream_request.next_message()
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            return message


async def _await_with_timeout(
    timeout: float, answer: Awaitable[types.JSONRPCResponse | types.JSONRPCError]
) -> types.JSONRPCResponse | types.JSONRPCError | None:
    try:
        async with asyncio.timeout(timeout):
            return await answer
    except TimeoutError:
        return None
