"""A reply whose body is read while it still arrives, no faster than its reader takes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from copy import copy

from a2a_fabric.outbound.port import OutboundError

QUEUED_BYTES = 256 * 1024  # beyond this, the server has to wait


class Streamed:
    """The connection fills `parts`; whoever reads takes all that is there at once."""

    __slots__ = ("_error", "_has_ended", "_is_paused", "_parts", "_taken", "_transport", "_waiter", "headers", "status")

    def __init__(
        self, status: int, headers: Mapping[str, str], parts: list[bytes], transport: asyncio.Transport
    ) -> None:
        self.status = status
        self.headers = headers
        self._parts = parts
        self._transport = transport
        self._taken = 0
        self._error: OutboundError | None = None
        self._has_ended = False
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            if self._parts:
                yield self._take()
            elif self._error is not None:
                raise copy(self._error)  # ours gets no traceback: it would lead back here
            elif self._has_ended:
                return
            else:
                await self._more()

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    def arrived(self, size: int) -> None:
        """`size` bytes of body have come since the beginning."""
        self._wake()
        if size - self._taken > QUEUED_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def ended(self, error: OutboundError | None = None) -> None:
        self._error = error
        self._has_ended = True
        self._resume()
        self._wake()

    def _take(self) -> bytes:
        parts = self._parts
        chunk = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._taken += len(chunk)
        self._resume()
        return chunk

    async def _more(self) -> None:
        if self._waiter is not None:
            raise RuntimeError("A streamed reply has one reader at a time")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
