"""One MCP server on top of the SDK: its handlers, its HTTP sessions, and text sessions (WebSocket, stdio).

The SDK's session manager must be entered and left by the same task, so each server runs a task of its own.
Importing this module imports the SDK, which takes most of a second; the door does so on first use."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from copy import copy
from functools import partial
from typing import Any

import anyio
import mcp_types as types
import msgspec
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION
from pydantic import ValidationError

from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.errors import AgentNotFound, FabricError
from a2a_fabric.core.logins import find_login_owner
from a2a_fabric.core.propagation import DELEGATION_META_KEY, MANDATE_META_KEY, PASSPORT_META_KEY, current_trace
from a2a_fabric.core.tasks import iterate_in_slices
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.edge import head_from_scope, replay_body
from a2a_fabric.doors.mcp.event_log import ResumableSessionManager, adopted_events, adopted_session
from a2a_fabric.doors.mcp.light_sessions import MAX_BODY, LightSession, SavedLog
from a2a_fabric.doors.mcp.prompts_resources import UNCACHED, ItemKind, PromptResourceHandlers, PromptsAndResources
from a2a_fabric.doors.mcp.request import McpCallerDisconnected, McpRequestContext, is_stateless_request
from a2a_fabric.doors.mcp.results import to_error_body
from a2a_fabric.doors.mcp.sdk_request import (
    REQUEST_CONTEXT_KEY,
    SdkContext,
    ToolElicitation,
    delegated_context,
    get_answer_capabilities,
    get_connection,
    get_request_context,
    is_stateless_era,
    make_emitter,
    set_log_level,
)
from a2a_fabric.doors.mcp.servers import ManifestSubscriptions
from a2a_fabric.doors.mcp.sessions import OpenSession, OpenSessions
from a2a_fabric.doors.mcp.subscriptions import ChangeNotifier, ResourceSubscriptions
from a2a_fabric.doors.mcp.tasks import McpTasks, declares_tasks, make_undeclared_error
from a2a_fabric.doors.mcp.tool_calls import ToolCall, UnknownTool, needs_tasks
from a2a_fabric.doors.mcp.tool_list import is_cursor
from a2a_fabric.doors.mcp.tools import ListingClient, McpServerInfo, ToolCatalog
from a2a_fabric.protocols import jsonrpc
from a2a_fabric.protocols.mcp import wire
from a2a_fabric.protocols.mcp.apps import UI_EXTENSION, UI_SETTINGS
from a2a_fabric.protocols.mcp.wire import SESSION_HEADER_BYTES, VERSION_HEADER_BYTES, McpProtocolError

IncomingTexts = AsyncIterator[str | bytes]
SendText = Callable[[str], Awaitable[None]]


async def run_text_session(
    server: Server[Any], incoming: IncomingTexts, send: SendText, request_context: McpRequestContext
) -> None:
    """Serve until the other side closes; calls that still run then are cancelled."""
    incoming_writer, incoming_reader = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing_writer, outgoing_reader = anyio.create_memory_object_stream[SessionMessage](0)
    write_lock = asyncio.Lock()

    async def send_text(text: str) -> None:
        async with write_lock:
            await send(text)

    async def read_texts() -> None:
        async with incoming_writer:
            async for text in incoming:
                try:
                    message = parse_sdk_message(text)
                except McpProtocolError as exc:
                    await send_text(wire.render_error(exc).decode())
                else:
                    await incoming_writer.send(
                        SessionMessage(message, ServerMessageMetadata(request_context=request_context))
                    )

    async def write_messages() -> None:
        async with outgoing_reader:
            async for message in outgoing_reader:
                await send_text(message.message.model_dump_json(by_alias=True, exclude_unset=True))

    async with anyio.create_task_group() as group:
        group.start_soon(read_texts)
        group.start_soon(write_messages)
        await server.run(incoming_reader, outgoing_writer, server.create_initialization_options())


def parse_sdk_message(text: str | bytes) -> types.JSONRPCMessage:
    """Raises McpProtocolError. The frame is checked first: the SDK takes a request with a bad id for a notification."""
    wire.parse_message(text)
    try:
        return types.jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValidationError as exc:
        raise McpProtocolError(jsonrpc.INVALID_REQUEST, "Not a JSON-RPC message") from exc


_current_principal: ContextVar[Principal | None] = ContextVar("mcp_principal", default=None)


class SdkServer(Server[Any]):
    """The SDK reads `instructions` whenever a client connects; what they say depends on the caller."""

    make_instructions: Callable[[Principal], str]

    @property
    def instructions(self) -> str | None:
        principal = _current_principal.get()
        return None if principal is None else self.make_instructions(principal) or None

    @instructions.setter
    def instructions(self, value: str | None) -> None:
        """The SDK sets it when the server is built."""

    def create_initialization_options(self, *options: Any, **keywords: Any) -> InitializationOptions:
        """Over HTTP the SDK passes no options, and would declare that lists never change."""
        changing = NotificationOptions(tools_changed=True, resources_changed=True, prompts_changed=True)
        return super().create_initialization_options(*(options or (changing,)), **keywords)


def build_sdk_server(server_info: McpServerInfo, handlers: McpHandlers) -> SdkServer:
    server = SdkServer(
        server_info.name,
        version=server_info.version,
        title=server_info.title,
        get_tool_input_schema=handlers.get_input_schema,
        on_subscriptions_listen=handlers.subscriptions.listen,
    )
    server.extensions[UI_EXTENSION] = UI_SETTINGS
    server.make_instructions = handlers.make_instructions
    server.middleware[:] = [handlers.apply_credentials, handlers.log_request]
    server.add_request_handler("tools/list", types.PaginatedRequestParams, handlers.list_tools)
    server.add_request_handler("tools/call", types.CallToolRequestParams, handlers.call_tool)
    prompt_handlers = handlers.prompt_handlers
    server.add_request_handler("prompts/list", types.PaginatedRequestParams, prompt_handlers.list_prompts)
    server.add_request_handler("prompts/get", types.GetPromptRequestParams, prompt_handlers.get_prompt)
    server.add_request_handler("resources/list", types.PaginatedRequestParams, prompt_handlers.list_resources)
    server.add_request_handler("resources/templates/list", types.PaginatedRequestParams, prompt_handlers.list_templates)
    server.add_request_handler("resources/read", types.ReadResourceRequestParams, prompt_handlers.read_resource)
    subscriptions = handlers.subscriptions
    server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, subscriptions.subscribe)
    server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, subscriptions.unsubscribe)
    server.add_request_handler("completion/complete", types.CompleteRequestParams, prompt_handlers.complete)
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, handlers.handle_set_level)
    handlers.tasks.register_handlers(server)
    server.add_notification_handler("notifications/initialized", types.NotificationParams, handlers.handle_initialized)
    return server


_MAX_TOOLS = 1000  # in a page; the SDK looks at each of them, which takes time


class McpHandlers:
    def __init__(
        self,
        context: DoorContext,
        catalog: ToolCatalog,
        prompt_handlers: PromptResourceHandlers,
        subscriptions: ResourceSubscriptions,
        notifier: ChangeNotifier,
        sessions: OpenSessions,
    ) -> None:
        self.catalog = catalog
        self.prompt_handlers = prompt_handlers
        self.subscriptions = subscriptions
        self.notifier = notifier
        self.sessions = sessions
        self.tasks = McpTasks(context.jobs)
        self._context = context

    async def apply_credentials(self, ctx: SdkContext, call_next: CallNext) -> HandlerResult:
        """A message may have a passport or a mandate in its `_meta`, which counts for this message."""
        meta = ctx.meta or {}
        entries = ("passport", meta.get(PASSPORT_META_KEY)), ("mandate", meta.get(MANDATE_META_KEY))
        credentials: list[Any] = [each for each in entries if each[1] is not None]
        if not credentials:
            return await call_next(ctx)
        own_context, started = copy(get_request_context(ctx)), time.perf_counter()
        sender = own_context.principal
        try:
            own_context.principal = await self._context.add_credentials(sender, credentials)
        except FabricError as error:
            await self._context.failed_attempts.delay(error, sender.principal_id or "")
            trace, seconds = own_context.trace_from_meta(meta), time.perf_counter() - started
            self._context.log(trace, ctx.method, code=error.code, message=error.message, seconds=seconds, status=400)
            raise MCPError(types.INVALID_REQUEST, error.message, to_error_body(error, trace)) from error
        token = delegated_context.set(own_context)
        try:
            return await call_next(ctx)
        finally:
            delegated_context.reset(token)

    async def log_request(self, ctx: SdkContext, call_next: CallNext) -> HandlerResult:
        """Log every request except tool calls, which are logged as calls."""
        if ctx.request_id is None or ctx.method in ("tools/call", "ping"):
            return await call_next(ctx)
        trace = get_request_context(ctx).trace_from_meta(ctx.meta)
        token = current_trace.set(trace)
        started = time.perf_counter()
        code = message = None
        try:
            return await call_next(ctx)
        except Exception as exc:
            code, message = type(exc).__name__, str(exc)
            raise
        finally:
            current_trace.reset(token)
            seconds = time.perf_counter() - started
            self._context.log(trace, ctx.method, code=code, message=message, seconds=seconds, status=200)

    async def list_tools(self, ctx: SdkContext, params: types.PaginatedRequestParams) -> HandlerResult:
        if params.cursor is not None and not is_cursor(params.cursor):
            raise MCPError(types.INVALID_PARAMS, "Invalid cursor. Start again without one.")
        request_context, about = get_request_context(ctx), ctx.session.client_params
        client = ListingClient(about.client_info.name if about else "", request_context.wants_all_tools)
        await self._context.gateway.registry.wait_for_lists(request_context.principal)
        try:
            listed = await self.catalog.list_tools(request_context.principal, client)
        except AgentNotFound:  # it has left the catalog, and has no tools
            return {"tools": [], **UNCACHED}
        page, tools = listed.find_page(params.cursor, _MAX_TOOLS), list[dict[str, Any]]()
        async for encoded in iterate_in_slices(page.tools):
            tools += map(msgspec.json.decode, encoded)
        return {"tools": tools, **({"nextCursor": page.next_cursor} if page.next_cursor else {}), **UNCACHED}

    def get_input_schema(self, name: str) -> dict[str, Any] | None:
        """The SDK asks for it while it reads a request."""
        principal = _current_principal.get()
        return None if principal is None else self.catalog.get_input_schema(name, principal)

    def make_instructions(self, principal: Principal) -> str:
        return self._run_lookup(lambda: self.catalog.make_instructions(principal)) or ""

    async def call_tool(self, ctx: SdkContext, params: types.CallToolRequestParams) -> HandlerResult:
        request_context = get_request_context(ctx)
        request_context.can_show_apps = get_answer_capabilities(ctx).can_show_apps
        accepts_tasks = partial(declares_tasks, ctx)
        name, principal, arguments = params.name, request_context.principal, params.arguments or {}
        if (
            is_stateless_era(ctx)
            and not accepts_tasks()
            and needs_tasks(self._context, self.catalog, name, principal, arguments)
        ):
            raise make_undeclared_error()
        trace, chain = request_context.trace_from_meta(ctx.meta), (ctx.meta or {}).get(DELEGATION_META_KEY)
        call = ToolCall(self._context, self.catalog, request_context, name, trace, accepts_tasks, chain)
        try:
            result = await ToolElicitation(ctx, call, arguments).run(make_emitter(ctx, lambda: call.trace))
        except UnknownTool as exc:
            raise MCPError(types.INVALID_PARAMS, str(exc), exc.data) from exc
        except McpCallerDisconnected as exc:
            raise MCPError(REQUEST_CANCELLED, "The caller has disconnected") from exc
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(result))  # the SDK takes only plain JSON values
        return plain

    async def handle_set_level(self, ctx: SdkContext, params: types.SetLevelRequestParams) -> HandlerResult:
        set_log_level(ctx, params.level)
        return {}

    async def handle_initialized(self, ctx: SdkContext, params: types.NotificationParams) -> None:
        session = get_connection(ctx)
        self.notifier.add_session(session, find_login_owner(get_request_context(ctx).principal))
        open_session = self.sessions.find(session.session_id) if session.session_id is not None else None
        if open_session is not None:
            session.exit_stack.callback(self.sessions.end, open_session)
            if open_session.origin is not None:
                open_session.origin.is_initialized = True
            open_session.can_show_apps = get_answer_capabilities(ctx).can_show_apps
            open_session.client_name = session.client_params.client_info.name if session.client_params else ""

    def _run_lookup(self, lookup: Any) -> Any:
        """An agent that has left the catalog has no tools and no manifest."""
        try:
            return lookup()
        except AgentNotFound:
            return []
        except FabricError as error:
            raise MCPError(types.INTERNAL_ERROR, error.message) from error


# Keys that our own server leaves out of a scope and Starlette may read.
_DEFAULT_SCOPE: Mapping[str, Any] = {
    "asgi": {"version": "3.0"},
    "http_version": "1.1",
    "scheme": "http",
    "root_path": "",
    "query_string": b"",
}


_ACCEPT_BOTH = (b"accept", b"application/json, text/event-stream")
_REPLAY_HEADERS = [(b"content-type", b"application/json"), _ACCEPT_BOTH]
_INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
_RESUMED_TIMEOUT = 10.0  # seconds that a node that stops waits for calls whose clients have disconnected


class _Initialize(msgspec.Struct):
    version: str = msgspec.field(name="protocolVersion")


class McpServer:
    def __init__(
        self,
        context: DoorContext,
        catalog: ToolCatalog,
        manifest_subscriptions: ManifestSubscriptions,
        *,
        sessions: OpenSessions,
        idle_timeout: float,
    ) -> None:
        self.notifier = ChangeNotifier()
        self._catalog = catalog
        registry = context.gateway.registry
        prompts_resources = PromptsAndResources(
            context.resource_providers, registry.catalog_for, catalog.list_source_agents
        )
        prompt_handlers = PromptResourceHandlers(context, catalog, prompts_resources)
        self._prompts_resources = prompts_resources
        subscriptions = ResourceSubscriptions(
            context, catalog, prompts_resources, manifest_subscriptions, self.notifier
        )
        self._server = build_sdk_server(
            catalog.server_info, McpHandlers(context, catalog, prompt_handlers, subscriptions, self.notifier, sessions)
        )
        self._session_manager = ResumableSessionManager(
            self._server,
            max_request_body_size=sys.maxsize,  # the door reads the body, within its own limit
            max_sessions=None,  # `OpenSessions` counts them, over all servers
            session_idle_timeout=idle_timeout,
        )
        self._session_manager.owner_tag = context.owner_tag
        self._open_sessions = sessions
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(self._run(ready))
        await asyncio.wait({ready, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            self._task.result()

    async def _run(self, ready: asyncio.Future[None]) -> None:
        async with self._session_manager.run():
            ready.set_result(None)
            await self._closing.wait()

    async def aclose(self) -> None:
        self._closing.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=5)

    async def save_events(self) -> Callable[[str], SavedLog | None]:
        """Wait for calls whose clients have disconnected and may resume; then the events of each session, by name."""
        await self._session_manager.wait_until_answered(_RESUMED_TIMEOUT)
        return self._session_manager.save_events

    def pop_changes(self) -> set[ItemKind]:
        """The lists of prompts and resources that changed since the last call."""
        return self._prompts_resources.pop_changes()

    async def serve(self, scope: Any, receive: Receive, send: Send, request_context: McpRequestContext) -> None:
        """Serve one HTTP request of either era. A session belongs to its opener. Raises RateLimited."""
        full_scope = {
            **_DEFAULT_SCOPE,
            **scope,
            "user": _make_user(request_context.principal),
            REQUEST_CONTEXT_KEY: request_context,
        }
        _current_principal.set(request_context.principal)
        await self._catalog.refresh(request_context.principal)
        head = head_from_scope(scope)
        session_id = head.get(SESSION_HEADER_BYTES)
        if session_id is not None:
            await self._serve_in_session(session_id, full_scope, receive, send)
        elif is_stateless_request(head) or scope["method"] != "POST":
            await self._session_manager.handle_request(full_scope, receive, send)
        else:
            await self._open_session(request_context.principal, full_scope, receive, send)

    async def _open_session(self, principal: Principal, scope: Any, receive: Receive, send: Send) -> None:
        """Only `initialize` opens a session; any other request leaves nothing behind."""
        sessions = self._open_sessions
        session = await sessions.open(principal.principal_id)

        async def observe(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                session_id = next(
                    (value for key, value in message["headers"] if key.lower() == SESSION_HEADER_BYTES), None
                )
                if session_id is not None:
                    sessions.set_name(session, session_id.decode("latin-1"))
                    session.origin = _describe_opening(scope)
                    session.close = partial(self._close_session, session_id, principal)
            await send(message)

        try:
            await self._session_manager.handle_request(scope, receive, observe)
        finally:
            sessions.finish_request(session)
            if session.name is None:
                sessions.end(session)

    async def adopt_session(self, name: str, session: OpenSession, light: LightSession) -> None:
        """Open a session that was opened without the SDK, as its client did. A session's close closes it then."""
        _current_principal.set(light.principal)
        adopted_session.set(name)
        adopted_events.set(light.events)
        await self._replay(light, light.body, [])
        light.events = None
        session.close = partial(self._close_session, name.encode(), light.principal)
        if light.is_initialized:
            headers = [(SESSION_HEADER_BYTES, name.encode()), (VERSION_HEADER_BYTES, light.version.encode())]
            for body in (_INITIALIZED, *light.requests.values()):
                await self._replay(light, body, headers)

    async def _replay(self, light: LightSession, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        scope = {
            **_DEFAULT_SCOPE,
            "type": "http",
            "method": "POST",
            "path": light.path,
            "headers": [*headers, *_REPLAY_HEADERS],
            "user": _make_user(light.principal),
            REQUEST_CONTEXT_KEY: McpRequestContext(light.principal),
        }
        await self._session_manager.handle_request(scope, replay_body(body, _never_disconnect), _discard)

    async def _serve_in_session(self, session_id: str, scope: Any, receive: Receive, send: Send) -> None:
        session = self._open_sessions.find(session_id)
        if session is None or scope["method"] == "DELETE":
            await self._session_manager.handle_request(scope, receive, send)
            return
        is_stream = scope["method"] == "GET"
        session.requests += not is_stream
        session.streams += is_stream
        try:
            await self._session_manager.handle_request(scope, receive, send)
        finally:
            session.requests -= not is_stream
            session.streams -= is_stream
            session.answered_requests += 1
            session.used_at = self._open_sessions.clock()

    async def _close_session(self, session_id: bytes, principal: Principal) -> None:
        """Close the session as its client would, by DELETE."""
        scope = {
            **_DEFAULT_SCOPE,
            "type": "http",
            "method": "DELETE",
            "path": "/mcp",
            "headers": [(SESSION_HEADER_BYTES, session_id), _ACCEPT_BOTH],
            "user": _make_user(principal),
        }
        await self._session_manager.handle_request(scope, _receive_empty, _discard)

    async def run_text_session(
        self, incoming: IncomingTexts, send: SendText, request_context: McpRequestContext
    ) -> None:
        """Serve a conversation of either era over text messages."""
        _current_principal.set(request_context.principal)
        await self._catalog.refresh(request_context.principal)
        await run_text_session(self._server, incoming, send, request_context)


async def _receive_empty() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _never_disconnect() -> Any:
    await asyncio.Event().wait()


async def _discard(message: Any) -> None:
    pass


def _describe_opening(scope: Any) -> LightSession | None:
    """How the client opened a session, so that it can be opened again after a restart; None if that is too long."""
    request_context: McpRequestContext = scope[REQUEST_CONTEXT_KEY]
    message = request_context.message
    params = None if message is None else wire.decode_or_none(message.params, _Initialize)
    if message is None or params is None or len(message.params) > MAX_BODY:
        return None
    version = params.version if params.version in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": message.id, "method": message.method, "params": message.params})
    return LightSession(request_context.principal, scope["path"], version, body)


def _make_user(principal: Principal) -> AuthenticatedUser:
    client_id = owner_from_principal(principal)
    return AuthenticatedUser(AccessToken(token="", client_id=client_id, scopes=[]))
