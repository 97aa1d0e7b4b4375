"""Turns the end of a call, a request or a job into its log entry and its metrics.

Nearly all calls succeed, so a cached template holds the constant part of their log lines together with their tally."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import Call
from a2a_fabric.core.federation import SpanFacts
from a2a_fabric.core.job import JobSummary
from a2a_fabric.core.propagation import Trace, current_trace
from a2a_fabric.core.recording import current_origin
from a2a_fabric.core.redaction import redact_json, redact_text
from a2a_fabric.core.result import Result
from a2a_fabric.telemetry.log import LogWriter
from a2a_fabric.telemetry.log_entries import CallLogEntry, JobLogEntry, StartLogEntry, StatusLogEntry, timestamp
from a2a_fabric.telemetry.metrics import CallTally, Metrics

_MAX_ERROR_CHARS = 1000  # an agent's error message may be as long as its replies
_MAX_TEMPLATES = 10_000
_MAX_SPARE_ROWS = 10_000  # of metrics, for agents that left
_CALLER_ERROR_CODES = frozenset({"BAD_INPUT", "AGENT_NOT_FOUND", "CAPABILITY_NOT_FOUND", "CANCELLED"})


class CallTemplate(msgspec.Struct, frozen=True):
    """The common data of successful calls from one principal to one capability."""

    tally: CallTally
    constant: str  # the constant part of their log lines


class Telemetry:
    """`find_agent` reads the catalog: only agents in the catalog become labels of metrics."""

    def __init__(
        self,
        log: LogWriter,
        metrics: Metrics,
        find_agent: Callable[[str], Manifest | None],
        *,
        payloads: bool = False,
    ) -> None:
        self.log = log
        self.metrics = metrics
        self._find_agent = find_agent
        self._payloads = payloads
        self._templates: dict[tuple[str | None, str, str, str, bool, str], CallTemplate] = {}
        self._max_rows = _MAX_SPARE_ROWS
        self._pruning: asyncio.Future[None] | None = None

    def on_catalog_changed(self, catalog: object) -> None:
        """Forget the metrics of agents that left, once there are many: callers choose the ids of what they register."""
        self._templates.clear()  # they hold what the cards of agents say
        if self.metrics.row_count > self._max_rows and self._pruning is None:
            self._pruning = asyncio.ensure_future(self.forget_missing_agents())

    async def forget_missing_agents(self) -> None:
        """In slices, with calls in between."""
        try:
            await self.metrics.keep_only(lambda agent_id: self._find_agent(agent_id) is not None)
            self._templates.clear()  # they hold tallies
            self._max_rows = 2 * self.metrics.row_count + _MAX_SPARE_ROWS
        finally:
            self._pruning = None

    def record_success(self, call: Call, result: Result, seconds: float) -> None:
        auth, target, trace = call.auth, call.target, call.trace
        origin = current_origin.get()
        key = (auth.principal_id, auth.mode, target.agent_id, target.capability, call.response.stream, origin.door)
        template = self._templates.get(key)
        if template is None:
            template = self._make_template(call, origin.door)
            self._templates[key] = template
        template.tally.add(seconds)
        if not self.log.takes_info:
            return
        is_plain = result.fallback is None and not call.on_behalf_of and origin.job_id is None
        if not is_plain or self._payloads or not self.log.takes_json:
            self._write(call, seconds, result=result)
            return
        parent = f'"parent_span_id":"{trace.parent_span_id}",' if trace.parent_span_id else ""
        self.log.write_json(
            f'{{"time":"{timestamp()}","level":"info","event":"call","trace_id":"{trace.trace_id}",'
            f'"span_id":"{trace.span_id}",{parent}{template.constant},"duration_ms":{seconds * 1000:.3f}}}\n'
        )

    def record_failure(self, call: Call, code: str, message: str, seconds: float, attempts: Sequence[str] = ()) -> None:
        manifest = self._find_agent(call.target.agent_id)
        self.metrics.get_tally(manifest, call.target.capability, code).add(seconds)
        self._write(call, seconds, code=code, message=message, attempts=attempts)

    def record_status_change(self, agent_id: str, before: Status, after: Status, reason: str) -> None:
        self.metrics.count_status_change(agent_id, after)
        trace = current_trace.get()
        self.log.write(
            StatusLogEntry(
                time=timestamp(),
                level="warning" if after in ("degraded", "offline") else "info",
                event="status",
                trace_id=trace.trace_id,
                span_id=trace.span_id,
                agent_id=agent_id,
                before=before,
                after=after,
                reason=reason,
                message=f"agent {agent_id} went from {before} to {after}: {reason}",
            )
        )

    def _make_template(self, call: Call, door: str) -> CallTemplate:
        if len(self._templates) >= _MAX_TEMPLATES:
            self._templates.clear()
        target = call.target
        fields: dict[str, Any] = {
            "auth_mode": call.auth.mode,
            "target": target.agent_id,
            "capability": target.capability,
        }
        if call.auth.principal_id is not None:
            fields["principal"] = call.auth.principal_id
        if door:
            fields["door"] = door
        if call.response.stream:
            fields["streaming"] = True
        fields["status"] = "completed"
        manifest = self._find_agent(target.agent_id)
        if manifest is not None and manifest.runtime is not None:
            fields["runtime"] = manifest.runtime
        if (span := _find_span(manifest, target.capability)) is not None:
            fields["span"], fields["attributes"] = span
        tally = self.metrics.get_tally(manifest, target.capability, None)
        return CallTemplate(tally, msgspec.json.encode(fields).decode()[1:-1])

    def _write(
        self,
        call: Call,
        seconds: float,
        *,
        code: str | None = None,
        message: str | None = None,
        result: Result | None = None,
        attempts: Sequence[str] = (),
    ) -> None:
        trace, origin, manifest = call.trace, current_origin.get(), self._find_agent(call.target.agent_id)
        fallback = result.fallback if result is not None else None
        span = _find_span(manifest, call.target.capability)
        self.log.write(
            CallLogEntry(
                time=timestamp(),
                level=_level(code),
                event="call",
                trace_id=trace.trace_id,
                span_id=trace.span_id,
                parent_span_id=trace.parent_span_id,
                principal=call.auth.principal_id,
                on_behalf_of=call.on_behalf_of.principal_id if call.on_behalf_of else None,
                auth_mode=call.auth.mode,
                door=origin.door or None,
                job_id=origin.job_id,
                runtime=None if manifest is None else manifest.runtime,
                attempts=tuple(attempts if fallback is None else fallback.attempts) or None,
                target=call.target.agent_id[:128],
                capability=call.target.capability[:128],
                status="failed" if code else "completed",
                error_code=code,
                error=message and redact_text(message[:_MAX_ERROR_CHARS]),
                span=None if span is None else span.name,
                attributes=None if span is None else span.attributes,
                duration_ms=round(seconds * 1000, 3),
                streaming=call.response.stream,
                used=None if fallback is None else fallback.used,
                fallback_reason=None if fallback is None else fallback.reason,
                input=_redact_payload(call.input) if self._payloads else None,
                output=_redact_payload(result.data) if self._payloads and result is not None else None,
            )
        )

    def log_start(
        self, *, version: str, node: str, config: str | None, listen: str, store: str, agents: int, doors: Sequence[str]
    ) -> None:
        trace = current_trace.get()
        source = f"configuration {config}" if config is not None else "no configuration file"
        title = f"node {node}, version {version}, started at {listen}"
        self.log.write(
            StartLogEntry(
                time=timestamp(),
                level="info",
                event="start",
                trace_id=trace.trace_id,
                span_id=trace.span_id,
                version=version,
                node=node,
                config=config,
                listen=listen,
                store=store,
                agents=agents,
                doors=tuple(doors),
                pid=os.getpid(),
                message=f"{title}: {source}, store {store}, {agents} agents",
            )
        )

    def log_request(
        self, trace: Trace, operation: str, *, code: str | None, message: str | None, seconds: float, status: int
    ) -> None:
        """Log a request that is not a call, or that was refused before it became a call."""
        self.log.write(
            CallLogEntry(
                time=timestamp(),
                level=_level(code),
                event="request",
                trace_id=trace.trace_id,
                span_id=trace.span_id,
                parent_span_id=trace.parent_span_id,
                operation=operation[:128],
                status="failed" if code else "completed",
                error_code=code,
                error=message and redact_text(message[:_MAX_ERROR_CHARS]),
                duration_ms=round(seconds * 1000, 3),
                http_status=status,
            )
        )


def _redact_payload(value: object) -> object:
    """Without credentials. What is not JSON stays as it is; the writer leaves it out."""
    try:
        return redact_json(msgspec.to_builtins(value))
    except (TypeError, ValueError, RecursionError):
        return value


def _find_span(manifest: Manifest | None, capability: str) -> SpanFacts | None:
    """What the agent's card wants on each of its log lines; None for an agent whose card says nothing about that."""
    if manifest is None or manifest.observability is None:
        return None
    return manifest.describe_span(capability[:128])


def _level(code: str | None) -> str:
    if code is None:
        return "info"
    return "info" if code in _CALLER_ERROR_CODES else "warning"


class JobLogger:
    def __init__(self, log: LogWriter, on_ended: Callable[[JobSummary], None] | None = None) -> None:
        """`on_ended` gets each job that has ended on this node."""
        self._log = log
        self._on_ended = on_ended

    def on_accepted(self, job: JobSummary) -> None:
        self._write(job, "accepted", "info")

    def on_released(self, job: JobSummary) -> None:
        if self._on_ended is not None and job.has_ended:
            self._on_ended(job)
        error = job.error
        self._write(
            job,
            job.state,
            "warning" if job.state in ("failed", "timeout") else "info",
            attempt=job.attempt,
            error_code=None if error is None else error.code,
            error=None if error is None else error.message[:_MAX_ERROR_CHARS],
            # The duration of the latest attempt, by the store's clock.
            duration_ms=None if job.started_at is None else round((job.updated_at - job.started_at) * 1000, 3),
        )

    def _write(self, job: JobSummary, status: str, level: str, **more: Any) -> None:
        self._log.write(
            JobLogEntry(
                time=timestamp(),
                event="job",
                level=level,
                trace_id=job.meta.get("trace_id", ""),
                job_id=job.job_id,
                owner=job.owner,
                target=job.agent_id,
                capability=job.capability,
                status=status,
                **more,
            )
        )
