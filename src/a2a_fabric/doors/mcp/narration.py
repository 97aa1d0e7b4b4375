"""What happens during a call, as MCP tells it: progress for those who gave a token, log messages for those who asked.

Progress must rise with every notification. Percentages are told as they are; words
between them move it by next to nothing.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from a2a_fabric.core.events import Event
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.mcp.answer import speakable

EVENT_KEY = "a2a-fabric/event"
LOGGER = "a2a-fabric"
LOG_LEVEL = "info"
LOG_LEVELS = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]

_TOTAL = 100.0
_NEXT_TO_NOTHING = 1e-6
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

Notification = tuple[str, dict[str, Any]]


class Narration:
    """The story of one call; without a token and a wish for logs there is nobody to tell it to."""

    def __init__(self, token: str | int | None, *, logs: bool) -> None:
        self._token = token
        self._logs = logs
        self._progress = 0.0

    @property
    def has_audience(self) -> bool:
        return self._token is not None or self._logs

    def tell(self, event: Event, trace: Trace) -> list[Notification]:
        told = {"event": event.kind, "data": _plain(event.data), "trace": msgspec.to_builtins(trace)}
        notes: list[Notification] = []
        if self._token is not None:
            notes.append(("notifications/progress", self._as_progress(event, told)))
        if self._logs:
            notes.append(("notifications/message", {"level": LOG_LEVEL, "logger": LOGGER, "data": told}))
        return notes

    def _as_progress(self, event: Event, told: dict[str, Any]) -> dict[str, Any]:
        params: dict[str, Any] = {"progressToken": self._token, "progress": self._advance(event), "total": _TOTAL}
        message = _words(event)
        if message:
            params["message"] = speakable(message)
        params["_meta"] = {EVENT_KEY: told}
        return params

    def _advance(self, event: Event) -> float:
        percent = event.data.get("percent") if event.kind == "progress" else None
        is_further = isinstance(percent, int | float) and self._progress < percent <= _TOTAL
        self._progress = percent if is_further and percent is not None else self._progress + _NEXT_TO_NOTHING
        return round(self._progress, 6)


def _words(event: Event) -> str:
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


def _plain(data: dict[str, Any]) -> Any:
    """Agents in this process may emit anything; what JSON cannot hold is told as words."""
    try:
        return _decode(_encode(data))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return {"text": speakable(repr(data))[:1000]}
