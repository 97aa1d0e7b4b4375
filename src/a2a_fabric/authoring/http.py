"""The ASGI application of an agent: POST a capability's name and arguments, get the result or an event stream.

    POST /…        {"name", "arguments"} -> {"ok", "result" | "error", "trace"}, or server-sent events
    GET  /…        the manifest
    GET  /…/health {"status": "ok"}

The path is ignored, so the agent can be mounted anywhere. A client that disconnects cancels its call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

import msgspec

from a2a_fabric.authoring import contract
from a2a_fabric.core.call import Call, ignore_event
from a2a_fabric.core.errors import (
    AuthExpired,
    AuthInvalid,
    BadInput,
    CallTimeout,
    FabricError,
    PayloadTooLarge,
    RateLimited,
)
from a2a_fabric.core.forwarding import IDENTITY_HEADER
from a2a_fabric.core.propagation import current_trace
from a2a_fabric.core.result import Event

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_TIMEOUT = 30.0

_STATUS: dict[type[FabricError], int] = {
    PayloadTooLarge: 413,
    CallTimeout: 408,
    BadInput: 400,
    AuthInvalid: 401,
    AuthExpired: 401,
    RateLimited: 429,
}
_IDENTITY_HEADER = IDENTITY_HEADER.encode()


class RequestDisconnected(Exception):
    """The client has disconnected, so no reply is sent."""


class HTTPApp:
    """The ASGI application of one agent."""

    def __init__(self, agent: contract.ServedAgent) -> None:
        self._agent = agent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003})
        elif scope["method"] == "POST":
            await self._post(scope, receive, send)
        elif scope["method"] in ("GET", "HEAD"):
            await _respond(send, 200, self._answer_get(scope))
        else:
            refusal = BadInput(f"{scope['method']} is not supported: POST a call or GET the manifest")
            body = msgspec.json.encode(contract.build_error_reply(refusal))
            await _respond(send, 405, body, (b"allow", b"GET, HEAD, POST"))

    def _answer_get(self, scope: Scope) -> bytes:
        if scope["path"].rstrip("/").endswith("/health"):
            return b'{"status":"ok"}'
        host = _read_header(scope, b"host") or "localhost"
        uri = f"{scope.get('scheme', 'http')}://{host}{scope['path']}"
        return msgspec.json.encode(self._agent.manifest({"transport": "http", "uri": uri}))

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        wants_stream = "text/event-stream" in (_read_header(scope, b"accept") or "")
        try:
            body = await _read_body(receive)
            request = contract.decode_request(body)
            contract.check_identity(self._agent, _read_header(scope, _IDENTITY_HEADER), body, request.name)
            traceparent = _read_header(scope, b"traceparent")
            call = contract.call_from_request(request, self._agent, stream=wants_stream, traceparent=traceparent)
        except RequestDisconnected:
            return
        except FabricError as exc:
            await _respond(send, _STATUS.get(type(exc), 400), msgspec.json.encode(contract.build_error_reply(exc)))
            return
        current_trace.set(call.trace)
        answer = self._send_stream(call, send) if wants_stream else self._send_reply(call, send)
        await _run_until_disconnect(answer, receive)

    async def _send_reply(self, call: Call, send: Send) -> None:
        await _respond(send, 200, await contract.answer_call(self._agent, call, ignore_event))

    async def _send_stream(self, call: Call, send: Send) -> None:
        async def emit(event: Event) -> None:
            await _send_data(send, contract.encode_json(contract.build_event(event, call.trace)))

        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        final = await contract.answer_call(self._agent, call, emit)
        await _send_data(send, b'{"event":"final","data":' + final + b"}")
        await send({"type": "http.response.body", "body": b""})


def _read_header(scope: Scope, name: bytes) -> str | None:
    values = [value for key, value in scope["headers"] if key == name]
    return b",".join(values).decode("latin-1") if values else None


async def _read_body(receive: Receive) -> bytes:
    body = bytearray()
    has_more = True
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            while has_more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RequestDisconnected
                body += message.get("body", b"")
                has_more = message.get("more_body", False)
                if len(body) > contract.BODY_LIMIT:
                    raise PayloadTooLarge(contract.BODY_LIMIT)
    except TimeoutError as exc:
        raise CallTimeout(BODY_TIMEOUT) from exc
    return bytes(body)


async def _run_until_disconnect(coroutine: Coroutine[Any, Any, None], receive: Receive) -> None:
    work_task = asyncio.ensure_future(coroutine)
    disconnect_task = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((work_task, disconnect_task), return_when=asyncio.FIRST_COMPLETED)
    finally:
        disconnect_task.cancel()
        work_task.cancel()
        await asyncio.wait((work_task, disconnect_task))
    if not work_task.cancelled():
        work_task.result()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_data(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True})


async def _respond(send: Send, status: int, body: bytes, *extra_headers: tuple[bytes, bytes]) -> None:
    length = str(len(body)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", length), *extra_headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
