"""`make bench`: everything side by side in one run, in alternating rounds; the ratios are what counts."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import platform
import statistics
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec
import uvloop

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.routing import RoutingPolicy, Wish, plan_route
from a2a_fabric.registry.catalog import Catalog
from a2a_fabric.registry.health import HealthBook, HealthPolicy
from bench import load, processes
from bench.agent import EVENTS

CONNECTIONS = (1, 16, 64)
STREAMS = 24
ARGUMENTS = {"agent_id": "echo", "capability": "reason", "task": "What is six times seven?"}
CALL = msgspec.json.encode({"name": "fabric.call", "arguments": ARGUMENTS})
STREAMED = msgspec.json.encode({"name": "fabric.call", "arguments": {**ARGUMENTS, "stream": True}})


@dataclass
class Target:
    name: str
    port: int
    pid: int
    path: str = "/"
    token: str = ""
    rounds: dict[int, list[tuple[load.Load, float]]] = field(default_factory=dict)

    def request(self, body: bytes, accept: str = "application/json") -> bytes:
        return load.request(self.port, self.path, body, token=self.token, accept=accept)

    async def measure(self, body: bytes, connections: int, seconds: float) -> tuple[load.Load, float]:
        before, ends_at = processes.cpu_seconds(self.pid), time.monotonic() + seconds
        done = await load.run(self.port, self.request(body), connections, lambda _: time.monotonic() >= ends_at)
        if done.failures:
            raise SystemExit(f"{self.name}: {done.failures} of {done.calls} calls failed")
        return done, (processes.cpu_seconds(self.pid) - before) / done.calls * 1e6

    def median(self, connections: int) -> tuple[float, float, float, float]:
        rounds = self.rounds[connections]
        return (
            statistics.median(done.rate for done, _ in rounds),
            statistics.median(done.percentile(0.5) for done, _ in rounds) * 1000,
            statistics.median(done.percentile(0.99) for done, _ in rounds) * 1000,
            statistics.median(cpu for _, cpu in rounds),
        )


def manifest_text(upstream: int, count: int = 1) -> str:
    entry = (
        "- agent_id: {id}\n  endpoint: {{transport: http, uri: 'http://127.0.0.1:{port}/'}}\n"
        "  capabilities: [{{name: reason, streaming: true, modalities: [text]}}]\n  trust_tier: org\n  tags: [bench]\n"
    )
    return "".join(entry.format(id="echo" if n == 0 else f"echo-{n}", port=upstream) for n in range(count))


async def calls(targets: list[Target], rounds: int, seconds: float) -> None:
    for number in range(rounds + 1):
        for connections in CONNECTIONS:
            for target in targets:
                measured = await target.measure(CALL, connections, seconds if number else 0.5)
                if number:  # the first round only warms up
                    target.rounds.setdefault(connections, []).append(measured)


def print_calls(targets: list[Target]) -> None:
    print("\n| calls | connections | calls/s | p50 ms | p99 ms | CPU µs/call | share of forwarder |")
    print("|---|---|---|---|---|---|---|")
    bare = next(t for t in targets if t.name == "bare forwarder")
    for connections in CONNECTIONS:
        for target in targets:
            rate, p50, p99, cpu = target.median(connections)
            share = rate / bare.median(connections)[0]
            print(f"| {target.name} | {connections} | {rate:,.0f} | {p50:.2f} | {p99:.2f} | {cpu:.0f} | {share:.0%} |")


async def streams(targets: list[Target], rounds: int) -> None:
    print(f"\n| events, {STREAMS} paced streams | CPU µs/event | events/s a core could carry | first event ms (p50) |")
    print("|---|---|---|---|")
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for target in targets:
            before = processes.cpu_seconds(target.pid)
            message = target.request(STREAMED, "text/event-stream")
            done = await load.run(target.port, message, STREAMS, lambda calls: calls >= STREAMS)
            cpu = (processes.cpu_seconds(target.pid) - before) / (STREAMS * EVENTS) * 1e6
            if done.events < STREAMS * EVENTS:
                raise SystemExit(f"{target.name}: {done.events} events arrived, not {STREAMS * EVENTS}")
            found.setdefault(target.name, []).append((cpu, statistics.median(done.first_event or [0]) * 1000))
    for name, values in found.items():
        cpu, first = (statistics.median(column) for column in zip(*values, strict=True))
        print(f"| {name} | {cpu:.1f} | {1e6 / max(cpu, 0.1):,.0f} | {first:.2f} |")


def starts(upstream: int) -> None:
    print("\n| start to first answer | seconds | idle memory MB |")
    print("|---|---|---|")
    for count in (10, 10_000):
        times, memory = [], []
        for _ in range(3):
            started = time.perf_counter()
            with processes.node(manifest_text(upstream, count), wait=False) as (port, pid):
                processes.wait_for(port)
                answered = asyncio.run(load.run(port, _first_call(port), 1, lambda calls: calls >= 1))
                times.append(time.perf_counter() - started)
                memory.append(processes.memory_mb(pid))
                if answered.failures:
                    raise SystemExit("the first call failed")
        print(f"| {count:,} agents | {statistics.median(times):.2f} | {statistics.median(memory):.0f} |")


def _first_call(port: int) -> bytes:
    return load.request(port, "/mcp/call", CALL, token=processes.TOKEN)


async def memory(target: Target, many: int) -> None:
    before = processes.memory_mb(target.pid)
    await load.run(target.port, target.request(CALL), 16, lambda calls: calls >= many)
    after = processes.memory_mb(target.pid)
    print(f"\nmemory of the node: {before:.0f} MB after warming up, {after:.0f} MB after {many:,} further calls")


def planning() -> None:
    print("\n| agents | lookup + plan, uncached µs |")
    print("|---|---|")
    wish = Wish(agent_id="agent-5", capability="echo", principal=Principal(trust="local"))
    health = HealthBook(HealthPolicy())
    for count in (10, 1_000, 100_000):
        offers = (Capability(name="echo"),)
        catalog = Catalog(Manifest(agent_id=f"agent-{n}", endpoint={}, capabilities=offers) for n in range(count))
        gc.collect()
        times = []
        for _ in range(2000):
            started = time.perf_counter()
            plan_route(wish, catalog, health, RoutingPolicy())
            times.append(time.perf_counter() - started)
        print(f"| {count:,} | {statistics.median(times) * 1e6:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short rounds, for a first look")
    options = parser.parse_args()
    rounds, seconds, many = (2, 1.0, 20_000) if options.quick else (5, 3.0, 100_000)
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {platform.machine()}, {os.cpu_count()} cores, Python "
          f"{platform.python_version()}; gateway on one core, load and agent on the other")  # fmt: skip
    cores = (0, 1) if (os.cpu_count() or 1) > 1 else (None, None)
    if cores[1] is not None:
        os.sched_setaffinity(0, {cores[1]})
    with (
        processes.agent(cores[1]) as upstream,
        processes.forwarder(upstream, cores[0]) as bare,
        processes.node(manifest_text(upstream), cores[0]) as ours,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        direct = Target("agent directly", upstream, os.getpid())
        forward = Target("bare forwarder", *bare)
        fabric = Target("fabric node", *ours, "/mcp/call", processes.TOKEN)
        runner.run(calls([direct, forward, fabric], rounds, seconds))
        print_calls([direct, forward, fabric])
        runner.run(streams([forward, fabric], rounds))
        runner.run(memory(fabric, many))
        starts(upstream)
    planning()


if __name__ == "__main__":
    main()
