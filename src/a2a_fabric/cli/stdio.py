"""Lines on the real stdin and stdout, kept away from everything else in the process.

While `Lines` is entered, descriptor 0 is empty and descriptor 1 is stderr: an agent
that prints, or a child that reads, cannot harm the conversation.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import BinaryIO, Self

_LONGEST = 64 * 1024 * 1024
_AHEAD = 16  # lines read before anybody wants them


class Lines:
    def __init__(self) -> None:
        self.have_ended = False

    def __enter__(self) -> Self:
        self._kept = (os.dup(0), os.dup(1))
        self._stdin: BinaryIO = os.fdopen(self._kept[0], "rb", closefd=False)
        self._stdout: BinaryIO = os.fdopen(self._kept[1], "wb", closefd=False)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        return self

    def __exit__(self, *exc: object) -> None:
        os.dup2(self._kept[0], 0)
        os.dup2(self._kept[1], 1)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Until the end of stdin. A read cannot be interrupted, so a thread does it that nobody waits for."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(_AHEAD)
        loop = asyncio.get_running_loop()

        def read() -> None:
            try:
                while line := self._stdin.readline(_LONGEST):
                    asyncio.run_coroutine_threadsafe(queue.put(line), loop).result()
                self.have_ended = True
                asyncio.run_coroutine_threadsafe(queue.put(b""), loop).result()
            except (RuntimeError, CancelledError, OSError):
                return  # the loop has ended

        threading.Thread(target=read, daemon=True, name="stdin").start()
        while line := await queue.get():
            if line.strip():
                yield line

    async def write(self, text: str) -> None:
        """Whoever reads slowly is waited for, in a thread."""
        await asyncio.to_thread(self._write, text.encode() + b"\n")

    def _write(self, line: bytes) -> None:
        with suppress(BrokenPipeError):  # the reader has gone; stdin will end too
            self._stdout.write(line)
            self._stdout.flush()
