"""Makes the spans of a call out of its recording, and the span of a job out of the job.

The tree of a call: the door's span, below it one for each attempt, below that one for the runtime, whose id the agent
gets. An attempt that the agent's gate refused has no span of the runtime: the agent was not asked. A job's span lies
above the calls that its runs make. Attribute names follow the conventions of OpenTelemetry where it has any."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.job import JobSummary
from a2a_fabric.core.recording import AttemptRecording, CallRecording
from a2a_fabric.core.redaction import redact_text
from a2a_fabric.core.spans import (
    ERROR_KEY,
    CallRecord,
    CallSummary,
    Span,
    SpanEvent,
    SpanKind,
    SpanStatus,
    door_span_id,
    outgoing_span_id,
)

_MAX_ERROR_CHARS = 1000
_MAX_NAME_CHARS = 128
_MAX_SCOPES = 16
_MAX_DESCRIPTIONS = 1000  # cached; an agent's name has at most 128 characters here
_MESSAGE_META = "message"  # in the meta of a job that delivers a message: the message's id
# Of protocols whose requests have a name or a system in OpenTelemetry's conventions.
_RPC_SYSTEMS = {"grpc": "grpc", "jsonrpc": "jsonrpc", "a2a": "jsonrpc", "directory": "jsonrpc", "rpc": "jsonrpc"}
_MCP_METHOD = "tools/call"


def build_record(recording: CallRecording, node: str) -> CallRecord:
    """Once for all who want it."""
    if recording.record is None:
        recording.record = _build(recording, node)
    record: CallRecord = recording.record
    return record


def _build(recording: CallRecording, node: str) -> CallRecord:
    summary = _summarize(recording, node)
    spans = [_build_door_span(recording, summary)]
    for number, attempt in enumerate(recording.attempts, 1):
        spans += _build_attempt_spans(recording, attempt, number, summary)
    return CallRecord(
        owner=owner_from_principal(recording.auth),
        call=summary,
        public_error=_clip(recording.public_error),
        spans=tuple(spans),
        input=recording.input,
        output=recording.output,
    )


def _summarize(recording: CallRecording, node: str) -> CallSummary:
    trace, target, origin, attempts = recording.trace, recording.target, recording.origin, recording.attempts
    return CallSummary(
        trace_id=trace.trace_id,
        span_id=door_span_id(trace.span_id),
        parent_span_id=outgoing_span_id(trace.parent_span_id) if trace.parent_span_id else None,
        started_at=recording.started_at,
        duration_ms=_to_ms(recording.seconds),
        node=node,
        door=origin.door,
        protocol=origin.protocol or origin.door,
        principal=recording.auth.principal_id,
        on_behalf_of=_find_on_behalf_of(recording),
        agent_id=target.agent_id[:_MAX_NAME_CHARS],
        used=recording.used,
        capability=target.capability[:_MAX_NAME_CHARS],
        runtime=attempts[-1].runtime if attempts else None,
        status=recording.status,  # type: ignore[arg-type]  # one of the literals
        error_code=recording.error_code,
        error=_clip(recording.error),
        attempts=len(attempts),
        job_id=origin.job_id,
        streaming=recording.streaming,
    )


def _find_on_behalf_of(recording: CallRecording) -> str | None:
    """The caller's own caller: as another node reports it, or the agent that a passport or a mandate names."""
    if recording.on_behalf_of:
        return recording.on_behalf_of
    return None


def _build_door_span(recording: CallRecording, summary: CallSummary) -> Span:
    auth, code = recording.auth, recording.error_code
    name, constant = _describe_door(
        summary.door, summary.protocol, summary.agent_id, summary.capability, summary.runtime, auth.mode, auth.trust
    )
    attributes: dict[str, Any] = {
        **constant,
        "fabric.verdict": "refused" if code in ("AUTH_DENIED", "RATE_LIMITED") else "allowed",
    }
    if auth.principal_id is not None:
        attributes["enduser.id"] = auth.principal_id
    if auth.delegate_id is not None or auth.scp is not None or auth.views:
        attributes |= _describe_authority(auth)
    if summary.on_behalf_of is not None:
        attributes["fabric.on_behalf_of"] = summary.on_behalf_of
    if summary.used is not None:
        attributes["fabric.used"] = summary.used
    if summary.job_id is not None:
        attributes["fabric.job_id"] = summary.job_id
    if recording.tokens:
        attributes["fabric.tokens"] = recording.tokens
    if recording.events_left_out:
        attributes["fabric.events_left_out"] = recording.events_left_out
    if code is not None:
        refusal = {"fabric.rule": recording.rule, "fabric.missing_scope": recording.scope, ERROR_KEY: summary.error}
        attributes["error.type"] = code
        attributes |= {key: value for key, value in refusal.items() if value is not None}
    return Span(
        span_id=summary.span_id,
        parent_span_id=summary.parent_span_id,
        name=name,
        kind="door",
        node=summary.node,
        started_at=summary.started_at,
        duration_ms=summary.duration_ms,
        status=_status_of_call(recording.status),
        attributes=attributes,
        events=tuple(SpanEvent(name, _to_ms(at - recording.started), facts) for at, name, facts in recording.events),
    )


def _build_attempt_spans(
    recording: CallRecording, attempt: AttemptRecording, number: int, summary: CallSummary
) -> list[Span]:
    ended = attempt.ended if attempt.ended is not None else recording.started + recording.seconds
    is_open = attempt.ended is None
    status: SpanStatus = "cancelled" if is_open else "ok" if attempt.error_code is None else "error"
    attributes: dict[str, Any] = {
        "fabric.agent_id": attempt.agent_id,
        "fabric.attempt": number,
        "fabric.reason": attempt.reason,
    }
    if attempt.error_code is not None:
        attributes |= {"error.type": attempt.error_code, ERROR_KEY: _clip(attempt.error)}
        attributes["fabric.may_have_run"] = attempt.may_have_run
    runtime_id = outgoing_span_id(attempt.span_id)
    attempt_id = f"{int(runtime_id, 16) ^ int(summary.span_id, 16) or 1:016x}"  # the same in the history and for OTLP
    spans = [
        Span(
            span_id=attempt_id,
            parent_span_id=summary.span_id,
            name=f"attempt {attempt.agent_id}",
            kind="attempt",
            node=summary.node,
            started_at=recording.started_at + (attempt.started - recording.started),
            duration_ms=_to_ms(ended - attempt.started),
            status=status,
            attributes=attributes,
        )
    ]
    if attempt.runtime_started is None:
        return spans
    name, described = _describe_runtime(attempt.runtime, attempt.agent_id, summary.capability)
    if attempt.manifest.observability is not None or attempt.manifest.origin is not None:
        facts = attempt.manifest.describe_span(summary.capability)
        if facts is None:
            return spans  # its card wants no traces
        name, described = facts.name, {**facts.attributes, **described}
    if attempt.error_code is not None:
        described = {**described, "error.type": attempt.error_code}
    spans.append(
        Span(
            span_id=runtime_id,
            parent_span_id=attempt_id,
            name=name,
            kind="runtime",
            node=summary.node,
            started_at=recording.started_at + (attempt.runtime_started - recording.started),
            duration_ms=_to_ms(ended - attempt.runtime_started),
            status=status,
            attributes=described,
        )
    )
    return spans


# The same for all calls from a door to a capability, so made once. Spans share these dicts: no code may change them.


@lru_cache(_MAX_DESCRIPTIONS)
def _describe_door(
    door: str, protocol: str, agent_id: str, capability: str, runtime: str | None, mode: str, trust: str
) -> tuple[str, dict[str, Any]]:
    """The name of the door's span, and its attributes."""
    return f"{door or 'call'} {agent_id}.{capability}", {
        "fabric.door": door,
        "fabric.agent_id": agent_id,
        "fabric.capability": capability,
        "fabric.auth_mode": mode,
        "fabric.trust": trust,
        **_describe_operation(runtime, agent_id, capability),
        **_describe_protocol(protocol),
    }


@lru_cache(_MAX_DESCRIPTIONS)
def _describe_runtime(runtime: str | None, agent_id: str, capability: str) -> tuple[str, dict[str, Any]]:
    """The name of the runtime's span, and its attributes, but for what the agent's card says."""
    kind = runtime or "unknown"
    return f"{kind} {agent_id}.{capability}", {
        "fabric.runtime": kind,
        "fabric.agent_id": agent_id,
        **_describe_operation(runtime, agent_id, capability),
        **_describe_protocol(kind),
    }


def _describe_authority(auth: Principal) -> dict[str, Any]:
    """What few callers have."""
    optional = {
        "fabric.delegate": auth.delegate_id,
        "fabric.scopes": list(auth.scp[:_MAX_SCOPES]) if auth.scp is not None else None,
        "fabric.views": [view.name for view in auth.views] if auth.views else None,
    }
    return {key: value for key, value in optional.items() if value is not None}


def build_job_record(job: JobSummary, span_id: str, parent_span_id: str | None, node: str) -> CallRecord:
    """The span of a job that has ended: from when it was accepted to its end."""
    ended_at = job.ended_at if job.ended_at is not None else job.updated_at
    kind: SpanKind = "message" if _MESSAGE_META in job.meta else "job"
    attributes: dict[str, Any] = {
        "fabric.job_id": job.job_id,
        "fabric.agent_id": job.agent_id,
        "fabric.capability": job.capability,
        "fabric.state": job.state,
        "fabric.runs": job.attempt,
    }
    if kind == "message":
        attributes["messaging.message.id"] = job.meta[_MESSAGE_META]
        attributes["messaging.operation.name"] = "process"
    if job.error is not None and job.state != "completed":
        attributes |= {"error.type": job.error.code, ERROR_KEY: _clip(job.error.message)}
    status: SpanStatus = "ok" if job.state == "completed" else "cancelled" if job.state == "cancelled" else "error"
    span = Span(
        span_id=outgoing_span_id(span_id),
        parent_span_id=outgoing_span_id(parent_span_id) if parent_span_id else None,
        name=f"{kind} {job.agent_id}.{job.capability}",
        kind=kind,
        node=node,
        started_at=job.created_at,
        duration_ms=_to_ms(max(0.0, ended_at - job.created_at)),
        status=status,
        attributes=attributes,
    )
    return CallRecord(owner=job.owner, spans=(span,))


def _describe_operation(runtime: str | None, agent_id: str, capability: str) -> dict[str, Any]:
    """What the conventions for generative AI call it: a tool is executed, an agent is invoked."""
    if runtime == "tool":
        return {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": agent_id}
    if runtime == "mcp":
        return {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": capability}
    return {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.id": agent_id}


def _describe_protocol(protocol: str) -> dict[str, Any]:
    name, _, transport = protocol.partition("+")
    attributes = {} if not transport else {"network.protocol.name": transport}
    if name == "mcp":
        return {"mcp.method.name": _MCP_METHOD, "rpc.system": "jsonrpc", **attributes}
    system = _RPC_SYSTEMS.get(transport) or _RPC_SYSTEMS.get(name)
    return attributes if system is None else {"rpc.system": system, **attributes}


def _status_of_call(status: str) -> SpanStatus:
    return "error" if status == "failed" else "cancelled" if status == "cancelled" else "ok"


def _to_ms(seconds: float) -> float:
    """With three digits after the point. A tenth of the cost of `round`; no duration is negative."""
    return int(seconds * 1_000_000 + 0.5) / 1000


def _clip(text: str | None) -> str | None:
    return None if text is None else redact_text(text[:_MAX_ERROR_CHARS])
