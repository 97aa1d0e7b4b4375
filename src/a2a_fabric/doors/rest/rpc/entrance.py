"""`POST /` and `GET /stream`: requests without an id, answered all the same.

Methods that begin with `a2a/` belong to the directory, which may be open on this node too.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Raw

from a2a_fabric.core.errors import FabricError, InternalError, RateLimited, nearest
from a2a_fabric.core.job import owner_of
from a2a_fabric.core.nesting import is_too_deep
from a2a_fabric.core.trace import current_trace, new_trace
from a2a_fabric.doors.context import Receive, Send
from a2a_fabric.doors.http import TOO_DEEP, ClientGone, Head, again, may_be_json, read_body, while_connected
from a2a_fabric.doors.replying import EventReply, Headers, frame, whole
from a2a_fabric.doors.rest import faults
from a2a_fabric.doors.rest.allowance import TooMany
from a2a_fabric.doors.rest.place import Place
from a2a_fabric.doors.rest.rpc.faults import INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, Fault, fault_of
from a2a_fabric.doors.rest.rpc.methods import Methods
from a2a_fabric.doors.rest.rpc.params import StreamQuery
from a2a_fabric.doors.rest.visit import Stream, Visit

_log = logging.getLogger(__name__)
_DIRECTORY = "/a2a"
_STRANGERS_BYTES = 64 * 1024  # of a request that may be for the directory, by a caller whom this door refuses
_HEARTBEAT = b'data: {"type":"heartbeat"}\n\n'
_NOTHING = Raw(b"")
_NULL = b"null"
_encode = msgspec.json.Encoder().encode


class _Frame(msgspec.Struct):
    method: Raw = _NOTHING
    id: Raw = _NOTHING
    params: Raw = _NOTHING


_frames = msgspec.json.Decoder(_Frame)


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    params: bytes
    id: bytes


class RPCEntrance:
    """ASGI, at the root."""

    def __init__(self, place: Place, methods: Methods) -> None:
        self._place = place
        self._methods = methods

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        exchange = _Exchange(self._place, scope, send)
        try:
            refusal = exchange.refusal()
            has_directory = _DIRECTORY in scope["app"].hot
            if refusal is not None and not has_directory:
                raise refusal
            body = await exchange.read(receive, _STRANGERS_BYTES if refusal is not None else None)
            request = read(body)
            if request.method.startswith("a2a/") and has_directory:
                inner = {**scope, "path": _DIRECTORY, "raw_path": _DIRECTORY.encode()}
                await scope["app"](inner, again(body, receive), send)
                return
            if refusal is not None:
                raise refusal
            exchange.id = request.id
            await while_connected(scope, receive, lambda: exchange.run(request.method, self._asked(request)))
        except ClientGone:
            return
        except Fault as fault:
            await exchange.refuse(fault)

    def _asked(self, request: _Request) -> Callable[[Visit], Awaitable[Any]]:
        row = self._methods.table.get(request.method)
        if row is None:
            hint = nearest(request.method, self._methods.table)
            raise Fault(METHOD_NOT_FOUND, f"Method not found: {request.method[:64]}{hint}", 404)

        async def work(visit: Visit) -> Any:
            try:
                given = msgspec.json.decode(request.params, type=row.params)
            except (msgspec.DecodeError, RecursionError) as exc:
                raise faults.invalid(exc) from exc
            return await row.method(given, visit)

        return work


class StreamEntrance:
    """ASGI, at `/stream`: for the EventSource that the client opens."""

    def __init__(self, place: Place, methods: Methods) -> None:
        self._place = place
        self._methods = methods

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        exchange = _Exchange(self._place, scope, send)

        async def work(visit: Visit) -> Any:
            given = parse_qsl(scope.get("query_string", b"").decode("latin-1"), max_num_fields=20)
            try:
                query = msgspec.convert(dict(given), StreamQuery)
            except msgspec.ValidationError as exc:
                raise faults.invalid(exc) from exc
            return await self._methods.open_stream(query, visit)

        try:
            await while_connected(scope, receive, lambda: exchange.run("stream", work))
        except ClientGone:
            return
        except Fault as fault:
            await exchange.refuse(fault)


def read(body: bytes) -> _Request:
    """Raises Fault."""
    if is_too_deep(body):
        raise Fault(PARSE_ERROR, f"Parse error: {TOO_DEEP}", 400)
    try:
        body.decode()
        found = _frames.decode(body)
    except msgspec.ValidationError as exc:
        raise Fault(INVALID_REQUEST, "Invalid Request: one object", 400) from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise Fault(PARSE_ERROR, "Parse error: the body is not JSON", 400) from exc
    if bytes(found.method)[:1] != b'"':
        raise Fault(INVALID_REQUEST, "Invalid Request: `method` is missing", 400)
    params = bytes(found.params)
    identity = bytes(found.id)
    return _Request(
        method=msgspec.json.decode(found.method, type=str),
        params=b"{}" if params in (b"", _NULL) else params,
        id=identity if identity[:1] in (b'"', b"-") or identity[:1].isdigit() else _NULL,
    )


class _Exchange:
    """One request and its reply."""

    def __init__(self, place: Place, scope: Any, send: Send) -> None:
        self.id = _NULL
        self._place = place
        self._scope = scope
        self._send = send
        self._head = Head(scope["headers"])
        self._trace = self._head.trace or new_trace()
        self._left: Headers = []

    def refusal(self) -> Fault | None:
        """Why this door does not let the caller in, if it does not; the directory's door may have other rules."""
        try:
            self._place.identify(self._head.credentials)
        except FabricError as error:
            self._note("?", error, 0.0)
            return fault_of(error)
        return None

    async def read(self, receive: Receive, limit: int | None = None) -> bytes:
        """Raises Fault, ClientGone."""
        if not may_be_json(self._head.get(b"content-type")):
            raise Fault(INVALID_REQUEST, "Invalid Request: the content type must be application/json", 415)
        try:
            return await read_body(receive, self._head, limit or self._place.settings.body_bytes)
        except FabricError as error:
            raise fault_of(error) from error
        except TimeoutError as exc:
            raise Fault(INVALID_REQUEST, "Invalid Request: the body did not arrive in time", 408) from exc

    async def run(self, name: str, work: Callable[[Visit], Awaitable[Any]]) -> None:
        """Raises Fault."""
        began_at, failed = time.perf_counter(), None
        try:
            visit = self._visit()
            answer = await work(visit)
            if isinstance(answer, Stream):
                await self._stream(answer, visit)
            else:
                await whole(self._send, 200, self._body(b"result", _encode(answer)), self._headers())
        except FabricError as error:
            failed = error
            fault = fault_of(error)
            if isinstance(error, RateLimited):
                retry_after = b"%d" % max(1, math.ceil(error.retry_after))
                self._left = [*self._left, (b"retry-after", retry_after)]
            raise fault from error
        except (ClientGone, Fault):
            raise
        except Exception as exc:
            current_trace.set(self._trace)
            _log.exception("a request failed inside the gateway")
            failed = InternalError()
            raise fault_of(failed) from exc
        finally:
            self._note(name, failed, time.perf_counter() - began_at)

    def _visit(self) -> Visit:
        principal = self._place.identify(self._head.credentials)
        try:
            self._left = self._place.allowance.take(owner_of(principal))
        except TooMany as error:
            self._left = error.headers
            raise
        return Visit(
            principal=principal,
            trace=self._trace,
            base=self._place.base_of(self._scope, self._head),
            after=self._head.last_event_id,
            delegation_chain=self._head.delegation_chain,
            takes_events=_accepts_events(self._head.get(b"accept")),
        )

    async def _stream(self, stream: Stream, visit: Visit) -> None:
        reply = EventReply(self._place.context, self._send, self._place.settings.keep_alive, _HEARTBEAT)
        try:
            await reply.send_all(stream.frames, self._headers(), visit.principal.principal_id)
            await reply.end()
        except FabricError as error:
            if not reply.is_open:
                raise
            await reply.end(frame("error", None, self._body(b"error", _told(fault_of(error)))))
        except Exception:
            if not reply.is_open:
                raise
            current_trace.set(self._trace)
            _log.exception("a stream failed inside the gateway")
            await reply.end(frame("error", None, self._body(b"error", _told(fault_of(InternalError())))))

    async def refuse(self, fault: Fault) -> None:
        headers = self._headers()
        if fault.status == 401:
            headers.append((b"www-authenticate", b'Bearer realm="fabric"'))
        await whole(self._send, fault.status, self._body(b"error", _told(fault)), headers)

    def _body(self, key: bytes, value: bytes) -> bytes:
        return b'{"jsonrpc":"2.0","id":%b,"%b":%b}' % (self.id, key, value)

    def _headers(self) -> Headers:
        return [(b"x-trace-id", self._trace.trace_id.encode()), *self._left]

    def _note(self, name: str, error: FabricError | None, seconds: float) -> None:
        code, message = (error.code, error.message) if error else (None, None)
        status = faults.row_of(error).status if error else 200
        self._place.context.log(self._trace, name[:64], code=code, message=message, seconds=seconds, status=status)


def _told(fault: Fault) -> bytes:
    body: dict[str, Any] = {"code": fault.code, "message": faults.speakable(fault.message)}
    return _encode(body if fault.data is None else {**body, "data": fault.data})


def _accepts_events(accept: str | None) -> bool:
    return accept is not None and "text/event-stream" in accept
