"""One MCP server with its sessions, alive from `open` to `aclose`.

The SDK's session manager wants to be entered and left by one task, so a task of the
room's own does that. Importing this module imports the SDK, which takes most of a
second; the door does so beside the start of the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from a2a_fabric.core.call import Principal
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.http import head_of
from a2a_fabric.doors.mcp.asker import VISIT
from a2a_fabric.doors.mcp.changes import Changes
from a2a_fabric.doors.mcp.conversation import Listen, Say, converse
from a2a_fabric.doors.mcp.library import Kind, Library
from a2a_fabric.doors.mcp.manifests import ManifestNews
from a2a_fabric.doors.mcp.open_sessions import OpenSessions
from a2a_fabric.doors.mcp.probe import is_stateless
from a2a_fabric.doors.mcp.reading import Reading
from a2a_fabric.doors.mcp.server import Handlers, build_server
from a2a_fabric.doors.mcp.shelf import Shelf
from a2a_fabric.doors.mcp.visit import Visit
from a2a_fabric.doors.mcp.watching import Watching

# What our lean server leaves out of a scope and Starlette may look for.
_WHOLE_SCOPE: Mapping[str, Any] = {
    "asgi": {"version": "3.0"},
    "http_version": "1.1",
    "scheme": "http",
    "root_path": "",
    "query_string": b"",
}


_SESSION = b"mcp-session-id"


class Room:
    def __init__(
        self, context: DoorContext, shelf: Shelf, manifests: ManifestNews, *, sessions: OpenSessions, idle: float
    ) -> None:
        self.changes = Changes()
        registry = context.gateway.registry
        library = Library(context.libraries, lambda: registry.catalog, shelf.holders)
        reading = Reading(context, shelf, library)
        self._library = library
        watching = Watching(context, shelf, library, manifests, self.changes)
        self._server = build_server(shelf.about, Handlers(context, shelf, reading, watching, self.changes, sessions))
        self._sessions = StreamableHTTPSessionManager(
            self._server,
            max_request_body_size=context.body_bytes,
            max_sessions=None,  # they are counted by us, over all rooms
            session_idle_timeout=idle,
        )
        self._open_sessions = sessions
        self._closing = asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    async def open(self) -> None:
        opened = asyncio.get_running_loop().create_future()
        self._life = asyncio.ensure_future(self._live(opened))
        await asyncio.wait({opened, self._life}, return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            self._life.result()

    async def _live(self, opened: asyncio.Future[None]) -> None:
        async with self._sessions.run():
            opened.set_result(None)
            await self._closing.wait()

    async def aclose(self) -> None:
        self._closing.set()
        if self._life is not None:
            await asyncio.wait({self._life}, timeout=5)

    def news(self) -> set[Kind]:
        """Which lists of what agents hold have changed since this was last asked."""
        return self._library.news()

    async def serve(self, scope: Any, receive: Receive, send: Send, visit: Visit) -> None:
        """One HTTP request of either era. A session belongs to whoever opened it. Raises RateLimited."""
        whole = {**_WHOLE_SCOPE, **scope, "user": _user(visit.principal), VISIT: visit}
        head = head_of(scope)
        name = head.get(_SESSION)
        if name is not None:
            await self._serve_in_session(name, whole, receive, send)
        elif is_stateless(head) or scope["method"] != "POST":
            await self._sessions.handle_request(whole, receive, send)
        else:
            await self._open_session(visit.principal, whole, receive, send)

    async def _open_session(self, principal: Principal, scope: Any, receive: Receive, send: Send) -> None:
        """Only `initialize` opens one; of any other request nothing stays."""
        sessions = self._open_sessions
        session = await sessions.open(principal.principal_id)

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                name = next((value for key, value in message["headers"] if key.lower() == _SESSION), None)
                if name is not None:
                    sessions.give_name(session, name.decode("latin-1"))
                    session.close = partial(self._close_session, name, principal)
            await send(message)

        try:
            await self._sessions.handle_request(scope, receive, sending)
        finally:
            sessions.answered(session)
            if session.name is None:
                sessions.end(session)

    async def _serve_in_session(self, name: str, scope: Any, receive: Receive, send: Send) -> None:
        session = self._open_sessions.find(name)
        if session is None or scope["method"] == "DELETE":
            await self._sessions.handle_request(scope, receive, send)
            return
        is_stream = scope["method"] == "GET"
        session.requests += not is_stream
        session.streams += is_stream
        try:
            await self._sessions.handle_request(scope, receive, send)
        finally:
            session.requests -= not is_stream
            session.streams -= is_stream
            session.uses += 1
            session.used_at = self._open_sessions.clock()

    async def _close_session(self, name: bytes, principal: Principal) -> None:
        """As its client would."""
        scope = {
            **_WHOLE_SCOPE,
            "type": "http",
            "method": "DELETE",
            "path": "/mcp",
            "headers": [(_SESSION, name), (b"accept", b"application/json, text/event-stream")],
            "user": _user(principal),
        }
        await self._sessions.handle_request(scope, _nothing_to_read, _unheard)

    async def converse(self, listen: Listen, say: Say, visit: Visit) -> None:
        """A whole conversation of either era, over messages of text."""
        await converse(self._server, listen, say, visit)


async def _nothing_to_read() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _unheard(message: Any) -> None:
    pass


def _user(principal: Principal) -> AuthenticatedUser:
    known = f"{principal.mode}:{principal.principal_id}"
    return AuthenticatedUser(AccessToken(token="", client_id=known, scopes=[]))
