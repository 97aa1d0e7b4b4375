"""How an answer leaves over HTTP: in one piece, or as server-sent events that wait for their reader.

A slow reader slows nobody else, and one that reads nothing at all is given up after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from a2a_fabric.doors.a2a.shapes import Told
from a2a_fabric.doors.context import DoorContext, Send
from a2a_fabric.doors.http import ClientGone

Headers = list[tuple[bytes, bytes]]

_READ_WITHIN = 60.0
_EVENTS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
JSON = b"application/json"


async def whole(send: Send, status: int, body: bytes, headers: Headers, media: bytes = JSON) -> None:
    has_body = status not in (204, 304)
    own = [(b"content-type", media), (b"content-length", b"%d" % len(body))] if has_body else []
    await send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": body if has_body else b""})


def frame(data: bytes, number: int | None = None, event: str | None = None) -> bytes:
    """One event; the numbers of a task's log are the ids."""
    head = b"" if event is None else b"event: %b\n" % event.encode()
    head += b"" if number is None else b"id: %d\n" % number
    return b"%bdata: %b\n\n" % (head, data)


class EventReply:
    """`pause` is the longest silence, in seconds: proxies close connections on which nothing happens."""

    def __init__(self, context: DoorContext, send: Send, pause: float) -> None:
        self.is_open = False
        self._context = context
        self._send = send
        self._pause = pause

    async def send_all(self, told: AsyncGenerator[Told], render: Callable[[Told], bytes], headers: Headers) -> None:
        """Raises ClientGone, and what the stream raises; before its first event nothing has been sent."""
        self._context.stream_opened()
        try:
            async with aclosing(told):
                first = await anext(told, None)
                async with asyncio.timeout(_READ_WITHIN):
                    await self._send({"type": "http.response.start", "status": 200, "headers": [*_EVENTS, *headers]})
                self.is_open = True
                if first is not None:
                    await self._write(render(first))
                    await self._pass_on(told, render)
        except TimeoutError as exc:
            raise ClientGone from exc
        finally:
            self._context.stream_closed()

    async def end(self, last: bytes = b"") -> None:
        self.is_open = False
        try:
            await self._write(last, more=False)
        except TimeoutError as exc:
            raise ClientGone from exc

    async def _pass_on(self, told: AsyncGenerator[Told], render: Callable[[Told], bytes]) -> None:
        while True:
            coming = asyncio.ensure_future(anext(told, None))
            try:
                while not (await asyncio.wait({coming}, timeout=self._pause))[0]:
                    await self._write(b": still here\n\n")
            finally:
                if not coming.done():
                    coming.cancel()
                    await asyncio.wait({coming})
            next_one = coming.result()
            if next_one is None:
                return
            await self._write(render(next_one))

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        async with asyncio.timeout(_READ_WITHIN):
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
