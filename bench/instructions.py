"""Instructions per call, counted by `valgrind --tool=callgrind`: little noise, so differences of two percent show.

The work of the kernel is not counted, so a ratio here is none of time; it shows what a change of our own code does.
The server runs under valgrind, and is warm before its counters are set to zero. Calls are made over one connection;
streams are paced, so there are four of them at a time, which leaves less to what the node does beside. Their pace is
slow enough for a busy machine: events that arrive together are cheaper than one at a time.
Only the thread of the event loop counts: what others write to disk is the same whether a second has a hundred calls, as
under valgrind, or ten thousand. Rows with many callers at a time count all threads: work of several callers is written
together there, as it is without valgrind.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import NamedTuple

from bench import calls, job_agent, job_rates, job_stores, load, mcp_rows, mesh, processes, rest_rows, rig, tool_lists
from bench.agent import EVENTS
from bench.mcp_wire import handshake, stateless
from bench.processes import TOKEN, ServerProcess

CALLS = 150
_ROUNDS = 5
_WARM_UP = 300
_STREAMS = (8, EVENTS, 4)  # requests, units and connections
_PAUSE_MS = 20  # between the events of a stream
_CROWD = (640, 1, 64, "*")  # requests, units, connections and threads
_CONTROL_TIMEOUT = 60.0  # seconds
_READY_TIMEOUT = 120.0

StartServer = Callable[[Sequence[str]], AbstractContextManager[ServerProcess]]


class CountedRow(NamedTuple):
    """`units` are what one request counts as: itself, or the events of its stream. `threads`: "01" is the event loop's,
    "*" all of them."""

    name: str
    start: StartServer
    plan: Callable[[int], load.RequestPlan]
    requests: int = CALLS
    units: int = 1
    connections: int = 1
    threads: str = "01"


def run(runner: asyncio.Runner, only: Sequence[str] | None = None) -> None:
    """`only`: parts of the names of rows."""
    with ExitStack() as stack:
        http_agent = stack.enter_context(processes.agent(pause_ms=_PAUSE_MS))
        mcp_server = stack.enter_context(processes.mcp_server())
        rows = _list_rows(http_agent.port, f"http://127.0.0.1:{mcp_server.port}/mcp")
        print("\n| instructions per call or event | instructions |\n|---|---|")
        for row in rows:
            if only is None or any(text in row.name for text in only):
                print(f"| {row.name} | {_count(runner, row):,.0f} |", flush=True)


def _list_rows(agent_port: int, mcp_uri: str) -> list[CountedRow]:
    def start_forwarder(prefix: Sequence[str]) -> AbstractContextManager[ServerProcess]:
        return processes.module("bench.forwarder", f"http://127.0.0.1:{agent_port}/", prefix=prefix)

    def start_mcp_forwarder(prefix: Sequence[str]) -> AbstractContextManager[ServerProcess]:
        return processes.module("bench.mcp_forwarder", mcp_uri, prefix=prefix)

    def start_node(manifests: str, settings: str = "", log: str = "{file: fabric.log}") -> StartServer:
        # The history writes a few times a second, which counts for much in the few calls of a second under valgrind.
        settings += "history: {enabled: false}\n"
        return lambda prefix: processes.node(manifests, settings=settings, prefix=prefix, log=log)

    def through(counted: str) -> StartServer:
        return lambda prefix: mesh.counted_pair(agent_port, counted, prefix)

    plain = start_node(calls.manifests(agent_port))
    silent = start_node(calls.manifests(agent_port), "metrics: false\n", "{level: error}")
    spans_off = "metrics: false\ntracing: {protocol: 'off', endpoint: 'http://127.0.0.1:9/v1/traces'}\n"
    without_spans = start_node(calls.manifests(agent_port), spans_off, "{level: error}")
    mcp = start_node(mcp_rows.manifests(mcp_uri, None))
    views = start_node(tool_lists.CHOICES.format(uri=mcp_uri), tool_lists.VIEWS)
    view = "/views/sums/mcp"
    acceptor = start_node(job_agent.MANIFEST, rest_rows.ACCEPT_ONLY)
    ender = start_node(job_agent.MANIFEST, job_stores.node_settings(concurrent=64))

    def target(port: int, token: str = "", agent_id: str = "echo") -> calls.CallTarget:
        return calls.CallTarget("", port, 0, "/mcp/call" if token else "/", token, (agent_id,))

    def rest_plan(number: int) -> Callable[[int], load.RequestPlan]:
        return lambda port: rest_rows.rows_of("", ServerProcess(port, 0))[number].plan

    def local(port: int) -> load.RequestPlan:
        return target(port, TOKEN, "local").plan_calls()

    return [
        CountedRow("plain call, bare forwarder", start_forwarder, lambda port: target(port).plan_calls()),
        CountedRow(
            "call in a mesh, same node", through("entry"), lambda port: target(port, TOKEN, "local").plan_calls()
        ),
        CountedRow("call through another node, there", through("other"), lambda port: target(port, TOKEN).plan_calls()),
        CountedRow("call through another node, here", through("entry"), lambda port: target(port, TOKEN).plan_calls()),
        CountedRow("plain call", plain, lambda port: target(port, TOKEN).plan_calls()),
        CountedRow("plain call, no telemetry", silent, lambda port: target(port, TOKEN).plan_calls()),
        CountedRow("plain call, no telemetry, spans off", without_spans, lambda port: target(port, TOKEN).plan_calls()),
        CountedRow("stateless MCP, bare forwarder", start_mcp_forwarder, lambda port: stateless(port, "/mcp", "add")),
        CountedRow("stateless MCP", mcp, lambda port: stateless(port, "/mcp", "new_add", TOKEN)),
        CountedRow("stateless MCP, handshake client", mcp, lambda port: handshake(port, "/mcp", "new_add", TOKEN)),
        CountedRow("handshake MCP", mcp, lambda port: handshake(port, "/mcp", "old_add", TOKEN)),
        CountedRow("stdio MCP", mcp, lambda port: handshake(port, "/mcp", "pipe_add", TOKEN)),
        CountedRow("one agent alone", mcp, lambda port: stateless(port, "/agents/new/mcp", "add", TOKEN)),
        CountedRow("views: /mcp", views, lambda port: stateless(port, "/mcp", "plain_add", TOKEN)),
        CountedRow("views: a view", views, lambda port: stateless(port, view, "plain_add", TOKEN)),
        CountedRow("views: renamed, /mcp", views, lambda port: stateless(port, "/mcp", "chosen_plus", TOKEN)),
        CountedRow("views: renamed, a view", views, lambda port: stateless(port, view, "chosen_plus", TOKEN)),
        CountedRow("views: handshake, /mcp", views, lambda port: handshake(port, "/mcp", "plain_add", TOKEN)),
        CountedRow("views: handshake, a view", views, lambda port: handshake(port, view, "plain_add", TOKEN)),
        CountedRow("event, bare forwarder", start_forwarder, lambda port: target(port).plan_streams(), *_STREAMS),
        CountedRow("event", plain, lambda port: target(port, TOKEN).plan_streams(), *_STREAMS),
        CountedRow("fabric.call as a job, accepted", acceptor, rest_plan(0)),
        CountedRow("POST /v1/tasks, accepted", acceptor, rest_plan(1)),
        CountedRow("POST /v1/messages, accepted", acceptor, rest_plan(2)),
        CountedRow("fabric.call as a job, accepted, 64 callers", acceptor, rest_plan(0), *_CROWD),
        CountedRow("POST /v1/messages, accepted, 64 callers", acceptor, rest_plan(2), *_CROWD),
        CountedRow(
            "a job to its end, 64 callers", ender, lambda port: job_rates.plan_jobs(port, is_whole=True), *_CROWD
        ),
    ]


def _count(runner: asyncio.Runner, row: CountedRow) -> float:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "counted")
        prefix = (
            "env",
            "PYTHONHASHSEED=0",  # another seed is another order of dicts and sets, which is up to 2 % of a call
            "valgrind",
            "--tool=callgrind",
            "--instr-atstart=no",
            "--separate-threads=yes",
            f"--callgrind-out-file={out}",
        )
        with row.start(prefix) as (port, pid):
            plan = row.plan(port)
            _wait_until_ready(runner, row, port, plan)
            warm_up = _WARM_UP if row.units == 1 else row.requests
            _send(runner, row, port, plan, warm_up)
            _control(pid, "--instr=on")
            _send(runner, row, port, plan, warm_up)
            counts: list[int] = []
            for _ in range(_ROUNDS):
                _control(pid, "--zero")
                _send(runner, row, port, plan, row.requests)
                _control(pid, "--dump")
                counts.append(_read_total(out, row.threads))
            return min(counts) / row.requests / row.units  # what the node does beside calls comes now and then


def _wait_until_ready(runner: asyncio.Runner, row: CountedRow, port: int, plan: load.RequestPlan) -> None:
    """Until the row's own request is answered: the tools of an MCP server are listed after the start."""
    ends_at = time.monotonic() + _READY_TIMEOUT
    while True:
        try:
            _send(runner, row, port, plan, 1)
            return
        except (ConnectionError, SystemExit):
            if time.monotonic() > ends_at:
                raise
            time.sleep(0.1)


def _send(runner: asyncio.Runner, row: CountedRow, port: int, plan: load.RequestPlan, requests: int) -> None:
    result = runner.run(rig.run(port, plan, min(row.connections, requests), load.Limit(calls=requests)))
    if result.failures:
        raise SystemExit(f"{row.name}: {result.failures} of {result.calls} calls failed: {result.why}")


def _control(pid: int, command: str) -> None:
    subprocess.run(["callgrind_control", command, str(pid)], check=True, capture_output=True, timeout=_CONTROL_TIMEOUT)


def _read_total(out: Path, threads: str) -> int:
    """From the last dump: the counters of these threads since they were set to zero."""
    dumps = [(int(path.suffix[1:].partition("-")[0]), path) for path in out.parent.glob(f"{out.name}.*-{threads}")]
    newest = max(number for number, _ in dumps)
    return sum(_read_thread_total(path) for number, path in dumps if number == newest)


def _read_thread_total(dump: Path) -> int:
    lines = dump.read_text(errors="replace").splitlines()
    return int(next(line.split()[1] for line in reversed(lines) if line.startswith(("totals:", "summary:"))))
