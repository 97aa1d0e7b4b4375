"""One path of the door: a request in, an answer out, with the headers that every reply has."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import BadInput, FabricError, InternalError, RateLimited
from a2a_fabric.core.job import owner_of
from a2a_fabric.core.trace import current_trace, new_trace
from a2a_fabric.doors.context import Receive, Send
from a2a_fabric.doors.http import (
    SHORTCUT,
    ClientGone,
    Head,
    Shortcut,
    body_at_hand,
    check_depth,
    may_be_json,
    read_body,
    while_connected,
)
from a2a_fabric.doors.replying import EventReply, Headers, frame, whole
from a2a_fabric.doors.rest import faults
from a2a_fabric.doors.rest.allowance import TooMany
from a2a_fabric.doors.rest.place import Place
from a2a_fabric.doors.rest.visit import Answer, Endpoint, Stream, Visit

_log = logging.getLogger(__name__)

_KEY_LENGTH = 256
_encode = msgspec.json.Encoder().encode


class Entrance:
    """ASGI. What is asked for by HEAD is asked for by GET, and the server keeps the body."""

    def __init__(self, place: Place, endpoints: Mapping[str, Endpoint]) -> None:
        self._place = place
        self._endpoints = endpoints
        self._decoders = {
            verb: msgspec.json.Decoder(endpoint.body) for verb, endpoint in endpoints.items() if endpoint.body
        }

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        exchange = _Exchange(self._place, scope, receive, send)
        shortcut: Shortcut | None = scope.get(SHORTCUT)
        try:
            if shortcut is not None:
                await self._answer(exchange)
            else:
                exchange.identify()
                body = await exchange.read()
                await while_connected(scope, receive, lambda: self._answer(exchange, body))
        except ClientGone:
            return
        except asyncio.CancelledError:
            if shortcut is None or not shortcut.has_left:
                raise
        except FabricError as error:
            await exchange.refuse(error)

    async def _answer(self, exchange: _Exchange, body: bytes | None = None) -> None:
        began_at = time.perf_counter()
        verb = exchange.verb
        endpoint = self._endpoints.get(verb)
        error: FabricError | None = None
        try:
            if endpoint is None:
                raise faults.MethodNotAllowed(", ".join(sorted(self._endpoints)))
            exchange.identify()
            given = await exchange.read() if body is None else body
            await exchange.answer(endpoint, self._decoders.get(verb), given)
        except ClientGone:
            raise
        except FabricError as exc:
            error = exc
            raise
        except Exception as exc:
            current_trace.set(exchange.trace)
            _log.exception("a request failed inside the gateway")
            error = InternalError()
            raise error from exc
        finally:
            exchange.note(endpoint, error, time.perf_counter() - began_at)
            error = None  # else it and this frame refer to each other


class _Exchange:
    """One HTTP request and its reply."""

    def __init__(self, place: Place, scope: Any, receive: Receive, send: Send) -> None:
        self._place = place
        self._scope = scope
        self._receive = receive
        self._send = send
        self._head = Head(scope["headers"])
        self._left: Headers = []
        self._principal: Principal | None = None
        self.trace = self._head.trace or new_trace()
        self.verb: str = "GET" if scope["method"] == "HEAD" else scope["method"]

    def identify(self) -> Principal:
        """Who is asking; before the body is read. Raises FabricError."""
        if self._principal is None:
            self._principal = self._place.identify(self._head.credentials)
        return self._principal

    async def read(self) -> bytes:
        """Raises PayloadTooLarge, TooSlow, ClientGone."""
        limit = self._place.settings.body_bytes
        try:
            body = body_at_hand(self._scope.get(SHORTCUT), limit)
            return body if body is not None else await read_body(self._receive, self._head, limit)
        except TimeoutError as exc:
            raise faults.TooSlow("The body did not arrive in time") from exc

    async def answer(self, endpoint: Endpoint, decoder: msgspec.json.Decoder[Any] | None, body: bytes) -> None:
        principal = self.identify()
        try:
            self._left = self._place.allowance.take(owner_of(principal))
        except TooMany as error:
            self._left = error.headers
            raise
        visit = Visit(
            principal=principal,
            trace=self.trace,
            base=self._place.base_of(self._scope, self._head),
            path=self._scope.get("path_params", {}),
            query=self._query(endpoint),
            body=None if decoder is None else self._body(decoder, body),
            key=self._key() if endpoint.is_keyed else None,
            after=self._head.last_event_id,
            delegation_chain=self._head.delegation_chain,
        )
        answer = await endpoint.handler(visit)
        if isinstance(answer, Stream):
            await self._stream(answer, principal)
        else:
            await self._whole(answer)

    def _query(self, endpoint: Endpoint) -> Any:
        if endpoint.query is None:
            return None
        try:
            given = parse_qsl(
                self._scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True, max_num_fields=100
            )
            return msgspec.convert(dict(given), endpoint.query, strict=False)
        except (msgspec.ValidationError, ValueError) as exc:
            raise faults.invalid(exc) from exc

    def _body(self, decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
        media = self._head.get(b"content-type")
        if not may_be_json(media):
            raise faults.WrongType("The content type must be application/json")
        check_depth(body)
        try:
            return decoder.decode(body)
        except msgspec.ValidationError as exc:
            raise faults.invalid(exc) from exc
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise BadInput(f"The body is not JSON: {exc}"[:200], issue="not JSON") from exc

    def _key(self) -> str | None:
        key = self._head.get(b"idempotency-key")
        if key is not None and not (0 < len(key) <= _KEY_LENGTH and key.isprintable()):
            raise BadInput("Idempotency-Key: up to 256 printable characters", field="Idempotency-Key", issue="no key")
        return key

    async def _whole(self, answer: Answer) -> None:
        body = answer.body if isinstance(answer.body, bytes) else _encode(answer.body)
        headers = [*self._headers(), *answer.headers]
        if self.verb == "GET" and answer.status == 200:
            tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            headers += [(b"etag", tag.encode()), (b"cache-control", b"private, no-cache")]
            if is_known(self._head.get(b"if-none-match"), tag):
                await whole(self._send, 304, b"", headers)
                return
        await whole(self._send, answer.status, body, headers)

    async def _stream(self, stream: Stream, principal: Principal) -> None:
        reply = EventReply(self._place.context, self._send, self._place.settings.keep_alive)
        try:
            await reply.send_all(stream.frames, self._headers(), principal.principal_id)
            await reply.end()
        except FabricError as error:
            if not reply.is_open:
                raise
            await reply.end(_broken(error))
        except Exception:
            if not reply.is_open:
                raise
            current_trace.set(self.trace)
            _log.exception("a stream failed inside the gateway")
            await reply.end(_broken(InternalError()))

    async def refuse(self, error: FabricError) -> None:
        status = faults.row_of(error).status
        body = _encode(faults.body_of(error))
        await whole(self._send, status, body, [*self._headers(), *_because(error, status)])

    def _headers(self) -> Headers:
        return [(b"x-trace-id", self.trace.trace_id.encode()), *self._left]

    def note(self, endpoint: Endpoint | None, error: FabricError | None, seconds: float) -> None:
        name = f"{self.verb} {endpoint.path if endpoint else ''}"[:64]
        code, message = (error.code, error.message) if error else (None, None)
        status = faults.row_of(error).status if error else 200
        self._place.context.log(self.trace, name, code=code, message=message, seconds=seconds, status=status)


def _because(error: FabricError, status: int) -> Headers:
    if status == 401:
        return [(b"www-authenticate", b'Bearer realm="fabric"')]
    if isinstance(error, faults.MethodNotAllowed):
        return [(b"allow", error.verbs.encode())]
    if isinstance(error, RateLimited):
        return [(b"retry-after", b"%d" % max(1, math.ceil(error.retry_after)))]
    return []


def _broken(error: FabricError) -> bytes:
    return frame("error", None, _encode(faults.body_of(error)))


def is_known(given: str | None, tag: str) -> bool:
    if given is None:
        return False
    return given.strip() == "*" or tag in [each.strip().removeprefix("W/") for each in given.split(",")]


class Nowhere:
    """ASGI: what is below our version and is not there."""

    def __init__(self, place: Place) -> None:
        self._place = place

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        error = faults.NothingHere(f"Nothing at {scope['path'][:200]}", issue="no such path")
        await _Exchange(self._place, scope, receive, send).refuse(error)
