"""Clients and sessions that need no more than tools, served without the SDK: its import takes most of a second, and
each of its sessions 40 KB.

Invariants:
- A request is answered here only if every part of it is understood and valid, and then as the SDK would have done, but
  with a JSON body instead of an event stream. Every other request goes to the SDK.
- The first request of a session that is not answered here hands the session over: the SDK opens one with the same id,
  by the same `initialize`. From then on it is a session as any other.
- A session belongs to its opener and to the path at which it was opened; for others there is no such session."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from uuid import uuid4

import msgspec
from msgspec import UNSET, Raw, field

from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.errors import AgentNotFound
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.edge import HttpReply, RequestHead, Shortcut, run_until_disconnect
from a2a_fabric.doors.mcp.light_streams import LISTS, LightStream, LightStreams, StreamEnd
from a2a_fabric.doors.mcp.sessions import FAST_VERSIONS, FastSessions, OpenSession, OpenSessions
from a2a_fabric.doors.mcp.tools import ToolCatalog
from a2a_fabric.protocols.jsonrpc import INVALID_REQUEST
from a2a_fabric.protocols.mcp.apps import UI_EXTENSION, UI_SETTINGS
from a2a_fabric.protocols.mcp.wire import (
    SESSION_HEADER_BYTES,
    STATELESS_VERSION,
    TASKS_EXTENSION,
    VERSION_HEADER_BYTES,
    McpMessage,
    McpProtocolError,
    decode_or_none,
)

if TYPE_CHECKING:
    from a2a_fabric.doors.mcp.http import McpCycle

MAX_BODY = 4096  # bytes of an `initialize` that is kept
REPLAYED = frozenset({"logging/setLevel", "resources/subscribe", "resources/unsubscribe"})  # they change a session
_MAX_REQUESTS = 1001  # subscriptions of one client, and its log level
_CAPABILITIES: dict[str, Any] = {
    "completions": {},
    "logging": {},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "tools": {"listChanged": True},
}
_STATELESS_CAPABILITIES = {**_CAPABILITIES, "extensions": {UI_EXTENSION: UI_SETTINGS, TASKS_EXTENSION: {}}}
_encode = msgspec.json.Encoder().encode

Settings = dict[str, Any]


class _Client(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    version: str
    title: str | None = None
    description: str | None = None
    website_url: str | None = field(name="websiteUrl", default=None)


class _Roots(msgspec.Struct, forbid_unknown_fields=True):
    list_changed: bool | None = field(name="listChanged", default=None)


class _Sampling(msgspec.Struct, forbid_unknown_fields=True):
    context: Settings | None = None
    tools: Settings | None = None


class _Elicitation(msgspec.Struct, forbid_unknown_fields=True):
    form: Settings | None = None
    url: Settings | None = None


class _Capabilities(msgspec.Struct, forbid_unknown_fields=True):
    experimental: dict[str, Settings] | None = None
    extensions: dict[str, Settings] | None = None
    sampling: _Sampling | None = None
    elicitation: _Elicitation | None = None
    roots: _Roots | None = None


class _InitializeParams(msgspec.Struct, forbid_unknown_fields=True):
    version: str = field(name="protocolVersion")
    capabilities: _Capabilities
    client: _Client = field(name="clientInfo")


class _NoParams(msgspec.Struct, forbid_unknown_fields=True):
    pass


class _Subscription(msgspec.Struct):
    uri: str


_INITIALIZED = McpMessage(jsonrpc="2.0", method="notifications/initialized")


def is_plain_client(capabilities: Raw, client: Raw) -> bool:
    """Whether what a client of the stateless era says about itself is certainly valid."""
    is_named = not client or decode_or_none(client, _Client) is not None
    return is_named and decode_or_none(capabilities, _Capabilities) is not None


def render_discovery(catalog: ToolCatalog, principal: Principal) -> bytes:
    """The members of the result of `server/discover`, without its `_meta`."""
    introduction = _introduce(catalog, principal)
    members = {"cacheScope": "private", "capabilities": _STATELESS_CAPABILITIES, **introduction}
    return _encode({**members, "resultType": "complete", "supportedVersions": [STATELESS_VERSION], "ttlMs": 0})


def _introduce(catalog: ToolCatalog, principal: Principal) -> dict[str, str]:
    try:
        instructions = catalog.make_instructions(principal)
    except AgentNotFound:  # it has just left
        instructions = ""
    return {"instructions": instructions} if instructions else {}


class SavedEvent(msgspec.Struct, frozen=True, array_like=True):
    event_id: str
    stream_id: str
    message: str | None  # JSON; None: only a place to resume from


class SavedLog(msgspec.Struct, frozen=True, array_like=True):
    """The events of a session as they are kept while the node is restarted."""

    prefix: str
    count: int
    events: list[SavedEvent]


class LightSession:
    """What the SDK has to know when it takes over.

    `requests` are those of the client that the SDK must see again, by what they set: subscriptions, the log level.
    `events` are those of an earlier process.
    """

    __slots__ = (
        "body",
        "events",
        "handover",
        "is_initialized",
        "is_kept",
        "path",
        "principal",
        "requests",
        "revision",
        "stream",
        "version",
    )

    def __init__(self, principal: Principal, path: str, version: str, body: bytes) -> None:
        self.principal = principal
        self.path = path
        self.version = version
        self.body = body
        self.is_initialized = False
        self.handover: asyncio.Task[None] | None = None
        self.stream: LightStream | None = None  # on which the client waits for notifications
        self.revision: str | None = None  # of the catalog when its last stream broke
        self.is_kept = False  # from an earlier process, and not used since
        self.requests: dict[str, bytes] = {}
        self.events: SavedLog | None = None

    @property
    def needs_sdk(self) -> bool:
        return self.events is not None or bool(self.requests)

    def note_request(self, message: McpMessage, body: bytes) -> None:
        """Remember a request that changed the session, if it did."""
        if message.method == "logging/setLevel":
            self.requests["level"] = body
        elif message.method == "resources/unsubscribe":
            self.requests.pop(_read_uri(message), None)
        elif message.method == "resources/subscribe" and len(self.requests) < _MAX_REQUESTS:
            self.requests[_read_uri(message)] = body


@runtime_checkable
class AdoptsSessions(Protocol):
    async def adopt_session(self, name: str, session: OpenSession, light: LightSession) -> None:
        """Open the session as its client did. From then on `close` of the session closes it."""
        ...


class LightSessions:
    """Those at one path."""

    def __init__(
        self,
        context: DoorContext,
        catalog: ToolCatalog,
        sessions: OpenSessions,
        fast_sessions: FastSessions,
        streams: LightStreams,
        server: str,
    ) -> None:
        """`server` is the key of the server at this path among the streams."""
        self._streams = streams
        self._server = server
        self._context = context
        self._catalog = catalog
        self._sessions = sessions
        self._fast_sessions = fast_sessions

    def resume(self, cycle: McpCycle) -> None:
        """The first request in a session of an earlier process: from now on its calls may be fast again."""
        name = cycle.head.get(SESSION_HEADER_BYTES)
        session = None if name is None else find_light(self._sessions, name, cycle.scope["path"], cycle.principal)
        if session is None or session.light is None or not session.light.is_kept:
            return
        light = session.light
        light.is_kept, light.principal = False, cycle.principal
        if light.is_initialized and not light.needs_sdk:
            self._fast_sessions.observe_reply(cycle.head, _INITIALIZED, cycle.principal, 202)

    async def answer(self, cycle: McpCycle, message: McpMessage | None, *, accepts_json: bool) -> bool:
        """Whether the request is answered. Raises RateLimited."""
        name = cycle.head.get(SESSION_HEADER_BYTES)
        if name is None:
            params = _parse_initialize(cycle.head, message) if accepts_json and message else None
            if params is None or message is None or len(cycle.body) > MAX_BODY:
                return False
            await self._open(cycle, message, params)
            return True
        session = find_light(self._sessions, name, cycle.scope["path"], cycle.principal)
        light = session.light if session is not None else None
        version = cycle.head.get(VERSION_HEADER_BYTES)
        if session is None or light is None or light.handover is not None or version != light.version:
            return False
        reply = self._find_reply(session, light, cycle, message, accepts_json=accepts_json)
        if reply is None:
            return False
        session.answered_requests += 1
        session.used_at = self._sessions.clock()
        reply.headers.append((SESSION_HEADER_BYTES, name.encode()))
        await cycle.send_reply(reply)
        return True

    async def serve_stream(self, cycle: McpCycle, shortcut: Shortcut | None) -> StreamEnd | None:
        """Serve the stream on which a session waits for notifications, until it ends or the SDK goes on with it.

        None for a request that the SDK has to look at. Raises RateLimited, and McpProtocolError for a second stream.
        """
        name, head = cycle.head.get(SESSION_HEADER_BYTES), cycle.head
        session = None if name is None else find_light(self._sessions, name, cycle.scope["path"], cycle.principal)
        light = None if session is None else session.light
        if name is None or session is None or light is None or light.handover is not None:
            return None
        if light.needs_sdk or head.get(VERSION_HEADER_BYTES) != light.version or b"last-event-id" in head:
            return None
        if "text/event-stream" not in (head.get(b"accept") or ""):
            return None
        if light.stream is not None:
            message = "Conflict: Only one SSE stream is allowed per session"
            raise McpProtocolError(INVALID_REQUEST, message, status=409)
        caller, changes = cycle.principal.principal_id, self._context.gateway.registry.changes
        self._context.acquire_stream(caller)
        stream = light.stream = LightStream(cycle.principal)
        if light.revision not in (None, changes.revision):
            stream.notify(LISTS)  # what changed since its last stream broke
        self._streams.add(self._server, stream)
        session.streams += 1
        session.close = stream.aclose
        try:
            write = partial(stream.write, cycle, name)
            return await (write() if shortcut else run_until_disconnect(cycle.scope, cycle.receive, write))
        finally:
            light.stream, light.revision = None, changes.revision
            self._streams.remove(self._server, stream)
            self._context.release_stream(caller)
            session.streams -= 1
            session.answered_requests += 1
            session.used_at = self._sessions.clock()

    def _find_reply(
        self,
        session: OpenSession,
        light: LightSession,
        cycle: McpCycle,
        message: McpMessage | None,
        *,
        accepts_json: bool,
    ) -> HttpReply | None:
        if message is None:
            if cycle.method != "DELETE":
                return None
            self._sessions.end(session)
            if light.stream is not None:
                light.stream.end()
            self._fast_sessions.observe_reply(cycle.head, None, cycle.principal, 200)
            return HttpReply(body=b"")
        if not accepts_json or not _has_no_params(message):
            return None
        if message.method == "ping" and message.is_request:
            return HttpReply(body=_render_result(message, b"{}"))
        if message.method == "notifications/initialized" and not message.is_request:
            light.is_initialized = True
            self._fast_sessions.observe_reply(cycle.head, message, cycle.principal, 202)
            return HttpReply(body=b"", status=202)
        return None

    async def _open(self, cycle: McpCycle, message: McpMessage, params: _InitializeParams) -> None:
        started = time.perf_counter()
        await self._catalog.refresh(cycle.principal)
        session = await self._sessions.open(cycle.principal.principal_id)
        name = uuid4().hex + self._context.owner_tag
        session.client_name = params.client.name
        session.can_show_apps = UI_EXTENSION in (params.capabilities.extensions or {})
        session.light = LightSession(cycle.principal, cycle.scope["path"], params.version, cycle.body)
        self._sessions.set_name(session, name)
        info = self._catalog.server_info
        result = {
            "capabilities": _CAPABILITIES,
            **_introduce(self._catalog, cycle.principal),
            "protocolVersion": params.version,
            "serverInfo": {"name": info.name, "title": info.title, "version": info.version},
        }
        try:
            headers = [(SESSION_HEADER_BYTES, name.encode())]
            await cycle.send_reply(HttpReply(body=_render_result(message, _encode(result)), headers=headers))
        finally:
            self._sessions.finish_request(session)
        seconds = time.perf_counter() - started
        self._context.log(cycle.trace, "initialize", code=None, message=None, seconds=seconds, status=200)


def find_light(sessions: OpenSessions, name: str, path: str, principal: Principal) -> OpenSession | None:
    """The session of this name, if the SDK does not know it and this caller opened it here."""
    session = sessions.find(name)
    light = session.light if session is not None else None
    if light is None or light.path != path:
        return None
    is_owner = light.principal is principal or owner_from_principal(light.principal) == owner_from_principal(principal)
    return session if is_owner else None


async def hand_over(sessions: OpenSessions, head: RequestHead, path: str, principal: Principal, server: object) -> None:
    """Let the SDK take over the session that a request names, if it has not yet."""
    name = head.get(SESSION_HEADER_BYTES)
    session = find_light(sessions, name, path, principal) if name is not None else None
    if name is None or session is None or session.light is None or not isinstance(server, AdoptsSessions):
        return
    light = session.light
    if light.handover is None:
        light.handover = asyncio.ensure_future(_adopt(server, name, session, light))
    await asyncio.wait({light.handover})
    light.handover.result()


async def _adopt(server: AdoptsSessions, name: str, session: OpenSession, light: LightSession) -> None:
    try:
        await server.adopt_session(name, session, light)
    finally:
        session.light, session.origin = None, light  # or else its client would never get an answer
    if light.stream is not None:
        light.stream.end("handed over")
    if not session.is_open:  # closed meanwhile, to make room
        await session.close()


def _parse_initialize(head: RequestHead, message: McpMessage) -> _InitializeParams | None:
    if message.method != "initialize" or not message.is_request or head.get(VERSION_HEADER_BYTES) is not None:
        return None
    params = decode_or_none(message.params, _InitializeParams)
    return params if params is not None and params.version in FAST_VERSIONS else None


def _read_uri(message: McpMessage) -> str:
    params = decode_or_none(message.params, _Subscription)
    return "" if params is None else f"uri {params.uri}"


def _has_no_params(message: McpMessage) -> bool:
    return bytes(message.params) in (b"", b"null") or decode_or_none(message.params, _NoParams) is not None


def _render_result(message: McpMessage, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (_encode(message.id if message.id is not UNSET else None), result)
