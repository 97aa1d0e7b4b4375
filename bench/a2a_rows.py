"""A2A SendMessage over JSON-RPC: an echo on the official SDK, and our node in front of an HTTP agent.

The node runs twice: with a task for every message, stored in SQLite before the agent is called, and
answering with messages, which stores nothing. The SDK's echo keeps its tasks in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import msgspec

from bench import load, processes
from bench.processes import TOKEN, Cores, ServerProcess
from bench.rows import Effort, Row, alternate, print_table, require_ready

SDK = "plain SDK echo"
MESSAGE = {"messageId": "bench", "role": "ROLE_USER", "parts": [{"text": "What is six times seven?"}]}
BODY = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": MESSAGE}})
AGENT_PATH = "/agents/plain-echo"
MANIFEST = """\
- agent_id: plain-echo
  runtime: http
  endpoint: {{transport: http, uri: 'http://127.0.0.1:{port}/'}}
  capabilities: [{{name: reason, modalities: [text]}}]
  trust_tier: org
"""
# Each request is the same: none may be taken for a repetition.
DOORS = "doors: [{{kind: fabric}}, {{kind: a2a, replay_seconds: 0, tasks: {tasks}}}]\n"


def run(runner: asyncio.Runner, cores: Cores, effort: Effort) -> None:
    with _rows(cores) as rows:
        require_ready(runner, rows)
        runner.run(alternate(rows, effort))
    print_table("A2A SendMessage", rows, lambda _: rows[0], "share of the SDK's echo")


@contextmanager
def _rows(cores: Cores) -> Iterator[list[Row]]:
    with (
        processes.agent(cores.load) as upstream,
        processes.module("bench.a2a_sdk_server", core=cores.gateway) as sdk,
        _node(upstream.port, "always", cores) as tasks,
        _node(upstream.port, "never", cores) as quick,
    ):
        yield [
            Row(SDK, *sdk, repeat_message(sdk.port, "/", "")),
            Row("fabric node, tasks", *tasks, repeat_message(tasks.port, AGENT_PATH, TOKEN)),
            Row("fabric node, messages", *quick, repeat_message(quick.port, AGENT_PATH, TOKEN)),
        ]


def _node(upstream: int, tasks: str, cores: Cores) -> AbstractContextManager[ServerProcess]:
    return processes.node(MANIFEST.format(port=upstream), cores.gateway, settings=DOORS.format(tasks=tasks))


def repeat_message(port: int, path: str, token: str) -> load.RequestPlan:
    headers = {"A2A-Version": "1.0"}
    return load.repeat_request(load.request(port, path, BODY, token=token, headers=headers), b'"result"')
