"""A program run to its end: no shell, a process group of its own, an exact environment, output and time bounded.

The pipes are our own, because asyncio's `wait` would also wait for whoever else
holds the output open: a child that the program left behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any

import msgspec

_START = 5.0  # for a program to be started and ended
_GRACE = 0.5  # for output still in the pipe after the program itself has ended


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    exit_code: int
    stdout: bytes
    stderr: bytes
    duration: float


async def run(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout: float,
    limit: int,
    stdin: IO[bytes] | int = asyncio.subprocess.DEVNULL,
) -> Outcome:
    """Raises TimeoutError, or OSError if it cannot be started; then, or when cancelled, the whole group is killed."""
    started = time.monotonic()
    async with _output(limit) as out, _output(limit) as err:
        try:
            process = await _started(
                asyncio.create_subprocess_exec(
                    *command,
                    stdin=stdin,
                    stdout=out.inlet,
                    stderr=err.inlet,
                    cwd=cwd,
                    env=dict(env),
                    start_new_session=True,
                )
            )
        finally:
            out.close_inlet()
            err.close_inlet()
        try:
            async with asyncio.timeout(timeout):
                code = await process.wait()
                await asyncio.wait([out.reading, err.reading], timeout=_GRACE)
        finally:
            if process.returncode is None or not (out.reading.done() and err.reading.done()):
                _kill_group(process)
            await process.wait()
        return Outcome(
            exit_code=code, stdout=bytes(out.kept), stderr=bytes(err.kept), duration=time.monotonic() - started
        )


async def _started(coming: Coroutine[Any, Any, Process]) -> Process:
    """Who is cancelled meanwhile ends it with its children; asyncio alone would end only the program itself."""
    starting = asyncio.ensure_future(coming)
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait([asyncio.ensure_future(_ended(starting))], timeout=_START)
        raise


async def _ended(starting: asyncio.Future[Process]) -> None:
    with suppress(OSError):
        process = await starting
        _kill_group(process)
        await process.wait()


def _kill_group(process: Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class _Output:
    """One pipe: the program writes into the inlet, the first bytes of it are kept, the rest is read and dropped."""

    def __init__(self, inlet: int, reader: asyncio.StreamReader, limit: int) -> None:
        self.inlet = inlet
        self.kept = bytearray()
        self.reading = asyncio.ensure_future(self._read(reader, limit))

    async def _read(self, reader: asyncio.StreamReader, limit: int) -> None:
        while chunk := await reader.read(65_536):
            self.kept += chunk[: max(0, limit - len(self.kept))]

    def close_inlet(self) -> None:
        """The program has its own copy; while ours is open the pipe has no end."""
        if self.inlet >= 0:
            os.close(self.inlet)
            self.inlet = -1


@asynccontextmanager
async def _output(limit: int) -> AsyncIterator[_Output]:
    outlet, inlet = os.pipe()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(outlet, "rb", 0))
    output = _Output(inlet, reader, limit)
    try:
        yield output
    finally:
        output.close_inlet()
        output.reading.cancel()
        transport.close()
        await asyncio.wait([output.reading])
