"""`a2a-fabric mcp`: the official client starts the command, as desktop clients do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from msgspec import UNSET

from a2a_fabric.cli.mcp import StdioChannel, relay_to_node
from tests.fixtures import node as nodes
from tests.fixtures.mcp_client import MODES, words
from tests.fixtures.mcp_raw import initialize
from tests.marks import requirement
from tests.system.node import COMMAND, Node, environment, run, running_node, until

WAIT_TIMEOUT = 20.0

AGENT = """
import sys
from a2a_fabric.agent import Agent

agent = Agent(sys.argv[1])

@agent.capability
async def {capability}(task: str):
    for word in task.split():
        yield word
    yield {{"answer": f"{{sys.argv[1]}} did {{task}}"}}

agent.run(port=0, argv=[])
"""

NOISY = """
import os
from a2a_fabric.agent import Agent

print("imported")
agent = Agent("noisy")

@agent.capability
def shout(task: str) -> dict:
    print("this is no JSON-RPC", flush=True)
    os.write(1, b"nor is this\\n")
    os.system("echo nor this")
    return {"answer": task, "stdin": os.read(0, 10).decode()}
"""


@asynccontextmanager
async def stdio(folder: Path, mode: str, *options: str, **env: str) -> AsyncIterator[Client]:
    home = folder / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    command = StdioServerParameters(
        command=COMMAND[0], args=[*COMMAND[1:], "mcp", *options], env=environment(home, **env), cwd=str(folder)
    )
    async with asyncio.timeout(WAIT_TIMEOUT), Client(command, mode=mode) as connected:
        yield connected


@contextmanager
def agent_process(folder: Path, agent_id: str, capability: str) -> Iterator[dict[str, Any]]:
    """An agent as a process of its own on a port of its own; its manifest's entry."""
    source = folder / f"{agent_id}_agent.py"
    source.write_text(AGENT.format(capability=capability))
    log = folder / f"{agent_id}.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen([sys.executable, str(source), agent_id], stderr=stderr, stdin=subprocess.DEVNULL)
    try:
        line = until(lambda: next((x for x in log.read_text().splitlines() if "http://" in x), None), agent_id)
        uri = "http://" + line.partition("http://")[2].split()[0].rstrip("/")
        yield {"agent_id": agent_id, "runtime": "http", "endpoint": {"transport": "http", "uri": uri}}
    finally:
        process.kill()
        process.wait(WAIT_TIMEOUT)


@contextmanager
def raw(folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    home = folder / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    with (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            [*COMMAND, "mcp", *options],
            cwd=folder,
            env=environment(home),
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
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def say(process: subprocess.Popen[bytes], line: bytes) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + b"\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


@pytest.fixture(scope="module")
def two_agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("agents")
    with agent_process(folder, "percy", "reason") as percy, agent_process(folder, "coder", "code") as coder:
        yield [
            {**percy, "capabilities": [{"name": "reason", "streaming": True}]},
            {**coder, "capabilities": [{"name": "code", "streaming": True}]},
        ]


@requirement("001-01", "001-50")
@pytest.mark.parametrize("mode", MODES)
async def test_one_node_over_stdio_with_local_agent_processes(
    tmp_path: Path, mode: str, two_agents: list[dict[str, Any]]
) -> None:
    (tmp_path / "agents.yaml").write_text(json.dumps(two_agents))
    heard: list[str | None] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async with stdio(tmp_path, mode) as connected:
        names = [tool.name for tool in (await connected.list_tools()).tools]
        assert names[:2] == ["percy_reason", "coder_code"], "agents come first"
        for name, agent_id in (("percy_reason", "percy"), ("coder_code", "coder")):
            result = await connected.call_tool(name, {"task": "one two"}, progress_callback=listen)
            assert words(result) == f"{agent_id} did one two"
    assert heard == ["running", "one", "two"] * 2


async def test_without_any_configuration_the_demo_agents_answer(tmp_path: Path) -> None:
    async with stdio(tmp_path, "auto") as connected:
        listed = await connected.call_tool("fabric_agent_list")
        assert {"percy", "counter"} <= {agent["agent_id"] for agent in listed.structured_content["agents"]}
    assert not (tmp_path / "home" / "node.json").exists(), "it opens no port, so there is no node to announce"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Its folder has no configuration any more."""
    folder = tmp_path_factory.mktemp("node")
    entry = {
        "agent_id": "only",
        "runtime": "process",
        "endpoint": {"command": [sys.executable, "-c", "print('here')"], "protocol": "oneshot"},
        "capabilities": [{"name": "greet"}],
    }
    (folder / "agents.yaml").write_text(json.dumps([entry]))
    with running_node(folder) as node:
        (folder / "agents.yaml").unlink()
        yield node


@requirement("001-01")
@pytest.mark.parametrize("mode", MODES)
async def test_it_attaches_to_the_node_that_runs(node: Node, mode: str) -> None:
    def calls() -> int:
        return node.said.count('"target":"only"')

    before = calls()
    async with stdio(node.folder, mode) as connected:
        names = [tool.name for tool in (await connected.list_tools()).tools]
        assert names[0] == "only_greet", "a node of its own would have the demo fleet"
        assert words(await connected.call_tool("only_greet", {"task": "x"})) == "here"
        until(lambda: calls() > before, "the node's log")


async def test_with_a_configuration_it_is_a_node_of_its_own(node: Node, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(json.dumps([{"agent_id": "mine", "endpoint": {"uri": "http://127.0.0.1:9/"},
                                "capabilities": [{"name": "act"}]}]))  # fmt: skip
    async with stdio(node.folder, "auto", "--agents", str(own)) as connected:
        assert (await connected.list_tools()).tools[0].name == "mine_act"


async def test_what_agents_print_does_not_reach_the_client(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    (tmp_path / "agents.yaml").write_text(
        json.dumps([{"agent_id": "noisy", "endpoint": {"uri": "python:noisy:agent"}}])
    )
    async with stdio(tmp_path, "legacy") as connected:
        result = await connected.call_tool("fabric.tool.agent.noisy.shout", {"task": "quiet"})
        assert result.structured_content == {"answer": "quiet", "stdin": ""}


def test_lines_that_are_no_messages_are_answered_as_such(tmp_path: Path) -> None:
    with raw(tmp_path) as process:
        assert say(process, b"rubbish")["error"]["code"] == -32700
        assert say(process, b"\xff\xfe")["error"]["code"] == -32700
        assert say(process, b"[]")["error"]["code"] == -32600
        assert say(process, b"\n" + json.dumps(initialize()).encode())["result"]["serverInfo"]["name"] == "a2a-fabric"


@pytest.mark.parametrize("how", ["eof", "sigterm"])
def test_it_ends_with_its_client_and_takes_its_agents_along(tmp_path: Path, how: str) -> None:
    program = "import pathlib, os, sys\npathlib.Path('pid').write_text(str(os.getpid()))\nsys.stdin.read()"
    entry = {
        "agent_id": "child",
        "runtime": "process",
        "endpoint": {"command": [sys.executable, "-c", program], "protocol": "jsonl", "cwd": str(tmp_path)},
        "capabilities": [{"name": "wait"}],
    }
    (tmp_path / "agents.yaml").write_text(json.dumps([entry]))
    (tmp_path / "fabric.yaml").write_text("limits: {drain_seconds: 1}\n")  # what runs may finish for so long
    with raw(tmp_path) as process:
        say(process, json.dumps(initialize()).encode())
        assert process.stdin is not None
        call = {"name": "child_wait", "arguments": {"task": "x"}}
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}).encode())
        process.stdin.write(b"\n")
        process.stdin.flush()
        child = int(until(lambda: _text(tmp_path / "pid"), "the agent"))
        if how == "eof":
            process.stdin.close()
        else:
            process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_TIMEOUT) == 0
        until(lambda: not _is_alive(child), "the agent to end")


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def test_a_node_that_refuses_or_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running_node(tmp_path) as node:
        done = run("mcp", "--url", node.url, "--token", "wrong-token", home=home, folder=tmp_path, stdin="")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("Error: The node at")
    done = run("mcp", "--url", node.url, home=home, folder=tmp_path, stdin="")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: No node answers at")


def test_a_node_that_goes_away_ends_it_with_a_sentence(tmp_path: Path) -> None:
    with running_node(tmp_path) as node, raw(tmp_path) as process:
        say(process, json.dumps(initialize()).encode())
        node.signal(signal.SIGKILL)
        assert process.wait(WAIT_TIMEOUT) == 1
        assert "Error: The connection to the node at" in (tmp_path / "stderr").read_text()


async def test_a_view_narrows_a_node_of_its_own_and_a_node_that_runs(tmp_path: Path) -> None:
    (tmp_path / "fabric.yaml").write_text("views:\n  - {name: thinking, tools: ['percy.reason']}\n")
    agent = {"agent_id": "percy", "runtime": "http", "endpoint": {"uri": "http://127.0.0.1:9/"}}
    offered = [{"name": "reason"}, {"name": "plan"}]
    (tmp_path / "agents.yaml").write_text(json.dumps([{**agent, "capabilities": offered}]))

    async def list_agent_tools(folder: Path) -> list[str]:
        async with stdio(folder, "auto", "--view", "thinking") as connected:
            return [tool.name for tool in (await connected.list_tools()).tools if "percy" in tool.name]

    assert await list_agent_tools(tmp_path) == ["percy_reason"]
    with running_node(tmp_path) as node:
        assert await list_agent_tools(node.folder) == ["percy_reason"]
    done = run("mcp", "--view", "gone", home=tmp_path / "home", folder=tmp_path, stdin="")
    assert done.returncode == 1
    assert "This node has no view 'gone'. Its views are: thinking" in done.stderr


class BrokenChannel(StdioChannel):
    """Its lines end with an error of ours."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield json.dumps(initialize()).encode()
        raise LookupError("a mistake in the code that reads lines")


async def test_a_relay_whose_sending_side_fails_ends_with_that_error() -> None:
    async with nodes.running() as node:
        with BrokenChannel() as channel, pytest.raises(LookupError, match="a mistake"):
            await asyncio.wait_for(relay_to_node(node.url, nodes.PSK, UNSET, channel, None), WAIT_TIMEOUT)
