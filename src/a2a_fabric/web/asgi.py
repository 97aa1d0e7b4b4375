"""One ASGI application for all doors: hot paths first, then Starlette's router, and JSON errors for the rest.

It has four routes of its own. `GET /` describes the node, and greets a browser with a page.

`GET /readyz` tells load balancers and orchestrators whether to send requests to this node, and `GET /livez` that its
process answers (`core/node_health.py`).

`POST /callbacks/KEY` receives notifications from agents for calls that wait for them. The token is the only
credential. With a wrong token the reply is 404, as for any unknown path; with the right one, the call is woken,
and the reply is empty."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, unquote_plus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route, Router

from a2a_fabric.core.call import bind_call
from a2a_fabric.core.callbacks import CALLBACK_PATH, Callbacks
from a2a_fabric.core.errors import PayloadTooLarge
from a2a_fabric.core.limits import BodyLimit
from a2a_fabric.core.node_health import NodeCheck, NodeHealth, is_ready
from a2a_fabric.core.propagation import Trace, new_trace
from a2a_fabric.doors.context import ASGIApp, Door, Receive, Send
from a2a_fabric.doors.edge import (
    HEAD_KEY,
    VIEW_HEADER,
    VIEW_PREFIX_KEY,
    ClientDisconnected,
    RequestHead,
    head_from_scope,
    read_body,
)
from a2a_fabric.version import PROTOCOL_VERSION, __version__
from a2a_fabric.web.identity_middleware import IdentityMiddleware
from a2a_fabric.web.token_middleware import TokenMiddleware

LIVEZ_PATH = "/livez"
READYZ_PATH = "/readyz"
VIEWS_PATH = "/views/"
_MAX_FOUND_ROUTES = 1024
_MAX_FOUND_PATH = 256


def make_health_routes(health: NodeHealth) -> list[Route]:
    """`/livez` and `/readyz`. Neither needs credentials, so neither names an agent, an address or an error."""

    async def serve_liveness(request: Request) -> Response:
        return _json_response({"status": "alive"}, 200)

    async def serve_readiness(request: Request) -> Response:
        results = await health.check_readiness()
        states = {name: _word_of(name, result) for name, result in results.items()}
        if is_ready(results):
            return _json_response({"status": "ready", "checks": states}, 200)
        reasons = [result.reason for result in results.values() if result.status == "down" and result.reason]
        return _json_response({"status": "not ready", "checks": states, "reasons": reasons}, 503)

    return [
        Route(LIVEZ_PATH, serve_liveness, methods=["GET"]),
        Route(READYZ_PATH, serve_readiness, methods=["GET"]),
    ]


def _word_of(name: str, result: NodeCheck) -> str:
    """Doors are open or closing; everything else is ok, degraded or down."""
    return result.status if name != "doors" else "open" if result.status == "ok" else "closing"


def _json_response(body: Any, status: int) -> Response:
    return Response(msgspec.json.encode(body), status, {"cache-control": "no-store"}, media_type="application/json")


_TOKEN_HEADER = "x-a2a-notification-token"  # noqa: S105  # the name of a header
_BEARER_PREFIX = "bearer "


def make_callback_route(callbacks: Callbacks, body_limit: BodyLimit) -> Route:
    async def receive_notification(request: Request) -> Response:
        callback = callbacks.find(request.path_params["key"], _read_token(request))
        if callback is None:
            raise HTTPException(404)
        try:
            notification = await read_body(request.receive, head_from_scope(request.scope), body_limit.bytes)
        except PayloadTooLarge:
            callback.deliver(b"")  # the call reads the news itself
            return Response(status_code=413)
        except (ClientDisconnected, TimeoutError):
            return Response(status_code=408)
        callback.deliver(notification)
        return Response(status_code=204)

    return Route(f"{CALLBACK_PATH}{{key}}", receive_notification, methods=["POST"])


def _read_token(request: Request) -> str:
    authorization = request.headers.get("authorization", "")
    as_bearer = authorization[len(_BEARER_PREFIX) :] if authorization.lower().startswith(_BEARER_PREFIX) else ""
    return request.headers.get(_TOKEN_HEADER) or as_bearer


_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}


NarrowScope = Callable[[Any, RequestHead | None], Any]


class HotPath(NamedTuple):
    """What the server dispatches without a router: the path as doors see it, and the application.

    `narrow` is for the path of a view. It turns the scope of a request into the one that the application gets, once for
    all requests of a connection with the same headers; it is given the head of the scope that it made before, if only
    the content length has changed since.
    """

    path: str
    app: ASGIApp
    narrow: NarrowScope | None = None


class WebApp:
    def __init__(
        self,
        doors: Sequence[Door],
        stops: Sequence[Callable[[], None]] = (),
        callbacks: Callbacks | None = None,
        body_limit: BodyLimit | None = None,
        token_middleware: TokenMiddleware | None = None,
        health: NodeHealth | None = None,
        views: Sequence[str] = (),
        pages: Sequence[BaseRoute] = (),
        identity_middleware: IdentityMiddleware | None = None,
        hand_over: Callable[[ASGIApp], ASGIApp] | None = None,
        render_greeting: Callable[[], Response] | None = None,
        peer_endpoints: Mapping[str, ASGIApp] | None = None,
    ) -> None:
        """`identity_middleware` is for a node that trusts the signed identities of others, `hand_over` wraps
        what is served by one of several processes: requests that belong to another go there, before anything else.
        `render_greeting` makes the page that a browser gets at `/`; everyone else gets JSON. `peer_endpoints` are for
        other nodes, which prove to them who they are.
        """
        self._peer_endpoints = dict(peer_endpoints or {})
        self._render_greeting = render_greeting
        self._hand_over = hand_over
        self._doors = doors
        self._views = views
        self._hot_routes = [route for door in doors for route in door.hot_routes]
        self.health = health or NodeHealth()
        self._callbacks = callbacks or Callbacks()
        self._routes: list[BaseRoute] = [
            Route("/", self._serve_front_page, methods=["GET"]),
            *make_health_routes(self.health),
            *pages,
            *(route for door in doors for route in door.routes),
            make_callback_route(self._callbacks, body_limit or BodyLimit(4 * 1024 * 1024)),
        ]
        self._stops = [self.health.start_draining, *stops, *(stop for door in doors for stop in door.stop)]
        # What the server dispatches without a router, by URL; paths of `hot_routes` join when they are first used.
        self.hot_urls: dict[bytes, HotPath] = {}
        self.on_middleware_change: Callable[[], None] | None = None  # set by the server
        self.set_middleware(token_middleware, identity_middleware)

    def set_middleware(
        self, token_middleware: TokenMiddleware | None, identity_middleware: IdentityMiddleware | None
    ) -> None:
        """Put them in front of everything from now on. Nodes that trust no issuer, or no other node, have none, and pay
        nothing for it.
        """
        wrappers = [
            None if token_middleware is None else token_middleware.wrap,
            None if identity_middleware is None else identity_middleware.wrap,
            self._hand_over,
        ]
        self._wrap = _chain_wrappers([each for each in wrappers if each is not None])
        self._hot_paths = {path: self._wrap(app) for door in self._doors for path, app in door.hot.items()}
        self._websockets = {path: self._wrap(app) for door in self._doors for path, app in door.sockets.items()}
        self._default_app = self._wrap(self._route)
        own_routes = [] if token_middleware is None else token_middleware.routes
        self._router = Router([*own_routes, *self._routes], redirect_slashes=False)
        self._found_routes: dict[tuple[str, str], BaseRoute] = {}
        self.hot_urls.clear()  # in place: the server has it
        for path, app in self._hot_paths.items():
            app = bind_call(app)
            self.hot_urls[path.encode()] = HotPath(path, app)
            for view in self._views:
                url = f"{VIEWS_PATH}{view}{path}".encode()
                self.hot_urls[url] = HotPath(path, app, _make_narrow(view, path))
        for path, endpoint in self._peer_endpoints.items():
            self._hot_paths[path] = endpoint
            self.hot_urls[path.encode()] = HotPath(path, bind_call(endpoint))
        if self.on_middleware_change is not None:
            self.on_middleware_change()

    @property
    def hot_paths(self) -> Mapping[str, ASGIApp]:
        """The paths that the server always dispatches without a router."""
        return self._hot_paths

    def set_listen_url(self, url: str) -> None:
        """The URL that agents on this machine may send notifications to."""
        self._callbacks.set_listen_url(url)

    def stop(self) -> None:
        """The server accepts no more requests, so streams that only wait for news end now."""
        for stop in self._stops:
            stop()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["path"].startswith(VIEWS_PATH) or b"view=" in scope.get("query_string", b""):
            scope = _narrow_scope(scope)
        hot = self._hot_paths.get(scope["path"]) if scope["type"] == "http" else None
        if hot is not None:
            await hot(scope, receive, send)
        elif scope["type"] == "http":
            await self._default_app(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websockets.get(scope["path"], _reject_websocket)(scope, receive, send)

    async def _serve_front_page(self, request: Request) -> Response:
        if self._render_greeting is not None and "text/html" in request.headers.get("accept", ""):
            return self._render_greeting()
        response = _describe_node(request)
        response.headers["vary"] = "accept"
        return response

    async def _route(self, scope: Any, receive: Receive, send: Send) -> None:
        scope["app"] = self  # makes Starlette raise for 404 and 405 instead of answering in plain text
        try:
            await (self._find_route(scope) or self._router)(scope, receive, send)
        except HTTPException as exc:
            await _make_error_response(exc, scope["path"])(scope, receive, send)

    def _find_route(self, scope: Any) -> ASGIApp | None:
        """The route of a method and path, cached so that the routes before it are not matched again."""
        key = scope["method"], scope["path"]
        route = self._found_routes.get(key)
        if route is None:
            route = next((each for each in self._router.routes if each.matches(scope)[0] is Match.FULL), None)
            if route is None:
                return None
            if len(scope["path"]) <= _MAX_FOUND_PATH:  # callers choose the paths, so what is kept is bounded
                if len(self._found_routes) >= _MAX_FOUND_ROUTES:
                    self._found_routes.clear()
                self._found_routes[key] = route
        match, child_scope = route.matches(scope)
        if match is not Match.FULL:
            return None
        scope.update(child_scope)
        if route in self._hot_routes and scope["method"] == "POST" and VIEW_PREFIX_KEY not in scope:
            self._add_hot_url(scope, route)
        return route.handle

    def _add_hot_url(self, scope: Any, route: Any) -> None:
        """From now on the server dispatches requests for this path itself, if it was sent without escapes or query."""
        path, app = scope["path"], self._wrap(_with_path_params(route.app, scope["path_params"]))
        url = path.encode()
        if scope.get("raw_path") != url or scope.get("query_string") or len(path) > _MAX_FOUND_PATH:
            return
        if len(self.hot_urls) >= len(self._hot_paths) * (1 + len(self._views)) + _MAX_FOUND_ROUTES:
            for found in [url for url, hot in self.hot_urls.items() if hot.path not in self._hot_paths]:
                del self.hot_urls[found]
        self.hot_urls[url] = HotPath(path, app)


def _chain_wrappers(wrappers: Sequence[Callable[[ASGIApp], ASGIApp]]) -> Callable[[ASGIApp], ASGIApp]:
    """All of them, the last one outermost."""

    def wrap(app: ASGIApp) -> ASGIApp:
        for each in wrappers:
            app = each(app)
        return app

    return wrap


def _with_path_params(app: ASGIApp, path_params: Mapping[str, Any]) -> ASGIApp:
    def serve(scope: Any, receive: Receive, send: Send) -> Awaitable[None]:
        scope["path_params"] = path_params
        return app(scope, receive, send)

    return serve


def _make_narrow(name: str, path: str) -> NarrowScope:
    """For a hot path of a view. What doors compute from the headers is kept with the connection, as without a view."""
    prefix = VIEWS_PATH + name
    fields = {"path": path, "raw_path": _quote_path(path), VIEW_PREFIX_KEY: prefix}
    view_header = VIEW_HEADER, name.encode("latin-1")

    def narrow(scope: Any, kept: RequestHead | None) -> Any:
        sent, head = scope["headers"], head_from_scope(scope)
        if VIEW_HEADER in head:
            return _add_views(scope, [name], prefix, path)
        headers = [*sent, view_header]
        narrowed = RequestHead(headers, peer=head.peer) if kept is None else kept.with_headers(headers)
        return {**scope, **fields, "headers": headers, HEAD_KEY: narrowed}

    return narrow


def _narrow_scope(scope: Any) -> Any:
    """`/views/NAME/rest` and `rest?view=NAME` as a request for `rest` with the header `X-Fabric-View: NAME`.

    The credentials may be bound to a view already. The resolver adds the named ones, so a request gets no wider.
    """
    path, prefix, names = scope["path"], "", []
    if path.startswith(VIEWS_PATH):
        name, _, rest = path[len(VIEWS_PATH) :].partition("/")
        path, prefix, names = f"/{rest}", VIEWS_PATH + quote(name, safe=""), [name]
    pairs = scope.get("query_string", b"").split(b"&")
    views = [pair for pair in pairs if pair.startswith(b"view=")]
    names += [unquote_plus(pair[len(b"view=") :].decode("latin-1")) for pair in views]
    narrowed = _add_views(scope, names, prefix, path)
    narrowed["query_string"] = b"&".join(pair for pair in pairs if pair not in views)
    return narrowed


def _add_views(scope: Any, names: list[str], prefix: str, path: str) -> Any:
    if not names:
        return dict(scope)
    named = [value.decode("latin-1") for header, value in scope["headers"] if header == VIEW_HEADER]
    headers = [(header, value) for header, value in scope["headers"] if header != VIEW_HEADER]
    headers.append((VIEW_HEADER, ",".join((*named, *names)).encode("latin-1", "replace")))
    raw_path = _cut_raw_path(scope, prefix, path)
    narrowed = {**scope, "path": path, "raw_path": raw_path, "headers": headers, VIEW_PREFIX_KEY: prefix}
    narrowed[HEAD_KEY] = RequestHead(headers, peer=head_from_scope(scope).peer)
    return narrowed


def _cut_raw_path(scope: Any, prefix: str, path: str) -> bytes:
    """The path below the view as the client wrote it: `message:send` keeps its colon, and `a%2Fb` stays one segment."""
    raw: bytes = (scope.get("raw_path") or b"").partition(b"?")[0]
    if prefix:
        raw = b"/" + b"".join(raw.split(b"/", 3)[3:])
    return raw if unquote(raw.decode("latin-1")) == path else _quote_path(path)


def _quote_path(path: str) -> bytes:
    return quote(path, safe="/:@!$&'()*+,;=").encode()


async def _reject_websocket(scope: Any, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 1008})


def _make_error_response(exc: HTTPException, path: str) -> Response:
    message = f"Nothing at {path[:200]}" if exc.status_code == 404 else str(exc.detail)
    trace = new_trace()
    body = encode_error(_CODES.get(exc.status_code, "BAD_INPUT"), message, trace)
    headers = {"x-trace-id": trace.trace_id, **(exc.headers or {})}
    return Response(body, exc.status_code, headers, media_type="application/json")


def encode_error(code: str, message: str, trace: Trace | None = None) -> bytes:
    """The JSON envelope for a request that did not reach a door."""
    body: dict[str, Any] = {
        "ok": False,
        "trace": trace or new_trace(),
        "result": None,
        "error": message,
        "error_code": code,
        "error_details": {},
    }
    return msgspec.json.encode(body)


def _describe_node(request: Request) -> Response:
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
