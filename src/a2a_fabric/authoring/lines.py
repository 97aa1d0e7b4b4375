"""An agent on its standard streams: requests as JSON lines on stdin, events and replies on stdout.

    -> {"id": "1", "name": "reason", "arguments": {…}, "stream": true}
    <- {"id": "1", "event": "token", "data": {"text": "…"}}
    <- {"id": "1", "ok": true, "result": {…}}
    -> {"id": "1", "cancel": true}                      no reply follows

Many calls may be under way at once. `fabric.describe` and `fabric.health` are answered here.
Whatever the author's code prints goes to stderr, so it cannot garble the conversation.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import threading
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from a2a_fabric.authoring.wire import (
    Request,
    Served,
    call_from,
    decode_request,
    encode,
    error_reply,
    event_body,
    reply_to,
)
from a2a_fabric.core.errors import BadInput, FabricError, PayloadTooLarge, RateLimited
from a2a_fabric.core.events import Event
from a2a_fabric.core.pipeline import Emit, ignore
from a2a_fabric.core.trace import current_trace

MOST_CALLS = 1024
LINE_LIMIT = 16 * 1024 * 1024
DRAIN_TIMEOUT = 60.0  # calls still running when stdin ends may finish, as long as somebody reads
_LOOK = 0.5
_CHUNK = 65536

RequestId = str | int

log = logging.getLogger(__name__)


async def serve_lines(agent: Served) -> None:
    """Until stdin ends or SIGTERM comes."""
    conversation = Conversation(agent, LineWriter(_private_stdout()))
    reading = asyncio.ensure_future(conversation.hold(_lines(_chunks_of(0), LINE_LIMIT)))
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(signum, reading.cancel)
    with suppress(asyncio.CancelledError, BrokenPipeError):
        await reading


def _private_stdout() -> int:
    """Keep stdout for the protocol alone; prints go to stderr from now on."""
    mine = os.dup(1)
    os.dup2(2, 1)
    return mine


class LineWriter:
    """Whole lines to a file descriptor, in order, never blocking the loop."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="stdout")

    async def write(self, line: bytes) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write_all, line + b"\n")

    def _write_all(self, rest: bytes) -> None:
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def has_reader(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, 0)
        return not any(flags & (select.POLLERR | select.POLLHUP) for _, flags in poll.poll(0))


class Conversation:
    def __init__(self, agent: Served, out: LineWriter) -> None:
        self._agent = agent
        self._out = out
        self._calls: dict[RequestId, asyncio.Task[None]] = {}

    async def hold(self, lines: AsyncIterator[bytes | None]) -> None:
        try:
            async for line in lines:
                await self._take(line)
            await self._drain()
        finally:
            running = list(self._calls.values())
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)

    async def _take(self, line: bytes | None) -> None:
        if line is None:
            await self._say(None, error_reply(PayloadTooLarge(LINE_LIMIT)))
        elif line.strip():
            try:
                request = decode_request(line)
                self._start(request)
            except FabricError as exc:
                await self._say(_id_in(line), error_reply(exc))

    def _start(self, request: Request) -> None:
        if request.id is None:
            raise BadInput("The request has no 'id'")
        running = self._calls.get(request.id)
        if request.cancel:
            if running is not None:
                running.cancel()
            return
        if running is not None:
            raise BadInput(f"A call with the id {request.id!r} is under way")
        if len(self._calls) >= MOST_CALLS:
            raise RateLimited(f"{MOST_CALLS} calls are under way", retry_after=1)
        task = asyncio.ensure_future(self._answer(request.id, request))
        self._calls[request.id] = task
        task.add_done_callback(partial(self._ended, request.id))

    def _ended(self, id_: RequestId, task: asyncio.Task[None]) -> None:
        del self._calls[id_]
        if not task.cancelled() and (failure := task.exception()) and not isinstance(failure, BrokenPipeError):
            log.error("A reply was lost", exc_info=failure)

    async def _answer(self, id_: RequestId, request: Request) -> None:
        if request.name == "fabric.describe":
            await self._say(id_, {"ok": True, "result": self._agent.manifest({"transport": "stdio"})})
        elif request.name == "fabric.health":
            await self._say(id_, {"ok": True, "result": {"status": "ok"}})
        else:
            await self._call(id_, request)

    async def _call(self, id_: RequestId, request: Request) -> None:
        try:
            call = call_from(request, self._agent, stream=request.stream or request.response.stream)
        except FabricError as exc:
            await self._say(id_, error_reply(exc))
            return

        async def emit(event: Event) -> None:
            await self._say(id_, event_body(event, call.trace))

        current_trace.set(call.trace)
        heard: Emit = emit if call.response.stream else ignore
        reply = await reply_to(self._agent, call, heard)
        await self._out.write(b'{"id":' + msgspec.json.encode(id_) + b"," + reply[1:])

    async def _say(self, id_: RequestId | None, body: dict[str, Any]) -> None:
        await self._out.write(encode({"id": id_, **body}))

    async def _drain(self) -> None:
        """stdin has ended: let running calls finish, unless whoever asked is gone as well."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT):
                while self._calls and self._out.has_reader():
                    await asyncio.wait(list(self._calls.values()), timeout=_LOOK)


class _OnlyId(msgspec.Struct):
    id: str | int | None = None


def _id_in(line: bytes) -> RequestId | None:
    """The id of a request that is otherwise wrong, so that its sender learns of it."""
    try:
        return msgspec.json.decode(line, type=_OnlyId).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


async def _chunks_of(fd: int) -> AsyncIterator[bytes]:
    """Bytes from any kind of descriptor: pipe, file or terminal. The thread dies with the process."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue(maxsize=4)

    def read() -> None:
        chunk = b"-"
        while chunk:
            try:
                chunk = os.read(fd, _CHUNK)
            except OSError:
                chunk = b""
            try:
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
            except (RuntimeError, CancelledError):
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while chunk := await chunks.get():
        yield chunk


async def _lines(chunks: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes | None]:
    """Lines without their ends; None stands for one that was longer than `limit` and thrown away."""
    pending = b""
    is_skipping = False
    async for chunk in chunks:
        *ended, pending = (pending + chunk).split(b"\n")
        for line in ended:
            yield None if is_skipping or len(line) > limit else line
            is_skipping = False
        if len(pending) > limit:
            pending, is_skipping = b"", True
    if pending and not is_skipping:
        yield pending
