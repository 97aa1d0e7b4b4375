"""One Claude Code process per call: feeds it, reads its output, ends its process group; and the version check."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.errors import AgentOffline, FabricError, OperatorText, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.runtimes.claude.output import ClaudeOutput, error_from_retry
from a2a_fabric.runtimes.programs import ChildProcess, LineTooLong, ProgramSpec, read_lines

EXIT_TIMEOUT = 5.0  # for the program to exit on its own after its result


class ClaudeProcessLimits(msgspec.Struct, frozen=True, kw_only=True):
    line_bytes: int
    grace: float


class ClaudeProcess:
    """A started program. The runtime that starts it also ends it."""

    def __init__(self, child: ChildProcess, limits: ClaudeProcessLimits) -> None:
        self._child = child
        self._limits = limits
        self._exit_timeout = 0.0
        self._stdin_task: asyncio.Future[None] | None = None

    async def run(self, stdin: bytes, output: ClaudeOutput, emit: Emit, ends_at: float) -> str:
        """Run until the result, which `output` then has; without a result, return how the program ended."""
        self._stdin_task = asyncio.ensure_future(_write_stdin(self._child, stdin))
        await self._read_output(output, emit, ends_at)
        if output.result is None:
            return await self._wait_exit_reason()
        self._exit_timeout = EXIT_TIMEOUT
        return ""

    async def finish(self) -> None:
        """Wait for a program that has answered to exit, and stop any other. No process of its group stays."""
        try:
            async with asyncio.timeout(self._exit_timeout):
                await self._child.ended.wait()
        except TimeoutError:
            pass
        finally:
            await self.stop()

    async def stop(self) -> None:
        await self._child.stop(self._limits.grace)
        if self._stdin_task is not None:
            self._stdin_task.cancel()
            await asyncio.wait([self._stdin_task])

    async def _read_output(self, output: ClaudeOutput, emit: Emit, ends_at: float) -> None:
        try:
            async for line in read_lines(self._child.stdout, self._limits.line_bytes):
                for event in output.parse_line(line):
                    await emit(event)
                if output.result is not None:
                    return
                if output.retry is not None:
                    self._check_retry(output, ends_at)
        except LineTooLong as exc:
            limit = self._limits.line_bytes
            raise UpstreamRefused(self._child.program.describe(f"printed a line longer than {limit} bytes")) from exc

    def _check_retry(self, output: ClaudeOutput, ends_at: float) -> None:
        assert output.retry is not None  # noqa: S101
        error = error_from_retry(output, output.retry, ends_at - asyncio.get_running_loop().time())
        if error is not None:
            raise error

    async def _wait_exit_reason(self) -> str:
        """A program usually exits when its output ends."""
        try:
            async with asyncio.timeout(EXIT_TIMEOUT):
                await self._child.ended.wait()
        except TimeoutError:
            pass
        return self._child.exit_summary


def error_from_exit(output: ClaudeOutput, exit_reason: str) -> FabricError:
    """The error for a program that exited without a result. It depends on whether the work had begun."""
    if not output.has_started:
        return AgentOffline(exit_reason)
    return UpstreamInterrupted(exit_reason)


async def _write_stdin(child: ChildProcess, data: bytes) -> None:
    try:
        child.stdin.write(data)
        await child.stdin.drain()
        child.stdin.close()
    except ConnectionError:
        pass  # the program does not read its input


VERSION_CACHE_SECONDS = 60.0  # for which a version check is valid
VERSION_TIMEOUT = 20.0
_VERSION_BYTES = 10_000


class ClaudeVersionCheck:
    def __init__(self, program: ProgramSpec) -> None:
        self._program = replace(program, argv=(*program.argv, "--version"))
        self._checked_at: float | None = None
        self._lock = asyncio.Lock()

    async def check(self) -> None:
        """Raises AgentOffline with the reason."""
        self._program.find_executable()
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if self._checked_at is None or now - self._checked_at > VERSION_CACHE_SECONDS:
                await self._run_version_command()
                self._checked_at = now

    async def _run_version_command(self) -> None:
        child = await ChildProcess.start(self._program)
        try:
            child.stdin.close()
            async with asyncio.timeout(VERSION_TIMEOUT):
                output = await child.stdout.read(_VERSION_BYTES)
                await child.ended.wait()
        except TimeoutError as exc:
            raise AgentOffline(
                self._program.describe(f"did not print its version within {VERSION_TIMEOUT:g} s")
            ) from exc
        finally:
            await child.destroy()
        if child.returncode != 0 or not output.strip():
            message, reason = self._program.describe("does not print its version: "), child.exit_summary
            raise AgentOffline(OperatorText(message + reason, message.public + reason.public))
