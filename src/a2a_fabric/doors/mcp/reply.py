"""The HTTP reply to one MCP request: one JSON body, or an event stream that ends with the answer.

Invariants:
- Nothing is sent before the answer is known, unless there is a notification or the answer takes longer than the
  ping interval; then the reply is an event stream, and stays one.
- A frame is written by a single call of `send`, and ASGI servers write in the order in which they were called;
  so a ping never falls into the middle of a frame, and no lock is needed.
- The last frame of a stream waits for a ping that is being written, and stops the pings; so none follows it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from a2a_fabric.core.deadline import DeadlineSweep
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.context import Send
from a2a_fabric.doors.edge import Shortcut, send_reply
from a2a_fabric.protocols.mcp import frames
from a2a_fabric.protocols.mcp.frames import McpProtocolError

_PING_INTERVAL = 15.0  # seconds; proxies close silent connections
_JSON_HEAD = b"content-type: application/json\r\nx-trace-id: %b\r\n"
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_encode = msgspec.json.Encoder().encode


class McpReply:
    """Entered while the answer is being waited for. Without a shortcut everything goes through `send`."""

    def __init__(
        self, request_id: str | int, send: Send, ping_timers: DeadlineSweep, shortcut: Shortcut | None, trace: Trace
    ) -> None:
        self._id = _encode(request_id)
        self._send = send
        self._shortcut = shortcut
        self._trace = trace
        self.is_streaming = False
        self._ping_timers = ping_timers
        self.timer: asyncio.TimerHandle | None = None  # belongs to the timers
        self._ping_task: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._ping_timers.start(self, _PING_INTERVAL)

    def __exit__(self, *exc: object) -> None:
        self._ping_timers.stop(self)
        if self._ping_task is not None:
            self._ping_task.cancel()

    @property
    def _trace_header(self) -> tuple[bytes, bytes]:
        return (b"x-trace-id", self._trace.trace_id.encode())

    def try_send_result(self, result: bytes) -> bool:
        """Whether the encoded result could be sent without waiting."""
        if self.is_streaming or self._shortcut is None:
            return False
        head = _JSON_HEAD % self._trace.trace_id.encode()
        self._shortcut.reply(200, head, b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (self._id, result))
        return True

    async def send_result(self, result: bytes) -> None:
        await self._send_last(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (self._id, result), 200)

    async def send_error(self, error: McpProtocolError) -> None:
        await self._send_last(frames.render_error(error, msgspec.Raw(self._id)), error.status)

    async def send_notification(self, method: str, params: Any) -> None:
        notification = {"jsonrpc": "2.0", "method": method}
        body = _encode(notification if params is None else {**notification, "params": params})
        await self._write(_encode_frame(body), more=True)

    async def _send_last(self, body: bytes, status: int) -> None:
        if self.is_streaming:
            if self._ping_task is not None:
                await asyncio.wait({self._ping_task})
            self._ping_timers.stop(self)
            await self._write(_encode_frame(body), more=False)
        elif self._shortcut is not None:
            self._shortcut.reply(status, _JSON_HEAD % self._trace.trace_id.encode(), body)
        else:
            await send_reply(self._send, status, body, [self._trace_header])

    async def _write(self, frame: bytes, *, more: bool) -> None:
        if not self.is_streaming:
            self.is_streaming = True
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": [*_STREAM_HEADERS, self._trace_header]}
            )
        await self._send({"type": "http.response.body", "body": frame, "more_body": more})

    def expire(self) -> None:
        """Called by the timers after each ping interval."""
        self._ping_timers.stop(self)
        self._ping_task = asyncio.ensure_future(self._send_ping())

    async def _send_ping(self) -> None:
        await self._write(b": ping\r\n\r\n", more=True)
        self._ping_timers.start(self, _PING_INTERVAL)


def _encode_frame(body: bytes) -> bytes:
    return b"event: message\r\ndata: %b\r\n\r\n" % body
