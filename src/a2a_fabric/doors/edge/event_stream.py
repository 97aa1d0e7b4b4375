"""A reply that is a stream of server-sent events: its head, its frames, and what keeps it alive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from a2a_fabric.doors.context import DoorContext, Send
from a2a_fabric.doors.edge.reply import HeaderList
from a2a_fabric.doors.edge.request import ClientDisconnected

KEEPALIVE = b": still here\n\n"
READ_TIMEOUT = 60.0
QUIET_HEAD_DELAY = 0.2  # seconds in which also a stream that waits for news may still be refused
BuildHeaders = Callable[[], HeaderList]
EVENT_STREAM_HEADERS: HeaderList = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


def encode_event(event: str | None, number: int | None, data: bytes) -> bytes:
    """A server-sent event."""
    event_field = b"" if event is None else b"event: %b\n" % event.encode()
    id_field = b"" if number is None else b"id: %d\n" % number
    return b"%b%bdata: %b\n\n" % (event_field, id_field, data)


class EventStream(msgspec.Struct, frozen=True, kw_only=True):
    """A reply made of events. The edge closes `frames`.

    The first frame is awaited before the head is sent, so a stream that fails to begin is refused with a status.
    The head of a stream that waits for news follows after a moment, so that its client knows that it listens.
    """

    frames: AsyncGenerator[bytes]
    waits_for_news: bool = False


class EventStreamReply:
    """One event stream to one client.

    Proxies close silent connections, so `keepalive` is sent after every `keepalive_interval` seconds of silence. A
    client that reads nothing for `read_timeout` seconds counts as disconnected. A slow reader delays no other client.
    """

    def __init__(
        self,
        context: DoorContext,
        send: Send,
        keepalive_interval: float,
        keepalive: bytes = KEEPALIVE,
        read_timeout: float = READ_TIMEOUT,
    ) -> None:
        self.is_open = False
        self._context = context
        self._send = send
        self._keepalive_interval = keepalive_interval
        self._keepalive = keepalive
        self._read_timeout = read_timeout

    async def send_frames(self, stream: EventStream, build_headers: BuildHeaders, principal_id: str | None) -> None:
        """Send the head with the first frame, then all frames; the reply stays open.

        `build_headers` is called when the head is sent, because the first event may decide about the headers.
        Raises RateLimited if this principal has its share of streams, ClientDisconnected, and what the frames
        raise. Nothing has been sent unless `is_open`.
        """
        async with aclosing(stream.frames) as frames:
            self._context.acquire_stream(principal_id)
            try:
                frame = await self._wait_for_frame(frames, build_headers, is_quiet=stream.waits_for_news)
                await self._open(build_headers)
                while frame is not None:
                    await self._write(frame)
                    frame = await self._wait_for_frame(frames, build_headers)
            finally:
                self._context.release_stream(principal_id)

    async def end(self, last_frame: bytes = b"") -> None:
        """Raises ClientDisconnected."""
        self.is_open = False
        await self._write(last_frame, more=False)

    async def _open(self, build_headers: BuildHeaders) -> None:
        if not self.is_open:
            await self._send_message(
                {"type": "http.response.start", "status": 200, "headers": [*EVENT_STREAM_HEADERS, *build_headers()]}
            )
            self.is_open = True

    async def _wait_for_frame(
        self, frames: AsyncGenerator[bytes], build_headers: BuildHeaders, *, is_quiet: bool = False
    ) -> bytes | None:
        next_frame = asyncio.ensure_future(anext(frames, None))
        try:
            if is_quiet and not (await asyncio.wait({next_frame}, timeout=QUIET_HEAD_DELAY))[0]:
                await self._open(build_headers)
                await self._write(b"")  # our server sends the head with the first piece of the body
            while not (await asyncio.wait({next_frame}, timeout=self._keepalive_interval))[0]:
                await self._open(build_headers)
                await self._write(self._keepalive)
        finally:
            if not next_frame.done():
                next_frame.cancel()
                await asyncio.wait({next_frame})
        return next_frame.result()

    async def _write(self, frame: bytes, *, more: bool = True) -> None:
        await self._send_message({"type": "http.response.body", "body": frame, "more_body": more})

    async def _send_message(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self._read_timeout):
                await self._send(message)
        except TimeoutError as exc:
            raise ClientDisconnected from exc
