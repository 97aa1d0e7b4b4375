"""JSON-RPC over the stdin and stdout of a child process, one message per line, in both directions.

The SDK's connection accepts lines of any length and keeps a task per message; this one reads bounded lines
in order and dispatches them at once. It exists as long as its child process: when the process exits, every
pending request fails with the reason."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from a2a_fabric.core.errors import AgentOffline, PayloadTooLarge, UpstreamInterrupted
from a2a_fabric.core.json_text import LONG, find_number_problem
from a2a_fabric.protocols.jsonrpc import JSONRPCError
from a2a_fabric.runtimes.programs import ChildProcess, LineTooLong, read_lines

_log = logging.getLogger(__name__)

WRITE_TIMEOUT = 10.0
DRAIN_TIMEOUT = 1.0  # for output that is still in the pipe after the child has exited
MAX_INVALID_LOGGED = 10
MAX_UNREAD_BYTES = 1024 * 1024  # of replies that the agent has not read, besides one request

_METHOD_NOT_FOUND, _PARSE_ERROR = -32601, -32700


class AgentRPCError(JSONRPCError):
    """The agent answered a request with an error."""


class PipeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The longest line accepted from the program, and how long it may take to exit."""

    line_bytes: int
    grace: float


class _WireError(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""
    data: Any = None


class _WireMessage(msgspec.Struct, frozen=True):
    id: int | str | None = None
    method: str | None = None
    params: Any = None
    result: Any = None
    error: _WireError | None = None


class _MessageHead(msgspec.Struct, frozen=True):
    id: int | str | None = None
    method: str | None = None


SendReply = Callable[[Any], None]


class AgentMessageHandler:
    """Handles the agent's own requests and notifications. Neither method may wait: all sessions share the pipe."""

    def on_notification(self, method: str, params: Any, size: int) -> None:
        """`size` is the length of the line."""

    def on_request(self, method: str, params: Any, reply: SendReply) -> bool:
        """Whether this request is supported; `reply` may be called later, once."""
        return False


class JSONRPCPipe:
    def __init__(
        self,
        child: ChildProcess,
        limits: PipeLimits,
        handler: AgentMessageHandler,
        on_closed: Callable[[JSONRPCPipe], None],
    ) -> None:
        self.is_closed = False
        self.has_failed = False
        self._child = child
        self._limits = limits
        self._handler = handler
        self._on_closed = on_closed
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._ids = itertools.count(1)
        self._write_lock = asyncio.Lock()
        self._invalid_lines = 0
        self._failure: str | None = None
        self._stopped = asyncio.Event()
        self._decoder = msgspec.json.Decoder(_WireMessage)
        self._lifetime = asyncio.ensure_future(self._run())

    @property
    def has_exited(self) -> bool:
        return self._lifetime.done()

    @property
    def exit_reason(self) -> str:
        return self._failure or self._child.exit_summary

    async def request(self, method: str, params: dict[str, Any]) -> Any:
        """The result. Raises AgentRPCError, or FabricError if the agent can no longer answer."""
        id_ = next(self._ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await self._wait_for_stdin()
        self._pending[id_] = future
        try:
            self._write({"jsonrpc": "2.0", "id": id_, "method": method, "params": params})
            return await future
        finally:
            self._pending.pop(id_, None)

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification without waiting. It is lost if the agent has exited."""
        if not self.is_closed:
            self._write({"jsonrpc": "2.0", "method": method, "params": params})

    async def stop(self) -> None:
        """End the child and wait until it is gone. May be called twice; never raises."""
        self._close(failed=False)
        await asyncio.wait([self._lifetime])

    async def _wait_for_stdin(self) -> None:
        """Wait until the agent has read the previous message. Raises AgentOffline; then no message was sent."""
        agent_id = self._child.program.agent_id
        try:
            async with asyncio.timeout(WRITE_TIMEOUT), self._write_lock:
                await self._child.stdin.drain()
        except ConnectionError:
            self._child.kill()  # the child closed its stdin, so it can take no further message
            await asyncio.wait([self._lifetime], timeout=DRAIN_TIMEOUT)
        except TimeoutError as exc:
            self._failure = self._child.program.describe(f"did not read its input for {WRITE_TIMEOUT:g} s")
            self._child.kill()
            raise AgentOffline(self._failure, agent_id=agent_id) from exc
        if self.is_closed:
            raise AgentOffline(self.exit_reason, agent_id=agent_id)

    def _write(self, message: dict[str, Any]) -> None:
        line = msgspec.json.encode(message) + b"\n"
        if len(line) > self._limits.line_bytes:
            raise PayloadTooLarge(self._limits.line_bytes)
        self._child.stdin.write(line)

    def _close(self, *, failed: bool) -> None:
        if not self.is_closed:
            self.is_closed, self.has_failed = True, failed
            self._stopped.set()
            self._on_closed(self)

    async def _run(self) -> None:
        reader = asyncio.ensure_future(self._read_lines())
        tasks = [reader, *map(asyncio.ensure_future, (self._child.ended.wait(), self._stopped.wait()))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        was_stopped = self._stopped.is_set()
        if not was_stopped:  # stdout has ended or the child has exited: the other follows
            await asyncio.wait(tasks[:2], timeout=DRAIN_TIMEOUT)
        self._close(failed=True)
        await self._child.stop(self._limits.grace)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if was_stopped and self._failure is None:
            self._failure = self._child.program.describe("was stopped")
        self._fail_pending()

    async def _read_lines(self) -> None:
        try:
            async for line in read_lines(self._child.stdout, self._limits.line_bytes):
                self._dispatch(line)
        except LineTooLong:
            limit = self._limits.line_bytes
            self._failure = self._child.program.describe(f"sent a line longer than {limit} bytes")
            self._child.kill()

    def _fail_pending(self) -> None:
        if self.has_failed:
            _log.warning("%s: %s", self._child.program.agent_id, self.exit_reason)
        for future in self._pending.values():
            if not future.done():
                future.set_exception(UpstreamInterrupted(self.exit_reason, agent_id=self._child.program.agent_id))

    def _dispatch(self, line: bytes) -> None:
        problem = find_number_problem(line) if len(line) > LONG else None
        try:
            message = self._decoder.decode(line) if problem is None else _refuse_content(line, problem)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._log_invalid(line)
            return
        if message.method is None:
            self._resolve_pending(message)
        elif message.id is None:
            self._handler.on_notification(message.method, message.params, len(line))
        elif not self._handler.on_request(message.method, message.params, self._make_reply(message.id)):
            error = {"code": _METHOD_NOT_FOUND, "message": "Method not found", "data": {"method": message.method[:100]}}
            self._send_reply({"jsonrpc": "2.0", "id": message.id, "error": error})

    def _resolve_pending(self, message: _WireMessage) -> None:
        future = self._pending.get(message.id) if isinstance(message.id, int) else None
        if future is None or future.done():
            return  # the reply to a request that was abandoned in the meantime
        if message.error is not None:
            future.set_exception(AgentRPCError(message.error.code, message.error.message, message.error.data))
        else:
            future.set_result(message.result)

    def _make_reply(self, id_: int | str) -> SendReply:
        return lambda result: self._send_reply({"jsonrpc": "2.0", "id": id_, "result": result})

    def _send_reply(self, message: dict[str, Any]) -> None:
        """Write a reply without waiting. An agent that leaves too many replies unread is stopped."""
        if self.is_closed:
            return
        if self._child.stdin.transport.get_write_buffer_size() > MAX_UNREAD_BYTES + self._limits.line_bytes:
            self._failure = self._child.program.describe("does not read the answers to its questions")
            self._child.kill()
        else:
            self._write(message)

    def _log_invalid(self, line: bytes) -> None:
        if line.strip():
            self._invalid_lines += 1
            if self._invalid_lines <= MAX_INVALID_LOGGED:
                _log.warning("%s: not a JSON-RPC message on stdout: %r", self._child.program.agent_id, line[:200])


def _refuse_content(line: bytes, problem: str) -> _WireMessage:
    """A reply whose result should not be decoded, as an error. Raises msgspec.DecodeError for other messages."""
    head = msgspec.json.decode(line, type=_MessageHead)
    if head.method is not None:
        raise msgspec.DecodeError(problem)
    return _WireMessage(id=head.id, error=_WireError(_PARSE_ERROR, problem))
