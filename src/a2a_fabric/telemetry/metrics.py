"""Prometheus metrics, under names that existing dashboards use.

A call updates plain integers only; they become text when Prometheus scrapes. (`prometheus_client`'s own counters take
a lock for each increment, and its exposition renders everything in one go.) The text is rendered a few rows at a time,
and calls go on in between, so a scrape of 10,000 agents delays no call.

Label values come from the catalog, never from a caller, and the rows of a table are bounded all the same: agents
register under names of their own choice. Beyond `MAX_ROWS`, new rows are counted together under the label `other`."""

from __future__ import annotations

import asyncio
import itertools
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, ClassVar

from a2a_fabric.core.agent import Health, Manifest
from a2a_fabric.core.tasks import SLICE, iterate_in_slices

_STATUS_VALUE = {"online": 1.0, "offline": 0.0, "degraded": 0.5, "unknown": -1.0}
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

MAX_ROWS = 50_000  # of one table
_MAX_CODES = 200  # error codes; those of other nodes are not ours to bound
_UNKNOWN = "unknown"
OTHER = "other"

Labels = tuple[str, ...]
RenderMetrics = Callable[[], Iterator[str]]  # yields after each few rows
CallKey = tuple[str, str, str, str]  # kind, target, capability, error code or ""


class CallTally:
    """Calls that ended alike: how many, how long in all, how they spread."""

    __slots__ = ("bucket_counts", "count", "seconds")
    bounds: ClassVar[tuple[float, ...]] = _BUCKETS

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.bucket_counts = [0] * (len(self.bounds) + 1)

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds
        self.bucket_counts[bisect_left(self.bounds, seconds)] += 1


_Tallies = list[tuple[CallKey, CallTally]]


class Metrics:
    def __init__(self, version: str, max_rows: int = MAX_ROWS) -> None:
        self._max_rows = max_rows
        self._sources: list[RenderMetrics] = [self._render]
        self._refreshes: list[Callable[[], Awaitable[None]]] = []
        self._codes: set[str] = set()
        self._render_lock = asyncio.Lock()
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

    def add_source(self, render: RenderMetrics) -> None:
        """`render` is called at every scrape."""
        self._sources.append(render)

    def add_refresh(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """`refresh` is awaited before every scrape, for values that have to be asked for. It must end soon."""
        self._refreshes.append(refresh)

    def get_tally(self, manifest: Manifest | None, capability: str, error_code: str | None) -> CallTally:
        """`manifest` is None for an unknown agent: then nothing that the caller wrote becomes a label."""
        declared = manifest.find_capability(capability) if manifest is not None else None
        code = self._bound_code(error_code) if error_code else ""
        if manifest is None:
            key = ("agent", _UNKNOWN, _UNKNOWN, code)
        else:
            kind = "tool" if manifest.category is not None else "agent"
            key = (kind, manifest.agent_id, declared.name if declared is not None else _UNKNOWN, code)
        tally = self._calls.get(key)
        if tally is None:
            if len(self._calls) >= self._max_rows:
                key = (key[0], OTHER, OTHER, code)
            tally = self._calls.setdefault(key, CallTally())
        return tally

    def _bound_code(self, code: str) -> str:
        if code not in self._codes:
            if len(self._codes) >= _MAX_CODES:
                return OTHER
            self._codes.add(code)
        return code

    def _count(self, table: dict[Any, int], *key: str) -> None:
        """The last label of a key is of a closed set; the others are names."""
        if key not in table and len(table) >= self._max_rows:
            key = (*(OTHER for _ in key[:-1]), key[-1])
        table[key] = table.get(key, 0) + 1

    async def sum_by_target(self) -> dict[str, tuple[int, int, float]]:
        """Calls, failed calls and seconds in all, for each agent and tool that was called."""
        sums: dict[str, tuple[int, int, float]] = {}
        async for rows in iterate_in_slices(list(self._calls.items())):
            for (_, target, _, error_code), tally in rows:
                calls, errors, seconds = sums.get(target, (0, 0, 0.0))
                failed = tally.count if error_code else 0
                sums[target] = calls + tally.count, errors + failed, seconds + tally.seconds
        return sums

    @property
    def row_count(self) -> int:
        return len(self._calls) + len(self._retries) + len(self._fallbacks) + len(self._status_changes)

    async def keep_only(self, is_known: Callable[[str], bool]) -> None:
        """Forget the agents that are not known. Tallies of these that are still held count for nothing."""
        rows: list[tuple[dict[Any, Any], Callable[[Any], bool]]] = [
            (self._calls, lambda key: key[1] in (_UNKNOWN, OTHER) or is_known(key[1])),
            (self._retries, lambda key: key[0] == OTHER or is_known(key[0])),
            (self._fallbacks, lambda key: key[0] == OTHER or (is_known(key[0]) and is_known(key[1]))),
            (self._status_changes, lambda key: key[0] == OTHER or is_known(key[0])),
        ]
        for table, is_kept in rows:
            async for keys in iterate_in_slices(list(table)):
                for key in itertools.filterfalse(is_kept, keys):
                    table.pop(key, None)

    def count_auth_attempt(self, mode: str, status: str) -> None:
        self._auth[mode, status] = self._auth.get((mode, status), 0) + 1

    def count_retry(self, agent_id: str, is_made: bool) -> None:
        """An attempt beyond the first of a call to this agent; not made if its budget is used up."""
        self._count(self._retries, agent_id, "made" if is_made else "refused")

    def count_fallback(self, requested: str, used: str, reason: str) -> None:
        """Another agent answered instead of the requested one."""
        self._count(self._fallbacks, requested, used, reason)

    def count_status_change(self, agent_id: str, status: str) -> None:
        """An agent of the catalog has this status now, and had another."""
        self._count(self._status_changes, agent_id, status)

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

    async def render_exposition(self) -> bytes:
        """All metrics as text, rendered in small parts; other tasks run after each of them."""
        parts: list[bytes] = []
        async with self._render_lock:  # one scrape at a time
            for refresh in self._refreshes:
                await refresh()
            for part in itertools.chain.from_iterable(render() for render in self._sources):
                parts.append(part.encode())
                await asyncio.sleep(0)
        return b"".join(parts)

    def _render(self) -> Iterator[str]:
        tallies = list(self._calls.items())
        tools = yield from _select(tallies, lambda key: key[0] == "tool")
        failed = yield from _select(tallies, lambda key: bool(key[3]))
        yield from render_family("fabric_server_info", "gauge", "This node", ("version",), [((self._version,), 1)])
        yield render_value("fabric_active_streams", "gauge", "Open event streams", self._streams)
        names = ("target_type", "target_id", "capability")
        ended = (((*key[:3], _status_label(key)), tally.count) for key, tally in tallies)
        yield from render_counter("fabric_calls", "Calls", (*names, "status"), ended)
        yield from render_counter("fabric_errors", "Failed calls", ("error_code", "target_type"),
                                   (((key[3], key[0]), tally.count) for key, tally in failed))  # fmt: skip
        yield from render_counter("fabric_tool_calls", "Calls of built-in tools", ("tool_id", "status"),
                                   (((key[1], _status_label(key)), tally.count) for key, tally in tools))  # fmt: skip
        yield from render_counter("fabric_retries", "Attempts beyond the first", ("target_id", "status"),
                                   list(self._retries.items()))  # fmt: skip
        yield from render_counter("fabric_fallbacks", "Answers by another agent than the one asked for",
                                   ("target_id", "used_id", "reason"), list(self._fallbacks.items()))  # fmt: skip
        yield from render_counter("fabric_agent_status_changes", "Changes of an agent's status, by the new one",
                                   ("agent_id", "status"), list(self._status_changes.items()))  # fmt: skip
        yield render_value("fabric_agent_registrations_total", "counter", "Agents registered", self._registrations)
        yield render_value("fabric_messages_sent_total", "counter", "Messages written", self._messages_sent)
        yield render_value("fabric_messages_received_total", "counter", "Messages fetched", self._messages_received)
        yield from render_counter("fabric_auth_attempts", "Credentials looked at", ("auth_mode", "status"),
                                   list(self._auth.items()))  # fmt: skip
        calls = ((key[:3], tally) for key, tally in tallies)
        yield from render_histogram("fabric_call_duration_seconds", "Time of a call", names, calls)
        tool_tallies = ((key[1:2], tally) for key, tally in tools)
        yield from render_histogram("fabric_tool_duration_seconds", "Time of a tool call", ("tool_id",), tool_tallies)


def _select(tallies: _Tallies, is_wanted: Callable[[CallKey], bool]) -> Generator[str, None, _Tallies]:
    """Yields nothing to render, so that other tasks run meanwhile."""
    selected: _Tallies = []
    for start in range(0, len(tallies), SLICE):
        selected += [item for item in tallies[start : start + SLICE] if is_wanted(item[0])]
        yield ""
    return selected


def _status_label(key: CallKey) -> str:
    return "error" if key[3] else "success"


def render_head(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def render_value(name: str, kind: str, text: str, value: float) -> str:
    return f"{render_head(name, kind, text)}{name} {float(value)!r}\n"


def _render_labels(names: Sequence[str], values: Labels) -> str:
    return ",".join(f'{name}="{_escape(value)}"' for name, value in sorted(zip(names, values, strict=True)))


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def render_family(
    name: str, kind: str, text: str, labels: Sequence[str], rows: Sequence[tuple[Labels, float]]
) -> Iterator[str]:
    yield render_head(name, kind, text)
    for start in range(0, len(rows), SLICE):
        yield "".join(
            f"{name}{{{_render_labels(labels, values)}}} {float(value)!r}\n"
            for values, value in rows[start : start + SLICE]
        )


def render_counter(name: str, text: str, labels: Labels, counts: Iterable[tuple[Labels, int]]) -> Iterator[str]:
    """A counter, with equal label sets added up."""
    sums: dict[Labels, int] = {}
    for number, (values, count) in enumerate(counts, 1):
        sums[values] = sums.get(values, 0) + count
        if number % SLICE == 0:
            yield ""
    yield from render_family(f"{name}_total", "counter", text, labels, list(sums.items()))


def render_histogram(
    name: str, text: str, labels: Labels, tallies: Iterable[tuple[Labels, CallTally]]
) -> Iterator[str]:
    """A histogram, with equal label sets added up and the buckets made cumulative."""
    merged: dict[Labels, list[CallTally]] = {}
    for number, (values, tally) in enumerate(tallies, 1):
        merged.setdefault(values, []).append(tally)
        if number % SLICE == 0:
            yield ""
    yield render_head(name, "histogram", text)
    for values, group in merged.items():
        running, rendered, lines = 0, _render_labels(labels, values), []
        labelled = f"{{{rendered}}}" if rendered else ""
        before_bound = f"{rendered}," if rendered else ""
        for number, bound in enumerate((*map(str, group[0].bounds), "+Inf")):
            running += sum(tally.bucket_counts[number] for tally in group)
            lines.append(f'{name}_bucket{{{before_bound}le="{bound}"}} {float(running)!r}\n')
        seconds = sum(tally.seconds for tally in group)
        lines.append(f"{name}_count{labelled} {float(running)!r}\n{name}_sum{labelled} {float(seconds)!r}\n")
        yield "".join(lines)


class AgentGauges:
    """Gauges about agents, computed at each scrape."""

    def __init__(
        self,
        agents: Callable[[], Sequence[Manifest]],
        tools: Callable[[], Iterable[Manifest]],
        health: Callable[[str], Health],
    ) -> None:
        self._agents = agents
        self._tools = tools
        self._health = health
        self._started = time.monotonic()

    def render(self) -> Iterator[str]:
        by_status = dict.fromkeys(_STATUS_VALUE, 0)
        replicas: dict[Labels, int] = {}
        last_seen: list[str] = []
        yield render_head("fabric_agent_status", "gauge", "1 online, 0.5 degraded, 0 offline, -1")
        agents = self._agents()
        for start in range(0, len(agents), SLICE):
            lines: list[str] = []
            for manifest in agents[start : start + SLICE]:
                health, agent_id = self._health(manifest.agent_id), _escape(manifest.agent_id)
                by_status[health.status] += 1
                if manifest.pool is not None:
                    replicas[manifest.pool, health.status] = replicas.get((manifest.pool, health.status), 0) + 1
                lines.append(f'fabric_agent_status{{agent_id="{agent_id}"}} {_STATUS_VALUE[health.status]!r}\n')
                if health.seen_at is not None:
                    last_seen.append(
                        f'fabric_agent_last_seen_timestamp{{agent_id="{agent_id}"}} {float(health.seen_at)!r}\n'
                    )
            yield "".join(lines)
        yield render_head("fabric_agent_last_seen_timestamp", "gauge", "Last sign of life")
        yield "".join(last_seen)
        counts = [((status,), count) for status, count in by_status.items()]
        yield from render_family("fabric_registry_agents", "gauge", "Agents in the catalog", ("status",), counts)
        yield from render_family(
            "fabric_replicas", "gauge", "Replicas of a pool of agents", ("pool", "status"), list(replicas.items())
        )
        categories: dict[Labels, int] = {}
        for manifest in self._tools():
            categories[(manifest.category or "",)] = categories.get((manifest.category or "",), 0) + 1
        rows = list(categories.items())
        yield from render_family("fabric_registry_tools", "gauge", "Built-in tools", ("category",), rows)
        uptime = time.monotonic() - self._started
        yield render_value("fabric_uptime_seconds", "gauge", "Time since the start", uptime)
