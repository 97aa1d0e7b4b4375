"""How long a node takes from its start to its first answer, and what it weighs then."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

from bench import load, processes, rig
from bench.calls import CALL, manifests

COUNTS = (10, 10_000)
TIMES = 3


def run(runner: asyncio.Runner, cores: processes.Cores, sources: Mapping[str, Path | None] = {"": None}) -> None:
    """`sources` are folders with versions of the code, by name: their starts alternate."""
    print("\n| start to first answer | seconds | idle memory MB |")
    print("|---|---|---|")
    with processes.agent(cores.load) as upstream:
        for count in COUNTS:
            figures: dict[str, list[tuple[float, float]]] = {}
            for _ in range(TIMES):
                for name, source in sources.items():
                    figures.setdefault(name, []).append(_start(runner, upstream.port, count, cores.gateway, source))
            for name, values in figures.items():
                seconds, memory = (statistics.median(column) for column in zip(*values, strict=True))
                print(f"| {count:,} agents{name and f', {name}'} | {seconds:.2f} | {memory:.0f} |")


def _start(
    runner: asyncio.Runner, upstream: int, count: int, core: int | None, source: Path | None
) -> tuple[float, float]:
    started = time.perf_counter()
    with processes.node(manifests(upstream, count), core, wait=False, source=source) as (port, pid):
        processes.wait_for(port)
        first = load.repeat_request(load.request(port, "/mcp/call", CALL, token=processes.TOKEN))
        answered = runner.run(rig.run(port, first, 1, load.Limit(calls=1)))
        if answered.failures:
            raise SystemExit("the first call failed")
        return time.perf_counter() - started, processes.memory_mb(pid)
