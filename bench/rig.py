"""Runs a load with the fastest generator that this machine can have."""

from __future__ import annotations

import os

from bench import load_native, load_python
from bench.load import Limit, Load, RequestPlan


def name() -> str:
    """Which generator and agents are used, for the head of a table."""
    return "load and agent in C" if load_native.program("load") else "load and agent in Python, which are the limit"


async def run(port: int, plan: RequestPlan, connections: int, limit: Limit, pid: int | None = None) -> Load:
    """Load one server; the CPU time of the process `pid` is measured. Raises ConnectionError."""
    binary = load_native.program("load")
    if binary is None:
        return await load_python.run(port, plan, connections, limit, pid)
    cores = os.sched_getaffinity(0)
    return await load_native.run(binary, port, plan, connections, limit, pid, min(cores) if len(cores) == 1 else None)
