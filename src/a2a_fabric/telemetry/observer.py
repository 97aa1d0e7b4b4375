"""Turns the outcome of a call into its log line and its metrics."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import Trace
from a2a_fabric.telemetry.logs import CallLine, LogWriter, timestamp
from a2a_fabric.telemetry.metrics import Metrics

_LONGEST = 1000  # an agent's complaint may be as long as its replies
_CONSTANTS_KEPT = 10_000
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
        self._writes_shortly = log.takes_json and not payloads
        self._constants: dict[tuple[str | None, str, str, str, bool], str] = {}

    def call_ended(self, outcome: Ended) -> None:
        call, trace = outcome.call, outcome.call.trace
        self.metrics.call_ended(outcome.manifest, call.target.capability, outcome.code, outcome.seconds)
        result = outcome.result
        if result is not None and result.fallback is None and self._writes_shortly:
            self._write_shortly(call, outcome.seconds)
            return
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

    def _write_shortly(self, call: Call, seconds: float) -> None:
        """The line of a call that went well, which is nearly all of them: the same fields, the constant part kept."""
        auth, target, trace = call.auth, call.target, call.trace
        key = (auth.principal_id, auth.mode, target.agent_id, target.capability, call.response.stream)
        constant = self._constants.get(key) or self._constant(key)
        parent = f'"parent_span_id":"{trace.parent_span_id}",' if trace.parent_span_id else ""
        self.log.write_json(
            f'{{"time":"{timestamp()}","level":"info","event":"call","trace_id":"{trace.trace_id}",'
            f'"span_id":"{trace.span_id}",{parent}{constant},"duration_ms":{seconds * 1000:.3f}}}'
        )

    def _constant(self, key: tuple[str | None, str, str, str, bool]) -> str:
        if len(self._constants) >= _CONSTANTS_KEPT:
            self._constants.clear()
        principal, mode, target, capability, streaming = key
        told: dict[str, Any] = {"auth_mode": mode, "target": target, "capability": capability, "status": "completed"}
        if principal is not None:
            told["principal"] = principal
        if streaming:
            told["streaming"] = True
        self._constants[key] = text = msgspec.json.encode(told).decode()[1:-1]
        return text

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
