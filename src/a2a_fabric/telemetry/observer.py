"""Turns the outcome of a call into its log line and its metrics."""

from __future__ import annotations

from typing import Protocol

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import Trace
from a2a_fabric.telemetry.logs import CallLine, LogWriter, timestamp
from a2a_fabric.telemetry.metrics import Metrics

_LONGEST = 1000  # an agent's complaint may be as long as its replies
_CALLERS_FAULT = frozenset({"BAD_INPUT", "AGENT_NOT_FOUND", "CAPABILITY_NOT_FOUND", "CANCELLED"})


class Ended(Protocol):
    """The part of an outcome that is written down."""

    @property
    def call(self) -> Call: ...
    @property
    def manifest(self) -> Manifest | None: ...
    @property
    def seconds(self) -> float: ...
    @property
    def code(self) -> str | None: ...
    @property
    def message(self) -> str | None: ...
    @property
    def result(self) -> Result | None: ...


class Telemetry:
    def __init__(self, log: LogWriter, metrics: Metrics, *, payloads: bool = False) -> None:
        self.log = log
        self.metrics = metrics
        self._payloads = payloads

    def call_ended(self, outcome: Ended) -> None:
        call, trace = outcome.call, outcome.call.trace
        self.metrics.call_ended(outcome.manifest, call.target.capability, outcome.code, outcome.seconds)
        result = outcome.result
        self.log.write(
            CallLine(
                time=timestamp(),
                level=_level(outcome.code),
                event="call",
                trace_id=trace.trace_id,
                span_id=trace.span_id,
                parent_span_id=trace.parent_span_id,
                principal=call.auth.principal_id,
                auth_mode=call.auth.mode,
                target=call.target.agent_id[:128],
                capability=call.target.capability[:128],
                status="failed" if outcome.code else "completed",
                error_code=outcome.code,
                error=outcome.message and outcome.message[:_LONGEST],
                duration_ms=round(outcome.seconds * 1000, 3),
                streaming=call.response.stream,
                used=result.fallback.used if result is not None and result.fallback is not None else None,
                input=call.input if self._payloads else None,
                output=result.data if self._payloads and result is not None else None,
            )
        )

    def request_ended(
        self, trace: Trace, operation: str, *, code: str | None, message: str | None, seconds: float, status: int
    ) -> None:
        """A request that was no call, or was refused before it became one."""
        self.log.write(
            CallLine(
                time=timestamp(),
                level=_level(code),
                event="request",
                trace_id=trace.trace_id,
                span_id=trace.span_id,
                parent_span_id=trace.parent_span_id,
                operation=operation[:128],
                status="failed" if code else "completed",
                error_code=code,
                error=message and message[:_LONGEST],
                duration_ms=round(seconds * 1000, 3),
                http_status=status,
            )
        )


def _level(code: str | None) -> str:
    if code is None:
        return "info"
    return "info" if code in _CALLERS_FAULT else "warning"
