"""Measures everything side by side in one run, in alternating rounds: compare the ratios, not the absolute figures."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
from datetime import UTC, datetime

import uvloop

from bench import (
    a2a_rows,
    against,
    calls,
    jobs,
    mcp_rows,
    planning,
    processes,
    rest_rows,
    runtimes_rows,
    starts,
    tool_lists,
)
from bench.rows import Effort

GROUPS = {
    "calls": "/mcp/call to an HTTP agent: calls, streamed events, memory",
    "mcp": "MCP tools/call to an MCP server, in both eras",
    "lists": "MCP lists of tools: long ones, the first after a restart; calls with filters and views",
    "a2a": "A2A SendMessage, beside an echo on the official SDK",
    "rest": "REST messages and tasks on SQLite and PostgreSQL",
    "runtimes": "every runtime beside its agent asked directly: calls, streamed events",
    "jobs": "durable jobs on SQLite and PostgreSQL: accepted, done, followed, listed",
    "starts": "a node from its start to its first answer",
    "planning": "finding an agent and planning a route",
}


def main() -> None:
    options = _options()
    wanted = options.groups or list(GROUPS)
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {platform.machine()}, {os.cpu_count()} cores, Python "
          f"{platform.python_version()}; gateway on one core, load and agent on the other")  # fmt: skip
    cores = processes.pin_to_cores()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.against:
            against.run(runner, cores, Effort(9, 0.3, 0.3) if options.quick else Effort(31, 0.3), options.against)
            return
        if "calls" in wanted:
            effort = Effort(2, 0.5, 0.3) if options.quick else Effort(5, 3.0)
            calls.run(runner, cores, effort, many=20_000 if options.quick else 100_000)
        if "mcp" in wanted:
            mcp_rows.run(runner, cores, Effort(1, 0.5, 0.2) if options.quick else Effort(5, 2.0))
        if "lists" in wanted:
            tool_lists.run(runner, cores, Effort(2, 0.5, 0.3) if options.quick else Effort(5, 1.0))
        if "a2a" in wanted:
            a2a_rows.run(runner, cores, Effort(1, 0.5, 0.3) if options.quick else Effort(5, 2.0))
        if "runtimes" in wanted:
            runtimes_rows.run(runner, Effort(1, 0.1, 0.05) if options.quick else Effort(5, 0.4, 0.3))
        if "rest" in wanted:
            rest_rows.run(runner, cores, Effort(1, 0.5, 0.3) if options.quick else Effort(5, 2.0))
        if "jobs" in wanted:
            jobs.run(runner, cores, quick=options.quick)
        if "starts" in wanted:
            starts.run(runner, cores)
    if "planning" in wanted:
        planning.run()


def _group(name: str) -> str:
    if name not in GROUPS:
        raise argparse.ArgumentTypeError(f"there is no group '{name}'; there are {', '.join(GROUPS)}")
    return name


def _options() -> argparse.Namespace:
    group_lines = "\n".join(f"  {name:<10}{what}" for name, what in GROUPS.items())
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=__doc__,
        epilog=f"groups:\n{group_lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("groups", nargs="*", type=_group, metavar="GROUP", help="what to measure; all of it if none")
    parser.add_argument("--quick", action="store_true", help="short rounds, for a first look in about a minute")
    parser.add_argument("--against", metavar="REV", help="measure calls and MCP of this code beside an earlier commit")
    return parser.parse_args()


if __name__ == "__main__":
    main()
