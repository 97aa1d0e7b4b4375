"""Settings of the call history and of OpenTelemetry, as sections of `fabric.yaml`."""

from __future__ import annotations

from typing import Annotated

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
