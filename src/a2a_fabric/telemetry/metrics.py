"""Prometheus metrics, under names that existing dashboards use.

A call updates plain integers only; they become metric families when Prometheus scrapes.
(`prometheus_client`'s own counters take a lock for each increment.) Label values come from the
catalog, never from a caller."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from a2a_fabric.core.agent import Health, Manifest

_STATUS_VALUE = {"online": 1.0, "offline": 0.0, "degraded": 0.5, "unknown": -1.0}
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

_UNKNOWN = "unknown"

CallKey = tuple[str, str, str, str]  # kind, target, capability, error code or ""


class CallTally:
    """Calls that ended alike: how many, how long in all, how they spread."""

    __slots__ = ("bucket_counts", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.bucket_counts = [0] * (len(_BUCKETS) + 1)

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds
        self.bucket_counts[bisect_left(_BUCKETS, seconds)] += 1


class Metrics(Collector):
    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        self._version = version
        self._calls: dict[CallKey, CallTally] = {}
        self._auth: dict[tuple[str, str], int] = {}
        self._retries: dict[tuple[str, str], int] = {}
        self._fallbacks: dict[tuple[str, str, str], int] = {}
        self._status_changes: dict[tuple[str, str], int] = {}
        self._streams = 0
        self._registrations = 0
        self._messages_sent = 0
        self._messages_received = 0
        self.registry.register(self)

    def get_tally(self, manifest: Manifest | None, capability: str, error_code: str | None) -> CallTally:
        """`manifest` is None for an unknown agent: then nothing that the caller wrote becomes a label."""
        declared = manifest.find_capability(capability) if manifest is not None else None
        if manifest is None:
            key = ("agent", _UNKNOWN, _UNKNOWN, error_code or "")
        else:
            kind = "tool" if manifest.category is not None else "agent"
            key = (kind, manifest.agent_id, declared.name if declared is not None else _UNKNOWN, error_code or "")
        tally = self._calls.get(key)
        if tally is None:
            tally = self._calls[key] = CallTally()
        return tally

    @property
    def row_count(self) -> int:
        return len(self._calls) + len(self._retries) + len(self._fallbacks) + len(self._status_changes)

    def keep_only(self, is_known: Callable[[str], bool]) -> None:
        """Forget the agents that are not known. Tallies of these that are still held count for nothing."""
        self._calls = {key: tally for key, tally in self._calls.items() if key[1] == _UNKNOWN or is_known(key[1])}
        self._retries = {key: count for key, count in self._retries.items() if is_known(key[0])}
        self._fallbacks = {
            key: count for key, count in self._fallbacks.items() if is_known(key[0]) and is_known(key[1])
        }
        self._status_changes = {key: count for key, count in self._status_changes.items() if is_known(key[0])}

    def count_auth_attempt(self, mode: str, status: str) -> None:
        self._auth[mode, status] = self._auth.get((mode, status), 0) + 1

    def count_retry(self, agent_id: str, is_made: bool) -> None:
        """An attempt beyond the first of a call to this agent; not made if its budget is used up."""
        key = agent_id, "made" if is_made else "refused"
        self._retries[key] = self._retries.get(key, 0) + 1

    def count_fallback(self, requested: str, used: str, reason: str) -> None:
        """Another agent answered instead of the requested one."""
        key = requested, used, reason
        self._fallbacks[key] = self._fallbacks.get(key, 0) + 1

    def count_status_change(self, agent_id: str, status: str) -> None:
        """An agent of the catalog has this status now, and had another."""
        key = agent_id, status
        self._status_changes[key] = self._status_changes.get(key, 0) + 1

    def count_registration(self) -> None:
        self._registrations += 1

    def count_message_sent(self) -> None:
        self._messages_sent += 1

    def count_messages_received(self, number: int) -> None:
        self._messages_received += number

    def count_stream_opened(self) -> None:
        self._streams += 1

    def count_stream_closed(self) -> None:
        self._streams -= 1

    def render_exposition(self) -> bytes:
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        tallies = list(self._calls.items())
        yield InfoMetricFamily("fabric_server", "This node", value={"version": self._version})
        yield GaugeMetricFamily("fabric_active_streams", "Open event streams", value=self._streams)
        yield _make_counter("fabric_calls", "Calls", ("target_type", "target_id", "capability", "status"),
                       (((*key[:3], _status_label(key)), tally.count) for key, tally in tallies))  # fmt: skip
        yield _make_counter("fabric_errors", "Failed calls", ("error_code", "target_type"),
                       (((key[3], key[0]), tally.count) for key, tally in tallies if key[3]))  # fmt: skip
        tools = [(key, tally) for key, tally in tallies if key[0] == "tool"]
        yield _make_counter("fabric_tool_calls", "Calls of built-in tools", ("tool_id", "status"),
                       (((key[1], _status_label(key)), tally.count) for key, tally in tools))  # fmt: skip
        yield _make_counter(
            "fabric_retries", "Attempts beyond the first", ("target_id", "status"), self._retries.items()
        )
        yield _make_counter("fabric_fallbacks", "Answers by another agent than the one asked for",
                       ("target_id", "used_id", "reason"), self._fallbacks.items())  # fmt: skip
        yield _make_counter("fabric_agent_status_changes", "Changes of an agent's status, by the new one",
                       ("agent_id", "status"), self._status_changes.items())  # fmt: skip
        yield CounterMetricFamily("fabric_agent_registrations", "Agents registered", value=self._registrations)
        yield CounterMetricFamily("fabric_messages_sent", "Messages written", value=self._messages_sent)
        yield CounterMetricFamily("fabric_messages_received", "Messages fetched", value=self._messages_received)
        yield _make_counter(
            "fabric_auth_attempts", "Credentials looked at", ("auth_mode", "status"), self._auth.items()
        )
        names = ("target_type", "target_id", "capability")
        yield _make_histogram("fabric_call_duration_seconds", "Time of a call", names, ((k[:3], t) for k, t in tallies))
        tool_tallies = ((key[1:2], tally) for key, tally in tools)
        yield _make_histogram("fabric_tool_duration_seconds", "Time of a tool call", ("tool_id",), tool_tallies)


def _status_label(key: CallKey) -> str:
    return "error" if key[3] else "success"


def _make_counter(
    name: str, text: str, labels: tuple[str, ...], counts: Iterable[tuple[tuple[str, ...], int]]
) -> CounterMetricFamily:
    """A counter, with equal label sets added up."""
    sums: dict[tuple[str, ...], int] = {}
    for values, count in counts:
        sums[values] = sums.get(values, 0) + count
    family = CounterMetricFamily(name, text, labels=labels)
    for values, count in sums.items():
        family.add_metric(values, count)
    return family


def _make_histogram(
    name: str, text: str, labels: tuple[str, ...], tallies: Iterable[tuple[tuple[str, ...], CallTally]]
) -> HistogramMetricFamily:
    """A histogram, with equal label sets added up and the buckets made cumulative."""
    merged: dict[tuple[str, ...], list[CallTally]] = {}
    for values, tally in tallies:
        merged.setdefault(values, []).append(tally)
    family = HistogramMetricFamily(name, text, labels=labels)
    bounds = [*map(str, _BUCKETS), "+Inf"]
    for values, group in merged.items():
        running, buckets = 0, []
        for number, bound in enumerate(bounds):
            running += sum(tally.bucket_counts[number] for tally in group)
            buckets.append((bound, running))
        family.add_metric(values, buckets, sum(tally.seconds for tally in group))
    return family


class AgentCollector(Collector):
    """Gauges about agents, computed at each scrape."""

    def __init__(
        self,
        agents: Callable[[], Iterable[Manifest]],
        tools: Callable[[], Iterable[Manifest]],
        health: Callable[[str], Health],
    ) -> None:
        self._agents = agents
        self._tools = tools
        self._health = health
        self._started = time.monotonic()

    def collect(self) -> Iterable[Metric]:
        status = GaugeMetricFamily("fabric_agent_status", "1 online, 0.5 degraded, 0 offline, -1", labels=["agent_id"])
        last_seen = GaugeMetricFamily("fabric_agent_last_seen_timestamp", "Last sign of life", labels=["agent_id"])
        by_status = dict.fromkeys(_STATUS_VALUE, 0)
        for manifest in self._agents():
            health = self._health(manifest.agent_id)
            by_status[health.status] += 1
            status.add_metric([manifest.agent_id], _STATUS_VALUE[health.status])
            if health.seen_at is not None:
                last_seen.add_metric([manifest.agent_id], health.seen_at)
        agents = GaugeMetricFamily("fabric_registry_agents", "Agents in the catalog", labels=["status"])
        for status_name, count in by_status.items():
            agents.add_metric([status_name], count)
        yield from (status, last_seen, agents, self._tool_counts())
        yield GaugeMetricFamily("fabric_uptime_seconds", "Time since the start", value=time.monotonic() - self._started)

    def _tool_counts(self) -> GaugeMetricFamily:
        tools = GaugeMetricFamily("fabric_registry_tools", "Built-in tools", labels=["category"])
        counts: dict[str, int] = {}
        for manifest in self._tools():
            counts[manifest.category or ""] = counts.get(manifest.category or "", 0) + 1
        for category, count in counts.items():
            tools.add_metric([category], count)
        return tools
