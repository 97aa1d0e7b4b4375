"""Hands a client's request to the peer that it belongs to: the one that holds its session, its question or its agent.

Ids that must come back to the process that made them end with `~` and the name of that process. So any peer can tell
from the request alone where it belongs, and no table has to be shared. A client sees one server, whichever peer its
connections end at."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from math import inf
from typing import Any
from urllib.parse import unquote

import msgspec

from a2a_fabric.core.call import Call, Emit, Handler, Step
from a2a_fabric.core.callbacks import CALLBACK_PATH
from a2a_fabric.core.errors import PayloadTooLarge, RateLimited
from a2a_fabric.core.limits import BodyLimit, FairLimit
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.core.result import Result
from a2a_fabric.doors.context import ASGIApp, Receive, Send
from a2a_fabric.doors.edge import (
    SHORTCUT_KEY,
    ClientDisconnected,
    client_address,
    head_from_scope,
    read_body,
    replay_body,
    run_until_disconnect,
    send_reply,
    take_buffered_body,
)
from a2a_fabric.identity.failed_attempts import find_source
from a2a_fabric.mesh.app import RELAYED_KEY, RelayFacts, encode_relay_facts
from a2a_fabric.mesh.client import RELAY_HEADER, PeerClient
from a2a_fabric.outbound.port import ConnectFailed, OutboundError
from a2a_fabric.protocols.mcp.wire import VERSION_HEADER_BYTES, is_stateless_version

OWNER_MARK = "~"
_SESSION_HEADER = b"mcp-session-id"
_AGENTS, _MCP, _SSE_MESSAGES = "/agents/", "/mcp", "/sse/messages"
_MAX_WAITING = 1000  # requests for peers that are being restarted: their credentials are checked there
_RELAY_TIMEOUT = 600.0  # seconds for a request that opens no stream; doors have shorter deadlines of their own
# The client's connection ends here: these describe it, and not the request.
_HOP_HEADERS = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"expect", b"content-length"}
)

_log = logging.getLogger(__name__)


class _ResumedState(msgspec.Struct):
    """A stateless MCP request that answers questions names them in its parameters."""

    class Params(msgspec.Struct):
        request_state: str = msgspec.field(default="", name="requestState")

    params: Params = msgspec.field(default_factory=Params)


_resumed_decoder = msgspec.json.Decoder(_ResumedState)


def find_tag(text: str) -> str | None:
    """The name of the process that made an id; None for an id without one."""
    _, mark, owner = text.rpartition(OWNER_MARK)
    return owner if mark else None


def forward_answers(peers: Mapping[str, PeerClient]) -> Step:
    """A step: a call that answers questions goes to the process that holds the exchange."""

    def step(handler: Handler) -> Handler:
        def handle(call: Call, emit: Emit) -> Awaitable[Result]:  # most calls answer nothing: they cost no step
            if call.answers is msgspec.UNSET:
                return handler(call, emit)
            peer = peers.get(find_tag(call.answers.continuation) or "")
            return handler(call, emit) if peer is None else peer.call(call, emit, "answers")

        return handle

    return step


class RequestRelay:
    """`peers` are the others, by name. `find_holder` names the peer that holds an agent, or None if this process does
    or may.
    """

    def __init__(
        self,
        peers: Mapping[str, PeerClient],
        find_holder: Callable[[str], str | None],
        is_known: Callable[[str], bool],
        wait_for_return: Callable[[str], Awaitable[PeerClient | None]],
        body_limit: BodyLimit,
    ) -> None:
        """`is_known` tells whether this process has an agent in its catalog: what another site does not export is not
        reached by a made-up id either. `wait_for_return` waits for a peer that is being restarted; None if it is not.
        """
        self._is_known = is_known
        self._wait_for_return = wait_for_return
        self._peers = peers
        self._find_holder = find_holder
        self._body_limit = body_limit
        self._waiting = FairLimit("requests that wait for a process to be back", _MAX_WAITING)  # by source

    def wrap(self, app: ASGIApp) -> ASGIApp:
        def wrapped(scope: Any, receive: Receive, send: Send) -> Awaitable[None]:
            if scope["type"] != "http" or not _may_have_owner(scope) or RELAYED_KEY in scope:
                return app(scope, receive, send)
            return self._serve_until_disconnect(app, scope, receive, send)

        return wrapped

    async def _serve_until_disconnect(self, app: ASGIApp, scope: Any, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnected):
            await self._serve(app, scope, receive, send)

    async def _serve(self, app: ASGIApp, scope: Any, receive: Receive, send: Send) -> None:
        owner = self._find_owner(scope)
        body: bytes | None = None
        try:
            agent_id = _agent_from_path(scope["path"])
            if owner is None and scope["method"] == "POST" and agent_id is not None and self._is_known(agent_id):
                body = await _read(scope, receive, self._body_limit.bytes)
                owner = self._find_resumed(body)
            peer = await self._find_peer(owner, scope) if owner is not None else None
            if peer is not None and body is None:
                body = await _read(scope, receive, self._body_limit.bytes)
        except PayloadTooLarge as error:
            await _refuse(send, 413, error.code, error.message)
            return
        except RateLimited as error:
            await _refuse(send, 503, "AGENT_OFFLINE", f"{owner} is being restarted. {error.message}")
            return
        except TimeoutError:
            await _refuse(send, 408, "BAD_INPUT", "The request body did not arrive in time")
            return
        if peer is not None and body is not None:
            await self._hand_over(owner or "", peer, body, scope, receive, send)
        elif body is None:
            await app(scope, receive, send)
        else:
            unread = {name: value for name, value in scope.items() if name != SHORTCUT_KEY}
            await app(unread, replay_body(body, receive), send)

    def _find_owner(self, scope: Any) -> str | None:
        """From the head alone."""
        path: str = scope["path"]
        if path.startswith(CALLBACK_PATH):
            return find_tag(path)
        if path.endswith(_SSE_MESSAGES):
            pairs = dict(pair.partition(b"=")[::2] for pair in scope.get("query_string", b"").split(b"&"))
            return find_tag(unquote(pairs.get(b"session_id", b"").decode("latin-1")))
        session = next((value for name, value in scope["headers"] if name == _SESSION_HEADER), None)
        version = next((value for name, value in scope["headers"] if name == VERSION_HEADER_BYTES), b"")
        if session is not None and not is_stateless_version(version.decode("latin-1")):
            return find_tag(session.decode("latin-1"))
        agent_id = _agent_from_path(path)
        return None if agent_id is None else self._find_holder(agent_id)

    def _find_resumed(self, body: bytes) -> str | None:
        try:
            return find_tag(_resumed_decoder.decode(body).params.request_state)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None  # the door says what is wrong with it

    async def _find_peer(self, owner: str, scope: Any) -> PeerClient | None:
        """Raises RateLimited if too many requests wait already."""
        return self._peers.get(owner) or await self._wait_within_limit(owner, scope)

    async def _wait_within_limit(self, owner: str, scope: Any) -> PeerClient | None:
        """Raises RateLimited."""
        with self._waiting.hold(find_source(client_address(scope))):
            return await self._wait_for_return(owner)

    async def _hand_over(
        self, owner: str, peer: PeerClient, body: bytes, scope: Any, receive: Receive, send: Send
    ) -> None:
        head = head_from_scope(scope)
        facts = RelayFacts(peer=head.peer, scheme=scope.get("scheme", "http"), host=head.get(b"host"))
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name not in _HOP_HEADERS and name != b"host"
        }
        headers[RELAY_HEADER] = encode_relay_facts(facts)
        target = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        if scope.get("query_string"):
            target += f"?{scope['query_string'].decode('latin-1')}"
        timeout = inf if scope["method"] == "GET" else _RELAY_TIMEOUT
        reply_began = False

        async def forward() -> None:
            nonlocal peer
            try:
                await forward_to(peer)
            except OutboundError as exc:
                if reply_began or not (isinstance(exc, ConnectFailed) or scope["method"] == "GET"):
                    raise
                try:
                    returned = await self._wait_within_limit(owner, scope)  # nothing was done: it may be asked again
                except RateLimited:
                    raise exc from None
                if returned is None or returned is peer:
                    raise
                peer = returned
                await forward_to(peer)

        async def forward_to(peer: PeerClient) -> None:
            nonlocal reply_began
            async with peer.relay(scope["method"], target, headers, body, timeout) as reply:
                kept = [(name.encode(), value.encode("latin-1")) for name, value in reply.headers.items()]
                kept = [(name, value) for name, value in kept if name not in _HOP_HEADERS or name == b"content-length"]
                await send({"type": "http.response.start", "status": reply.status, "headers": kept})
                reply_began = True
                while chunk := await reply.next_chunk():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b""})

        try:
            await run_until_disconnect(scope, receive, forward)
        except OutboundError as exc:
            _log.warning("a request was not handed to %s: %s", peer.name, exc)
            if reply_began:
                raise  # the client sees a broken connection, not a complete reply
            reason = "cannot be reached" if isinstance(exc, ConnectFailed) else "ended before it answered"
            message = f"{peer.name}, to which this request belongs, {reason}. Try again, or open a new session"
            await _refuse(send, 503, "AGENT_OFFLINE", message)


def _may_have_owner(scope: Any) -> bool:
    """Whether a request may belong to one process: it has a session, or an agent of its own, or is a callback. The door
    there checks the session: no other request is handed over because a client named a process.
    """
    path: str = scope["path"]
    return path.endswith((_MCP, _SSE_MESSAGES)) or path.startswith(CALLBACK_PATH)


async def _refuse(send: Send, status: int, code: str, message: str) -> None:
    trace = new_trace()
    body = {"ok": False, "trace": trace, "result": None, "error": message, "error_code": code, "error_details": {}}
    headers = [(b"x-trace-id", trace.trace_id.encode()), (b"retry-after", b"1")]
    await send_reply(send, status, msgspec.json.encode(body), headers if status == 503 else headers[:1])


async def _read(scope: Any, receive: Receive, limit: int) -> bytes:
    """The whole body. Raises PayloadTooLarge, TimeoutError, ClientDisconnected."""
    body = take_buffered_body(scope.get(SHORTCUT_KEY), limit)
    return await read_body(receive, head_from_scope(scope), limit) if body is None else body


def _agent_from_path(path: str) -> str | None:
    if not path.startswith(_AGENTS) or not path.endswith(_MCP):
        return None
    return path[len(_AGENTS) : -len(_MCP)]
