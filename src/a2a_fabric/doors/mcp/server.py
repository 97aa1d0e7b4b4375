"""The SDK's low-level server with our handlers: tools are operations and capabilities, resources are manifests."""

from __future__ import annotations

import time
from bisect import bisect_right
from typing import Any, get_args

import mcp_types as types
import msgspec
from mcp.server.connection import Connection, allowed_log_levels
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request as WebRequest

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import AgentNotFound, FabricError
from a2a_fabric.core.events import Event
from a2a_fabric.core.pipeline import ignore
from a2a_fabric.core.trace import current_trace
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.mcp import answer
from a2a_fabric.doors.mcp.calling import ToolCall, UnknownTool
from a2a_fabric.doors.mcp.changes import Changes
from a2a_fabric.doors.mcp.narration import LOG_LEVEL, LOG_LEVELS, Narration
from a2a_fabric.doors.mcp.shelf import About, Shelf
from a2a_fabric.doors.mcp.visit import Left, Visit
from a2a_fabric.operations import Request

VISIT = "fabric.mcp.visit"  # where the scope of an HTTP request holds its Visit
AGENTS = "fabric://agents/"

_LEVELS: tuple[str, ...] = get_args(LOG_LEVELS)
_LEVEL_KEY = "fabric.log_level"
_PAGE = 500
_NOTIFICATIONS: dict[str, type[types.ProgressNotification | types.LoggingMessageNotification]] = {
    "notifications/progress": types.ProgressNotification,
    "notifications/message": types.LoggingMessageNotification,
}

Context = ServerRequestContext[Any, Any]


class MCPServer(Server[Any]):
    def create_initialization_options(self, *given: Any, **more: Any) -> InitializationOptions:
        """Over HTTP the SDK asks without options, and would say that our lists never change."""
        changing = NotificationOptions(tools_changed=True, resources_changed=True)
        return super().create_initialization_options(*(given or (changing,)), **more)


def build_server(about: About, handlers: Handlers) -> MCPServer:
    server = MCPServer(
        about.name,
        version=about.version,
        title=about.title,
        instructions=about.instructions or None,
        get_tool_input_schema=handlers.shelf.schema_of,
        on_subscriptions_listen=handlers.changes.listen,
    )
    server.middleware[:] = [handlers.observe]
    server.add_request_handler("tools/list", types.PaginatedRequestParams, handlers.list_tools)
    server.add_request_handler("tools/call", types.CallToolRequestParams, handlers.call_tool)
    server.add_request_handler("resources/list", types.PaginatedRequestParams, handlers.list_resources)
    server.add_request_handler("resources/templates/list", types.PaginatedRequestParams, handlers.list_templates)
    server.add_request_handler("resources/read", types.ReadResourceRequestParams, handlers.read_resource)
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, handlers.set_level)
    server.add_notification_handler("notifications/initialized", types.NotificationParams, handlers.initialized)
    return server


class Handlers:
    def __init__(self, context: DoorContext, shelf: Shelf, changes: Changes) -> None:
        self.shelf = shelf
        self.changes = changes
        self._context = context

    async def observe(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Every request leaves a line in the log; a tool's call leaves its own."""
        if ctx.request_id is None or ctx.method in ("tools/call", "ping"):
            return await call_next(ctx)
        trace = visit_of(ctx).trace(ctx.meta)
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

    async def list_tools(self, ctx: Context, params: types.PaginatedRequestParams) -> HandlerResult:
        if params.cursor is not None:
            raise MCPError(types.INVALID_PARAMS, "There is only one page of tools")
        return {"tools": self._told(lambda: self.shelf.tools(visit_of(ctx).principal)), **_FRESH}

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> HandlerResult:
        visit = visit_of(ctx)
        call = ToolCall(self._context, self.shelf, visit, params.name, visit.trace(ctx.meta))
        narration = Narration((ctx.meta or {}).get("progress_token"), logs=_wants_logs(ctx))

        async def emit(event: Event) -> None:
            for method, told in narration.tell(event, call.trace):
                note = _NOTIFICATIONS[method].model_validate({"method": method, "params": told})
                await ctx.session.send_notification(note, related_request_id=ctx.request_id)

        try:
            told = await call.run(params.arguments or {}, emit if narration.has_audience else None)
        except UnknownTool as exc:
            raise MCPError(types.INVALID_PARAMS, str(exc), exc.data) from exc
        except Left as exc:
            raise MCPError(REQUEST_CANCELLED, "The caller has gone") from exc
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(told))  # the SDK wants no values of ours
        return plain

    async def list_resources(self, ctx: Context, params: types.PaginatedRequestParams) -> HandlerResult:
        agents = self._told(lambda: self.shelf.agents(visit_of(ctx).principal))
        ordered = sorted(agents, key=lambda manifest: manifest.agent_id)
        start = bisect_right([m.agent_id for m in ordered], params.cursor) if params.cursor is not None else 0
        page = ordered[start : start + _PAGE]
        listed: dict[str, Any] = {"resources": [_resource(manifest) for manifest in page], **_FRESH}
        if start + _PAGE < len(ordered):
            listed["nextCursor"] = page[-1].agent_id
        return listed

    async def list_templates(self, ctx: Context, params: types.PaginatedRequestParams) -> HandlerResult:
        template = {
            "uriTemplate": AGENTS + "{agent_id}",
            "name": "agent",
            "title": "Manifest of an agent",
            "description": "Capabilities with their schemas, health and trust of one agent.",
            "mimeType": "application/json",
        }
        return {"resourceTemplates": [template], **_FRESH}

    async def read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> HandlerResult:
        visit, uri = visit_of(ctx), str(params.uri)
        agent_id = uri.removeprefix(AGENTS)
        known = {manifest.agent_id for manifest in self._told(lambda: self.shelf.agents(visit.principal))}
        if not uri.startswith(AGENTS) or agent_id not in known:
            raise MCPError(_not_found(ctx), f"Unknown resource: {answer.speakable(uri[:256])}", {"uri": uri[:256]})
        raw = msgspec.Raw(msgspec.json.encode({"agent_id": agent_id}))
        prepared = self._context.operations.prepare("fabric.agent.describe", raw)
        result = await prepared.run(Request(trace=visit.trace(ctx.meta), principal=visit.principal), ignore)
        text = msgspec.json.encode(result.data["agent"]).decode()
        return {"contents": [{"uri": uri, "mimeType": "application/json", "text": text}], **_FRESH}

    async def set_level(self, ctx: Context, params: types.SetLevelRequestParams) -> HandlerResult:
        connection_of(ctx).state[_LEVEL_KEY] = params.level
        return {}

    async def initialized(self, ctx: Context, params: types.NotificationParams) -> None:
        self.changes.welcome(connection_of(ctx))

    def _told(self, look: Any) -> Any:
        """An agent that has left has no tools and no manifest."""
        try:
            return look()
        except AgentNotFound:
            return []
        except FabricError as error:
            raise MCPError(types.INTERNAL_ERROR, error.message) from error


# Lists depend on who asks and may change at any time.
_FRESH = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def visit_of(ctx: Context) -> Visit:
    """HTTP requests carry it in their scope, conversations with each message."""
    carrier = ctx.request
    visit = carrier.scope[VISIT] if isinstance(carrier, WebRequest) else carrier
    assert isinstance(visit, Visit)  # noqa: S101  # every way in sets it
    return visit


def connection_of(ctx: Context) -> Connection:
    """The SDK hands out a session per request and no public way to what outlives it."""
    return ctx.session._connection


def _wants_logs(ctx: Context) -> bool:
    """Asked for in each request since 2026, for a whole session before."""
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return LOG_LEVEL in allowed_log_levels(ctx.protocol_version, ctx.meta)
    wanted = connection_of(ctx).state.get(_LEVEL_KEY)
    return wanted is not None and _LEVELS.index(wanted) <= _LEVELS.index(LOG_LEVEL)


def _not_found(ctx: Context) -> int:
    return types.INVALID_PARAMS if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS else -32002


def _resource(manifest: Manifest) -> dict[str, Any]:
    return {
        "uri": AGENTS + manifest.agent_id,
        "name": manifest.agent_id,
        "title": manifest.display_name or manifest.agent_id,
        "description": manifest.description or f"Manifest of the agent {manifest.agent_id}",
        "mimeType": "application/json",
    }
