"""The limits of a running node: how many calls, streams and subscriptions there may be, for all and for each caller."""

from __future__ import annotations

from a2a_fabric.config import LimitSettings
from a2a_fabric.core.limits import BodyLimit, CallerShare, FairLimit
from a2a_fabric.core.node_limits import build_limit
from a2a_fabric.core.shared_counts import SharedCounts
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
    def __init__(self, settings: LimitSettings, counts: SharedCounts | None = None) -> None:
        """`counts`: several processes serve the same port, and each limit holds for all of them together."""
        self.counts = counts
        self.body = BodyLimit(settings.body_bytes)
        self.caller_share = CallerShare(settings.share_per_caller)
        share, subscriptions = self.caller_share, settings.subscriptions
        self.calls = build_limit(counts, "calls", settings.concurrent_calls, share)
        self.call_rate = CallRateLimit(settings.calls_per_minute, counts=counts)
        self.streams = build_limit(counts, "streams and waiting requests", settings.streams, share, retry_after=5.0)
        self.subscriptions = build_limit(counts, "subscriptions", subscriptions, share, retry_after=10.0)
        # Each process follows all jobs with push notifications, so it counts those of the node by itself.
        self.followed_jobs = (
            self.subscriptions if counts is None else FairLimit("subscriptions", subscriptions, share, retry_after=10.0)
        )
        self.failed_attempts = FailedAttempts(settings.failed_attempts_per_minute, counts=counts)

    def apply(self, settings: LimitSettings) -> None:
        self.body.set(settings.body_bytes)
        self.calls.resize(settings.concurrent_calls)
        if settings.calls_per_minute != self.call_rate.per_minute:
            self.call_rate.set_rate(settings.calls_per_minute)
        self.failed_attempts.set_rate(settings.failed_attempts_per_minute)
        self.streams.resize(settings.streams)
        for limit in {self.subscriptions, self.followed_jobs}:
            limit.resize(settings.subscriptions)
        self.caller_share.set(settings.share_per_caller)
