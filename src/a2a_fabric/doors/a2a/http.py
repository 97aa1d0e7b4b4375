"""The HTTP endpoint of the A2A door: agent cards, JSON-RPC requests and REST paths; replies and event streams.

An agent is served at `/agents/{id}`, the gateway itself at `/gateway`. Other doors serve paths below the same
prefixes (`/agents/{id}/mcp`), so the route matches only the methods and paths that the A2A protocol defines."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Raw
from starlette.routing import BaseRoute, Match

from a2a_fabric.core.errors import FabricError, InternalError
from a2a_fabric.core.json_depth import is_too_deep
from a2a_fabric.core.trace import current_trace, new_trace
from a2a_fabric.doors.a2a import jsonrpc, parse
from a2a_fabric.doors.a2a.cards import GATEWAY_PATH
from a2a_fabric.doors.a2a.errors import A2AProtocolError, protocol_error_from
from a2a_fabric.doors.a2a.request_context import (
    VERSION_HEADER,
    A2ARequestContext,
    ExtensionNegotiation,
    is_0_3_request,
    parse_version,
    require_version,
)
from a2a_fabric.doors.a2a.state import A2ADoorState
from a2a_fabric.doors.context import ASGIApp, Receive, Send
from a2a_fabric.doors.edge import (
    JSON_MEDIA_TYPE,
    JSON_TOO_DEEP,
    ClientDisconnected,
    EventStream,
    EventStreamReply,
    HeaderList,
    RequestHead,
    encode_event,
    may_be_json,
    read_body,
    run_until_disconnect,
    send_reply,
)
from a2a_fabric.protocols.a2a.card import CARD_PATHS
from a2a_fabric.protocols.a2a.models import A2AStreamEvent, A2AUpdate, A2AVersion
from a2a_fabric.protocols.a2a.parts import Dialect
from a2a_fabric.protocols.a2a.render import RENDERERS
from a2a_fabric.protocols.jsonrpc import NULL

SCOPE_KEY = "fabric.a2a"
AGENTS_PREFIX = "/agents/"
_FIXED_PATHS: dict[str, dict[str, str]] = {
    "/message:send": {"POST": "SendMessage"},
    "/message:stream": {"POST": "SendStreamingMessage"},
    "/tasks": {"GET": "ListTasks"},
    "/extendedAgentCard": {"GET": "GetExtendedAgentCard"},
    "/card": {"GET": "GetExtendedAgentCard"},  # of 0.3
}
_TASK_METHODS = {"GET": "GetTask"}
_CANCEL_METHODS = {"POST": "CancelTask"}
_SUBSCRIBE_METHODS = {"GET": "SubscribeToTask", "POST": "SubscribeToTask"}
_PUSH_CONFIGS_METHODS = {"POST": "CreateTaskPushNotificationConfig", "GET": "ListTaskPushNotificationConfigs"}
_PUSH_CONFIG_METHODS = {"GET": "GetTaskPushNotificationConfig", "DELETE": "DeleteTaskPushNotificationConfig"}
_PUSH_SEGMENT = "pushNotificationConfigs"


class ResolvedPath(msgspec.Struct, frozen=True, kw_only=True):
    """What a path stands for. No agent: the gateway itself. `methods` are those of HTTP and what each asks for."""

    kind: Literal["rpc", "card", "rest"]
    agent_id: str | None = None
    dialect: Dialect = "1.0"
    methods: dict[str, str] = {}
    task_id: str | None = None
    config_id: str | None = None


def resolve_path(path: str) -> ResolvedPath | None:
    """None for what is none of ours."""
    if path in CARD_PATHS:
        return ResolvedPath(kind="card", methods=_list_card_methods())
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
        return ResolvedPath(kind="card", agent_id=agent_id, methods=_list_card_methods())
    is_0_3 = remainder.startswith("/v1/")
    dialect: Dialect = "0.3 proto" if is_0_3 else "1.0"
    resolved = _resolve_rest_path(remainder.removeprefix("/v1") if is_0_3 else remainder)
    return None if resolved is None else msgspec.structs.replace(resolved, agent_id=agent_id, dialect=dialect)


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
    """A client of ours, as its header says, that asks for what the protocol does not have."""
    has_our_prefix = path.startswith((AGENTS_PREFIX, f"{GATEWAY_PATH}/"))
    return (
        ResolvedPath(kind="rest")
        if has_our_prefix and any(name == VERSION_HEADER for name, _ in scope["headers"])
        else None
    )


def _list_card_methods() -> dict[str, str]:
    return {"GET": "", "HEAD": ""}


class A2ARoute(BaseRoute):
    """For the router. A path of ours asked with another method is left to others, then refused."""

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
        """Nobody asks by name."""
        raise LookupError(name)


_log = logging.getLogger(__name__)

_A2A_JSON = b"application/a2a+json"
_OPERATIONS_WITH_BODY = frozenset({"SendMessage", "SendStreamingMessage", "CreateTaskPushNotificationConfig"})
_LOGGED_AS_CALLS = frozenset({"a2a.SendMessage", "a2a.SendStreamingMessage"})  # the call has its own line


class A2AHttpEndpoint:
    """ASGI."""

    def __init__(self, state: A2ADoorState) -> None:
        self._state = state

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        path: ResolvedPath = scope[SCOPE_KEY]
        cycle = _A2ARequestCycle(self._state, path, scope, send)
        try:
            if scope["method"] not in path.methods:
                await cycle.send_method_not_allowed()
                return
            if path.kind == "card":
                await cycle.send_card()
                return
            context = cycle.identify()
            body = await cycle.receive_body(receive)
            await run_until_disconnect(scope, receive, lambda: cycle.answer(body, context))
        except ClientDisconnected:
            return
        except A2AProtocolError as protocol_error:
            await cycle.send_error(protocol_error)
        except FabricError as error:
            await cycle.send_error(protocol_error_from(error, cycle.trace.trace_id))
        except asyncio.CancelledError:
            raise
        except Exception:
            current_trace.set(cycle.trace)
            _log.exception("a request failed inside the gateway")
            await cycle.send_error(protocol_error_from(InternalError(), cycle.trace.trace_id))


class _A2ARequestCycle:
    """One HTTP request and its reply."""

    def __init__(self, state: A2ADoorState, path: ResolvedPath, scope: Any, send: Send) -> None:
        self._state = state
        self._path = path
        self._scope = scope
        self._send = send
        self._head = RequestHead(scope["headers"])
        self._started_at = time.perf_counter()
        self._has_replied = False
        self._request_id: Raw = NULL
        self._version: A2AVersion = "0.3"
        self._operation_name = "a2a"
        self._extensions = ExtensionNegotiation()
        self.trace = self._head.trace or new_trace()

    async def send_card(self) -> None:
        context = self._state.build_card_context(self._scope, self._head, self._path.agent_id, self.trace)
        card = self._state.operations.cards.get_card(context)
        self._operation_name = "a2a.card"
        headers: HeaderList = [
            (b"cache-control", b"private, max-age=%d" % self._state.settings.card_seconds),
            (b"etag", card.etag.encode()),
            (b"last-modified", card.last_modified.encode()),
            (b"vary", b"Host, Authorization"),
            (b"access-control-allow-origin", b"*"),
        ]
        is_unchanged = _is_unchanged(self._head, card.etag, card.last_modified)
        body = b"" if is_unchanged or self._scope["method"] == "HEAD" else card.body
        await self._send_reply(304 if is_unchanged else 200, body, headers)

    def identify(self) -> A2ARequestContext:
        """Who is asking, and at which agent; before the body is read. Raises FabricError."""
        return self._state.build_context(self._scope, self._head, self._path.agent_id, self.trace)

    async def receive_body(self, receive: Receive) -> bytes:
        """Raises Fault, FabricError, ClientGone."""
        if self._scope["method"] in ("GET", "DELETE"):
            return b""
        content_type = self._head.get(b"content-type")
        try:
            body = await read_body(receive, self._head, self._state.body_bytes)
        except TimeoutError as exc:
            raise A2AProtocolError("REQUEST_TIMEOUT", "The body did not arrive in time") from exc
        if body and content_type is not None and not may_be_json(content_type):
            message = f"The content type must be application/json, not '{content_type[:80]}'"
            raise A2AProtocolError("CONTENT_TYPE_NOT_SUPPORTED", message)
        if is_too_deep(body):
            raise A2AProtocolError("PARSE_ERROR", f"Invalid JSON payload: {JSON_TOO_DEEP}")
        return body

    async def answer(self, body: bytes, context: A2ARequestContext) -> None:
        """Raises Fault, FabricError."""
        if self._path.kind == "rpc":
            self._request_id = jsonrpc.read_request_id(body)
        self._extensions = context.extensions
        self._version = parse_version(self._get_requested_version(), self._state.versions)
        if self._path.kind == "rpc":
            await self._answer_rpc(body, context)
        else:
            await self._answer_rest(body, context)

    def _get_requested_version(self) -> str | None:
        version = self._head.get(VERSION_HEADER)
        return version if version is not None else dict(self._parse_query()).get("A2A-Version")

    def _parse_query(self) -> list[tuple[str, str]]:
        return parse_qsl(self._scope.get("query_string", b"").decode("latin-1"), max_num_fields=30)

    async def _answer_rpc(self, body: bytes, context: A2ARequestContext) -> None:
        rpc_request = jsonrpc.parse_request(body, self._version)
        self._operation_name = f"a2a.{rpc_request.operation}"
        renderer = RENDERERS[rpc_request.version]
        if rpc_request.is_streaming:
            with self._state.hold_stream(context):
                events = await self._state.streaming_operations[rpc_request.operation](
                    rpc_request.params, rpc_request.version, context
                )
                await self._send_stream(
                    events,
                    lambda update: jsonrpc.encode_result(rpc_request.id, renderer.render_response(update)),
                    context,
                )
            return
        result = await self._state.plain_operations[rpc_request.operation](
            rpc_request.params, rpc_request.version, context
        )
        await self._send_reply(200, jsonrpc.encode_result(rpc_request.id, result))

    async def _answer_rest(self, body: bytes, context: A2ARequestContext) -> None:
        path = self._path
        operation = path.methods[self._scope["method"]]
        require_version("1.0" if path.dialect == "1.0" else "0.3", self._version, "This path")
        self._operation_name = f"a2a.{operation}"
        params = self._read_params(operation, body)
        if operation in self._state.streaming_operations:
            renderer = RENDERERS[path.dialect]
            with self._state.hold_stream(context):
                events = await self._state.streaming_operations[operation](params, path.dialect, context)
                await self._send_stream(
                    events, lambda update: msgspec.json.encode(renderer.render_response(update)), context
                )
            return
        result = await self._state.plain_operations[operation](params, path.dialect, context)
        content_type = _A2A_JSON if path.dialect == "1.0" else JSON_MEDIA_TYPE
        await self._send_reply(200, msgspec.json.encode({} if result is None else result), content_type=content_type)

    def _read_params(self, operation: str, body: bytes) -> dict[str, Any]:
        """Raises Fault."""
        path = self._path
        if operation in _OPERATIONS_WITH_BODY:
            params = _decode_object(body)
        else:
            params = parse.params_from_query(dict(self._parse_query()))
            params.pop("A2A-Version", None)
        if path.task_id is not None:
            params["taskId" if path.config_id is not None or "Push" in operation else "id"] = path.task_id
        if path.config_id is not None:
            params["id"] = path.config_id
        return params

    async def _send_stream(
        self, events: AsyncGenerator[A2AStreamEvent], render: Callable[[A2AUpdate], bytes], context: A2ARequestContext
    ) -> None:
        settings = self._state.settings
        reply = EventStreamReply(
            self._state.context, self._send, settings.keep_alive, read_timeout=settings.read_seconds
        )
        try:
            frames = await _await_first_frame(_encode_frames(events, render))
            await reply.send_frames(
                EventStream(frames=frames), self._build_reply_headers(), context.principal.principal_id
            )
            await reply.end()
            self._log_request(None, 200)
        except (FabricError, A2AProtocolError) as error:
            if not reply.is_open:
                raise
            protocol_error = (
                error if isinstance(error, A2AProtocolError) else protocol_error_from(error, self.trace.trace_id)
            )
            await reply.end(self._render_stream_error(protocol_error))
            self._log_request(protocol_error, 200)
        except ClientDisconnected:
            raise
        except Exception:
            if not reply.is_open:
                raise
            current_trace.set(self.trace)
            _log.exception("a stream failed inside the gateway")
            await reply.end(self._render_stream_error(protocol_error_from(InternalError(), self.trace.trace_id)))

    def _render_stream_error(self, protocol_error: A2AProtocolError) -> bytes:
        if self._path.kind == "rpc":
            return encode_event("error", None, self._render_rpc_error(protocol_error))
        return encode_event("error", None, msgspec.json.encode(protocol_error.to_http_body()))

    def _render_rpc_error(self, protocol_error: A2AProtocolError) -> bytes:
        """For JSON-RPC. Also what is refused before its version is known is told in the numbers of that version."""
        is_0_3 = "0.3" in self._state.versions and is_0_3_request(self._get_requested_version())
        return jsonrpc.encode_error(self._request_id, protocol_error, is_0_3=is_0_3)

    async def send_error(self, protocol_error: A2AProtocolError) -> None:
        if self._has_replied:
            return
        is_rpc = self._path.kind == "rpc"
        status = protocol_error.codes.jsonrpc_http_status if is_rpc else protocol_error.codes.http_status
        body = self._render_rpc_error(protocol_error) if is_rpc else msgspec.json.encode(protocol_error.to_http_body())
        await self._send_reply(
            status, body, _build_error_headers(protocol_error, status), protocol_error=protocol_error
        )

    async def send_method_not_allowed(self) -> None:
        if not self._path.methods:
            await self.send_error(A2AProtocolError("METHOD_NOT_FOUND", f"Nothing at {self._scope['path'][:200]}"))
            return
        protocol_error = A2AProtocolError("METHOD_NOT_FOUND", f"Use {', '.join(self._path.methods)} here")
        body = protocol_error.to_http_body()
        body["error"]["code"] = 405
        await self._send_reply(405, msgspec.json.encode(body), [(b"allow", ", ".join(self._path.methods).encode())])

    async def _send_reply(
        self,
        status: int,
        body: bytes,
        headers: HeaderList | None = None,
        content_type: bytes = JSON_MEDIA_TYPE,
        protocol_error: A2AProtocolError | None = None,
    ) -> None:
        self._has_replied = True
        await send_reply(self._send, status, body, [*self._build_reply_headers(), *(headers or ())], content_type)
        self._log_request(protocol_error, status)

    def _build_reply_headers(self) -> HeaderList:
        return [(b"x-trace-id", self.trace.trace_id.encode()), *self._extensions.build_headers(self._version)]

    def _log_request(self, protocol_error: A2AProtocolError | None, status: int) -> None:
        if protocol_error is None and self._operation_name in _LOGGED_AS_CALLS:
            return
        code, message = (protocol_error.reason, protocol_error.message) if protocol_error else (None, None)
        seconds = time.perf_counter() - self._started_at
        self._state.context.log(
            self.trace, self._operation_name, code=code, message=message, seconds=seconds, status=status
        )


async def _encode_frames(
    events: AsyncGenerator[A2AStreamEvent], render: Callable[[A2AUpdate], bytes]
) -> AsyncGenerator[bytes]:
    async with aclosing(events):
        async for each in events:
            yield encode_event(None, each.number, render(each.update))


async def _await_first_frame(frames: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Once its first event is there: what fails before is refused as a whole."""
    return _chain_frames([await anext(frames, b"")], frames)


async def _chain_frames(first: list[bytes], frames: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(frames):
        yield first.pop()
        async for each in frames:
            yield each


def _decode_object(body: bytes) -> dict[str, Any]:
    try:
        return parse.require_object(msgspec.json.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise A2AProtocolError("INVALID_REQUEST", f"Invalid JSON payload: {str(exc)[:200]}") from exc


def _is_unchanged(head: RequestHead, etag: str, last_modified: str) -> bool:
    if_none_match = head.get(b"if-none-match")
    if if_none_match is not None:
        tags = [each.strip().removeprefix("W/") for each in if_none_match.split(",")]
        return etag in tags or "*" in tags
    return head.get(b"if-modified-since") == last_modified


def _build_error_headers(protocol_error: A2AProtocolError, status: int) -> HeaderList:
    if status == 401:
        return [(b"www-authenticate", b'Bearer realm="fabric"')]
    if protocol_error.retry_after is not None:
        return [(b"retry-after", b"%d" % max(1, round(protocol_error.retry_after + 0.499)))]
    return []
