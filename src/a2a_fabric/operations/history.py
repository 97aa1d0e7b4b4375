"""Operations on the call history: `fabric.call.list` and `fabric.trace.get`.

The operator and the viewers of the console see all calls. Other callers see their own, with errors as they were told
them; callers without credentials see none, because they cannot be told apart."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from a2a_fabric.core.call import Emit, Principal, owner_from_principal
from a2a_fabric.core.errors import BadInput, Forbidden
from a2a_fabric.core.limits import FairLimit
from a2a_fabric.core.policy import find_console_role
from a2a_fabric.core.propagation import normalize_uuid
from a2a_fabric.core.result import Result
from a2a_fabric.core.spans import CallFilter, CallHistoryPort, CallRecord, Span, TraceNode, hide_from_caller
from a2a_fabric.gateway import Gateway
from a2a_fabric.operations.operation import Operation, OperationRequest, TracedArguments
from a2a_fabric.operations.remote_traces import MAX_DEPTH, list_forbidden_nodes, read_remote_traces

_MAX_WAIT_MS = 30_000
_MAX_FOLLOWED = 500  # calls in one reply to a follower
_POLL_SECONDS = 0.5

_LIST: dict[str, Any] = {"type": "object", "properties": {"calls": {"type": "array"}, "follow": {"type": "string"}}}
_TRACE: dict[str, Any] = {"type": "object", "properties": {"trace_id": {"type": "string"}, "spans": {"type": "array"}}}


class CallListArguments(TracedArguments, frozen=True, kw_only=True):
    agent: Annotated[str | None, Meta(description="Only calls to this agent, or answered by it.")] = None
    capability: Annotated[str | None, Meta(description="Only calls of this capability.")] = None
    principal: Annotated[str | None, Meta(description="Only calls of this caller.")] = None
    door: Annotated[str | None, Meta(description="Only calls that came in at this door.")] = None
    failed: Annotated[bool | None, Meta(description="Only calls that failed; false: only those that did not.")] = None
    since: Annotated[float | None, Meta(description="Begun at or after this moment, in seconds since 1970.")] = None
    until: Annotated[float | None, Meta(description="Begun before this moment.")] = None
    trace_id: Annotated[str | None, Meta(description="Only calls of this trace.")] = None
    limit: Annotated[int, Meta(ge=1, le=500, description="How many at most.")] = 100
    cursor: Annotated[
        Annotated[str, Meta(max_length=20)] | None, Meta(description="`next_cursor` of the page before.")
    ] = None
    follow: Annotated[
        Annotated[str, Meta(max_length=20)] | None,
        Meta(description="`follow` of the reply before: calls that ended since, in order."),
    ] = None
    wait_ms: Annotated[
        int, Meta(ge=0, le=_MAX_WAIT_MS, description="With `follow`: if there is none, wait so long for one.")
    ] = 0


class TraceArguments(TracedArguments, frozen=True, kw_only=True):
    trace_id: Annotated[str, Meta(max_length=40, description="Which trace: a UUID, or 32 hexadecimal digits.")]
    depth: Annotated[int, Meta(ge=0, le=MAX_DEPTH, description="For the operator: how many nodes further to ask.")] = (
        MAX_DEPTH - 1
    )


class HistoryOperations:
    def __init__(self, history: CallHistoryPort | None, waiting_requests: FairLimit, gateway: Gateway) -> None:
        self._history = history
        self._gateway = gateway
        self._waiting_requests = waiting_requests

    def all(self) -> list[Operation[Any]]:
        return [
            Operation("fabric.call.list", "List recent calls, newest first; or follow them.", CallListArguments,
                      self.list, output=_LIST, scopes=()),
            Operation("fabric.trace.get", "Show what happened in a trace: its spans, in a tree.", TraceArguments,
                      self.get_trace, output=_TRACE, scopes=()),
        ]  # fmt: skip

    async def list(self, arguments: CallListArguments, request: OperationRequest, emit: Emit) -> Result:
        history = self._require_history()
        query = _build_filter(arguments, request.principal)
        if arguments.follow is not None:
            return await self._follow(history, arguments, query, request.principal)
        before = None if arguments.cursor is None else _parse_number(arguments.cursor, "cursor")
        await history.flush()
        newest = await history.find_newest()  # what ends from here on comes to those who follow
        rows = await history.list_calls(query, before=before, limit=arguments.limit + 1)
        page, is_all = rows[: arguments.limit], len(rows) <= arguments.limit
        calls = _render_calls([record for _, record in page], request.principal)
        data = {"calls": calls, "count": len(calls), "follow": str(newest), "lost": history.lost}
        return Result(data=data if is_all else {**data, "next_cursor": str(page[-1][0])})

    async def get_trace(self, arguments: TraceArguments, request: OperationRequest, emit: Emit) -> Result:
        history = self._require_history()
        trace_id = _normalize_trace_id(arguments.trace_id)
        role = find_console_role(request.principal)
        owner = None if role is not None else _require_owner(request.principal)
        await history.flush()
        records = await history.read_trace(trace_id, owner)
        if role != "operator":
            records = [hide_from_caller(record) for record in records]
        recorded = [span for record in records for span in record.spans]
        spans = [span for record in records for span in _list_spans(record)]
        if role != "operator":
            return _make_trace(trace_id, spans, list_forbidden_nodes(recorded))
        remote = await read_remote_traces(self._gateway, trace_id, recorded, arguments.depth)
        elsewhere = [*remote.spans, *(await self._read_mesh(trace_id))]
        known = {span["span_id"] for span in spans}  # nodes may share a store, or have called each other
        for span in elsewhere:
            if span.span_id not in known:
                known.add(span.span_id)
                spans.append(msgspec.to_builtins(span))
        return _make_trace(trace_id, spans, remote.nodes)

    async def _read_mesh(self, trace_id: str) -> Sequence[Span]:
        return () if self._gateway.nodes is None else await self._gateway.nodes.read_trace(trace_id)

    async def _follow(
        self, history: CallHistoryPort, arguments: CallListArguments, query: CallFilter, principal: Principal
    ) -> Result:
        after = _parse_number(arguments.follow or "", "follow")
        await history.flush()
        rows, newest = await _list_after(history, after, query)
        if not rows and arguments.wait_ms:
            caller = principal.principal_id
            self._waiting_requests.acquire(caller)
            try:
                rows, newest = await _wait_for_calls(history, newest, query, arguments.wait_ms / 1000)
            finally:
                self._waiting_requests.release(caller)
        calls = _render_calls([record for _, record in rows], principal)
        return Result(data={"calls": calls, "count": len(calls), "follow": str(newest), "lost": history.lost})

    def _require_history(self) -> CallHistoryPort:
        if self._history is None:
            raise BadInput("This node keeps no history of its calls. Its operator can switch it on: history.enabled")
        return self._history


def _make_trace(trace_id: str, spans: list[dict[str, Any]], nodes: Sequence[TraceNode]) -> Result:
    """`nodes` only if there are any: other nodes that the trace reached."""
    spans.sort(key=lambda span: span["started_at"])
    more = {"nodes": msgspec.to_builtins(nodes)} if nodes else {}
    return Result(data={"trace_id": trace_id, "spans": spans, **more})


Rows = Sequence[tuple[int, CallRecord]]


async def _wait_for_calls(history: CallHistoryPort, after: int, query: CallFilter, seconds: float) -> tuple[Rows, int]:
    """Calls of this node are known at once; those of others that share the store are looked for at intervals."""
    ends_at = time.monotonic() + seconds
    while True:
        await history.wait_for_more(min(_POLL_SECONDS, max(0.0, ends_at - time.monotonic())))
        rows, after = await _list_after(history, after, query)
        if rows or history.is_stopping or time.monotonic() >= ends_at:
            return rows, after


async def _list_after(history: CallHistoryPort, after: int, query: CallFilter) -> tuple[Rows, int]:
    """The calls after a number, and the number from which to go on."""
    newest = await history.find_newest()
    if newest == after:
        return (), newest
    if newest < after:  # a store in memory began anew
        after = 0
    rows = await history.list_calls(query, after=after, limit=_MAX_FOLLOWED)
    if len(rows) == _MAX_FOLLOWED:
        return rows, rows[-1][0]
    return rows, max(newest, rows[-1][0] if rows else 0)


def _build_filter(arguments: CallListArguments, principal: Principal) -> CallFilter:
    """Raises Forbidden, BadInput."""
    return CallFilter(
        owner=None if find_console_role(principal) is not None else _require_owner(principal),
        agent_id=arguments.agent,
        capability=arguments.capability,
        principal=arguments.principal,
        door=arguments.door,
        is_failed=arguments.failed,
        since=arguments.since,
        until=arguments.until,
        trace_id=None if arguments.trace_id is None else _normalize_trace_id(arguments.trace_id),
    )


def _require_owner(principal: Principal) -> str:
    if principal.mode == "none":
        raise Forbidden("Callers without credentials have no history. Use a key, and see the calls made with it")
    return owner_from_principal(principal)


def _normalize_trace_id(text: str) -> str:
    try:
        return normalize_uuid(text.strip())
    except ValueError as exc:
        raise BadInput(f"Bad trace_id: {exc}", field="trace_id") from exc


def _parse_number(text: str, field: str) -> int:
    if not text.isdecimal() or not text.isascii() or len(text) > 18:
        raise BadInput(f"Invalid {field}. Start again without one.", field=field)
    return int(text)


def _render_calls(records: Sequence[CallRecord], principal: Principal) -> list[dict[str, Any]]:
    if find_console_role(principal) != "operator":
        records = [hide_from_caller(record) for record in records]
    return [msgspec.to_builtins(record.call) for record in records]


def _list_spans(record: CallRecord) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = [msgspec.to_builtins(span) for span in record.spans]
    for name, payload in (("fabric.input", record.input), ("fabric.output", record.output)):
        if payload is not None and spans:
            spans[0]["attributes"][name] = payload
    return spans
