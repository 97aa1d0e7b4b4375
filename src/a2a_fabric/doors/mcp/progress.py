"""Events of a running call as MCP notifications: progress for a client's token, log messages on request.

MCP wants progress to rise with every notification. Percentages are sent as they are; an event without one
raises progress by a millionth."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from a2a_fabric.core.events import Event
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.edge import to_encodable_text

EVENT_KEY = "a2a-fabric/event"
LOGGER = "a2a-fabric"
EVENT_LOG_LEVEL = "info"
LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]

_TOTAL = 100.0
_SMALLEST_STEP = 1e-6
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

Notification = tuple[str, dict[str, Any]]


class McpEventWriter:
    """Writes the events of one call as notifications, for a progress token, as log messages, or both."""

    def __init__(self, token: str | int | None, *, wants_logs: bool) -> None:
        self._token = token
        self._wants_logs = wants_logs
        self._progress = 0.0

    @property
    def has_recipient(self) -> bool:
        return self._token is not None or self._wants_logs

    def to_notifications(self, event: Event, trace: Trace) -> list[Notification]:
        payload = {"event": event.kind, "data": _to_plain_json(event.data), "trace": msgspec.to_builtins(trace)}
        notifications: list[Notification] = []
        if self._token is not None:
            notifications.append(("notifications/progress", self._progress_params(event, payload)))
        if self._wants_logs:
            notifications.append(
                ("notifications/message", {"level": EVENT_LOG_LEVEL, "logger": LOGGER, "data": payload})
            )
        return notifications

    def _progress_params(self, event: Event, payload: dict[str, Any]) -> dict[str, Any]:
        params: dict[str, Any] = {"progressToken": self._token, "progress": self._next_progress(event), "total": _TOTAL}
        message = _progress_message(event)
        if message:
            params["message"] = to_encodable_text(message)
        params["_meta"] = {EVENT_KEY: payload}
        return params

    def _next_progress(self, event: Event) -> float:
        percent = event.data.get("percent") if event.kind == "progress" else None
        is_further = isinstance(percent, int | float) and self._progress < percent <= _TOTAL
        self._progress = percent if is_further and percent is not None else self._progress + _SMALLEST_STEP
        return round(self._progress, 6)


def _progress_message(event: Event) -> str:
    data = event.data
    match event.kind:
        case "token":
            return str(data.get("text", ""))
        case "tool_call":
            return f"calls {data.get('tool', 'a tool')}"
        case "artifact":
            return f"artifact {data.get('name', '')}".rstrip()
        case "input_required":
            return str(data.get("message", "input required"))
        case _:
            return str(data.get("message") or data.get("status") or "")


def _to_plain_json(data: dict[str, Any]) -> Any:
    """Agents in this process may emit any value; one that JSON cannot hold is sent as text."""
    try:
        return _decode(_encode(data))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return {"text": to_encodable_text(repr(data))[:1000]}
