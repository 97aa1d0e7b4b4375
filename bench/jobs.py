"""Durable jobs on SQLite and PostgreSQL: how many, how they are followed and listed, and what they cost plain calls."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from bench import job_lists, job_logs, job_rates, processes
from bench.calls import Place, manifests
from bench.calls import calls as measure_calls
from bench.job_places import ENGINES, Places, places
from bench.processes import TOKEN, Cores
from bench.rows import Effort

BARE = "bare forwarder"


def run(runner: asyncio.Runner, cores: Cores, *, quick: bool) -> None:
    effort = Effort(1, 0.5, 0.3) if quick else Effort(3, 3.0)
    with places() as found:
        runner.run(job_rates.run(cores, found, effort))
        runner.run(job_logs.run(cores, found, events=10_000 if quick else 100_000, followers=500 if quick else 5_000))
        runner.run(job_lists.run(found, jobs=200_000 if quick else 1_000_000))
        _plain_calls(runner, cores, found, effort)


def _plain_calls(runner: asyncio.Runner, cores: Cores, found: Places, effort: Effort) -> None:
    """Calls that are no jobs, by a node with each kind of store and by one without."""
    with ExitStack() as stack:
        upstream = stack.enter_context(processes.agent(cores.load))
        bare = stack.enter_context(processes.forwarder(upstream.port, cores.gateway))
        rows = [Place(BARE, *bare)]
        for name in ("no store", *ENGINES):
            address = "memory:" if name == "no store" else found.fresh(name)
            settings = f"store: '{address}'\n"
            served = stack.enter_context(processes.node(manifests(upstream.port), cores.gateway, settings=settings))
            rows.append(Place(f"plain calls, {name}", *served, "/mcp/call", TOKEN))
        runner.run(measure_calls(rows, effort))
