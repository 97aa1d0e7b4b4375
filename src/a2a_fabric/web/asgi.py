"""One ASGI application for all doors: hot paths first, then Starlette's router, and an answer in JSON to all else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router

from a2a_fabric.core.callbacks import Callbacks
from a2a_fabric.core.trace import new_trace
from a2a_fabric.doors.context import ASGIApp, Door, Receive, Send
from a2a_fabric.version import PROTOCOL_VERSION, __version__
from a2a_fabric.web.callbacks import callback_route
from a2a_fabric.web.introductions import Introductions
from a2a_fabric.web.readiness import Readiness

_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}


class Web:
    def __init__(
        self,
        doors: Sequence[Door],
        stops: Sequence[Callable[[], None]] = (),
        callbacks: Callbacks | None = None,
        body_bytes: int = 4 * 1024 * 1024,
        introductions: Introductions | None = None,
        check_store: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._hot: dict[str, ASGIApp] = {}
        self._sockets: dict[str, ASGIApp] = {}
        readiness = Readiness(check_store)
        routes: list[BaseRoute] = [Route("/", _front_page, methods=["GET"]), readiness.route]
        for door in doors:
            self._hot.update(door.hot)
            self._sockets.update(door.sockets)
            routes.extend(door.routes)
        self._callbacks = callbacks or Callbacks()
        routes.append(callback_route(self._callbacks, body_bytes))
        self._rest: ASGIApp = self._routed
        if introductions is not None:
            self._hot = {path: introductions.ahead_of(app) for path, app in self._hot.items()}
            self._sockets = {path: introductions.ahead_of(app) for path, app in self._sockets.items()}
            self._rest = introductions.ahead_of(self._routed)
            routes[:0] = introductions.routes
        self._stops = [readiness.stop, *stops, *(stop for door in doors for stop in door.stop)]
        self._router = Router(routes, redirect_slashes=False)

    @property
    def hot(self) -> Mapping[str, ASGIApp]:
        """For a server that has a shorter way to these paths."""
        return self._hot

    def served_at(self, url: str) -> None:
        """Agents on this machine may leave word there."""
        self._callbacks.served_at(url)

    def stop(self) -> None:
        """No new requests will come: streams that only wait for news end now."""
        for stop in self._stops:
            stop()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        hot = self._hot.get(scope["path"]) if scope["type"] == "http" else None
        if hot is not None:
            await hot(scope, receive, send)
        elif scope["type"] == "http":
            await self._rest(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._sockets.get(scope["path"], _no_socket)(scope, receive, send)

    async def _routed(self, scope: Any, receive: Receive, send: Send) -> None:
        scope["app"] = self  # makes Starlette raise for 404 and 405 instead of answering in plain text
        try:
            await self._router(scope, receive, send)
        except HTTPException as exc:
            await _refused(exc, scope["path"])(scope, receive, send)


async def _no_socket(scope: Any, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 1008})


def _refused(exc: HTTPException, path: str) -> Response:
    message = f"Nothing at {path[:200]}" if exc.status_code == 404 else str(exc.detail)
    body = refused(_CODES.get(exc.status_code, "BAD_INPUT"), message)
    headers = dict(exc.headers) if exc.headers else None
    return Response(body, exc.status_code, headers, media_type="application/json")


def refused(code: str, message: str) -> bytes:
    """The envelope for what never reached a door."""
    body: dict[str, Any] = {
        "ok": False,
        "trace": new_trace(),
        "result": None,
        "error": message,
        "error_code": code,
        "error_details": {},
    }
    return msgspec.json.encode(body)


async def _front_page(request: Request) -> Response:
    base = str(request.base_url).rstrip("/")
    body = {
        "name": "a2a-fabric",
        "version": __version__,
        "protocol": PROTOCOL_VERSION,
        "mcp": f"{base}/mcp",
        "call": f"{base}/mcp/call",
        "health": f"{base}/health",
    }
    return Response(msgspec.json.encode(body), media_type="application/json")
