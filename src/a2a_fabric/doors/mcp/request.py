"""One MCP request: its context (principal, trace, delegation chain, work to cancel), and its reply over HTTP.

The reply is one JSON body, or an event stream that ends with the answer. Invariants:
- Nothing is sent before the answer is known, unless there is a notification or the answer takes longer than the
  ping interval; then the reply is an event stream, and stays one.
- A frame is written by a single call of `send`, and ASGI servers write in the order in which they were called;
  so a ping never falls into the middle of a frame, and no lock is needed.
- The last frame of a stream waits for a ping that is being written, and stops the pings; so none follows it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import anyio
import msgspec
from msgspec import UNSET

from a2a_fabric.core.call import Principal
from a2a_fabric.core.propagation import (
    MaybeChain,
    Trace,
    chain_from_metadata,
    make_sibling_trace,
    new_trace,
    pick_longer_chain,
    trace_from_traceparent,
)
from a2a_fabric.core.result import Questions
from a2a_fabric.core.tasks import DeadlineSweep
from a2a_fabric.doors.context import Send
from a2a_fabric.doors.edge import RequestHead, Shortcut, send_reply
from a2a_fabric.protocols.mcp import wire
from a2a_fabric.protocols.mcp.wire import VERSION_HEADER_BYTES, McpMessage, McpProtocolError, is_stateless_version

T = TypeVar("T")

_CLEANUP_TIMEOUT = 5.0


class McpCallerDisconnected(Exception):
    """The caller has disconnected, so no answer is needed."""


class McpRequestContext:
    """The context of one HTTP request, or of one conversation over a WebSocket or stdio.

    `delegation_chain` comes from the headers or the environment; a message may carry a longer one.
    """

    message: McpMessage | None = None  # of an HTTP request with one
    pending_questions: Questions | None = None  # asked by an agent on the fast path
    can_refuse = False  # whether the reply to this request may still be an HTTP status
    client_name = ""  # as the client calls itself; set where tools are listed
    can_show_apps = False  # the client has declared the extension for user interfaces
    wants_all_tools = False  # the client searches in a list of tools of any length by itself

    def __init__(self, principal: Principal, trace: Trace | None = None, delegation_chain: MaybeChain = UNSET) -> None:
        self.principal = principal
        self.delegation_chain = delegation_chain
        self._trace = trace
        self._tasks: set[asyncio.Future[Any]] = set()

    def trace_from_meta(self, meta: Any) -> Trace:
        """The trace of a request: its own `traceparent`, else that of the connection, else a new one."""
        header = meta.get("traceparent") if meta else None
        return self.trace_from_header(header if isinstance(header, str) else None)

    def trace_from_header(self, header: str | None) -> Trace:
        return (trace_from_traceparent(header) if header else None) or self._trace or new_trace()

    def chain_from_meta(self, meta_chain: Any) -> MaybeChain:
        """The delegation chain of a request, with the chain in its `_meta`. Raises BadInput."""
        return (
            self.delegation_chain
            if meta_chain is None
            else pick_longer_chain(chain_from_metadata(meta_chain), self.delegation_chain)
        )

    def run_cancellable(self, work: Awaitable[T]) -> Awaitable[T]:
        """Run `work` in a task of its own, which is cancelled once when the caller cancels or disconnects.

        The SDK's cancel scopes cancel again and again until a task is out of them, which
        leaves an agent no moment to clean up. Raises McpCallerDisconnected.
        """
        return self._run_in_task(work)

    async def _run_in_task(self, work: Awaitable[T]) -> T:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait({task}, timeout=_CLEANUP_TIMEOUT)
            if task.done() and not task.cancelled():
                task.exception()  # seen: it came from the cancellation
            raise
        finally:
            self._tasks.discard(task)
        if task.cancelled():
            raise McpCallerDisconnected
        return task.result()

    def cancel_work(self) -> None:
        for task in self._tasks:
            task.cancel()


class McpConnectionContext(McpRequestContext):
    """Of a connection with many requests: each of them is a span of its own."""

    def trace_from_header(self, header: str | None) -> Trace:
        trace = super().trace_from_header(header)
        return make_sibling_trace(trace) if trace is self._trace else trace


class DirectRequestContext(McpRequestContext):
    """An HTTP request without a cancel scope around it: a disconnect cancels the task of the request itself."""

    can_refuse = True
    delegation_chain: MaybeChain = UNSET
    _trace: Trace | None = None

    def __init__(self, principal: Principal, head: RequestHead, trace: Trace | None = None) -> None:
        """`trace` is that of the request, if one was made already. Raises BadInput."""
        self.principal = principal  # `super().__init__` would make a set of tasks, which is not needed here
        if head.has_journey:
            self._trace, self.delegation_chain = head.trace, head.delegation_chain
        if trace is not None:
            self._trace = trace

    def cancel_work(self) -> None:
        pass

    def run_cancellable(self, work: Awaitable[T]) -> Awaitable[T]:
        return work


def is_stateless_request(head: RequestHead) -> bool:
    """Whether the version header names the stateless era."""
    return is_stateless_version(head.get(VERSION_HEADER_BYTES))


PING_FRAME = b": ping\r\n\r\n"
PING_INTERVAL = 15.0  # seconds; proxies close silent connections
_JSON_HEAD = b"content-type: application/json\r\nx-trace-id: %b\r\n"
STREAM_HEADERS = [
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
        self._ping_timers.start(self, PING_INTERVAL)

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
        await self._send_last(wire.render_error(error, msgspec.Raw(self._id)), error.status)

    async def send_cancelled(self) -> None:
        """End a cancelled request, as the SDK's server does: as an event, also when nothing was streamed before.

        The client may be closing its session. The SDK's client then drops an event, but fails on a JSON reply.
        """
        cancelled = McpProtocolError(wire.REQUEST_CANCELLED, "Request cancelled")
        await self._write(encode_frame(wire.render_error(cancelled, msgspec.Raw(self._id))), more=False)

    async def send_notification(self, method: str, params: Any) -> None:
        notification = {"jsonrpc": "2.0", "method": method}
        await self.send_message(_encode(notification if params is None else {**notification, "params": params}))

    async def send_message(self, body: bytes) -> None:
        """An encoded message before the answer."""
        await self._write(encode_frame(body), more=True)

    async def send_answer(self, body: bytes) -> None:
        """The encoded answer."""
        await self._send_last(body, 200)

    async def _send_last(self, body: bytes, status: int) -> None:
        if self.is_streaming:
            if self._ping_task is not None:
                await asyncio.wait({self._ping_task})
            self._ping_timers.stop(self)
            await self._write(encode_frame(body), more=False)
        elif self._shortcut is not None:
            self._shortcut.reply(status, _JSON_HEAD % self._trace.trace_id.encode(), body)
        else:
            await send_reply(self._send, status, body, [self._trace_header])

    async def _write(self, frame: bytes, *, more: bool) -> None:
        if not self.is_streaming:
            self.is_streaming = True
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, self._trace_header]}
            )
        await self._send({"type": "http.response.body", "body": frame, "more_body": more})

    def expire(self) -> None:
        """Called by the timers after each ping interval."""
        self._ping_timers.stop(self)
        self._ping_task = asyncio.ensure_future(self._send_ping())

    async def _send_ping(self) -> None:
        await self._write(PING_FRAME, more=True)
        self._ping_timers.start(self, PING_INTERVAL)


def encode_frame(body: bytes) -> bytes:
    return b"event: message\r\ndata: %b\r\n\r\n" % body
