"""ASGI middleware for signed identities of other nodes: verifies them with the whole body before a door is asked.

The door identifies the caller from the headers alone, so what was verified is kept until the request is over. A request
without an identity passes; `TrustedNodes` refuses it if its caller has to send one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.forwarding import IDENTITY_HEADER
from a2a_fabric.core.limits import BodyLimit
from a2a_fabric.doors.context import ASGIApp, Receive, Send
from a2a_fabric.doors.edge import (
    HEAD_KEY,
    SHORTCUT_KEY,
    ClientDisconnected,
    RequestHead,
    Shortcut,
    head_from_scope,
    read_body,
    replay_body,
    take_buffered_body,
)

if TYPE_CHECKING:
    from a2a_fabric.identity.trusted_nodes import TrustedNodes

JWKS_PATH = "/.well-known/jwks.json"
_HEADER = IDENTITY_HEADER.encode()

_log = logging.getLogger(__name__)


class IdentityMiddleware:
    def __init__(self, trusted_nodes: TrustedNodes, body_limit: BodyLimit) -> None:
        self._trusted_nodes = trusted_nodes
        self._body_limit = body_limit

    def wrap(self, app: ASGIApp) -> ASGIApp:
        async def wrapped(scope: Any, receive: Receive, send: Send) -> None:
            tokens = [value for name, value in scope["headers"] if name == _HEADER]
            if not tokens:
                await app(scope, receive, send)
            elif scope["type"] == "http":
                await self._serve(app, scope, receive, send, b",".join(tokens).decode("latin-1"))
            else:  # a WebSocket has no body to compare the identity with
                kept_at = self._trusted_nodes.keep_unusable()
                try:
                    head = RequestHead(scope["headers"], kept_at, head_from_scope(scope).peer)
                    await app({**scope, HEAD_KEY: head}, receive, send)
                finally:
                    self._trusted_nodes.forget(kept_at)

        return wrapped

    async def _serve(self, app: ASGIApp, scope: Any, receive: Receive, send: Send, token: str) -> None:
        head, shortcut = head_from_scope(scope), scope.get(SHORTCUT_KEY)
        body: bytes | None = None

        async def read() -> bytes:
            nonlocal body
            body = take_buffered_body(shortcut, self._body_limit.bytes)
            if body is None:
                body = await read_body(receive, head, self._body_limit.bytes)
            return body

        try:
            trace = head.trace
            kept_at = await self._trusted_nodes.verify(token, read, None if trace is None else trace.trace_id)
        except ClientDisconnected:
            return
        except TimeoutError:
            kept_at = self._trusted_nodes.keep_unusable()
        checked = {**scope, HEAD_KEY: RequestHead(scope["headers"], kept_at, head.peer)}
        if body is not None:
            receive = replay_body(body, receive)
            if shortcut is not None:
                checked[SHORTCUT_KEY] = _ReadRequest(shortcut, body)
        try:
            await app(checked, receive, send)
        finally:
            self._trusted_nodes.forget(kept_at)


class _ReadRequest:
    """The shortcut of a request whose body was read already."""

    def __init__(self, shortcut: Shortcut, body: bytes) -> None:
        self._shortcut = shortcut
        self._body = body

    @property
    def client_disconnected(self) -> bool:
        return self._shortcut.client_disconnected

    def take_body(self) -> bytes | None:
        return self._body

    def reply(self, status: int, head: bytes, body: bytes) -> None:
        self._shortcut.reply(status, head, body)

    def write(self, chunk: bytes) -> bool:
        return self._shortcut.write(chunk)


def make_jwks_route(list_public: Callable[[], list[dict[str, Any]]]) -> Route:
    """Serves the public keys with which this node signs."""

    async def serve_keys(request: Request) -> Response:
        try:
            keys = list_public()
        except ConfigError as exc:
            _log.error("The public keys of the node cannot be read: %s", exc.message)
            return Response(status_code=503)
        return Response(
            msgspec.json.encode({"keys": keys}),
            media_type="application/jwk-set+json",
            headers={"access-control-allow-origin": "*", "cache-control": "max-age=300"},
        )

    return Route(JWKS_PATH, serve_keys, methods=["GET"])
