"""Log lines as JSON, written by a thread so that a slow disk or terminal never slows a call.

A call's line is a struct encoded at once; everything else goes through the
standard `logging` and comes out of the same writer. Every line has a trace id.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from datetime import UTC, datetime
from itertools import islice
from typing import IO

import msgspec

from a2a_fabric.core.trace import current_trace

_LINES_HELD = 100_000
_WRITE_EVERY = 0.1
_MILLISECONDS = [f".{number:03d}Z" for number in range(1000)]
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class CallLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is written about one call. Payloads only when the operator asked for them."""

    time: str
    level: str
    event: str
    trace_id: str
    span_id: str
    parent_span_id: str | None = None
    principal: str | None = None
    auth_mode: str | None = None
    target: str | None = None
    capability: str | None = None
    operation: str | None = None
    status: str | None = None
    error_code: str | None = None
    error: str | None = None
    duration_ms: float | None = None
    streaming: bool = False
    used: str | None = None
    fallback_reason: str | None = None
    http_status: int | None = None
    input: object = None
    output: object = None


class JobLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is written when a job is accepted, and when its worker leaves it."""

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
    duration_ms: float | None = None  # of the attempt that ended

    @property
    def words(self) -> str:
        took = f" {self.duration_ms:.1f} ms" if self.duration_ms is not None else ""
        why = f" {self.error_code}: {self.error}" if self.error_code else ""
        return f"job {self.job_id} of {self.target}.{self.capability} {self.status}{took}{why}  trace {self.trace_id}"


class StatusLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is written when an agent's status changes."""

    time: str
    level: str
    event: str
    trace_id: str  # of the call that showed it, if one did
    span_id: str
    agent_id: str
    before: str = msgspec.field(name="from")
    after: str = msgspec.field(name="to")
    reason: str
    message: str


class TextLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    time: str
    level: str
    event: str
    trace_id: str
    span_id: str
    logger: str
    message: str
    traceback: str | None = None


Line = CallLine | JobLine | StatusLine | TextLine


class LogWriter:
    """Holds lines until its thread writes them; drops, and says how many, when they come faster than they can go."""

    def __init__(
        self, stream: IO[str] | None = None, *, as_text: bool = False, level: str = "info", held: int = _LINES_HELD
    ) -> None:
        self.level = _LEVELS[level]
        self._stream = stream or sys.stderr
        self._as_text = as_text
        self.takes_json = not as_text and self.level <= logging.INFO  # an info line may come ready-made
        self._lines: deque[Line | str] = deque(maxlen=held)
        self._dropped = 0
        self._stopping = threading.Event()
        self._encoder = msgspec.json.Encoder()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="fabric-log", daemon=True)
        self._thread.start()

    def write(self, line: Line) -> None:
        if _LEVELS.get(line.level, logging.CRITICAL) >= self.level:
            if len(self._lines) == self._lines.maxlen:
                self._dropped += 1
            self._lines.append(line)

    def write_json(self, text: str) -> None:
        """An info line that is JSON already, with its end; only while `takes_json`."""
        if len(self._lines) == self._lines.maxlen:
            self._dropped += 1
        self._lines.append(text)

    def flush(self) -> None:
        with self._writing:
            lines = list(islice(iter(self._lines.popleft, ""), len(self._lines)))  # while others are added
            if self._dropped:
                lines.append(_about_dropped(self._dropped))
                self._dropped = 0
            if not lines:
                return
            try:
                self._stream.write(self._text_of(lines))
                self._stream.flush()
            except (OSError, ValueError):
                pass  # nobody can be told that nobody can be told

    def _text_of(self, lines: list[Line | str]) -> str:
        """Mostly they are all text already: joined without a look at each, they hold the event loop up least."""
        try:
            return "".join(lines)  # type: ignore[arg-type]  # that is the question
        except TypeError:
            return "".join(map(self._rendered, lines))

    def _rendered(self, line: Line | str) -> str:
        if isinstance(line, str):
            return line
        if self._as_text:
            return as_text(line) + "\n"
        try:
            return self._encoder.encode(line).decode() + "\n"
        except Exception as exc:  # a payload that is no JSON must not take other lines with it
            return self._encoder.encode(_without_words(line, exc)).decode() + "\n"

    def _run(self) -> None:
        while not self._stopping.wait(_WRITE_EVERY):
            self.flush()
        self.flush()

    def close(self) -> None:
        """The thread writes what is left; who waits for it waits two seconds at most."""
        self._stopping.set()
        self._thread.join(2)


class JSONHandler(logging.Handler):
    """The standard library's log records as our lines, with the trace of the call they belong to."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__(writer.level)
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(record)
        except Exception:
            self.handleError(record)

    def _write(self, record: logging.LogRecord) -> None:
        trace = current_trace.get()
        traceback = logging.Formatter().formatException(record.exc_info) if record.exc_info else None
        self._writer.write(
            TextLine(
                time=timestamp(),
                level=record.levelname.lower(),
                event="log",
                trace_id=trace.trace_id,
                span_id=trace.span_id,
                logger=record.name,
                message=record.getMessage(),
                traceback=traceback,
            )
        )


class _Clock:
    """ISO timestamps; the part up to the second is formatted once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._text = ""

    def __call__(self) -> str:
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second = second
            self._text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return self._text + _MILLISECONDS[int((now - second) * 1000)]


timestamp = _Clock()


def as_text(line: Line) -> str:
    """A line for a person at a terminal."""
    at = line.time[11:19]
    if isinstance(line, TextLine):
        tail = f"\n{line.traceback}" if line.traceback else ""
        return _visible(f"{at} {line.level:7} {line.message}{tail}")
    if isinstance(line, StatusLine):
        return _visible(f"{at} {line.level:7} {line.message}".replace("\n", " "))
    if isinstance(line, JobLine):
        return _visible(f"{at} {line.level:7} {line.words}".replace("\n", " "))
    what = f"{line.target}.{line.capability}" if line.target else line.operation or line.event
    took = f" {line.duration_ms:.1f} ms" if line.duration_ms is not None else ""
    went = f" {line.error_code}: {line.error}" if line.error_code else f" {line.status or ''}"
    return _visible(f"{at} {line.level:7} {what}{took}{went}  trace {line.trace_id}".replace("\n", " "))


def _visible(text: str) -> str:
    """Names come from callers: what would move the cursor or colour the screen is shown as `?`."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def _without_words(line: Line, why: Exception) -> Line:
    bare = msgspec.structs.replace(line)
    for name in ("input", "output") if isinstance(line, CallLine) else ():
        setattr(bare, name, None)
    for name in ("error", "message", "reason", "target", "capability", "operation", "principal", "traceback"):
        text = getattr(bare, name, None)
        if isinstance(text, str):
            setattr(bare, name, text.encode("utf-8", "replace").decode())
    if isinstance(bare, CallLine):
        bare.output = f"not written: {type(why).__name__}"
    return bare


def _about_dropped(count: int) -> TextLine:
    trace = current_trace.get()
    return TextLine(
        time=timestamp(),
        level="warning",
        event="log",
        trace_id=trace.trace_id,
        span_id=trace.span_id,
        logger=__name__,
        message=f"{count} log lines were dropped: they came faster than they could be written",
    )
