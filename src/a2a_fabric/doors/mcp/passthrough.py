"""An agent that is itself an MCP server over HTTP: requests and replies go through as they are.

What the two sides say to each other is theirs, in whichever era: names, sessions,
sampling, elicitation, progress, `_meta`, errors. Ours are the edges: who may come in,
whose credentials go on (the manifest's, never the caller's), limits, and the end.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentOffline, CallTimeout, FabricError, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.trace import Trace, traceparent
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.http import ClientGone, while_connected
from a2a_fabric.doors.mcp import jsonrpc
from a2a_fabric.doors.mcp.answer import error_body
from a2a_fabric.doors.mcp.jsonrpc import RPCError
from a2a_fabric.doors.mcp.visit import Visit
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
_METHODS = ("POST", "GET", "DELETE")
_STANDING = 24 * 3600.0  # seconds that a stream of news may last; then the client opens it again
_ENDLESS = 1 << 62  # bytes of such a stream: nothing of it is kept
_LONGEST = 1 << 31  # milliseconds; the node's own limit is smaller
_SESSIONS_KEPT = 10_000
_ENDS_OF_EVENT = (b"\n\n", b"\r\n\r\n", b"\r\r")

# Everything else stays here: cookies, keys and tokens of the caller's, and what belongs to one connection only.
_GO_ON = frozenset({"accept", "content-type", "last-event-id", "user-agent", "tracestate", "baggage"})
_COME_BACK = frozenset({"content-type", "content-encoding", "cache-control", "retry-after", "allow"})

_STATUS: dict[type[FabricError], int] = {AgentOffline: 503, CallTimeout: 504, UpstreamRefused: 502}


class Sessions:
    """Who opened which session. One that we do not know may be another node's, so its server decides."""

    def __init__(self) -> None:
        self._owners: OrderedDict[tuple[str, str], tuple[str, str | None]] = OrderedDict()

    def open(self, agent_id: str, session: str, principal: Principal) -> None:
        self._owners[agent_id, session] = _known_as(principal)
        self._owners.move_to_end((agent_id, session))
        if len(self._owners) > _SESSIONS_KEPT:
            self._owners.popitem(last=False)

    def belongs(self, agent_id: str, session: str, principal: Principal) -> bool:
        return self._owners.get((agent_id, session), _known_as(principal)) == _known_as(principal)

    def close(self, agent_id: str, session: str) -> None:
        self._owners.pop((agent_id, session), None)


def _known_as(principal: Principal) -> tuple[str, str | None]:
    return principal.mode, principal.principal_id


class Passthrough:
    """All agents that are MCP servers over HTTP."""

    def __init__(self, context: DoorContext, http: HTTPClient) -> None:
        self.context = context
        self.http = http
        self.sessions = Sessions()
        self._standing: set[asyncio.Future[Any]] = set()

    def to(self, manifest: Manifest, address: Address) -> Way:
        return Way(self, manifest, address)

    async def stand(self, work: Coroutine[Any, Any, None]) -> bool:
        """Whether it ended by itself, and not because the node stops."""
        task = asyncio.ensure_future(work)
        self._standing.add(task)
        try:
            await asyncio.wait({task})
        finally:
            self._standing.discard(task)
            task.cancel()
        if not task.cancelled():
            task.result()
        return not task.cancelled()

    def stop(self) -> None:
        for task in self._standing:
            task.cancel()


class Way:
    """To one agent, where a room would be."""

    def __init__(self, through: Passthrough, manifest: Manifest, address: Address) -> None:
        self._through = through
        self._manifest = manifest
        self._address = address

    async def serve(self, scope: Any, receive: Receive, send: Send, visit: Visit) -> None:
        """One HTTP request. If the caller leaves, the agent's side is closed too."""
        exchange = _Exchange(self._through, self._manifest.agent_id, self._address, scope, send, visit)
        began_at = time.monotonic()
        failed: FabricError | RPCError | None = None
        body = (await receive())["body"] if scope["method"] == "POST" else b""
        try:
            await while_connected(scope, receive, lambda: exchange.run(body))
        except ClientGone:
            pass
        except (FabricError, RPCError) as error:
            failed = error
            await exchange.refuse(error, body)
        finally:
            self._log(scope["path"], exchange, failed, time.monotonic() - began_at)

    def _log(self, path: str, exchange: _Exchange, failed: FabricError | RPCError | None, seconds: float) -> None:
        code = failed.code if isinstance(failed, FabricError) else "BAD_INPUT"
        self._through.context.log(
            exchange.trace,
            path,
            code=code if failed else None,
            message=failed.message if failed else None,
            seconds=seconds,
            status=exchange.status,
        )


class _Exchange:
    """One request and its reply."""

    def __init__(
        self, through: Passthrough, agent_id: str, address: Address, scope: Any, send: Send, visit: Visit
    ) -> None:
        self._through = through
        self._agent_id = agent_id
        self._address = address
        self._method: str = scope["method"]
        self._asked = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self._send = send
        self._principal = visit.principal
        self.trace: Trace = visit.trace(None)
        self.status = 499  # the client left before there was an answer
        self._is_resumable = False
        self._ends_well = True  # at the end of an event

    async def run(self, body: bytes) -> None:
        """Raises FabricError or RPCError while nothing has been said to the client yet."""
        if self._method not in _METHODS:
            raise RPCError(jsonrpc.INVALID_REQUEST, f"{self._method} is not a method of MCP", status=405)
        session = self._asked.get(SESSION)
        if session is not None and not self._through.sessions.belongs(self._agent_id, session, self._principal):
            raise RPCError(jsonrpc.INVALID_REQUEST, "Session not found", status=404)
        if self._method == "GET" or not self._is_standing:  # the entrance sees to the end of a GET
            await self._forward(body)
        elif not await self._through.stand(self._forward(body)):
            await self._end()

    @property
    def _is_standing(self) -> bool:
        """Streams that wait for news, in either era."""
        return self._method == "GET" or self._asked.get("mcp-method") == "subscriptions/listen"

    async def _forward(self, body: bytes) -> None:
        timeout = _STANDING if self._is_standing else self._through.context.gateway.time_for(_LONGEST) / 1000
        try:
            async with self._through.http.stream(
                self._method,
                self._address.uri,
                headers=self._headers(),
                body=body or None,
                timeout=timeout,
                limit=_ENDLESS if self._is_standing else self._address.reply_bytes,
            ) as reply:
                await self._answer(reply)
        except OutboundError as exc:
            if self.status != 499:
                return await self._break_off(exc, body, timeout)
            raise self._translated(exc, timeout) from exc

    def _headers(self) -> dict[str, str]:
        given = {name: value for name, value in self._asked.items() if name in _GO_ON or name.startswith("mcp-")}
        ours = {name.lower(): value for name, value in self._address.headers.items()}
        return {**given, "accept-encoding": "identity", **ours, "traceparent": traceparent(self.trace)}

    async def _answer(self, reply: StreamedReply) -> None:
        if reply.status == 401 or 300 <= reply.status < 400:  # about our credentials or our address, not the caller's
            raise UpstreamRefused(f"The MCP server answered HTTP {reply.status}", agent_id=self._agent_id)
        self._note_session(reply)
        headers = [(name, value) for name, value in _named(reply.headers)]
        if reply.headers.get("content-type", "").lower().startswith(_STREAM):
            await self._stream(reply, headers)
        else:
            await self._whole(reply.status, await reply.read(), headers)

    def _note_session(self, reply: StreamedReply) -> None:
        opened, session = reply.headers.get(SESSION), self._asked.get(SESSION)
        if opened is not None and session is None:
            self._through.sessions.open(self._agent_id, opened, self._principal)
        if session is not None and (reply.status == 404 or (self._method == "DELETE" and reply.status < 300)):
            self._through.sessions.close(self._agent_id, session)

    async def _stream(self, reply: StreamedReply, headers: list[tuple[bytes, bytes]]) -> None:
        """No faster than the client reads: sending waits for it, and then our reading does."""
        self.status = reply.status
        self._through.context.stream_opened()
        try:
            await self._send({"type": "http.response.start", "status": reply.status, "headers": headers})
            async for chunk in reply.chunks():
                self._is_resumable = self._is_resumable or chunk.startswith(b"id:") or b"\nid:" in chunk
                self._ends_well = chunk.endswith(_ENDS_OF_EVENT)
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:
            self._through.context.stream_closed()
        await self._end()

    async def _end(self) -> None:
        if self.status == 499:
            raise AgentOffline("The node is shutting down", agent_id=self._agent_id)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _whole(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.status = status
        length = (b"content-length", str(len(body)).encode())
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        await self._send({"type": "http.response.body", "body": body})

    async def _break_off(self, exc: OutboundError, body: bytes, timeout: float) -> None:
        """In the middle of a stream. A client that can resume does; another one is told, or it would wait for ever."""
        told = b""
        if not self._is_resumable and self._ends_well and not self._is_standing:
            error = self._as_rpc(self._translated(exc, timeout))
            told = b"event: message\ndata: %b\n\n" % jsonrpc.failure(error, _id_of(body))
        await self._send({"type": "http.response.body", "body": told, "more_body": False})

    async def refuse(self, error: FabricError | RPCError, body: bytes) -> None:
        rpc = error if isinstance(error, RPCError) else self._as_rpc(error)
        headers = [(b"content-type", b"application/json")]
        if rpc.status == 405:
            headers.append((b"allow", ", ".join(_METHODS).encode()))
        await self._whole(rpc.status, jsonrpc.failure(rpc, _id_of(body)), headers)

    def _as_rpc(self, error: FabricError) -> RPCError:
        status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 502)
        return RPCError(jsonrpc.INTERNAL_ERROR, error.message, error_body(error, self.trace), status=status)

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


class _Asked(msgspec.Struct):
    id: str | int | None = None


def _id_of(body: bytes) -> str | int | None:
    try:
        return msgspec.json.decode(body, type=_Asked).id
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
