"""What is noted of a call while it runs, and how the steps find it.

The observer begins a recording if the history or the tracer wants one. Routing and the runtime pool find it in
`current_recording` and note attempts; without a recording they do nothing. A recording holds references and
numbers only. Spans are made of it later, apart from the call (`telemetry.spans`)."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.errors import FabricError, OutOfScope
from a2a_fabric.core.propagation import Trace, new_id
from a2a_fabric.core.result import Event, Result

MAX_EVENTS = 64  # of one call; further ones are counted
MAX_ATTEMPTS = 32
_MAX_NAMES = 512  # characters of an agent's id and a capability's name
_HALF = 18  # characters of a UUID with its first 16 digits


class CallOrigin(msgspec.Struct):
    """How a request came in: the door, the protocol spoken there, and the job that runs it, if any.

    `job_id` is set later for a call that becomes a job while it runs.
    """

    door: str = ""
    protocol: str = ""
    job_id: str | None = None


UNKNOWN_ORIGIN = CallOrigin()
# Set by the door for each request or connection, and by the worker for each job.
current_origin: ContextVar[CallOrigin] = ContextVar("current_origin", default=UNKNOWN_ORIGIN)


def note_transport(transport: str) -> None:
    """Of a door with several: which one the current request or connection uses."""
    door = current_origin.get().door
    current_origin.set(CallOrigin(door=door, protocol=f"{door}+{transport}"))


class AttemptRecording:
    """One agent that was asked. Times are those of `time.perf_counter`."""

    __slots__ = (
        "agent_id",
        "ended",
        "error",
        "error_code",
        "manifest",
        "may_have_run",
        "reason",
        "runtime",
        "runtime_started",
        "span_id",
        "started",
    )

    def __init__(self, manifest: Manifest, reason: str, span_id: str) -> None:
        self.manifest = manifest
        self.agent_id = manifest.agent_id
        self.runtime = manifest.runtime
        self.reason = reason  # why this agent was asked
        self.span_id = span_id  # what the agent gets; see `core.spans`
        self.started = time.perf_counter()
        self.runtime_started: float | None = None  # None if the agent's gate refused
        self.ended: float | None = None
        self.error_code: str | None = None
        self.error: str | None = None
        self.may_have_run = False


class CallRecording:
    __slots__ = (
        "attempts",
        "auth",
        "error",
        "error_code",
        "events",
        "events_left_out",
        "input",
        "is_sampled",
        "on_behalf_of",
        "origin",
        "output",
        "public_error",
        "record",
        "rule",
        "scope",
        "seconds",
        "started",
        "started_at",
        "status",
        "streaming",
        "target",
        "tokens",
        "trace",
        "used",
    )

    def __init__(self, call: Call, *, is_sampled: bool = False) -> None:
        self.trace = call.trace
        self.auth = call.auth
        self.target = target = call.target
        if len(target.agent_id) + len(target.capability) > _MAX_NAMES:  # the caller chose them, and recordings wait
            agent_id, capability = target.agent_id[:_MAX_NAMES], target.capability[:_MAX_NAMES]
            self.target = msgspec.structs.replace(target, agent_id=agent_id, capability=capability)
        reported = call.on_behalf_of
        self.on_behalf_of = (reported.principal_id or "")[:_MAX_NAMES] if reported else None
        self.streaming = call.response.stream
        self.origin = current_origin.get()
        self.is_sampled = is_sampled
        self.started_at = time.time()
        self.started = time.perf_counter()
        self.attempts: list[AttemptRecording] = []
        self.events: list[tuple[float, str, dict[str, Any]]] = []
        self.events_left_out = 0
        self.tokens = 0
        self.seconds = 0.0
        self.status = "completed"
        self.used: str | None = None
        self.error_code: str | None = None
        self.error: str | None = None
        self.public_error: str | None = None
        self.rule: str | None = None
        self.scope: str | None = None
        self.input: str | None = None
        self.output: str | None = None
        self.record: Any = None  # once the spans are made

    def begin_attempt(self, manifest: Manifest, reason: str) -> Trace:
        """The trace that goes to the agent: the call's own, and for further agents one with another first half."""
        trace = self.trace
        if self.attempts:
            trace = Trace(
                trace_id=trace.trace_id,
                span_id=f"{new_id()[:_HALF]}{trace.span_id[_HALF:]}",
                parent_span_id=trace.parent_span_id,
                sampled=trace.sampled,
            )
        if len(self.attempts) < MAX_ATTEMPTS:
            self.attempts.append(AttemptRecording(manifest, reason, trace.span_id))
        return trace

    def enter_runtime(self) -> None:
        """The gate of the agent has let the latest attempt in."""
        if self.attempts:
            self.attempts[-1].runtime_started = time.perf_counter()

    def end_attempt(self, error: FabricError | None = None) -> None:
        if not self.attempts:
            return
        attempt = self.attempts[-1]
        attempt.ended = time.perf_counter()
        if error is not None:
            attempt.error_code, attempt.error = error.code, str(error.full_message)
            attempt.may_have_run = not error.never_ran

    def listen(self, emit: Emit) -> Emit:
        """An emitter that notes the events on their way to the caller."""

        def note_and_emit(event: Event) -> Awaitable[None]:  # not a coroutine: streams have many events
            if event.kind == "token":
                self.tokens += 1
            elif len(self.events) < MAX_EVENTS:
                self.events.append((time.perf_counter(), event.kind, _summarize_event(event)))
            else:
                self.events_left_out += 1
            return emit(event)

        return note_and_emit

    def complete(self, result: Result, seconds: float) -> None:
        self.seconds = seconds
        if result.asked is not None:
            self.status = "input_required"
        if result.fallback is not None and result.fallback.used != self.target.agent_id:
            self.used = result.fallback.used

    def fail(self, error: BaseException, code: str, message: str, seconds: float) -> None:
        self.seconds = seconds
        self.status = "cancelled" if code == "CANCELLED" else "failed"
        self.error_code, self.error = code, message
        self.public_error = message
        if isinstance(error, FabricError):
            self.public_error = error.message
            self.rule = _text_or_none(error.details.get("rule"))
            self.scope = error.scope if isinstance(error, OutOfScope) else None


_EVENT_KEYS = ("status", "state", "message", "percent", "tool", "name", "fallback", "reset")
_MAX_TEXT = 200


def _summarize_event(event: Event) -> dict[str, Any]:
    """A few facts of an event, and no payload."""
    facts: dict[str, Any] = {}
    for key in _EVENT_KEYS:
        value = event.data.get(key)
        if isinstance(value, str):
            facts[key] = value[:_MAX_TEXT]
        elif isinstance(value, int | float):
            facts[key] = value
    return facts


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


current_recording: ContextVar[CallRecording | None] = ContextVar("current_recording", default=None)
