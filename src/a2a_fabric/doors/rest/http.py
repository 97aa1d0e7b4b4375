"""The HTTP cycle of the REST paths, of the pages beside them, and the 404 below `/v1`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.routing import BaseRoute, Match

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import BadInput, FabricError
from a2a_fabric.doors.context import ASGIApp, Receive, Send
from a2a_fabric.doors.edge import (
    CycleEndpoint,
    DoorEdge,
    DoorError,
    ErrorReply,
    EventStream,
    HttpReply,
    RequestCycle,
    bad_input_from,
    check_json_depth,
    compute_etag,
)
from a2a_fabric.doors.rest import errors
from a2a_fabric.doors.rest.request_context import RestReply, RestRequestContext, RestRoute
from a2a_fabric.doors.rest.settings import RestDoorSettings

_MAX_KEY_LENGTH = 256
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, kw_only=True)
class RestDoorState(DoorEdge):
    settings: RestDoorSettings


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


class _RestErrorCycle(RequestCycle):
    def render_error(self, error: FabricError | DoorError) -> ErrorReply:
        assert isinstance(error, FabricError)  # noqa: S101  # the REST door has no errors of its own
        body = _encode(errors.build_error_body(error))
        return ErrorReply(errors.find_row(error).status, body, error.code, error.message)


class RestHttpEndpoint(CycleEndpoint):
    """ASGI: the endpoints of one path, by method."""

    def __init__(self, state: RestDoorState, endpoints: Mapping[str, RestRoute]) -> None:
        decoders = {
            method: msgspec.json.Decoder(endpoint.body) for method, endpoint in endpoints.items() if endpoint.body
        }
        super().__init__(lambda *asgi: _RestRequestCycle(state, endpoints, decoders, *asgi))


class _RestRequestCycle(_RestErrorCycle):
    def __init__(
        self,
        state: RestDoorState,
        endpoints: Mapping[str, RestRoute],
        decoders: Mapping[str, msgspec.json.Decoder[Any]],
        scope: Any,
        receive: Receive,
        send: Send,
    ) -> None:
        super().__init__(state, scope, receive, send)
        self._endpoints = endpoints
        self._decoder = decoders.get(self.method)
        self.allowed_methods = sorted(endpoints)
        self.reads_body = self._decoder is not None
        path = endpoints[self.method].path if self.method in endpoints else scope["path"]
        self.operation = f"{self.method} {path}"[:64]

    async def answer(self, body: bytes) -> HttpReply | EventStream:
        endpoint = self._endpoints[self.method]
        context = RestRequestContext(
            principal=self.principal,
            trace=self.trace,
            base_url=self.base_url,
            path=self.scope.get("path_params", {}),
            query=self._parse_query(endpoint),
            body=None if self._decoder is None else _parse_body(self._decoder, body),
            idempotency_key=self._read_idempotency_key() if endpoint.takes_idempotency_key else None,
            last_event_id=self.head.last_event_id,
            delegation_chain=self.head.delegation_chain,
        )
        reply = await endpoint.handler(context)
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
    check_json_depth(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as exc:
        raise bad_input_from(exc) from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BadInput(f"The body is not JSON: {exc}"[:200], issue="not JSON") from exc


class RestPageCycle(_RestErrorCycle):
    """A page that every caller may read. A caller with valid credentials may see more of it."""

    allowed_methods = ("GET", "HEAD")
    reads_body = False

    def __init__(
        self,
        state: RestDoorState,
        build_page: Callable[[RestPageCycle], HttpReply],
        scope: Any,
        receive: Receive,
        send: Send,
    ) -> None:
        super().__init__(state, scope, receive, send)
        self.operation = scope["path"]
        self._build_page = build_page

    def identify(self) -> Principal:
        try:
            return super().identify()
        except errors.CREDENTIAL_ERRORS:
            return Principal()

    def count_request(self) -> None:
        """Pages are not counted."""

    async def answer(self, body: bytes) -> HttpReply:
        return self._build_page(self)


def page_endpoint(state: RestDoorState, build_page: Callable[[RestPageCycle], HttpReply]) -> CycleEndpoint:
    return CycleEndpoint(lambda *asgi: RestPageCycle(state, build_page, *asgi))


class NotFoundCycle(_RestErrorCycle):
    """A path below our version prefix that does not exist."""

    def check_method(self) -> None:
        self.operation = f"{self.method} {self.scope['path']}"[:64]
        raise errors.ResourceNotFound(f"Nothing at {self.scope['path'][:200]}", issue="no such path")

    async def answer(self, body: bytes) -> None:
        raise NotImplementedError
