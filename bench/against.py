"""This code beside the code of an earlier commit: the same calls, in alternating rounds, in one run.

A checkout of the other commit is made below the system's temporary folder and removed afterwards. What counts is the
ratio of CPU time per call, whose noise is far smaller than that of calls a second. The machine's speed changes from
second to second, so the rounds are short and many: each ratio is that of two neighbours, and their median is printed
with the interval that holds it in 95 of 100 such runs.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bench import a2a_rows, calls, job_agent, job_rates, load, mcp_rows, processes, rest_rows, starts
from bench.mcp_wire import handshake, stateless
from bench.processes import TOKEN, Cores, ServerProcess
from bench.rows import CONNECTIONS, Effort, Row, alternate, median_interval, require_ready

ROOT = Path(__file__).parents[1]


def run(runner: asyncio.Runner, cores: Cores, effort: Effort, revision: str, only: Sequence[str] | None) -> None:
    """`only`: parts of the names of rows; then streams and starts are not measured."""
    with ExitStack() as stack:
        other = stack.enter_context(_checkout(revision))
        http_agent = stack.enter_context(processes.agent(cores.load))
        mcp_server = stack.enter_context(processes.mcp_server(cores.load))
        uri = f"http://127.0.0.1:{mcp_server.port}/mcp"
        port = http_agent.port
        mcp_manifests = mcp_rows.manifests(uri, cores.load)
        manifests = calls.manifests(port) + mcp_manifests + a2a_rows.MANIFEST.format(port=port) + job_agent.MANIFEST
        sources: dict[str, Path | None] = {"this code": ROOT / "src", revision: other / "src"}
        pairs: dict[str, list[Row]] = {}
        for name, source in sources.items():
            node = stack.enter_context(processes.node(manifests, cores.gateway, settings=_SETTINGS, source=source))
            accepting = rest_rows.ACCEPT_ONLY
            acceptor = stack.enter_context(
                processes.node(job_agent.MANIFEST, cores.gateway, settings=accepting, source=source)
            )
            for row in (*_rows(name, node), *rest_rows.rows_of(name, acceptor)):
                if only is None or any(text in row.era for text in only):
                    pairs.setdefault(row.era, []).append(row)
        if not pairs:
            raise SystemExit(f"no row has {' or '.join(only or ())} in its name")
        rows = [row for pair in pairs.values() for row in pair]
        require_ready(runner, rows)
        runner.run(alternate(rows, effort))
        _show(pairs, revision)
        if only is not None:
            return
        first, *_ = pairs.values()
        targets = [calls.CallTarget(row.name, row.port, row.pid, "/mcp/call", TOKEN) for row in first]
        runner.run(calls.measure_streams(targets, min(effort.rounds, 9)))
        starts.run(runner, cores, sources)


_SETTINGS = "doors: [{kind: fabric}, {kind: mcp}, {kind: a2a, replay_seconds: 0}]\n"


def _rows(name: str, node: ServerProcess) -> list[Row]:
    port = node.port
    request = load.request(port, "/mcp/call", calls.CALL, token=TOKEN, accept="application/json")
    python_request = load.request(port, "/mcp/call", msgspec.json.encode(rest_rows.CALL), token=TOKEN)
    return [
        Row(name, *node, load.repeat_request(request), "/mcp/call to an HTTP agent"),
        Row(name, *node, load.repeat_request(python_request), "/mcp/call to a Python agent"),
        Row(name, *node, stateless(port, "/mcp", "new_add", TOKEN), "MCP, stateless to stateless"),
        Row(name, *node, handshake(port, "/mcp", "new_add", TOKEN), "MCP, handshake to stateless"),
        Row(name, *node, stateless(port, "/agents/new/mcp", "add", TOKEN), "MCP, one agent alone"),
        Row(name, *node, stateless(port, "/mcp", "old_add", TOKEN), "MCP, stateless to handshake"),
        Row(name, *node, stateless(port, "/mcp", "events_add", TOKEN), "MCP, stateless to handshake, events"),
        Row(name, *node, stateless(port, "/mcp", "pipe_add", TOKEN), "MCP, stateless to stdio"),
        Row(name, *node, stateless(port, "/agents/events/mcp", "add", TOKEN), "MCP, bridge to handshake"),
        Row(name, *node, stateless(port, "/agents/pipe/mcp", "add", TOKEN), "MCP, bridge to stdio"),
        Row(name, *node, a2a_rows.repeat_message(port, a2a_rows.AGENT_PATH, TOKEN), "A2A, a durable task"),
        Row(name, *node, job_rates.plan_jobs(port, is_whole=True), "a job to its end"),
    ]


def _show(pairs: dict[str, list[Row]], revision: str) -> None:
    print(f"\n| beside {revision} | connections | CPU µs/call now | before | ratio (95 %) | calls/s now | before |")
    print("|---|---|---|---|---|---|---|")
    for path, (new, old) in pairs.items():
        for connections in CONNECTIONS:
            ratios = [
                (a.cpu / a.calls) / (b.cpu / b.calls)
                for a, b in zip(new.rounds[connections], old.rounds[connections], strict=True)
            ]
            middle, (low, high) = statistics.median(ratios), median_interval(ratios)
            now, before = new.median(connections), old.median(connections)
            print(f"| {path} | {connections} | {now.cpu_us:.0f} | {before.cpu_us:.0f} "
                  f"| {middle:.3f} ({low:.3f}-{high:.3f}) | {now.rate:,.0f} | {before.rate:,.0f} |")  # fmt: skip


@contextmanager
def _checkout(revision: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        _git("worktree", "add", "--quiet", "--detach", str(tree), revision)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*words: str) -> None:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {words[0]}: {done.stderr.strip()}")
