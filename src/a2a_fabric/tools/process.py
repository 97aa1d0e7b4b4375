"""A program run to its end: no shell, a process group of its own, an exact environment, output and time bounded."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

_GRACE = 0.5  # for output still in the pipe after the program itself has ended


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    exit_code: int
    stdout: bytes
    stderr: bytes
    duration: float


async def run(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float, limit: int, stdin: bytes = b""
) -> Outcome:
    """Raises TimeoutError, OSError if it cannot be started; then, or when cancelled, the whole group is killed."""
    started = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=cwd,
        env=dict(env),
        start_new_session=True,
    )
    pipes = asyncio.gather(_head(process.stdout, limit), _head(process.stderr, limit), _feed(process.stdin, stdin))
    try:
        async with asyncio.timeout(timeout):
            code = await process.wait()
            await asyncio.wait([pipes], timeout=_GRACE)
            if not pipes.done():  # a child of the program holds the pipe open
                _kill_group(process)
            out, err, _ = await pipes
        return Outcome(exit_code=code, stdout=out, stderr=err, duration=time.monotonic() - started)
    finally:
        await _end(process, pipes)


async def _end(process: asyncio.subprocess.Process, pipes: asyncio.Future[tuple[bytes, bytes, None]]) -> None:
    if process.returncode is None or not pipes.done():
        _kill_group(process)
    pipes.cancel()
    await asyncio.wait([pipes])
    if not pipes.cancelled():
        pipes.exception()  # seen: the reason to end comes from the caller
    transport = process._transport  # type: ignore[attr-defined]  # asyncio offers no other way to close the pipes
    transport.close()
    await process.wait()


def _kill_group(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


async def _head(stream: asyncio.StreamReader | None, limit: int) -> bytes:
    """The first bytes of the output; the rest is read and dropped, so that a full pipe never blocks the program."""
    kept = bytearray()
    while stream and (chunk := await stream.read(65_536)):
        kept += chunk[: max(0, limit - len(kept))]
    return bytes(kept)


async def _feed(stream: asyncio.StreamWriter | None, content: bytes) -> None:
    if stream is None:
        return
    with suppress(BrokenPipeError, ConnectionResetError):
        stream.write(content)
        await stream.drain()
    stream.close()
    with suppress(BrokenPipeError, ConnectionResetError):
        await stream.wait_closed()
