"""Each runtime beside its agent asked directly: what the gateway adds to a call, and how many events come through.

The gateway is the whole waist of a node in this process (steps, routing, breaker, deadline,
runtime), without a door; agents are in other processes. Calls go one after another, in rounds
that alternate with those of the direct client; time and CPU are this process's.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric.app import Fabric
from a2a_fabric.config import Config, LogSettings
from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call, Input, Principal, ResponseForm, Target, ignore_event
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.core.result import Event
from a2a_fabric.registry.health import HealthPolicy
from bench.rows import Effort
from bench.runtimes_direct import DIRECT, DirectCalls, port_of
from tests.matrix.agents.kind import ARGUMENTS

WORDS = 200  # events of one stream
CALLS_COUNTED = 20
SPARE = 2  # that may be made meanwhile: the end of a reply may still be on its way when the next call sets out
_START_SECONDS = 120.0
_WHO = Principal(mode="psk", principal_id="bench", trust="local")

Once = Callable[[], Awaitable[int]]  # how many events came


@dataclass
class Measurement:
    """One kind of call, and its figures."""

    once: Once
    latencies: list[float] = field(default_factory=list)
    cpu: float = 0.0
    events: int = 0

    async def run_for(self, seconds: float) -> None:
        ends_at, used = time.perf_counter() + seconds, time.process_time()
        while (began := time.perf_counter()) < ends_at:
            self.events += await self.once()
            self.latencies.append(time.perf_counter() - began)
        self.cpu += time.process_time() - used

    @property
    def p50(self) -> float:
        return statistics.median(self.latencies)

    @property
    def cpu_per_call(self) -> float:
        return self.cpu / len(self.latencies)

    @property
    def events_per_second(self) -> float:
        return self.events / sum(self.latencies)


@dataclass(frozen=True)
class Row:
    name: str
    plain: tuple[Measurement, Measurement]  # directly, and through the gateway
    streamed: tuple[Measurement, Measurement] | None
    reused: str


class _StaticSource:
    """An agent source with the manifests that the agents printed."""

    name = "agents of the bench"

    def __init__(self, manifests: Sequence[Manifest]) -> None:
        self._manifests = manifests

    async def load(self) -> Sequence[Manifest]:
        return self._manifests

    async def watch(self, changed: object) -> None:
        """The manifests never change."""


def run(runner: asyncio.Runner, effort: Effort) -> None:
    """Use all cores, because programs that use pipes are children of this process and inherit its cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        runner.run(_run(effort))
    finally:
        os.sched_setaffinity(0, before)


async def _run(effort: Effort) -> None:
    print("\n| runtime | direct p50 µs | gateway p50 µs | added | direct CPU µs | gateway CPU µs | added "
          f"| direct events/s | gateway events/s | connections made in {CALLS_COUNTED} calls, streams |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        go_on = Path(folder, "go_on")
        go_on.touch()
        async with _agents() as told:
            manifests = {name: entry for name, entry in told.items() if isinstance(entry, dict)}
            async with _node(manifests) as node:
                for name in manifests:
                    _show(await _measure_runtime(name, manifests[name], node, go_on, effort))
    for name in DIRECT:
        if name not in manifests:
            print(f"\n{name}: {told.get(name, 'not in this tree')}")


@asynccontextmanager
async def _agents() -> AsyncIterator[dict[str, Any]]:
    peers = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.runtimes_peers", *DIRECT, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=1 << 20
    )
    assert peers.stdin is not None
    assert peers.stdout is not None
    try:
        line = await asyncio.wait_for(peers.stdout.readline(), _START_SECONDS)
        if not line:
            raise SystemExit("the agents did not start")
        yield json.loads(line)
    finally:
        peers.stdin.close()
        try:
            await asyncio.wait_for(peers.wait(), 30)
        except TimeoutError:
            peers.kill()
            await peers.wait()


@asynccontextmanager
async def _node(manifests: dict[str, Any]) -> AsyncIterator[Fabric]:
    listed = [msgspec.convert(entry, Manifest) for entry in manifests.values()]
    config = Config(store="memory:", log=LogSettings(level="error"), doors=(), health=HealthPolicy(interval=0))
    async with Fabric(config, sources=[_StaticSource(listed)]) as node:
        ends_at = time.monotonic() + _START_SECONDS
        while not all(manifest.capabilities for manifest in node.registry.catalog.agents):
            if time.monotonic() > ends_at:
                raise SystemExit("the agents did not say what they do")
            await asyncio.sleep(0.05)
        yield node


async def _measure_runtime(name: str, manifest: dict[str, Any], node: Fabric, go_on: Path, effort: Effort) -> Row:
    count = {"words": [f"word{number}" for number in range(WORDS)], "go_on": str(go_on)}
    async with DIRECT[name](manifest["endpoint"]) as ways:
        plain = Measurement(_direct_plain(ways)), Measurement(lambda: _through(node, name, "echo", ARGUMENTS))
        streamed = None
        if ways.streamed is not None:
            hear = ways.streamed
            streamed = (
                Measurement(lambda: hear(count)),
                Measurement(lambda: _through(node, name, "count", count, stream=True)),
            )
        pairs = [plain, *([streamed] if streamed else [])]
        for pair in pairs:
            for way in pair:
                await way.run_for(effort.warm_up)
                way.latencies, way.cpu, way.events = [], 0.0, 0
        reused = await _connections(
            name, plain[1], streamed and streamed[1], ways.port or _port_of(manifest["endpoint"])
        )
        for _ in range(effort.rounds):
            for pair in pairs:
                for way in pair:
                    await way.run_for(effort.seconds)
    return Row(name, plain, streamed, reused)


def _direct_plain(ways: DirectCalls) -> Once:
    async def once() -> int:
        await ways.plain(ARGUMENTS)
        return 0

    return once


async def _through(node: Fabric, agent: str, capability: str, given: dict[str, Any], *, stream: bool = False) -> int:
    count = 0

    async def emit(event: Event) -> None:
        nonlocal count
        count += event.kind in ("token", "progress")

    call = Call(
        trace=new_trace(),
        auth=_WHO,
        target=Target(agent_id=agent, capability=capability),
        input=Input(context=given),
        response=ResponseForm(stream=stream),
    )
    result = await node.gateway.call(call, emit if stream else ignore_event)
    if result.fallback is not None:
        raise SystemExit(f"{agent}: answered by {result.fallback.used}")
    return count


async def _connections(name: str, plain: Measurement, streamed: Measurement | None, port: int | None) -> str:
    """The connections that some calls and streams open. The run ends if calls do not share them."""
    if port is None:
        return "one program"
    made = await _made(plain, port)
    if made > SPARE:
        raise SystemExit(f"{name}: {made} connections were made for {CALLS_COUNTED} calls")
    return f"{made}" if streamed is None else f"{made}, {await _made(streamed, port)}"


async def _made(way: Measurement, port: int) -> int:
    await way.once()  # there should be one from now on
    before = _client_ports(port)
    for _ in range(CALLS_COUNTED):
        await way.once()
    return len(_client_ports(port) - before)


def _port_of(endpoint: dict[str, Any]) -> int | None:
    return port_of(endpoint["uri"]) if "uri" in endpoint else None


def _client_ports(port: int) -> set[int]:
    """The client ports of connections to the agent that are open or just closed."""
    found: set[int] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, remote, *_ = line.split()
            if int(local.rpartition(":")[2], 16) == port:
                found.add(int(remote.rpartition(":")[2], 16))
            elif int(remote.rpartition(":")[2], 16) == port:
                found.add(int(local.rpartition(":")[2], 16))
    return found


def _show(row: Row) -> None:
    direct, through = row.plain
    rates = ["–", "–"] if row.streamed is None else [f"{way.events_per_second:,.0f}" for way in row.streamed]
    cells = [
        row.name,
        f"{direct.p50 * 1e6:,.0f}",
        f"{through.p50 * 1e6:,.0f}",
        f"{(through.p50 - direct.p50) * 1e6:+,.0f}",
        f"{direct.cpu_per_call * 1e6:,.0f}",
        f"{through.cpu_per_call * 1e6:,.0f}",
        f"{(through.cpu_per_call - direct.cpu_per_call) * 1e6:+,.0f}",
        *rates,
        row.reused,
    ]
    print(f"| {' | '.join(cells)} |", flush=True)
