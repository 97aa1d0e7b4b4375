"""What each part of a node's own telemetry costs a call: log lines, metrics, the call history, spans for a collector.

Each part is measured beside a node without any of them, the last row has all of them. "Spans off" is a node that has an
address for spans and sends none (`protocol: off`): it must cost nothing.
The history keeps at most its `calls_per_second`, and the export of spans takes at most its `cpu_share`, so the load has
to last: what a short one leaves to do would count for others. Two nodes take turns of a quarter of a second for half a
minute, so that a machine that is slow for a while slows both. The node whose turn it is not is stopped (SIGSTOP), and
both limits are halved, since each node runs half of the time."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import statistics
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from a2a_fabric.telemetry.settings import HistorySettings, TracingSettings
from bench import calls, load, processes
from bench.processes import TOKEN
from bench.rows import Effort, Row, median_interval, require_ready

CONNECTIONS = 16
OFF, SPANS_OFF, ALL_ON = "all off", "spans off", "all on"
RATE_SHARE = "calls/s, share of all off"
_GOALS = {SPANS_OFF: "98%", ALL_ON: "85%"}
_NO_METRICS = "metrics: false\n"
_NO_HISTORY = "history: {enabled: false}\n"
_NOTHING = _NO_METRICS + _NO_HISTORY
_HISTORY = f"history: {{calls_per_second: {HistorySettings().calls_per_second // 2}}}\n"
_NO_LINES = "{level: error}"
_COUNTERS = re.compile(r'^(fabric_(?:history_\w+_total|spans_total\{outcome="\w+"\})) (\S+)$', re.MULTILINE)


class _Setup(NamedTuple):
    name: str
    settings: str
    log: str = "{file: fabric.log}"


@dataclass
class _Comparison:
    """A row, and its measurements beside those of the node without telemetry."""

    row: Row
    pairs: list[tuple[load.Load, load.Load]] = field(default_factory=list)  # without, with


def run(runner: asyncio.Runner, cores: processes.Cores, effort: Effort) -> None:
    with ExitStack() as stack:
        upstream = stack.enter_context(processes.agent(cores.load))
        sink = stack.enter_context(processes.module("bench.span_sink", core=cores.load))
        processes.wait_for(sink.port)
        rows = []
        for setup in _list_setups(sink.port):
            node = stack.enter_context(
                processes.node(calls.manifests(upstream.port), cores.gateway, settings=setup.settings, log=setup.log)
            )
            target = calls.CallTarget(setup.name, *node, "/mcp/call", TOKEN)
            rows.append(Row(setup.name, node.port, node.pid, target.plan_calls()))
        require_ready(runner, rows)
        off, *others = rows
        comparisons = [_Comparison(row) for row in others]
        with _stopped(rows):
            runner.run(_compare(off, comparisons, effort))
        _print_table(comparisons)
        print(f"\n{rows[-1].name}: {_read_counters(rows[-1].port)}")


def _list_setups(sink: int) -> list[_Setup]:
    def trace(ratio: int, protocol: str = "http") -> str:
        endpoint = f"http://127.0.0.1:{sink}/v1/traces"
        share = TracingSettings().cpu_share / 2
        return f"tracing: {{protocol: '{protocol}', endpoint: '{endpoint}', ratio: {ratio}, cpu_share: {share}}}\n"

    return [
        _Setup(OFF, _NOTHING, _NO_LINES),
        _Setup(SPANS_OFF, _NOTHING + trace(1, "off"), _NO_LINES),
        _Setup("log lines alone", _NOTHING),
        _Setup("metrics alone", _NO_HISTORY, _NO_LINES),
        _Setup("spans alone, all sampled out", _NOTHING + trace(0), _NO_LINES),
        _Setup("spans alone, all recorded", _NOTHING + trace(1), _NO_LINES),
        _Setup("history alone", _NO_METRICS + _HISTORY, _NO_LINES),
        _Setup(ALL_ON, _HISTORY + trace(1)),
    ]


@contextmanager
def _stopped(rows: Sequence[Row]) -> Iterator[None]:
    """The nodes do nothing until they are measured; afterwards all of them go on."""
    for row in rows:
        os.kill(row.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for row in rows:
            os.kill(row.pid, signal.SIGCONT)


async def _compare(off: Row, comparisons: Sequence[_Comparison], effort: Effort) -> None:
    for each in comparisons:
        for row in (off, each.row):
            await _measure(row, effort.warm_up)
        for number in range(effort.rounds):
            first, second = (off, each.row) if number % 2 else (each.row, off)
            measured = {row.name: await _measure(row, effort.seconds) for row in (first, second)}
            each.pairs.append((measured[off.name], measured[each.row.name]))


async def _measure(row: Row, seconds: float) -> load.Load:
    os.kill(row.pid, signal.SIGCONT)
    try:
        return await row.measure(CONNECTIONS, seconds)
    finally:
        os.kill(row.pid, signal.SIGSTOP)


def _print_table(comparisons: Sequence[_Comparison]) -> None:
    columns = [f"telemetry, {CONNECTIONS} connections", "calls/s", "CPU µs/call", RATE_SHARE, "95 %",
               "CPU/call beside all off", "95 %", "goal"]  # fmt: skip
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    without = [pair[0] for each in comparisons for pair in each.pairs]
    print(_line(OFF, without, "–", "–", "–", "–", "–"))
    for each in comparisons:
        shares = _compute_ratios(each, lambda run: run.rate)
        costs = _compute_ratios(each, lambda run: run.cpu / run.calls)
        goal = _GOALS.get(each.row.name)
        print(_line(each.row.name, [pair[1] for pair in each.pairs], *_render(shares), *_render(costs),
                    f"at least {goal}" if goal else "–"))  # fmt: skip


def _compute_ratios(each: _Comparison, figure: Callable[[load.Load], float]) -> list[float]:
    return [figure(measured) / figure(without) for without, measured in each.pairs]


def _render(ratios: Sequence[float]) -> tuple[str, str]:
    low, high = median_interval(ratios)
    return f"{statistics.median(ratios):.1%}", f"{low:.1%} to {high:.1%}"


def _line(name: str, runs: Sequence[load.Load], *more: str) -> str:
    rate = statistics.median(run.rate for run in runs)
    cpu = statistics.median(run.cpu / run.calls for run in runs) * 1e6
    return f"| {' | '.join([name, f'{rate:,.0f}', f'{cpu:.1f}', *more])} |"


def _read_counters(port: int) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"authorization": f"Bearer {TOKEN}"})
    text = urllib.request.urlopen(request, timeout=10).read().decode()
    return ", ".join(f"{name} {float(value):,.0f}" for name, value in _COUNTERS.findall(text))
