"""The entries of the node's log, and how an entry becomes a line on a terminal. `log` writes them."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import msgspec

_MILLISECONDS = [f".{number:03d}Z" for number in range(1000)]


class CallLogEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The entry for one call. It has payloads only if the operator enabled them."""

    time: str
    level: str
    event: str
    trace_id: str
    span_id: str
    parent_span_id: str | None = None
    principal: str | None = None
    on_behalf_of: str | None = None
    auth_mode: str | None = None
    door: str | None = None
    target: str | None = None
    capability: str | None = None
    runtime: str | None = None
    operation: str | None = None
    status: str | None = None
    error_code: str | None = None
    error: str | None = None
    duration_ms: float | None = None
    streaming: bool = False
    used: str | None = None
    fallback_reason: str | None = None
    attempts: tuple[str, ...] | None = None  # the agents that were asked, each with its outcome, if several were
    job_id: str | None = None
    http_status: int | None = None
    span: str | None = None
    attributes: dict[str, str] | None = None
    input: object = None
    output: object = None


class JobLogEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The entry for a job that was accepted or that its worker released."""

    time: str
    level: str
    event: str
    trace_id: str
    job_id: str
    owner: str
    target: str
    capability: str
    status: str
    attempt: int = 0
    error_code: str | None = None
    error: str | None = None
    duration_ms: float | None = None  # duration of the attempt that ended

    @property
    def summary(self) -> str:
        duration = f" {self.duration_ms:.1f} ms" if self.duration_ms is not None else ""
        failure = f" {self.error_code}: {self.error}" if self.error_code else ""
        job = f"job {self.job_id} of {self.target}.{self.capability}"
        return f"{job} {self.status}{duration}{failure}  trace {self.trace_id}"


class StatusLogEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The entry for a change of an agent's status."""

    time: str
    level: str
    event: str
    trace_id: str  # of the call that caused the change, if any
    span_id: str
    agent_id: str
    before: str = msgspec.field(name="from")
    after: str = msgspec.field(name="to")
    reason: str
    message: str


class TextLogEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    time: str
    level: str
    event: str
    trace_id: str
    span_id: str
    logger: str
    message: str
    traceback: str | None = None


class StartLogEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The entry for a node that has started."""

    time: str
    level: str
    event: str
    trace_id: str
    span_id: str
    version: str
    node: str
    config: str | None = None
    listen: str
    store: str
    agents: int
    doors: tuple[str, ...] = ()
    pid: int
    message: str


LogEntry = CallLogEntry | JobLogEntry | StatusLogEntry | TextLogEntry | StartLogEntry


class _Clock:
    """Makes ISO timestamps; the part up to the second is formatted once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._text = ""

    def format_now(self) -> str:
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second = second
            self._text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return self._text + _MILLISECONDS[int((now - second) * 1000)]


timestamp = _Clock().format_now


def format_entry(entry: LogEntry) -> str:
    """Format an entry for a terminal."""
    time_of_day = entry.time[11:19]
    if isinstance(entry, TextLogEntry):
        tail = f"\n{entry.traceback}" if entry.traceback else ""
        return _replace_unprintable(f"{time_of_day} {entry.level:7} {entry.message}{tail}")
    if isinstance(entry, StatusLogEntry | StartLogEntry):
        return _replace_unprintable(f"{time_of_day} {entry.level:7} {entry.message}".replace("\n", " "))
    if isinstance(entry, JobLogEntry):
        return _replace_unprintable(f"{time_of_day} {entry.level:7} {entry.summary}".replace("\n", " "))
    subject = f"{entry.target}.{entry.capability}" if entry.target else entry.operation or entry.event
    duration = f" {entry.duration_ms:.1f} ms" if entry.duration_ms is not None else ""
    outcome = f" {entry.error_code}: {entry.error}" if entry.error_code else f" {entry.status or ''}"
    attempts = f" ({', '.join(entry.attempts)})" if entry.attempts else ""
    caller = f"  {entry.principal or entry.auth_mode}" if entry.target else ""
    behalf = f" for {entry.on_behalf_of}" if entry.on_behalf_of else ""
    door = f" at {entry.door}" if entry.door else ""
    text = f"{subject}{duration}{outcome}{attempts}{caller}{behalf}{door}  trace {entry.trace_id}"
    return _replace_unprintable(f"{time_of_day} {entry.level:7} {text}".replace("\n", " "))


def drop_payload(entry: LogEntry | str) -> LogEntry | str:
    """What can be read again must stay small."""
    if isinstance(entry, CallLogEntry) and (entry.input is not None or entry.output is not None):
        return msgspec.structs.replace(entry, input=None, output=None)
    return entry


def _replace_unprintable(text: str) -> str:
    """Replace control characters by `?`: names come from callers and could move the cursor or set colours."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def make_encodable(entry: LogEntry, error: Exception) -> LogEntry:
    copy = msgspec.structs.replace(entry)
    for name in ("input", "output") if isinstance(entry, CallLogEntry) else ():
        setattr(copy, name, None)
    for name in ("error", "message", "reason", "target", "capability", "operation", "principal", "traceback"):
        text = getattr(copy, name, None)
        if isinstance(text, str):
            setattr(copy, name, text.encode("utf-8", "replace").decode())
    if isinstance(copy, CallLogEntry):
        copy.output = f"not written: {type(error).__name__}"
    return copy
