"""Turns the end of a call, a request or a job into its log entry and its metrics.

Log entries are JSON lines, written by a thread so that a slow disk or terminal never slows a call.
The entry of a call is a struct that is encoded directly; everything else goes through the standard
`logging` and the same writer. Every entry has a trace id. Nearly all calls succeed, so a cached
template holds the constant part of their log lines together with their tally."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Protocol

import msgspec

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import Call
from a2a_fabric.core.federation import SpanFacts
from a2a_fabric.core.job import JobSummary
from a2a_fabric.core.propagation import Trace, current_trace, new_id
from a2a_fabric.core.recording import current_origin
from a2a_fabric.core.redaction import redact_json, redact_text
from a2a_fabric.core.result import Result
from a2a_fabric.telemetry.log_file import LogFile
from a2a_fabric.telemetry.metrics import CallTally, Metrics, render_value

_MAX_BUFFERED = 100_000
_WRITE_EVERY = 0.1
_OUTAGE_SECONDS = 60.0
_MAX_RECENT = 2000  # entries that can be read again
_MILLISECONDS = [f".{number:03d}Z" for number in range(1000)]
_CAPTURED = {"a2a_fabric": logging.NOTSET, "uvicorn": logging.WARNING, "mcp": logging.WARNING}  # lowest levels
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


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


class LogStream(Protocol):
    """Where lines go: a terminal, a pipe, or a `LogFile`."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...


class LogWriter:
    """Queues lines for a thread that writes them. If the queue is full, or the disk, lines are lost and counted."""

    def __init__(
        self,
        stream: LogStream | None = None,
        *,
        as_text: bool = False,
        level: str = "info",
        buffer_size: int = _MAX_BUFFERED,
    ) -> None:
        self._stream = stream or sys.stderr
        self._as_text = as_text
        self.set_level(level)
        self._entries: deque[LogEntry | str] = deque(maxlen=buffer_size)
        self._dropped = 0
        self.failure: str | None = None  # why the last lines could not be written
        self.lost = 0  # lines that were dropped, or that the stream did not take
        self._unwritten = 0  # lines that the stream did not take since it took one
        self._stopping = threading.Event()
        self._encoder = msgspec.json.Encoder()
        self._write_lock = threading.Lock()
        self.start_id = new_id()[:8]
        self._recent: deque[LogEntry | str] = deque(maxlen=_MAX_RECENT)
        self._recent_end = 0  # how many entries there were in all
        self._thread = threading.Thread(target=self._run, name="fabric-log", daemon=True)
        self._thread.start()

    def set_level(self, level: str) -> None:
        self.level = _LEVELS[level]
        self.takes_info = self.level <= logging.INFO
        self.takes_json = not self._as_text and self.takes_info  # whether `write_json` may be used
        for logger in map(logging.getLogger, _CAPTURED):
            _update_level(logger)

    def write(self, entry: LogEntry) -> None:
        if _LEVELS.get(entry.level, logging.CRITICAL) >= self.level:
            if len(self._entries) == self._entries.maxlen:
                self._dropped += 1
            self._entries.append(entry)

    def write_json(self, text: str) -> None:
        """Queue an info line that is already JSON and ends with a newline; only if `takes_json`."""
        if len(self._entries) == self._entries.maxlen:
            self._dropped += 1
        self._entries.append(text)

    def flush(self) -> None:
        with self._write_lock:
            entries = list(
                islice(iter(self._entries.popleft, ""), len(self._entries))
            )  # other threads add entries meanwhile
            if self._dropped:
                text = f"{self._dropped} log lines were dropped: they came faster than they could be written"
                entries.append(_make_warning(text))
                self.lost += self._dropped
                self._dropped = 0
            if not entries:
                return
            self._recent.extend(map(_drop_payload, entries))
            self._recent_end += len(entries)
            try:
                if self._unwritten:  # the gap in the log is explained where it is
                    text = f"{self._unwritten} log lines were lost: {self.failure}"
                    self._stream.write(self._render(_make_warning(text)))
                self._stream.write(self._join_entries(entries))
                self._stream.flush()
                self.failure, self._unwritten = None, 0
            except (OSError, ValueError) as exc:
                self.failure = getattr(exc, "strerror", None) or str(exc)  # the health of the node tells it
                self.lost += len(entries)
                self._unwritten += len(entries)

    def read_after(self, position: int) -> tuple[list[bytes], int]:
        """The newest entries after a position, as JSON, and the position after them. Payloads are left out."""
        with self._write_lock:
            end, entries = self._recent_end, list(self._recent)
        start = 0 if position > end else max(0, len(entries) - (end - position))
        return [self._encode_recent(entry) for entry in entries[start:]], end

    def _encode_recent(self, entry: LogEntry | str) -> bytes:
        if isinstance(entry, str):
            return entry.rstrip("\n").encode()
        try:
            return self._encoder.encode(entry)
        except Exception as exc:
            return self._encoder.encode(_make_encodable(entry, exc))

    def _join_entries(self, entries: list[LogEntry | str]) -> str:
        """Join without checking each entry, since nearly all are text; this blocks the event loop least."""
        try:
            return "".join(entries)  # type: ignore[arg-type]  # raises TypeError if one is not text
        except TypeError:
            return "".join(map(self._render, entries))

    def _render(self, entry: LogEntry | str) -> str:
        if isinstance(entry, str):
            return entry
        if self._as_text:
            return format_entry(entry) + "\n"
        try:
            return self._encoder.encode(entry).decode() + "\n"
        except Exception as exc:  # a payload that cannot be encoded must not lose other lines
            return self._encoder.encode(_make_encodable(entry, exc)).decode() + "\n"

    def render_metrics(self) -> Iterator[str]:
        yield render_value("fabric_log_lines_lost_total", "counter", "Log lines that could not be written", self.lost)

    def reopen(self) -> None:
        """Begin a new file with the next line, if the log is a file."""
        if isinstance(self._stream, LogFile):
            self._stream.request_reopen()

    def _run(self) -> None:
        while not self._stopping.wait(_WRITE_EVERY):
            self.flush()
        self.flush()

    def close(self) -> None:
        """Let the thread write the remaining lines, and wait for it at most two seconds."""
        self._stopping.set()
        self._thread.join(2)


class StoreOutage:
    """Whether a record about the store is news. Many parts of a node notice an outage, and say so again and again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._is_away = False
        self._seen_at = 0.0

    def is_news(self, *, is_away: bool) -> bool:
        """A single hiccup, after which no part says that the store is back, is forgotten after a minute."""
        now, was_away, self._is_away = self._clock(), self._is_away, is_away
        if not is_away:
            return was_away
        is_known = was_away and now - self._seen_at < _OUTAGE_SECONDS
        self._seen_at = now
        return not is_known


class JSONHandler(logging.Handler):
    """Writes log records of the standard library, with the trace of the current call."""

    def __init__(self, writer: LogWriter, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self._writer = writer
        self._store_outage = StoreOutage()

    @property
    def lowest(self) -> int:
        return max(self.level, self._writer.level)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(record)
        except Exception:
            self.handleError(record)

    def _write(self, record: logging.LogRecord) -> None:
        is_away: bool | None = getattr(record, "store_is_away", None)
        if is_away is not None and not self._store_outage.is_news(is_away=is_away):
            return
        trace = current_trace.get()
        traceback = logging.Formatter().formatException(record.exc_info) if record.exc_info else None
        self._writer.write(
            TextLogEntry(
                time=timestamp(),
                level=record.levelname.lower(),
                event="log",
                trace_id=trace.trace_id,
                span_id=trace.span_id,
                logger=record.name,
                message=redact_text(record.getMessage()),
                traceback=traceback and redact_text(traceback),
            )
        )


@contextmanager
def capture_log_records(writer: LogWriter) -> Iterator[None]:
    """Write what the node and its libraries log. Afterwards the process logs as before."""
    handlers = {logging.getLogger(name): JSONHandler(writer, level) for name, level in _CAPTURED.items()}
    for logger, handler in handlers.items():
        logger.addHandler(handler)
        _update_level(logger)
    try:
        yield
    finally:
        for logger, handler in handlers.items():
            logger.removeHandler(handler)
            _update_level(logger)


def _update_level(logger: logging.Logger) -> None:
    """Several nodes may run in a process: the logger's level is the lowest that one of them writes."""
    levels = [handler.lowest for handler in logger.handlers if isinstance(handler, JSONHandler)]
    logger.setLevel(min(levels, default=logging.NOTSET))


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


def _drop_payload(entry: LogEntry | str) -> LogEntry | str:
    """What can be read again must stay small."""
    if isinstance(entry, CallLogEntry) and (entry.input is not None or entry.output is not None):
        return msgspec.structs.replace(entry, input=None, output=None)
    return entry


def _replace_unprintable(text: str) -> str:
    """Replace control characters by `?`: names come from callers and could move the cursor or set colours."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def _make_encodable(entry: LogEntry, error: Exception) -> LogEntry:
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


def _make_warning(message: str) -> TextLogEntry:
    trace = current_trace.get()
    return TextLogEntry(
        time=timestamp(),
        level="warning",
        event="log",
        trace_id=trace.trace_id,
        span_id=trace.span_id,
        logger=__name__,
        message=message,
    )


_MAX_ERROR_CHARS = 1000  # an agent's error message may be as long as its replies
_MAX_TEMPLATES = 10_000
_MAX_SPARE_ROWS = 10_000  # of metrics, for agents that left
_CALLER_ERROR_CODES = frozenset({"BAD_INPUT", "AGENT_NOT_FOUND", "CAPABILITY_NOT_FOUND", "CANCELLED"})


class CallTemplate(msgspec.Struct, frozen=True):
    """The common data of successful calls from one principal to one capability."""

    tally: CallTally
    constant: str  # the constant part of their log lines


class Telemetry:
    """`find_agent` reads the catalog: only agents in the catalog become labels of metrics."""

    def __init__(
        self,
        log: LogWriter,
        metrics: Metrics,
        find_agent: Callable[[str], Manifest | None],
        *,
        payloads: bool = False,
    ) -> None:
        self.log = log
        self.metrics = metrics
        self._find_agent = find_agent
        self._payloads = payloads
        self._templates: dict[tuple[str | None, str, str, str, bool, str], CallTemplate] = {}
        self._max_rows = _MAX_SPARE_ROWS
        self._pruning: asyncio.Future[None] | None = None

    def on_catalog_changed(self, catalog: object) -> None:
        """Forget the metrics of agents that left, once there are many: callers choose the ids of what they register."""
        self._templates.clear()  # they hold what the cards of agents say
        if self.metrics.row_count > self._max_rows and self._pruning is None:
            self._pruning = asyncio.ensure_future(self.forget_missing_agents())

    async def forget_missing_agents(self) -> None:
        """In slices, with calls in between."""
        try:
            await self.metrics.keep_only(lambda agent_id: self._find_agent(agent_id) is not None)
            self._templates.clear()  # they hold tallies
            self._max_rows = 2 * self.metrics.row_count + _MAX_SPARE_ROWS
        finally:
            self._pruning = None

    def record_success(self, call: Call, result: Result, seconds: float) -> None:
        auth, target, trace = call.auth, call.target, call.trace
        origin = current_origin.get()
        key = (auth.principal_id, auth.mode, target.agent_id, target.capability, call.response.stream, origin.door)
        template = self._templates.get(key)
        if template is None:
            template = self._make_template(call, origin.door)
            self._templates[key] = template
        template.tally.add(seconds)
        if not self.log.takes_info:
            return
        is_plain = result.fallback is None and not call.on_behalf_of and origin.job_id is None
        if not is_plain or self._payloads or not self.log.takes_json:
            self._write(call, seconds, result=result)
            return
        parent = f'"parent_span_id":"{trace.parent_span_id}",' if trace.parent_span_id else ""
        self.log.write_json(
            f'{{"time":"{timestamp()}","level":"info","event":"call","trace_id":"{trace.trace_id}",'
            f'"span_id":"{trace.span_id}",{parent}{template.constant},"duration_ms":{seconds * 1000:.3f}}}\n'
        )

    def record_failure(self, call: Call, code: str, message: str, seconds: float, attempts: Sequence[str] = ()) -> None:
        manifest = self._find_agent(call.target.agent_id)
        self.metrics.get_tally(manifest, call.target.capability, code).add(seconds)
        self._write(call, seconds, code=code, message=message, attempts=attempts)

    def record_status_change(self, agent_id: str, before: Status, after: Status, reason: str) -> None:
        self.metrics.count_status_change(agent_id, after)
        trace = current_trace.get()
        self.log.write(
            StatusLogEntry(
                time=timestamp(),
                level="warning" if after in ("degraded", "offline") else "info",
                event="status",
                trace_id=trace.trace_id,
                span_id=trace.span_id,
                agent_id=agent_id,
                before=before,
                after=after,
                reason=reason,
                message=f"agent {agent_id} went from {before} to {after}: {reason}",
            )
        )

    def _make_template(self, call: Call, door: str) -> CallTemplate:
        if len(self._templates) >= _MAX_TEMPLATES:
            self._templates.clear()
        target = call.target
        fields: dict[str, Any] = {
            "auth_mode": call.auth.mode,
            "target": target.agent_id,
            "capability": target.capability,
        }
        if call.auth.principal_id is not None:
            fields["principal"] = call.auth.principal_id
        if door:
            fields["door"] = door
        if call.response.stream:
            fields["streaming"] = True
        fields["status"] = "completed"
        manifest = self._find_agent(target.agent_id)
        if manifest is not None and manifest.runtime is not None:
            fields["runtime"] = manifest.runtime
        if (span := _find_span(manifest, target.capability)) is not None:
            fields["span"], fields["attributes"] = span
        tally = self.metrics.get_tally(manifest, target.capability, None)
        return CallTemplate(tally, msgspec.json.encode(fields).decode()[1:-1])

    def _write(
        self,
        call: Call,
        seconds: float,
        *,
        code: str | None = None,
        message: str | None = None,
        result: Result | None = None,
        attempts: Sequence[str] = (),
    ) -> None:
        trace, origin, manifest = call.trace, current_origin.get(), self._find_agent(call.target.agent_id)
        fallback = result.fallback if result is not None else None
        span = _find_span(manifest, call.target.capability)
        self.log.write(
            CallLogEntry(
                time=timestamp(),
                level=_level(code),
                event="call",
                trace_id=trace.trace_id,
                span_id=trace.span_id,
                parent_span_id=trace.parent_span_id,
                principal=call.auth.principal_id,
                on_behalf_of=call.on_behalf_of.principal_id if call.on_behalf_of else None,
                auth_mode=call.auth.mode,
                door=origin.door or None,
                job_id=origin.job_id,
                runtime=None if manifest is None else manifest.runtime,
                attempts=tuple(attempts if fallback is None else fallback.attempts) or None,
                target=call.target.agent_id[:128],
                capability=call.target.capability[:128],
                status="failed" if code else "completed",
                error_code=code,
                error=message and redact_text(message[:_MAX_ERROR_CHARS]),
                span=None if span is None else span.name,
                attributes=None if span is None else span.attributes,
                duration_ms=round(seconds * 1000, 3),
                streaming=call.response.stream,
                used=None if fallback is None else fallback.used,
                fallback_reason=None if fallback is None else fallback.reason,
                input=_redact_payload(call.input) if self._payloads else None,
                output=_redact_payload(result.data) if self._payloads and result is not None else None,
            )
        )

    def log_start(
        self, *, version: str, node: str, config: str | None, listen: str, store: str, agents: int, doors: Sequence[str]
    ) -> None:
        trace = current_trace.get()
        source = f"configuration {config}" if config is not None else "no configuration file"
        title = f"node {node}, version {version}, started at {listen}"
        self.log.write(
            StartLogEntry(
                time=timestamp(),
                level="info",
                event="start",
                trace_id=trace.trace_id,
                span_id=trace.span_id,
                version=version,
                node=node,
                config=config,
                listen=listen,
                store=store,
                agents=agents,
                doors=tuple(doors),
                pid=os.getpid(),
                message=f"{title}: {source}, store {store}, {agents} agents",
            )
        )

    def log_request(
        self, trace: Trace, operation: str, *, code: str | None, message: str | None, seconds: float, status: int
    ) -> None:
        """Log a request that is not a call, or that was refused before it became a call."""
        self.log.write(
            CallLogEntry(
                time=timestamp(),
                level=_level(code),
                event="request",
                trace_id=trace.trace_id,
                span_id=trace.span_id,
                parent_span_id=trace.parent_span_id,
                operation=operation[:128],
                status="failed" if code else "completed",
                error_code=code,
                error=message and redact_text(message[:_MAX_ERROR_CHARS]),
                duration_ms=round(seconds * 1000, 3),
                http_status=status,
            )
        )


def _redact_payload(value: object) -> object:
    """Without credentials. What is not JSON stays as it is; the writer leaves it out."""
    try:
        return redact_json(msgspec.to_builtins(value))
    except (TypeError, ValueError, RecursionError):
        return value


def _find_span(manifest: Manifest | None, capability: str) -> SpanFacts | None:
    """What the agent's card wants on each of its log lines; None for an agent whose card says nothing about that."""
    if manifest is None or manifest.observability is None:
        return None
    return manifest.describe_span(capability[:128])


def _level(code: str | None) -> str:
    if code is None:
        return "info"
    return "info" if code in _CALLER_ERROR_CODES else "warning"


_MAX_JOB_ERROR_CHARS = 1000


class JobLogger:
    def __init__(self, log: LogWriter, on_ended: Callable[[JobSummary], None] | None = None) -> None:
        """`on_ended` gets each job that has ended on this node."""
        self._log = log
        self._on_ended = on_ended

    def on_accepted(self, job: JobSummary) -> None:
        self._write(job, "accepted", "info")

    def on_released(self, job: JobSummary) -> None:
        if self._on_ended is not None and job.has_ended:
            self._on_ended(job)
        error = job.error
        self._write(
            job,
            job.state,
            "warning" if job.state in ("failed", "timeout") else "info",
            attempt=job.attempt,
            error_code=None if error is None else error.code,
            error=None if error is None else error.message[:_MAX_JOB_ERROR_CHARS],
            # The duration of the latest attempt, by the store's clock.
            duration_ms=None if job.started_at is None else round((job.updated_at - job.started_at) * 1000, 3),
        )

    def _write(self, job: JobSummary, status: str, level: str, **more: Any) -> None:
        self._log.write(
            JobLogEntry(
                time=timestamp(),
                event="job",
                level=level,
                trace_id=job.meta.get("trace_id", ""),
                job_id=job.job_id,
                owner=job.owner,
                target=job.agent_id,
                capability=job.capability,
                status=status,
                **more,
            )
        )
