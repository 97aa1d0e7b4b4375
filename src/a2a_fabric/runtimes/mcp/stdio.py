"""The transport to an MCP server on stdio: a program that the node starts, one message a line.

The program gets its own process group, its stderr is kept, its lines are bounded, and no process of its group
outlives it.

Invariants:
- One task reads; each line is decoded once, and a line that is no message is logged and skipped.
- A message is written at once, as one line, by the task that sends it, unless the program has not read enough of what
  came before. Then one task waits for the program to read, and other messages wait for that task before they are
  written. So no more than one message beyond `_MAX_UNREAD` bytes is held in memory, besides the callers' own.
- A program that reads nothing for `_WRITE_TIMEOUT` seconds, or sends a longer line than allowed, is killed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.protocols.mcp.wire import McpMessage, McpProtocolError, parse_message
from a2a_fabric.runtimes.mcp.transports import McpReceiver, RpcRequest
from a2a_fabric.runtimes.programs import ChildProcess, LineTooLong, ProgramSpec, read_lines

_log = logging.getLogger(__name__)

_WRITE_TIMEOUT = 10.0
_EXIT_TIMEOUT = 2.0
_MAX_UNREAD = 64 * 1024  # bytes; a pipe holds as many besides
_MAX_LOGGED_LINES = 10


class McpStdioTransport:
    """One run of the program. A line that it sends is at most `line_bytes` long."""

    cancels_by_closing = False

    def __init__(self, program: ProgramSpec, line_bytes: int, grace: float) -> None:
        self.is_ending = False
        self._program = program
        self._line_bytes = line_bytes
        self._grace = grace
        self._child: ChildProcess | None = None
        self._protocol_error: str | None = None
        self._invalid_lines = 0
        self._drain_task: asyncio.Task[None] | None = None  # while the program has much to read
        self._write_tasks: set[asyncio.Task[None]] = set()  # that wait for it

    @property
    def end_reason(self) -> str:
        """Why the program or the transport has ended."""
        if self._protocol_error is not None or self._child is None:
            return self._protocol_error or self._program.describe("is not running")
        return self._child.exit_summary

    @asynccontextmanager
    async def open(self, receiver: McpReceiver, on_ended: Callable[[], None]) -> AsyncIterator[None]:
        """Raises AgentOffline if the program cannot be started."""
        self._child = child = await ChildProcess.start(self._program)
        read_task = asyncio.ensure_future(self._read_messages(child, receiver, on_ended))
        try:
            yield
        finally:
            try:
                await child.stop(self._grace)
            finally:
                drain_tasks = [] if self._drain_task is None else [self._drain_task]
                await cancel_and_wait(read_task, *drain_tasks, *self._write_tasks)

    def start(
        self, method: str, body: bytes, headers: Mapping[str, str], request: RpcRequest | None = None
    ) -> asyncio.Task[None] | None:
        if self._drain_task is None:
            self._write(body)
            return None
        task = asyncio.get_running_loop().create_task(self._write_later(body))
        self._write_tasks.add(task)
        task.add_done_callback(self._write_tasks.discard)
        return task

    async def _read_messages(self, child: ChildProcess, receiver: McpReceiver, on_ended: Callable[[], None]) -> None:
        try:
            async for line in read_lines(child.stdout, self._line_bytes):
                message = self._parse_line(line)
                if message is not None:
                    await receiver.receive(message, None)
        except LineTooLong:
            self._protocol_error = child.program.describe(f"sent a line longer than {self._line_bytes} bytes")
            child.kill()
        finally:
            self.is_ending = True
            await self._wait_for_exit(child)
            on_ended()

    async def _wait_for_exit(self, child: ChildProcess) -> None:
        """Stdout ends with the program, as a rule; wait a moment to be able to report how it ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_TIMEOUT):
                await child.ended.wait()

    def _write(self, body: bytes) -> None:
        child = self._child
        if child is None or self.is_ending:
            return  # the end is reported to every request that waits
        try:
            child.stdin.write(body + b"\n")
        except (ConnectionError, RuntimeError):  # the program closed its stdin, or died
            child.kill()
            return
        if child.stdin.transport.get_write_buffer_size() > _MAX_UNREAD:
            self._drain_task = asyncio.get_running_loop().create_task(self._drain(child))

    async def _write_later(self, body: bytes) -> None:
        while self._drain_task is not None:
            await asyncio.wait([self._drain_task])
        self._write(body)

    async def _drain(self, child: ChildProcess) -> None:
        try:
            async with asyncio.timeout(_WRITE_TIMEOUT):
                await child.stdin.drain()
        except TimeoutError:
            self._protocol_error = child.program.describe(f"did not read its input for {_WRITE_TIMEOUT:g} s")
            child.kill()
        except (ConnectionError, RuntimeError):  # the program closed its stdin, or died
            child.kill()
        finally:
            self._drain_task = None

    def _parse_line(self, line: bytes) -> McpMessage | None:
        if not line.strip():
            return None
        try:
            return parse_message(line)
        except McpProtocolError:
            self._invalid_lines += 1
            if self._invalid_lines <= _MAX_LOGGED_LINES:
                _log.warning("%s: not an MCP message on stdout: %r", self._program.agent_id, line[:200])
            return None
