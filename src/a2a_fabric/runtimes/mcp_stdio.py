"""MCP over the pipes of a child process, as the pair of message streams that the SDK's session works on.

The child is ours, not the SDK's: it gets a process group of its own, its last words
are kept, its lines are bounded, and when it ends nobody of its group is left behind.
"""

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

from a2a_fabric.runtimes.process_child import Child, LineTooLong, Program, lines_of

_log = logging.getLogger(__name__)

_WAITING = 64  # messages each way; beyond that the sender waits
_WRITE_TIMEOUT = 10.0
_LAST_WORDS_TIMEOUT = 2.0
_RUBBISH_SHOWN = 10

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]


class Pipes(msgspec.Struct, frozen=True, kw_only=True):
    """How the program is started and how much is taken from it."""

    program: Program
    line_bytes: int
    grace: float


class StdioTransport:
    """One start of one program."""

    is_http = False

    def __init__(self, pipes: Pipes) -> None:
        self.is_ending = False
        self._pipes = pipes
        self._child: Child | None = None
        self._complaint: str | None = None
        self._rubbish = 0

    @property
    def fate(self) -> str:
        """Why it is over."""
        if self._complaint is not None or self._child is None:
            return self._complaint or self._pipes.program.tell("is not running")
        return self._child.obituary

    @asynccontextmanager
    async def open(self, ended: asyncio.Event) -> AsyncIterator[tuple[Incoming, Outgoing]]:
        """Raises AgentOffline if the program cannot be started; sets `ended` when nothing more will come."""
        self._child = child = await Child.start(self._pipes.program)
        to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](_WAITING)
        outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](_WAITING)
        tasks = [
            asyncio.ensure_future(self._read(child, to_session, ended)),
            asyncio.ensure_future(self._write(child, from_session)),
        ]
        try:
            yield incoming, outgoing
        finally:
            for stream in (incoming, outgoing, from_session):
                stream.close()
            try:
                await child.stop(self._pipes.grace)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                to_session.close()

    async def _read(
        self, child: Child, to_session: MemoryObjectSendStream[SessionMessage | Exception], ended: asyncio.Event
    ) -> None:
        try:
            async for line in lines_of(child.stdout, self._pipes.line_bytes):
                message = self._understood(line)
                if message is not None:
                    await to_session.send(message)
        except LineTooLong:
            self._complaint = child.program.tell(f"sent a line longer than {self._pipes.line_bytes} bytes")
            child.kill()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the session is over
        finally:
            self.is_ending = True
            await self._last_words(child)
            ended.set()
            to_session.close()

    async def _last_words(self, child: Child) -> None:
        """The end of stdout is nearly always the end of the program; wait a moment to be able to say how it ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_TIMEOUT):
                await child.ended.wait()

    async def _write(self, child: Child, from_session: MemoryObjectReceiveStream[SessionMessage]) -> None:
        try:
            async for each in from_session:
                line = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                child.stdin.write(line.encode() + b"\n")
                async with asyncio.timeout(_WRITE_TIMEOUT):
                    await child.stdin.drain()
        except TimeoutError:
            self._complaint = child.program.tell(f"did not read its input for {_WRITE_TIMEOUT:g} s")
            child.kill()
        except (ConnectionError, RuntimeError):  # it closed its stdin, or died
            child.kill()

    def _understood(self, line: bytes) -> SessionMessage | None:
        if not line.strip():
            return None
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except (ValidationError, ValueError):
            self._rubbish += 1
            if self._rubbish <= _RUBBISH_SHOWN:
                _log.warning("%s: not an MCP message on stdout: %r", self._pipes.program.agent_id, line[:200])
            return None
