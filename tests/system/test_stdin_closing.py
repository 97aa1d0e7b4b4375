"""A client of `a2a-fabric mcp` that closes stdin gets the replies to what it asked before."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.system.node import COMMAND, WAIT_TIMEOUT, environment, running_node

AGENT = """
import asyncio
from a2a_fabric.agent import Agent

agent = Agent("slow")

@agent.capability
async def think(task: str) -> dict:
    await asyncio.sleep(1.5)
    return {"answer": f"thought about {task}"}

@agent.capability
async def brood(task: str) -> dict:
    await asyncio.Event().wait()
    return {}
"""
CONFIG = "limits: {drain_seconds: %s}\nagents: [agents.yaml]\n"
SCHEMA = {"type": "object", "properties": {"task": {"type": "string"}}, "required": ["task"]}
CAPABILITIES = [{"name": name, "input_schema": SCHEMA} for name in ("think", "brood")]
MANIFEST = [
    {
        "agent_id": "slow",
        "runtime": "python",
        "endpoint": {"uri": "python:slow_agent:agent"},
        "capabilities": CAPABILITIES,
    }
]
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "slow_agent.py").write_text(AGENT)
    (tmp_path / "agents.yaml").write_text(json.dumps(MANIFEST))
    (tmp_path / "fabric.yaml").write_text(CONFIG % 30)
    (tmp_path / "home").mkdir(mode=0o700)
    return tmp_path


@contextmanager
def client(folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "said").open("wb") as stderr:
        process = subprocess.Popen(
            [*COMMAND, "mcp", *options],
            cwd=folder,
            env=environment(folder / "home", PYTHONPATH=str(folder)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(WAIT_TIMEOUT)


def message(number: int | None, method: str, **params: Any) -> bytes:
    body = {"jsonrpc": "2.0", "method": method, "params": params, **({} if number is None else {"id": number})}
    return json.dumps(body).encode() + b"\n"


def conversation(capability: str, count: int = 3) -> bytes:
    calls = [
        message(10 + number, "tools/call", name="slow_" + capability, arguments={"task": f"nr {number}"})
        for number in range(count)
    ]
    return b"".join([message(1, "initialize", **HELLO), message(None, "notifications/initialized"), *calls])


def replies(said: bytes) -> dict[int, Any]:
    found = [json.loads(line) for line in said.splitlines()]
    return {each["id"]: each for each in found if "id" in each}


def check_all_answered(said: bytes) -> None:
    found = replies(said)
    assert sorted(found) == [1, 10, 11, 12]
    for number in range(3):
        assert f"thought about nr {number}" in json.dumps(found[10 + number]["result"])


def test_running_calls_of_a_node_of_its_own_are_answered(folder: Path) -> None:
    with client(folder, "--config", "fabric.yaml") as process:
        said, _ = process.communicate(conversation("think"), WAIT_TIMEOUT)
        assert process.returncode == 0
    check_all_answered(said)


def test_running_calls_on_a_node_that_runs_are_answered(folder: Path) -> None:
    with (
        running_node(folder, "--config", "fabric.yaml", PYTHONPATH=str(folder)) as node,
        client(folder, "--url", node.url, "--token", node.token) as process,
    ):
        said, _ = process.communicate(conversation("think"), WAIT_TIMEOUT)
        assert process.returncode == 0
    check_all_answered(said)


def test_a_call_that_does_not_end_is_not_waited_for_longer_than_the_drain_time(folder: Path) -> None:
    (folder / "fabric.yaml").write_text(CONFIG % 1)
    with client(folder, "--config", "fabric.yaml") as process:
        said, _ = process.communicate(conversation("brood"), WAIT_TIMEOUT)
    assert 1 in replies(said)


def test_a_call_that_was_cancelled_is_not_waited_for(folder: Path) -> None:
    (folder / "fabric.yaml").write_text(CONFIG % 1000)
    cancelled = message(None, "notifications/cancelled", requestId=10)
    with client(folder, "--config", "fabric.yaml") as process:
        said, _ = process.communicate(conversation("brood", 1) + cancelled, WAIT_TIMEOUT)
    assert 1 in replies(said)


def test_json_that_is_nested_too_deep_is_an_error_and_the_conversation_goes_on(folder: Path) -> None:
    (folder / "fabric.yaml").write_text(CONFIG % 1000)  # it would be waited for in vain
    deep = b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":' + b'{"a":' * 700 + b"1" + b"}" * 700 + b"}\n"
    with client(folder, "--config", "fabric.yaml") as process:
        said, _ = process.communicate(conversation("think") + deep, WAIT_TIMEOUT)
    errors = [each for line in said.splitlines() if "error" in (each := json.loads(line))]
    assert [error["error"]["code"] for error in errors] == [-32700]
    assert "nested" in errors[0]["error"]["message"]
    assert {1, 10, 11, 12} <= set(replies(said))
