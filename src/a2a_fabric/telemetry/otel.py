"""Sends spans by OTLP with the official exporters of OpenTelemetry, over HTTP or gRPC.

The exporters read the standard `OTEL_*` variables themselves. Spans are not made with a tracer: they are complete when
they come here, so each becomes the SDK's value of an ended span."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from a2a_fabric.core.spans import ERROR_KEY, Span
from a2a_fabric.telemetry.export import TracedRecord
from a2a_fabric.telemetry.settings import TracingSettings
from a2a_fabric.version import __version__

_KINDS = {
    "door": SpanKind.SERVER,
    "attempt": SpanKind.INTERNAL,
    "runtime": SpanKind.CLIENT,
    "job": SpanKind.INTERNAL,
    "message": SpanKind.CONSUMER,
}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SCOPE = InstrumentationScope("a2a_fabric", __version__)
_OK = Status(StatusCode.UNSET)
_LOGGER_NAME = "opentelemetry"
_DEFAULT_SERVICE = "a2a-fabric"


class OtlpSender:
    """`protocol` is `http` or `grpc`. Raises ValueError for settings that the exporter refuses."""

    def __init__(self, settings: TracingSettings, protocol: str, node: str, service_name: str | None) -> None:
        attributes: dict[str, Any] = {SERVICE_VERSION: __version__, SERVICE_INSTANCE_ID: node, "fabric.node": node}
        name = settings.service_name or service_name or _DEFAULT_SERVICE
        self._resource = Resource.create({**attributes, SERVICE_NAME: name})
        self._exporter = _build_exporter(settings, protocol)
        self.target = str(getattr(self._exporter, "_endpoint", settings.endpoint or "the collector"))

    def send(self, records: Sequence[TracedRecord]) -> bool:
        spans = [
            self._convert(span, int(trace_id.replace("-", ""), 16))
            for trace_id, record in records
            for span in record.spans
        ]
        with _quiet_library():
            return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        with _quiet_library():
            self._exporter.shutdown()

    def _convert(self, span: Span, trace_id: int) -> ReadableSpan:
        started = int(span.started_at * 1e9)
        parent = None
        if span.parent_span_id is not None:
            is_remote = span.kind == "door"
            parent = SpanContext(trace_id, int(span.parent_span_id, 16), is_remote, _SAMPLED)
        status = _OK
        if span.status == "error":
            status = Status(StatusCode.ERROR, span.attributes.get(ERROR_KEY))
        return ReadableSpan(
            name=span.name,
            context=SpanContext(trace_id, int(span.span_id, 16), False, _SAMPLED),
            parent=parent,
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(event.name, event.attributes, started + int(event.at_ms * 1e6)) for event in span.events],
            kind=_KINDS[span.kind],
            status=status,
            start_time=started,
            end_time=started + int(span.duration_ms * 1e6),
            instrumentation_scope=_SCOPE,
        )


def _build_exporter(settings: TracingSettings, protocol: str) -> SpanExporter:
    headers = settings.headers or None
    if protocol == "grpc":
        is_plain = settings.endpoint is not None and not settings.endpoint.startswith("https://")
        return GrpcExporter(
            endpoint=settings.endpoint,
            insecure=True if is_plain else None,
            headers=None if headers is None else tuple(headers.items()),
            timeout=settings.timeout_seconds,
        )
    return HttpExporter(endpoint=settings.endpoint, headers=headers, timeout=settings.timeout_seconds)


@contextmanager
def _quiet_library() -> Iterator[None]:
    """The library logs each failed try; the node says once that spans cannot be sent."""
    logger = logging.getLogger(_LOGGER_NAME)
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def build(settings: TracingSettings, protocol: str, node: str, service_name: str | None) -> OtlpSender:
    return OtlpSender(settings, protocol, node, service_name)
