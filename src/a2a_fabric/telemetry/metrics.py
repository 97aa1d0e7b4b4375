"""Prometheus metrics under the names that existing dashboards of the documents' world use.

Children are looked up once per (agent, capability, outcome) and kept, since
`labels()` is what costs. Label values come from the catalog only, never from a caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from a2a_fabric.core.agent import Health, Manifest

_STATUS_VALUE = {"online": 1.0, "offline": 0.0, "degraded": 0.5, "unknown": -1.0}
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    def __init__(self, version: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the extra series only double the page
        self.registry = CollectorRegistry()
        target = ("target_type", "target_id", "capability")
        self._calls = self._counter("fabric_calls", "Calls", (*target, "status"))
        self._duration = self._histogram("fabric_call_duration_seconds", "Time of a call", target)
        self._tool_calls = self._counter("fabric_tool_calls", "Calls of built-in tools", ("tool_id", "status"))
        self._tool_duration = self._histogram("fabric_tool_duration_seconds", "Time of a tool call", ("tool_id",))
        self._errors = self._counter("fabric_errors", "Failed calls", ("error_code", "target_type"))
        self._auth = self._counter("fabric_auth_attempts", "Credentials looked at", ("auth_mode", "status"))
        self.active_streams = Gauge("fabric_active_streams", "Open event streams", registry=self.registry)
        Info("fabric_server", "This node", registry=self.registry).info({"version": version})
        self._bound: dict[tuple[str, ...], tuple[Any, ...]] = {}
        self._bound_auth: dict[tuple[str, str], Any] = {}

    def _counter(self, name: str, text: str, labels: Iterable[str]) -> Counter:
        return Counter(name, text, tuple(labels), registry=self.registry)

    def _histogram(self, name: str, text: str, labels: Iterable[str]) -> Histogram:
        return Histogram(name, text, tuple(labels), buckets=_BUCKETS, registry=self.registry)

    def call_ended(self, manifest: Manifest | None, capability: str, error_code: str | None, seconds: float) -> None:
        """`manifest` is None for a call to somebody unknown: then nothing the caller wrote becomes a label."""
        kind = "tool" if manifest is not None and manifest.is_tool else "agent"
        known = manifest.capability(capability) if manifest is not None else None
        key = (kind, manifest.agent_id if manifest else "unknown", known.name if known else "unknown", error_code or "")
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = self._bind(*key)
        for counter in bound[0]:
            counter.inc()
        for histogram in bound[1]:
            histogram.observe(seconds)

    def _bind(self, kind: str, target: str, capability: str, error_code: str) -> tuple[Any, ...]:
        status = "error" if error_code else "success"
        counters = [self._calls.labels(kind, target, capability, status)]
        histograms = [self._duration.labels(kind, target, capability)]
        if error_code:
            counters.append(self._errors.labels(error_code, kind))
        if kind == "tool":
            counters.append(self._tool_calls.labels(target, status))
            histograms.append(self._tool_duration.labels(target))
        return counters, histograms

    def auth_attempt(self, mode: str, status: str) -> None:
        child = self._bound_auth.get((mode, status))
        if child is None:
            child = self._bound_auth[mode, status] = self._auth.labels(mode, status)
        child.inc()

    def exposition(self) -> bytes:
        return generate_latest(self.registry)


class FleetCollector(Collector):
    """Gauges about agents, worked out when somebody scrapes."""

    def __init__(
        self, agents: Callable[[], Iterable[Manifest]], tools: Callable[[], Iterable[Manifest]],
        health: Callable[[str], Health],
    ) -> None:  # fmt: skip
        self._agents = agents
        self._tools = tools
        self._health = health
        self._started = time.monotonic()

    def collect(self) -> Iterable[Metric]:
        status = GaugeMetricFamily("fabric_agent_status", "1 online, 0.5 degraded, 0 offline, -1", labels=["agent_id"])
        seen = GaugeMetricFamily("fabric_agent_last_seen_timestamp", "Last sign of life", labels=["agent_id"])
        by_status = dict.fromkeys(_STATUS_VALUE, 0)
        for manifest in self._agents():
            health = self._health(manifest.agent_id)
            by_status[health.status] += 1
            status.add_metric([manifest.agent_id], _STATUS_VALUE[health.status])
            if health.seen_at is not None:
                seen.add_metric([manifest.agent_id], health.seen_at)
        agents = GaugeMetricFamily("fabric_registry_agents", "Agents in the catalog", labels=["status"])
        for word, count in by_status.items():
            agents.add_metric([word], count)
        yield from (status, seen, agents, self._tool_counts())
        yield GaugeMetricFamily("fabric_uptime_seconds", "Time since the start", value=time.monotonic() - self._started)

    def _tool_counts(self) -> GaugeMetricFamily:
        tools = GaugeMetricFamily("fabric_registry_tools", "Built-in tools", labels=["category"])
        counts: dict[str, int] = {}
        for manifest in self._tools():
            counts[manifest.category or ""] = counts.get(manifest.category or "", 0) + 1
        for category, count in counts.items():
            tools.add_metric([category], count)
        return tools
