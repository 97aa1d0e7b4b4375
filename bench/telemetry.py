"""What each part of a node's own telemetry costs a call: log lines, metrics, the call history, spans for a collector.

Each part is measured alone, beside a node without any of them; the last row has all of them. "Spans off" is a node that
has an address for spans and sends none (`protocol: off`): it must cost nothing.
The history keeps at most its `calls_per_second`, and the export of spans takes at most its `cpu_share`. A node at full
load is beyond both, so the last line says how much was kept."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from contextlib import ExitStack
from typing import NamedTuple

from bench import calls, processes
from bench.processes import TOKEN
from bench.rows import Effort, Row, alternate, print_table, require_ready

_NO_METRICS = "metrics: false\n"
_NO_HISTORY = "history: {enabled: false}\n"
_OFF = _NO_METRICS + _NO_HISTORY
_NO_LINES = "{level: error}"
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
        print(f"\n{rows[-1].name}: {_read_counters(rows[-1].port)}")


def _list_setups(sink: int) -> list[_Setup]:
    def trace(ratio: int, protocol: str = "http") -> str:
        endpoint = f"http://127.0.0.1:{sink}/v1/traces"
        return f"tracing: {{protocol: '{protocol}', endpoint: '{endpoint}', ratio: {ratio}}}\n"

    return [
        _Setup("all off", _OFF, _NO_LINES),
        _Setup("spans off", _OFF + trace(1, "off"), _NO_LINES),
        _Setup("log lines alone", _OFF),
        _Setup("metrics alone", _NO_HISTORY, _NO_LINES),
        _Setup("spans alone, all sampled out", _OFF + trace(0), _NO_LINES),
        _Setup("spans alone, all recorded", _OFF + trace(1), _NO_LINES),
        _Setup("history alone", _NO_METRICS, _NO_LINES),
        _Setup("all on", trace(1)),
    ]


def _read_counters(port: int) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"authorization": f"Bearer {TOKEN}"})
    text = urllib.request.urlopen(request, timeout=10).read().decode()
    return ", ".join(f"{name} {float(value):,.0f}" for name, value in _COUNTERS.findall(text))
