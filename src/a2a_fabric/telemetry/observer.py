"""Turns the end of a call into its log line and its metrics.

Nearly all calls go well, so their line is made from a kept constant part, and
their tally is at hand; both are looked up together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import Call
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import Trace, current_trace
from a2a_fabric.telemetry.logs import CallLine, LogWriter, StatusLine, timestamp
from a2a_fabric.telemetry.metrics import Metrics, Tally

_LONGEST = 1000  # an agent's complaint may be as long as its replies
_KINDS_KEPT = 10_000
_CALLERS_FAULT = frozenset({"BAD_INPUT", "AGENT_NOT_FOUND", "CAPABILITY_NOT_FOUND", "CANCELLED"})


class Kind(msgspec.Struct, frozen=True):
    """What calls have in common that went well, came from one principal and went to one capability."""

    tally: Tally
    constant: str  # the part of their log lines that is always the same


class Telemetry:
    """`find` looks an agent up: only names that the catalog knows become labels of metrics."""

    def __init__(
        self,
        log: LogWriter,
        metrics: Metrics,
        find: Callable[[str], Manifest | None],
        *,
        payloads: bool = False,
    ) -> None:
        self.log = log
        self.metrics = metrics
        self._find = find
        self._payloads = payloads
        self._writes_shortly = log.takes_json and not payloads
        self._kinds: dict[tuple[str | None, str, str, str, bool], Kind] = {}

    def succeeded(self, call: Call, result: Result, seconds: float) -> None:
        auth, target, trace = call.auth, call.target, call.trace
        key = (auth.principal_id, auth.mode, target.agent_id, target.capability, call.response.stream)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kind_of(call)
            self._kinds[key] = kind
        kind.tally.add(seconds)
        if result.fallback is not None or not self._writes_shortly:
            self._write(call, seconds, result=result)
            return
        parent = f'"parent_span_id":"{trace.parent_span_id}",' if trace.parent_span_id else ""
        self.log.write_json(
            f'{{"time":"{timestamp()}","level":"info","event":"call","trace_id":"{trace.trace_id}",'
            f'"span_id":"{trace.span_id}",{parent}{kind.constant},"duration_ms":{seconds * 1000:.3f}}}\n'
        )

    def failed(self, call: Call, code: str, message: str, seconds: float) -> None:
        manifest = self._find(call.target.agent_id)
        self.metrics.tally_of(manifest, call.target.capability, code).add(seconds)
        self._write(call, seconds, code=code, message=message)

    def status_changed(self, agent_id: str, before: Status, after: Status, reason: str) -> None:
        self.metrics.status_changed(agent_id, after)
        trace = current_trace.get()
        self.log.write(
            StatusLine(
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

    def _kind_of(self, call: Call) -> Kind:
        if len(self._kinds) >= _KINDS_KEPT:
            self._kinds.clear()
        target = call.target
        told: dict[str, Any] = {"auth_mode": call.auth.mode, "target": target.agent_id, "capability": target.capability}
        if call.auth.principal_id is not None:
            told["principal"] = call.auth.principal_id
        if call.response.stream:
            told["streaming"] = True
        told["status"] = "completed"
        tally = self.metrics.tally_of(self._find(target.agent_id), target.capability, None)
        return Kind(tally, msgspec.json.encode(told).decode()[1:-1])

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
            CallLine(
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
                error=message and message[:_LONGEST],
                duration_ms=round(seconds * 1000, 3),
                streaming=call.response.stream,
                used=None if fallback is None else fallback.used,
                fallback_reason=None if fallback is None else fallback.reason,
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
