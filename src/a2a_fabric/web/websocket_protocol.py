"""WebSockets of the server; loaded by the first one."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Uvicorn's WebSocket protocol with back-pressure in both directions, and a limit for clients that do not read.

    Invariants: while the client does not read, nothing is read from it either, so that answers to its pings cannot
    pile up; and closing never waits for a client that does not read, whose connection would stay open forever.
    """

    def pause_writing(self) -> None:
        super().pause_writing()
        if not self.read_paused:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    async def receive(self) -> Any:
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            if self.writable.is_set():
                self.transport.resume_reading()
        return message

    def send_receive_event_to_app(self) -> None:
        was_paused = self.read_paused
        if not self.writable.is_set():
            self.read_paused = True  # the transport is paused already
        super().send_receive_event_to_app()
        if self.close_sent:
            self.read_paused = was_paused

    def keepalive_timeout(self) -> None:
        """The client did not answer a ping: it has disconnected, or it does not read."""
        super().keepalive_timeout()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
