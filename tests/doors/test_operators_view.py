"""What only the operator sees: more of an address than scheme and host, stderr of a program, private metadata, and the
text of an exception of a Python agent. Every door is asked as the operator and as a caller with a key of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.agent import Agent
from a2a_fabric.core.errors import BadInput
from tests.doors.a2a_clients import message
from tests.fixtures.mcp_client import client
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually, running
from tests.matrix.agents.listening import listening

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALICE = "the-key-of-alice"
SECRET = "s3cret"  # in everything that only the operator may read
REFUSAL = "depth is between 1 and 9"

ONESHOT = f"import sys; sys.stderr.write('{SECRET} on stderr'); sys.exit(3)"
LINES = f"import sys; sys.stdin.readline(); sys.stderr.write('{SECRET} on stderr'); sys.stderr.flush(); sys.exit(3)"
SERVER = f"import sys; sys.stderr.write('{SECRET} on stderr'); sys.stderr.flush(); sys.exit(3)"
UNREACHABLE = f"http://127.0.0.1:9/{SECRET}-path/agent"


def thrower(agent_id: str) -> Agent:
    agent = Agent(agent_id)

    @agent.capability
    async def go(task: str) -> dict[str, Any]:
        if task == "value":
            raise ValueError(f"{SECRET} in a value")
        if task == "refuse":
            raise BadInput(REFUSAL)
        raise RuntimeError(f"{SECRET} in the code")

    return agent


def manifests(remote: str) -> list[dict[str, Any]]:
    def one(agent_id: str, runtime: str, **endpoint: Any) -> dict[str, Any]:
        return {
            "agent_id": agent_id,
            "runtime": runtime,
            "endpoint": endpoint,
            "capabilities": [{"name": "go", "idempotent": False}],
            "metadata": {
                "team": "search",
                "private": {"note": f"{SECRET} note"},
                "private_pager": f"{SECRET} pager",
                "more": {"private-word": SECRET, "open": "word"},
            },
        }

    return [
        one("oneshot", "process", command=[sys.executable, "-c", ONESHOT], protocol="oneshot"),
        one("lines", "process", command=[sys.executable, "-c", LINES]),
        one("server", "mcp", command=[sys.executable, "-c", SERVER]),
        one("away", "http", uri=UNREACHABLE),
        one("rpc", "rpc", uri=UNREACHABLE),
        one("rest", "rest", uri=UNREACHABLE),
        one("a2a", "a2a", uri=UNREACHABLE),
        one("acp", "acp", uri=UNREACHABLE),
        one("module", "python", uri=f"python:{SECRET}_module:agent"),
        one("missing", "process", command=[f"/nowhere/{SECRET}-program"]),
        one("remote", "http", uri=remote),
    ]


AGENTS = ("oneshot", "lines", "server", "away", "rpc", "rest", "a2a", "acp", "module", "missing", "remote", "thrower")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    config = {
        "store": "memory:",
        "auth": {"keys": [{"id": "alice", "key": ALICE}]},
        "doors": [{"kind": kind} for kind in ("fabric", "mcp", "a2a", "rest", "directory")],
        "health": {"interval": 0},
        "breaker": {"failures": 10_000},
    }
    async with AsyncExitStack() as stack:
        remote = await stack.enter_async_context(listening(thrower("remote").app))
        yield await stack.enter_async_context(running(thrower("thrower"), manifests=manifests(remote), config=config))


async def by_fabric(node: Node, token: str, agent_id: str, task: str = "go") -> str:
    given = {"agent_id": agent_id, "capability": "go", "task": task}
    return (
        await node.send("POST", "/mcp/call", json={"name": "fabric.call", "arguments": given}, token=token)
    ).body.decode()


async def by_stream(node: Node, token: str, agent_id: str, task: str = "go") -> str:
    given = {"agent_id": agent_id, "capability": "go", "task": task, "stream": True}
    body = {"name": "fabric.call", "arguments": given}
    reply = await node.send("POST", "/mcp/call", json=body, token=token, headers={"Accept": "text/event-stream"})
    return reply.body.decode()


async def by_job(node: Node, token: str, agent_id: str, task: str = "go") -> str:
    given = {"agent_id": agent_id, "capability": "go", "task": task, "async": True}
    job = (await node.operation("fabric.call", given, token=token))["result"]["job_id"]
    async with asyncio.timeout(WAIT_TIMEOUT):
        while True:
            told = await node.operation("fabric.job.status", {"job_id": job}, token=token)
            if told["result"]["state"] not in ("queued", "running"):
                break
            await asyncio.sleep(0.02)
    events = await node.operation("fabric.job.events", {"job_id": job}, token=token)
    return json.dumps([told, events])


async def by_mcp(node: Node, token: str, agent_id: str, task: str = "go") -> str:
    async with client(node, token=token) as mcp:
        result = await mcp.call_tool("fabric_call", {"agent_id": agent_id, "capability": "go", "task": task})
        direct = await mcp.call_tool(f"{agent_id}_go", {"task": task})
    return result.model_dump_json() + direct.model_dump_json()


async def by_a2a(node: Node, token: str, agent_id: str, task: str = "go") -> str:
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message(task, skill="go")}}
    path, headers = f"/agents/{agent_id}", {"A2A-Version": "1.0"}
    return (await node.send("POST", path, json=body, token=token, headers=headers)).body.decode()


async def by_rest(node: Node, token: str, agent_id: str, task: str = "go") -> str:
    body = {"agentId": agent_id, "capability": "go", "input": {"task": task}}
    made = (await node.send("POST", "/v1/tasks", json=body, token=token)).json
    async with asyncio.timeout(WAIT_TIMEOUT):
        while True:
            reply = await node.send("GET", f"/v1/tasks/{made['id']}", token=token)
            if reply.json["status"] not in ("pending", "running"):
                return reply.body.decode()
            await asyncio.sleep(0.02)


async def by_directory(node: Node, token: str, agent_id: str, task: str = "go") -> str:
    params = {"taskId": f"t-{agent_id}-{task}-{token}", "action": "go", "sender": "x", "input": {"task": task}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "a2a/task", "params": params}
    return (await node.send("POST", f"/a2a/agents/{agent_id}/rpc", json=body, token=token)).body.decode()


async def by_agent_mcp(node: Node, token: str, agent_id: str) -> str:
    """The agent's own MCP address: for an MCP server what it says itself, or why it is not there."""
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    headers = {"Accept": "application/json, text/event-stream"}
    return (await node.send("POST", f"/agents/{agent_id}/mcp", json=body, token=token, headers=headers)).body.decode()


Door = Callable[..., Awaitable[str]]
DOORS: list[Door] = [by_fabric, by_stream, by_job, by_mcp, by_a2a, by_rest, by_directory]
every_door = pytest.mark.parametrize("door", DOORS, ids=[door.__name__ for door in DOORS])


@every_door
@pytest.mark.parametrize("agent_id", AGENTS)
async def test_a_failure_tells_a_caller_neither_stderr_nor_exception_nor_path(
    node: Node, door: Door, agent_id: str
) -> None:
    told = await door(node, ALICE, agent_id)
    assert SECRET not in told
    assert "error" in told.lower()


async def test_a_server_that_cannot_be_tunnelled_to_does_not_show_its_stderr_either(node: Node) -> None:
    told = await by_agent_mcp(node, ALICE, "server")
    assert SECRET not in told
    assert "error" in told


@pytest.mark.parametrize("agent_id", ["oneshot", "lines", "server", "module", "missing", "remote", "thrower"])
async def test_the_operator_reads_it(node: Node, agent_id: str) -> None:
    assert SECRET in await by_fabric(node, PSK, agent_id)


async def test_the_caller_learns_how_the_program_ended(node: Node) -> None:
    assert "The program exited with code 3" in await by_fabric(node, ALICE, "oneshot")


@pytest.mark.parametrize("agent_id", ["thrower", "remote"])
async def test_the_caller_of_a_python_agent_learns_where_its_operator_finds_the_reason(
    node: Node, agent_id: str
) -> None:
    for task, word in (("go", "failed"), ("value", "refused")):
        envelope = json.loads(await by_fabric(node, ALICE, agent_id, task))
        where = "its operator finds the reason in the node's log under this trace id"
        assert envelope["error"] == f"The agent {word}; {where}"
        trace_id = envelope["trace"]["trace_id"]

        async def is_logged(trace_id: str = trace_id) -> bool:
            lines = node.log.getvalue().splitlines()
            return any(trace_id in line and SECRET in line for line in lines)

        await eventually(is_logged)


@every_door
@pytest.mark.parametrize("agent_id", ["thrower", "remote"])
async def test_what_the_author_says_with_an_error_of_ours_reaches_the_caller(
    node: Node, door: Door, agent_id: str
) -> None:
    assert REFUSAL in await door(node, ALICE, agent_id, "refuse")


VIEWS: dict[str, tuple[str, dict[str, Any]]] = {
    "list": ("fabric.agent.list", {}),
    "details": ("fabric.agent.list", {"details": True}),
    "health": ("fabric.health", {}),
    "tools": ("fabric.tool.list", {}),
    **{f"describe {agent_id}": ("fabric.agent.describe", {"agent_id": agent_id}) for agent_id in AGENTS},
    **{f"checks of {agent_id}": ("fabric.agent.health", {"agent_id": agent_id}) for agent_id in AGENTS},
    "preview": ("fabric.route.preview", {"agent_id": "away", "capability": "go"}),
    "search": ("fabric.agent.search", {"query": "go"}),
}
PAGES = (
    "/health", "/mcp/list_agents", "/mcp/list_tools", "/mcp/agent/away", "/mcp/agent/oneshot", "/mcp/health",
    "/monitoring/status", "/monitoring/health", "/v1/agents", "/v1/agents/away",
    "/agents/away/.well-known/agent-card.json", "/.well-known/agent-card.json", "/.well-known/agent.json",
    "/a2a/agents/away",
)  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seen(node: Node) -> Node:
    """A node that has noticed how its agents are."""
    for agent_id in AGENTS:
        await by_fabric(node, PSK, agent_id)
    return node


@pytest.mark.parametrize("view", VIEWS)
async def test_no_view_shows_a_caller_more_than_scheme_and_host(seen: Node, view: str) -> None:
    name, arguments = VIEWS[view]
    envelope = await seen.operation(name, arguments, token=ALICE)
    assert envelope["ok"], envelope
    assert SECRET not in json.dumps(envelope)


@pytest.mark.parametrize("path", PAGES)
async def test_no_page_does_either(seen: Node, path: str) -> None:
    for token in (ALICE, None):
        assert SECRET not in (await seen.send("GET", path, token=token)).body.decode()


async def test_no_mcp_resource_does_either(seen: Node) -> None:
    async with client(seen, token=ALICE) as mcp:
        for agent_id in AGENTS:
            shown = await mcp.read_resource(f"fabric://agents/{agent_id}")
            assert SECRET not in shown.model_dump_json()


async def test_the_directory_and_its_like_do_not_either(seen: Node) -> None:
    for method in ("a2a/discover",):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}
        assert SECRET not in (await seen.send("POST", "/a2a", json=body, token=ALICE)).body.decode()


async def test_scheme_and_host_and_what_is_not_private_are_shown(seen: Node) -> None:
    given = {"agent_id": "away"}
    shown = (await seen.operation("fabric.agent.describe", given, token=ALICE))["result"]["agent"]
    assert shown["endpoint"]["uri"] == "http://127.0.0.1:9"
    assert shown["metadata"] == {"team": "search", "more": {"open": "word"}}
    assert shown["error"] == "The agent is offline. Its operator sees why"
    card = (await seen.send("GET", "/v1/agents/away", token=ALICE)).json
    assert card["metadata"]["team"] == "search"


async def test_the_operator_sees_all_of_it(seen: Node) -> None:
    shown = (await seen.operation("fabric.agent.describe", {"agent_id": "away"}))["result"]["agent"]
    assert shown["endpoint"]["uri"] == UNREACHABLE
    assert shown["metadata"]["private"] == {"note": f"{SECRET} note"}
    shown = (await seen.operation("fabric.agent.describe", {"agent_id": "server"}))["result"]["agent"]
    assert SECRET in shown["error"]


async def test_a_caller_without_a_key_on_an_open_node_of_this_machine_is_its_operator(tmp_path: Path) -> None:
    open_node = {"auth": {"anonymous": True}, "store": "memory:"}
    async with running(thrower("thrower"), config=open_node, psk=None) as node:
        given = {"agent_id": "thrower", "capability": "go", "task": "value"}
        envelope = await node.operation("fabric.call", given, token=None)
        assert envelope["error"] == f"{SECRET} in a value"
