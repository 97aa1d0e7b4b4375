"""Decides which calls are recorded, and hands ended recordings to the history and to the export of spans."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.job import SPAN_META, JobSummary
from a2a_fabric.core.ports import load_module
from a2a_fabric.core.recording import CallRecording
from a2a_fabric.core.result import Result
from a2a_fabric.telemetry.export import Sampler, SpanExport, SpanSender
from a2a_fabric.telemetry.history import CallHistory
from a2a_fabric.telemetry.settings import TracingSettings
from a2a_fabric.telemetry.spans import build_job_record

_INSTALL = "Install it with: pip install 'a2a-fabric[otel]'"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_SAMPLERS = ("always_on", "always_off", "traceidratio")
_PARENT_BASED = "parentbased_"

_log = logging.getLogger(__name__)


class SpanRecorder:
    """At least one of history and export is there."""

    def __init__(
        self,
        history: CallHistory | None,
        export: SpanExport | None,
        sampler: Sampler,
        node: str,
    ) -> None:
        self._history = history
        self._export = export
        self._sampler = sampler
        self._node = node

    def begin(self, call: Call) -> tuple[Call, CallRecording | None]:
        is_sampled = False
        if self._export is not None:
            trace = call.trace
            is_sampled = self._sampler.takes(trace.trace_id, trace.parent_span_id, trace.sampled)
            if not is_sampled and trace.sampled is not False:  # the nodes behind this one must decide alike
                call = msgspec.structs.replace(call, trace=msgspec.structs.replace(trace, sampled=False))
            elif is_sampled and self._export.is_full:  # what would be dropped at the end is not recorded
                self._export.dropped += 1
                is_sampled = False
        if not is_sampled and (self._history is None or self._history.is_nearly_full):
            if self._history is not None:
                self._history.lost += 1
            return call, None
        recording = CallRecording(call, is_sampled=is_sampled)
        if self._history is not None and self._history.keeps_payloads:
            self._history.note_input(recording, call)
        return call, recording

    def end(self, recording: CallRecording, result: Result | None) -> None:
        if self._history is not None:
            if result is not None and self._history.keeps_payloads:
                self._history.note_output(recording, result)
            self._history.add(recording)
        if recording.is_sampled and self._export is not None:
            self._export.add(recording)

    def begin_late(self, call: Call, seconds: float) -> CallRecording | None:
        """A failed call is kept as long as there is room, even if successful ones are not."""
        if self._history is None or self._history.is_full:
            return None
        self._history.lost -= 1  # it was counted when it began
        recording = CallRecording(call)
        recording.started_at -= seconds
        recording.started -= seconds
        return recording

    def record_job(self, job: JobSummary) -> None:
        """A job that has ended. Jobs of older versions do not say what their span is."""
        span, trace_id = job.meta.get(SPAN_META), job.meta.get("trace_id")
        if not isinstance(span, dict) or not isinstance(trace_id, str) or not job.has_ended:
            return
        parent = span.get("parent_span_id")
        record = build_job_record(job, str(span.get("span_id", "")), parent, self._node)
        if self._history is not None:
            self._history.add_record(trace_id, record)
        if self._export is not None and self._sampler.takes(trace_id, parent, span.get("sampled")):
            self._export.add((trace_id, record))


def choose_protocol(settings: TracingSettings, environ: Mapping[str, str]) -> str | None:
    """`http` or `grpc`; None if no spans are sent. Raises ConfigError."""
    if settings.protocol == "off" or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if settings.protocol is not None:
        return settings.protocol
    if settings.endpoint is None and not _find(environ, _ENDPOINTS):
        return None
    if settings.endpoint is None and environ.get("OTEL_TRACES_EXPORTER", "otlp").lower() != "otlp":
        return None
    name = _find(environ, _PROTOCOLS) or "http/protobuf"
    if name not in ("grpc", "http/protobuf", "http"):
        raise ConfigError(f"OTEL_EXPORTER_OTLP_PROTOCOL: '{name[:40]}' is not supported; use http/protobuf or grpc")
    return "grpc" if name == "grpc" else "http"


def build_sampler(settings: TracingSettings, environ: Mapping[str, str]) -> Sampler:
    """Raises ConfigError."""
    if settings.ratio is not None:
        return Sampler(settings.ratio)
    name = environ.get("OTEL_TRACES_SAMPLER") or f"{_PARENT_BASED}always_on"
    kind = name.removeprefix(_PARENT_BASED)
    if kind not in _SAMPLERS:
        raise ConfigError(f"OTEL_TRACES_SAMPLER: '{name[:40]}' is not supported; use {', '.join(_SAMPLERS)}, or "
                          f"one of them after {_PARENT_BASED}")  # fmt: skip
    text = environ.get("OTEL_TRACES_SAMPLER_ARG") or "1"
    try:
        ratio = {"always_on": 1.0, "always_off": 0.0}.get(kind)
        ratio = float(text) if ratio is None else ratio
    except ValueError as exc:
        raise ConfigError(f"OTEL_TRACES_SAMPLER_ARG: '{text[:40]}' is not a number") from exc
    if not 0 <= ratio <= 1:
        raise ConfigError("OTEL_TRACES_SAMPLER_ARG must be between 0 and 1")
    return Sampler(ratio, follows_parent=name.startswith(_PARENT_BASED))


def build_export(settings: TracingSettings, environ: Mapping[str, str], node: str) -> SpanExport | None:
    """None if no spans are sent. Raises ConfigError."""
    protocol = choose_protocol(settings, environ)
    if protocol is None:
        return None
    is_declared = settings.protocol is not None or settings.endpoint is not None
    try:
        module: Any = load_module("a2a_fabric.telemetry.otel")
    except ImportError as exc:
        if is_declared:
            raise ConfigError(f"tracing: the extra `otel` is not installed. {_INSTALL}") from exc
        _log.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set, but the extra `otel` is not installed. %s", _INSTALL)
        return None
    try:
        sender: SpanSender = module.build(settings, protocol, node, environ.get("OTEL_SERVICE_NAME"))
    except (ValueError, OSError) as exc:
        raise ConfigError(f"tracing: {exc}"[:300]) from exc
    return SpanExport(sender, node, settings.queue, settings.cpu_share)


def _find(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := environ.get(name, "").strip())), None)
