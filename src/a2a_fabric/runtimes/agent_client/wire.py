"""JSON-RPC over the pipes of one child: our requests, the agent's own, and its notifications, a line each.

The SDK has a connection too, but it takes lines of any length and keeps a task for each
message; this one reads bounded lines in order and hands them on at once. It lives
exactly as long as its child: when that dies, every request under way is told why.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from a2a_fabric.core.errors import AgentOffline, FabricError, PayloadTooLarge, UpstreamInterrupted
from a2a_fabric.runtimes.process_child import Child, LineTooLong, lines_of

_log = logging.getLogger(__name__)

WRITE_TIMEOUT = 10.0
LAST_LINES_TIMEOUT = 1.0  # for what is still in the pipe of a dead child
RUBBISH_SHOWN = 10
UNREAD_BYTES = 1024 * 1024  # of our answers, besides a request

_METHOD_NOT_FOUND = -32601


class RPCError(Exception):
    """The agent answered a request with an error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class Pipes(msgspec.Struct, frozen=True, kw_only=True):
    """How much is taken from the program, and how long it may take to end."""

    line_bytes: int
    grace: float


class _ErrorSaid(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""
    data: Any = None


class _Said(msgspec.Struct, frozen=True):
    id: int | str | None = None
    method: str | None = None
    params: Any = None
    result: Any = None
    error: _ErrorSaid | None = None


Reply = Callable[[Any], None]


class Listener:
    """What to do with what the agent says of its own accord. Neither may wait: all sessions share the pipe."""

    def notified(self, method: str, params: Any, size: int) -> None:
        """`size` is the length of the line."""

    def requested(self, method: str, params: Any, reply: Reply) -> bool:
        """Whether this request is understood; `reply` may be called later, once."""
        return False


class Wire:
    def __init__(self, child: Child, pipes: Pipes, listener: Listener, over: Callable[[Wire], None]) -> None:
        self.is_over = False
        self.has_failed = False
        self._child = child
        self._pipes = pipes
        self._listener = listener
        self._over = over
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._ids = itertools.count(1)
        self._writing = asyncio.Lock()
        self._rubbish = 0
        self._complaint: str | None = None
        self._stopped = asyncio.Event()
        self._decoder = msgspec.json.Decoder(_Said)
        self._life = asyncio.ensure_future(self._live())

    @property
    def is_gone(self) -> bool:
        return self._life.done()

    @property
    def fate(self) -> str:
        return self._complaint or self._child.obituary

    async def request(self, method: str, params: dict[str, Any]) -> Any:
        """The result. Raises RPCError, or FabricError if the agent cannot answer any more."""
        id_ = next(self._ids)
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await self._make_room()
        self._pending[id_] = answered
        try:
            self._write({"jsonrpc": "2.0", "id": id_, "method": method, "params": params})
            return await answered
        finally:
            self._pending.pop(id_, None)

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Without waiting; lost if the agent is gone."""
        if not self.is_over:
            self._write({"jsonrpc": "2.0", "method": method, "params": params})

    async def stop(self) -> None:
        """End the child and wait until it is gone. May be called twice; never raises."""
        self._close(failed=False)
        await asyncio.wait([self._life])

    async def _make_room(self) -> None:
        """At most one message waits to be read by the agent. Raises AgentOffline: nothing was sent."""
        agent_id = self._child.program.agent_id
        try:
            async with asyncio.timeout(WRITE_TIMEOUT), self._writing:
                await self._child.stdin.drain()
        except ConnectionError:
            self._child.kill()  # it closed its stdin: if it is not dying by itself, it is of no more use
            await asyncio.wait([self._life], timeout=LAST_LINES_TIMEOUT)
        except TimeoutError as exc:
            self._complaint = self._child.program.tell(f"did not read its input for {WRITE_TIMEOUT:g} s")
            self._child.kill()
            raise AgentOffline(self._complaint, agent_id=agent_id) from exc
        if self.is_over:
            raise AgentOffline(self.fate, agent_id=agent_id)

    def _write(self, message: dict[str, Any]) -> None:
        line = msgspec.json.encode(message) + b"\n"
        if len(line) > self._pipes.line_bytes:
            raise PayloadTooLarge(self._pipes.line_bytes)
        self._child.stdin.write(line)

    def _close(self, *, failed: bool) -> None:
        if not self.is_over:
            self.is_over, self.has_failed = True, failed
            self._stopped.set()
            self._over(self)

    async def _live(self) -> None:
        listening = asyncio.ensure_future(self._listen())
        ends = [listening, *map(asyncio.ensure_future, (self._child.ended.wait(), self._stopped.wait()))]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        was_stopped = self._stopped.is_set()
        if not was_stopped:  # either the end of stdout or the end of the child: the other follows
            await asyncio.wait(ends[:2], timeout=LAST_LINES_TIMEOUT)
        self._close(failed=True)
        await self._child.stop(self._pipes.grace)
        for end in ends:
            end.cancel()
        await asyncio.wait(ends)
        if was_stopped and self._complaint is None:
            self._complaint = self._child.program.tell("was stopped")
        self._tell_all()

    async def _listen(self) -> None:
        try:
            async for line in lines_of(self._child.stdout, self._pipes.line_bytes):
                self._take(line)
        except LineTooLong:
            limit = self._pipes.line_bytes
            self._complaint = self._child.program.tell(f"sent a line longer than {limit} bytes")
            self._child.kill()

    def _tell_all(self) -> None:
        if self.has_failed:
            _log.warning("%s: %s", self._child.program.agent_id, self.fate)
        for answered in self._pending.values():
            if not answered.done():
                answered.set_exception(self._interrupted())

    def _interrupted(self) -> FabricError:
        return UpstreamInterrupted(self.fate, agent_id=self._child.program.agent_id)

    def _take(self, line: bytes) -> None:
        try:
            said = self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._take_rubbish(line)
            return
        if said.method is None:
            self._take_answer(said)
        elif said.id is None:
            self._listener.notified(said.method, said.params, len(line))
        elif not self._listener.requested(said.method, said.params, self._replying(said.id)):
            error = {"code": _METHOD_NOT_FOUND, "message": "Method not found", "data": {"method": said.method[:100]}}
            self._say({"jsonrpc": "2.0", "id": said.id, "error": error})

    def _take_answer(self, said: _Said) -> None:
        answered = self._pending.get(said.id) if isinstance(said.id, int) else None
        if answered is None or answered.done():
            return  # to a request that was given up in the meantime
        if said.error is not None:
            answered.set_exception(RPCError(said.error.code, said.error.message, said.error.data))
        else:
            answered.set_result(said.result)

    def _replying(self, id_: int | str) -> Reply:
        return lambda result: self._say({"jsonrpc": "2.0", "id": id_, "result": result})

    def _say(self, message: dict[str, Any]) -> None:
        """An answer of ours: short, and written without waiting. Who asks and never listens is of no use."""
        if self.is_over:
            return
        if self._child.stdin.transport.get_write_buffer_size() > UNREAD_BYTES + self._pipes.line_bytes:
            self._complaint = self._child.program.tell("does not read the answers to its questions")
            self._child.kill()
        else:
            self._write(message)

    def _take_rubbish(self, line: bytes) -> None:
        if line.strip():
            self._rubbish += 1
            if self._rubbish <= RUBBISH_SHOWN:
                _log.warning("%s: not a JSON-RPC message on stdout: %r", self._child.program.agent_id, line[:200])
