"""Memory over a million calls, of idle MCP sessions, and of agents."""

from __future__ import annotations

import asyncio
import time

from bench import load, load_python, processes, rig
from bench.calls import CallTarget, manifests
from bench.mcp_rows import manifests as mcp_manifests
from bench.mcp_wire import handshake, listen, stateless
from bench.processes import TOKEN, Cores, ServerProcess

CALLS = 1_000_000
SLICES = 10
LONGEST = 150.0  # seconds; on a slow machine the table ends earlier
CONNECTIONS = 64
SESSIONS = 5000
STREAMS = 2000  # sessions with a stream; each takes two connections, as with most clients
REPLY_TIMEOUT = 60.0
ONE_CALLER = "limits: {share_per_caller: 1}\n"  # all sessions are those of one caller
AGENTS = 10_000


def run(runner: asyncio.Runner, cores: Cores) -> None:
    with processes.mcp_server(cores.load) as server, processes.agent(cores.load) as agent:
        agents = manifests(agent.port) + mcp_manifests(f"http://127.0.0.1:{server.port}/mcp", cores.load)
        with processes.node(agents, cores.gateway) as node:
            runner.run(_measure_calls(node))
        with processes.node(agents, cores.gateway, settings=ONE_CALLER) as node:
            runner.run(_measure_sessions(node))
        _measure_agents(agent.port, cores)


def _measure_agents(port: int, cores: Cores) -> None:
    """How much more a node with many agents has, when all of them have been asked for their health."""
    memory = []
    for count in (10, AGENTS):
        with processes.node(manifests(port, count), cores.gateway) as node:
            processes.wait_until_idle(node.pid)
            memory.append(processes.memory_mb(node.pid))
    print("\n| registered agents | number | memory KB each | goal |\n|---|---|---|---|")
    print(f"| HTTP agents | {AGENTS:,} | {(memory[1] - memory[0]) * 1024 / AGENTS:.1f} | under 12 |", flush=True)


async def _measure_calls(node: ServerProcess) -> None:
    """Half of the calls are plain ones, half are MCP calls in sessions, which open and end with each slice."""
    plain = CallTarget("fabric node", *node, "/mcp/call", TOKEN).plan_calls()
    plans = [
        plain,
        stateless(node.port, "/mcp", "new_add", TOKEN),
        plain,
        handshake(node.port, "/mcp", "old_add", TOKEN),
    ]
    print(f"\n| calls so far, half of them MCP | memory MB |\n|---|---|\n| 0 | {processes.memory_mb(node.pid):.0f} |")
    began, done = time.monotonic(), 0
    while done < CALLS and time.monotonic() - began < LONGEST:
        for plan in plans:
            limit = load.Limit(calls=CALLS // SLICES // len(plans))
            result = await rig.run(node.port, plan, CONNECTIONS, limit, node.pid)
            if result.failures:
                raise SystemExit(f"{result.failures} of {result.calls} calls failed: {result.why}")
            done += result.calls
        print(f"| {done:,} | {processes.memory_mb(node.pid):.0f} |", flush=True)


async def _measure_sessions(node: ServerProcess) -> None:
    print("\n| idle MCP sessions | number | memory KB each | goal |\n|---|---|---|---|")
    for path, tool in (("/mcp", "old_add"), ("/agents/old/mcp", "add")):
        before = processes.memory_mb(node.pid)
        connection = await _connect(node.port)
        for _ in range(SESSIONS):
            await _open_session(connection, handshake(node.port, path, tool, TOKEN))
        connection.transport.close()
        _print_sessions(node, path, SESSIONS, before)
    await _measure_streams(node)


async def _measure_streams(node: ServerProcess) -> None:
    """Each client keeps one connection for requests, and waits for notifications on another one."""
    plan, listening = handshake(node.port, "/mcp", "old_add", TOKEN), listen(node.port, "/mcp", TOKEN)
    transports: list[asyncio.BaseTransport] = []
    before = processes.memory_mb(node.pid)
    for _ in range(STREAMS):
        connection = await _connect(node.port)
        await _open_session(connection, plan)
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
        writer.write(listening.replace(load.SESSION.encode(), connection.session.encode()))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REPLY_TIMEOUT)
        if not head.startswith(b"HTTP/1.1 200 "):
            raise SystemExit(f"the stream was refused: {head[:200]!r}")
        transports += (connection.transport, writer.transport)
    _print_sessions(node, "/mcp, with a stream", STREAMS, before)
    for transport in transports:
        transport.close()


def _print_sessions(node: ServerProcess, name: str, count: int, before: float) -> None:
    memory = processes.memory_mb(node.pid) - before
    print(f"| {name} | {count:,} | {memory * 1024 / count:.1f} | under 30 |", flush=True)


async def _connect(port: int) -> load_python.Connection:
    _, connection = await asyncio.get_running_loop().create_connection(load_python.Connection, "127.0.0.1", port)
    return connection


async def _open_session(connection: load_python.Connection, plan: load.RequestPlan) -> None:
    """Open a session that is never used and never ended."""
    for opening in plan.opening:
        if (status := await connection.send(opening)) // 100 != 2:
            raise SystemExit(f"the session was refused with HTTP {status}: {connection.body[:200]!r}")
