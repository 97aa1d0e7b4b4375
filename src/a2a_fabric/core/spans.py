"""The recorded form of a call: spans in a tree, a summary for lists, and the store port of the call history.

The history, the console and OpenTelemetry show the same spans. Their ids have W3C's form, 16 hexadecimal digits. On
Fabric's wire a span is a UUID, which has room for two of them:

- The first half goes to the agent, in a `traceparent` or as the whole UUID. It is the span of the runtime, below which
  the agent's own work belongs. A further attempt of the same call gets another first half.
- The last half is the span of the door.

A job that was accepted has no runtime of its own; its span is the first half, below which its runs belong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

SpanKind = Literal["door", "attempt", "runtime", "job", "message"]
SpanStatus = Literal["ok", "error", "cancelled"]
CallStatus = Literal["completed", "failed", "cancelled", "input_required"]

_SPAN_DIGITS = 16


def outgoing_span_id(span_id: str) -> str:
    """The span below which the work of an agent, another node or a run of a job belongs."""
    return span_id.replace("-", "")[:_SPAN_DIGITS]


def door_span_id(span_id: str) -> str:
    """The span of the call at this node."""
    return span_id.replace("-", "")[-_SPAN_DIGITS:]


class SpanEvent(msgspec.Struct, frozen=True):
    """Something that happened while a span was open; `at_ms` counts from the beginning of the span."""

    name: str
    at_ms: float
    attributes: dict[str, Any] = {}


class Span(msgspec.Struct, frozen=True, kw_only=True):
    span_id: str
    parent_span_id: str | None = None
    name: str
    kind: SpanKind
    node: str
    started_at: float  # seconds since 1970
    duration_ms: float
    status: SpanStatus
    attributes: dict[str, Any] = {}
    events: tuple[SpanEvent, ...] = ()


class CallSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list of calls."""

    trace_id: str  # as callers know it: the text of a UUID
    span_id: str
    parent_span_id: str | None = None
    started_at: float
    duration_ms: float
    node: str
    door: str
    protocol: str
    principal: str | None = None
    on_behalf_of: str | None = None
    agent_id: str
    used: str | None = None  # the agent that answered, if it is another one
    capability: str
    runtime: str | None = None
    status: CallStatus
    error_code: str | None = None
    error: str | None = None
    attempts: int = 0
    job_id: str | None = None
    streaming: bool = False


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one node recorded of a trace: a call with its spans, or a job (without `call`).

    `public_error` is what the caller was told, where `call.error` has details for the operator. `input` and `output`
    are JSON, redacted and cut, if the operator keeps payloads.
    """

    owner: str
    call: CallSummary | None = None
    public_error: str | None = None
    spans: tuple[Span, ...] = ()
    input: str | None = None
    output: str | None = None


class StoredCall(msgspec.Struct, frozen=True, kw_only=True):
    """A record with what the store can search for; `body` is the encoded `CallRecord`."""

    seq: int = 0  # given by the store, growing
    trace_id: str
    span_id: str  # the same call is stored once
    started_at: float
    owner: str
    principal: str | None = None
    door: str = ""
    agent_id: str = ""
    used: str | None = None
    capability: str = ""
    is_failed: bool = False
    is_call: bool = True
    body: bytes


TraceAnswer = Literal["ok", "not_permitted", "unreachable", "refused"]


class TraceNode(msgspec.Struct, frozen=True, kw_only=True):
    """Another node that a trace reached, and whether it told what it knows."""

    agent_id: str  # by which this node calls it
    status: TraceAnswer
    spans: int = 0
    reason: str | None = None


class RemoteTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What another node knows of a trace, with the nodes that it asked in turn."""

    spans: tuple[Span, ...] = ()
    nodes: tuple[TraceNode, ...] = ()


@runtime_checkable
class OffersTraces(Protocol):
    """A runtime whose agent is at another node, which may have recorded its part of a trace."""

    @property
    def node_address(self) -> str:
        """Agents with the same one are at the same node."""
        ...

    async def read_trace(self, trace_id: str, depth: int, timeout: float) -> RemoteTrace:
        """With this node's own credentials. `depth`: how many nodes further it may ask. Raises FabricError."""
        ...


class CallFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which calls are listed; None: any. `agent_id` also finds calls that this agent answered for another."""

    owner: str | None = None
    agent_id: str | None = None
    capability: str | None = None
    principal: str | None = None
    door: str | None = None
    is_failed: bool | None = None
    since: float | None = None
    until: float | None = None
    trace_id: str | None = None


class CallStore(Protocol):
    """The store port of the call history. The rules of `core.stores` hold, except that history may be lost."""

    async def append(self, calls: Sequence[StoredCall]) -> None:
        """No call ever appears behind a number that was already handed out. A span that is stored already stays."""
        ...

    async def list(
        self, query: CallFilter, *, before: int | None = None, after: int | None = None, limit: int = 100
    ) -> Sequence[StoredCall]:
        """Calls, newest first, beginning before a number; with `after`, oldest first, beginning after it."""
        ...

    async def find_newest(self) -> int:
        """The number of the newest record; 0 if there is none."""
        ...

    async def read_trace(self, trace_id: str, *, owner: str | None = None, limit: int = 200) -> Sequence[StoredCall]:
        """Everything of a trace, oldest first; with `owner` only what this owner's calls left."""
        ...

    async def prune(self, before: float, max_calls: int, max_bytes: int, limit: int = 1000) -> int:
        """Remove what began before that moment, then the oldest beyond a number and a size; at most `limit`."""
        ...


class CallHistoryPort(Protocol):
    """The history as operations read it: calls of all nodes that share the store, each with its number."""

    lost: int  # records that this node left out or could not write
    is_stopping: bool

    async def flush(self) -> None:
        """Store the calls that have ended, so that they are listed. Does not raise while the store is away."""
        ...

    async def find_newest(self) -> int:
        """The number of the newest record. Raises StoreError."""
        ...

    async def list_calls(
        self, query: CallFilter, *, before: int | None = None, after: int | None = None, limit: int = 100
    ) -> Sequence[tuple[int, CallRecord]]:
        """As `CallStore.list`. Raises StoreError."""
        ...

    async def read_trace(self, trace_id: str, owner: str | None) -> Sequence[CallRecord]:
        """Raises StoreError."""
        ...

    async def wait_for_more(self, timeout: float) -> None:
        """Return when this node has written records or stops, at the latest after `timeout` seconds."""
        ...


_decode_record = msgspec.json.Decoder(CallRecord).decode
_encode = msgspec.json.Encoder().encode


def encode_record(record: CallRecord, trace_id: str) -> StoredCall:
    """The record as stores keep it. Raises what `msgspec` raises for attributes that are not JSON."""
    call, body = record.call, _encode(record)
    if call is None:
        return StoredCall(
            trace_id=trace_id,
            span_id=record.spans[0].span_id,
            started_at=record.spans[0].started_at,
            owner=record.owner,
            is_call=False,
            body=body,
        )
    return StoredCall(
        trace_id=trace_id,
        span_id=call.span_id,
        started_at=call.started_at,
        owner=record.owner,
        principal=_clean(call.principal),
        door=call.door,
        agent_id=_clean(call.agent_id) or "",
        used=call.used,
        capability=_clean(call.capability) or "",
        is_failed=call.status == "failed",
        body=body,
    )


def _clean(text: str | None) -> str | None:
    """Without characters that no database takes: callers choose these names."""
    return None if text is None else text.replace("\0", "?")


def decode_record(stored: StoredCall) -> CallRecord:
    return _decode_record(stored.body)


def hide_from_caller(record: CallRecord) -> CallRecord:
    """The record as its own caller may read it: the errors as the caller was told them, none of the attempts' texts."""
    call = record.call
    if call is not None:
        call = msgspec.structs.replace(call, error=record.public_error)
    spans = tuple(
        msgspec.structs.replace(
            span,
            attributes={key: value for key, value in span.attributes.items() if key != ERROR_KEY},
        )
        for span in record.spans
    )
    return msgspec.structs.replace(record, call=call, spans=spans)


ERROR_KEY = "error.message"  # the attribute with the text of an error, as the operator may read it
