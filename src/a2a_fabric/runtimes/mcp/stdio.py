"""The stdio transport to an MCP server: a child process, as the pair of message streams that the SDK's session uses.

The node starts the child itself: it gets its own process group, its stderr is kept, its lines
are bounded, and no process of its group outlives it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

from a2a_fabric.runtimes.programs import ChildProcess, LineTooLong, ProgramSpec, read_lines

_log = logging.getLogger(__name__)

_MAX_QUEUED = 64  # messages in each direction; then the sender waits
_WRITE_TIMEOUT = 10.0
_EXIT_TIMEOUT = 2.0
_MAX_LOGGED_LINES = 10

ReceiveStream = MemoryObjectReceiveStream[SessionMessage | Exception]
SendStream = MemoryObjectSendStream[SessionMessage]


class StdioOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the program is started, and the longest line that it may send."""

    program: ProgramSpec
    line_bytes: int
    grace: float


class McpStdioTransport:
    """One run of the program."""

    def __init__(self, options: StdioOptions) -> None:
        self.is_ending = False
        self._options = options
        self._child: ChildProcess | None = None
        self._protocol_error: str | None = None
        self._invalid_lines = 0

    @property
    def end_reason(self) -> str:
        """Why the program or the transport has ended."""
        if self._protocol_error is not None or self._child is None:
            return self._protocol_error or self._options.program.describe("is not running")
        return self._child.exit_summary

    @asynccontextmanager
    async def open(self, ended: asyncio.Event) -> AsyncIterator[tuple[ReceiveStream, SendStream]]:
        """Raises AgentOffline if the program cannot be started. Sets `ended` when the program sends nothing more."""
        self._child = child = await ChildProcess.start(self._options.program)
        to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](_MAX_QUEUED)
        outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](_MAX_QUEUED)
        tasks = [
            asyncio.ensure_future(self._read_messages(child, to_session, ended)),
            asyncio.ensure_future(self._write_messages(child, from_session)),
        ]
        try:
            yield incoming, outgoing
        finally:
            for stream in (incoming, outgoing, from_session):
                stream.close()
            try:
                await child.stop(self._options.grace)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                to_session.close()

    async def _read_messages(
        self, child: ChildProcess, to_session: MemoryObjectSendStream[SessionMessage | Exception], ended: asyncio.Event
    ) -> None:
        try:
            async for line in read_lines(child.stdout, self._options.line_bytes):
                message = self._parse_message(line)
                if message is not None:
                    await to_session.send(message)
        except LineTooLong:
            self._protocol_error = child.program.describe(f"sent a line longer than {self._options.line_bytes} bytes")
            child.kill()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the session has ended
        finally:
            self.is_ending = True
            await self._wait_for_exit(child)
            ended.set()
            to_session.close()

    async def _wait_for_exit(self, child: ChildProcess) -> None:
        """Stdout ends with the program, as a rule; wait a moment to be able to report how it ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_TIMEOUT):
                await child.ended.wait()

    async def _write_messages(
        self, child: ChildProcess, from_session: MemoryObjectReceiveStream[SessionMessage]
    ) -> None:
        try:
            async for message in from_session:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                child.stdin.write(line.encode() + b"\n")
                async with asyncio.timeout(_WRITE_TIMEOUT):
                    await child.stdin.drain()
        except TimeoutError:
            self._protocol_error = child.program.describe(f"did not read its input for {_WRITE_TIMEOUT:g} s")
            child.kill()
        except (ConnectionError, RuntimeError):  # the program closed its stdin, or died
            child.kill()

    def _parse_message(self, line: bytes) -> SessionMessage | None:
        if not line.strip():
            return None
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except (ValidationError, ValueError):
            self._invalid_lines += 1
            if self._invalid_lines <= _MAX_LOGGED_LINES:
                _log.warning(
                    "%s: not an MCP message on stdout: %r",
                    self._options.program.agent_id,
                    line[:200],
                )
            return None
