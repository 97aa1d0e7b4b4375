"""One HTTP/1.1 connection and the reply that is streamed from it.

A request goes out in one write, the reply comes back through one future.

Invariants:
- `_waiter` is set exactly while a request is under way: from `send` until `_finish` or `_fail`, each of which
  clears it once. Code that holds an old waiter (`abandon`, `release`) compares it first and so cannot touch the
  next request on the same connection.
- When a reply is complete, `_finish` returns the connection to its pool before the caller reads the reply.
  Anything else that ends a request (an error, its deadline, a cancellation) closes the connection.
- Bytes that arrive while no request is under way close the connection: they could be taken for the next reply.
- A streamed body is received no faster than its reader takes it, within MAX_QUEUED_BYTES.
- `_is_between_chunks` is set only while a streamed reply (`_stream`) is under way and the parser has read whole chunks
  and nothing after them. Data that is exactly one chunk leaves the parser in the same state, so it need not see it.
- No more than `limit` bytes of body and MAX_HEAD_BYTES of anything else are ever held."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import Context, copy_context
from copy import copy
from typing import Any, NamedTuple, Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from a2a_fabric.core.tasks import DeadlineSweep
from a2a_fabric.outbound.port import DeadlineExceeded, HTTPReply, Interrupted, OutboundError, ReplyTooLarge

MAX_QUEUED_BYTES = 256 * 1024  # beyond this, reading from the server pauses


class HTTPStreamedReply:
    """The connection fills `parts`; the reader takes all available parts at once.

    `_waiter` is set exactly while the reader waits. If it waits in `deliver`, `_take` and `_context` are set, too, and
    parts go to `_take` at once, in the callback that received them.
    """

    __slots__ = (
        "_context",
        "_error",
        "_has_ended",
        "_is_paused",
        "_loop",
        "_parts",
        "_read_bytes",
        "_take",
        "_transport",
        "_waiter",
        "headers",
        "status",
    )

    def __init__(
        self,
        status: int,
        headers: Mapping[str, str],
        parts: list[bytes],
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._loop = loop
        self.status = status
        self.headers = headers
        self._parts = parts
        self._transport = transport
        self._read_bytes = 0
        self._error: OutboundError | None = None
        self._has_ended = False
        self._is_paused = False
        self._waiter: asyncio.Future[bool] | None = None
        self._take: Callable[[bytes], bool] | None = None
        self._context: Context | None = None

    async def next_chunk(self) -> bytes:
        while not self._parts:
            if self._has_no_more():
                return b""
            await self._wait()
        return self._pop_parts()

    async def deliver(self, take: Callable[[bytes], bool]) -> bool:
        while True:
            while self._parts:
                if not take(self._pop_parts()):
                    return True
            if self._has_no_more():
                return False
            self._take, self._context = take, copy_context()
            try:
                if await self._wait():
                    return True
            finally:
                self._take = self._context = None

    def _has_no_more(self) -> bool:
        if self._error is not None:
            raise copy(self._error)  # a traceback on the original would refer back to this frame
        return self._has_ended

    async def _wait(self) -> bool:
        """Wait for parts or the end. True if `_take` has got parts, and takes no more."""
        if self._waiter is not None:
            raise RuntimeError("A streamed reply has one reader at a time")
        self._waiter = self._loop.create_future()
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def _pop_parts(self) -> bytes:
        parts = self._parts
        chunk = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._read_bytes += len(chunk)
        if self._is_paused:
            self._resume()
        return chunk

    async def chunks(self) -> AsyncIterator[bytes]:
        while chunk := await self.next_chunk():
            yield chunk

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    def take_part(self, part: bytes) -> bool:
        """Give a part to the reader at once, if it waits in `deliver` and all parts before are read."""
        take, context, waiter = self._take, self._context, self._waiter
        if take is None or context is None or waiter is None or waiter.done() or self._parts:
            return False
        self._read_bytes += len(part)
        try:
            if not context.run(take, part):
                waiter.set_result(True)
                self._take = None
        except Exception as exc:
            waiter.set_exception(exc)
            self._take = None
        return True

    def on_data(self, size: int) -> None:
        """`size` is the number of body bytes received since the beginning."""
        if self._take is not None and self._parts:
            if self._waiter is not None and not self._waiter.done():
                part = b"".join(self._parts)
                self._parts.clear()
                self.take_part(part)
            return  # the reader has got it, or was cancelled, or is about to look for itself
        self._wake()
        if size - self._read_bytes > MAX_QUEUED_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def on_end(self, error: OutboundError | None = None) -> None:
        self._error = error
        self._has_ended = True
        self._resume()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(False)

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()


MAX_HEAD_BYTES = 64 * 1024  # of a reply's head, and of anything else that is not body
MAX_HEADERS = 256
MAX_REPEATED_HEADERS = 128
SINGLE_WRITE_BYTES = 64 * 1024  # larger bodies are written piece by piece
WRITE_CHUNK_BYTES = 256 * 1024
SMALL_PART_BYTES = 1024
DRAIN_SECONDS = 1.0  # time for a reply to end after its reader has left the block
DRAIN_BYTES = 64 * 1024
MAX_CACHED_NAMES = 512
MAX_CACHED_VALUES = 512
MAX_REPLY_HEADS = 32  # of one origin; `Date` changes each second, and the length of the body with the reply
MAX_REPLY_HEAD_BYTES = 2048
# Replies with these have more to parse than a head and a body of the stated length.
_CONNECTION_HEADERS = frozenset({"transfer-encoding", "trailer", "upgrade"})
_HEAD_END = b"\r\n\r\n"
_LINE_END = b"\r\n"
_MAX_WHOLE_CHUNK = 4096  # bytes of a chunk with its framing that is recognized without the parser

_cached_names: dict[bytes, str] = {}
_cached_values: dict[bytes, str] = {}  # short ones: servers repeat most header values
_chunk_starts: dict[int, bytes] = {}  # by the length of a chunk with its framing: the line that it begins with


class ReplyHead(NamedTuple):
    """A head that the parser has read before. The same bytes at the beginning of a reply mean the same."""

    status: int
    headers: Mapping[str, str]  # never changed
    body_bytes: int


class ConnectionOwner(Protocol):
    def on_free(self, connection: Connection) -> None:
        """The reply is complete, and the connection can take another request."""

    def on_closed(self, connection: Connection) -> None:
        """The connection is closed, for whatever reason."""


class _Malformed(Exception):
    """Raised from a parser callback, to stop the parser."""


class Connection(asyncio.Protocol):
    __slots__ = (
        "_as_stream",
        "_bodyless_bytes",
        "_deadlines",
        "_error",
        "_has_whole_chunks",
        "_headers",
        "_is_between_chunks",
        "_is_complete",
        "_is_discarded",
        "_is_head",
        "_is_parsing",
        "_is_write_paused",
        "_keeps_alive",
        "_last_size",
        "_limit",
        "_loop",
        "_owner",
        "_parser",
        "_parts",
        "_poll",
        "_repeated",
        "_size",
        "_status",
        "_stream",
        "_transport",
        "_unsent",
        "_waiter",
        "is_closed",
        "origin",
        "timer",
    )  # fmt: skip

    def __init__(
        self, loop: asyncio.AbstractEventLoop, deadlines: DeadlineSweep, owner: ConnectionOwner, origin: Any
    ) -> None:
        self.origin = origin  # for the pool
        self.is_closed = False
        self.timer: asyncio.TimerHandle | None = None
        self._loop = loop
        self._deadlines = deadlines
        self._owner = owner
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)  # until connection_made
        self._poll = select.poll()
        self._is_discarded = False
        self._is_write_paused = False  # the send buffer is full
        self._waiter: asyncio.Future[Any] | None = None  # set exactly while a request is under way
        self._limit = 0
        self._is_head = self._as_stream = False
        self._reset()

    def _reset(self) -> None:
        """Forget the last reply. A reply that was finished without the parser has left nothing to forget."""
        self._stream: HTTPStreamedReply | None = None
        self._parts: list[bytes] = []
        self._size = self._last_size = self._bodyless_bytes = self._status = self._repeated = 0
        self._is_complete = self._keeps_alive = self._is_parsing = False
        self._has_whole_chunks = self._is_between_chunks = False
        self._error: OutboundError | None = None
        self._unsent: memoryview | None = None

    def send(
        self, head: bytes, body: bytes | None, limit: int, timeout: float, is_head: bool, as_stream: bool
    ) -> asyncio.Future[Any]:
        """The future resolves to an HTTPReply, or, as soon as the head is there, to an HTTPStreamedReply."""
        if self._is_parsing:
            self._reset()
        self._limit, self._is_head, self._as_stream = limit, is_head, as_stream
        self._waiter = waiter = self._loop.create_future()
        self._deadlines.start(self, timeout)
        if not body:
            self._transport.write(head)
        elif len(body) <= SINGLE_WRITE_BYTES:
            self._transport.write(head + body)
        else:
            self._unsent = memoryview(body)
            self._transport.write(head)
            self._write_more()
        return waiter

    def abandon(self, waiter: asyncio.Future[Any]) -> None:
        """The caller left. Close, unless the reply is complete and the connection may serve another request by now."""
        if self._waiter is waiter:
            self._fail(Interrupted("The reply was not waited for"))
        if waiter.done() and not waiter.cancelled():
            waiter.exception()  # marks it as retrieved; otherwise the event loop would log it

    def release(self, waiter: asyncio.Future[Any]) -> None:
        """The reader left the block normally. If the reply ends soon, the connection is kept; else it is closed."""
        if self._waiter is waiter and self._stream is not None:
            self._deadlines.stop(self)
            self._deadlines.start(self, DRAIN_SECONDS)
            self._limit = min(self._limit, self._size + DRAIN_BYTES)
        else:
            self.abandon(waiter)

    def expire(self) -> None:
        self._fail(DeadlineExceeded("No complete reply in time"))

    def discard(self) -> None:
        """Close a connection that no request uses, also one that is still being opened."""
        self._is_discarded = True
        if self._transport is not None:
            self._transport.abort()

    def close(self, error: OutboundError) -> None:
        self._fail(error)
        self._transport.abort()

    @property
    def is_closing(self) -> bool:
        return self.is_closed or self._transport.is_closing()

    def is_usable(self) -> bool:
        """Open, with nothing to read that the event loop has not delivered yet; while idle that is EOF or garbage."""
        return not self.is_closed and not self._transport.is_closing() and not self._poll.poll(0)

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = HttpResponseParser(self)
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        if self._is_discarded:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_between_chunks:  # fast path: exactly one chunk, as it is for most events, and its reader waits
            start = _chunk_starts.get(len(data)) or _cache_chunk_start(len(data))
            if start is not None and data[: len(start)] == start and data[-2:] == _LINE_END:
                part = data[len(start) : -2]
                size = self._size + len(part)
                if size <= self._limit and self._stream.take_part(part):  # type: ignore[union-attr]  # see above
                    self._size = size
                    return
        if self._waiter is None:
            self._transport.abort()  # no request is under way
            return
        is_first = not self._is_parsing
        if is_first and self._finish_with_known_head(data):
            return
        self._is_parsing = True
        if not self._status and len(data) > MAX_HEAD_BYTES:
            self.data_received(data[:MAX_HEAD_BYTES])
            self.data_received(data[MAX_HEAD_BYTES:])
            return
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as exc:
            self._keeps_alive = False
            if not self._is_complete:
                self._fail(Interrupted(f"The reply is not well-formed: {exc.__context__ or exc}"))
                return
        if self._is_complete:
            if is_first:
                self._learn_head(data)
            self._finish()
        else:
            # A line end after a chunk ends the chunk, or the head of the next one, of which the parser would have told.
            self._is_between_chunks = self._has_whole_chunks and self._stream is not None and data[-2:] == _LINE_END
            self._on_progress(len(data))

    def _finish_with_known_head(self, data: bytes) -> bool:
        """Finish the request without the parser if the data is a known head and exactly its body.

        The parser is between two replies then, and stays there.
        """
        size = data.find(_HEAD_END, 0, MAX_REPLY_HEAD_BYTES) + len(_HEAD_END)
        known = self.origin.reply_heads.get(data[:size])
        if (
            known is None
            or len(data) != size + known.body_bytes
            or known.body_bytes > self._limit
            or self._is_head
            or self._unsent is not None
            or self._is_write_paused
        ):
            return False
        waiter = self._waiter
        self._deadlines.stop(self)
        if waiter is not None and not waiter.done():
            body = data[size:]
            if self._as_stream:
                parts = [body] if body else []
                stream = HTTPStreamedReply(known.status, known.headers, parts, self._transport, self._loop)
                stream.on_end()
                waiter.set_result(stream)
            else:
                waiter.set_result(HTTPReply(known.status, known.headers, body))
        self._waiter = None
        self._owner.on_free(self)
        return True

    def _learn_head(self, data: bytes) -> None:
        """Remember the head of a reply that arrived at once and does not end its connection."""
        size = data.find(_HEAD_END, 0, MAX_REPLY_HEAD_BYTES) + len(_HEAD_END)
        length = self._headers.get("content-length", "")
        if (
            self._error is None
            and self._keeps_alive
            and not self._is_head
            and self._headers.keys().isdisjoint(_CONNECTION_HEADERS)
            and length.isdigit()
            and len(data) == size + int(length)
            and self._size == int(length)
        ):
            heads = self.origin.reply_heads
            if len(heads) >= MAX_REPLY_HEADS:
                heads.clear()
            heads[data[:size]] = ReplyHead(self._status, self._headers, int(length))

    def eof_received(self) -> None:
        self._on_end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_end(exc)
        self.is_closed = True
        self._owner.on_closed(self)
        del self._parser  # breaks the reference cycle

    def pause_writing(self) -> None:
        self._is_write_paused = True

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._write_more()

    def _write_more(self) -> None:
        while self._unsent is not None and not self._is_write_paused and not self._transport.is_closing():
            piece, rest = self._unsent[:WRITE_CHUNK_BYTES], self._unsent[WRITE_CHUNK_BYTES:]
            self._unsent = rest if len(rest) else None
            self._transport.write(piece)

    # Called by the parser

    def on_message_begin(self) -> None:
        if self._is_complete:
            raise _Malformed("more than one reply")
        self._headers: dict[str, str] = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._status:
            return  # a trailer
        try:
            key, text = _cached_names[name], _cached_values[value]
        except KeyError:
            key, text = _cache_name(name), _decode_value(value)
        if key in self._headers:
            self._repeated += 1
            if self._repeated > MAX_REPEATED_HEADERS:
                raise _Malformed("too many headers")
            self._headers[key] += ", " + text
        else:
            self._headers[key] = text

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        headers = self._headers
        if status < 200:
            if status == 101 or "content-length" in headers or "transfer-encoding" in headers:
                raise _Malformed(f"unexpected status {status}")
            return  # the final reply follows
        if len(headers) > MAX_HEADERS:
            raise _Malformed("too many headers")
        self._status = status
        self._keeps_alive = self._parser.should_keep_alive()
        if self._as_stream:
            self._stream = HTTPStreamedReply(status, headers, self._parts, self._transport, self._loop)
            self._resolve(self._stream)
        if self._is_head:
            self._is_complete = True
            self._limit = 0
        elif "content-length" in headers and int(headers["content-length"]) > self._limit and status not in (204, 304):
            self._reject_too_large()

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > self._limit:
            self._reject_too_large()
        self._parts.append(body)

    def on_chunk_header(self) -> None:
        self._has_whole_chunks = False

    def on_chunk_complete(self) -> None:
        self._has_whole_chunks = True

    def on_message_complete(self) -> None:
        if self._status:
            self._is_complete = True

    def _reject_too_large(self) -> None:
        if not self._is_complete:  # the reply to HEAD is complete, and has no body
            self._error = ReplyTooLarge(f"The reply is larger than {self._limit} bytes")
            self._is_complete = True
        raise _Malformed("more body than the limit")

    # How a request ends

    def _on_progress(self, size: int) -> None:
        """A part of the reply arrived, but not the end."""
        parts = self._parts
        self._bodyless_bytes = self._bodyless_bytes + size if self._last_size == self._size else 0
        self._last_size = self._size
        if self._bodyless_bytes >= MAX_HEAD_BYTES:
            self._fail(Interrupted(f"More than {MAX_HEAD_BYTES} bytes without a body"))
            return
        if len(parts) > 64 and self._size < SMALL_PART_BYTES * len(parts):
            parts[:] = [b"".join(parts)]  # one object per byte would take forty times the memory
        if self._stream is not None:
            self._stream.on_data(self._size)

    def _on_end(self, exc: Exception | None) -> None:
        if self._waiter is None:
            return
        if exc is None and self._status and self._ends_with_connection():
            self._finish()
        else:
            self._fail(Interrupted(f"The connection broke: {exc or 'closed before the reply was complete'}"))

    def _ends_with_connection(self) -> bool:
        is_chunked = self._headers.get("transfer-encoding", "").lower().endswith("chunked")
        return "content-length" not in self._headers and not is_chunked

    def _finish(self) -> None:
        self._is_between_chunks = False
        if self._error is not None:
            self._fail(self._error)
            return
        self._deadlines.stop(self)
        if self._stream is not None:
            self._stream.on_end()
        else:
            parts = self._parts
            self._resolve(HTTPReply(self._status, self._headers, parts[0] if len(parts) == 1 else b"".join(parts)))
        self._waiter = None
        self._parts = []  # an idle connection holds no reply data
        if not self._keeps_alive or self._unsent is not None or self._is_write_paused:
            self._unsent = None
            self._transport.abort()
            return
        if self._is_head:
            self._parser = HttpResponseParser(self)  # the old one still expects a body
        self._owner.on_free(self)

    def _fail(self, error: OutboundError) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None:
            return
        self._is_between_chunks = False
        self._deadlines.stop(self)
        self._unsent = None
        if self._stream is not None:
            self._stream.on_end(error)
        elif not waiter.done():
            waiter.set_exception(error)
        self._parts, self._error = [], None  # the error's traceback refers to us, and must not keep half a reply alive
        self._transport.abort()

    def _resolve(self, reply: HTTPReply | HTTPStreamedReply) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(reply)


def _cache_name(name: bytes) -> str:
    lowered = name.decode("latin-1").lower()
    if len(_cached_names) < MAX_CACHED_NAMES and len(name) < 64:
        _cached_names[name] = lowered
    return lowered


def _cache_chunk_start(length: int) -> bytes | None:
    """The line that begins a chunk of this length with its framing; None if there is none, or for a long one."""
    digits = 1
    while digits < 4 and length - digits - 4 >= 16**digits:
        digits += 1
    size = length - digits - 4
    if size <= 0 or len(f"{size:x}") != digits or length > _MAX_WHOLE_CHUNK:
        return None
    start = _chunk_starts[length] = b"%x\r\n" % size
    return start


def _decode_value(value: bytes) -> str:
    text = value.decode("latin-1").rstrip(" \t")
    if len(value) < 64:
        if len(_cached_values) >= MAX_CACHED_VALUES:
            _cached_values.clear()
        _cached_values[value] = text
    return text
