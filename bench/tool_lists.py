"""MCP lists of tools: a long one from memory, the first one after a restart, and what filters and views cost a call."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import load, processes, rig
from bench.mcp_wire import list_tools, stateless
from bench.processes import TOKEN, Cores
from bench.rows import Effort, Row, alternate, require_ready

TOOLS = 2000
SERVERS = 20
RESTARTS = 5
CONNECTIONS = 16

_SETTINGS = f"doors: [{{kind: fabric}}, {{kind: mcp, max_listed: {TOOLS}}}]\n"
CHOICES = """\
- agent_id: plain
  runtime: mcp
  endpoint: {{transport: http, uri: '{uri}', era: stateless}}
- agent_id: chosen
  runtime: mcp
  endpoint: {{transport: http, uri: '{uri}', era: stateless}}
  tools: {{exclude: ['delete_*'], rename: {{add: plus}}, describe: {{plus: 'Adds.'}}}}
"""
VIEWS = "views: [{name: sums, tools: ['*.add', '*.plus'], exclude: ['*.delete_*']}]\n"
_SERVER = """\
import json, sys
TOOLS = [{"name": f"tool_{n}", "description": "Does it.", "inputSchema": {"type": "object"}} for n in range(10)]
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = {"tools": TOOLS} if message["method"] == "tools/list" else {
            "protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


def run(runner: asyncio.Runner, cores: Cores, effort: Effort) -> None:
    print("\n| MCP lists | p50 ms | p99 ms |")
    print("|---|---|---|")
    with processes.node(_many_tools(), cores.gateway, settings=_SETTINGS) as node:
        listing = Row("tools/list", *node, list_tools(node.port, "/mcp", TOKEN, b"agent_19_tool_99"))
        require_ready(runner, [listing])
        measured = runner.run(listing.measure(1, max(effort.seconds, 1.0)))
        print(_line(f"`tools/list` with {TOOLS:,} tools, known caller", measured.latencies))
    for count in (0, SERVERS):
        after_start, after_answer = zip(*_restart(runner, cores, count), strict=True)
        name = f"first `tools/list` after a restart, {count} stdio servers known"
        print(_line(f"{name}, since the process was started", after_start))
        print(_line(f"{name}, since the node answers", after_answer))
    _show_calls(runner, cores, effort)


def _line(name: str, seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    return f"| {name} | {statistics.median(ordered) * 1000:.1f} | {ordered[int(len(ordered) * 0.99)] * 1000:.1f} |"


def _many_tools() -> str:
    schema = {"type": "object", "properties": {"text": {"type": "string", "description": "What to do it with."}}}
    capabilities = [
        {"name": f"tool_{number}", "description": "Does one of many things.", "input_schema": schema}
        for number in range(TOOLS // SERVERS)
    ]
    endpoint = {"transport": "http", "uri": "http://127.0.0.1:9/"}
    agents = [
        {"agent_id": f"agent-{number}", "runtime": "http", "endpoint": endpoint, "capabilities": capabilities}
        for number in range(SERVERS)
    ]
    return json.dumps(agents)


def _restart(runner: asyncio.Runner, cores: Cores, count: int) -> Iterator[tuple[float, float]]:
    """Seconds from the start of the process, and from its first answer, to the whole first list."""
    with tempfile.TemporaryDirectory() as folder:
        server = Path(folder, "server.py")
        server.write_text(_SERVER)
        command = [sys.executable, "-S", str(server)]
        agents = [{"agent_id": f"s{n}", "runtime": "mcp", "endpoint": {"command": command}} for n in range(count)]
        settings = f"store: 'sqlite:{folder}/fabric.db'\n"
        expected = f"s{count - 1}_tool_9".encode() if count else b'"tools":['
        for number in range(RESTARTS + 1):
            started = time.perf_counter()
            with processes.node(json.dumps(agents), cores.gateway, settings=settings) as node:
                answered = time.perf_counter()
                request = list_tools(node.port, "/mcp", TOKEN, expected)
                listed = runner.run(rig.run(node.port, request, 1, load.Limit(calls=1)))
                if listed.failures:
                    raise SystemExit("the first list lacks tools")
                if number:  # before the first restart nothing is known
                    yield time.perf_counter() - started, time.perf_counter() - answered


def _show_calls(runner: asyncio.Runner, cores: Cores, effort: Effort) -> None:
    with _call_rows(cores) as rows:
        require_ready(runner, rows)
        runner.run(alternate(rows, effort))
    print(
        f"\n| MCP tools/call at {CONNECTIONS} connections | calls/s | p50 ms | CPU µs/call | share of the plain one |"
    )
    print("|---|---|---|---|---|")
    plain = rows[0].median(CONNECTIONS).rate
    for row in rows:
        figures = row.median(CONNECTIONS)
        print(f"| {row.name} | {figures.rate:,.0f} | {figures.p50_ms:.2f} | {figures.cpu_us:.0f} "
              f"| {figures.rate / plain:.0%} |")  # fmt: skip


@contextmanager
def _call_rows(cores: Cores) -> Iterator[list[Row]]:
    with processes.mcp_server(cores.load) as upstream:
        agents = CHOICES.format(uri=f"http://127.0.0.1:{upstream.port}/mcp")
        with processes.node(agents, cores.gateway, settings=VIEWS) as node:
            yield [
                Row("all tools", *node, stateless(node.port, "/mcp", "plain_add", TOKEN)),
                Row("tools chosen and renamed", *node, stateless(node.port, "/mcp", "chosen_plus", TOKEN)),
                Row("through a view", *node, stateless(node.port, "/views/sums/mcp", "plain_add", TOKEN)),
                Row("chosen, through a view", *node, stateless(node.port, "/views/sums/mcp", "chosen_plus", TOKEN)),
            ]
