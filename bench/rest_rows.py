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
from bench.rows import CONNECTIONS, Effort, Row, alternate, cells

WORDS = "What is six times seven?"
_SETTINGS = (
    "jobs: {concurrent: 0, waiting_per_principal: 100000000}\n"
    "doors: [{kind: fabric}, {kind: rest, requests_per_minute: null}]\n"
)
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
            settings = f"store: '{stores.create_store(engine)}'\n{_SETTINGS}"
            served = stack.enter_context(processes.node(MANIFEST, cores.gateway, settings=settings))
            tables.append(
                [
                    _row(f"{engine}, fabric.call as a job", served, "/mcp/call", _JOB, b'"job_id"'),
                    _row(f"{engine}, POST /v1/tasks", served, "/v1/tasks", _TASK, b'"status":"pending"'),
                    _row(f"{engine}, POST /v1/messages", served, "/v1/messages", _MESSAGE, b'"delivery"'),
                ]
            )
        runner.run(alternate([row for table in tables for row in table], effort))
        _print(tables)


def _row(name: str, served: ServerProcess, path: str, body: Any, expected: bytes) -> Row:
    request = load.request(served.port, path, msgspec.json.encode(body), token=TOKEN)
    return Row(name, *served, load.repeat_request(request, expected))


def _print(tables: list[list[Row]]) -> None:
    print("\n| REST, durable | connections | requests/s | p50 ms | p99 ms | CPU µs | of fabric.call |")
    print("|---|---|---|---|---|---|---|")
    for connections in CONNECTIONS:
        for first, *others in tables:
            for row in (first, *others):
                print(cells(row, connections, first))
