"""`/mcp/call` to an HTTP agent: calls and streamed events, beside the agent itself and a bare forwarder."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bench import load, processes, rig
from bench.agent import EVENTS
from bench.rows import Effort, Row, alternate, print_table

DIRECT, BARE, NODE = "agent directly", "bare forwarder", "fabric node"
STREAMS = 24
EVENT = b'"event":"token"'
MANY_AGENTS = 10_000
CALLED_AGENTS = 64  # of the many, evenly spaced
ARGUMENTS = {"agent_id": "echo", "capability": "reason", "task": "What is six times seven?"}


def encode_call(**more: Any) -> bytes:
    return msgspec.json.encode({"name": "fabric.call", "arguments": {**ARGUMENTS, **more}})


CALL = encode_call()


@dataclass(frozen=True)
class CallTarget:
    """A server that is called; the agents take turns."""

    name: str
    port: int
    pid: int
    path: str = "/"
    token: str = ""
    agents: Sequence[str] = ("echo",)

    def plan_calls(self) -> load.RequestPlan:
        bodies = [encode_call(agent_id=agent) for agent in self.agents]
        return load.RequestPlan(
            [load.request(self.port, self.path, body, token=self.token) for body in bodies], b"forty-two"
        )

    def plan_streams(self) -> load.RequestPlan:
        body = encode_call(stream=True)
        message = load.request(self.port, self.path, body, token=self.token, accept="text/event-stream")
        return load.RequestPlan([message], b'"answer":"done"', event=EVENT)


def run(runner: asyncio.Runner, cores: processes.Cores, effort: Effort) -> None:
    with (
        processes.agent(cores.load) as upstream,
        processes.forwarder(upstream.port, cores.gateway) as bare,
        processes.node(manifests(upstream.port), cores.gateway) as ours,
        processes.node(manifests(upstream.port, MANY_AGENTS), cores.gateway) as many,
    ):
        forward = CallTarget(BARE, *bare)
        fabric = CallTarget(NODE, *ours, "/mcp/call", processes.TOKEN)
        large = CallTarget(f"{NODE}, {MANY_AGENTS:,} agents", *many, "/mcp/call", processes.TOKEN, called_agents())
        runner.run(measure_calls([CallTarget(DIRECT, *upstream), forward, fabric, large], effort))
        runner.run(measure_streams([forward, fabric], min(effort.rounds, 5)))


def called_agents() -> list[str]:
    return [f"echo-{number}" for number in range(1, MANY_AGENTS, MANY_AGENTS // CALLED_AGENTS)]


def manifests(upstream: int, count: int = 1) -> str:
    entry = (
        "- agent_id: {id}\n  runtime: http\n  endpoint: {{transport: http, uri: 'http://127.0.0.1:{port}/'}}\n"
        "  capabilities: [{{name: reason, streaming: true, modalities: [text]}}]\n  trust_tier: org\n  tags: [bench]\n"
    )
    return "".join(entry.format(id="echo" if n == 0 else f"echo-{n}", port=upstream) for n in range(count))


async def measure_calls(targets: list[CallTarget], effort: Effort) -> None:
    rows = [Row(target.name, target.port, target.pid, target.plan_calls()) for target in targets]
    await alternate(rows, effort)
    bare = next(row for row in rows if row.name == BARE)
    print_table("calls", rows, lambda _: bare)


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
    result = await rig.run(target.port, target.plan_streams(), STREAMS, load.Limit(calls=STREAMS), target.pid)
    if result.failures or result.events != STREAMS * EVENTS:
        raise SystemExit(f"{target.name}: {result.events} events arrived, not {STREAMS * EVENTS}: {result.why}")
    return result.cpu / result.events * 1e6, statistics.median(result.first_event) * 1000
