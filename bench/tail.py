"""The tail of the latency at half of the peak, beside one slow agent that takes a fifth of the calls.

Calls come at a fixed rate at random moments, whether or not earlier ones were answered, and each counts from the moment
it was due. Half of the peak is half of what the same server answers in a closed loop just before. The bare forwarder,
without a slow agent, shows the tail that the machine itself has. So do the waits for a core, which the kernel counts:
how long the server's main thread, and the generators and the agent together, were ready to run while something else ran
on their core, and the longest such wait in ten milliseconds.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bench import load, processes, rig
from bench.calls import BARE, CallTarget, manifests
from bench.rows import Effort

SLOW_SHARE = 0.2
CONNECTIONS = 64  # for the fast calls
SLOW_CONNECTIONS = 256  # fewer than the share of one caller in the calls of a node
_SAMPLE_SECONDS = 0.01
_SLOW = """\
- agent_id: slow
  runtime: http
  endpoint: {{transport: http, uri: 'http://127.0.0.1:{port}/slow'}}
  capabilities: [{{name: reason, modalities: [text]}}]
  trust_tier: org
"""


class CoreWaits:
    """How long processes waited for a core while they could have run, in ms. `find_pids` may find others each time."""

    def __init__(self, find_pids: Callable[[], Iterable[int]]) -> None:
        self._find_pids = find_pids
        self._seen: dict[int, float] = {}
        self.total = 0.0
        self.longest = 0.0

    def sample(self) -> None:
        waited = 0.0
        for pid in self._find_pids():
            try:
                now = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e6
            except OSError:
                continue  # it has ended meanwhile, or the kernel does not count
            waited += now - self._seen.get(pid, now)
            self._seen[pid] = now
        self.total += waited
        self.longest = max(self.longest, waited)


async def sample_waits(waits: Collection[CoreWaits]) -> None:
    while True:
        for each in waits:
            each.sample()
        await asyncio.sleep(_SAMPLE_SECONDS)


@dataclass
class TailRow:
    name: str
    target: CallTarget
    has_slow: bool = False
    peak: float = 0.0
    rounds: list[load.Load] = field(default_factory=list)
    server_waits: list[CoreWaits] = field(default_factory=list)
    load_waits: list[CoreWaits] = field(default_factory=list)


def run(runner: asyncio.Runner, cores: processes.Cores, effort: Effort) -> None:
    with processes.agent(cores.load) as upstream:
        agents = manifests(upstream.port) + _SLOW.format(port=upstream.port)
        with (
            processes.forwarder(upstream.port, cores.gateway) as bare,
            processes.node(agents, cores.gateway) as node,
        ):
            fabric = CallTarget("fabric node", *node, "/mcp/call", processes.TOKEN)
            rows = [
                TailRow(BARE, CallTarget(BARE, *bare)),
                TailRow("fabric node", fabric),
                TailRow("fabric node beside a slow agent", fabric, has_slow=True),
            ]
            runner.run(_alternate(rows, effort))
    _show(rows)


async def _alternate(rows: list[TailRow], effort: Effort) -> None:
    for number in range(effort.rounds + 1):
        for row in rows:
            if number == 0:  # warms up, too
                peak = await rig.run(row.target.port, row.target.plan_calls(), CONNECTIONS, load.Limit(effort.warm_up))
                row.peak = peak.rate
            else:
                row.rounds.append(await _measure(row, effort.seconds, [each.target.pid for each in rows]))


async def _measure(row: TailRow, seconds: float, servers: Collection[int]) -> load.Load:
    """The fast calls; the slow ones are made beside them."""
    row.server_waits.append(CoreWaits(lambda: [row.target.pid]))
    row.load_waits.append(CoreWaits(lambda: set(processes.children_of(os.getpid())).difference(servers)))
    rate = row.peak / 2
    plan, port = row.target.plan_calls(), row.target.port
    fast = load.Limit(seconds, rate=rate * (1 - SLOW_SHARE if row.has_slow else 1))
    runs = [rig.run(port, plan, CONNECTIONS, fast, row.target.pid)]
    if row.has_slow:
        slow = CallTarget("slow", port, 0, row.target.path, row.target.token, ["slow"])
        limit = load.Limit(seconds, rate=rate * SLOW_SHARE)
        runs.append(rig.run(port, slow.plan_calls(), SLOW_CONNECTIONS, limit))
    sampling = asyncio.ensure_future(sample_waits((row.server_waits[-1], row.load_waits[-1])))
    try:
        results = await asyncio.gather(*runs)
    finally:
        sampling.cancel()
    for result in results:
        if result.failures:
            raise SystemExit(f"{row.name}: {result.failures} of {result.calls} calls failed: {result.why}")
    return results[0]


def _show(rows: list[TailRow]) -> None:
    columns = [
        "tail at half of peak",
        "calls/s",
        "to a slow agent",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "p99.9 / p50",
        "goal",
        "server waited for its core",
        "load and agent waited for theirs",
    ]
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        p50, p99, p999 = (
            statistics.median(result.percentile(share) for result in row.rounds) * 1000 for share in (0.5, 0.99, 0.999)
        )
        ratio = statistics.median(result.percentile(0.999) / result.percentile(0.5) for result in row.rounds)
        goal = "under 10" if row.has_slow else "–"
        slow = f"{SLOW_SHARE:.0%}" if row.has_slow else "–"
        print(
            f"| {row.name} | {row.peak / 2:,.0f} | {slow} | {p50:.2f} | {p99:.2f} | {p999:.2f} | {ratio:.1f} | {goal} "
            f"| {_render_waits(row.server_waits, row.rounds)} | {_render_waits(row.load_waits, row.rounds)} |"
        )


def _render_waits(waits: Collection[CoreWaits], rounds: Collection[load.Load]) -> str:
    share = statistics.median(each.total / result.seconds for each, result in zip(waits, rounds, strict=True))
    longest = statistics.median(each.longest for each in waits)
    return f"{share:.1f} ms/s, at most {longest:.1f} ms"
