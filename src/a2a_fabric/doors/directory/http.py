"""The HTTP cycle of the directory: `/a2a`, one path per method, and `/a2a/agents/{id}`; its methods by name.

A reply has the form of its request. A batch is answered as a whole and in its own order: methods that change the
directory run first, one after the other, all others concurrently. An agent id may contain slashes, so it is read from
the path as the client encoded it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, quote, unquote

import msgspec

from a2a_fabric.core.errors import FabricError, suggest_nearest
from a2a_fabric.core.json_text import find_json_problem
from a2a_fabric.core.propagation import Trace, new_trace
from a2a_fabric.doors.directory import jsonrpc
from a2a_fabric.doors.directory.agents import (
    AgentDirectory,
    DirectoryAgentParams,
    DirectoryRegistration,
    DiscoverParams,
    HeartbeatParams,
    RegisterParams,
    UnregisterParams,
)
from a2a_fabric.doors.directory.events import DirectoryEvents, DirectoryEventsParams
from a2a_fabric.doors.directory.jsonrpc import (
    DirectoryProtocolError,
    DirectoryRequestContext,
    DirectoryRpcRequest,
    DirectoryStream,
    InvalidRpcRequest,
    RpcRequests,
    protocol_error_from,
)
from a2a_fabric.doors.directory.task_chains import DirectoryTaskParams
from a2a_fabric.doors.directory.tasks import DirectoryAnswerParams, DirectoryTaskIdParams, DirectoryTasks
from a2a_fabric.doors.edge import (
    CycleEndpoint,
    DoorEdge,
    DoorError,
    ErrorReply,
    EventStream,
    HttpReply,
    RequestCycle,
    accepts_events,
    encode_event,
    split_validation_error,
)
from a2a_fabric.protocols.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR

P = TypeVar("P")

_MAX_ECHO = 64


class DirectoryMethod(Generic[P]):
    """`allowed_at_agent`: also served at an agent's own path. `runs_first`: in a batch it runs before the rest."""

    def __init__(
        self,
        params: type[P],
        handler: Callable[[P, DirectoryRequestContext], Awaitable[dict[str, Any] | DirectoryStream]],
        *,
        allowed_at_agent: bool = False,
        runs_first: bool = False,
        is_streaming: bool = False,
    ) -> None:
        self.allowed_at_agent = allowed_at_agent
        self.runs_first = runs_first
        self.is_streaming = is_streaming
        self.params: type[Any] = params
        self._handler = handler
        self._decoder = msgspec.json.Decoder(params)

    async def __call__(
        self, rpc_request: DirectoryRpcRequest, context: DirectoryRequestContext
    ) -> dict[str, Any] | DirectoryStream:
        """Raises DirectoryProtocolError, FabricError."""
        return await self._handler(self._decode_params(rpc_request), context)

    def _decode_params(self, rpc_request: DirectoryRpcRequest) -> P:
        try:
            return self._decoder.decode(rpc_request.params)
        except (msgspec.DecodeError, RecursionError) as exc:
            field, message = split_validation_error(exc)
            detail = f"{field}: {message}" if field else message
            data = {"reason": "bad_input", "code": "BAD_INPUT", "detail": detail, "field": field or None}
            raise DirectoryProtocolError(INVALID_PARAMS, f"Invalid params: {detail}", detail=detail, data=data) from exc


class DirectoryMethods:
    def __init__(
        self,
        directory: AgentDirectory,
        registration: DirectoryRegistration,
        tasks: DirectoryTasks,
        events: DirectoryEvents,
    ) -> None:
        self._by_name: dict[str, DirectoryMethod[Any]] = {
            "a2a/register": DirectoryMethod(RegisterParams, registration.register, runs_first=True),
            "a2a/heartbeat": DirectoryMethod(HeartbeatParams, registration.heartbeat, runs_first=True),
            "a2a/unregister": DirectoryMethod(UnregisterParams, registration.unregister, runs_first=True),
            "a2a/discover": DirectoryMethod(DiscoverParams, directory.discover),
            "a2a/agent": DirectoryMethod(DirectoryAgentParams, directory.get_agent),
            "a2a/task": DirectoryMethod(DirectoryTaskParams, tasks.run_task, allowed_at_agent=True),
            "a2a/stream": DirectoryMethod(
                DirectoryTaskParams, tasks.stream_task, allowed_at_agent=True, is_streaming=True
            ),
            "a2a/status": DirectoryMethod(DirectoryTaskIdParams, tasks.get_task_status, allowed_at_agent=True),
            "a2a/answer": DirectoryMethod(DirectoryAnswerParams, tasks.answer_questions, allowed_at_agent=True),
            "a2a/cancel": DirectoryMethod(DirectoryTaskIdParams, tasks.cancel_task, allowed_at_agent=True),
            "a2a/events": DirectoryMethod(DirectoryEventsParams, events.subscribe, is_streaming=True),
        }

    @property
    def by_name(self) -> Mapping[str, DirectoryMethod[Any]]:
        return self._by_name

    def get(self, name: str) -> DirectoryMethod[Any] | None:
        return self._by_name.get(name)

    def find(self, name: str, *, at_agent: bool) -> DirectoryMethod[Any]:
        """Raises DirectoryProtocolError."""
        method = self._by_name.get(name)
        if method is None or (at_agent and not method.allowed_at_agent):
            detail = f"There is no method '{name[:_MAX_ECHO]}' here{suggest_nearest(name, self._by_name)}"
            raise DirectoryProtocolError(
                METHOD_NOT_FOUND, f"Method not found: {name[:_MAX_ECHO]}", detail=detail, bare_status=404
            )
        return method


AGENTS_PATH = "/a2a/agents"
_AGENTS_PREFIX = f"{AGENTS_PATH}/"
_RPC_SUFFIX = "/rpc"
_LIST_PARAMS = frozenset({"types", "capabilities"})
_NUMBER_PARAMS = frozenset({"after", "limit"})


class DirectoryRoute(msgspec.Struct, frozen=True, kw_only=True):
    """What a path stands for: the method of bare bodies, the method and parameters of a GET, and the agent."""

    method: str | None = None
    method_of_get: str | None = None
    params_of_get: Mapping[str, Any] = {}
    agent_id: str | None = None
    accepts_post: bool = True

    @property
    def allowed_methods(self) -> list[str]:
        return ["POST"] * self.accepts_post + ["GET"] * (self.method_of_get is not None)


class DirectoryDoorState(DoorEdge, frozen=True, kw_only=True):
    methods: DirectoryMethods
    max_batch: int
    path_wins: bool  # the path decides about the method, not the body


class DirectoryHttpEndpoint(CycleEndpoint):
    def __init__(self, state: DirectoryDoorState, route: DirectoryRoute) -> None:
        super().__init__(lambda *asgi: _DirectoryRequestCycle(state, route, *asgi))


class DirectoryAgentEndpoint(CycleEndpoint):
    def __init__(self, state: DirectoryDoorState) -> None:
        super().__init__(
            lambda scope, receive, send: _DirectoryRequestCycle(
                state, route_from_path(_read_raw_path(scope)), scope, receive, send
            )
        )


class _DirectoryRequestCycle(RequestCycle):
    def __init__(self, state: DirectoryDoorState, route: DirectoryRoute, *asgi: Any) -> None:
        super().__init__(state, *asgi)
        self._state = state
        self._route = route
        self._request: DirectoryRpcRequest | InvalidRpcRequest | None = None  # unless it is a batch
        self.allowed_methods = route.allowed_methods
        self.reads_body = self.method != "GET"
        self.operation = self.scope["path"]

    async def answer(self, body: bytes) -> HttpReply | EventStream:
        requests, is_batch = self._parse_requests(body)
        if is_batch:
            self.is_call = True  # each request of a batch has its own log line
            replies = [reply for reply in await self._answer_batch(requests) if reply is not None]
            return HttpReply(body=b"[%b]" % b",".join(replies)) if replies else HttpReply(status=204, body=b"")
        [self._request] = requests
        if isinstance(self._request, InvalidRpcRequest):
            raise self._request.to_error()
        return await self._answer_one(self._request)

    def _parse_requests(self, body: bytes) -> tuple[RpcRequests, bool]:
        if self.method == "GET" and self._route.method_of_get is not None:
            params = {**_params_from_query(self.scope.get("query_string", b"")), **self._route.params_of_get}
            return (jsonrpc.build_bare_request(self._route.method_of_get, params),), False
        if problem := find_json_problem(body):
            raise DirectoryProtocolError(PARSE_ERROR, f"Parse error: {problem}")
        return jsonrpc.parse_payload(body, self._route.method, self._state.max_batch)

    async def _answer_one(self, rpc_request: DirectoryRpcRequest) -> HttpReply | EventStream:
        name = self._choose_method_name(rpc_request)
        self.operation, self.is_call = name[:64], name == "a2a/task"
        try:
            result = await self._run_method(name, rpc_request, self.trace)
        except Exception as exc:
            if not rpc_request.is_notification:
                raise
            self.log_request(_render_error(self._to_protocol_error(exc, self.trace), rpc_request), 204)
            self.is_call = True
            return HttpReply(status=204, body=b"")
        if isinstance(result, DirectoryStream):
            return await self._open_stream(rpc_request, result)
        if rpc_request.is_notification:
            return HttpReply(status=204, body=b"")
        return HttpReply(body=jsonrpc.encode_result(rpc_request, result))

    async def _answer_batch(self, requests: RpcRequests) -> list[bytes | None]:
        replies: dict[int, bytes | None] = {}
        concurrent: list[int] = []
        for index, rpc_request in enumerate(requests):
            method = (
                self._state.methods.get(rpc_request.method) if isinstance(rpc_request, DirectoryRpcRequest) else None
            )
            if method is None or method.runs_first:
                replies[index] = await self._answer_in_batch(rpc_request)
            else:
                concurrent.append(index)
        async with asyncio.TaskGroup() as group:
            running = {index: group.create_task(self._answer_in_batch(requests[index])) for index in concurrent}
        replies |= {index: task.result() for index, task in running.items()}
        return [replies[index] for index in range(len(requests))]

    async def _answer_in_batch(self, rpc_request: DirectoryRpcRequest | InvalidRpcRequest) -> bytes | None:
        """None for a notification. The request has its own trace and its own log line."""
        if isinstance(rpc_request, InvalidRpcRequest):
            return jsonrpc.encode_error(rpc_request.to_error(), rpc_request)
        name, trace, started_at = (
            self._choose_method_name(rpc_request),
            self.head.trace or new_trace(),
            time.perf_counter(),
        )
        error: ErrorReply | None = None
        try:
            if self._state.methods.find(name, at_agent=self._is_at_agent(rpc_request)).is_streaming:
                raise DirectoryProtocolError(INVALID_REQUEST, f"Invalid Request: {name} must be a request of its own")
            body = jsonrpc.encode_result(rpc_request, await self._run_method(name, rpc_request, trace))
        except Exception as exc:
            error = _render_error(self._to_protocol_error(exc, trace), rpc_request)
            body = error.body
        if error is not None or name != "a2a/task":
            code, message, status = (error.code, error.message, error.status) if error else (None, None, 200)
            seconds = time.perf_counter() - started_at
            self.edge.context.log(trace, name[:64], code=code, message=message, seconds=seconds, status=status)
        return None if rpc_request.is_notification else body

    async def _run_method(
        self, name: str, rpc_request: DirectoryRpcRequest, trace: Trace
    ) -> dict[str, Any] | DirectoryStream:
        """Raises DirectoryProtocolError, FabricError."""
        method = self._state.methods.find(name, at_agent=self._is_at_agent(rpc_request))
        if method.is_streaming and rpc_request.is_notification:
            raise DirectoryProtocolError(INVALID_REQUEST, f"Invalid Request: {name} must be a request of its own")
        context = DirectoryRequestContext(
            principal=self.principal,
            trace=trace,
            base_url=self.base_url,
            agent_id=self._route.agent_id,
            last_event_id=self.head.last_event_id,
            expects_reply=not rpc_request.is_notification,
            delegation_chain=self.head.delegation_chain,
        )
        return await method(rpc_request, context)

    def _is_at_agent(self, rpc_request: DirectoryRpcRequest) -> bool:
        return self._route.agent_id is not None and not rpc_request.is_bare

    def _choose_method_name(self, rpc_request: DirectoryRpcRequest) -> str:
        """Some clients send the same method name with every request, and the right path."""
        path_method = self._route.method
        path_decides = self._state.path_wins and self._route.agent_id is None and not rpc_request.is_bare
        return path_method if path_decides and path_method is not None else rpc_request.method

    async def _open_stream(self, rpc_request: DirectoryRpcRequest, stream: DirectoryStream) -> HttpReply | EventStream:
        if accepts_events(self.head.get(b"accept")):
            return EventStream(frames=_encode_frames(rpc_request, stream), waits_for_news=stream.is_resumed)
        async with aclosing(stream.events) as events:
            if not stream.is_finite:
                raise DirectoryProtocolError(
                    INVALID_REQUEST, "Invalid Request: accept text/event-stream", status=406, bare_status=406
                )
            answers = [event.body async for event in events if event.is_answer]
        return HttpReply(body=jsonrpc.encode_result(rpc_request, answers[0]))

    def render_error(self, error: FabricError | DoorError) -> ErrorReply:
        return _render_error(self._to_protocol_error(error, self.trace), self._request)

    def _to_protocol_error(self, exc: Exception, trace: Trace) -> DirectoryProtocolError:
        error = self.to_known_error(exc)
        if isinstance(error, DirectoryProtocolError):
            return error
        assert isinstance(error, FabricError)  # noqa: S101  # the directory has no other errors of its own
        return protocol_error_from(error, trace.trace_id)


def _render_error(
    error: DirectoryProtocolError, rpc_request: DirectoryRpcRequest | InvalidRpcRequest | None
) -> ErrorReply:
    is_bare = isinstance(rpc_request, DirectoryRpcRequest) and rpc_request.is_bare
    status = error.bare_status if is_bare and error.status == 200 else error.status
    return ErrorReply(status, jsonrpc.encode_error(error, rpc_request), error.log_code, error.detail)


async def _encode_frames(rpc_request: DirectoryRpcRequest, stream: DirectoryStream) -> AsyncGenerator[bytes]:
    async with aclosing(stream.events) as events:
        async for event in events:
            encode = jsonrpc.encode_result if event.is_answer else jsonrpc.encode_notification
            yield encode_event(event.event, event.number, encode(rpc_request, event.body))


def _params_from_query(query: bytes) -> dict[str, Any]:
    """The parameters of a stream that a browser opens. Commas separate the items of a list."""
    params: dict[str, Any] = {}
    for name, value in parse_qsl(query.decode("latin-1"), max_num_fields=20):
        if name in _LIST_PARAMS:
            params[name] = value.split(",")
        else:
            params[name] = int(value) if name in _NUMBER_PARAMS and value.isascii() and value.isdigit() else value
    return params


def route_from_path(raw_path: str) -> DirectoryRoute:
    remainder = raw_path.removeprefix(_AGENTS_PREFIX)
    is_rpc = remainder.endswith(_RPC_SUFFIX)
    agent_id = unquote(remainder.removesuffix(_RPC_SUFFIX) if is_rpc else remainder, errors="replace")
    params = {"agentId": agent_id}
    if not is_rpc:
        return DirectoryRoute(method_of_get="a2a/agent", params_of_get=params, accepts_post=False)
    return DirectoryRoute(method="a2a/task", method_of_get="a2a/agent", params_of_get=params, agent_id=agent_id)


def _read_raw_path(scope: Any) -> str:
    """The path as the client encoded it; some servers keep only the decoded path."""
    raw = scope.get("raw_path")
    return raw.decode("latin-1") if raw else quote(scope["path"])
