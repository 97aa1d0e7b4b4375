"""Measures everything side by side in one run, in alternating rounds: compare the ratios, not the absolute figures."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from bench import (
    a2a_rows,
    against,
    auth,
    calls,
    chart,
    graphs,
    instructions,
    jobs,
    mcp_rows,
    memory,
    mesh,
    peers,
    performance_page,
    planning,
    policy,
    processes,
    rest_rows,
    results,
    runtimes_rows,
    signing,
    starts,
    tail,
    telemetry,
    tool_lists,
    word_routing,
)
from bench.processes import Cores
from bench.rows import Effort

GROUPS = {
    "calls": "/mcp/call to an HTTP agent: calls, streamed events, 10,000 agents",
    "mcp": "MCP tools/call to stateless, handshake and stdio servers; one agent alone; the bridge between the eras",
    "telemetry": "what log lines, metrics, the call history and spans cost a call",
    "tail": "latency at half of the peak, beside a slow agent",
    "memory": "memory over a million calls, and of idle sessions",
    "lists": "MCP lists of tools: long ones, the first after a restart; calls with filters and views",
    "a2a": "A2A SendMessage, beside an echo on the official SDK",
    "rest": "REST messages and tasks on SQLite and PostgreSQL",
    "runtimes": "every runtime beside its agent asked directly: calls, streamed events",
    "jobs": "durable jobs on SQLite and PostgreSQL: accepted, done, followed, listed",
    "graphs": "a task graph of 1,000 nodes beside its jobs alone",
    "mesh": "calls to agents of other nodes over NATS and HTTP, workers, and news of 100 nodes",
    "starts": "a node from its start to its first answer",
    "planning": "finding an agent and planning a route",
    "auth": "identifying a caller, by the kind of its credentials",
    "policy": "the rules of the operator, up to 1,000",
    "routing": "choosing an agent by words, beside a scan of all phrases; reading a registry, checking folders",
    "signing": "signed requests, passports, mandates and receipts",
    "instructions": "instructions per call and event, counted by valgrind, which has to be installed (only if named)",
    "peers": "other MCP proxies beside ours, as they come and tuned (only if named)",
}
ONLY_IF_NAMED = {"instructions", "peers"}
NOT_QUICK = {"memory", "lists", "runtimes", "jobs"}


def main() -> None:
    options = _options()
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {results.describe_machine()}")
    cores = processes.pin_to_cores()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.against:
            against.run(
                runner, cores, Effort(9, 0.3, 0.3) if options.quick else Effort(31, 0.3), options.against, options.row
            )
            return
        kept = results.read_results() if options.write_docs else results.Results()
        for name in options.groups or _default_groups(is_quick=options.quick):
            began = time.monotonic()
            with results.record(kept, name, ", in short rounds" if options.quick else ""):
                _run_group(name, runner, cores, is_quick=options.quick, only=options.row)
            print(f"\n{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
            if options.json:
                results.write_results(kept, options.json)
            if options.write_docs:
                results.write_results(kept)
    if options.write_docs:
        performance_page.write()
        chart.write()


def _default_groups(*, is_quick: bool) -> list[str]:
    return [name for name in GROUPS if name not in ONLY_IF_NAMED and not (is_quick and name in NOT_QUICK)]


def _run_group(
    name: str, runner: asyncio.Runner, cores: Cores, *, is_quick: bool, only: Sequence[str] | None = None
) -> None:
    short = Effort(1, 0.3, 0.2)
    run: dict[str, Callable[[], None]] = {
        "calls": lambda: calls.run(runner, cores, short if is_quick else Effort(9, 0.4, 0.5)),
        "mcp": lambda: mcp_rows.run(runner, cores, Effort(1, 0.15, 0.1) if is_quick else Effort(7, 0.3, 0.3)),
        "telemetry": lambda: telemetry.run(runner, cores, short if is_quick else Effort(60, 0.25, 1.0)),
        "tail": lambda: tail.run(runner, cores, Effort(1, 1.0, 0.5) if is_quick else Effort(5, 3.0, 2.0)),
        "memory": lambda: memory.run(runner, cores),
        "lists": lambda: tool_lists.run(runner, cores, short if is_quick else Effort(5, 0.5)),
        "a2a": lambda: a2a_rows.run(runner, cores, short if is_quick else Effort(5, 0.5)),
        "rest": lambda: rest_rows.run(runner, cores, short if is_quick else Effort(5, 0.5)),
        "runtimes": lambda: runtimes_rows.run(runner, Effort(1, 0.1, 0.05) if is_quick else Effort(5, 0.2, 0.2)),
        "jobs": lambda: jobs.run(runner, cores, quick=is_quick),
        "graphs": lambda: graphs.run(runner),
        "mesh": lambda: mesh.run(runner, cores, short if is_quick else Effort(5, 0.5)),
        "starts": lambda: starts.run(runner, cores),
        "planning": planning.run,
        "auth": auth.run,
        "policy": policy.run,
        "routing": word_routing.run,
        "signing": signing.run,
        "instructions": lambda: instructions.run(runner, only),
        "peers": lambda: peers.run(runner, cores, Effort(1, 0.3, 0.1) if is_quick else Effort(2, 0.5, 0.2)),
    }
    run[name]()


def _group(name: str) -> str:
    if name not in GROUPS:
        raise argparse.ArgumentTypeError(f"there is no group '{name}'; there are {', '.join(GROUPS)}")
    return name


def _options() -> argparse.Namespace:
    group_lines = "\n".join(f"  {name:<14}{what}" for name, what in GROUPS.items())
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=__doc__,
        epilog=f"groups:\n{group_lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("groups", nargs="*", type=_group, metavar="GROUP", help="what to measure; all of it if none")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="short rounds, for a first look in about a minute; without lists, runtimes, jobs and memory, unless named",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results of this run to a file")
    parser.add_argument(
        "--write-docs", action="store_true", help="keep the results, and write docs/performance.md and its chart anew"
    )
    parser.add_argument("--against", metavar="REV", help="measure calls and MCP of this code beside an earlier commit")
    parser.add_argument(
        "--row",
        action="append",
        metavar="TEXT",
        help="with --against, or for instructions: only rows whose name contains this (repeatable)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
