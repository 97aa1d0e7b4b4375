"""Durable jobs on SQLite, PostgreSQL and NATS: rates, logs, lists, and their cost for plain calls."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from bench import job_lists, job_logs, job_rates, processes
from bench.calls import CallTarget, manifests, measure_calls
from bench.job_stores import ENGINES, BenchStores, open_stores
from bench.processes import TOKEN, Cores
from bench.rows import Effort

BARE = "bare forwarder"


def run(runner: asyncio.Runner, cores: Cores, *, quick: bool) -> None:
    effort = Effort(1, 0.5, 0.3) if quick else Effort(3, 1.0)
    with open_stores() as stores:
        runner.run(job_rates.run(cores, stores, effort))
        runner.run(job_logs.run(cores, stores, events=10_000 if quick else 100_000, followers=500 if quick else 5_000))
        runner.run(job_lists.run(stores, jobs=200_000 if quick else 1_000_000))
        _plain_calls(runner, cores, stores, effort)


def _plain_calls(runner: asyncio.Runner, cores: Cores, stores: BenchStores, effort: Effort) -> None:
    """Plain calls to a node with each kind of store, and without one."""
    with ExitStack() as stack:
        upstream = stack.enter_context(processes.agent(cores.load))
        bare = stack.enter_context(processes.forwarder(upstream.port, cores.gateway))
        rows = [CallTarget(BARE, *bare)]
        for name in ("no store", *ENGINES):
            address = "memory:" if name == "no store" else stores.create_store(name)
            settings = f"store: '{address}'\n"
            served = stack.enter_context(processes.node(manifests(upstream.port), cores.gateway, settings=settings))
            rows.append(CallTarget(f"plain calls, {name}", *served, "/mcp/call", TOKEN))
        runner.run(measure_calls(rows, effort))
