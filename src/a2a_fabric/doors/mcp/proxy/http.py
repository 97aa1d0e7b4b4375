"""Proxies requests and replies, unchanged, to an agent that is an MCP server over HTTP.

Names, sessions, sampling, elicitation, progress, `_meta` and errors are a matter between client and server,
in either era. The proxy sends the manifest's credentials (never the caller's), applies limits, and ends broken
streams. If the server does not speak the caller's era, the request goes to the era bridge."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial

import msgspec

from a2a_fabric.core.call import Principal, caller_name
from a2a_fabric.core.errors import (
    AgentOffline,
    CallTimeout,
    FabricError,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.forwarding import current_call
from a2a_fabric.core.propagation import chain_to_headers, format_traceparent
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.edge import RequestHead
from a2a_fabric.doors.mcp.proxy.endpoint import AgentProxy, ProxiedRequest
from a2a_fabric.doors.mcp.request import is_stateless_request
from a2a_fabric.doors.mcp.results import to_protocol_error
from a2a_fabric.doors.mcp.sessions import OpenSessions
from a2a_fabric.outbound.credentials import BearerClient, SignedClient
from a2a_fabric.outbound.port import (
    ConnectFailed,
    DeadlineExceeded,
    HTTPClient,
    OutboundError,
    ReplyTooLarge,
    StreamedReply,
)
from a2a_fabric.protocols import jsonrpc
from a2a_fabric.protocols.mcp import wire
from a2a_fabric.protocols.mcp.runtime_ports import HTTPTunnel
from a2a_fabric.protocols.mcp.wire import (
    DISCOVER_HEADERS,
    DISCOVER_REQUEST,
    SESSION_HEADER,
    SESSION_HEADER_BYTES,
    McpProtocolError,
)

_EVENT_STREAM = "text/event-stream"
_LONG_LIVED_TIMEOUT = 24 * 3600.0  # seconds; then the client opens the stream again
_UNLIMITED_BYTES = 1 << 62  # bytes of such a stream: it is not buffered
_CANCEL_TIMEOUT = 5.0
_MAX_SESSIONS = 10_000
_PROBE_TIMEOUT = 10.0
_MAX_PROBE_BYTES = 4 << 20
_PROBE_BODY = msgspec.json.encode(DISCOVER_REQUEST)
_PROBE_HEADERS = {**DISCOVER_HEADERS, "accept-encoding": "identity"}
_RECHECK_AFTER = 60.0  # seconds after which a server of the handshake era is probed again: it may have been updated
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")

# Other headers are not forwarded: the caller's cookies, keys and tokens, and headers of one connection.
_REQUEST_HEADERS = frozenset({"accept", "content-type", "last-event-id", "user-agent", "tracestate", "baggage"})
_REPLY_HEADERS = frozenset({"content-type", "content-encoding", "cache-control", "retry-after", "allow"})

MakeBridgeProxy = Callable[[], Awaitable[AgentProxy]]


class SessionOwners:
    """The principals that opened sessions with servers. An unknown session may be another node's: its server decides.

    The servers keep and limit the sessions. If there are too many owners, the idlest session of the principal with
    the most sessions is forgotten.
    """

    def __init__(self) -> None:
        self._owners: dict[str, tuple[str, str | None]] = {}
        self._open_sessions = OpenSessions("sessions with MCP servers", _MAX_SESSIONS)

    async def add(self, agent_id: str, session: str, principal: Principal) -> None:
        name = f"{agent_id}\n{session}"
        open_session = self._open_sessions.find(name)
        if open_session is None:
            open_session = await self._open_sessions.open(principal.principal_id)
            open_session.close = partial(self._forget, name)
            self._open_sessions.set_name(open_session, name)
            self._open_sessions.finish_request(open_session)
        self._owners[name] = _owner_key(principal)

    def is_owner(self, agent_id: str, session: str, principal: Principal) -> bool:
        name = f"{agent_id}\n{session}"
        open_session = self._open_sessions.find(name)
        if open_session is not None:
            open_session.answered_requests += 1
            open_session.used_at = self._open_sessions.clock()
        return self._owners.get(name, _owner_key(principal)) == _owner_key(principal)

    def remove(self, agent_id: str, session: str) -> None:
        name = f"{agent_id}\n{session}"
        open_session = self._open_sessions.find(name)
        if open_session is not None:
            self._open_sessions.end(open_session)
            self._owners.pop(name, None)

    async def _forget(self, name: str) -> None:
        self._owners.pop(name, None)


def _owner_key(principal: Principal) -> tuple[str, str | None]:
    return principal.mode, caller_name(principal)


class EraProbe:
    """Finds out the era of a server over HTTP by one `server/discover` request, and remembers it."""

    def __init__(self) -> None:
        self._results: dict[str, tuple[str, bool, float]] = {}  # by agent: address, answer, time of the probe

    def is_known_stateless(self, agent_id: str, uri: str) -> bool:
        known = self._results.get(agent_id)
        return known is not None and known[1] and known[0] == uri

    async def is_stateless_server(
        self, http: HTTPClient, agent_id: str, address: HTTPTunnel, chain_headers: Mapping[str, str]
    ) -> bool:
        """True also if the probe gets no clear answer: then the server's reply to the request itself decides."""
        uri, is_stateless, probed_at = self._results.get(agent_id, ("", False, 0.0))
        if uri == address.uri and (is_stateless or time.monotonic() - probed_at < _RECHECK_AFTER):
            return is_stateless
        answer = await self._send_discover(http, address, chain_headers)
        if answer is None:
            return True
        self._results[agent_id] = (address.uri, answer, time.monotonic())
        return answer

    async def _send_discover(
        self, http: HTTPClient, address: HTTPTunnel, chain_headers: Mapping[str, str]
    ) -> bool | None:
        own_headers = {name.lower(): value for name, value in address.headers.items()}
        try:
            reply = await http.request(
                "POST",
                address.uri,
                headers={**_PROBE_HEADERS, **own_headers, **chain_headers},
                body=_PROBE_BODY,
                timeout=_PROBE_TIMEOUT,
                limit=_MAX_PROBE_BYTES,
            )
        except OutboundError:
            return None
        if reply.status in (401, 403, 429) or reply.status >= 500 or 300 <= reply.status < 400:
            return None
        return 200 <= reply.status < 300 and b'"supportedVersions"' in reply.body


class HttpProxies:
    """Proxies to all agents that are MCP servers over HTTP."""

    def __init__(self, context: DoorContext, http: HTTPClient) -> None:
        self.context = context
        self.http = http
        self.sessions = SessionOwners()
        self.probe = EraProbe()

    def client_for(self, agent_id: str, address: HTTPTunnel) -> HTTPClient:
        """The client that sends the token of the tunnel's principal, if it is for one, and signs, if it has to."""
        http = self.context.find_client(agent_id) or self.http
        if address.bearer is not None:
            http = BearerClient(http, address.bearer, address.uri)
        return http if address.signer is None else SignedClient(http, address.signer, address.uri)


class HttpProxy:
    """Proxies to one agent, or hands over to the era bridge if its era is not the caller's."""

    def __init__(
        self, proxies: HttpProxies, agent_id: str, address: HTTPTunnel, make_bridge_proxy: MakeBridgeProxy
    ) -> None:
        self._proxies = proxies
        self._agent_id = agent_id
        self._address = address
        self._make_bridge_proxy = make_bridge_proxy
        own_headers = {name.lower(): value for name, value in address.headers.items()}
        self._own_headers = {"accept-encoding": "identity", **own_headers}

    def can_forward(self, head: RequestHead, session: str | None, principal: Principal) -> bool:
        """Whether a call needs no more than forwarding: its era is the server's, and its session is the caller's."""
        if is_stateless_request(head) and not self._proxies.probe.is_known_stateless(self._agent_id, self._address.uri):
            return False
        return session is None or self._proxies.sessions.is_owner(self._agent_id, session, principal)

    async def forward(self, proxied: ProxiedRequest) -> None:
        """Raises FabricError or McpProtocolError."""
        session = proxied.head.get(SESSION_HEADER_BYTES)
        if session is not None and not self._proxies.sessions.is_owner(self._agent_id, session, proxied.principal):
            raise McpProtocolError(jsonrpc.INVALID_REQUEST, "Session not found", status=404)
        if is_stateless_request(proxied.head) and not await self._is_stateless_server(proxied):
            await (await self._make_bridge_proxy()).forward(proxied)
            return
        exchange = _HttpExchange(self._proxies, self._agent_id, self._address, self._own_headers, proxied)
        await exchange.run()
        if exchange.held_reply is not None:
            await self._handle_refused_handshake(proxied, exchange.held_reply)

    async def _is_stateless_server(self, proxied: ProxiedRequest) -> bool:
        http = self._proxies.client_for(self._agent_id, self._address)
        return await self._proxies.probe.is_stateless_server(
            http, self._agent_id, self._address, chain_to_headers(proxied.chain)
        )

    async def _handle_refused_handshake(self, proxied: ProxiedRequest, held_reply: HeldReply) -> None:
        """The server refused `initialize`. A stateless server is reached through the bridge."""
        if await self._is_stateless_server(proxied):
            await (await self._make_bridge_proxy()).forward(proxied)
        else:
            await proxied.send.send_reply(*held_reply)


HeldReply = tuple[int, bytes, list[tuple[bytes, bytes]]]


class _HttpExchange:
    """One request and its reply. `held_reply` is a reply that has not been forwarded yet."""

    def __init__(
        self,
        proxies: HttpProxies,
        agent_id: str,
        address: HTTPTunnel,
        own_headers: Mapping[str, str],
        proxied: ProxiedRequest,
    ) -> None:
        self._proxies = proxies
        self._http = proxies.client_for(agent_id, address)
        self._agent_id = agent_id
        self._address = address
        self._own_headers = own_headers
        self._proxied = proxied
        self._session = proxied.head.get(SESSION_HEADER_BYTES)
        self._is_resumable = False
        self._ends_at_event = True  # whether the last chunk ended with an event
        self.held_reply: HeldReply | None = None

    async def run(self) -> None:
        """Raises FabricError; a reply that has started then is ended."""
        proxied = self._proxied
        timeout = _LONG_LIVED_TIMEOUT if proxied.is_long_lived else self._proxies.context.gateway.longest_timeout
        # Only for this exchange: tasks that outlive it, such as those of sessions, must not sign for its caller.
        token = current_call.set(proxied.signed_call)
        try:
            async with self._http.stream(
                proxied.http_method,
                self._address.uri,
                headers=self._make_headers(),
                body=proxied.body or None,
                timeout=timeout,
                limit=_UNLIMITED_BYTES if proxied.is_long_lived else self._address.reply_bytes,
            ) as reply:
                await self._send_reply(reply)
        except OutboundError as exc:
            error = self._to_fabric_error(exc, timeout)
            if proxied.send.has_started:
                await self._end_broken_stream(error)
            if isinstance(error, CallTimeout):
                await self._cancel_upstream()
            raise error from exc
        finally:
            current_call.reset(token)

    def _make_headers(self) -> dict[str, str]:
        head = self._proxied.head
        forwarded = head.derived.get("mcp: forwarded")
        if forwarded is None:
            forwarded = head.derived["mcp: forwarded"] = dict(_select_request_headers(self._proxied.scope["headers"]))
        headers = {**forwarded, **self._own_headers, "traceparent": format_traceparent(self._proxied.trace)}
        return {**headers, **chain_to_headers(self._proxied.chain)} if self._proxied.chain else headers

    async def _send_reply(self, reply: StreamedReply) -> None:
        if reply.status == 401 or 300 <= reply.status < 400:  # about the node's credentials or address
            error_type = UpstreamRefused if reply.status == 401 else UpstreamFailed
            raise error_type(f"The MCP server answered HTTP {reply.status}", agent_id=self._agent_id)
        await self._track_session(reply)
        headers = list(_select_reply_headers(reply.headers))
        if reply.headers.get("content-type", "").lower().startswith(_EVENT_STREAM):
            await self._send_stream(reply, headers)
            return
        body = await reply.read()
        if reply.status >= 400 and self._proxied.method == "initialize":
            self.held_reply = (reply.status, body, headers)
        else:
            await self._proxied.send.send_reply(reply.status, body, headers)

    async def _track_session(self, reply: StreamedReply) -> None:
        new_session, session = reply.headers.get(SESSION_HEADER), self._session
        if new_session is not None and session is None:
            await self._proxies.sessions.add(self._agent_id, new_session, self._proxied.principal)
        if session is not None and (
            reply.status == 404 or (self._proxied.http_method == "DELETE" and reply.status < 300)
        ):
            self._proxies.sessions.remove(self._agent_id, session)

    async def _send_stream(self, reply: StreamedReply, headers: list[tuple[bytes, bytes]]) -> None:
        """Forward no faster than the client reads: `send` waits for the client."""
        send = self._proxied.send
        is_counted, caller = not self._proxied.is_long_lived, self._proxied.principal.principal_id
        if is_counted:  # a long-lived stream was counted when it was requested
            self._proxies.context.acquire_stream(caller)
        try:
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            async for chunk in reply.chunks():
                self._is_resumable = self._is_resumable or chunk.startswith(b"id:") or b"\nid:" in chunk
                self._ends_at_event = chunk.endswith(_EVENT_ENDS)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:
            if is_counted:
                self._proxies.context.release_stream(caller)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _end_broken_stream(self, error: FabricError) -> None:
        """End a stream that broke. A client that cannot resume gets an error, or it would wait for ever."""
        proxied, last_event = self._proxied, b""
        may_resume = self._is_resumable and not isinstance(error, CallTimeout)
        if not may_resume and self._ends_at_event and not proxied.is_long_lived:
            last_event = b"event: message\ndata: %b\n\n" % wire.render_error(
                to_protocol_error(error, proxied.trace), proxied.id
            )
        await proxied.send({"type": "http.response.body", "body": last_event, "more_body": False})

    async def _cancel_upstream(self) -> None:
        """Cancel the request at the server: in a session, closing the connection does not cancel it."""
        if self._session is None or not self._proxied.is_request:
            return
        params = {"requestId": self._proxied.id, "reason": "The request took too long"}
        notification = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        with suppress(OutboundError):
            await self._http.request(
                "POST",
                self._address.uri,
                headers=self._make_headers(),
                body=msgspec.json.encode(notification),
                timeout=_CANCEL_TIMEOUT,
                limit=self._address.reply_bytes,
            )

    def _to_fabric_error(self, exc: OutboundError, timeout: float) -> FabricError:
        agent_id = self._agent_id
        if isinstance(exc, ConnectFailed):
            return AgentOffline(f"The MCP server cannot be reached: {exc}", agent_id=agent_id)
        if isinstance(exc, DeadlineExceeded):
            return CallTimeout(timeout, agent_id=agent_id)
        if isinstance(exc, ReplyTooLarge):
            limit = self._address.reply_bytes
            return UpstreamRefused(f"The MCP server's reply is larger than {limit} bytes", agent_id=agent_id)
        return UpstreamInterrupted(f"The connection to the MCP server broke: {exc}", agent_id=agent_id)


def _select_request_headers(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[str, str]]:
    for raw_name, value in headers:
        name = raw_name.decode("latin-1")
        if name in _REQUEST_HEADERS or name.startswith("mcp-"):
            yield name, value.decode("latin-1")


def _select_reply_headers(headers: Mapping[str, str]) -> Iterable[tuple[bytes, bytes]]:
    for name, value in headers.items():
        if name in _REPLY_HEADERS or name.startswith("mcp-"):
            yield name.encode("latin-1"), value.encode("latin-1")
