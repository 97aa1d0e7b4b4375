"""Facts about an MCP request received through the SDK: caller, era, transport, requested notifications."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import mcp_types as types
from mcp.server.connection import Connection, allowed_log_levels
from mcp.server.context import ServerRequestContext
from mcp_types import INVALID_PARAMS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request as WebRequest

from a2a_fabric.core.events import Event
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.mcp.progress import EVENT_LOG_LEVEL, LogLevel, McpEventWriter
from a2a_fabric.doors.mcp.request_context import McpRequestContext
from a2a_fabric.protocols.mcp.frames import RESOURCE_NOT_FOUND

REQUEST_CONTEXT_KEY = "fabric.mcp.request_context"  # in the scope of an HTTP request

SdkContext = ServerRequestContext[Any, Any]

# The capabilities of a client that let a server ask it something.
_ASKABLE = {"elicitation", "roots", "sampling"}


def get_request_context(ctx: SdkContext) -> McpRequestContext:
    """HTTP requests carry the context in their scope, text sessions with each message."""
    request = ctx.request
    request_context = request.scope[REQUEST_CONTEXT_KEY] if isinstance(request, WebRequest) else request
    assert isinstance(request_context, McpRequestContext)  # noqa: S101  # every way in sets it
    return request_context


def get_connection(ctx: SdkContext) -> Connection:
    """The connection outlives the request. The SDK has no public way to it."""
    return ctx.session._connection


def is_stateless_era(ctx: SdkContext) -> bool:
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def resource_not_found_code(ctx: SdkContext) -> int:
    return INVALID_PARAMS if is_stateless_era(ctx) else RESOURCE_NOT_FOUND


def get_askable_capabilities(ctx: SdkContext) -> dict[str, Any]:
    """The questions that the client can answer. In the handshake era requests must be able to reach it."""
    declared = ctx.session.client_capabilities if is_stateless_era(ctx) or ctx.session.can_send_request else None
    if declared is None:
        return {}
    return declared.model_dump(by_alias=True, mode="json", exclude_none=True, include=_ASKABLE)


_LOG_LEVELS: tuple[str, ...] = get_args(LogLevel)
_LOG_LEVEL_KEY = "fabric.log_level"
_NOTIFICATION_TYPES: dict[str, type[types.ProgressNotification | types.LoggingMessageNotification]] = {
    "notifications/progress": types.ProgressNotification,
    "notifications/message": types.LoggingMessageNotification,
}


def make_emitter(ctx: SdkContext, trace: Callable[[], Trace]) -> Emit | None:
    """None if the client wants neither progress nor log messages; then the call need not be streamed."""
    writer = McpEventWriter((ctx.meta or {}).get("progress_token"), wants_logs=_wants_logs(ctx))
    if not writer.has_recipient:
        return None

    async def emit(event: Event) -> None:
        for method, params in writer.to_notifications(event, trace()):
            notification = _NOTIFICATION_TYPES[method].model_validate({"method": method, "params": params})
            await ctx.session.send_notification(notification, related_request_id=ctx.request_id)

    return emit


def set_log_level(ctx: SdkContext, level: str) -> None:
    """Set the level of a session of the handshake era."""
    get_connection(ctx).state[_LOG_LEVEL_KEY] = level


def _wants_logs(ctx: SdkContext) -> bool:
    """Each request asks for logs in the stateless era; in the handshake era the session does."""
    if is_stateless_era(ctx):
        return EVENT_LOG_LEVEL in allowed_log_levels(ctx.protocol_version, ctx.meta)
    session_level = get_connection(ctx).state.get(_LOG_LEVEL_KEY)
    return session_level is not None and _LOG_LEVELS.index(session_level) <= _LOG_LEVELS.index(EVENT_LOG_LEVEL)
