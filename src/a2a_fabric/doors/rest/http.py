"""The HTTP endpoint of one REST path, with the headers of every reply; the route and the 404 below `/v1`."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.routing import BaseRoute, Match

from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.errors import BadInput, FabricError, InternalError, RateLimited
from a2a_fabric.core.trace import current_trace, new_trace
from a2a_fabric.doors.context import ASGIApp, DoorContext, Receive, Send
from a2a_fabric.doors.edge import (
    SHORTCUT_KEY,
    AnonymousPolicy,
    ClientDisconnected,
    EventStreamReply,
    HeaderList,
    RequestHead,
    Shortcut,
    base_url_for,
    check_json_depth,
    encode_event,
    may_be_json,
    read_body,
    run_until_disconnect,
    send_reply,
    take_buffered_body,
)
from a2a_fabric.doors.rest import errors
from a2a_fabric.doors.rest.rate_limit import RequestRateExceeded, RequestRateLimit
from a2a_fabric.doors.rest.request_context import RestEndpointSpec, RestReply, RestRequestContext, RestStream
from a2a_fabric.doors.rest.settings import RestDoorSettings


@dataclass(frozen=True, kw_only=True)
class RestDoorState:
    context: DoorContext
    identify: AnonymousPolicy
    rate_limit: RequestRateLimit
    settings: RestDoorSettings

    def get_base_url(self, scope: Any, head: RequestHead) -> str:
        """Where this caller reaches us."""
        return base_url_for(self.context.public_url, scope, head)


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
        """Nobody asks by name."""
        raise LookupError(name)


_log = logging.getLogger(__name__)

_MAX_KEY_LENGTH = 256
_encode = msgspec.json.Encoder().encode


class RestHttpEndpoint:
    """ASGI. What is asked for by HEAD is asked for by GET, and the server keeps the body."""

    def __init__(self, state: RestDoorState, endpoints: Mapping[str, RestEndpointSpec]) -> None:
        self._state = state
        self._endpoints = endpoints
        self._decoders = {
            method: msgspec.json.Decoder(endpoint.body) for method, endpoint in endpoints.items() if endpoint.body
        }

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        cycle = _RestRequestCycle(self._state, scope, receive, send)
        shortcut: Shortcut | None = scope.get(SHORTCUT_KEY)
        try:
            if shortcut is not None:
                await self._answer(cycle)
            else:
                cycle.identify()
                body = await cycle.receive_body()
                await run_until_disconnect(scope, receive, lambda: self._answer(cycle, body))
        except ClientDisconnected:
            return
        except asyncio.CancelledError:
            if shortcut is None or not shortcut.client_disconnected:
                raise
        except FabricError as error:
            await cycle.send_error(error)

    async def _answer(self, cycle: _RestRequestCycle, body: bytes | None = None) -> None:
        started_at = time.perf_counter()
        method = cycle.method
        endpoint = self._endpoints.get(method)
        error: FabricError | None = None
        try:
            if endpoint is None:
                raise errors.MethodNotAllowed(", ".join(sorted(self._endpoints)))
            cycle.identify()
            raw_body = await cycle.receive_body() if body is None else body
            await cycle.answer(endpoint, self._decoders.get(method), raw_body)
        except ClientDisconnected:
            raise
        except FabricError as exc:
            error = exc
            raise
        except Exception as exc:
            current_trace.set(cycle.trace)
            _log.exception("a request failed inside the gateway")
            error = InternalError()
            raise error from exc
        finally:
            cycle.log_request(endpoint, error, time.perf_counter() - started_at)
            error = None  # else it and this frame refer to each other


class _RestRequestCycle:
    """One HTTP request and its reply."""

    def __init__(self, state: RestDoorState, scope: Any, receive: Receive, send: Send) -> None:
        self._state = state
        self._scope = scope
        self._receive = receive
        self._send = send
        self._head = RequestHead(scope["headers"])
        self._rate_limit_headers: HeaderList = []
        self._principal: Principal | None = None
        self.trace = self._head.trace or new_trace()
        self.method: str = "GET" if scope["method"] == "HEAD" else scope["method"]

    def identify(self) -> Principal:
        """Who is asking; before the body is read. Raises FabricError."""
        if self._principal is None:
            self._principal = self._state.identify(self._head.credentials)
        return self._principal

    async def receive_body(self) -> bytes:
        """Raises PayloadTooLarge, TooSlow, ClientGone."""
        limit = self._state.settings.body_bytes
        try:
            body = take_buffered_body(self._scope.get(SHORTCUT_KEY), limit)
            return body if body is not None else await read_body(self._receive, self._head, limit)
        except TimeoutError as exc:
            raise errors.BodyTimeout("The body did not arrive in time") from exc

    async def answer(self, endpoint: RestEndpointSpec, decoder: msgspec.json.Decoder[Any] | None, body: bytes) -> None:
        principal = self.identify()
        try:
            self._rate_limit_headers = self._state.rate_limit.take(owner_from_principal(principal))
        except RequestRateExceeded as error:
            self._rate_limit_headers = error.headers
            raise
        context = RestRequestContext(
            principal=principal,
            trace=self.trace,
            base_url=self._state.get_base_url(self._scope, self._head),
            path=self._scope.get("path_params", {}),
            query=self._parse_query(endpoint),
            body=None if decoder is None else self._parse_body(decoder, body),
            idempotency_key=self._read_idempotency_key() if endpoint.takes_idempotency_key else None,
            last_event_id=self._head.last_event_id,
            delegation_chain=self._head.delegation_chain,
        )
        reply = await endpoint.handler(context)
        if isinstance(reply, RestStream):
            await self._send_stream(reply, principal)
        else:
            await self._send_reply(reply)

    def _parse_query(self, endpoint: RestEndpointSpec) -> Any:
        if endpoint.query is None:
            return None
        try:
            pairs = parse_qsl(
                self._scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True, max_num_fields=100
            )
            return msgspec.convert(dict(pairs), endpoint.query, strict=False)
        except (msgspec.ValidationError, ValueError) as exc:
            raise errors.bad_input_from(exc) from exc

    def _parse_body(self, decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
        content_type = self._head.get(b"content-type")
        if not may_be_json(content_type):
            raise errors.UnsupportedContentType("The content type must be application/json")
        check_json_depth(body)
        try:
            return decoder.decode(body)
        except msgspec.ValidationError as exc:
            raise errors.bad_input_from(exc) from exc
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise BadInput(f"The body is not JSON: {exc}"[:200], issue="not JSON") from exc

    def _read_idempotency_key(self) -> str | None:
        key = self._head.get(b"idempotency-key")
        if key is not None and not (0 < len(key) <= _MAX_KEY_LENGTH and key.isprintable()):
            raise BadInput("Idempotency-Key: up to 256 printable characters", field="Idempotency-Key", issue="no key")
        return key

    async def _send_reply(self, reply: RestReply) -> None:
        body = reply.body if isinstance(reply.body, bytes) else _encode(reply.body)
        headers = [*self._build_reply_headers(), *reply.headers]
        if self.method == "GET" and reply.status == 200:
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            headers += [(b"etag", etag.encode()), (b"cache-control", b"private, no-cache")]
            if matches_etag(self._head.get(b"if-none-match"), etag):
                await send_reply(self._send, 304, b"", headers)
                return
        await send_reply(self._send, reply.status, body, headers)

    async def _send_stream(self, stream: RestStream, principal: Principal) -> None:
        reply = EventStreamReply(self._state.context, self._send, self._state.settings.keep_alive)
        try:
            await reply.send_frames(stream.frames, self._build_reply_headers(), principal.principal_id)
            await reply.end()
        except FabricError as error:
            if not reply.is_open:
                raise
            await reply.end(_render_stream_error(error))
        except Exception:
            if not reply.is_open:
                raise
            current_trace.set(self.trace)
            _log.exception("a stream failed inside the gateway")
            await reply.end(_render_stream_error(InternalError()))

    async def send_error(self, error: FabricError) -> None:
        status = errors.find_row(error).status
        body = _encode(errors.build_error_body(error))
        await send_reply(self._send, status, body, [*self._build_reply_headers(), *_build_error_headers(error, status)])

    def _build_reply_headers(self) -> HeaderList:
        return [(b"x-trace-id", self.trace.trace_id.encode()), *self._rate_limit_headers]

    def log_request(self, endpoint: RestEndpointSpec | None, error: FabricError | None, seconds: float) -> None:
        name = f"{self.method} {endpoint.path if endpoint else ''}"[:64]
        code, message = (error.code, error.message) if error else (None, None)
        status = errors.find_row(error).status if error else 200
        self._state.context.log(self.trace, name, code=code, message=message, seconds=seconds, status=status)


def _build_error_headers(error: FabricError, status: int) -> HeaderList:
    if status == 401:
        return [(b"www-authenticate", b'Bearer realm="fabric"')]
    if isinstance(error, errors.MethodNotAllowed):
        return [(b"allow", error.methods.encode())]
    if isinstance(error, RateLimited):
        return [(b"retry-after", b"%d" % max(1, math.ceil(error.retry_after)))]
    return []


def _render_stream_error(error: FabricError) -> bytes:
    return encode_event("error", None, _encode(errors.build_error_body(error)))


def matches_etag(if_none_match: str | None, etag: str) -> bool:
    if if_none_match is None:
        return False
    return if_none_match.strip() == "*" or etag in [
        each.strip().removeprefix("W/") for each in if_none_match.split(",")
    ]


class NotFoundEndpoint:
    """ASGI: what is below our version and is not there."""

    def __init__(self, state: RestDoorState) -> None:
        self._state = state

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        error = errors.ResourceNotFound(f"Nothing at {scope['path'][:200]}", issue="no such path")
        await _RestRequestCycle(self._state, scope, receive, send).send_error(error)
