"""An agent that is itself an MCP server over HTTP: requests and replies go through as they are.

What the two sides say to each other is theirs, in whichever era: names, sessions,
sampling, elicitation, progress, `_meta`, errors. Ours are the edges: whose credentials
go on (the manifest's, never the caller's), limits, and the end. If the server does not
speak the caller's era, the request goes over the bridge instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.delegation import in_headers
from a2a_fabric.core.errors import (
    AgentOffline,
    CallTimeout,
    FabricError,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.trace import traceparent
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.mcp import jsonrpc
from a2a_fabric.doors.mcp.checkpoint import as_rpc
from a2a_fabric.doors.mcp.jsonrpc import RPCError
from a2a_fabric.doors.mcp.open_sessions import OpenSessions
from a2a_fabric.doors.mcp.passing import Passing, Way
from a2a_fabric.doors.mcp.probe import Probe, is_stateless
from a2a_fabric.outbound.port import (
    ConnectFailed,
    DeadlineExceeded,
    HTTPClient,
    OutboundError,
    ReplyTooLarge,
    StreamedReply,
)
from a2a_fabric.outbound.tunnel import Address

SESSION = "mcp-session-id"
_STREAM = "text/event-stream"
_STANDING = 24 * 3600.0  # seconds that a stream of news may last; then the client opens it again
_ENDLESS = 1 << 62  # bytes of such a stream: nothing of it is kept
_LONGEST = 1 << 31  # milliseconds; the node's own limit is smaller
_CANCEL_TIMEOUT = 5.0
_SESSIONS_KEPT = 10_000
_ENDS_OF_EVENT = (b"\n\n", b"\r\n\r\n", b"\r\r")

# Everything else stays here: cookies, keys and tokens of the caller's, and what belongs to one connection only.
_GO_ON = frozenset({"accept", "content-type", "last-event-id", "user-agent", "tracestate", "baggage"})
_COME_BACK = frozenset({"content-type", "content-encoding", "cache-control", "retry-after", "allow"})

Bridge = Callable[[], Awaitable[Way]]


class Sessions:
    """Who opened which session. One that we do not know may be another node's, so its server decides.

    Their servers keep them and limit them; here only the owners are remembered, and if there are too many, the idlest
    of whoever has most is forgotten.
    """

    def __init__(self) -> None:
        self._owners: dict[str, tuple[str, str | None]] = {}
        self._open = OpenSessions("sessions with MCP servers", _SESSIONS_KEPT)

    async def open(self, agent_id: str, session: str, principal: Principal) -> None:
        name = f"{agent_id}\n{session}"
        known = self._open.find(name)
        if known is None:
            known = await self._open.open(principal.principal_id)
            known.close = partial(self._forget, name)
            self._open.give_name(known, name)
            self._open.answered(known)
        self._owners[name] = _known_as(principal)

    def belongs(self, agent_id: str, session: str, principal: Principal) -> bool:
        name = f"{agent_id}\n{session}"
        known = self._open.find(name)
        if known is not None:
            known.uses += 1
            known.used_at = self._open.clock()
        return self._owners.get(name, _known_as(principal)) == _known_as(principal)

    def close(self, agent_id: str, session: str) -> None:
        name = f"{agent_id}\n{session}"
        known = self._open.find(name)
        if known is not None:
            self._open.end(known)
            self._owners.pop(name, None)

    async def _forget(self, name: str) -> None:
        self._owners.pop(name, None)


def _known_as(principal: Principal) -> tuple[str, str | None]:
    return principal.mode, principal.principal_id


class Passthrough:
    """All agents that are MCP servers over HTTP."""

    def __init__(self, context: DoorContext, http: HTTPClient) -> None:
        self.context = context
        self.http = http
        self.sessions = Sessions()
        self.probe = Probe(http)

    def to(self, manifest: Manifest, address: Address, bridge: Bridge) -> StraightWay:
        return StraightWay(self, manifest.agent_id, address, bridge)


class StraightWay:
    """To one agent, unless its era is another one than the caller's."""

    def __init__(self, through: Passthrough, agent_id: str, address: Address, bridge: Bridge) -> None:
        self._through = through
        self._agent_id = agent_id
        self._address = address
        self._bridge = bridge

    async def go(self, passing: Passing) -> None:
        """Raises FabricError or RPCError."""
        session = passing.head.get(SESSION.encode())
        if session is not None and not self._through.sessions.belongs(self._agent_id, session, passing.principal):
            raise RPCError(jsonrpc.INVALID_REQUEST, "Session not found", status=404)
        if is_stateless(passing.head) and not await self._knows_stateless(passing):
            await (await self._bridge()).go(passing)
            return
        exchange = _Exchange(self._through, self._agent_id, self._address, passing)
        await exchange.run()
        if exchange.held is not None:
            await self._after_refusal(passing, exchange.held)

    async def _knows_stateless(self, passing: Passing) -> bool:
        return await self._through.probe.knows_stateless(self._agent_id, self._address, in_headers(passing.chain))

    async def _after_refusal(self, passing: Passing, held: Held) -> None:
        """The server would not shake hands: perhaps because it never does."""
        if await self._knows_stateless(passing):
            await (await self._bridge()).go(passing)
        else:
            await passing.send.whole(*held)


Held = tuple[int, bytes, list[tuple[bytes, bytes]]]


class _Exchange:
    """One request and its reply. `held` is a reply that has not been sent on yet."""

    def __init__(self, through: Passthrough, agent_id: str, address: Address, passing: Passing) -> None:
        self._through = through
        self._agent_id = agent_id
        self._address = address
        self._passing = passing
        headers = passing.scope["headers"]
        self._asked = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        self._is_resumable = False
        self._ends_well = True  # at the end of an event
        self.held: Held | None = None

    async def run(self) -> None:
        """Raises FabricError; what has been begun then is ended."""
        passing = self._passing
        timeout = _STANDING if passing.is_standing else self._through.context.gateway.time_for(_LONGEST) / 1000
        try:
            async with self._through.http.stream(
                passing.verb,
                self._address.uri,
                headers=self._headers(),
                body=passing.body or None,
                timeout=timeout,
                limit=_ENDLESS if passing.is_standing else self._address.reply_bytes,
            ) as reply:
                await self._answer(reply)
        except OutboundError as exc:
            error = self._translated(exc, timeout)
            if passing.send.has_begun:
                await self._break_off(error)
            if isinstance(error, CallTimeout):
                await self._cancel()
            raise error from exc

    def _headers(self) -> dict[str, str]:
        given = {name: value for name, value in self._asked.items() if name in _GO_ON or name.startswith("mcp-")}
        ours = {name.lower(): value for name, value in self._address.headers.items()}
        told = {"traceparent": traceparent(self._passing.trace), **in_headers(self._passing.chain)}
        return {**given, "accept-encoding": "identity", **ours, **told}

    async def _answer(self, reply: StreamedReply) -> None:
        if reply.status == 401 or 300 <= reply.status < 400:  # about our credentials or our address, not the caller's
            failure = UpstreamRefused if reply.status == 401 else UpstreamFailed
            raise failure(f"The MCP server answered HTTP {reply.status}", agent_id=self._agent_id)
        await self._note_session(reply)
        headers = list(_named(reply.headers))
        if reply.headers.get("content-type", "").lower().startswith(_STREAM):
            await self._stream(reply, headers)
            return
        body = await reply.read()
        if reply.status >= 400 and self._passing.method == "initialize":
            self.held = (reply.status, body, headers)
        else:
            await self._passing.send.whole(reply.status, body, headers)

    async def _note_session(self, reply: StreamedReply) -> None:
        opened, session = reply.headers.get(SESSION), self._asked.get(SESSION)
        if opened is not None and session is None:
            await self._through.sessions.open(self._agent_id, opened, self._passing.principal)
        if session is not None and (reply.status == 404 or (self._passing.verb == "DELETE" and reply.status < 300)):
            self._through.sessions.close(self._agent_id, session)

    async def _stream(self, reply: StreamedReply, headers: list[tuple[bytes, bytes]]) -> None:
        """No faster than the client reads: sending waits for it, and then our reading does."""
        send = self._passing.send
        counts, caller = not self._passing.is_standing, self._passing.principal.principal_id
        if counts:  # a stream that stands was counted when it was asked for
            self._through.context.stream_opened(caller)
        try:
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            async for chunk in reply.chunks():
                self._is_resumable = self._is_resumable or chunk.startswith(b"id:") or b"\nid:" in chunk
                self._ends_well = chunk.endswith(_ENDS_OF_EVENT)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:
            if counts:
                self._through.context.stream_closed(caller)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _break_off(self, error: FabricError) -> None:
        """In the middle of a stream. A client that can resume does; another one is told, or it would wait for ever."""
        passing, told = self._passing, b""
        may_resume = self._is_resumable and not isinstance(error, CallTimeout)
        if not may_resume and self._ends_well and not passing.is_standing:
            told = b"event: message\ndata: %b\n\n" % jsonrpc.failure(as_rpc(error, passing), passing.id)
        await passing.send({"type": "http.response.body", "body": told, "more_body": False})

    async def _cancel(self) -> None:
        """In a session a closed connection cancels nothing, so a server that takes too long is told."""
        if SESSION not in self._asked or not self._passing.is_request:
            return
        params = {"requestId": self._passing.id, "reason": "It took too long"}
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        with suppress(OutboundError):
            await self._through.http.request(
                "POST",
                self._address.uri,
                headers=self._headers(),
                body=msgspec.json.encode(note),
                timeout=_CANCEL_TIMEOUT,
                limit=self._address.reply_bytes,
            )

    def _translated(self, exc: OutboundError, timeout: float) -> FabricError:
        agent_id = self._agent_id
        if isinstance(exc, ConnectFailed):
            return AgentOffline(f"The MCP server cannot be reached: {exc}", agent_id=agent_id)
        if isinstance(exc, DeadlineExceeded):
            return CallTimeout(timeout, agent_id=agent_id)
        if isinstance(exc, ReplyTooLarge):
            limit = self._address.reply_bytes
            return UpstreamRefused(f"The MCP server's reply is larger than {limit} bytes", agent_id=agent_id)
        return UpstreamInterrupted(f"The connection to the MCP server broke: {exc}", agent_id=agent_id)


def _named(headers: Mapping[str, str]) -> Iterable[tuple[bytes, bytes]]:
    for name, value in headers.items():
        if name in _COME_BACK or name.startswith("mcp-"):
            yield name.encode("latin-1"), value.encode("latin-1")
