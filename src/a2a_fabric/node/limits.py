"""The limits of a running node: how many calls, streams and subscriptions there may be, for all and for each caller."""

from __future__ import annotations

from a2a_fabric.config import LimitSettings
from a2a_fabric.core.limits import BodyLimit, CallerShare, FairLimit
from a2a_fabric.identity.failed_attempts import FailedAttempts
from a2a_fabric.steps.entry import CallRateLimit

# The others belong to the server (see `cli.up`), or to parts that take them when they are built.
CHANGEABLE_LIMITS = (
    "body_bytes",
    "timeout_ms",
    "max_timeout_ms",
    "share_per_caller",
    "concurrent_calls",
    "concurrent_calls_per_agent",
    "calls_per_minute",
    "failed_attempts_per_minute",
    "streams",
    "subscriptions",
    "agent_threads",
    "reply_bytes",
    "drain_seconds",
)


class NodeLimits:
    def __init__(self, settings: LimitSettings, processes: int = 1) -> None:
        """`processes` serve the same port: an address that guesses keys gets its refusals from all of them."""
        self._processes = processes
        self.body = BodyLimit(settings.body_bytes)
        self.caller_share = CallerShare(settings.share_per_caller)
        self.calls = FairLimit("calls", settings.concurrent_calls, self.caller_share)
        self.call_rate = CallRateLimit(settings.calls_per_minute)
        self.streams = FairLimit("streams and waiting requests", settings.streams, self.caller_share, retry_after=5.0)
        self.subscriptions = FairLimit("subscriptions", settings.subscriptions, self.caller_share, retry_after=10.0)
        self.failed_attempts = FailedAttempts(self._share_of(settings.failed_attempts_per_minute))

    def apply(self, settings: LimitSettings) -> None:
        self.body.set(settings.body_bytes)
        self.calls.resize(settings.concurrent_calls)
        if settings.calls_per_minute != self.call_rate.per_minute:
            self.call_rate.set_rate(settings.calls_per_minute)
        self.failed_attempts.set_rate(self._share_of(settings.failed_attempts_per_minute))
        self.streams.resize(settings.streams)
        self.subscriptions.resize(settings.subscriptions)
        self.caller_share.set(settings.share_per_caller)

    def _share_of(self, per_minute: int) -> int:
        return -(-per_minute // self._processes)
