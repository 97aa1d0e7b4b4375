"""`/mcp/call` over WebSocket: many requests on one connection, each with an id that the client chooses.

A message is the object that is POSTed, plus `id`; `{"id": ..., "cancel": true}` cancels a request. Events are sent as
they happen, and each request ends with `final`. Closing the connection cancels all requests running on it.

A connection may outlive its token, so each request is refused or allowed by what the credentials are worth then."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import BadInput, FabricError, InternalError, RateLimited, UpstreamFailed
from a2a_fabric.core.json_text import find_json_problem
from a2a_fabric.core.propagation import MaybeChain, Trace, current_trace, new_trace
from a2a_fabric.core.recording import note_transport
from a2a_fabric.core.result import Event, Result
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.edge import (
    build_error_headers,
    client_address,
    head_from_scope,
    reject_handshake,
)
from a2a_fabric.doors.fabric.http import (
    FabricSocketRequest,
    build_event_body,
    build_final_body,
    encode_error,
    encode_json,
    find_envelope_status,
)
from a2a_fabric.identity.resolver import Credentials
from a2a_fabric.operations import OperationRequest, PreparedOperation

_log = logging.getLogger(__name__)
_MAX_CONCURRENT_REQUESTS = 64


class FabricWebSocketEndpoint:
    def __init__(self, context: DoorContext) -> None:
        self._context = context
        self._decoder = msgspec.json.Decoder(FabricSocketRequest)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await receive()  # the handshake
        head = head_from_scope(scope)
        try:
            principal, delegation_chain = self._context.identify(head.credentials), head.delegation_chain
            note_transport("websocket")
            self._context.acquire_stream(principal.principal_id)
        except FabricError as error:
            trace, status = head.trace or new_trace(), find_envelope_status(error)
            headers = [(b"x-trace-id", trace.trace_id.encode()), *build_error_headers(error, status)]
            await self._context.failed_attempts.delay(error, client_address(scope))
            await reject_handshake(send, status, encode_error(error, trace, "object"), headers)
            self._context.log(trace, "websocket", code=error.code, message=error.message, seconds=0.0, status=status)
            return
        try:
            await send({"type": "websocket.accept"})
            connection = _Connection(self._context, head.credentials, principal, delegation_chain, send)
            try:
                await self._receive_messages(connection, receive)
            finally:
                await connection.close()
        finally:
            self._context.release_stream(principal.principal_id)

    async def _receive_messages(self, connection: _Connection, receive: Receive) -> None:
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            raw = message.get("text") or message.get("bytes") or b""
            try:
                if problem := find_json_problem(raw.encode() if isinstance(raw, str) else raw):
                    raise msgspec.DecodeError(problem)
                request = self._decoder.decode(raw)
            except (msgspec.DecodeError, RecursionError, UnicodeError) as exc:
                error = BadInput(f"The message is not a Fabric call: {exc}"[:300])
                await connection.send_message(build_final_body(error, new_trace()), None)
            else:
                await connection.handle_request(request)


class _Connection:
    """The requests that run on one connection."""

    def __init__(
        self,
        context: DoorContext,
        credentials: Credentials,
        principal: Principal,
        delegation_chain: MaybeChain,
        send: Send,
    ) -> None:
        self._context = context
        self._credentials = credentials
        self._principal = principal
        self._delegation_chain = delegation_chain
        self._send = send
        self._send_lock = asyncio.Lock()
        self._running: dict[str | int | None, asyncio.Task[None]] = {}

    async def send_message(self, body: dict[str, Any], request_id: str | int | None) -> None:
        async with self._send_lock:
            try:
                text = encode_json({"id": request_id, **body}).decode()
                await self._send({"type": "websocket.send", "text": text})
            except OSError:  # ASGI raises it when the client has disconnected
                self._cancel_all()

    async def handle_request(self, request: FabricSocketRequest) -> None:
        if request.cancel:
            task = self._running.get(request.id)
            if task is not None:
                task.cancel()
            return
        error = await self._identify_again() or self._check_request(request)
        if error is not None:
            await self.send_message(build_final_body(error, new_trace()), request.id)
            return
        task = asyncio.ensure_future(self._answer(request))
        self._running[request.id] = task
        task.add_done_callback(lambda _: self._running.pop(request.id, None))

    async def _identify_again(self) -> FabricError | None:
        try:
            await self._context.verify_credentials(self._credentials)
            self._principal = self._context.identify(self._credentials)
            note_transport("websocket")
        except FabricError as error:
            return error
        return None

    def _check_request(self, request: FabricSocketRequest) -> FabricError | None:
        if request.id in self._running:
            return BadInput(f"A request with id {request.id!r} is still running on this connection", field="id")
        if len(self._running) >= _MAX_CONCURRENT_REQUESTS:
            return RateLimited(f"At most {_MAX_CONCURRENT_REQUESTS} requests at a time on one connection", 1.0)
        if bytes(request.arguments)[:1] != b"{":
            return BadInput("`arguments` must be an object", field="arguments")
        return None

    async def _answer(self, request: FabricSocketRequest) -> None:
        trace, started_at = new_trace(), time.perf_counter()
        outcome: Result | FabricError
        is_call = False
        try:
            prepared = self._context.operations.prepare(request.name, request.arguments, self._principal)
            trace = prepared.trace.to_trace() if prepared.trace is not None else trace
            is_call = prepared.is_call
            outcome = await self._run(prepared, trace, request.id)
        except asyncio.CancelledError:
            outcome = BadInput("Cancelled by the caller")
            outcome.is_logged = True
        except FabricError as error:
            outcome = error
        except Exception:
            current_trace.set(trace)
            _log.exception("A request failed inside the gateway: %s", request.name)
            outcome = InternalError()
        self._log_request(request.name, trace, outcome, time.perf_counter() - started_at, is_call=is_call)
        try:
            await self.send_message(build_final_body(outcome, trace), request.id)
        except UpstreamFailed as error:  # the answer is not JSON
            await self.send_message(build_final_body(error, trace), request.id)

    async def _run(self, prepared: PreparedOperation, trace: Trace, request_id: str | int | None) -> Result:
        async def emit(event: Event) -> None:
            await self.send_message(build_event_body(event, trace), request_id)

        request = OperationRequest(
            trace=trace, principal=self._principal, stream=prepared.stream, delegation_chain=self._delegation_chain
        )
        if not prepared.stream:
            return await prepared.run(request, emit)
        caller = self._principal.principal_id
        self._context.acquire_stream(caller)
        try:
            return await prepared.run(request, emit)
        finally:
            self._context.release_stream(caller)

    def _log_request(
        self, name: str, trace: Trace, outcome: Result | FabricError, seconds: float, *, is_call: bool
    ) -> None:
        error = outcome if isinstance(outcome, FabricError) else None
        if not (error.is_logged if error is not None else is_call):
            code, text = (error.code, error.message) if error else (None, None)
            self._context.log(trace, name or "?", code=code, message=text, seconds=seconds, status=101)

    async def close(self) -> None:
        """The connection is closed: cancel the requests that still run on it."""
        running = list(self._running.values())
        self._cancel_all()
        await asyncio.gather(*running, return_exceptions=True)

    def _cancel_all(self) -> None:
        for task in self._running.values():
            task.cancel()
