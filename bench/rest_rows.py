"""REST messages and tasks, stored in SQLite and PostgreSQL before the reply, which does not wait for the agent.

The same work on the Fabric wire, accepted as a job, is measured beside them.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import msgspec

from bench import load, processes
from bench.job_agent import AGENT_ID, MANIFEST
from bench.job_stores import ENGINES, open_stores
from bench.processes import TOKEN, Cores, ServerProcess
from bench.rows import Effort, Row, alternate, print_table

WORDS = "What is six times seven?"
ACCEPT_ONLY = (  # jobs are stored and never begun
    "jobs: {concurrent: 0, waiting_per_principal: 100000000}\n"
    "doors: [{kind: fabric}, {kind: rest, requests_per_minute: null}]\n"
)
CALL = {"name": "fabric.call", "arguments": {"agent_id": AGENT_ID, "capability": "reason", "task": WORDS}}
_JOB = {
    "name": "fabric.call",
    "arguments": {"agent_id": AGENT_ID, "capability": "reason", "task": WORDS, "async": True},
}
_TASK = {"agentId": AGENT_ID, "capability": "reason", "input": {"task": WORDS}}
_MESSAGE = {"recipient": {"id": AGENT_ID, "type": "agent"}, "parts": [{"type": "text", "content": WORDS}]}


def run(runner: asyncio.Runner, cores: Cores, effort: Effort) -> None:
    with open_stores() as stores, ExitStack() as stack:
        tables: list[list[Row]] = []
        for engine in ENGINES:
            settings = f"store: '{stores.create_store(engine)}'\n{ACCEPT_ONLY}"
            served = stack.enter_context(processes.node(MANIFEST, cores.gateway, settings=settings))
            tables.append(rows_of(engine, served))
        rows = [row for table in tables for row in table]
        runner.run(alternate(rows, effort))
        first = {row.name: table[0] for table in tables for row in table}
        print_table("REST, durable", rows, lambda row: first[row.name], "of fabric.call")


def rows_of(name: str, served: ServerProcess) -> list[Row]:
    """Three ways to have the same work accepted."""
    return [
        _row(name, served, "fabric.call as a job", "/mcp/call", _JOB, b'"job_id"'),
        _row(name, served, "POST /v1/tasks", "/v1/tasks", _TASK, b'"status":"pending"'),
        _row(name, served, "POST /v1/messages", "/v1/messages", _MESSAGE, b'"delivery"'),
    ]


def _row(name: str, served: ServerProcess, what: str, path: str, body: Any, expected: bytes) -> Row:
    request = load.request(served.port, path, msgspec.json.encode(body), token=TOKEN)
    return Row(f"{name}, {what}", *served, load.repeat_request(request, expected), what)
