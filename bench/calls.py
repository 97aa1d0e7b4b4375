"""`/mcp/call` to an HTTP agent: calls, streamed events and memory, beside the agent itself and a bare forwarder."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass

import msgspec

from bench import load, processes
from bench.agent import EVENTS
from bench.rows import CONNECTIONS, Effort, Row, alternate, cells

STREAMS = 24
ARGUMENTS = {"agent_id": "echo", "capability": "reason", "task": "What is six times seven?"}
CALL = msgspec.json.encode({"name": "fabric.call", "arguments": ARGUMENTS})
STREAMED = msgspec.json.encode({"name": "fabric.call", "arguments": {**ARGUMENTS, "stream": True}})


@dataclass(frozen=True)
class CallTarget:
    """A server that is called."""

    name: str
    port: int
    pid: int
    path: str = "/"
    token: str = ""

    def request(self, body: bytes, accept: str = "application/json") -> load.OpenConnection:
        return load.repeat_request(load.request(self.port, self.path, body, token=self.token, accept=accept))


def run(runner: asyncio.Runner, cores: processes.Cores, effort: Effort, *, many: int) -> None:
    with (
        processes.agent(cores.load) as upstream,
        processes.forwarder(upstream.port, cores.gateway) as bare,
        processes.node(manifests(upstream.port), cores.gateway) as ours,
    ):
        direct = CallTarget("agent directly", *upstream)
        forward = CallTarget("bare forwarder", *bare)
        fabric = CallTarget("fabric node", *ours, "/mcp/call", processes.TOKEN)
        runner.run(measure_calls([direct, forward, fabric], effort))
        runner.run(measure_streams([forward, fabric], effort.rounds))
        runner.run(measure_memory(fabric, many))


def manifests(upstream: int, count: int = 1) -> str:
    entry = (
        "- agent_id: {id}\n  runtime: http\n  endpoint: {{transport: http, uri: 'http://127.0.0.1:{port}/'}}\n"
        "  capabilities: [{{name: reason, streaming: true, modalities: [text]}}]\n  trust_tier: org\n  tags: [bench]\n"
    )
    return "".join(entry.format(id="echo" if n == 0 else f"echo-{n}", port=upstream) for n in range(count))


async def measure_calls(targets: list[CallTarget], effort: Effort) -> None:
    rows = [Row(target.name, target.port, target.pid, target.request(CALL)) for target in targets]
    await alternate(rows, effort)
    print("\n| calls | connections | calls/s | p50 ms | p99 ms | CPU µs/call | share of forwarder |")
    print("|---|---|---|---|---|---|---|")
    bare = next(row for row in rows if row.name == "bare forwarder")
    for connections in CONNECTIONS:
        for row in rows:
            print(cells(row, connections, bare))


async def measure_streams(targets: list[CallTarget], rounds: int) -> None:
    print(f"\n| events, {STREAMS} paced streams | CPU µs/event | events/s a core could carry | first event ms (p50) |")
    print("|---|---|---|---|")
    figures: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for target in targets:
            figures.setdefault(target.name, []).append(await _measure_stream(target))
    for name, values in figures.items():
        cpu, first = (statistics.median(column) for column in zip(*values, strict=True))
        print(f"| {name} | {cpu:.1f} | {1e6 / max(cpu, 0.1):,.0f} | {first:.2f} |")


async def _measure_stream(target: CallTarget) -> tuple[float, float]:
    """CPU per event, and milliseconds to the first event."""

    def cpu() -> float:
        return processes.cpu_seconds(target.pid)

    open_connection = target.request(STREAMED, "text/event-stream")
    result = await load.run(target.port, open_connection, STREAMS, lambda calls, _: calls >= STREAMS, cpu)
    if result.events < STREAMS * EVENTS:
        raise SystemExit(f"{target.name}: {result.events} events arrived, not {STREAMS * EVENTS}")
    return result.cpu / (STREAMS * EVENTS) * 1e6, statistics.median(result.first_event or [0]) * 1000


async def measure_memory(target: CallTarget, many: int) -> None:
    before = processes.memory_mb(target.pid)
    await load.run(target.port, target.request(CALL), 16, lambda calls, _: calls >= many)
    after = processes.memory_mb(target.pid)
    print(f"\nmemory of the node: {before:.0f} MB after warming up, {after:.0f} MB after {many:,} further calls")
