"""Ahead of all doors, where tokens of other issuers are good: each is looked into before a door asks whose it is.

Whoever is refused for lack of a good one is told where tokens are to be had
(OAuth 2.0 Protected Resource Metadata), which is what MCP clients follow.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from a2a_fabric.doors.context import ASGIApp, Receive, Send
from a2a_fabric.doors.doorkeeper import base_of
from a2a_fabric.doors.http import Head, head_of
from a2a_fabric.identity.credentials import Credentials

PATH = "/.well-known/oauth-protected-resource"
_STARTS = ("http.response.start", "websocket.http.response.start")
_CHALLENGE = b"www-authenticate"


class Introductions:
    """`issuers` are those who give out tokens that are good, `scopes` what is worth asking them for."""

    def __init__(
        self,
        introduce: Callable[[Credentials], Awaitable[None]],
        issuers: Sequence[str],
        scopes: Sequence[str],
        public_url: str | None,
    ) -> None:
        self._introduce = introduce
        self._issuers = issuers
        self._scopes = scopes
        self._public_url = public_url

    @property
    def routes(self) -> list[Route]:
        return [Route(path, self._about, methods=["GET"]) for path in (PATH, f"{PATH}/{{path:path}}") if self._issuers]

    def ahead_of(self, app: ASGIApp) -> ASGIApp:
        async def introduced(scope: Any, receive: Receive, send: Send) -> None:
            head = head_of(scope)
            await self._introduce(head.credentials)

            async def say(message: Any) -> None:
                if self._issuers and message["type"] in _STARTS and message["status"] == 401:
                    message = {**message, "headers": self._with_directions(message["headers"], scope, head)}
                await send(message)

            await app(scope, receive, say)

        return introduced

    def _with_directions(self, headers: Any, scope: Any, head: Head) -> list[tuple[bytes, bytes]]:
        path = scope["path"] if scope["path"].endswith("/mcp") else ""
        where = f"{base_of(self._public_url, scope, head)}{PATH}{path}"
        wrong = ', error="invalid_token"' if head.credentials.bearer else ""
        directions = f'{wrong}, resource_metadata="{where}"'.encode("latin-1", "replace")
        return [(name, value + directions if name == _CHALLENGE else value) for name, value in headers]

    async def _about(self, request: Request) -> Response:
        path = request.path_params.get("path", "")
        base = base_of(self._public_url, request.scope, head_of(request.scope))
        about = {
            "resource": f"{base}/{path}" if path else base,
            "resource_name": "a2a-fabric",
            "authorization_servers": self._issuers,
            "bearer_methods_supported": ["header"],
            **({"scopes_supported": self._scopes} if self._scopes else {}),
        }
        return Response(
            msgspec.json.encode(about),
            media_type="application/json",
            headers={"access-control-allow-origin": "*", "cache-control": "no-cache"},
        )
