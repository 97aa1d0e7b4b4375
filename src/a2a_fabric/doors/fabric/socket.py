"""`/mcp/call` as a WebSocket: many requests on one connection, each under an id of the caller's choosing.

A message is the same object that is POSTed, plus `id`; `{"id": …, "cancel": true}`
ends one. Events come back as they happen, and each request ends with `final`.
Closing the connection cancels all that is still running on it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.delegation import MaybeChain
from a2a_fabric.core.errors import BadInput, FabricError, InternalError, RateLimited, UpstreamFailed
from a2a_fabric.core.events import Event
from a2a_fabric.core.nesting import is_too_deep
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import Trace, current_trace, new_trace
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.fabric import wire
from a2a_fabric.doors.fabric.call import continued, headers_for
from a2a_fabric.doors.http import TOO_DEEP, Head
from a2a_fabric.operations import Prepared, Request

_log = logging.getLogger(__name__)
_AT_A_TIME = 64


class SocketEndpoint:
    def __init__(self, context: DoorContext) -> None:
        self._context = context
        self._decoder = msgspec.json.Decoder(wire.SocketRequest)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await receive()  # the handshake
        try:
            head = Head(scope["headers"])
            principal, chain = self._context.identify(head.credentials), head.delegation_chain
            self._context.stream_opened(principal.principal_id)
        except FabricError as error:
            await _refuse_handshake(error, send)
            return
        try:
            await send({"type": "websocket.accept"})
            conversation = _Conversation(self._context, principal, chain, send)
            try:
                await self._listen(conversation, receive)
            finally:
                await conversation.end()
        finally:
            self._context.stream_closed(principal.principal_id)

    async def _listen(self, conversation: _Conversation, receive: Receive) -> None:
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            raw = message.get("text") or message.get("bytes") or b""
            try:
                if is_too_deep(raw.encode() if isinstance(raw, str) else raw):
                    raise RecursionError(TOO_DEEP)
                request = self._decoder.decode(raw)
            except (msgspec.DecodeError, RecursionError, UnicodeError) as exc:
                error = BadInput(f"The message is not a Fabric call: {exc}"[:300])
                await conversation.say(wire.final_body(error, new_trace()), None)
            else:
                await conversation.hear(request)


class _Conversation:
    """All that goes on over one connection."""

    def __init__(self, context: DoorContext, principal: Principal, chain: MaybeChain, send: Send) -> None:
        self._context = context
        self._principal = principal
        self._chain = chain
        self._send = send
        self._speaking = asyncio.Lock()
        self._running: dict[str | int | None, asyncio.Task[None]] = {}

    async def say(self, body: dict[str, Any], request_id: str | int | None) -> None:
        async with self._speaking:
            try:
                await self._send({"type": "websocket.send", "text": wire.message(body, request_id)})
            except OSError:  # what ASGI says when the client is gone, perhaps before we were told
                self._cancel_all()

    async def hear(self, request: wire.SocketRequest) -> None:
        if request.cancel:
            task = self._running.get(request.id)
            if task is not None:
                task.cancel()
            return
        refused = self._refusal(request)
        if refused is not None:
            await self.say(wire.final_body(refused, new_trace()), request.id)
            return
        task = asyncio.ensure_future(self._answer(request))
        self._running[request.id] = task
        task.add_done_callback(lambda _: self._running.pop(request.id, None))

    def _refusal(self, request: wire.SocketRequest) -> FabricError | None:
        if request.id in self._running:
            return BadInput(f"A request with id {request.id!r} is still running on this connection", field="id")
        if len(self._running) >= _AT_A_TIME:
            return RateLimited(f"At most {_AT_A_TIME} requests at a time on one connection", 1.0)
        if bytes(request.arguments)[:1] != b"{":
            return BadInput("`arguments` must be an object", field="arguments")
        return None

    async def _answer(self, request: wire.SocketRequest) -> None:
        trace, started = new_trace(), time.perf_counter()
        outcome: Result | FabricError
        is_call = False
        try:
            prepared = self._context.operations.prepare(request.name, request.arguments, self._principal)
            trace = continued(prepared.trace) if prepared.trace is not None else trace
            is_call = prepared.is_call
            outcome = await self._run(prepared, trace, request.id)
        except asyncio.CancelledError:
            outcome = BadInput("Cancelled by the caller")
            outcome.observed = True
        except FabricError as error:
            outcome = error
        except Exception:
            current_trace.set(trace)
            _log.exception("a request failed inside the gateway")
            outcome = InternalError()
        self._note(request.name, trace, outcome, time.perf_counter() - started, is_call=is_call)
        try:
            await self.say(wire.final_body(outcome, trace), request.id)
        except UpstreamFailed as error:  # the answer is not JSON
            await self.say(wire.final_body(error, trace), request.id)

    async def _run(self, prepared: Prepared, trace: Trace, request_id: str | int | None) -> Result:
        async def emit(event: Event) -> None:
            await self.say(wire.event_body(event, trace), request_id)

        request = Request(trace=trace, principal=self._principal, stream=prepared.stream, delegation_chain=self._chain)
        if not prepared.stream:
            return await prepared.run(request, emit)
        self._context.stream_opened(self._principal.principal_id)
        try:
            return await prepared.run(request, emit)
        finally:
            self._context.stream_closed(self._principal.principal_id)

    def _note(self, name: str, trace: Trace, outcome: Result | FabricError, seconds: float, *, is_call: bool) -> None:
        error = outcome if isinstance(outcome, FabricError) else None
        if not (error.observed if error is not None else is_call):
            code, text = (error.code, error.message) if error else (None, None)
            self._context.log(trace, name or "?", code=code, message=text, seconds=seconds, status=101)

    async def end(self) -> None:
        """The connection is gone: nobody waits for what still runs."""
        running = list(self._running.values())
        self._cancel_all()
        await asyncio.gather(*running, return_exceptions=True)

    def _cancel_all(self) -> None:
        for task in self._running.values():
            task.cancel()


async def _refuse_handshake(error: FabricError, send: Send) -> None:
    body = wire.failure(error, new_trace(), "object")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    status = wire.http_status(error)
    headers += headers_for(error, status)
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
