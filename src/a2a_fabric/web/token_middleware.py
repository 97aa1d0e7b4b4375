"""ASGI middleware for tokens of other issuers: verifies the bearer token before a door resolves the caller.

A 401 response gets a link to the OAuth 2.0 Protected Resource Metadata, which this module also
serves; MCP clients follow it to find an authorization server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from a2a_fabric.doors.context import ASGIApp, Receive, Send
from a2a_fabric.doors.edge import RequestHead, base_url_for, head_from_scope
from a2a_fabric.identity.resolver import Credentials

RESOURCE_METADATA_PATH = "/.well-known/oauth-protected-resource"
_RESPONSE_STARTS = ("http.response.start", "websocket.http.response.start")
_CHALLENGE_HEADER = b"www-authenticate"


class TokenMiddleware:
    """`issuers` are the accepted issuers of tokens, `scopes` the scopes that clients may request from them."""

    def __init__(
        self,
        verify_token: Callable[[Credentials], Awaitable[None]],
        issuers: Sequence[str],
        scopes: Sequence[str],
        public_url: str | None,
    ) -> None:
        self._verify_token = verify_token
        self._issuers = issuers
        self._scopes = scopes
        self._public_url = public_url

    @property
    def routes(self) -> list[Route]:
        return [
            Route(path, self._serve_metadata, methods=["GET"])
            for path in (RESOURCE_METADATA_PATH, f"{RESOURCE_METADATA_PATH}/{{path:path}}")
            if self._issuers
        ]

    def wrap(self, app: ASGIApp) -> ASGIApp:
        async def wrapped(scope: Any, receive: Receive, send: Send) -> None:
            head = head_from_scope(scope)
            await self._verify_token(head.credentials)

            async def send_with_challenge(message: Any) -> None:
                if self._issuers and message["type"] in _RESPONSE_STARTS and message["status"] == 401:
                    message = {**message, "headers": self._add_metadata_url(message["headers"], scope, head)}
                await send(message)

            await app(scope, receive, send_with_challenge)

        return wrapped

    def _add_metadata_url(self, headers: Any, scope: Any, head: RequestHead) -> list[tuple[bytes, bytes]]:
        path = scope["path"] if scope["path"].endswith("/mcp") else ""
        metadata_url = f"{base_url_for(self._public_url, scope, head)}{RESOURCE_METADATA_PATH}{path}"
        error = ', error="invalid_token"' if head.credentials.bearer else ""
        challenge = f'{error}, resource_metadata="{metadata_url}"'.encode("latin-1", "replace")
        return [(name, value + challenge if name == _CHALLENGE_HEADER else value) for name, value in headers]

    async def _serve_metadata(self, request: Request) -> Response:
        path = request.path_params.get("path", "")
        base = base_url_for(self._public_url, request.scope, head_from_scope(request.scope))
        metadata = {
            "resource": f"{base}/{path}" if path else base,
            "resource_name": "a2a-fabric",
            "authorization_servers": self._issuers,
            "bearer_methods_supported": ["header"],
            **({"scopes_supported": self._scopes} if self._scopes else {}),
        }
        return Response(
            msgspec.json.encode(metadata),
            media_type="application/json",
            headers={"access-control-allow-origin": "*", "cache-control": "no-cache"},
        )
