"""How an answer leaves: in one piece, or as server-sent events that wait for their reader.

A slow reader slows nobody else, and one that reads nothing at all is given up after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from a2a_fabric.doors.context import DoorContext, Send
from a2a_fabric.doors.directory.visit import Stream, Told
from a2a_fabric.doors.http import ClientGone

Headers = list[tuple[bytes, bytes]]

_READ_WITHIN = 60.0
_EVENTS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


async def whole(send: Send, status: int, body: bytes, headers: Headers) -> None:
    own = [] if status == 204 else [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": body})


class EventReply:
    """`pause` is the longest silence, in seconds: proxies close connections on which nothing happens."""

    def __init__(self, context: DoorContext, send: Send, pause: float) -> None:
        self.is_open = False
        self._context = context
        self._send = send
        self._pause = pause

    async def send_all(self, stream: Stream, render: Callable[[Told], bytes], headers: Headers) -> None:
        """Raises ClientGone, and what the stream raises; then the reply is still open."""
        self._context.stream_opened()
        try:
            async with asyncio.timeout(_READ_WITHIN):
                await self._send({"type": "http.response.start", "status": 200, "headers": [*_EVENTS, *headers]})
            self.is_open = True
            async with aclosing(stream.told) as told:
                await self._pass_on(told, render)
        except TimeoutError as exc:
            raise ClientGone from exc
        finally:
            self._context.stream_closed()

    async def end(self, frame: bytes = b"") -> None:
        self.is_open = False
        await self._write(frame, more=False)

    async def _pass_on(self, stream: AsyncGenerator[Told], render: Callable[[Told], bytes]) -> None:
        while True:
            coming = asyncio.ensure_future(anext(stream, None))
            try:
                while not (await asyncio.wait({coming}, timeout=self._pause))[0]:
                    await self._write(b": still here\n\n")
            finally:
                if not coming.done():
                    coming.cancel()
                    await asyncio.wait({coming})
            told = coming.result()
            if told is None:
                return
            await self._write(render(told))

    async def _write(self, frame: bytes, *, more: bool = True) -> None:
        async with asyncio.timeout(_READ_WITHIN):
            await self._send({"type": "http.response.body", "body": frame, "more_body": more})
