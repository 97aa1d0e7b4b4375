"""Runs a program to its end: no shell, its own process group, an exact environment, bounded output and time.

The pipes are our own, because asyncio's `wait` would also wait for a child that the
program left behind and that still holds the output open."""

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

_START_TIMEOUT = 5.0  # seconds for a program to start, before it is killed
_GRACE = 0.5  # seconds to read the rest of the output after the program has ended


class ProcessOutcome(msgspec.Struct, frozen=True, kw_only=True):
    exit_code: int
    stdout: bytes
    stderr: bytes
    duration: float


async def run_program(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout: float,
    limit: int,
    stdin: IO[bytes] | int = asyncio.subprocess.DEVNULL,
) -> ProcessOutcome:
    """Raises OSError if the program cannot start, and TimeoutError. A time-out or a cancellation kills its group."""
    started_at = time.monotonic()
    async with _open_output(limit) as out, _open_output(limit) as err:
        try:
            process = await _start(
                asyncio.create_subprocess_exec(
                    *command,
                    stdin=stdin,
                    stdout=out.write_end,
                    stderr=err.write_end,
                    cwd=cwd,
                    env=dict(env),
                    start_new_session=True,
                )
            )
        finally:
            out.close_write_end()
            err.close_write_end()
        try:
            async with asyncio.timeout(timeout):
                code = await process.wait()
                await asyncio.wait([out.read_task, err.read_task], timeout=_GRACE)
        finally:
            if process.returncode is None or not (out.read_task.done() and err.read_task.done()):
                _kill_group(process)
            await process.wait()
        return ProcessOutcome(
            exit_code=code,
            stdout=bytes(out.captured),
            stderr=bytes(err.captured),
            duration=time.monotonic() - started_at,
        )


async def _start(coroutine: Coroutine[Any, Any, Process]) -> Process:
    """If the caller is cancelled meanwhile, the whole group is killed; asyncio alone would kill only the program."""
    starting = asyncio.ensure_future(coroutine)
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait([asyncio.ensure_future(_kill_started(starting))], timeout=_START_TIMEOUT)
        raise


async def _kill_started(starting: asyncio.Future[Process]) -> None:
    with suppress(OSError):
        process = await starting
        _kill_group(process)
        await process.wait()


def _kill_group(process: Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class _Output:
    """One pipe: the program writes to it, the first bytes are kept, the rest is read and dropped."""

    def __init__(self, write_end: int, reader: asyncio.StreamReader, limit: int) -> None:
        self.write_end = write_end
        self.captured = bytearray()
        self.read_task = asyncio.ensure_future(self._read(reader, limit))

    async def _read(self, reader: asyncio.StreamReader, limit: int) -> None:
        while chunk := await reader.read(65_536):
            self.captured += chunk[: max(0, limit - len(self.captured))]

    def close_write_end(self) -> None:
        """The program has its own copy. As long as ours is open, the reader never sees the end."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1


@asynccontextmanager
async def _open_output(limit: int) -> AsyncIterator[_Output]:
    read_end, write_end = os.pipe()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(read_end, "rb", 0))
    output = _Output(write_end, reader, limit)
    try:
        yield output
    finally:
        output.close_write_end()
        output.read_task.cancel()
        transport.close()
        await asyncio.wait([output.read_task])
