"""One MCP server with its sessions, alive from `open` to `aclose`.

The SDK's session manager wants to be entered and left by one task, so a task of the
room's own does that. Importing this module imports the SDK, which takes most of a
second; the door does so beside the start of the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from a2a_fabric.core.call import Principal
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.mcp.asker import VISIT
from a2a_fabric.doors.mcp.changes import Changes
from a2a_fabric.doors.mcp.conversation import Listen, Say, converse
from a2a_fabric.doors.mcp.library import Kind, Library
from a2a_fabric.doors.mcp.manifests import ManifestNews
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


class Room:
    def __init__(
        self, context: DoorContext, shelf: Shelf, manifests: ManifestNews, *, max_sessions: int, idle: float
    ) -> None:
        self.changes = Changes()
        registry = context.gateway.registry
        library = Library(context.libraries, lambda: registry.catalog, shelf.holders)
        reading = Reading(context, shelf, library)
        self._library = library
        watching = Watching(context, shelf, library, manifests, self.changes)
        self._server = build_server(shelf.about, Handlers(context, shelf, reading, watching, self.changes))
        self._sessions = StreamableHTTPSessionManager(
            self._server,
            max_request_body_size=context.body_bytes,
            max_sessions=max_sessions,
            session_idle_timeout=idle,
        )
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
        """One HTTP request of either era. A session belongs to whoever opened it."""
        whole = {**_WHOLE_SCOPE, **scope, "user": _user(visit.principal), VISIT: visit}
        await self._sessions.handle_request(whole, receive, send)

    async def converse(self, listen: Listen, say: Say, visit: Visit) -> None:
        """A whole conversation of either era, over messages of text."""
        await converse(self._server, listen, say, visit)


def _user(principal: Principal) -> AuthenticatedUser:
    known = f"{principal.mode}:{principal.principal_id}"
    return AuthenticatedUser(AccessToken(token="", client_id=known, scopes=[]))
