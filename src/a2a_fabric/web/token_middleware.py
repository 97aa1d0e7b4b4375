"""ASGI middleware for tokens of other issuers: verifies the bearer token before a door resolves the caller.

A 401 response, and a 403 response for a token that lacks a scope, gets a link to the OAuth 2.0 Protected Resource
Metadata, which this module also serves; MCP clients follow it to find an authorization server. Both name scopes in the
words of the issuers, because a client asks an issuer for them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from a2a_fabric.core.scopes import ALL_SCOPES, parse_scopes
from a2a_fabric.doors.context import ASGIApp, Receive, Send
from a2a_fabric.doors.edge import RequestHead, base_url_for, head_from_scope
from a2a_fabric.identity.resolver import Credentials

RESOURCE_METADATA_PATH = "/.well-known/oauth-protected-resource"
_RESPONSE_STARTS = ("http.response.start", "websocket.http.response.start")
_CHALLENGE_HEADER = b"www-authenticate"
_SCOPE = re.compile(r"[!#-\[\]-~]+")  # RFC 6749, section 3.3; names of groups may be others
_NAMED_SCOPE = re.compile(r', scope="([^"]*)"')


class TokenMiddleware:
    """`issuers` are the accepted issuers of tokens; `grants` are the scopes that clients may request from them, each
    with the scopes of this node that it gives."""

    def __init__(
        self,
        verify_token: Callable[[Credentials], Awaitable[None]],
        issuers: Sequence[str],
        grants: Mapping[str, Sequence[str]],
        public_url: str | None,
    ) -> None:
        self._verify_token = verify_token
        self._issuers = issuers
        self._scopes = sorted(grants)
        # What gives least comes first.
        by_power = sorted(grants, key=lambda word: (ALL_SCOPES in grants[word], len(grants[word]), word))
        self._grants = {word: parse_scopes(tuple(grants[word])) for word in by_power if _SCOPE.fullmatch(word)}
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
                if self._issuers and message["type"] in _RESPONSE_STARTS and message["status"] in (401, 403):
                    message = {**message, "headers": self._complete_challenge(message, scope, head)}
                await send(message)

            await app(scope, receive, send_with_challenge)

        return wrapped

    def _complete_challenge(self, message: Any, scope: Any, head: RequestHead) -> list[tuple[bytes, bytes]]:
        path = scope["path"] if scope["path"].endswith("/mcp") else ""
        metadata_url = f"{base_url_for(self._public_url, scope, head)}{RESOURCE_METADATA_PATH}{path}"
        error = ', error="invalid_token"' if message["status"] == 401 and head.credentials.bearer else ""

        def complete(challenge: str) -> bytes:
            needed = _NAMED_SCOPE.search(challenge)
            words = " ".join(sorted(self._grants)) if needed is None else self._find_word(needed[1])
            named = f', scope="{words}"' if words else ""
            rest = f'{_NAMED_SCOPE.sub("", challenge)}{error}{named}, resource_metadata="{metadata_url}"'
            return rest.encode("latin-1", "replace")

        return [
            (name, complete(value.decode("latin-1")) if name == _CHALLENGE_HEADER else value)
            for name, value in message["headers"]
        ]

    def _find_word(self, scope: str) -> str:
        """The issuers' word that gives this scope; the scope itself if no word does, since tokens may have it, too."""
        kind, _, name = scope.partition(":")
        return next((word for word, scopes in self._grants.items() if scopes.grants(kind, name)), scope)

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
