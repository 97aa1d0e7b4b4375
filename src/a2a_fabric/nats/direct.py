"""A fast path through the NATS library for the messages of a mesh: many, small, and each with a caller who waits.

In the library, a message passes a task that reads, a parser of regular expressions, a queue and a task of its
subscription, and what is sent passes a queue and a task that writes. Here a message is handed to its handler in the
step in which the socket is read, and what is sent is written at once, or together at the end of a step of the loop.

Invariants:
* The library sees everything that is not a complete message for a direct subscription, in order. So the fast path is
  taken only between messages: nothing is buffered before it, and what remains goes to the library.
* Messages of one subscription keep their order, also if one of them took the slow path (`DirectClient._process_msg`).
* Handlers never wait. A sender that is faster than the connection waits in `wait_until_writable`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.errors import ConnectionClosedError, MaxPayloadError
from nats.protocol.parser import AWAITING_CONTROL_LINE

_log = logging.getLogger(__name__)
_CONGESTED_BYTES = 1 << 20  # that the socket has not taken
Handler = Callable[[bytes], None]


class DirectReader(asyncio.StreamReader):
    """Hands data to `take` first, which returns what is left for the library."""

    def __init__(self, limit: int, take: Callable[[bytes], bytes]) -> None:
        super().__init__(limit=limit)
        self._take = take

    def feed_data(self, data: Any) -> None:
        rest = data if self._buffer else self._take(data)  # type: ignore[attr-defined]  # asyncio's own
        if rest:
            super().feed_data(rest)


class DirectClient(Client):
    """The library's client with a fast path. It belongs to one event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._handlers: dict[bytes, Handler] = {}
        self._direct_subscriptions: dict[str, Subscription] = {}
        self._flushing: asyncio.Handle | None = None

    async def subscribe_directly(self, subject: str, handler: Handler) -> None:
        """Call `handler` with every message. It must not wait, and the message has no headers. A subscription to the
        same subject, which the server may have refused, is given up.
        """
        former = self._direct_subscriptions.pop(subject, None)
        if former is not None:
            self._handlers.pop(b"%d" % former._id, None)
            await former.unsubscribe()
        subscription = self._direct_subscriptions[subject] = await self.subscribe(subject)
        self._handlers[b"%d" % subscription._id] = handler

    def take(self, data: bytes) -> bytes:
        """Handle the messages at the beginning of `data`; returns the rest."""
        parser = self._ps
        if parser.buf or parser.state != AWAITING_CONTROL_LINE or not self._handlers:
            return data
        at = 0
        while data.startswith(b"MSG ", at):
            line_end = data.find(b"\r\n", at)
            fields = data[at:line_end].split(b" ") if line_end > 0 else ()
            if len(fields) != 4:  # not complete, or it wants a reply
                break
            handler = self._handlers.get(fields[2])
            begin = line_end + 2
            end = begin + int(fields[3])
            if handler is None or len(data) < end + 2:
                break
            _handle(handler, data[begin:end])
            at = end + 2
        return data[at:] if at else data

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        handler = self._handlers.get(b"%d" % sid)
        if handler is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            _handle(handler, data)

    def publish_soon(self, subject: bytes, payload: bytes, *, is_alone: bool = False) -> None:
        """Send at once; what follows in the same step of the loop is written together at its end, unless this message
        `is_alone`: then the loop needs no further step.

        Raises ConnectionClosedError, and MaxPayloadError if the server takes no such message.
        """
        if not self.is_connected:
            raise ConnectionClosedError
        if len(payload) > self._max_payload:
            raise MaxPayloadError
        command = b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload)
        if self._flushing is None and not self._pending and self._transport is not None:
            self._transport.write(command)
            if not is_alone:
                self._flushing = asyncio.get_running_loop().call_soon(self._flush_now)
            return
        self._pending.append(command)
        self._pending_data_size += len(command)
        if self._flushing is None:
            self._flush_now()
            self._flushing = asyncio.get_running_loop().call_soon(self._flush_now)

    @property
    def is_congested(self) -> bool:
        """Whether the server does not read as fast as this client sends."""
        writer: Any = self._transport._io_writer  # type: ignore[union-attr]
        waiting: int = self._pending_data_size + writer.transport.get_write_buffer_size()
        return waiting > _CONGESTED_BYTES

    async def wait_until_writable(self) -> None:
        self._flush_now()
        await self._transport.drain()  # type: ignore[union-attr]

    def _flush_now(self) -> None:
        """If the connection is lost, the library sends what is pending after it has reconnected."""
        self._flushing = None
        if self._pending and self.is_connected and self._transport is not None:
            pending, self._pending, self._pending_data_size = self._pending, [], 0
            self._transport.write(b"".join(pending))


def _handle(handler: Handler, data: bytes) -> None:
    try:
        handler(data)
    except Exception:  # the connection and other messages go on
        _log.exception("a message from NATS could not be handled")
