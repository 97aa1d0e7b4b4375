"""An agent over HTTP: POST a capability's name and arguments, get the result; ask for an event stream, get that.

    POST /…        {"name", "arguments"} -> {"ok", "result" | "error", "trace"}, or server-sent events
    GET  /…        the manifest
    GET  /…/health {"status": "ok"}

The path is not looked at, so the agent can be mounted anywhere. A client that goes away cancels its call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeVar

import msgspec

from a2a_fabric.authoring.wire import (
    BODY_LIMIT,
    Request,
    Served,
    call_from,
    decode_request,
    encode,
    error_reply,
    event_body,
    reply_to,
)
from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import BadInput, CallTimeout, FabricError, PayloadTooLarge
from a2a_fabric.core.events import Event
from a2a_fabric.core.pipeline import ignore
from a2a_fabric.core.trace import current_trace

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
T = TypeVar("T")

BODY_TIMEOUT = 30.0

_STATUS: dict[type[FabricError], int] = {PayloadTooLarge: 413, CallTimeout: 408, BadInput: 400}


class Disconnected(Exception):
    """The client is gone; there is nobody to answer."""


class HTTPApp:
    """The ASGI application of one agent."""

    def __init__(self, agent: Served) -> None:
        self._agent = agent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003})
        elif scope["method"] == "POST":
            await self._post(scope, receive, send)
        elif scope["method"] in ("GET", "HEAD"):
            await _respond(send, 200, self._looked_up(scope))
        else:
            refusal = BadInput(f"{scope['method']} is not understood here: POST a call or GET the manifest")
            await _respond(send, 405, msgspec.json.encode(error_reply(refusal)), (b"allow", b"GET, HEAD, POST"))

    def _looked_up(self, scope: Scope) -> bytes:
        if scope["path"].rstrip("/").endswith("/health"):
            return b'{"status":"ok"}'
        host = _header(scope, b"host") or "localhost"
        uri = f"{scope.get('scheme', 'http')}://{host}{scope['path']}"
        return msgspec.json.encode(self._agent.manifest({"transport": "http", "uri": uri}))

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        wants_stream = "text/event-stream" in (_header(scope, b"accept") or "")
        try:
            request = decode_request(await _body(receive))
            call = self._call(request, scope, wants_stream)
        except Disconnected:
            return
        except FabricError as exc:
            await _respond(send, _STATUS.get(type(exc), 400), msgspec.json.encode(error_reply(exc)))
            return
        current_trace.set(call.trace)
        answer = self._stream(call, send) if wants_stream else self._reply(call, send)
        await _unless_disconnected(answer, receive)

    def _call(self, request: Request, scope: Scope, stream: bool) -> Call:
        return call_from(request, self._agent, stream=stream, traceparent=_header(scope, b"traceparent"))

    async def _reply(self, call: Call, send: Send) -> None:
        await _respond(send, 200, await reply_to(self._agent, call, ignore))

    async def _stream(self, call: Call, send: Send) -> None:
        async def emit(event: Event) -> None:
            await _send_data(send, encode(event_body(event, call.trace)))

        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        final = await reply_to(self._agent, call, emit)
        await _send_data(send, b'{"event":"final","data":' + final + b"}")
        await send({"type": "http.response.body", "body": b""})


async def _live(receive: Receive, send: Send) -> None:
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


def _header(scope: Scope, name: bytes) -> str | None:
    found = [value for key, value in scope["headers"] if key == name]
    return b",".join(found).decode("latin-1") if found else None


async def _body(receive: Receive) -> bytes:
    body = bytearray()
    more = True
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > BODY_LIMIT:
                    raise PayloadTooLarge(BODY_LIMIT)
    except TimeoutError as exc:
        raise CallTimeout(BODY_TIMEOUT) from exc
    return bytes(body)


async def _unless_disconnected(answering: Coroutine[Any, Any, None], receive: Receive) -> None:
    work = asyncio.ensure_future(answering)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        work.cancel()
        await asyncio.wait((work, gone))
    if not work.cancelled():
        work.result()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_data(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True})


async def _respond(send: Send, status: int, body: bytes, *more: tuple[bytes, bytes]) -> None:
    length = str(len(body)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", length), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
