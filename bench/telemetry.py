"""What a node's own telemetry costs a call: log lines, metrics, the call history, and spans for a collector.

The history keeps at most its `calls_per_second`, and the export of spans takes at most its `cpu_share`. A node at full
load is beyond both, so the last lines say how much was kept."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from contextlib import ExitStack
from typing import NamedTuple

from bench import calls, processes
from bench.processes import TOKEN
from bench.rows import Effort, Row, alternate, print_table, require_ready

_OFF = "metrics: false\nhistory: {enabled: false}\n"
_NO_HISTORY = "history: {enabled: false}\n"
_SHARE = "share of all off"
_COUNTERS = re.compile(r'^(fabric_(?:history_\w+_total|spans_total\{outcome="\w+"\})) (\S+)$', re.MULTILINE)


class _Setup(NamedTuple):
    name: str
    settings: str
    log: str = "{file: fabric.log}"


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
        runner.run(alternate(rows, effort))
        print_table("telemetry", rows, lambda _: rows[0], _SHARE)
        for row in rows[-3:]:
            print(f"\n{row.name}: {_read_counters(row.port)}")


def _list_setups(sink: int) -> list[_Setup]:
    def trace(ratio: int) -> str:
        return f"tracing: {{protocol: http, endpoint: 'http://127.0.0.1:{sink}/v1/traces', ratio: {ratio}}}\n"

    return [
        _Setup("all off", _OFF, "{level: error}"),
        _Setup("log lines", _OFF),
        _Setup("and metrics; spans off", _NO_HISTORY),
        _Setup("and spans, all sampled out", _NO_HISTORY + trace(0)),
        _Setup("and spans, all recorded", _NO_HISTORY + trace(1)),
        _Setup("history instead of spans", ""),
        _Setup("all on", trace(1)),
    ]


def _read_counters(port: int) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"authorization": f"Bearer {TOKEN}"})
    text = urllib.request.urlopen(request, timeout=10).read().decode()
    return ", ".join(f"{name} {float(value):,.0f}" for name, value in _COUNTERS.findall(text))
