"""Turns the end of a call, a request or a job into its log entry and its metrics.

Nearly all calls succeed, so a cached template holds the constant part of their log lines
together with their tally."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import Call
from a2a_fabric.core.job import JobSummary
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import Trace, current_trace
from a2a_fabric.telemetry.logs import CallLogEntry, JobLogEntry, LogWriter, StatusLogEntry, timestamp
from a2a_fabric.telemetry.metrics import CallTally, Metrics

_MAX_ERROR_CHARS = 1000  # an agent's error message may be as long as its replies
_MAX_TEMPLATES = 10_000
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
        self._uses_templates = log.takes_json and not payloads
        self._templates: dict[tuple[str | None, str, str, str, bool], CallTemplate] = {}

    def record_success(self, call: Call, result: Result, seconds: float) -> None:
        auth, target, trace = call.auth, call.target, call.trace
        key = (auth.principal_id, auth.mode, target.agent_id, target.capability, call.response.stream)
        template = self._templates.get(key)
        if template is None:
            template = self._make_template(call)
            self._templates[key] = template
        template.tally.add(seconds)
        if result.fallback is not None or not self._uses_templates:
            self._write(call, seconds, result=result)
            return
        parent = f'"parent_span_id":"{trace.parent_span_id}",' if trace.parent_span_id else ""
        self.log.write_json(
            f'{{"time":"{timestamp()}","level":"info","event":"call","trace_id":"{trace.trace_id}",'
            f'"span_id":"{trace.span_id}",{parent}{template.constant},"duration_ms":{seconds * 1000:.3f}}}\n'
        )

    def record_failure(self, call: Call, code: str, message: str, seconds: float) -> None:
        manifest = self._find_agent(call.target.agent_id)
        self.metrics.get_tally(manifest, call.target.capability, code).add(seconds)
        self._write(call, seconds, code=code, message=message)

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

    def _make_template(self, call: Call) -> CallTemplate:
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
        if call.response.stream:
            fields["streaming"] = True
        fields["status"] = "completed"
        tally = self.metrics.get_tally(self._find_agent(target.agent_id), target.capability, None)
        return CallTemplate(tally, msgspec.json.encode(fields).decode()[1:-1])

    def _write(
        self,
        call: Call,
        seconds: float,
        *,
        code: str | None = None,
        message: str | None = None,
        result: Result | None = None,
    ) -> None:
        trace = call.trace
        fallback = result.fallback if result is not None else None
        self.log.write(
            CallLogEntry(
                time=timestamp(),
                level=_level(code),
                event="call",
                trace_id=trace.trace_id,
                span_id=trace.span_id,
                parent_span_id=trace.parent_span_id,
                principal=call.auth.principal_id,
                auth_mode=call.auth.mode,
                target=call.target.agent_id[:128],
                capability=call.target.capability[:128],
                status="failed" if code else "completed",
                error_code=code,
                error=message and message[:_MAX_ERROR_CHARS],
                duration_ms=round(seconds * 1000, 3),
                streaming=call.response.stream,
                used=None if fallback is None else fallback.used,
                fallback_reason=None if fallback is None else fallback.reason,
                input=call.input if self._payloads else None,
                output=result.data if self._payloads and result is not None else None,
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
                error=message and message[:_MAX_ERROR_CHARS],
                duration_ms=round(seconds * 1000, 3),
                http_status=status,
            )
        )


def _level(code: str | None) -> str:
    if code is None:
        return "info"
    return "info" if code in _CALLER_ERROR_CODES else "warning"


_MAX_JOB_ERROR_CHARS = 1000


class JobLogger:
    def __init__(self, log: LogWriter) -> None:
        self._log = log

    def on_accepted(self, job: JobSummary) -> None:
        self._log.write(
            JobLogEntry(
                time=timestamp(),
                event="job",
                level="info",
                trace_id=job.meta.get("trace_id", ""),
                job_id=job.job_id,
                owner=job.owner,
                target=job.agent_id,
                capability=job.capability,
                status="accepted",
            )
        )

    def on_released(self, job: JobSummary) -> None:
        error = job.error
        self._log.write(
            JobLogEntry(
                time=timestamp(),
                event="job",
                level="warning" if job.state in ("failed", "timeout") else "info",
                trace_id=job.meta.get("trace_id", ""),
                job_id=job.job_id,
                owner=job.owner,
                target=job.agent_id,
                capability=job.capability,
                status=job.state,
                attempt=job.attempt,
                error_code=None if error is None else error.code,
                error=None if error is None else error.message[:_MAX_JOB_ERROR_CHARS],
                # The duration of the latest attempt, by the store's clock.
                duration_ms=None if job.started_at is None else round((job.updated_at - job.started_at) * 1000, 3),
            )
        )
