"""The conversation with one child over JSON lines: many calls at a time, told apart by their ids.

    -> {"id": "1", "name": "reason", "arguments": {…}, "trace": {…}, "target": {…}, "auth": {…}, "stream": true}
    <- {"id": "1", "event": "token", "data": {"text": "…"}}              any number
    <- {"id": "1", "ok": true, "result": {…}, "parts": […]}              `parts` only if there are any
    <- {"id": "1", "ok": false, "error": {"code", "message", "details"}}
    -> {"id": "1", "cancel": true}

It lives exactly as long as its child: when the child dies, every call under way is told why.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any, cast

import msgspec

from a2a_fabric.core.errors import (
    AgentBusy,
    AgentOffline,
    FabricError,
    PayloadTooLarge,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
    reported_by_agent,
)
from a2a_fabric.core.events import EVENT_KINDS, Event, EventKind
from a2a_fabric.core.part import Part
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.runtimes.process_child import Child, LineTooLong, lines_of

log = logging.getLogger(__name__)

WRITE_TIMEOUT = 10.0
LISTEN_TIMEOUT = 1.0  # for what is still in the pipe of a dead child
BUFFERED = 8 * 1024 * 1024  # bytes of events that one slow reader may leave lying
RUBBISH_SHOWN = 10


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    line_bytes: int
    max_pending: int
    idle_timeout: float | None
    grace: float


class ErrorSaid(msgspec.Struct, frozen=True, kw_only=True):
    code: str = "UPSTREAM_ERROR"
    message: str = ""
    details: dict[str, Any] | None = None


class LineSaid(msgspec.Struct, frozen=True, kw_only=True):
    id: str | int
    event: str | None = None
    data: dict[str, Any] = {}
    ok: bool | None = None
    result: Any = None
    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()
    error: ErrorSaid | str | None = None


class _OnlyId(msgspec.Struct, frozen=True):
    id: str | int


class Answer(msgspec.Struct, frozen=True):
    value: Any
    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()


class _Asked:
    """One call under way: what was heard of it and not yet passed on."""

    def __init__(self) -> None:
        self.is_sent = False
        self.is_answered = False
        self._heard: asyncio.Queue[tuple[Event | Answer | FabricError, int]] = asyncio.Queue()
        self._buffered = 0
        self._is_closed = False

    def hear(self, item: Event | Answer | FabricError, size: int = 0) -> None:
        if self._is_closed:
            return
        self.is_answered = not isinstance(item, Event)
        if self._buffered and self._buffered + size > BUFFERED:
            item = UpstreamInterrupted(f"More than {BUFFERED} bytes of events were waiting for a slow reader")
        self._is_closed = not isinstance(item, Event)
        self._buffered += size
        self._heard.put_nowait((item, size))

    async def passed_on(self, emit: Emit) -> Answer:
        """Emit events as they come, until the answer."""
        while True:
            item, size = await self._heard.get()
            self._buffered -= size
            if isinstance(item, FabricError):
                raise item
            if isinstance(item, Answer):
                return item
            await emit(item)


_decoder = msgspec.json.Decoder(LineSaid)
_id_decoder = msgspec.json.Decoder(_OnlyId)


class Conversation:
    """`on_over` hears once, as soon as no more calls are taken; `has_failed` then says whether that was meant."""

    def __init__(self, child: Child, limits: Limits, on_over: Callable[[Conversation], None]) -> None:
        self.is_over = False
        self.has_failed = False
        self.has_answered = False
        self._child = child
        self._limits = limits
        self._on_over = on_over
        self._asked: dict[str, _Asked] = {}
        self._ids = itertools.count(1)
        self._writing = asyncio.Lock()
        self._rubbish = 0
        self._complaint: str | None = None
        self._stopped = asyncio.Event()
        self._retiring: asyncio.TimerHandle | None = None
        self._life = asyncio.ensure_future(self._live())

    @property
    def is_gone(self) -> bool:
        return self._life.done()

    @property
    def is_full(self) -> bool:
        return len(self._asked) >= self._limits.max_pending

    async def ask(self, request: dict[str, Any], emit: Emit) -> Answer:
        """The child's answer. Cancelling tells the child."""
        self._check_open()
        id_, asked = str(next(self._ids)), _Asked()
        self._asked[id_] = asked
        self._retire_later()
        try:
            await self._send(asked, {"id": id_, **request})
            return await asked.passed_on(emit)
        finally:
            del self._asked[id_]
            if asked.is_sent and not asked.is_answered and not self.is_over:
                self._child.stdin.write(msgspec.json.encode({"id": id_, "cancel": True}) + b"\n")
            self._retire_later()

    async def stop(self) -> None:
        """End the child and wait until it is gone. May be called twice; never raises."""
        self._close(failed=False)
        await asyncio.wait([self._life])

    def _check_open(self) -> None:
        if self.is_over:
            raise AgentOffline(self._child.program.tell("is not running"), agent_id=self._child.program.agent_id)
        if self.is_full:
            raise AgentBusy(
                f"The agent is busy with {len(self._asked)} calls, the most it takes at a time",
                agent_id=self._child.program.agent_id,
            )

    async def _send(self, asked: _Asked, request: dict[str, Any]) -> None:
        line = msgspec.json.encode(request) + b"\n"
        if len(line) > self._limits.line_bytes:
            raise PayloadTooLarge(self._limits.line_bytes)
        try:
            async with asyncio.timeout(WRITE_TIMEOUT), self._writing:
                await self._child.stdin.drain()  # before, not after: so at most one line waits to be read
        except ConnectionError:
            self._child.kill()  # it closed its stdin: if it is not dying by itself, it is of no more use
            return
        except TimeoutError as exc:
            self._child.kill()
            why = self._child.program.tell(f"did not read its input for {WRITE_TIMEOUT:g} s")
            raise AgentOffline(why, agent_id=self._child.program.agent_id) from exc
        self._child.stdin.write(line)
        asked.is_sent = True

    def _retire_later(self) -> None:
        """Start the idle clock when nothing is under way, stop it otherwise."""
        if self._retiring is not None:
            self._retiring.cancel()
            self._retiring = None
        if self._limits.idle_timeout is not None and not self._asked and not self.is_over:
            loop = asyncio.get_running_loop()
            self._retiring = loop.call_later(self._limits.idle_timeout, lambda: self._close(failed=False))

    def _close(self, *, failed: bool) -> None:
        if not self.is_over:
            self.is_over, self.has_failed = True, failed
            self._on_over(self)
            self._stopped.set()

    async def _live(self) -> None:
        listening = asyncio.ensure_future(self._listen())
        ends = [listening, *map(asyncio.ensure_future, (self._child.ended.wait(), self._stopped.wait()))]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        was_stopped = self._stopped.is_set()
        self._close(failed=True)
        if not was_stopped:  # either the end of stdout or the end of the child: the other follows
            await asyncio.wait(ends[:2], timeout=LISTEN_TIMEOUT)
        await self._child.stop(self._limits.grace)
        for end in ends:
            end.cancel()
        await asyncio.wait(ends)
        stopped = self._child.program.tell("was stopped")
        self._tell_all(self._complaint or (stopped if was_stopped else self._child.obituary))

    async def _listen(self) -> None:
        try:
            async for line in lines_of(self._child.stdout, self._limits.line_bytes):
                self._take(line)
        except LineTooLong:
            limit = self._limits.line_bytes
            self._complaint = self._child.program.tell(f"sent a line longer than {limit} bytes")
            self._child.kill()

    def _tell_all(self, why: str) -> None:
        if self.has_failed:
            log.warning("%s: %s", self._child.program.agent_id, why)
        for asked in self._asked.values():
            failure = UpstreamInterrupted if asked.is_sent else AgentOffline
            asked.hear(failure(why, agent_id=self._child.program.agent_id))

    def _take(self, line: bytes) -> None:
        try:
            said = _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            self._take_rubbish(line, exc)
            return
        asked = self._asked.get(str(said.id))
        if asked is None:
            return  # a call that was given up in the meantime
        if said.ok is not None:
            self.has_answered = True
            asked.hear(Answer(said.result, said.parts, said.notes) if said.ok else _error_from(said.error), len(line))
        elif said.event in EVENT_KINDS:
            asked.hear(Event(cast(EventKind, said.event), said.data), len(line))

    def _take_rubbish(self, line: bytes, exc: Exception) -> None:
        try:
            asked = self._asked.get(str(_id_decoder.decode(line).id))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            asked = None
        if asked is not None:
            asked.hear(UpstreamFailed(f"The answer cannot be read: {exc}", agent_id=self._child.program.agent_id))
        elif line.strip():
            self._rubbish += 1
            if self._rubbish <= RUBBISH_SHOWN:
                log.warning("%s: not a JSON line on stdout: %r", self._child.program.agent_id, line[:200])


def _error_from(said: ErrorSaid | str | None) -> FabricError:
    if not isinstance(said, ErrorSaid):
        return UpstreamRefused(said or "The agent gave no reason")
    details = {name: value for name, value in (said.details or {}).items() if name not in ("self", "message")}
    try:
        return reported_by_agent(said.code, said.message or said.code, details)
    except (TypeError, ValueError):  # details that do not fit their code
        return UpstreamRefused(said.message or said.code)
