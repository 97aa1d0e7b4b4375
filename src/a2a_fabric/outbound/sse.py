"""Parses server-sent events from chunks: incremental, bounded, lenient about everything but size."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping

from a2a_fabric.core.json_text import LONG, find_number_problem
from a2a_fabric.outbound.port import ReplyTooLarge

_DATA_FIELD = b"data"
_CARRIAGE_RETURN, _LINE_FEED = ord("\r"), ord("\n")
_MAX_DIGITS = 12
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def is_event_stream(headers: Mapping[str, str]) -> bool:
    """Whether a reply with these headers is a stream of events."""
    return headers.get("content-type", "").lower().startswith("text/event-stream")


async def iter_event_data(chunks: AsyncIterator[bytes], *, limit: int) -> AsyncGenerator[bytes]:
    """The `data` of each event in order. Raises ReplyTooLarge."""
    events = SSEParser(limit)
    async for chunk in chunks:
        for data in events.feed(chunk):
            yield data
    for data in events.flush():
        yield data


class SSEParser:
    """The `data` of events as chunks of a stream come in; comments are skipped.

    `event_name` is that of the event handed out last, `last_id` and `retry` are the last that the stream named.
    One event holds at most `limit` bytes: beyond that, ReplyTooLarge.
    """

    def __init__(self, limit: int) -> None:
        self._max_plain_data = min(limit, LONG)
        self._splitter = _LineSplitter()
        self._buffer = _EventBuffer(limit)
        self._is_between_events = False  # nothing is pending, and the last event had no name

    @property
    def event_name(self) -> str:
        """Empty for an event without a name."""
        return self._buffer.event_name.decode(errors="replace")

    @property
    def last_id(self) -> str:
        """Empty if no event had an id."""
        return self._buffer.last_id.decode(errors="replace")

    @property
    def retry(self) -> float | None:
        """The seconds to wait before the stream is opened again."""
        return self._buffer.retry

    def feed(self, chunk: bytes) -> Iterable[bytes]:
        """The events that are complete now; take them before feeding the next chunk."""
        if self._is_between_events:  # fast path: exactly one event of one line, as most agents send
            data = chunk[6:-2]
            if (
                chunk[-2:] == b"\n\n"
                and chunk[:6] == b"data: "
                and len(data) <= self._max_plain_data
                and _LINE_FEED not in data
                and _CARRIAGE_RETURN not in data
            ):
                return (data,)
            lines = chunk.splitlines()
            if len(lines) == 2 and not lines[1] and chunk[-1] == _LINE_FEED:
                line = lines[0]
                if line[:6] == b"data: " and len(line) - 6 <= self._max_plain_data:
                    return (line[6:],)
        self._is_between_events = False
        return self._parse_chunk(chunk)

    def flush(self) -> Iterator[bytes]:
        """At the end of the stream: an event without its blank line still counts."""
        for line in (self._splitter.flush(), b""):
            if (data := self._buffer.add(line)) is not None:
                yield data

    def _parse_chunk(self, chunk: bytes) -> Iterator[bytes]:
        for line in self._splitter.feed(chunk):
            if (data := self._buffer.add(line)) is not None:
                yield data
        self._buffer.check_line(self._splitter.pending)
        # After a named event the slow path goes on: the name of the next one is another.
        self._is_between_events = not self._splitter.pending and self._buffer.is_empty and not self._buffer.event_name


class _LineSplitter:
    """Splits a stream of chunks into lines that end with LF, CR or CRLF."""

    def __init__(self) -> None:
        self.pending = 0  # bytes of the incomplete line
        self._parts: list[bytes] = []
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = chunk.split(b"\n")
        if len(lines) > 1:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts.clear()
            self.pending = 0
        self._parts.append(lines.pop())
        self.pending += len(self._parts[-1])
        return lines

    def flush(self) -> bytes:
        return b"".join(self._parts)


class _EventBuffer:
    """Collects the data lines of one event."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data: list[bytes] = []
        self._size = 0  # of the lines and of the line feeds between them
        self._is_first_line = True
        self._name = b""  # of the event that is being read
        self.event_name = b""
        self.last_id = b""
        self.retry: float | None = None

    @property
    def is_empty(self) -> bool:
        """No data and no name yet, and past the first line, which may begin with a byte order mark."""
        return not self._data and not self._name and not self._is_first_line

    def add(self, line: bytes) -> bytes | None:
        """The event's data if this line ends it."""
        self.check_line(len(line))
        if self._is_first_line:
            line = line.removeprefix(_BYTE_ORDER_MARK)
            self._is_first_line = False
        if not line:
            self.event_name, self._name = self._name, b""
            return self._pop() if self._data else None
        name, _, value = line.partition(b":")
        if name == _DATA_FIELD:
            self._append(value.removeprefix(b" "))
        elif name == b"event":
            self._name = value.removeprefix(b" ")
        elif name == b"id":
            self.last_id = value.removeprefix(b" ")
        elif name == b"retry" and value.strip().isdigit():
            self.retry = int(value[:_MAX_DIGITS]) / 1000
        return None

    def check_line(self, length: int) -> None:
        if length > self._limit + len(_BYTE_ORDER_MARK) + len(b"data: "):
            raise self._too_large()

    def _append(self, value: bytes) -> None:
        self._size += len(value) + bool(self._data)
        if self._size > self._limit:
            raise self._too_large()
        self._data.append(value)

    def _pop(self) -> bytes:
        data = b"\n".join(self._data)
        self._data.clear()
        self._size = 0
        if problem := find_number_problem(data):
            raise ReplyTooLarge(problem)
        return data

    def _too_large(self) -> ReplyTooLarge:
        return ReplyTooLarge(f"one event is larger than {self._limit} bytes")
