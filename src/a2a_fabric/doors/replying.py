"""How an answer leaves over HTTP: in one piece, or as server-sent events that wait for their reader.

A slow reader slows nobody else, and one that reads nothing at all is given up after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from a2a_fabric.doors.context import DoorContext, Send
from a2a_fabric.doors.http import ClientGone

Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"
STILL_HERE = b": still here\n\n"
READ_WITHIN = 60.0
_WITHOUT_BODY = (204, 304)
_EVENTS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


async def whole(send: Send, status: int, body: bytes, headers: Headers, media: bytes = JSON) -> None:
    has_body = status not in _WITHOUT_BODY
    own = [(b"content-type", media), (b"content-length", b"%d" % len(body))] if has_body else []
    await send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": body if has_body else b""})


def frame(event: str | None, number: int | None, data: bytes) -> bytes:
    """A server-sent event."""
    named = b"" if event is None else b"event: %b\n" % event.encode()
    numbered = b"" if number is None else b"id: %d\n" % number
    return b"%b%bdata: %b\n\n" % (named, numbered, data)


class EventReply:
    """`pause` is the longest silence, in seconds, and `sign` what breaks it: proxies close what is silent.

    Who takes nothing for `read_within` seconds is given up.
    """

    def __init__(
        self,
        context: DoorContext,
        send: Send,
        pause: float,
        sign: bytes = STILL_HERE,
        read_within: float = READ_WITHIN,
    ) -> None:
        self.is_open = False
        self._context = context
        self._send = send
        self._pause = pause
        self._sign = sign
        self._read_within = read_within

    async def send_all(self, frames: AsyncGenerator[bytes], headers: Headers, principal_id: str | None) -> None:
        """Raises RateLimited if this principal has its share of streams; then nothing has been sent.

        Raises ClientGone, and what the stream raises; then the reply is still open.
        """
        async with aclosing(frames):
            self._context.stream_opened(principal_id)
            try:
                await self._begin(headers)
                self.is_open = True
                await self._pass_on(frames)
            finally:
                self._context.stream_closed(principal_id)

    async def end(self, last: bytes = b"") -> None:
        """Raises ClientGone."""
        self.is_open = False
        await self._write(last, more=False)

    async def _begin(self, headers: Headers) -> None:
        await self._sent({"type": "http.response.start", "status": 200, "headers": [*_EVENTS, *headers]})

    async def _pass_on(self, frames: AsyncGenerator[bytes]) -> None:
        while True:
            coming = asyncio.ensure_future(anext(frames, None))
            try:
                while not (await asyncio.wait({coming}, timeout=self._pause))[0]:
                    await self._write(self._sign)
            finally:
                if not coming.done():
                    coming.cancel()
                    await asyncio.wait({coming})
            told = coming.result()
            if told is None:
                return
            await self._write(told)

    async def _write(self, piece: bytes, *, more: bool = True) -> None:
        await self._sent({"type": "http.response.body", "body": piece, "more_body": more})

    async def _sent(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self._read_within):
                await self._send(message)
        except TimeoutError as exc:
            raise ClientGone from exc
