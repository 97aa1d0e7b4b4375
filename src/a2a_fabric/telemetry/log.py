"""The node's log: JSON lines, written by a thread so that a slow disk or terminal never slows a call.

The entry of a call is a struct that is encoded directly; everything else goes through the standard
`logging` and the same writer. Every entry has a trace id."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Protocol

import msgspec

from a2a_fabric.core.propagation import current_trace, new_id
from a2a_fabric.core.redaction import redact_text
from a2a_fabric.telemetry.log_entries import (
    LogEntry,
    TextLogEntry,
    drop_payload,
    format_entry,
    make_encodable,
    timestamp,
)
from a2a_fabric.telemetry.log_file import LogFile
from a2a_fabric.telemetry.metrics import render_value

_MAX_BUFFERED = 100_000
_WRITE_EVERY = 0.1
_OUTAGE_SECONDS = 60.0
_MAX_RECENT = 2000  # entries that can be read again
_CAPTURED = {"a2a_fabric": logging.NOTSET, "uvicorn": logging.WARNING, "mcp": logging.WARNING}  # lowest levels
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


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
            self._recent.extend(map(drop_payload, entries))
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
            return self._encoder.encode(make_encodable(entry, exc))

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
            return self._encoder.encode(make_encodable(entry, exc)).decode() + "\n"

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
