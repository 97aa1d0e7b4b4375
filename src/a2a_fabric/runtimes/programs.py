"""Programs that the node starts: each in its own session, with bounded pipes; the end of its stderr is kept.

No shell is involved, and the child gets a minimal environment. When the program ends, for any
reason, the rest of its process group is killed. If the node dies, the child reads the end of stdin.
A `ProcessStarter` that is closed starts nothing more and ends what it was starting."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec

from a2a_fabric.core.errors import AgentOffline, OperatorText
from a2a_fabric.runtimes.context import RuntimeContext, bad_endpoint

log = logging.getLogger(__name__)

START_TIMEOUT = 10.0
STDERR_TIMEOUT = 1.0
KILL_TIMEOUT = 5.0
INHERITED_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT")

_CHUNK = 64 * 1024
_MAX_STDERR_LINE = 2000  # characters of one stderr line worth keeping


class LineTooLong(Exception):
    """The program wrote a line that is longer than the limit."""


class ProgramSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A program to start: its arguments, folder and environment."""

    agent_id: str
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path

    def find_executable(self) -> str:
        """The path of the program. Raises AgentOffline if it cannot be found."""
        name = self.argv[0]
        if not self.cwd.is_dir():
            reason = OperatorText(f"The folder {str(self.cwd)!r} does not exist", "The program's folder does not exist")
            raise AgentOffline(reason, agent_id=self.agent_id)
        candidate = str(self.cwd / name) if os.sep in name else name
        executable = shutil.which(candidate, path=self.env.get("PATH", os.defpath))
        if executable is None:
            reason = OperatorText(
                f"The program {name!r} cannot be found or run. Install it, or name its path",
                "The program cannot be found or run",
            )
            raise AgentOffline(reason, agent_id=self.agent_id)
        return executable

    def describe(self, outcome: str) -> OperatorText:
        """What happened to the program: with its name for the operator, without it for others."""
        return OperatorText(f"{self.argv[0]} {outcome}", f"The program {outcome}")


def build_program(
    context: RuntimeContext,
    agent_id: str,
    command: Sequence[str] | str,
    *,
    env: Mapping[str, str],
    cwd: str,
    inherited: Iterable[str] = (),
    arguments: Sequence[str] = (),
) -> ProgramSpec:
    """The program of an agent, as its endpoint declares it. Raises BadInput.

    A `command` that is a string is split as a shell would; there is no shell. `inherited` names variables of the
    node that this kind of program needs besides the usual ones. `arguments` are only checked: the runtime
    appends them to each call.
    """
    try:
        argv = shlex.split(command) if isinstance(command, str) else command
    except ValueError as exc:
        raise bad_endpoint(agent_id, f"command: {exc}") from exc
    texts = [*argv, *arguments, cwd, *env, *env.values()]
    if not argv or not argv[0] or any("\0" in text for text in texts) or any("=" in name for name in env):
        raise bad_endpoint(agent_id, "the program cannot be run with this command, these arguments or this env")
    environ = context.environ
    extra = {name: environ[name] for name in inherited if name in environ}
    return ProgramSpec(
        agent_id=agent_id,
        argv=tuple(argv),
        env=build_environment(environ, {**extra, **env}),
        cwd=(context.base / cwd).resolve(),
    )


def build_environment(inherited: Mapping[str, str], declared: Mapping[str, str]) -> dict[str, str]:
    """The few variables that every program needs, and those that the manifest declares."""
    return {name: inherited[name] for name in INHERITED_VARIABLES if name in inherited} | dict(declared)


class _ExitAwarePipes(SubprocessStreamProtocol):
    """Knows when the program itself exits, even while one of its children holds its pipes open."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=4 * _CHUNK, loop=loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


class ChildProcess:
    """A started program. `ended` is set when it has exited, its group is killed and its stderr is read."""

    def __init__(self, program: ProgramSpec, pipes: _ExitAwarePipes, transport: asyncio.SubprocessTransport) -> None:
        self.program = program
        self.stdin = cast(asyncio.StreamWriter, pipes.stdin)
        self.stdout = cast(asyncio.StreamReader, pipes.stdout)
        self.pid = transport.get_pid()
        self.ended = asyncio.Event()
        self._transport = transport
        self._stderr_tail: deque[str] = deque(maxlen=5)
        self._stderr_task = asyncio.ensure_future(self._drain_stderr(cast(asyncio.StreamReader, pipes.stderr)))
        self._exit_task = asyncio.ensure_future(self._wait_for_exit(pipes))

    @classmethod
    async def start(cls, program: ProgramSpec) -> ChildProcess:
        """Raises AgentOffline if the program cannot be started. If it is cancelled, what was started is ended."""
        start_task = asyncio.ensure_future(cls._spawn(program, program.find_executable()))
        try:
            async with asyncio.timeout(START_TIMEOUT):
                return await asyncio.shield(start_task)
        except (OSError, TimeoutError) as exc:
            await _destroy_started(start_task)
            reason = getattr(exc, "strerror", None) or "it took too long"
            message = f"The program {program.argv[0]!r} cannot be started: {reason}"
            operator_text = OperatorText(message, f"The program cannot be started: {reason}")
            raise AgentOffline(operator_text, agent_id=program.agent_id) from exc
        except asyncio.CancelledError:
            await _destroy_started(start_task)
            raise

    @classmethod
    async def _spawn(cls, program: ProgramSpec, path: str) -> ChildProcess:
        """Must not be cancelled: asyncio would kill the program but not its children, and never return."""
        loop = asyncio.get_running_loop()
        transport, pipes = await loop.subprocess_exec(
            lambda: _ExitAwarePipes(loop),
            path, *program.argv[1:],
            stdin=PIPE, stdout=PIPE, stderr=PIPE, env=program.env, cwd=program.cwd, start_new_session=True,
        )  # fmt: skip
        return cls(program, pipes, transport)

    @property
    def exit_summary(self) -> OperatorText:
        """`./tool exited with code 3: no such model`; the line from stderr is for the operator only."""
        code = self.returncode
        if code is None:
            outcome = "stopped answering"
        elif code < 0:
            outcome = f"was killed by {_signal_name(-code)}"
        else:
            outcome = f"exited with code {code}"
        stderr_text = f": {self._stderr_tail[-1][:300]}" if self._stderr_tail else ""
        description = self.program.describe(outcome)
        return OperatorText(description + stderr_text, description.public)

    @property
    def returncode(self) -> int | None:
        return self._transport.get_returncode()

    def kill(self, signum: signal.Signals = signal.SIGKILL) -> None:
        """Signal the whole group. After its end the number may belong to another process, so nothing is sent."""
        if not self.ended.is_set():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)

    async def stop(self, grace: float) -> None:
        """Close stdin and send SIGTERM; after `grace` seconds kill; then close the pipes."""
        try:
            self.stdin.close()
            self.kill(signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self.ended.wait()
        finally:
            await self.destroy()

    async def destroy(self) -> None:
        """Kill the group at once and close the pipes."""
        self.kill()
        try:
            async with asyncio.timeout(KILL_TIMEOUT):
                await self.ended.wait()
        except TimeoutError:
            log.error("%s: process %d did not end after SIGKILL", self.program.agent_id, self.pid)
        finally:
            self._transport.close()

    async def _wait_for_exit(self, pipes: _ExitAwarePipes) -> None:
        await pipes.exited.wait()
        pipes.stdin = None  # the two would refer to each other
        self.kill()  # the children that it left behind
        with suppress(TimeoutError):
            async with asyncio.timeout(STDERR_TIMEOUT):
                await self._stderr_task
        self.ended.set()

    async def _drain_stderr(self, stderr: asyncio.StreamReader) -> None:
        """Drain stderr: into the log, and the end of it into memory."""
        pending = b""
        while chunk := await stderr.read(_CHUNK):
            *lines, pending = (pending + chunk).split(b"\n")
            pending = pending[-_CHUNK:]
            for line in lines:
                self._log_line(line)
        self._log_line(pending)

    def _log_line(self, line: bytes) -> None:
        if text := line[: 4 * _MAX_STDERR_LINE].decode(errors="replace").strip()[:_MAX_STDERR_LINE]:
            self._stderr_tail.append(text)
            log.info("%s: %s", self.program.agent_id, text)


async def _destroy_started(start_task: asyncio.Future[ChildProcess]) -> None:
    """End a program that is being started; in the background if that takes long or the caller is cancelled again."""
    await asyncio.wait([asyncio.ensure_future(_destroy_when_started(start_task))], timeout=KILL_TIMEOUT)


async def _destroy_when_started(start_task: asyncio.Future[ChildProcess]) -> None:
    with suppress(OSError):
        await (await start_task).destroy()


async def read_lines(stream: asyncio.StreamReader, limit: int) -> AsyncIterator[bytes]:
    """Lines without their ends. Raises LineTooLong."""
    pending = bytearray()
    while chunk := await stream.read(_CHUNK):
        *lines, remainder = chunk.split(b"\n")
        for line in lines:
            pending += line
            _check_length(pending, limit)
            yield bytes(pending)
            pending.clear()
        pending += remainder
        _check_length(pending, limit)
    if pending:
        yield bytes(pending)


def _check_length(line: bytearray, limit: int) -> None:
    if len(line) > limit:
        raise LineTooLong


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class ProcessStarter:
    def __init__(self) -> None:
        self._start_tasks: set[asyncio.Future[ChildProcess]] = set()
        self._is_closed = False

    async def start(self, program: ProgramSpec) -> ChildProcess:
        """Raises AgentOffline, also if `aclose` comes before the program is handed over."""
        if self._is_closed:
            raise _shut_down_error(program)
        start_task = asyncio.ensure_future(ChildProcess.start(program))
        self._start_tasks.add(start_task)
        try:
            await asyncio.wait([start_task])
        except asyncio.CancelledError:
            await _cancel_start(start_task)
            raise
        finally:
            self._start_tasks.discard(start_task)
        if self._is_closed:
            await _cancel_start(start_task)
            raise _shut_down_error(program)
        return start_task.result()

    async def aclose(self) -> None:
        self._is_closed = True
        if cancel_tasks := [asyncio.ensure_future(_cancel_start(start_task)) for start_task in self._start_tasks]:
            await asyncio.wait(cancel_tasks)


async def _cancel_start(start_task: asyncio.Future[ChildProcess]) -> None:
    """End a program that is being started or has just been started."""
    start_task.cancel()
    await asyncio.wait([start_task])
    if not start_task.cancelled() and start_task.exception() is None:
        await start_task.result().destroy()


def _shut_down_error(program: ProgramSpec) -> AgentOffline:
    return AgentOffline(program.describe("is shut down with the node"), agent_id=program.agent_id)


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The delay before a program is started again: it doubles with each failed start, up to `max_delay`."""

    first_delay: float
    max_delay: float
    max_deaths: int | None = None  # exits in a row after which it is not started again

    def delay(self, deaths: int) -> float:
        return float(min(self.max_delay, self.first_delay * 2 ** min(deaths - 1, 30)))

    def is_exhausted(self, deaths: int) -> bool:
        return self.max_deaths is not None and deaths > self.max_deaths


_NODE_VARIABLES = ("FABRIC_HOME", "FABRIC_URL")  # no secrets: the program finds the node's key by itself


class NodeMcpServer(msgspec.Struct, frozen=True, kw_only=True):
    """A program that speaks MCP on its stdin and stdout on behalf of the node."""

    name: str
    command: str
    args: tuple[str, ...]
    env: dict[str, str]


def build_node_mcp_server(environ: Mapping[str, str]) -> NodeMcpServer:
    """`environ` is the environment of the node."""
    variables = {name: environ[name] for name in _NODE_VARIABLES if name in environ}
    return NodeMcpServer(name="fabric", command=sys.executable, args=("-m", "a2a_fabric", "mcp"), env=variables)
