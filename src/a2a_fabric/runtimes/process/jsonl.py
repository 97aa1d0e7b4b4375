"""Runtime: a program that takes JSON lines; it runs many calls at a time, identified by their ids.

    -> {"id": "1", "name": "reason", "arguments": {…}, "trace": {…}, "target": {…}, "auth": {…}, "stream": true}
    <- {"id": "1", "event": "token", "data": {"text": "…"}}              any number
    <- {"id": "1", "ok": true, "result": {…}, "parts": […]}              `parts` only if there are any
    <- {"id": "1", "ok": false, "error": {"code", "message", "details"}}
    -> {"id": "1", "cancel": true}

A session exists as long as its child process; when the child exits, every pending call fails with
the reason. The program is started by the first call, and again by the next call after its
exit, with back-off if it exited before it answered."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any, cast

import msgspec

from a2a_fabric.core.agent import Capability, Manifest, Status
from a2a_fabric.core.call import (
    Call,
    Emit,
    add_notes,
    bind_arguments,
    derive_conversation_id,
    describe_unbound_attachments,
    hide_private,
    ignore_event,
)
from a2a_fabric.core.errors import (
    AgentBusy,
    AgentOffline,
    FabricError,
    PayloadTooLarge,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
    error_from_agent,
)
from a2a_fabric.core.forwarding import CallSigner
from a2a_fabric.core.json_text import LONG, find_number_problem
from a2a_fabric.core.result import EVENT_KINDS, Event, EventKind, Part, Result, to_json_object
from a2a_fabric.runtimes.context import complete_manifest
from a2a_fabric.runtimes.programs import (
    ChildProcess,
    LineTooLong,
    ProcessStarter,
    ProgramSpec,
    RestartPolicy,
    read_lines,
)

log = logging.getLogger(__name__)

WRITE_TIMEOUT = 10.0
LISTEN_TIMEOUT = 1.0  # for output that is still in the pipe after the child has exited
MAX_BUFFERED_BYTES = 8 * 1024 * 1024  # bytes of events that wait for one slow reader
MAX_LOGGED_LINES = 10


class JsonlLimits(msgspec.Struct, frozen=True, kw_only=True):
    line_bytes: int
    max_pending: int
    idle_timeout: float | None
    grace: float


class JsonlError(msgspec.Struct, frozen=True, kw_only=True):
    code: str = "UPSTREAM_ERROR"
    message: str = ""
    details: dict[str, Any] | None = None


class JsonlMessage(msgspec.Struct, frozen=True, kw_only=True):
    id: str | int
    event: str | None = None
    data: dict[str, Any] = {}
    ok: bool | None = None
    result: Any = None
    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()
    error: JsonlError | str | None = None


class _MessageId(msgspec.Struct, frozen=True):
    id: str | int


class JsonlAnswer(msgspec.Struct, frozen=True):
    value: Any
    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()


class _PendingCall:
    """A running call, with its events and answer that were not yet relayed."""

    def __init__(self) -> None:
        self.is_sent = False
        self.is_answered = False
        self._items: asyncio.Queue[tuple[Event | JsonlAnswer | FabricError, int]] = asyncio.Queue()
        self._buffered = 0
        self._is_closed = False

    def add(self, item: Event | JsonlAnswer | FabricError, size: int = 0) -> None:
        if self._is_closed:
            return
        self.is_answered = not isinstance(item, Event)
        if self._buffered and self._buffered + size > MAX_BUFFERED_BYTES:
            item = UpstreamInterrupted(f"More than {MAX_BUFFERED_BYTES} bytes of events were waiting for a slow reader")
        self._is_closed = not isinstance(item, Event)
        self._buffered += size
        self._items.put_nowait((item, size))

    async def relay_until_answer(self, emit: Emit) -> JsonlAnswer:
        """Emit events as they arrive, until the answer."""
        while True:
            item, size = await self._items.get()
            self._buffered -= size
            if isinstance(item, FabricError):
                raise item
            if isinstance(item, JsonlAnswer):
                return item
            await emit(item)


_decoder = msgspec.json.Decoder(JsonlMessage)
_id_decoder = msgspec.json.Decoder(_MessageId)


class JsonlSession:
    """Calls `on_closed` once, when no further calls are accepted; `has_failed` then says if that was a failure."""

    def __init__(self, child: ChildProcess, limits: JsonlLimits, on_closed: Callable[[JsonlSession], None]) -> None:
        self.is_closed = False
        self.has_failed = False
        self.has_answered = False
        self._child = child
        self._limits = limits
        self._on_closed = on_closed
        self._pending_calls: dict[str, _PendingCall] = {}
        self._calls = 0  # of callers; requests of the node itself may be pending, too
        self._ids = itertools.count(1)
        self._write_lock = asyncio.Lock()
        self._invalid_lines = 0
        self._protocol_error: str | None = None
        self._stopped = asyncio.Event()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._task = asyncio.ensure_future(self._run())

    @property
    def is_finished(self) -> bool:
        return self._task.done()

    @property
    def is_full(self) -> bool:
        return self._calls >= self._limits.max_pending

    async def ask(self, request: dict[str, Any], emit: Emit) -> JsonlAnswer:
        """The child's answer to a caller, of whom it takes only so many. Cancelling cancels the call at the child."""
        self._check_open()
        if self.is_full:
            raise AgentBusy(
                f"The agent is busy with {self._calls} calls, the most it takes at a time",
                agent_id=self._child.program.agent_id,
            )
        self._calls += 1
        try:
            return await self.exchange(request, emit)
        finally:
            self._calls -= 1

    async def exchange(self, request: dict[str, Any], emit: Emit) -> JsonlAnswer:
        """The child's answer. A request of the node itself comes here directly and takes no caller's place."""
        self._check_open()
        id_, pending = str(next(self._ids)), _PendingCall()
        self._pending_calls[id_] = pending
        self._reset_idle_timer()
        try:
            await self._send(pending, {"id": id_, **request})
            return await pending.relay_until_answer(emit)
        finally:
            del self._pending_calls[id_]
            if pending.is_sent and not pending.is_answered and not self.is_closed:
                self._child.stdin.write(msgspec.json.encode({"id": id_, "cancel": True}) + b"\n")
            self._reset_idle_timer()

    async def stop(self) -> None:
        """End the child and wait until it is gone. May be called twice; never raises."""
        self._close(failed=False)
        await asyncio.wait([self._task])

    def _check_open(self) -> None:
        if self.is_closed:
            raise AgentOffline(self._child.program.describe("is not running"), agent_id=self._child.program.agent_id)

    async def _send(self, pending: _PendingCall, request: dict[str, Any]) -> None:
        line = msgspec.json.encode(request) + b"\n"
        if len(line) > self._limits.line_bytes:
            raise PayloadTooLarge(self._limits.line_bytes)
        try:
            async with asyncio.timeout(WRITE_TIMEOUT), self._write_lock:
                await self._child.stdin.drain()  # before the write, so that at most one line is unread
        except ConnectionError:
            self._child.kill()  # the child closed its stdin, so it can take no further call
            return
        except TimeoutError as exc:
            self._child.kill()
            reason = self._child.program.describe(f"did not read its input for {WRITE_TIMEOUT:g} s")
            raise AgentOffline(reason, agent_id=self._child.program.agent_id) from exc
        self._child.stdin.write(line)
        pending.is_sent = True

    def _reset_idle_timer(self) -> None:
        """Start the idle timer when no call is running, stop it otherwise."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._limits.idle_timeout is not None and not self._pending_calls and not self.is_closed:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(self._limits.idle_timeout, lambda: self._close(failed=False))

    def _close(self, *, failed: bool) -> None:
        if not self.is_closed:
            self.is_closed, self.has_failed = True, failed
            self._on_closed(self)
            self._stopped.set()

    async def _run(self) -> None:
        read_task = asyncio.ensure_future(self._read_messages())
        end_tasks = [read_task, *map(asyncio.ensure_future, (self._child.ended.wait(), self._stopped.wait()))]
        await asyncio.wait(end_tasks, return_when=asyncio.FIRST_COMPLETED)
        was_stopped = self._stopped.is_set()
        self._close(failed=True)
        if not was_stopped:  # stdout has ended or the child has exited: the other follows
            await asyncio.wait(end_tasks[:2], timeout=LISTEN_TIMEOUT)
        await self._child.stop(self._limits.grace)
        for task in end_tasks:
            task.cancel()
        await asyncio.wait(end_tasks)
        stop_text = self._child.program.describe("was stopped")
        self._fail_pending(self._protocol_error or (stop_text if was_stopped else self._child.exit_summary))

    async def _read_messages(self) -> None:
        try:
            async for line in read_lines(self._child.stdout, self._limits.line_bytes):
                self._dispatch(line)
        except LineTooLong:
            limit = self._limits.line_bytes
            self._protocol_error = self._child.program.describe(f"sent a line longer than {limit} bytes")
            self._child.kill()

    def _fail_pending(self, reason: str) -> None:
        if self.has_failed:
            log.warning("%s: %s", self._child.program.agent_id, reason)
        for pending in self._pending_calls.values():
            failure = UpstreamInterrupted if pending.is_sent else AgentOffline
            pending.add(failure(reason, agent_id=self._child.program.agent_id))

    def _dispatch(self, line: bytes) -> None:
        if len(line) > LONG and (problem := find_number_problem(line)):
            self._handle_invalid_line(line, problem)
            return
        try:
            message = _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            self._handle_invalid_line(line, exc)
            return
        pending = self._pending_calls.get(str(message.id))
        if pending is None:
            return  # the call was abandoned in the meantime
        if message.ok is not None:
            self.has_answered = True
            pending.add(
                JsonlAnswer(message.result, message.parts, message.notes)
                if message.ok
                else _error_from_report(message.error),
                len(line),
            )
        elif message.event in EVENT_KINDS:
            pending.add(Event(cast(EventKind, message.event), message.data), len(line))

    def _handle_invalid_line(self, line: bytes, problem: object) -> None:
        try:
            pending = self._pending_calls.get(str(_id_decoder.decode(line).id))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pending = None
        if pending is not None:
            pending.add(UpstreamFailed(f"The answer cannot be read: {problem}", agent_id=self._child.program.agent_id))
        elif line.strip():
            self._invalid_lines += 1
            if self._invalid_lines <= MAX_LOGGED_LINES:
                log.warning("%s: not a JSON line on stdout: %r", self._child.program.agent_id, line[:200])


def _error_from_report(error: JsonlError | str | None) -> FabricError:
    if not isinstance(error, JsonlError):
        return UpstreamRefused(error or "The agent gave no reason")
    details = {name: value for name, value in (error.details or {}).items() if name not in ("self", "message")}
    try:
        return error_from_agent(error.code, error.message or error.code, details)
    except (TypeError, ValueError):  # the details do not fit the error code
        return UpstreamRefused(error.message or error.code)


HEALTH_TIMEOUT = 5.0
DESCRIBE_TIMEOUT = 10.0

_STATUS: dict[str, Status] = {"degraded": "degraded", "offline": "offline"}


class JsonlDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a `fabric.describe` reply that are used; all others are ignored."""

    capabilities: tuple[Capability, ...] = ()
    display_name: str = ""
    description: str = ""
    version: str = ""
    tags: tuple[str, ...] = ()


class JsonlRuntime:
    def __init__(
        self,
        manifest: Manifest,
        program: ProgramSpec,
        limits: JsonlLimits,
        restart_policy: RestartPolicy,
        signer: CallSigner | None = None,
    ) -> None:
        self.manifest = manifest
        self._signer = signer
        self._program = program
        self._limits = limits
        self._restart_policy = restart_policy
        self._current: JsonlSession | None = None
        self._sessions: set[JsonlSession] = set()
        self._starter = ProcessStarter()
        self._start_lock = asyncio.Lock()
        self._deaths = 0  # in a row, without an answer in between
        self._ready_at = 0.0
        self._is_closed = False

    async def __call__(self, call: Call, emit: Emit) -> Result:
        session = await self._get_session()
        request = self._build_request(call)
        try:
            reply = await session.ask(request, emit)
        except AgentOffline as error:
            if error.is_answer or not session.is_closed or not session.has_answered:
                raise
            reply = await (await self._get_session()).ask(request, emit)  # the program had exited before the request
        result = Result(data=to_json_object(reply.value), parts=reply.parts, notes=reply.notes)
        return add_notes(result, describe_unbound_attachments(call.input, request["arguments"], request["name"]))

    async def health(self) -> Status:
        """Sends a health request to a running program; any other is healthy if it can be started."""
        session = self._current
        if session is None or session.is_closed:
            self._check_startable()
            self._program.find_executable()
            return "online"
        if session.is_full:
            return "online"  # it is too busy for a health request
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT):
                reply = await session.exchange({"name": "fabric.health", "arguments": {}}, ignore_event)
        except TimeoutError:
            return "degraded"
        except (AgentOffline, UpstreamInterrupted):
            raise
        except FabricError:
            return "online"  # it has no health method, but it answers
        return _STATUS.get(str(to_json_object(reply.value).get("status")), "online")

    async def describe(self) -> Manifest:
        """The manifest with the program's description; unchanged if it does not support `fabric.describe`."""
        session = await self._get_session()
        try:
            async with asyncio.timeout(DESCRIBE_TIMEOUT):
                reply = await session.exchange({"name": "fabric.describe", "arguments": {}}, ignore_event)
        except (AgentOffline, AgentBusy, UpstreamInterrupted):
            raise
        except (FabricError, TimeoutError):
            return self.manifest
        self.manifest = complete_manifest(self.manifest, self._manifest_from_description(reply.value))
        return self.manifest

    async def aclose(self) -> None:
        self._is_closed = True
        await self._starter.aclose()
        if stop_tasks := [asyncio.ensure_future(session.stop()) for session in self._sessions]:
            await asyncio.wait(stop_tasks)

    async def _get_session(self) -> JsonlSession:
        if self._current is None or self._current.is_closed:
            async with self._start_lock:
                if self._current is None or self._current.is_closed:
                    self._current = await self._start()
        return self._current

    async def _start(self) -> JsonlSession:
        self._check_startable()
        session = JsonlSession(await self._starter.start(self._program), self._limits, self._on_session_closed)
        self._sessions = {each for each in self._sessions if not each.is_finished} | {session}
        return session

    def _check_startable(self) -> None:
        describe, agent_id = self._program.describe, self.manifest.agent_id
        if self._is_closed:
            raise AgentOffline(describe("is shut down with the node"), agent_id=agent_id)
        if self._restart_policy.is_exhausted(self._deaths):
            raise AgentOffline(
                describe(f"exited {self._deaths} times in a row; it is not started again"),
                agent_id=agent_id,
            )
        wait = self._ready_at - asyncio.get_running_loop().time()
        if wait > 0:
            raise AgentOffline(
                describe(f"exited; it is started again in {wait:.1f} s"), agent_id=agent_id, retry_after=wait
            )

    def _on_session_closed(self, session: JsonlSession) -> None:
        """A program that had answered before it exited is restarted by the next call; any other after back-off."""
        if not session.has_failed:
            self._deaths = 0
        elif session.has_answered:
            self._deaths, self._ready_at = 1, 0.0
        else:
            self._deaths += 1
            self._ready_at = asyncio.get_running_loop().time() + self._restart_policy.delay(self._deaths)

    def _build_request(self, call: Call) -> dict[str, Any]:
        capability = self.manifest.find_capability(call.target.capability)
        fields: dict[str, Any] = {
            "name": capability.name if capability else call.target.capability,
            "arguments": bind_arguments(capability, call.input),
            "trace": call.trace,
            "target": call.target,
            "auth": hide_private(call.auth),
            "stream": call.response.stream,
        }
        optional_fields = {
            "conversation_id": derive_conversation_id(call),
            "delegation_chain": call.delegation_chain,
            "on_behalf_of": call.on_behalf_of,
        }
        if self._signer is not None:
            optional_fields["identity"] = self._signer.sign_content(call, fields["arguments"], fields["name"])
        return fields | {name: value for name, value in optional_fields.items() if value}

    def _manifest_from_description(self, value: Any) -> Manifest:
        try:
            description = msgspec.convert(value, JsonlDescription)
        except msgspec.ValidationError as exc:
            reason = f"The description cannot be read: {exc}"
            raise UpstreamFailed(reason, agent_id=self.manifest.agent_id) from exc
        return Manifest(
            agent_id=self.manifest.agent_id, endpoint=self.manifest.endpoint, **msgspec.structs.asdict(description)
        )
