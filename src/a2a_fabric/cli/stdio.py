"""JSON-RPC messages as lines on stdin and stdout, separated from everything else in the process.

While `StdioChannel` is entered, descriptor 0 is empty and descriptor 1 is stderr: an
agent that prints, or a child that reads, cannot disturb the connection.

A client that closes stdin still gets the replies to its open requests: the iteration
ends when all requests have been answered, or after `drain_seconds`."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import BinaryIO, Self

import msgspec

_MAX_LINE = 64 * 1024 * 1024
_READ_AHEAD = 16  # lines
_LONG_LIVED = frozenset({"subscriptions/listen"})  # requests that are answered when the client ends them


class StdioChannel:
    """JSON-RPC messages, one in each line."""

    def __init__(self) -> None:
        self.has_ended = False
        self.drain_seconds = 30.0
        self._unanswered: set[str | int] = set()
        self._all_answered = asyncio.Event()
        self._all_answered.set()

    def __enter__(self) -> Self:
        self._saved_descriptors = (os.dup(0), os.dup(1))
        self._stdin: BinaryIO = os.fdopen(self._saved_descriptors[0], "rb", closefd=False)
        self._stdout: BinaryIO = os.fdopen(self._saved_descriptors[1], "wb", closefd=False)
        with open(os.devnull, "rb") as devnull:
            os.dup2(devnull.fileno(), 0)
        os.dup2(2, 1)
        return self

    def __exit__(self, *exc: object) -> None:
        os.dup2(self._saved_descriptors[0], 0)
        os.dup2(self._saved_descriptors[1], 1)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The lines of stdin. A read cannot be interrupted, so a daemon thread reads."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(_READ_AHEAD)
        loop = asyncio.get_running_loop()

        def read() -> None:
            try:
                while line := self._stdin.readline(_MAX_LINE):
                    asyncio.run_coroutine_threadsafe(queue.put(line), loop).result()
                self.has_ended = True
                asyncio.run_coroutine_threadsafe(queue.put(b""), loop).result()
            except (RuntimeError, CancelledError, OSError):
                return  # the loop has ended

        threading.Thread(target=read, daemon=True, name="stdin").start()
        while line := await queue.get():
            if line.strip():
                self._note_request(line)
                yield line
        with suppress(TimeoutError):
            async with asyncio.timeout(self.drain_seconds):
                await self._all_answered.wait()

    async def write(self, text: str) -> None:
        """Write in a thread, because a slow client blocks the write."""
        line = text.encode()
        if await asyncio.to_thread(self._write, line + b"\n"):
            self._note_reply(line)
        else:
            self._unanswered.clear()
            self._all_answered.set()

    def _write(self, line: bytes) -> bool:
        """Whether the client still reads."""
        try:
            self._stdout.write(line)
            self._stdout.flush()
        except BrokenPipeError:  # stdin will end soon
            return False
        return True

    def _note_request(self, line: bytes) -> None:
        message = _decode_message(line)
        if message.method == "notifications/cancelled":  # the request gets no reply
            self._mark_answered(message.params.request_id)
        elif message.method not in _LONG_LIVED and message.method is not None and message.id is not None:
            self._unanswered.add(message.id)
            self._all_answered.clear()

    def _note_reply(self, line: bytes) -> None:
        if self._unanswered:
            message = _decode_message(line)
            if message.method is None:
                self._mark_answered(message.id)

    def _mark_answered(self, request_id: str | int | None) -> None:
        self._unanswered.discard(request_id)
        if not self._unanswered:
            self._all_answered.set()


class _Params(msgspec.Struct, frozen=True):
    request_id: str | int | None = msgspec.field(name="requestId", default=None)


class _Message(msgspec.Struct, frozen=True):
    """The fields that tell which reply belongs to which request."""

    method: str | None = None
    id: str | int | None = None
    params: _Params = _Params()


_decoder = msgspec.json.Decoder(_Message)


def _decode_message(line: bytes) -> _Message:
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _Message()  # the server reports what is wrong with it
