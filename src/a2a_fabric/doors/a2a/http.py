"""The HTTP endpoint of the A2A door: agent cards, JSON-RPC requests and REST paths; replies and event streams.

An agent is served at `/agents/{id}`, the gateway itself at `/gateway`. Other doors serve paths below the same
prefixes (`/agents/{id}/mcp`), so the route matches only the methods and paths that the A2A protocol defines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Raw
from msgspec.structs import replace
from starlette.routing import BaseRoute, Match

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.json_text import find_json_problem
from a2a_fabric.doors.a2a.cards import GATEWAY_PATH
from a2a_fabric.doors.a2a.errors import A2AProtocolError, invalid_params_error, protocol_error_from
from a2a_fabric.doors.a2a.operations import A2ADoorState
from a2a_fabric.doors.a2a.requests import (
    VERSION_HEADER,
    A2ARequestContext,
    ExtensionNegotiation,
    is_0_3_request,
    params_from_query,
    parse_version,
    require_object,
    require_version,
)
from a2a_fabric.doors.context import ASGIApp, Receive, Send
from a2a_fabric.doors.edge import (
    JSON_MEDIA_TYPE,
    CycleEndpoint,
    DoorEdge,
    DoorError,
    ErrorReply,
    EventStream,
    HeaderList,
    HttpReply,
    RefusedRequest,
    RequestCycle,
    encode_event,
)
from a2a_fabric.protocols import jsonrpc
from a2a_fabric.protocols.a2a.card import CARD_PATHS
from a2a_fabric.protocols.a2a.models import A2AVersion, Dialect
from a2a_fabric.protocols.a2a.render import RENDERERS
from a2a_fabric.protocols.jsonrpc import DECODE_ERRORS, NULL, JSONRPCError, JSONRPCFrame, encode_result

_METHODS_0_3: Mapping[str, str] = {
    "message/send": "SendMessage",
    "message/stream": "SendStreamingMessage",
    "tasks/get": "GetTask",
    "tasks/cancel": "CancelTask",
    "tasks/resubscribe": "SubscribeToTask",
    "tasks/pushNotificationConfig/set": "CreateTaskPushNotificationConfig",
    "tasks/pushNotificationConfig/get": "GetTaskPushNotificationConfig",
    "tasks/pushNotificationConfig/list": "ListTaskPushNotificationConfigs",
    "tasks/pushNotificationConfig/delete": "DeleteTaskPushNotificationConfig",
    "agent/getAuthenticatedExtendedCard": "GetExtendedAgentCard",
}
_METHODS_1_0 = frozenset({*_METHODS_0_3.values(), "ListTasks"})


def _decode_frame(body: bytes) -> JSONRPCFrame:
    """Raises A2AProtocolError."""
    try:
        return jsonrpc.decode_frame(body)
    except JSONRPCError as error:
        if error.code == jsonrpc.PARSE_ERROR:
            raise A2AProtocolError("PARSE_ERROR", f"Invalid JSON payload: {str(error.__cause__)[:200]}") from error
        is_batch = body.lstrip()[:1] == b"["
        problem = "A2A has no batches; send one request at a time" if is_batch else "the body must be an object"
        raise A2AProtocolError("INVALID_REQUEST", f"Invalid Request: {problem}") from error


def _parse_rpc_request(frame: JSONRPCFrame, version: A2AVersion) -> tuple[str, dict[str, Any]]:
    """The operation and its parameters. Raises A2AProtocolError."""
    request_id = frame.read_id()
    if frame.jsonrpc != "2.0":
        raise A2AProtocolError("INVALID_REQUEST", "Invalid Request: `jsonrpc` must be '2.0'")
    if bytes(frame.id) and not _is_valid_id(request_id):
        raise A2AProtocolError("INVALID_REQUEST", "Invalid Request: `id` must be a string, an integer or null")
    if not frame.method or not isinstance(frame.method, str):
        raise A2AProtocolError("INVALID_REQUEST", "Invalid Request: `method` is missing")
    return _find_operation(frame.method, version), _decode_params(frame.params)


def _is_valid_id(request_id: Raw | None) -> bool:
    """A string, null or an integer: A2A has no fractions as ids."""
    raw = bytes(request_id or b"")
    return raw[:1] in (b'"', b"n") or raw.removeprefix(b"-").isdigit()


def _find_operation(method: str, version: A2AVersion) -> str:
    if version == "1.0" and method in _METHODS_1_0:
        return method
    if version == "0.3" and method in _METHODS_0_3:
        return _METHODS_0_3[method]
    if method in _METHODS_1_0:
        raise A2AProtocolError(
            "VERSION_NOT_SUPPORTED", f"{method} belongs to A2A 1.0: send the header 'A2A-Version: 1.0' with it"
        )
    explanation = " belongs to A2A 0.3, but the request says 1.0" if method in _METHODS_0_3 else ""
    raise A2AProtocolError("METHOD_NOT_FOUND", f"Method not found: {method[:64]!r}{explanation}")


def _decode_params(raw: Raw) -> dict[str, Any]:
    try:
        return require_object(msgspec.json.decode(raw) if bytes(raw) else None)
    except jsonrpc.DECODE_ERRORS as exc:
        raise invalid_params_error(f"Invalid params: {str(exc)[:200]}") from exc


SCOPE_KEY = "fabric.a2a"
AGENTS_PREFIX = "/agents/"
_FIXED_PATHS: dict[str, dict[str, str]] = {
    "/message:send": {"POST": "SendMessage"},
    "/message:stream": {"POST": "SendStreamingMessage"},
    "/tasks": {"GET": "ListTasks"},
    "/extendedAgentCard": {"GET": "GetExtendedAgentCard"},
    "/card": {"GET": "GetExtendedAgentCard"},  # of 0.3
}
_CARD_METHODS = {"GET": "", "HEAD": ""}
_TASK_METHODS = {"GET": "GetTask"}
_CANCEL_METHODS = {"POST": "CancelTask"}
_SUBSCRIBE_METHODS = {"GET": "SubscribeToTask", "POST": "SubscribeToTask"}
_PUSH_CONFIGS_METHODS = {"POST": "CreateTaskPushNotificationConfig", "GET": "ListTaskPushNotificationConfigs"}
_PUSH_CONFIG_METHODS = {"GET": "GetTaskPushNotificationConfig", "DELETE": "DeleteTaskPushNotificationConfig"}
_PUSH_SEGMENT = "pushNotificationConfigs"
# All of them below an agent, with what each method does: for the description of the door.
PATH_TEMPLATES: Mapping[str, Mapping[str, str]] = {
    **_FIXED_PATHS,
    "/tasks/{task_id}": _TASK_METHODS,
    "/tasks/{task_id}:cancel": _CANCEL_METHODS,
    "/tasks/{task_id}:subscribe": _SUBSCRIBE_METHODS,
    f"/tasks/{{task_id}}/{_PUSH_SEGMENT}": _PUSH_CONFIGS_METHODS,
    f"/tasks/{{task_id}}/{_PUSH_SEGMENT}/{{config_id}}": _PUSH_CONFIG_METHODS,
}


class ResolvedPath(msgspec.Struct, frozen=True, kw_only=True):
    """What a path stands for. `methods` maps HTTP methods to operations. Without an agent it is the gateway itself."""

    kind: Literal["rpc", "card", "rest"]
    agent_id: str | None = None
    dialect: Dialect = "1.0"
    methods: dict[str, str] = {}
    task_id: str | None = None
    config_id: str | None = None


def resolve_path(path: str) -> ResolvedPath | None:
    """None for a path that A2A does not define."""
    if path in CARD_PATHS:
        return ResolvedPath(kind="card", methods=_CARD_METHODS)
    if path.startswith(AGENTS_PREFIX):
        agent_id, _, remainder = path.removeprefix(AGENTS_PREFIX).partition("/")
        return _resolve_below_agent(f"/{remainder}" if remainder else "", unquote(agent_id)) if agent_id else None
    if path == GATEWAY_PATH or path.startswith(f"{GATEWAY_PATH}/"):
        return _resolve_below_agent(path.removeprefix(GATEWAY_PATH).rstrip("/") or "", None)
    return None


def _resolve_below_agent(remainder: str, agent_id: str | None) -> ResolvedPath | None:
    if remainder in ("", "/"):
        return ResolvedPath(kind="rpc", agent_id=agent_id, methods={"POST": ""})
    if remainder in CARD_PATHS:
        return ResolvedPath(kind="card", agent_id=agent_id, methods=_CARD_METHODS)
    is_0_3 = remainder.startswith("/v1/")
    dialect: Dialect = "0.3 proto" if is_0_3 else "1.0"
    resolved = _resolve_rest_path(remainder.removeprefix("/v1") if is_0_3 else remainder)
    return None if resolved is None else replace(resolved, agent_id=agent_id, dialect=dialect)


def _resolve_rest_path(path: str) -> ResolvedPath | None:
    if path in _FIXED_PATHS:
        return ResolvedPath(kind="rest", methods=_FIXED_PATHS[path])
    if not path.startswith("/tasks/"):
        return None
    task_id, _, subpath = path.removeprefix("/tasks/").partition("/")
    if not subpath:
        name, colon, action = task_id.rpartition(":")
        if colon and action in ("cancel", "subscribe"):
            methods = _CANCEL_METHODS if action == "cancel" else _SUBSCRIBE_METHODS
            return ResolvedPath(kind="rest", methods=methods, task_id=unquote(name))
        return ResolvedPath(kind="rest", methods=_TASK_METHODS, task_id=unquote(task_id))
    if subpath == _PUSH_SEGMENT:
        return ResolvedPath(kind="rest", methods=_PUSH_CONFIGS_METHODS, task_id=unquote(task_id))
    segment, _, config_id = subpath.partition("/")
    if segment == _PUSH_SEGMENT and config_id and "/" not in config_id:
        return ResolvedPath(
            kind="rest", methods=_PUSH_CONFIG_METHODS, task_id=unquote(task_id), config_id=unquote(config_id)
        )
    return None


def _resolve_unknown_path(path: str, scope: Any) -> ResolvedPath | None:
    """A request with an A2A version header is an A2A request, so this door answers that the path does not exist."""
    is_below_agent = path.startswith((AGENTS_PREFIX, f"{GATEWAY_PATH}/"))
    has_version = any(name == VERSION_HEADER for name, _ in scope["headers"])
    return ResolvedPath(kind="rest") if is_below_agent and has_version else None


class A2ARoute(BaseRoute):
    """Matches the paths of A2A. With another method, another door may have the path; if none has, it is refused."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    def matches(self, scope: Any) -> tuple[Match, Any]:
        if scope["type"] != "http":
            return Match.NONE, {}
        raw = scope.get("raw_path")
        path = raw.decode("latin-1").partition("?")[0] if raw else scope["path"]
        resolved = resolve_path(path) or _resolve_unknown_path(path, scope)
        if resolved is None:
            return Match.NONE, {}
        if scope["method"] in resolved.methods:
            return Match.FULL, {SCOPE_KEY: resolved}
        return (Match.NONE if resolved.kind == "rpc" else Match.PARTIAL), {SCOPE_KEY: resolved}

    async def handle(self, scope: Any, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        """These routes have no names."""
        raise LookupError(name)


_A2A_JSON = b"application/a2a+json"
_OPERATIONS_WITH_BODY = frozenset({"SendMessage", "SendStreamingMessage", "CreateTaskPushNotificationConfig"})
_CALL_OPERATIONS = frozenset({"SendMessage", "SendStreamingMessage"})  # the call has its own log line
_REFUSAL_REASONS = {405: "METHOD_NOT_FOUND", 408: "REQUEST_TIMEOUT", 415: "CONTENT_TYPE_NOT_SUPPORTED"}


def http_endpoint(state: A2ADoorState) -> CycleEndpoint:
    edge = DoorEdge(
        context=state.context,
        identify=state.context.identify,
        body_limit=state.body_limit,
        keep_alive=state.settings.keep_alive,
        read_timeout=state.settings.read_seconds,
    )
    return CycleEndpoint(lambda *asgi: _A2ARequestCycle(edge, state, *asgi))


class _A2ARequestCycle(RequestCycle):
    operation = "a2a"
    _context: A2ARequestContext

    def __init__(self, edge: DoorEdge, state: A2ADoorState, scope: Any, receive: Receive, send: Send) -> None:
        super().__init__(edge, scope, receive, send)
        self._state = state
        self._path: ResolvedPath = scope[SCOPE_KEY]
        self._request_id: Raw = NULL
        self._version: A2AVersion = "0.3"
        self._extensions = ExtensionNegotiation()
        self.allowed_methods = list(self._path.methods)
        self.reads_body = self.method == "POST"

    def check_method(self) -> None:
        if not self.allowed_methods:
            raise A2AProtocolError("METHOD_NOT_FOUND", f"A2A has no path {self.scope['path'][:200]}")
        super().check_method()

    def identify(self) -> Principal:
        """Also finds the agent. Raises FabricError."""
        build = self._state.build_card_context if self._path.kind == "card" else self._state.build_context
        self._context = build(self.scope, self.head, self._path.agent_id, self.trace)
        return self._context.principal

    async def answer(self, body: bytes) -> HttpReply | EventStream:
        if self._path.kind == "card":
            return await self._answer_card()
        if problem := find_json_problem(body):
            raise A2AProtocolError("PARSE_ERROR", f"Invalid JSON payload: {problem}")
        self._extensions = self._context.extensions
        if self._path.kind == "rpc":
            frame = _decode_frame(body)
            self._request_id = frame.read_id() or NULL
            self._version = parse_version(self._get_requested_version(), self._state.versions)
            return await self._answer_rpc(frame)
        self._version = parse_version(self._get_requested_version(), self._state.versions)
        return await self._answer_rest(body)

    async def _answer_card(self) -> HttpReply:
        self.operation = "a2a.card"
        context = await self._state.operations.await_skills(self._context)
        version: A2AVersion = "0.3" if is_0_3_request(self._get_requested_version()) else "1.0"
        card = await self._state.operations.cards.get_card(replace(context, version=version))
        headers = [
            (b"cache-control", b"private, max-age=%d" % self._state.settings.card_seconds),
            (b"last-modified", card.last_modified.encode()),
            (b"vary", b"Host, Authorization, A2A-Version"),
            (b"access-control-allow-origin", b"*"),
        ]
        return HttpReply(body=card.body, headers=headers, etag=card.etag, last_modified=card.last_modified)

    def _get_requested_version(self) -> str | None:
        version = self.head.get(VERSION_HEADER)
        return version if version is not None else dict(self._parse_query()).get("A2A-Version")

    def _parse_query(self) -> list[tuple[str, str]]:
        return parse_qsl(self.scope.get("query_string", b"").decode("latin-1"), max_num_fields=30)

    async def _answer_rpc(self, frame: JSONRPCFrame) -> HttpReply | EventStream:
        operation, params = _parse_rpc_request(frame, self._version)
        self._name_operation(operation)
        context = replace(self._context, dialect=self._version, version=self._version)
        return await self._run_operation(operation, params, context, lambda it: encode_result(self._request_id, it))

    async def _answer_rest(self, body: bytes) -> HttpReply | EventStream:
        dialect, operation = self._path.dialect, self._path.methods[self.method]
        require_version("1.0" if dialect == "1.0" else "0.3", self._version, "This path")
        self._name_operation(operation)
        params, context = (
            self._read_params(operation, body),
            replace(self._context, dialect=dialect, version=self._version),
        )
        return await self._run_operation(operation, params, context, msgspec.json.encode)

    def _name_operation(self, operation: str) -> None:
        self.operation, self.is_call = f"a2a.{operation}", operation in _CALL_OPERATIONS

    async def _run_operation(
        self, operation: str, params: dict[str, Any], context: A2ARequestContext, encode: Callable[[Any], bytes]
    ) -> HttpReply | EventStream:
        if operation in self._state.streaming_operations:
            return await self._open_stream(operation, params, context, encode)
        result = await self._state.plain_operations[operation](params, context)
        if self._path.kind == "rpc":
            return HttpReply(body=encode(result))
        media_type = _A2A_JSON if context.dialect == "1.0" else JSON_MEDIA_TYPE
        return HttpReply(body=encode({} if result is None else result), media_type=media_type)

    def _read_params(self, operation: str, body: bytes) -> dict[str, Any]:
        """Raises A2AProtocolError."""
        path = self._path
        if operation in _OPERATIONS_WITH_BODY:
            params = _decode_object(body)
        else:
            params = params_from_query(dict(self._parse_query()))
            params.pop("A2A-Version", None)
        if path.task_id is not None:
            params["taskId" if path.config_id is not None or "Push" in operation else "id"] = path.task_id
        if path.config_id is not None:
            params["id"] = path.config_id
        return params

    async def _open_stream(
        self, operation: str, params: dict[str, Any], context: A2ARequestContext, encode: Callable[[Any], bytes]
    ) -> EventStream:
        """A stream that would be refused begins no task. Raises RateLimited."""
        caller, render = self.principal.principal_id, RENDERERS[context.dialect].render_response
        self._state.context.streams.check(caller)
        self._state.stream_shares.check(caller)
        events = await self._state.streaming_operations[operation](params, context)

        async def frames() -> AsyncGenerator[bytes]:
            with self._state.stream_shares.hold(caller):
                async with aclosing(events):
                    async for each in events:
                        yield encode_event(None, each.number, encode(render(each.update)))

        return EventStream(frames=frames())

    def build_headers(self) -> HeaderList:
        return [*super().build_headers(), *self._extensions.build_headers(self._version)]

    def render_error(self, error: FabricError | DoorError) -> ErrorReply:
        protocol_error = self._to_protocol_error(error)
        codes, is_rpc = protocol_error.codes, self._path.kind == "rpc"
        status = codes.jsonrpc_http_status if is_rpc else codes.http_status
        if isinstance(error, RefusedRequest):
            status = error.status
        if is_rpc:
            # A request that is refused before its version is known is answered in the codes of the version it names.
            is_0_3 = "0.3" in self._state.versions and is_0_3_request(self._get_requested_version())
            body = jsonrpc.encode_error(self._request_id, protocol_error.to_jsonrpc(is_0_3=is_0_3))
        else:
            http_body = protocol_error.to_http_body()
            http_body["error"]["code"] = status
            body = msgspec.json.encode(http_body)
        code = error.code if isinstance(error, FabricError) else protocol_error.reason
        return ErrorReply(status, body, code, protocol_error.message)

    def _to_protocol_error(self, error: FabricError | DoorError) -> A2AProtocolError:
        if isinstance(error, A2AProtocolError):
            return error
        assert isinstance(error, FabricError)  # noqa: S101  # this door has no other errors of its own
        if isinstance(error, RefusedRequest):
            return A2AProtocolError(_REFUSAL_REASONS[error.status], error.message)
        return protocol_error_from(error, self.trace.trace_id)


def _decode_object(body: bytes) -> dict[str, Any]:
    try:
        return require_object(msgspec.json.decode(body))
    except DECODE_ERRORS as exc:
        raise A2AProtocolError("INVALID_REQUEST", f"Invalid JSON payload: {str(exc)[:200]}") from exc
