"""An agent on its standard streams: requests as JSON lines on stdin, events and replies on stdout.

    -> {"id": "1", "name": "reason", "arguments": {…}, "stream": true}
    <- {"id": "1", "event": "token", "data": {"text": "…"}}
    <- {"id": "1", "ok": true, "result": {…}}
    -> {"id": "1", "cancel": true}                      no reply follows

Many calls may run at once. `fabric.describe` and `fabric.health` are answered here.
What the author's code prints goes to stderr, so it cannot corrupt the protocol."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from a2a_fabric.authoring import contract
from a2a_fabric.core.call import Emit, ignore_event
from a2a_fabric.core.errors import BadInput, FabricError, PayloadTooLarge, RateLimited
from a2a_fabric.core.propagation import current_trace
from a2a_fabric.core.result import Event

MAX_CALLS = 1024
LINE_LIMIT = 16 * 1024 * 1024
DRAIN_TIMEOUT = 60.0  # calls still running when stdin ends may finish, as long as stdout is read
_DRAIN_CHECK_SECONDS = 0.5
_CHUNK = 65536
_CHUNKS_AHEAD = 4

RequestId = str | int

log = logging.getLogger(__name__)


async def serve_jsonl(agent: contract.ServedAgent) -> None:
    """Serve until stdin ends or SIGTERM arrives."""
    server = JsonlServer(agent, LineWriter(_private_stdout()))
    chunks = read_in_thread(lambda: os.read(0, _CHUNK), _CHUNKS_AHEAD)
    serve_task = asyncio.ensure_future(server.serve(_split_lines(chunks, LINE_LIMIT)))
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(signum, serve_task.cancel)
    with suppress(asyncio.CancelledError, BrokenPipeError):
        await serve_task


def _private_stdout() -> int:
    """Keep stdout for the protocol alone; prints go to stderr from now on."""
    protocol_fd = os.dup(1)
    os.dup2(2, 1)
    return protocol_fd


class LineWriter:
    """Writes whole lines to a file descriptor, in order, without blocking the event loop."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="stdout")

    async def write(self, line: bytes) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write_all, line + b"\n")

    def _write_all(self, remaining: bytes) -> None:
        while remaining:
            remaining = remaining[os.write(self._fd, remaining) :]

    def has_reader(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, 0)
        return not any(flags & (select.POLLERR | select.POLLHUP) for _, flags in poll.poll(0))


class JsonlServer:
    def __init__(self, agent: contract.ServedAgent, writer: LineWriter) -> None:
        self._agent = agent
        self._writer = writer
        self._calls: dict[RequestId, asyncio.Task[None]] = {}

    async def serve(self, lines: AsyncIterator[bytes | None]) -> None:
        try:
            async for line in lines:
                await self._handle_line(line)
            await self._drain()
        finally:
            running = list(self._calls.values())
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)

    async def _handle_line(self, line: bytes | None) -> None:
        if line is None:
            await self._send(None, contract.build_error_reply(PayloadTooLarge(LINE_LIMIT)))
        elif line.strip():
            try:
                request = contract.decode_request(line)
                self._start(request)
            except FabricError as exc:
                await self._send(_read_id(line), contract.build_error_reply(exc))

    def _start(self, request: contract.ContractRequest) -> None:
        if request.id is None:
            raise BadInput("The request has no 'id'")
        running = self._calls.get(request.id)
        if request.cancel:
            if running is not None:
                running.cancel()
            return
        if running is not None:
            raise BadInput(f"A call with the id {request.id!r} is under way")
        if len(self._calls) >= MAX_CALLS:
            raise RateLimited(f"{MAX_CALLS} calls are under way", retry_after=1)
        task = asyncio.ensure_future(self._answer(request.id, request))
        self._calls[request.id] = task
        task.add_done_callback(partial(self._on_call_done, request.id))

    def _on_call_done(self, id_: RequestId, task: asyncio.Task[None]) -> None:
        del self._calls[id_]
        if not task.cancelled() and (failure := task.exception()) and not isinstance(failure, BrokenPipeError):
            log.error("A reply was lost", exc_info=failure)

    async def _answer(self, id_: RequestId, request: contract.ContractRequest) -> None:
        if request.name == "fabric.describe":
            await self._send(id_, {"ok": True, "result": self._agent.manifest({"transport": "stdio"})})
        elif request.name == "fabric.health":
            await self._send(id_, {"ok": True, "result": {"status": "ok"}})
        else:
            await self._call(id_, request)

    async def _call(self, id_: RequestId, request: contract.ContractRequest) -> None:
        try:
            contract.check_identity(self._agent, request.identity, request.arguments, request.name)
            call = contract.call_from_request(request, self._agent, stream=request.stream or request.response.stream)
        except FabricError as exc:
            await self._send(id_, contract.build_error_reply(exc))
            return

        async def emit(event: Event) -> None:
            await self._send(id_, contract.build_event(event, call.trace))

        current_trace.set(call.trace)
        active_emit: Emit = emit if call.response.stream else ignore_event
        reply = await contract.answer_call(self._agent, call, active_emit)
        await self._writer.write(b'{"id":' + msgspec.json.encode(id_) + b"," + reply[1:])

    async def _send(self, id_: RequestId | None, body: dict[str, Any]) -> None:
        await self._writer.write(contract.encode_json({"id": id_, **body}))

    async def _drain(self) -> None:
        """stdin has ended: let running calls finish, unless stdout is closed too."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT):
                while self._calls and self._writer.has_reader():
                    await asyncio.wait(list(self._calls.values()), timeout=_DRAIN_CHECK_SECONDS)


class _RequestIdOnly(msgspec.Struct):
    id: str | int | None = None


def _read_id(line: bytes) -> RequestId | None:
    """The id of an invalid request, so that its sender gets the error."""
    try:
        return msgspec.json.decode(line, type=_RequestIdOnly).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


async def read_in_thread(read: Callable[[], bytes], ahead: int) -> AsyncIterator[bytes]:
    """What `read` returns, until it returns nothing; at most `ahead` pieces are read before they are wanted.

    A read of stdin cannot be interrupted, so a daemon thread reads, which ends with the process.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue(ahead)

    def fill_queue() -> None:
        piece = b"-"
        while piece:
            try:
                piece = read()
            except (OSError, ValueError):  # ValueError: the file was closed
                piece = b""
            try:
                asyncio.run_coroutine_threadsafe(queue.put(piece), loop).result()
            except (RuntimeError, CancelledError):
                return  # the loop has ended

    threading.Thread(target=fill_queue, name="stdin", daemon=True).start()
    while piece := await queue.get():
        yield piece


async def _split_lines(chunks: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes | None]:
    """Lines without their ends; None stands for a discarded line that was longer than `limit`."""
    pending = b""
    is_skipping = False
    async for chunk in chunks:
        *complete_lines, pending = (pending + chunk).split(b"\n")
        for line in complete_lines:
            yield None if is_skipping or len(line) > limit else line
            is_skipping = False
        if len(pending) > limit:
            pending, is_skipping = b"", True
    if pending and not is_skipping:
        yield pending
