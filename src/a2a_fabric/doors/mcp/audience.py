"""Who hears what happens meanwhile: a client that gave a token for progress, or asked for log messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import mcp_types as types
from mcp.server.connection import allowed_log_levels

from a2a_fabric.core.events import Event
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.mcp.asker import Context, connection_of, is_modern
from a2a_fabric.doors.mcp.narration import LOG_LEVEL, LOG_LEVELS, Narration

_LEVELS: tuple[str, ...] = get_args(LOG_LEVELS)
_LEVEL_KEY = "fabric.log_level"
_NOTIFICATIONS: dict[str, type[types.ProgressNotification | types.LoggingMessageNotification]] = {
    "notifications/progress": types.ProgressNotification,
    "notifications/message": types.LoggingMessageNotification,
}


def emitter(ctx: Context, trace: Callable[[], Trace]) -> Emit | None:
    """None if nobody wants to hear; then nothing needs to happen step by step."""
    narration = Narration((ctx.meta or {}).get("progress_token"), logs=_wants_logs(ctx))
    if not narration.has_audience:
        return None

    async def emit(event: Event) -> None:
        for method, told in narration.tell(event, trace()):
            note = _NOTIFICATIONS[method].model_validate({"method": method, "params": told})
            await ctx.session.send_notification(note, related_request_id=ctx.request_id)

    return emit


def set_level(ctx: Context, level: str) -> None:
    """For the whole session, before 2026."""
    connection_of(ctx).state[_LEVEL_KEY] = level


def _wants_logs(ctx: Context) -> bool:
    """Asked for in each request since 2026, for a whole session before."""
    if is_modern(ctx):
        return LOG_LEVEL in allowed_log_levels(ctx.protocol_version, ctx.meta)
    wanted = connection_of(ctx).state.get(_LEVEL_KEY)
    return wanted is not None and _LEVELS.index(wanted) <= _LEVELS.index(LOG_LEVEL)
