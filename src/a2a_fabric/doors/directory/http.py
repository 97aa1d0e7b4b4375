"""The HTTP endpoints of the directory: `/a2a`, one path per method, and `/a2a/agents/{id}`.

A reply has the form of its request. A batch is answered as a whole and in its own order: methods that change the
directory run first, one after the other, all others concurrently. An agent id may contain slashes, so it is read from
the path as the client encoded it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import FabricError, InternalError
from a2a_fabric.core.json_depth import is_too_deep
from a2a_fabric.core.trace import current_trace, new_trace
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.directory import jsonrpc
from a2a_fabric.doors.directory.errors import DirectoryProtocolError, protocol_error_from
from a2a_fabric.doors.directory.jsonrpc import DirectoryRpcRequest, InvalidRpcRequest, RpcPayload
from a2a_fabric.doors.directory.methods import DirectoryMethods
from a2a_fabric.doors.directory.request_context import DirectoryRequestContext, DirectoryStream
from a2a_fabric.doors.directory.settings import DirectoryDoorSettings
from a2a_fabric.doors.edge import (
    JSON_TOO_DEEP,
    SHORTCUT_KEY,
    AnonymousPolicy,
    ClientDisconnected,
    EventStreamReply,
    HeaderList,
    RequestHead,
    Shortcut,
    base_url_for,
    encode_event,
    may_be_json,
    read_body,
    run_until_disconnect,
    send_reply,
    take_buffered_body,
)
from a2a_fabric.protocols.jsonrpc import INVALID_REQUEST, PARSE_ERROR


@dataclass(frozen=True, kw_only=True)
class DirectoryRoute:
    """What a path stands for: the method of bare bodies, that of a GET and what it is asked with, and whose it is."""

    method: str | None = None
    method_of_get: str | None = None
    params_of_get: Mapping[str, Any] = field(default_factory=dict)
    agent_id: str | None = None
    accepts_post: bool = True

    @property
    def allowed_methods(self) -> str:
        return ", ".join(["POST"] * self.accepts_post + ["GET"] * (self.method_of_get is not None))


@dataclass(frozen=True, kw_only=True)
class DirectoryDoorState:
    """What all addresses of the door have in common."""

    context: DoorContext
    methods: DirectoryMethods
    identify: AnonymousPolicy
    settings: DirectoryDoorSettings

    def get_base_url(self, scope: Any, head: RequestHead) -> str:
        """Where this caller reaches us."""
        return base_url_for(self.context.public_url, scope, head)


_log = logging.getLogger(__name__)

_LIST_PARAMS = frozenset({"types", "capabilities"})
_NUMBER_PARAMS = frozenset({"after", "limit"})


class DirectoryHttpEndpoint:
    """ASGI."""

    def __init__(self, state: DirectoryDoorState, route: DirectoryRoute) -> None:
        self._state = state
        self._route = route

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        cycle = _DirectoryRequestCycle(self._state, self._route, scope, send)
        shortcut: Shortcut | None = scope.get(SHORTCUT_KEY)
        try:
            principal = cycle.identify()
            payload = await cycle.read_payload(receive, shortcut)
            if shortcut is not None:
                await cycle.answer(payload, principal)
            else:
                await run_until_disconnect(scope, receive, lambda: cycle.answer(payload, principal))
        except ClientDisconnected:
            return
        except asyncio.CancelledError:
            if shortcut is None or not shortcut.client_disconnected:
                raise
        except DirectoryProtocolError as protocol_error:
            await cycle.send_error(protocol_error)
            protocol_error.__traceback__ = None  # the exchange may keep the fault, and its frames keep the exchange


class _DirectoryRequestCycle:
    """One HTTP request and its reply."""

    def __init__(self, state: DirectoryDoorState, route: DirectoryRoute, scope: Any, send: Send) -> None:
        self._state = state
        self._route = route
        self._scope = scope
        self._send = send
        self._head = RequestHead(scope["headers"])
        self._trace = self._head.trace or new_trace()
        self._payload: RpcPayload | None = None

    async def read_payload(self, receive: Receive, shortcut: Shortcut | None) -> RpcPayload:
        """Raises Fault, ClientGone."""
        http_method, route = self._scope["method"], self._route
        if http_method in ("GET", "HEAD") and route.method_of_get is not None:
            query = _params_from_query(self._scope.get("query_string", b""))
            return RpcPayload(
                requests=(jsonrpc.build_bare_request(route.method_of_get, {**query, **route.params_of_get}),)
            )
        if http_method != "POST" or not route.accepts_post:
            raise DirectoryProtocolError(INVALID_REQUEST, f"Invalid Request: use {route.allowed_methods}", status=405)
        self._check_content_type()
        body = await self._receive_body(receive, shortcut)
        if is_too_deep(body):
            raise DirectoryProtocolError(PARSE_ERROR, f"Parse error: {JSON_TOO_DEEP}")
        return jsonrpc.parse_payload(body, route.method, self._state.settings.max_batch)

    def _check_content_type(self) -> None:
        if not may_be_json(self._head.get(b"content-type")):
            raise DirectoryProtocolError(
                INVALID_REQUEST, "Invalid Request: the content type must be application/json", status=415
            )

    async def _receive_body(self, receive: Receive, shortcut: Shortcut | None) -> bytes:
        limit = self._state.context.body_bytes
        try:
            body = take_buffered_body(shortcut, limit)
            return body if body is not None else await read_body(receive, self._head, limit)
        except FabricError as error:
            raise protocol_error_from(error, self._trace.trace_id) from error
        except TimeoutError as exc:
            raise DirectoryProtocolError(
                INVALID_REQUEST, "Invalid Request: the body did not arrive in time", status=408
            ) from exc

    def identify(self) -> Principal:
        """Who is asking; before the body is read. Raises Fault."""
        try:
            return self._state.identify(self._head.credentials)
        except FabricError as error:
            raise protocol_error_from(error, self._trace.trace_id) from error

    async def answer(self, payload: RpcPayload, principal: Principal) -> None:
        """Raises Fault for what concerns the request as a whole."""
        self._payload = payload
        if payload.is_batch:
            replies = [reply for reply in await self._answer_batch(payload.requests, principal) if reply is not None]
            body = b"[%b]" % b",".join(replies)
            await send_reply(self._send, 200 if replies else 204, body if replies else b"", self._build_reply_headers())
            return
        [rpc_request] = payload.requests
        if isinstance(rpc_request, InvalidRpcRequest):
            raise rpc_request.protocol_error
        await self._answer_one(rpc_request, principal)

    async def _answer_one(self, rpc_request: DirectoryRpcRequest, principal: Principal) -> None:
        try:
            result = await self._run_method(rpc_request, principal)
        except DirectoryProtocolError:
            if not rpc_request.is_notification:
                raise
            result = {}
        if isinstance(result, DirectoryStream):
            await self._send_stream(rpc_request, result, principal)
        elif rpc_request.is_notification:
            await send_reply(self._send, 204, b"", self._build_reply_headers())
        else:
            await send_reply(self._send, 200, jsonrpc.encode_result(rpc_request, result), self._build_reply_headers())

    async def _answer_batch(
        self, requests: Sequence[DirectoryRpcRequest | InvalidRpcRequest], principal: Principal
    ) -> list[bytes | None]:
        replies: dict[int, bytes | None] = {}
        concurrent: list[int] = []
        for index, rpc_request in enumerate(requests):
            method = (
                self._state.methods.get(rpc_request.method) if isinstance(rpc_request, DirectoryRpcRequest) else None
            )
            if method is None or method.runs_first:
                replies[index] = await self._answer_in_batch(rpc_request, principal)
            else:
                concurrent.append(index)
        async with asyncio.TaskGroup() as group:
            running = {
                position: group.create_task(self._answer_in_batch(requests[position], principal))
                for position in concurrent
            }
        replies |= {index: task.result() for index, task in running.items()}
        return [replies[index] for index in range(len(requests))]

    async def _answer_in_batch(
        self, rpc_request: DirectoryRpcRequest | InvalidRpcRequest, principal: Principal
    ) -> bytes | None:
        """None for a notification."""
        if isinstance(rpc_request, InvalidRpcRequest):
            return jsonrpc.encode_error(rpc_request.protocol_error, rpc_request)
        try:
            result = await self._run_method(rpc_request, principal)
        except DirectoryProtocolError as protocol_error:
            return None if rpc_request.is_notification else jsonrpc.encode_error(protocol_error, rpc_request)
        return None if rpc_request.is_notification else jsonrpc.encode_result(rpc_request, result)

    async def _run_method(
        self, rpc_request: DirectoryRpcRequest, principal: Principal
    ) -> dict[str, Any] | DirectoryStream:
        """Raises Fault only."""
        name = self._choose_method_name(rpc_request)
        try:
            chain = self._head.delegation_chain
        except FabricError as error:
            raise protocol_error_from(error, self._trace.trace_id) from error
        context = DirectoryRequestContext(
            principal=principal,
            trace=self._head.trace or (self._trace if len(self._requests) == 1 else new_trace()),
            base_url=self._state.get_base_url(self._scope, self._head),
            agent_id=self._route.agent_id,
            last_event_id=self._head.last_event_id,
            expects_reply=not rpc_request.is_notification,
            delegation_chain=chain,
        )
        started_at = time.perf_counter()
        protocol_error: DirectoryProtocolError | None = None
        try:
            method = self._state.methods.find(
                name, at_agent=self._route.agent_id is not None and not rpc_request.is_bare
            )
            if method.is_streaming and (self._is_batch or rpc_request.is_notification):
                raise DirectoryProtocolError(INVALID_REQUEST, f"Invalid Request: {name} must be a request of its own")
            return await method(rpc_request, context)
        except DirectoryProtocolError as exc:
            protocol_error = exc
            raise
        except Exception as exc:
            current_trace.set(context.trace)
            _log.exception("a request failed inside the gateway")
            protocol_error = protocol_error_from(InternalError(), context.trace.trace_id)
            raise protocol_error from exc
        finally:
            self._log_request(context, name, protocol_error, time.perf_counter() - started_at)
            protocol_error = None  # else it and this frame refer to each other

    def _choose_method_name(self, rpc_request: DirectoryRpcRequest) -> str:
        """Some clients send the same method whatever they want, to the right address."""
        path_method = self._route.method
        path_decides = self._state.settings.path_wins and self._route.agent_id is None and not rpc_request.is_bare
        return path_method if path_decides and path_method is not None else rpc_request.method

    @property
    def _is_batch(self) -> bool:
        return self._payload is not None and self._payload.is_batch

    @property
    def _requests(self) -> Sequence[DirectoryRpcRequest | InvalidRpcRequest]:
        return self._payload.requests if self._payload is not None else ()

    async def _send_stream(
        self, rpc_request: DirectoryRpcRequest, stream: DirectoryStream, principal: Principal
    ) -> None:
        if not _accepts_events(self._head.get(b"accept")):
            await self._send_answer_only(rpc_request, stream)
            return
        reply = EventStreamReply(self._state.context, self._send, self._state.settings.keep_alive)

        try:
            await reply.send_frames(
                _encode_frames(rpc_request, stream), self._build_reply_headers(), principal.principal_id
            )
            await reply.end()
        except FabricError as error:
            if not reply.is_open:
                raise protocol_error_from(error, self._trace.trace_id) from error
            await reply.end(self._render_stream_error(rpc_request, error))
        except Exception:
            if not reply.is_open:
                raise
            current_trace.set(self._trace)
            _log.exception("a stream failed inside the gateway")
            await reply.end(self._render_stream_error(rpc_request, InternalError()))

    def _render_stream_error(self, rpc_request: DirectoryRpcRequest, error: FabricError) -> bytes:
        return encode_event(
            "error", None, jsonrpc.encode_error(protocol_error_from(error, self._trace.trace_id), rpc_request)
        )

    async def _send_answer_only(self, rpc_request: DirectoryRpcRequest, stream: DirectoryStream) -> None:
        """The answer alone, for a client that takes nothing else."""
        async with aclosing(stream.events) as events:
            if not stream.is_finite:
                raise DirectoryProtocolError(
                    INVALID_REQUEST, "Invalid Request: accept text/event-stream", status=406, bare_status=406
                )
            try:
                async for event in events:
                    if event.is_answer:
                        await send_reply(
                            self._send, 200, jsonrpc.encode_result(rpc_request, event.body), self._build_reply_headers()
                        )
                        return
            except FabricError as error:
                raise protocol_error_from(error, self._trace.trace_id) from error

    async def send_error(self, protocol_error: DirectoryProtocolError) -> None:
        rpc_request = self._requests[0] if len(self._requests) == 1 else None
        is_bare = isinstance(rpc_request, DirectoryRpcRequest) and rpc_request.is_bare
        status = protocol_error.bare_status if is_bare and protocol_error.status == 200 else protocol_error.status
        body = jsonrpc.encode_error(protocol_error, None if self._is_batch else rpc_request)
        await send_reply(
            self._send, status, body, [*self._build_reply_headers(), *self._build_error_headers(protocol_error, status)]
        )

    def _build_error_headers(self, protocol_error: DirectoryProtocolError, status: int) -> HeaderList:
        if status == 401:
            return [(b"www-authenticate", b'Bearer realm="fabric"')]
        if status == 405:
            return [(b"allow", self._route.allowed_methods.encode())]
        if protocol_error.retry_after is not None:
            return [(b"retry-after", b"%d" % max(1, round(protocol_error.retry_after + 0.499)))]
        return []

    def _build_reply_headers(self) -> HeaderList:
        return [(b"x-trace-id", self._trace.trace_id.encode())]

    def _log_request(
        self,
        context: DirectoryRequestContext,
        method: str,
        protocol_error: DirectoryProtocolError | None,
        seconds: float,
    ) -> None:
        if protocol_error is None and method == "a2a/task":
            return  # the call has its own line
        code, message = (str(protocol_error.code), protocol_error.detail) if protocol_error else (None, None)
        status = protocol_error.status if protocol_error else 200
        self._state.context.log(context.trace, method[:64], code=code, message=message, seconds=seconds, status=status)


async def _encode_frames(rpc_request: DirectoryRpcRequest, stream: DirectoryStream) -> AsyncGenerator[bytes]:
    async with aclosing(stream.events) as events:
        async for event in events:
            data = (
                jsonrpc.encode_result(rpc_request, event.body)
                if event.is_answer
                else jsonrpc.encode_notification(rpc_request, event.body)
            )
            yield encode_event(event.event, event.number, data)


def _accepts_events(accept: str | None) -> bool:
    return accept is None or any(kind in accept for kind in ("text/event-stream", "text/*", "*/*"))


def _params_from_query(query: bytes) -> dict[str, Any]:
    """The parameters of a stream that a browser opens; lists are separated by commas."""
    params: dict[str, Any] = {}
    for name, value in parse_qsl(query.decode("latin-1"), max_num_fields=20):
        if name in _LIST_PARAMS:
            params[name] = value.split(",")
        else:
            params[name] = int(value) if name in _NUMBER_PARAMS and value.isascii() and value.isdigit() else value
    return params


AGENTS_PATH = "/a2a/agents"
_AGENTS_PREFIX = f"{AGENTS_PATH}/"
_RPC_SUFFIX = "/rpc"


class DirectoryAgentEndpoint:
    """ASGI."""

    def __init__(self, state: DirectoryDoorState) -> None:
        self._state = state

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await DirectoryHttpEndpoint(self._state, route_from_path(_read_raw_path(scope)))(scope, receive, send)


def route_from_path(raw_path: str) -> DirectoryRoute:
    remainder = raw_path.removeprefix(_AGENTS_PREFIX)
    is_rpc = remainder.endswith(_RPC_SUFFIX)
    agent_id = unquote(remainder.removesuffix(_RPC_SUFFIX) if is_rpc else remainder, errors="replace")
    params = {"agentId": agent_id}
    if not is_rpc:
        return DirectoryRoute(method_of_get="a2a/agent", params_of_get=params, accepts_post=False)
    return DirectoryRoute(method="a2a/task", method_of_get="a2a/agent", params_of_get=params, agent_id=agent_id)


def _read_raw_path(scope: Any) -> str:
    """As it was sent; servers that do not tell leave encoded slashes undecided."""
    raw = scope.get("raw_path")
    return raw.decode("latin-1") if raw else quote(scope["path"])
