"""The SDK's low-level server with our handlers: tools are operations and capabilities; `reading` has the rest."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import mcp_types as types
import msgspec
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.shared.exceptions import MCPError

from a2a_fabric.core.delegation import META_KEY
from a2a_fabric.core.errors import AgentNotFound, FabricError
from a2a_fabric.core.trace import current_trace
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.mcp.asker import Context, connection_of, is_modern, visit_of
from a2a_fabric.doors.mcp.audience import emitter, set_level
from a2a_fabric.doors.mcp.calling import ToolCall, UnknownTool
from a2a_fabric.doors.mcp.changes import Changes
from a2a_fabric.doors.mcp.interview import Interview
from a2a_fabric.doors.mcp.open_sessions import OpenSessions
from a2a_fabric.doors.mcp.reading import FRESH, Reading
from a2a_fabric.doors.mcp.shelf import About, Shelf
from a2a_fabric.doors.mcp.tasks import Tasks, declares_tasks, undeclared
from a2a_fabric.doors.mcp.visit import Left
from a2a_fabric.doors.mcp.watching import Watching


class MCPServer(Server[Any]):
    def create_initialization_options(self, *given: Any, **more: Any) -> InitializationOptions:
        """Over HTTP the SDK asks without options, and would say that our lists never change."""
        changing = NotificationOptions(tools_changed=True, resources_changed=True, prompts_changed=True)
        return super().create_initialization_options(*(given or (changing,)), **more)


def build_server(about: About, handlers: Handlers) -> MCPServer:
    server = MCPServer(
        about.name,
        version=about.version,
        title=about.title,
        instructions=about.instructions or None,
        get_tool_input_schema=handlers.shelf.schema_of,
        on_subscriptions_listen=handlers.watching.listen,
    )
    server.middleware[:] = [handlers.observe]
    server.add_request_handler("tools/list", types.PaginatedRequestParams, handlers.list_tools)
    server.add_request_handler("tools/call", types.CallToolRequestParams, handlers.call_tool)
    reading = handlers.reading
    server.add_request_handler("prompts/list", types.PaginatedRequestParams, reading.list_prompts)
    server.add_request_handler("prompts/get", types.GetPromptRequestParams, reading.get_prompt)
    server.add_request_handler("resources/list", types.PaginatedRequestParams, reading.list_resources)
    server.add_request_handler("resources/templates/list", types.PaginatedRequestParams, reading.list_templates)
    server.add_request_handler("resources/read", types.ReadResourceRequestParams, reading.read_resource)
    watching = handlers.watching
    server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, watching.subscribe)
    server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, watching.unsubscribe)
    server.add_request_handler("completion/complete", types.CompleteRequestParams, reading.complete)
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, handlers.set_level)
    handlers.tasks.join(server)
    server.add_notification_handler("notifications/initialized", types.NotificationParams, handlers.initialized)
    return server


class Handlers:
    def __init__(
        self,
        context: DoorContext,
        shelf: Shelf,
        reading: Reading,
        watching: Watching,
        changes: Changes,
        sessions: OpenSessions,
    ) -> None:
        self.shelf = shelf
        self.reading = reading
        self.watching = watching
        self.changes = changes
        self.sessions = sessions
        self.tasks = Tasks(context.jobs)
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
        return {"tools": self._told(lambda: self.shelf.tools(visit_of(ctx).principal)), **FRESH}

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> HandlerResult:
        visit = visit_of(ctx)
        takes_tasks = partial(declares_tasks, ctx)
        if is_modern(ctx) and self._needs_tasks(params.name) and not takes_tasks():
            raise undeclared()
        trace, chain = visit.trace(ctx.meta), (ctx.meta or {}).get(META_KEY)
        call = ToolCall(self._context, self.shelf, visit, params.name, trace, takes_tasks, chain)
        try:
            told = await Interview(ctx, call, params.arguments or {}).run(emitter(ctx, lambda: call.trace))
        except UnknownTool as exc:
            raise MCPError(types.INVALID_PARAMS, str(exc), exc.data) from exc
        except Left as exc:
            raise MCPError(REQUEST_CANCELLED, "The caller has gone") from exc
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(told))  # the SDK wants no values of ours
        return plain

    def _needs_tasks(self, name: str) -> bool:
        """Where there is no tool to fetch a job with, a call that always is one is of use to no other client."""
        if self.shelf.has_job_tools:
            return False
        behind = self._told(lambda: self.shelf.behind(name))
        return bool(behind) and self._context.jobs.job_after(*behind) == 0

    async def set_level(self, ctx: Context, params: types.SetLevelRequestParams) -> HandlerResult:
        set_level(ctx, params.level)
        return {}

    async def initialized(self, ctx: Context, params: types.NotificationParams) -> None:
        session = connection_of(ctx)
        self.changes.welcome(session)
        known = self.sessions.find(session.session_id) if session.session_id is not None else None
        if known is not None:
            session.exit_stack.callback(self.sessions.end, known)

    def _told(self, look: Any) -> Any:
        """An agent that has left has no tools and no manifest."""
        try:
            return look()
        except AgentNotFound:
            return []
        except FabricError as error:
            raise MCPError(types.INTERNAL_ERROR, error.message) from error
