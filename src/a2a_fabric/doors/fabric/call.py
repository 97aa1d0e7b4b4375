"""`POST /mcp/call`, the hot path: one request decoded once, one reply encoded once, no framework between."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable
from functools import partial
from typing import Any

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import BadInput, FabricError, InternalError, RateLimited
from a2a_fabric.core.nesting import SHALLOW
from a2a_fabric.core.pipeline import ignore
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import Trace, continue_trace, current_trace, new_trace
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.fabric import wire
from a2a_fabric.doors.fabric.stream import EventStream
from a2a_fabric.doors.http import (
    SHORTCUT,
    ClientGone,
    Head,
    Shortcut,
    body_at_hand,
    check_depth,
    head_of,
    may_be_json,
    read_body,
    while_connected,
)
from a2a_fabric.operations import Prepared, Request, TraceRef

_log = logging.getLogger(__name__)

# Replies to these also carry their keys beside the envelope (older clients read them there).
_BESIDE = frozenset(
    {
        "fabric.agent.list",
        "fabric.agent.describe",
        "fabric.route.preview",
        "fabric.health",
        "fabric.tool.list",
        "fabric.tool.describe",
    }
)


class CallEndpoint:
    def __init__(self, context: DoorContext, error_format: wire.ErrorFormat, keep_alive: float) -> None:
        self._context = context
        self._error_format: wire.ErrorFormat = error_format
        self._keep_alive = keep_alive
        self._decoder = msgspec.json.Decoder(wire.WireRequest)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await _send(send, 405, wire.failure(BadInput("Use POST"), new_trace(), self._error_format), _ALLOW_POST)
            return
        shortcut: Shortcut | None = scope.get(SHORTCUT)
        exchange = _Exchange(self._context, head_of(scope), shortcut, self._error_format, self._keep_alive)
        try:
            exchange.principal = self._context.identify(exchange.head.credentials)  # before the body is read
            body = body_at_hand(shortcut, self._context.body_bytes)
            if body is None:
                body = await read_body(receive, exchange.head, self._context.body_bytes)
            prepared = exchange.understand(body, self._decoder)
            if shortcut is None:
                await while_connected(scope, receive, partial(exchange.answer, prepared, send))
            elif prepared.stream:
                await exchange.answer(prepared, send)
            else:
                exchange.reply(await prepared.run(exchange.request(), ignore), shortcut)
        except ClientGone:
            return
        except asyncio.CancelledError:
            if shortcut is None or not shortcut.has_left:
                raise
        except FabricError as error:
            await exchange.refuse(error, send)
        except TimeoutError:
            await exchange.refuse(BadInput("The request body did not arrive in time"), send, status=408)
        except Exception:
            current_trace.set(exchange.trace)
            _log.exception("a request failed inside the gateway")
            await exchange.refuse(InternalError(), send)


class _Exchange:
    """One request and its reply."""

    __slots__ = (
        "_context",
        "_error_format",
        "_is_call",
        "_keep_alive",
        "_name",
        "_replying",
        "_shortcut",
        "_started",
        "_status",
        "head",
        "principal",
        "trace",
    )

    def __init__(
        self,
        context: DoorContext,
        head: Head,
        shortcut: Shortcut | None,
        error_format: wire.ErrorFormat,
        keep_alive: float,
    ) -> None:
        self.head = head
        self._shortcut = shortcut
        self.principal: Principal
        self.trace: Trace = new_trace()
        self._context = context
        self._error_format: wire.ErrorFormat = error_format
        self._keep_alive = keep_alive
        self._started = time.perf_counter()
        self._name = "?"
        self._is_call = False
        self._replying = False
        self._status: int | None = None

    def understand(self, body: bytes, decoder: msgspec.json.Decoder[wire.WireRequest]) -> Prepared:
        """Shape first, then the trace, then the arguments."""
        self._status = 400
        request = self._decoded(body, decoder)
        self._status = None
        self._name = request.name
        if self.head.has_journey:
            self.trace = self.head.trace or self.trace
        prepared = self._context.operations.prepare(request.name, request.arguments, self.principal)
        if prepared.trace is not None:
            self.trace = continued(prepared.trace)
        self._is_call = prepared.is_call
        return prepared

    def _decoded(self, body: bytes, decoder: msgspec.json.Decoder[wire.WireRequest]) -> wire.WireRequest:
        unfit = self.head.concluded.get("fabric: no json")
        if unfit is None:
            unfit = self.head.concluded["fabric: no json"] = _unfit(self.head.get(b"content-type"))
        if unfit:
            self._status = 415
            raise BadInput(f"The content type must be application/json, not '{unfit[:80]}'")
        if len(body) > SHALLOW:
            check_depth(body)
        try:
            request = decoder.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
            raise BadInput(f"The request is not a Fabric call: {exc}"[:300]) from exc
        if bytes(request.arguments)[:1] != b"{":
            raise BadInput("The request is not a Fabric call: `arguments` must be an object", field="arguments")
        return request

    def answer(self, prepared: Prepared, send: Send) -> Awaitable[None]:
        is_heard = prepared.stream and _accepts_events(self.head.get(b"accept"))
        return self._answer_as_events(prepared, send) if is_heard else self._answer_at_once(prepared, send)

    async def _answer_at_once(self, prepared: Prepared, send: Send) -> None:
        result = await prepared.run(self.request(), ignore)
        if self._shortcut is not None:
            self.reply(result, self._shortcut)
            return
        body = self._body(result)
        await _send(send, 200, body)
        self._note(None, 200)

    def request(self) -> Request:
        if not self.head.has_journey:
            return Request(trace=self.trace, principal=self.principal)
        return Request(trace=self.trace, principal=self.principal, delegation_chain=self.head.delegation_chain)

    def reply(self, result: Result, shortcut: Shortcut) -> None:
        shortcut.reply(200, _JSON_HEAD, self._body(result))
        if not self._is_call:
            self._note(None, 200)

    def _body(self, result: Result) -> bytes:
        """Raises UpstreamFailed; after this there is no way back to another answer."""
        body = wire.reply(result, self.trace, beside=self._name in _BESIDE)
        self._replying = True
        return body

    async def _answer_as_events(self, prepared: Prepared, send: Send) -> None:
        after = prepared.after if prepared.after is None else self.head.last_event_id or prepared.after
        chain = self.head.delegation_chain
        request = Request(trace=self.trace, principal=self.principal, stream=True, after=after, delegation_chain=chain)
        stream = EventStream(
            send, self._shortcut, self.trace, self._context, self.principal.principal_id, self._keep_alive, after
        )
        async with stream:
            try:
                if after is not None:
                    await stream.open()
                await stream.close_with(await prepared.run(request, stream.emit))
            except ClientGone:
                raise
            except FabricError as error:
                if not stream.is_open and wire.http_status(error) != 200:
                    raise
                await stream.close_with(error)
                self._note(error, 200)
            except Exception:
                if not stream.is_open:
                    raise
                current_trace.set(self.trace)
                _log.exception("a stream failed inside the gateway")
                await stream.close_with(InternalError())
            else:
                self._note(None, 200)

    async def refuse(self, error: FabricError, send: Send, status: int | None = None) -> None:
        if self._replying:
            return
        status = status or self._status or wire.http_status(error)
        headers = headers_for(error, status)
        await _send(send, status, wire.failure(error, self.trace, self._form()), headers)
        self._note(error, status)

    def _form(self) -> wire.ErrorFormat:
        match self.head.error_format:
            case "string" | "object" as wanted:
                return wanted
        return self._error_format

    def _note(self, error: FabricError | None, status: int) -> None:
        was_logged = error.observed if error is not None else self._is_call
        if not was_logged:
            code, message = (error.code, error.message) if error else (None, None)
            seconds = time.perf_counter() - self._started
            self._context.log(self.trace, self._name, code=code, message=message, seconds=seconds, status=status)


def continued(ref: TraceRef) -> Trace:
    try:
        return continue_trace(ref.trace_id, ref.span_id or ref.parent_span_id)
    except ValueError as exc:
        raise BadInput(f"Bad trace: {exc}", field="trace") from exc


def _unfit(content_type: str | None) -> str:
    """A type that is not JSON; nothing, if it is or may be."""
    return "" if content_type is None or may_be_json(content_type) else content_type or "nothing"


def _accepts_events(accept: str | None) -> bool:
    return accept is None or "text/event-stream" in accept or "*/*" in accept or "text/*" in accept


_JSON = (b"content-type", b"application/json")
_JSON_HEAD = b"content-type: application/json\r\n"
_ALLOW_POST = [(b"allow", b"POST")]


def headers_for(error: FabricError, status: int) -> list[tuple[bytes, bytes]]:
    if status == 401:
        return [(b"www-authenticate", b'Bearer realm="fabric"')]
    if isinstance(error, RateLimited):
        return [(b"retry-after", str(max(1, round(error.retry_after + 0.499))).encode())]
    return []


async def _send(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] = []) -> None:  # noqa: B006
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [_JSON, length, *headers]})
    await send({"type": "http.response.body", "body": body})
