"""How long a node takes from its start to its first answer, beside a bare process, and what it weighs then."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from bench import load, processes, rig
from bench.calls import CALL, manifests
from bench.mcp_wire import handshake

COUNTS = (10, 10_000)
TIMES = 3
_BARE = """
import sys, msgspec, uvicorn

async def app(scope, receive, send):
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": msgspec.json.encode({"ok": True})})

uvicorn.run(app, port=int(sys.argv[1]), lifespan="off", log_level="error")
"""


def run(runner: asyncio.Runner, cores: processes.Cores, sources: Mapping[str, Path | None] = {"": None}) -> None:
    """`sources` are folders with versions of the code, by name: their starts alternate."""
    columns = ["seconds", "times the bare process", "goal", "first MCP request ms", "goal", "idle memory MB"]
    print(f"\n| start to first answer | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    bare = statistics.median(_start_bare(cores.gateway) for _ in range(TIMES))
    print(f"| uvicorn and msgspec alone | {bare:.2f} | 1.0 | – | – | – | – |")
    with processes.agent(cores.load) as upstream:
        for count in COUNTS:
            figures: dict[str, list[tuple[float, float, float]]] = {}
            for _ in range(TIMES):
                for name, source in sources.items():
                    figures.setdefault(name, []).append(_start(runner, upstream.port, count, cores.gateway, source))
            for name, values in figures.items():
                seconds, mcp, memory = (statistics.median(column) for column in zip(*values, strict=True))
                goal = "under 3" if count == COUNTS[0] else "–"
                print(
                    f"| {count:,} agents{name and f', {name}'} | {seconds:.2f} | {seconds / bare:.1f} | {goal} "
                    f"| {mcp * 1000:.0f} | under 100 | {memory:.0f} |"
                )


def _start_bare(core: int | None) -> float:
    """An ASGI application on uvicorn that answers each request with a body encoded by msgspec."""
    port, started = processes.free_port(), time.perf_counter()
    with processes.process(sys.executable, "-c", _BARE, str(port), core=core):
        processes.wait_for(port)
        return time.perf_counter() - started


def _start(
    runner: asyncio.Runner, upstream: int, count: int, core: int | None, source: Path | None
) -> tuple[float, float, float]:
    started = time.perf_counter()
    with processes.node(manifests(upstream, count), core, wait=False, source=source) as (port, pid):
        processes.wait_for(port)
        first = load.repeat_request(load.request(port, "/mcp/call", CALL, token=processes.TOKEN))
        answered = runner.run(rig.run(port, first, 1, load.Limit(calls=1)))
        if answered.failures:
            raise SystemExit("the first call failed")
        seconds = time.perf_counter() - started
        opening = load.repeat_request(handshake(port, "/mcp", "none", processes.TOKEN).opening[0])
        began = time.perf_counter()
        opened = runner.run(rig.run(port, opening, 1, load.Limit(calls=1)))
        if opened.failures:
            raise SystemExit("the first MCP request failed")
        return seconds, time.perf_counter() - began, processes.memory_mb(pid)
