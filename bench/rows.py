"""The rows of a table of calls, measured in alternating rounds, so that noise affects all of them alike."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bench import load, rig

CONNECTIONS = (1, 16, 64)
SHARE = "share of forwarder"
LOAD_CORE = "load core busy (generator)"


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    rounds: int
    seconds: float  # per row, number of connections and round
    warm_up: float = 0.5


class Figures(NamedTuple):
    """Medians over the rounds."""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    load_busy: float | None  # share of the time in which the core of load and agent was busy
    generator_busy: float  # share of the time that the load generator used


@dataclass
class Row:
    """One server or client that is measured, and its figures; `pid` is the process whose CPU time counts."""

    name: str
    port: int
    pid: int
    plan: load.RequestPlan
    era: str = ""  # of the protocol, where it has more than one
    is_foreign: bool = False  # a foreign program: its failures are printed, and do not end the run
    failures: int = 0
    rounds: dict[int, list[load.Load]] = field(default_factory=dict)

    async def measure(self, connections: int, seconds: float) -> load.Load:
        result = await rig.run(self.port, self.plan, connections, load.Limit(seconds), self.pid)
        if result.failures and not self.is_foreign:
            raise SystemExit(f"{self.name}: {result.failures} of {result.calls} calls failed: {result.why}")
        self.failures += result.failures
        return result

    def median(self, connections: int) -> Figures:
        rounds = self.rounds[connections]
        return Figures(
            statistics.median(result.rate for result in rounds),
            statistics.median(result.percentile(0.5) for result in rounds) * 1000,
            statistics.median(result.percentile(0.99) for result in rounds) * 1000,
            statistics.median(result.cpu / max(result.calls, 1) for result in rounds) * 1e6,
            _median_or_none([result.core_busy for result in rounds]),
            statistics.median(result.load_cpu / result.seconds for result in rounds),
        )


def _median_or_none(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the true median lies with a confidence of 95 %, by the order of the values alone."""
    ordered, half = sorted(values), 0.98 * math.sqrt(len(values))
    middle = (len(values) - 1) / 2
    return ordered[max(0, math.floor(middle - half))], ordered[min(len(values) - 1, math.ceil(middle + half))]


async def why_not_ready(row: Row, within: float = 60.0) -> str | None:
    """The reason why a server does not answer as expected; None if it does."""
    ends_at = time.monotonic() + within
    while True:
        try:
            result = await rig.run(row.port, row.plan, 1, load.Limit(calls=1))
            if not result.failures:
                return None
            why = result.why
        except OSError as exc:
            why = str(exc)
        if time.monotonic() > ends_at:
            return why
        await asyncio.sleep(0.05)


def require_ready(runner: asyncio.Runner, rows: Sequence[Row]) -> None:
    for row in rows:
        if why := runner.run(why_not_ready(row)):
            raise SystemExit(f"{row.name} does not answer: {why}")


async def alternate(rows: Sequence[Row], effort: Effort) -> None:
    for number in range(effort.rounds + 1):
        for connections in CONNECTIONS:
            for row in rows if number % 2 else reversed(rows):  # neither of two neighbours is always the first
                result = await row.measure(connections, effort.seconds if number else effort.warm_up)
                if number:  # the first round only warms up
                    row.rounds.setdefault(connections, []).append(result)


def print_table(what: str, rows: Sequence[Row], find_bare: Callable[[Row], Row], share: str = SHARE) -> None:
    """All rows at each number of connections; `find_bare` returns the row that a row's share refers to."""
    columns = [what, "connections", "calls/s", "p50 ms", "p99 ms", "CPU µs/call", share, LOAD_CORE]
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for connections in CONNECTIONS:
        for row in rows:
            print(_line(row, connections, find_bare(row)))


def _line(row: Row, connections: int, bare: Row) -> str:
    figures = row.median(connections)
    cells = [
        row.name,
        f"{connections}",
        f"{figures.rate:,.0f}",
        f"{figures.p50_ms:.2f}",
        f"{figures.p99_ms:.2f}",
        f"{figures.cpu_us:,.0f}",
        f"{figures.rate / bare.median(connections).rate:.0%}",
        f"{'–' if figures.load_busy is None else f'{figures.load_busy:.0%}'} ({figures.generator_busy:.0%})",
    ]
    return f"| {' | '.join(cells)} |"
