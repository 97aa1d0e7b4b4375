"""Settings of the call history and of OpenTelemetry, as sections of `fabric.yaml`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class HistorySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The recent calls and what happened in each, kept in the store for `calls`, `trace` and the console."""

    enabled: Annotated[bool, Meta(description="Keep a history. Off: `calls` and `trace` show nothing.")] = True
    keep_calls: Annotated[int, Meta(ge=1, description="How many calls are kept.")] = 10_000
    keep_bytes: Annotated[int, Meta(ge=1024, description="How many bytes they take at most.")] = 64 * 1024 * 1024
    keep_seconds: Annotated[float, Meta(gt=0, description="How long they are kept.")] = 7 * 86400.0
    calls_per_second: Annotated[
        int,
        Meta(
            ge=1,
            description="How many calls a second are kept at most, so that a busy node spends its time on calls. "
            "Further calls are left out and counted, those that succeeded first.",
        ),
    ] = 500
    payloads: Annotated[
        bool,
        Meta(
            description="Also keep what callers send and agents answer, up to `payload_bytes` each. Credentials that "
            "are recognized are redacted. Off for privacy."
        ),
    ] = False
    payload_bytes: Annotated[int, Meta(ge=64, le=1 << 20, description="Of one input or output.")] = 16 * 1024


class TracingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Spans for OpenTelemetry, sent to a collector by OTLP. Needs the extra `otel`. What is unset here is read from the
    standard variables: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER` and others."""

    protocol: Annotated[
        Literal["http", "grpc", "off"] | None,
        Meta(
            description="How spans are sent. Unset: as `OTEL_EXPORTER_OTLP_PROTOCOL` says (else `http`), if an "
            "endpoint is set here or in `OTEL_EXPORTER_OTLP_ENDPOINT`; otherwise none are made."
        ),
    ] = None
    endpoint: Annotated[
        str | None,
        Meta(
            description="Of the collector: for `http` the whole address, such as `http://127.0.0.1:4318/v1/traces`; "
            "for `grpc` host and port, such as `http://127.0.0.1:4317`."
        ),
    ] = None
    headers: Annotated[dict[str, str], Meta(description="Sent with each request; write secrets as `env:NAME`.")] = {}
    ratio: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(
            description="Which share of new traces is sent. A trace that a caller began is sent if its caller sends "
            "it. Unset: as `OTEL_TRACES_SAMPLER` says, else all."
        ),
    ] = None
    service_name: Annotated[str | None, Meta(description="Unset: `OTEL_SERVICE_NAME`, else `a2a-fabric`.")] = None
    queue: Annotated[
        int, Meta(ge=1, le=1_000_000, description="How many calls may wait to be sent; more are dropped and counted.")
    ] = 2048
    timeout_seconds: Annotated[float, Meta(gt=0, description="For one request to the collector.")] = 10.0
    cpu_share: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="How much of one processor sending may take. On a node that is busier, spans are dropped and "
            "counted; choose a smaller `ratio` there.",
        ),
    ] = 0.05
