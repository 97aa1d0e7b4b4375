"""Calls between nodes over NATS and over HTTP beside calls on the same node, the workers of a node beside one, and news
of the mesh.

The node that is called has a core of its own; the other nodes, NATS, the agent and the load share the second one. So
calls/s of a call through another node say what the entry node can do; the CPU time of the others is printed, too."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from a2a_fabric.core.agent import Capability, Health, Manifest
from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.core.limits import BodyLimit
from a2a_fabric.core.result import Result
from a2a_fabric.mesh.exports import ExportedAgents
from a2a_fabric.mesh.node import Mesh
from a2a_fabric.mesh.services import PeerServices
from a2a_fabric.mesh.settings import MeshSettings, SharedAgents
from bench import calls, load, processes, rig
from bench.processes import PORT, TOKEN, Cores, ServerProcess
from bench.rows import CONNECTIONS, Effort, Row, alternate, print_table, require_ready

NODES, AGENTS = 100, 100
CHANGES = 40
HERE, ELSEWHERE = "agent of the same node", "agent of another node"
DIRECT = "agent of another node, over HTTP"
CALLS_OTHERS = "{}"  # `mesh.direct` of a node that is called over NATS
IS_CALLED = f"{{url: 'http://127.0.0.1:{PORT}'}}"


def run(runner: asyncio.Runner, cores: Cores, effort: Effort) -> None:
    with (
        processes.agent(cores.load) as upstream,
        _nats(cores.load) as nats_port,
        _mesh_node("other", nats_port, upstream.port, "echo", cores.load) as other,
        _mesh_node("direct", nats_port, upstream.port, "near", cores.load, direct=IS_CALLED) as direct,
        _mesh_node("entry", nats_port, upstream.port, "local", cores.gateway, direct=CALLS_OTHERS) as entry,
    ):
        _measure_calls(runner, entry, other, direct, effort)
    _measure_workers(runner, cores, effort)
    with _nats(None) as nats_port:
        runner.run(_measure_news(nats_port))


@contextmanager
def _nats(core: int | None) -> Iterator[int]:
    port = processes.free_port()
    program = Path(sys.executable).parent / "nats-server"
    with processes.process(str(program), "-a", "127.0.0.1", "-p", str(port), core=core):
        ends_at = time.monotonic() + 10
        while not _accepts(port) and time.monotonic() < ends_at:
            time.sleep(0.02)
        yield port


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _mesh_node(
    name: str,
    nats: int,
    upstream: int,
    agent_id: str,
    core: int | None = None,
    *,
    heartbeat: float = 1.0,
    direct: str = "",
    prefix: Sequence[str] = (),
) -> Iterator[ServerProcess]:
    more = f", direct: {direct}" if direct else ""
    mesh = f"{{nats: 'nats://127.0.0.1:{nats}', key: {TOKEN}, heartbeat_seconds: {heartbeat}{more}}}"
    settings = f"node_id: {name}\nmesh: {mesh}\nhistory: {{enabled: {'false' if prefix else 'true'}}}\n"
    manifests = calls.manifests(upstream).replace("agent_id: echo", f"agent_id: {agent_id}")
    with processes.node(manifests, core, settings=settings, prefix=prefix) as started:
        yield started


@contextmanager
def counted_pair(upstream: int, counted: str, prefix: Sequence[str]) -> Iterator[ServerProcess]:
    """Two nodes, of which one runs under `prefix`: the port of the `entry`, and the process that is counted.

    Its heartbeats are far apart: under valgrind a node is slow, and only calls are to be counted.
    """
    with _nats(None) as nats, ExitStack() as stack:
        nodes = {
            name: stack.enter_context(
                _mesh_node(name, nats, upstream, agent, heartbeat=60, prefix=prefix if name == counted else ())
            )
            for name, agent in (("other", "echo"), ("entry", "local"))
        }
        yield ServerProcess(nodes["entry"].port, nodes[counted].pid)


def _measure_calls(
    runner: asyncio.Runner, entry: ServerProcess, other: ServerProcess, direct: ServerProcess, effort: Effort
) -> None:
    agents = ((HERE, "local"), (ELSEWHERE, "echo"), (DIRECT, "near"))
    rows = [_row(name, entry, agent_id) for name, agent_id in agents]
    require_ready(runner, rows)
    runner.run(alternate(rows, effort))
    print_table("call at the entry node", rows, lambda _: rows[0], "share of the same node")
    for row, node, way in ((rows[1], other, "NATS"), (rows[2], direct, "HTTP")):
        before = processes.cpu_seconds(node.pid)
        result = runner.run(row.measure(16, effort.seconds * effort.rounds))
        spent = (processes.cpu_seconds(node.pid) - before) / max(result.calls, 1) * 1e6
        print(f"\nThe other node spends {spent:,.0f} µs of CPU time on each call that comes over {way}.")


def _row(name: str, node: ServerProcess, agent_id: str) -> Row:
    message = load.request(node.port, "/mcp/call", calls.encode_call(agent_id=agent_id), token=TOKEN)
    return Row(name, *node, load.RequestPlan([message], b"forty-two"))


def _measure_workers(runner: asyncio.Runner, cores: Cores, effort: Effort) -> None:
    """All processes on one core: what they cost, not how many cores the machine has. Two nodes that know nothing of
    each other show how much of it is the price of sharing a core.
    """
    print("\n| on one core | connections | CPU µs/call | beside one worker |\n|---|---|---|---|")
    with processes.agent(cores.load) as upstream:
        spent: dict[tuple[str, int], list[float]] = {}
        with (
            _workers(1, upstream.port, cores) as one,
            _workers(1, upstream.port, cores) as other,
            _workers(2, upstream.port, cores) as two,
        ):
            shapes = {"one worker": (one,), "two workers": (two,), "two nodes of one worker": (one, other)}
            for _ in range(effort.rounds + 1):
                for connections in CONNECTIONS:
                    for name, nodes in shapes.items():
                        cost = runner.run(_cost(nodes, connections, effort.seconds))
                        spent.setdefault((name, connections), []).append(cost)
        for connections in CONNECTIONS:
            single = statistics.median(spent["one worker", connections][1:])
            for name in shapes:
                cost = statistics.median(spent[name, connections][1:])
                print(f"| {name} | {connections} | {cost:,.0f} | {cost / single:.2f} |")


@contextmanager
def _workers(count: int, upstream: int, cores: Cores) -> Iterator[ServerProcess]:
    port = processes.free_port()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "agents.yaml").write_text(calls.manifests(upstream))
        Path(folder, "fabric.yaml").write_text(
            f"listen: 127.0.0.1:{port}\nlog: {{file: fabric.log}}\nauth: {{psk: 'env:BENCH_PSK'}}\n"
        )
        argv = (sys.executable, "-m", "a2a_fabric", "up", "--quiet", "--config", f"{folder}/fabric.yaml")
        env = {"BENCH_PSK": TOKEN, "FABRIC_HOME": folder}
        with processes.process(*argv, "--workers", str(count), core=cores.gateway, env=env) as pid:
            processes.wait_for(port)
            yield ServerProcess(port, pid)


async def _cost(nodes: Sequence[ServerProcess], connections: int, seconds: float) -> float:
    """With the connections divided among the nodes."""
    busy = nodes[:connections]
    before = sum(_cpu_of_group(node.pid) for node in busy)
    results = await asyncio.gather(*(_load(node, connections // len(busy), seconds) for node in busy))
    spent = sum(_cpu_of_group(node.pid) for node in busy) - before
    return spent / max(sum(result.calls for result in results), 1) * 1e6


async def _load(node: ServerProcess, connections: int, seconds: float) -> load.Load:
    message = load.request(node.port, "/mcp/call", calls.CALL, token=TOKEN)
    result = await rig.run(node.port, load.RequestPlan([message], b"forty-two"), connections, load.Limit(seconds))
    if result.failures:
        raise SystemExit(f"{result.failures} calls failed: {result.why}")
    return result


def _cpu_of_group(pid: int) -> float:
    return sum(map(processes.cpu_seconds, (pid, *processes.children_of(pid))))


class _SimulatedNode:
    """A member of the mesh with `AGENTS` agents that nobody calls."""

    def __init__(self, number: int, nats: int) -> None:
        self.name = f"n{number}"
        self.version = 0
        self._revision = 0
        self._changed = asyncio.Event()
        self.manifests = [_manifest(f"{self.name}-{index}", 0) for index in range(AGENTS)]
        self.mesh = Mesh(MeshSettings(nats=f"nats://127.0.0.1:{nats}", heartbeat_seconds=5), self.name, self.name)
        self.exports = ExportedAgents(
            self.name,
            "default",
            SharedAgents(),
            list_agents=lambda: self.manifests,
            get_health=lambda _: Health(status="online"),
            get_revision=lambda: str(self._revision),
            wait_for_change=self._wait,
        )

    async def start(self) -> None:
        await self.mesh.start(_services(self.exports), self.exports)

    def change(self) -> str:
        """Change one agent; its new version."""
        self.version += 1
        self._revision += 1
        self.manifests = [_manifest(f"{self.name}-0", self.version), *self.manifests[1:]]
        self._changed.set()
        return str(self.version)

    async def _wait(self, revision: str, timeout: float) -> None:
        if revision == str(self._revision) and timeout:
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                pass
        self._changed.clear()


def _manifest(agent_id: str, version: int) -> Manifest:
    return Manifest(agent_id=agent_id, endpoint={}, version=str(version), capabilities=(Capability(name="work"),))


async def _refuse(call: Call, emit: Emit) -> Result:
    raise AgentOffline("simulated")


async def _refuse_door(scope: object, receive: object, send: object) -> None:
    raise AgentOffline("simulated")


def _services(exports: ExportedAgents) -> PeerServices:
    return PeerServices(
        find_agent=lambda _: None,
        load_runtime=lambda _: asyncio.get_running_loop().create_future(),
        call_agent=lambda _: _refuse,
        route_call=_refuse,
        call=_refuse,
        bind_call=lambda call: call,
        on_agent_changed=lambda _: None,
        render_metrics=lambda: asyncio.get_running_loop().create_future(),
        doors=_refuse_door,
        body_limit=BodyLimit(1 << 20),
        list_agents=exports.list_for,
    )


async def _measure_news(nats: int) -> None:
    """How long a change of one node takes until all others have it. All nodes share this process and its core."""
    nodes = [_SimulatedNode(number, nats) for number in range(NODES)]
    began = time.perf_counter()
    for node in nodes:
        await node.start()
    await _wait_until(lambda: all(len(each.mesh.peers) == NODES - 1 for each in nodes), 120)
    await _wait_until(lambda: all(_count(each) == (NODES - 1) * AGENTS for each in nodes), 120)
    joined = time.perf_counter() - began
    took: list[float] = []
    for index in range(CHANGES):
        node = nodes[int.from_bytes(hashlib.blake2b(str(index).encode(), digest_size=4).digest(), "big") % NODES]
        others = [each for each in nodes if each is not node]
        started, version = time.perf_counter(), node.change()
        agent_id = f"{node.name}-0"
        await _wait_until(lambda: all(_version(each, agent_id) == version for each in others), 30)  # noqa: B023
        took.append(time.perf_counter() - started)
    for node in nodes:
        await node.mesh.aclose()
    took.sort()
    print(f"\n| {NODES} nodes × {AGENTS} agents in one process on one core | seconds |\n|---|---|")
    print(f"| all nodes know all agents | {joined:.1f} |")
    print(f"| a change is known everywhere, median of {CHANGES} | {statistics.median(took):.2f} |")
    print(f"| the slowest of them | {took[-1]:.2f} |")


def _count(node: _SimulatedNode) -> int:
    return len(node.mesh.agents.manifests)


def _version(node: _SimulatedNode, agent_id: str) -> str | None:
    manifest = node.mesh.agents.describe(agent_id)
    return None if manifest is None else manifest.version


async def _wait_until(check: Callable[[], bool], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not check():
            await asyncio.sleep(0.005)
