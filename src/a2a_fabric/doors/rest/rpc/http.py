"""The HTTP endpoints of the RPC client: `POST /` and `GET /stream`.

Methods that begin with `a2a/` belong to the directory door, which may be open on this node, too."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Raw

from a2a_fabric.core.call import owner_from_principal
from a2a_fabric.core.errors import FabricError, InternalError, RateLimited, suggest_nearest
from a2a_fabric.core.json_depth import is_too_deep
from a2a_fabric.core.trace import current_trace, new_trace
from a2a_fabric.doors.context import Receive, Send
from a2a_fabric.doors.edge import (
    JSON_TOO_DEEP,
    ClientDisconnected,
    EventStreamReply,
    HeaderList,
    RequestHead,
    encode_event,
    may_be_json,
    read_body,
    replay_body,
    run_until_disconnect,
    send_reply,
)
from a2a_fabric.doors.rest import errors
from a2a_fabric.doors.rest.http import RestDoorState
from a2a_fabric.doors.rest.rate_limit import RequestRateExceeded
from a2a_fabric.doors.rest.request_context import RestRequestContext, RestStream
from a2a_fabric.doors.rest.rpc.errors import RpcProtocolError, protocol_error_from
from a2a_fabric.doors.rest.rpc.methods import RpcMethods
from a2a_fabric.doors.rest.rpc.params import RpcStreamQuery
from a2a_fabric.protocols import jsonrpc
from a2a_fabric.protocols.jsonrpc import INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR

_log = logging.getLogger(__name__)
_DIRECTORY_PATH = "/a2a"
_UNAUTHENTICATED_BODY_BYTES = (
    64 * 1024
)  # of a request that may be for the directory, by a caller whom this door refuses
_HEARTBEAT_FRAME = b'data: {"type":"heartbeat"}\n\n'


class _RpcRequest(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    params: Raw
    id: Raw


class RpcHttpEndpoint:
    """ASGI, at the root."""

    def __init__(self, state: RestDoorState, methods: RpcMethods) -> None:
        self._state = state
        self._methods = methods

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        cycle = _RpcRequestCycle(self._state, scope, send)
        try:
            refusal = cycle.check_caller()
            has_directory = _DIRECTORY_PATH in scope["app"].hot_paths
            if refusal is not None and not has_directory:
                raise refusal
            body = await cycle.receive_body(receive, _UNAUTHENTICATED_BODY_BYTES if refusal is not None else None)
            request = parse_request(body)
            if request.method.startswith("a2a/") and has_directory:
                directory_scope = {**scope, "path": _DIRECTORY_PATH, "raw_path": _DIRECTORY_PATH.encode()}
                await scope["app"](directory_scope, replay_body(body, receive), send)
                return
            if refusal is not None:
                raise refusal
            cycle.id = request.id
            await run_until_disconnect(scope, receive, lambda: cycle.run(request.method, self._build_handler(request)))
        except ClientDisconnected:
            return
        except RpcProtocolError as protocol_error:
            await cycle.send_error(protocol_error)

    def _build_handler(self, request: _RpcRequest) -> Callable[[RestRequestContext], Awaitable[Any]]:
        row = self._methods.table.get(request.method)
        if row is None:
            hint = suggest_nearest(request.method, self._methods.table)
            raise RpcProtocolError(METHOD_NOT_FOUND, f"Method not found: {request.method[:64]}{hint}", 404)

        async def work(context: RestRequestContext) -> Any:
            try:
                arguments = msgspec.json.decode(request.params, type=row.params)
            except (msgspec.DecodeError, RecursionError) as exc:
                raise errors.bad_input_from(exc) from exc
            return await row.handler(arguments, context)

        return work


class RpcStreamEndpoint:
    """ASGI, at `/stream`: for the EventSource that the client opens."""

    def __init__(self, state: RestDoorState, methods: RpcMethods) -> None:
        self._state = state
        self._methods = methods

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        cycle = _RpcRequestCycle(self._state, scope, send)

        async def work(context: RestRequestContext) -> Any:
            pairs = parse_qsl(scope.get("query_string", b"").decode("latin-1"), max_num_fields=20)
            try:
                query = msgspec.convert(dict(pairs), RpcStreamQuery)
            except msgspec.ValidationError as exc:
                raise errors.bad_input_from(exc) from exc
            return await self._methods.open_stream(query, context)

        try:
            await run_until_disconnect(scope, receive, lambda: cycle.run("stream", work))
        except ClientDisconnected:
            return
        except RpcProtocolError as protocol_error:
            await cycle.send_error(protocol_error)


def parse_request(body: bytes) -> _RpcRequest:
    """Raises Fault."""
    if is_too_deep(body):
        raise RpcProtocolError(PARSE_ERROR, f"Parse error: {JSON_TOO_DEEP}", 400)
    try:
        frame = jsonrpc.decode_frame(body)
    except jsonrpc.JSONRPCError as error:
        raise RpcProtocolError(error.code, error.message, 400) from error
    if not isinstance(frame.method, str):
        raise RpcProtocolError(INVALID_REQUEST, "Invalid Request: `method` is missing", 400)
    return _RpcRequest(method=frame.method, params=frame.read_params(), id=frame.read_id() or jsonrpc.NULL)


class _RpcRequestCycle:
    """One request and its reply."""

    def __init__(self, state: RestDoorState, scope: Any, send: Send) -> None:
        self.id = jsonrpc.NULL
        self._state = state
        self._scope = scope
        self._send = send
        self._head = RequestHead(scope["headers"])
        self._trace = self._head.trace or new_trace()
        self._rate_limit_headers: HeaderList = []

    def check_caller(self) -> RpcProtocolError | None:
        """Why this door does not let the caller in, if it does not; the directory's door may have other rules."""
        try:
            self._state.identify(self._head.credentials)
        except FabricError as error:
            self._log_request("?", error, 0.0)
            return protocol_error_from(error)
        return None

    async def receive_body(self, receive: Receive, limit: int | None = None) -> bytes:
        """Raises Fault, ClientGone."""
        if not may_be_json(self._head.get(b"content-type")):
            raise RpcProtocolError(INVALID_REQUEST, "Invalid Request: the content type must be application/json", 415)
        try:
            return await read_body(receive, self._head, limit or self._state.settings.body_bytes)
        except FabricError as error:
            raise protocol_error_from(error) from error
        except TimeoutError as exc:
            raise RpcProtocolError(INVALID_REQUEST, "Invalid Request: the body did not arrive in time", 408) from exc

    async def run(self, name: str, work: Callable[[RestRequestContext], Awaitable[Any]]) -> None:
        """Raises Fault."""
        started_at, logged_error = time.perf_counter(), None
        try:
            context = self._build_context()
            reply = await work(context)
            if isinstance(reply, RestStream):
                await self._send_stream(reply, context)
            else:
                await send_reply(self._send, 200, jsonrpc.encode_result(self.id, reply), self._build_reply_headers())
        except FabricError as error:
            logged_error = error
            protocol_error = protocol_error_from(error)
            if isinstance(error, RateLimited):
                retry_after = b"%d" % max(1, math.ceil(error.retry_after))
                self._rate_limit_headers = [*self._rate_limit_headers, (b"retry-after", retry_after)]
            raise protocol_error from error
        except (ClientDisconnected, RpcProtocolError):
            raise
        except Exception as exc:
            current_trace.set(self._trace)
            _log.exception("a request failed inside the gateway")
            logged_error = InternalError()
            raise protocol_error_from(logged_error) from exc
        finally:
            self._log_request(name, logged_error, time.perf_counter() - started_at)

    def _build_context(self) -> RestRequestContext:
        principal = self._state.identify(self._head.credentials)
        try:
            self._rate_limit_headers = self._state.rate_limit.take(owner_from_principal(principal))
        except RequestRateExceeded as error:
            self._rate_limit_headers = error.headers
            raise
        return RestRequestContext(
            principal=principal,
            trace=self._trace,
            base_url=self._state.get_base_url(self._scope, self._head),
            last_event_id=self._head.last_event_id,
            delegation_chain=self._head.delegation_chain,
            accepts_events=_accepts_events(self._head.get(b"accept")),
        )

    async def _send_stream(self, stream: RestStream, context: RestRequestContext) -> None:
        reply = EventStreamReply(self._state.context, self._send, self._state.settings.keep_alive, _HEARTBEAT_FRAME)
        try:
            await reply.send_frames(stream.frames, self._build_reply_headers(), context.principal.principal_id)
            await reply.end()
        except FabricError as error:
            if not reply.is_open:
                raise
            await reply.end(encode_event("error", None, self._encode_error(protocol_error_from(error))))
        except Exception:
            if not reply.is_open:
                raise
            current_trace.set(self._trace)
            _log.exception("a stream failed inside the gateway")
            await reply.end(encode_event("error", None, self._encode_error(protocol_error_from(InternalError()))))

    async def send_error(self, protocol_error: RpcProtocolError) -> None:
        headers = self._build_reply_headers()
        if protocol_error.status == 401:
            headers.append((b"www-authenticate", b'Bearer realm="fabric"'))
        await send_reply(self._send, protocol_error.status, self._encode_error(protocol_error), headers)

    def _encode_error(self, protocol_error: RpcProtocolError) -> bytes:
        message = errors.to_encodable_text(protocol_error.message)
        return jsonrpc.encode_error(self.id, {**protocol_error.to_object(), "message": message})

    def _build_reply_headers(self) -> HeaderList:
        return [(b"x-trace-id", self._trace.trace_id.encode()), *self._rate_limit_headers]

    def _log_request(self, name: str, error: FabricError | None, seconds: float) -> None:
        code, message = (error.code, error.message) if error else (None, None)
        status = errors.find_row(error).status if error else 200
        self._state.context.log(self._trace, name[:64], code=code, message=message, seconds=seconds, status=status)


def _accepts_events(accept: str | None) -> bool:
    return accept is not None and "text/event-stream" in accept
