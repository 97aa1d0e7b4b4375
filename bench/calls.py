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
class Place:
    """Where one of them takes calls."""

    name: str
    port: int
    pid: int
    path: str = "/"
    token: str = ""

    def request(self, body: bytes, accept: str = "application/json") -> load.Opening:
        return load.saying(load.request(self.port, self.path, body, token=self.token, accept=accept))


def run(runner: asyncio.Runner, cores: processes.Cores, effort: Effort, *, many: int) -> None:
    with (
        processes.agent(cores.load) as upstream,
        processes.forwarder(upstream.port, cores.gateway) as bare,
        processes.node(manifests(upstream.port), cores.gateway) as ours,
    ):
        direct = Place("agent directly", *upstream)
        forward = Place("bare forwarder", *bare)
        fabric = Place("fabric node", *ours, "/mcp/call", processes.TOKEN)
        runner.run(calls([direct, forward, fabric], effort))
        runner.run(streams([forward, fabric], effort.rounds))
        runner.run(memory(fabric, many))


def manifests(upstream: int, count: int = 1) -> str:
    entry = (
        "- agent_id: {id}\n  runtime: http\n  endpoint: {{transport: http, uri: 'http://127.0.0.1:{port}/'}}\n"
        "  capabilities: [{{name: reason, streaming: true, modalities: [text]}}]\n  trust_tier: org\n  tags: [bench]\n"
    )
    return "".join(entry.format(id="echo" if n == 0 else f"echo-{n}", port=upstream) for n in range(count))


async def calls(places: list[Place], effort: Effort) -> None:
    rows = [Row(place.name, place.port, place.pid, place.request(CALL)) for place in places]
    await alternate(rows, effort)
    print("\n| calls | connections | calls/s | p50 ms | p99 ms | CPU µs/call | share of forwarder |")
    print("|---|---|---|---|---|---|---|")
    bare = next(row for row in rows if row.name == "bare forwarder")
    for connections in CONNECTIONS:
        for row in rows:
            print(cells(row, connections, bare))


async def streams(places: list[Place], rounds: int) -> None:
    print(f"\n| events, {STREAMS} paced streams | CPU µs/event | events/s a core could carry | first event ms (p50) |")
    print("|---|---|---|---|")
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for place in places:
            found.setdefault(place.name, []).append(await _streamed(place))
    for name, values in found.items():
        cpu, first = (statistics.median(column) for column in zip(*values, strict=True))
        print(f"| {name} | {cpu:.1f} | {1e6 / max(cpu, 0.1):,.0f} | {first:.2f} |")


async def _streamed(place: Place) -> tuple[float, float]:
    """CPU per event, and milliseconds to the first event."""

    def cpu() -> float:
        return processes.cpu_seconds(place.pid)

    opening = place.request(STREAMED, "text/event-stream")
    done = await load.run(place.port, opening, STREAMS, lambda calls, _: calls >= STREAMS, cpu)
    if done.events < STREAMS * EVENTS:
        raise SystemExit(f"{place.name}: {done.events} events arrived, not {STREAMS * EVENTS}")
    return done.cpu / (STREAMS * EVENTS) * 1e6, statistics.median(done.first_event or [0]) * 1000


async def memory(place: Place, many: int) -> None:
    before = processes.memory_mb(place.pid)
    await load.run(place.port, place.request(CALL), 16, lambda calls, _: calls >= many)
    after = processes.memory_mb(place.pid)
    print(f"\nmemory of the node: {before:.0f} MB after warming up, {after:.0f} MB after {many:,} further calls")
