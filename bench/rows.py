"""The rows of a table of calls, measured in alternating rounds, so that noise affects all of them alike."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bench import load, processes

CONNECTIONS = (1, 16, 64)


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


@dataclass
class Row:
    """One server or client that is measured, and its figures; `pid` is the process whose CPU time counts."""

    name: str
    port: int
    pid: int
    open_connection: load.OpenConnection
    era: str = ""  # of the protocol, where it has more than one
    is_foreign: bool = False  # a foreign program: its failures are printed, and do not end the run
    failures: int = 0
    rounds: dict[int, list[load.Load]] = field(default_factory=dict)

    async def measure(self, connections: int, seconds: float) -> load.Load:
        def cpu() -> float:
            return processes.cpu_seconds(self.pid)

        result = await load.run(self.port, self.open_connection, connections, lambda _, past: past >= seconds, cpu)
        if result.failures and not self.is_foreign:
            raise SystemExit(f"{self.name}: {result.failures} of {result.calls} calls failed")
        self.failures += result.failures
        return result

    def median(self, connections: int) -> Figures:
        rounds = self.rounds[connections]
        return Figures(
            statistics.median(result.rate for result in rounds),
            statistics.median(result.percentile(0.5) for result in rounds) * 1000,
            statistics.median(result.percentile(0.99) for result in rounds) * 1000,
            statistics.median(result.cpu / max(result.calls, 1) for result in rounds) * 1e6,
        )


async def why_not_ready(row: Row, within: float = 60.0) -> str | None:
    """The reason why a server does not answer as expected; None if it does."""
    ends_at = time.monotonic() + within
    while True:
        try:
            result = await load.run(row.port, row.open_connection, 1, lambda calls, _: calls >= 1)
            if not result.failures:
                return None
            why = "wrong answers"
        except OSError as exc:
            why = str(exc)
        if time.monotonic() > ends_at:
            return why
        await asyncio.sleep(0.05)


async def alternate(rows: Sequence[Row], effort: Effort) -> None:
    for number in range(effort.rounds + 1):
        for connections in CONNECTIONS:
            for row in rows if number % 2 else reversed(rows):  # neither of two neighbours is always the first
                result = await row.measure(connections, effort.seconds if number else effort.warm_up)
                if number:  # the first round only warms up
                    row.rounds.setdefault(connections, []).append(result)


def cells(row: Row, connections: int, bare: Row) -> str:
    """The common columns of all tables of calls, from the name to the share of the bare forwarder."""
    figures = row.median(connections)
    share = figures.rate / bare.median(connections).rate
    return (
        f"| {row.name} | {connections} | {figures.rate:,.0f} | {figures.p50_ms:.2f} | {figures.p99_ms:.2f} "
        f"| {figures.cpu_us:.0f} | {share:.0%} |"
    )
