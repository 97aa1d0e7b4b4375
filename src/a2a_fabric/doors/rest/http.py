"""The HTTP cycle of the REST paths, of the pages beside them, and the 404 below `/v1`; errors and their codes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from starlette.routing import BaseRoute, Match

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import (
    AuthExpired,
    AuthInvalid,
    BadInput,
    Conflict,
    FabricError,
    Forbidden,
    Unauthenticated,
)
from a2a_fabric.core.propagation import MaybeChain
from a2a_fabric.doors.context import ASGIApp, Receive, Send
from a2a_fabric.doors.edge import (
    CycleEndpoint,
    DoorEdge,
    DoorError,
    ErrorReply,
    EventStream,
    HeaderList,
    HttpReply,
    RequestCycle,
    bad_input_from,
    check_json,
    compute_etag,
    find_http_status,
    to_encodable_text,
    to_json_details,
)
from a2a_fabric.doors.rest import models


class RestReply(msgspec.Struct, frozen=True, kw_only=True):
    body: Any
    status: int = 200
    headers: HeaderList = []


RestHandler = Callable[["RestCycle"], Awaitable[RestReply | EventStream]]


class RestRoute(msgspec.Struct, frozen=True, kw_only=True):
    """One method at one path: what it takes and returns, and a summary for the OpenAPI document."""

    method: str
    path: str  # as in OpenAPI, without the version
    handler: RestHandler
    summary: str
    reply: type[msgspec.Struct] | None  # None: events
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    status: int = 200
    tag: str = ""
    takes_idempotency_key: bool = False
    example: Any = None  # of a body


def build_location(kind: str, visible_id: str, own_id: str) -> bytes:
    """The path of a task or a message, with the id that its caller sees.

    An id with a slash, or one that is only dots, cannot stand in a path; then our own id is used.
    """
    name = visible_id if "/" not in visible_id and visible_id not in (".", "..") else own_id
    if name.isascii() and name.isidentifier():  # as our own ids are: nothing to quote
        return f"/v1/{kind}/{name}".encode("ascii")
    return f"/v1/{kind}/{quote(name, safe='')}".encode("ascii")


def build_next_link(context: RestCycle, path: str, cursor: str | None, limit: int) -> HeaderList:
    if cursor is None:
        return []
    query = urlencode({"cursor": cursor, "limit": limit})
    return [(b"link", f'<{context.base_url}/v1{path}?{query}>; rel="next"'.encode("ascii", "replace"))]


def parse_cursor(cursor: str | None) -> int:
    """A cursor that is a number. Raises BadInput."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 16):
        raise BadInput("Invalid cursor. Start again without one.", field="cursor", issue="invalid")
    return int(cursor)


CREDENTIAL_ERRORS = (Unauthenticated, AuthInvalid, AuthExpired, Forbidden)


class TaskAlreadyEnded(Conflict):
    """A task that has ended cannot be cancelled."""


class ResourceNotFound(BadInput):
    pass


_CODES = {
    401: "UNAUTHORIZED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    409: "CONFLICT",
    413: "PAYLOAD_TOO_LARGE",
    429: "RATE_LIMITED",
}


def raise_conflict(conflict: Conflict, own_id: str | None, key: str | None, resource: str) -> NoReturn:
    """Name the id or the key of the caller's that was used before. Raises Conflict."""
    field, name = ("id", own_id) if own_id is not None else ("Idempotency-Key", key)
    if name is None:
        raise conflict
    issue = f"used for another {resource}"
    raise Conflict(f"{field} '{name[:64]}' was {issue}; take a new one", field=field, issue=issue) from conflict


def find_status(error: FabricError) -> int:
    return 404 if isinstance(error, ResourceNotFound) else find_http_status(error)


def _find_code(error: FabricError) -> str:
    status = find_status(error)
    if status >= 500:
        return "INTERNAL_ERROR"
    return "INVALID_REQUEST" if isinstance(error, TaskAlreadyEnded) else _CODES.get(status, "INVALID_REQUEST")


def build_error_body(error: FabricError) -> models.Error:
    """`reason` is the code that is the same on every door."""
    details = {**to_json_details(error.details), "reason": error.reason}
    return models.Error(
        error=models.Fault(code=_find_code(error), message=to_encodable_text(error.message), details=details)
    )


_MAX_KEY_LENGTH = 256
_encode = msgspec.json.Encoder().encode


class PrefixRoute(BaseRoute):
    def __init__(self, prefix: str, app: ASGIApp) -> None:
        self._prefix = prefix
        self._app = app

    def matches(self, scope: Any) -> tuple[Match, Any]:
        has_prefix = scope["type"] == "http" and scope["path"].startswith(self._prefix)
        return (Match.FULL if has_prefix else Match.NONE), {}

    async def handle(self, scope: Any, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        """These routes have no names."""
        raise LookupError(name)


class RestCycle(RequestCycle):
    """One request. `body` and `query` have the types that the route names."""

    path: Mapping[str, str]
    query: Any = None
    body: Any = None
    idempotency_key: str | None = None
    delegation_chain: MaybeChain = msgspec.UNSET  # the nodes and agents that the request has passed

    def render_error(self, error: FabricError | DoorError) -> ErrorReply:
        assert isinstance(error, FabricError)  # noqa: S101  # the REST door has no errors of its own
        return ErrorReply(find_status(error), _encode(build_error_body(error)), error.code, error.message)


class RestHttpEndpoint(CycleEndpoint):
    """ASGI: the endpoints of one path, by method."""

    def __init__(self, state: DoorEdge, endpoints: Mapping[str, RestRoute]) -> None:
        prepared = {method: _PreparedRoute(method, route) for method, route in endpoints.items()}
        allowed_methods = sorted(endpoints)
        super().__init__(lambda *asgi: _RestRequestCycle(state, prepared, allowed_methods, *asgi))


class _PreparedRoute:
    """What all requests of a route have in common."""

    def __init__(self, method: str, route: RestRoute) -> None:
        self.route = route
        self.decoder = msgspec.json.Decoder(route.body) if route.body else None
        self.operation = f"{method} {route.path}"[:64]


class _RestRequestCycle(RestCycle):
    def __init__(
        self, state: DoorEdge, routes: Mapping[str, _PreparedRoute], allowed_methods: Sequence[str], *asgi: Any
    ) -> None:
        super().__init__(state, *asgi)
        self.allowed_methods = allowed_methods
        prepared = self._prepared = routes.get(self.method)
        self.reads_body = prepared is not None and prepared.decoder is not None
        self.operation = f"{self.method} {self.scope['path']}"[:64] if prepared is None else prepared.operation

    async def answer(self, body: bytes) -> HttpReply | EventStream:
        assert self._prepared is not None, "the method is allowed"  # noqa: S101
        endpoint, decoder = self._prepared.route, self._prepared.decoder
        self.path = self.scope.get("path_params", {})
        self.query = self._parse_query(endpoint)
        self.body = None if decoder is None else _parse_body(decoder, body)
        self.idempotency_key = self._read_idempotency_key() if endpoint.takes_idempotency_key else None
        self.delegation_chain = self.head.delegation_chain
        reply = await endpoint.handler(self)
        return reply if isinstance(reply, EventStream) else self._build_reply(reply)

    def _parse_query(self, endpoint: RestRoute) -> Any:
        if endpoint.query is None:
            return None
        try:
            pairs = parse_qsl(
                self.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True, max_num_fields=100
            )
            return msgspec.convert(dict(pairs), endpoint.query, strict=False)
        except (msgspec.ValidationError, ValueError) as exc:
            raise bad_input_from(exc) from exc

    def _read_idempotency_key(self) -> str | None:
        key = self.head.get(b"idempotency-key")
        if key is not None and not (0 < len(key) <= _MAX_KEY_LENGTH and key.isprintable()):
            raise BadInput("Idempotency-Key: up to 256 printable characters", field="Idempotency-Key", issue="no key")
        return key

    def _build_reply(self, reply: RestReply) -> HttpReply:
        body = _encode(reply.body)
        if self.method != "GET" or reply.status != 200:
            return HttpReply(body=body, status=reply.status, headers=reply.headers)
        headers = [*reply.headers, (b"cache-control", b"private, no-cache")]
        return HttpReply(body=body, headers=headers, etag=compute_etag(body))


def _parse_body(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    check_json(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as exc:
        raise bad_input_from(exc) from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BadInput(f"The body is not JSON: {exc}"[:200], issue="not JSON") from exc


BuildPage = Callable[["RestPageCycle"], HttpReply | Awaitable[HttpReply]]


class RestPageCycle(RestCycle):
    """A page that every caller may read. A caller with valid credentials may see more of it."""

    allowed_methods = ("GET", "HEAD")
    reads_body = False

    def __init__(self, state: DoorEdge, build_page: BuildPage, *asgi: Any) -> None:
        super().__init__(state, *asgi)
        self.operation = self.scope["path"]
        self._build_page = build_page

    def identify(self) -> Principal:
        try:
            return super().identify()
        except CREDENTIAL_ERRORS:
            return Principal()

    def count_request(self) -> None:
        """Pages are not counted."""

    async def answer(self, body: bytes) -> HttpReply:
        page = self._build_page(self)
        return page if isinstance(page, HttpReply) else await page


def page_endpoint(state: DoorEdge, build_page: BuildPage) -> CycleEndpoint:
    return CycleEndpoint(lambda *asgi: RestPageCycle(state, build_page, *asgi))


class NotFoundCycle(RestCycle):
    """A path below our version prefix that does not exist."""

    def check_method(self) -> None:
        self.operation = f"{self.method} {self.scope['path']}"[:64]
        raise ResourceNotFound(f"Nothing at {self.scope['path'][:200]}", issue="no such path")

    async def answer(self, body: bytes) -> None:
        raise NotImplementedError
