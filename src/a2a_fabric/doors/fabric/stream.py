"""A reply as server-sent events: opened by the first event, kept alive while the agent thinks, closed by `final`.

`emit` waits for the client: a slow reader slows its own agent and nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType

from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.events import Event
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.context import DoorContext, Send
from a2a_fabric.doors.fabric import wire
from a2a_fabric.doors.http import ClientGone, Shortcut

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """`after` is given for streams that can be read from any number: then the ids are the events' own numbers."""

    def __init__(
        self,
        send: Send,
        shortcut: Shortcut | None,
        trace: Trace,
        context: DoorContext,
        principal_id: str | None,
        keep_alive: float,
        after: int | None = None,
    ) -> None:
        self.is_open = False
        self._send = send
        self._shortcut = shortcut
        self._trace = wire.once(trace)
        self._spoken = bytes(self._trace)
        self._context = context
        self._principal_id = principal_id
        self._pause = keep_alive
        self._number = after or 0
        self._is_resumable = after is not None
        self._timer: asyncio.TimerHandle | None = None
        self._beat: asyncio.Task[None] | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._done.set_result(None)

    async def __aenter__(self) -> None:
        """Raises RateLimited."""
        self._context.stream_opened(self._principal_id)

    async def __aexit__(self, kind: type[BaseException] | None, exc: object, tb: TracebackType | None) -> None:
        self._context.stream_closed(self._principal_id)
        if self._timer is not None:
            self._timer.cancel()
        if self._beat is not None:
            self._beat.cancel()

    async def open(self) -> None:
        """Now, not with the first event: it may be long in coming."""
        await self._write(b": here\n\n", more=True)

    def emit(self, event: Event) -> Awaitable[None]:
        self._number = event.number or self._number + 1
        frame = wire.event_frame(event, self._spoken, self._number)
        if self.is_open and self._shortcut is not None and self._shortcut.write(frame):
            return self._done  # most events leave at once: no coroutine for each
        return self._write(frame, more=True)

    async def close_with(self, outcome: Result | FabricError) -> None:
        """The call's deadline is over by now, so a client that reads nothing is waited for here; then ClientGone."""
        number = self._number if self._is_resumable else self._number + 1  # `final` is not in the log
        frame = wire.frame(wire.final_body(outcome, self._trace), number)
        try:
            async with asyncio.timeout(2 * self._pause):
                await self._write(frame, more=False)
        except TimeoutError as exc:
            raise ClientGone from exc

    async def _write(self, frame: bytes, *, more: bool) -> None:
        if not self.is_open:
            self.is_open = True
            self._wait_quietly()
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._send({"type": "http.response.body", "body": frame, "more_body": more})

    def _wait_quietly(self) -> None:
        """Proxies close silent connections; a comment now and then keeps this one."""
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._start_beat)

    def _start_beat(self) -> None:
        self._beat = asyncio.ensure_future(self._keep_alive())

    async def _keep_alive(self) -> None:
        await self._send({"type": "http.response.body", "body": b": still here\n\n", "more_body": True})
        self._wait_quietly()
