"""A child process in a session of its own: its pipes, its last words, and an end that leaves nobody behind.

No shell is ever involved, and the child sees a minimal environment. When its leader ends, for
whatever reason, the rest of its process group is killed. If we die, it reads the end of stdin.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec

from a2a_fabric.core.errors import AgentOffline, OperatorText

log = logging.getLogger(__name__)

START_TIMEOUT = 10.0
LAST_WORDS_TIMEOUT = 1.0
KILL_TIMEOUT = 5.0
INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT")

_CHUNK = 64 * 1024
_WORDS = 2000  # characters of one stderr line worth keeping


class LineTooLong(Exception):
    """The child does not know when to stop."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What to start, where, and with which environment."""

    agent_id: str
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path

    def path(self) -> str:
        """Where the program is. Raises AgentOffline naming it if it is not there."""
        name = self.argv[0]
        if not self.cwd.is_dir():
            why = OperatorText(f"The folder {str(self.cwd)!r} does not exist", "The program's folder does not exist")
            raise AgentOffline(why, agent_id=self.agent_id)
        where = str(self.cwd / name) if os.sep in name else name
        found = shutil.which(where, path=self.env.get("PATH", os.defpath))
        if found is None:
            why = OperatorText(f"The program {name!r} cannot be found or run", "The program cannot be found or run")
            raise AgentOffline(why, agent_id=self.agent_id)
        return found

    def tell(self, fate: str) -> OperatorText:
        """What became of it: under its name for the operator, without for others."""
        return OperatorText(f"{self.argv[0]} {fate}", f"The program {fate}")


def environment(inherited: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Only what programs cannot do without, plus what the manifest gives them."""
    return {name: inherited[name] for name in INHERITED if name in inherited} | dict(given)


class _Pipes(SubprocessStreamProtocol):
    """Knows when the program itself exits, even while somebody it left behind holds its pipes open."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=4 * _CHUNK, loop=loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


class Child:
    """A started program. `ended` is set once it is dead, its group is killed and its last words are heard."""

    def __init__(self, program: Program, pipes: _Pipes, transport: asyncio.SubprocessTransport) -> None:
        self.program = program
        self.stdin = cast(asyncio.StreamWriter, pipes.stdin)
        self.stdout = cast(asyncio.StreamReader, pipes.stdout)
        self.pid = transport.get_pid()
        self.ended = asyncio.Event()
        self._exited = pipes.exited
        self._transport = transport
        self._last_words: deque[str] = deque(maxlen=5)
        self._hearing = asyncio.ensure_future(self._hear(cast(asyncio.StreamReader, pipes.stderr)))
        self._watching = asyncio.ensure_future(self._watch())

    @classmethod
    async def start(cls, program: Program) -> Child:
        """Raises AgentOffline if the program cannot be started. Cancelled half-way it still ends what it began."""
        starting = asyncio.ensure_future(cls._started(program, program.path()))
        try:
            async with asyncio.timeout(START_TIMEOUT):
                return await asyncio.shield(starting)
        except (OSError, TimeoutError) as exc:
            await _undone(starting)
            why = getattr(exc, "strerror", None) or "it took too long"
            message = f"The program {program.argv[0]!r} cannot be started: {why}"
            told = OperatorText(message, f"The program cannot be started: {why}")
            raise AgentOffline(told, agent_id=program.agent_id) from exc
        except asyncio.CancelledError:
            await _undone(starting)
            raise

    @classmethod
    async def _started(cls, program: Program, path: str) -> Child:
        """Not to be cancelled: asyncio would kill the program, but not its children, and wait for ever for the rest."""
        loop = asyncio.get_running_loop()
        transport, pipes = await loop.subprocess_exec(
            lambda: _Pipes(loop),
            path, *program.argv[1:],
            stdin=PIPE, stdout=PIPE, stderr=PIPE, env=program.env, cwd=program.cwd, start_new_session=True,
        )  # fmt: skip
        return cls(program, pipes, transport)

    @property
    def obituary(self) -> OperatorText:
        """`./tool exited with code 3: no such model`; the words from stderr are for the operator."""
        code = self.returncode
        if code is None:
            fate = "stopped answering"
        elif code < 0:
            fate = f"was killed by {_signal_name(-code)}"
        else:
            fate = f"exited with code {code}"
        words = f": {self._last_words[-1][:300]}" if self._last_words else ""
        told = self.program.tell(fate)
        return OperatorText(told + words, told.public)

    @property
    def returncode(self) -> int | None:
        return self._transport.get_returncode()

    def kill(self, signum: signal.Signals = signal.SIGKILL) -> None:
        """Signal the whole group. Once it has ended its number may be another's, so nothing is sent."""
        if not self.ended.is_set():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)

    async def stop(self, grace: float) -> None:
        """Close stdin, ask to stop, after `grace` seconds kill; then let go of the pipes."""
        try:
            self.stdin.close()
            self.kill(signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self.ended.wait()
        finally:
            await self.destroy()

    async def destroy(self) -> None:
        """Kill the group at once and let go of the pipes."""
        self.kill()
        try:
            async with asyncio.timeout(KILL_TIMEOUT):
                await self.ended.wait()
        except TimeoutError:
            log.error("%s: process %d does not die", self.program.agent_id, self.pid)
        finally:
            self._transport.close()

    async def _watch(self) -> None:
        await self._exited.wait()
        self.kill()  # whoever it left behind
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_TIMEOUT):
                await self._hearing
        self.ended.set()

    async def _hear(self, stderr: asyncio.StreamReader) -> None:
        """Drain stderr: into the log, and the end of it into memory."""
        pending = b""
        while chunk := await stderr.read(_CHUNK):
            *lines, pending = (pending + chunk).split(b"\n")
            pending = pending[-_CHUNK:]
            for line in lines:
                self._note(line)
        self._note(pending)

    def _note(self, line: bytes) -> None:
        if words := line[: 4 * _WORDS].decode(errors="replace").strip()[:_WORDS]:
            self._last_words.append(words)
            log.info("%s: %s", self.program.agent_id, words)


async def _undone(starting: asyncio.Future[Child]) -> None:
    """What is being started is ended; if that takes long, or we are cancelled again, without us."""
    await asyncio.wait([asyncio.ensure_future(_ended(starting))], timeout=KILL_TIMEOUT)


async def _ended(starting: asyncio.Future[Child]) -> None:
    with suppress(OSError):
        await (await starting).destroy()


async def lines_of(stream: asyncio.StreamReader, limit: int) -> AsyncIterator[bytes]:
    """Lines without their ends. Raises LineTooLong."""
    pending = bytearray()
    while chunk := await stream.read(_CHUNK):
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            pending += line
            _check(pending, limit)
            yield bytes(pending)
            pending.clear()
        pending += rest
        _check(pending, limit)
    if pending:
        yield bytes(pending)


def _check(line: bytearray, limit: int) -> None:
    if len(line) > limit:
        raise LineTooLong


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
