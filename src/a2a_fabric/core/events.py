"""Events that an agent emits before its result. `final` closes a stream on the wire and is never emitted inside."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal, get_args

import msgspec

EventKind = Literal["status", "token", "tool_call", "progress", "artifact", "input_required"]
EVENT_KINDS: frozenset[str] = frozenset(get_args(EventKind))


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: EventKind
    data: dict[str, Any]
    number: int = 0  # its number in a job's log, if it was read from one
    at: float = 0.0  # when it was written there, in seconds since 1970


def format_timestamp(timestamp: float, precision: Literal["seconds", "milliseconds"] = "milliseconds") -> str:
    """A time on the wire: 2025-05-25T14:25:00.000Z"""
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def status(word: Literal["queued", "running", "complete", "error"], message: str | None = None, **more: Any) -> Event:
    return Event("status", {"status": word, "message": message, **more} if message else {"status": word, **more})


def token(text: str) -> Event:
    return Event("token", {"text": text})


def tool_call(tool: str, arguments: dict[str, Any]) -> Event:
    return Event("tool_call", {"tool": tool, "arguments": arguments})


def progress(percent: float, message: str | None = None) -> Event:
    """`percent` is clamped to 0 to 100."""
    bounded = min(100.0, max(0.0, percent))
    return Event("progress", {"percent": bounded, "message": message} if message else {"percent": bounded})


def artifact(content: dict[str, Any]) -> Event:
    return Event("artifact", content)
