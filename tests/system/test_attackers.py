"""Honest callers beside each kind of attacker: they all succeed, hardly slower, and the node's memory comes back.

`make soak` runs it. An attacker has a valid key (but where it shows none) and a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.system.attackers import ATTACKS
from tests.system.node import Node, running_node

pytestmark = pytest.mark.soak

HONEST, MALLORY = "the-key-of-an-honest-caller", "the-key-of-an-attacker"
SECONDS = float(os.environ.get("ATTACK_SECONDS", "8"))
RATE = 40.0  # honest calls a second
NOISE = 0.05  # seconds that this machine takes away now and then
CONFIG = f"""
agents: [agents.yaml]
limits: {{concurrent_calls: 200, concurrent_calls_per_agent: 100, streams: 100, connections: 400}}
doors:
  - {{kind: fabric}}
  - {{kind: mcp, max_sessions: 100, session_unused: 5}}
  - {{kind: a2a}}
jobs: {{concurrent: 16}}
auth:
  keys:
    - {{id: honest, key: {HONEST}, scopes: ["*"], trust: local}}
    - {{id: mallory, key: {MALLORY}, scopes: ["*"], trust: local}}
"""
AGENTS = """
- {agent_id: worker, runtime: python, endpoint: {uri: "python:worker:agent"}}
- {agent_id: honest-worker, runtime: python, endpoint: {uri: "python:worker:honest"}}
"""
WORKER = """
import asyncio
from a2a_fabric import Agent

agent, honest = Agent("worker"), Agent("honest-worker")

@honest.capability
@agent.capability
async def echo(task: str) -> str:
    return task

@agent.capability
async def hold(task: str) -> str:
    await asyncio.sleep(30)
    return task

@agent.capability
async def big(task: str) -> str:
    return "x" * 4_000_000
"""

# Attacks that read replies: what they must have got, else they were only wrong requests.
REACHED = {
    "impatient calls": {"TIMEOUT"},
    "many sessions": {"ok"},
    "many jobs": {"ok"},
    "slow tools": {"ok"},
    "schema bombs": {"ok", "BAD_INPUT"},
    "loops through the node": {"UPSTREAM_ERROR"},
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    (tmp_path / "fabric.yaml").write_text(CONFIG)
    (tmp_path / "agents.yaml").write_text(AGENTS)
    (tmp_path / "worker.py").write_text(WORKER)
    with running_node(tmp_path, PYTHONPATH=str(tmp_path)) as running:
        yield running


def resident(node: Node) -> int:
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


CALL = {"name": "fabric.call", "arguments": {"agent_id": "honest-worker", "capability": "echo", "task": "hello"}}
LIST = {"name": "fabric.agent.list", "arguments": {}}
TOOL = {"name": "fabric.tool.math.calculate", "arguments": {"expression": "6 * 7"}}
JOB = {"name": "fabric.call", "arguments": {**CALL["arguments"], "async": True}}  # type: ignore[dict-item]
SHARED = {"name": "fabric.call", "arguments": {**CALL["arguments"], "agent_id": "worker"}}  # type: ignore[dict-item]


async def honest_calls(url: str, seconds: float) -> tuple[list[float], list[str]]:
    """How long each took, and what went wrong; at an even pace, on a few connections, of every kind."""
    took: list[float] = []
    wrong: list[str] = []
    kinds = (CALL, SHARED, LIST, TOOL, JOB)
    headers = {"Authorization": f"Bearer {HONEST}"}

    async def one(session: aiohttp.ClientSession, number: int) -> None:
        body: Any = kinds[number % len(kinds)]
        started = time.perf_counter()
        try:
            async with session.post(f"{url}/mcp/call", json=body) as reply:
                envelope = await reply.json()
                if not envelope["ok"]:
                    wrong.append(f"{body['name']}: {envelope['error']}")
        except (aiohttp.ClientError, TimeoutError) as exc:
            wrong.append(f"{body['name']}: {type(exc).__name__} {exc}")
        took.append(time.perf_counter() - started)

    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=20)) as session:
        calls = []
        for number in range(int(seconds * RATE)):
            calls.append(asyncio.ensure_future(one(session, number)))
            await asyncio.sleep(1 / RATE)
        await asyncio.gather(*calls)
    return took, wrong


async def warm_up(url: str) -> None:
    """Each kind of request once, so that what is imported on first use is there."""
    await honest_calls(url, 1)
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "honest", "version": "1"}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    diff = {"name": "fabric.tool.text.diff", "arguments": {"a": "x", "b": "y"}}
    manifest = {"agent_id": "away", "runtime": "mcp", "endpoint": {"uri": "http://127.0.0.1:9/mcp"}}
    register = {"name": "fabric.agent.register", "arguments": manifest}
    offline = {"name": "fabric.call", "arguments": {"agent_id": "away", "capability": "x", "task": ""}}
    headers = {"Authorization": f"Bearer {HONEST}", "Accept": "application/json, text/event-stream"}
    async with aiohttp.ClientSession(headers=headers) as session:
        for path, body in (("/mcp", request), ("/mcp/call", diff), ("/mcp/call", register), ("/mcp/call", offline)):
            async with session.post(url + path, json=body) as reply:
                await reply.read()


def p99(took: list[float]) -> float:
    return sorted(took)[int(len(took) * 0.99)]


@pytest.mark.parametrize("name", list(ATTACKS))
async def test_honest_callers_hardly_notice_an_attacker(node: Node, name: str) -> None:
    await warm_up(node.url)
    quiet, wrong = await honest_calls(node.url, SECONDS / 2)
    assert not wrong
    before = resident(node)
    command = [sys.executable, "-m", "tests.system.attackers", name, node.url, MALLORY, str(SECONDS + 2)]
    attacker = await asyncio.create_subprocess_exec("nice", "-n", "5", *command, stdout=asyncio.subprocess.PIPE)
    await asyncio.sleep(2)  # until it has what it can get
    took, wrong = await honest_calls(node.url, SECONDS)
    printed, _ = await asyncio.wait_for(attacker.communicate(), 120)
    outcomes = json.loads(printed)
    after = before
    async with asyncio.timeout(150):  # free memory goes back to the system once a minute
        while True:
            await honest_calls(node.url, 1)
            after = resident(node)
            if after < before * 1.2:
                break
    print(
        f"{name}: {len(took)} honest calls, {len(wrong)} failed, p99 {p99(took) * 1000:.1f} ms "
        f"(undisturbed {p99(quiet) * 1000:.1f}), memory {before >> 20} -> {after >> 20} MB, attacker: {outcomes}"
    )
    assert REACHED.get(name, set()) <= set(outcomes), "the attack itself did not take place"
    assert wrong == []
    assert p99(took) <= max(2 * p99(quiet), p99(quiet) + NOISE)
