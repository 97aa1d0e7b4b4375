"""An agent that leads back to the node is refused at the first return, over whichever protocol it leads there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from a2a_fabric.agent import Agent
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, running
from tests.runtimes.fabric_nodes import QUIET, Line

KEY = {"authorization": f"Bearer {PSK}"}
MARKER = "round-and-round"
SCHEMA = {"type": "object", "properties": {"task": {"type": "string"}}, "required": ["task"]}
GRPC = {"kind": "a2a", "grpc": "127.0.0.1:0"}


def looping(kind: str, url: str, agent_id: str = "self") -> dict[str, Any]:
    """An agent whose address is that of an agent with the same id on the node at `url`."""
    runtime, _, way = kind.partition(" ")
    endpoint: dict[str, Any] = {"uri": f"{url}/agents/{agent_id}", "headers": KEY}
    name = "echo"
    if runtime == "a2a":
        version, endpoint["push"] = way.partition(" ")[2], False
        endpoint["binding"] = way.partition(" ")[0]
        if version:
            endpoint["version"] = version
    elif runtime == "mcp":
        endpoint["era"], _, path = way.partition(" ")
        endpoint["uri"] += "/mcp"
        if path == "/mcp":
            endpoint["uri"], name = f"{url}/mcp", f"{agent_id}_echo"
    elif runtime == "rest":
        endpoint |= {"uri": f"{url}/v1", "agent": agent_id, "mode": way}
    elif runtime == "rpc":
        endpoint["uri"] = f"{url}/a2a/agents/{agent_id}/rpc"
    elif runtime == "fabric":
        endpoint = {"uri": url, "psk": PSK, "agent": agent_id}
    elif runtime == "http":
        inner = {"agent_id": agent_id, "capability": "echo", "task": "${task}"}
        endpoint |= {"uri": f"{url}/mcp/call", "request": {"name": "fabric.call", "arguments": inner}}
    capabilities = [{"name": each, "input_schema": SCHEMA} for each in sorted({"echo", name})]
    return {"agent_id": agent_id, "runtime": runtime, "endpoint": endpoint, "capabilities": capabilities}


KINDS = (
    "a2a jsonrpc",
    "a2a http",
    "a2a grpc",
    "a2a jsonrpc 0.3",
    "mcp stateless",
    "mcp handshake",
    "mcp stateless /mcp",
    "mcp handshake /mcp",
    "rest tasks",
    "rest messages",
    "rpc",
    "fabric",
    "http",
)


@asynccontextmanager
async def node_behind_a_line(kind: str, *agents: Agent, node_id: str = "home") -> AsyncIterator[tuple[Node, Line]]:
    """A node with an agent that leads to itself; what the agent is asked goes over the line."""
    async with AsyncExitStack() as stack:
        line = Line(0)
        stack.push_async_callback(line.cut)
        await line.mend()
        config = {"node_id": node_id, **QUIET, "doors": DOORS}
        manifests = [looping(kind, line.url)]
        node = await stack.enter_async_context(running(*agents, manifests=manifests, config=config))
        line.lead_to(node.port)
        yield node, line


DOORS = [{"kind": "fabric"}, {"kind": "mcp"}, GRPC, {"kind": "directory"}, {"kind": "rest"}]


def times_asked(line: Line) -> int:
    """How many requests with the marked task went over the line."""
    return sum(MARKER.encode() in request for request in bytes(line.asked).split(b"POST /"))


def times_asked_by_grpc(node: Node) -> int:
    """gRPC has a port of its own."""
    return sum("a2a.Send" in line for line in node.log.getvalue().splitlines())


@pytest.mark.parametrize("kind", KINDS)
async def test_an_agent_that_leads_back_to_its_node_is_refused_at_the_first_return(kind: str) -> None:
    async with node_behind_a_line(kind) as (node, line), asyncio.timeout(WAIT_TIMEOUT):
        name = "self_echo" if kind.endswith("/mcp") else "echo"
        envelope = await node.ask("self", name, MARKER)
        assert not envelope["ok"]
        assert "already" in json.dumps(envelope), envelope
        assert (times_asked_by_grpc(node) if kind == "a2a grpc" else times_asked(line)) <= 1


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "a2a grpc" and "/mcp" not in kind])
async def test_two_nodes_that_lead_to_one_another_are_passed_once_each(kind: str) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(WAIT_TIMEOUT):
        lines = [Line(0), Line(0)]
        for line in lines:
            stack.push_async_callback(line.cut)
            await line.mend()
        nodes = []
        for name, there in zip("ab", reversed(lines), strict=True):
            config = {"node_id": name, **QUIET, "doors": DOORS}
            manifests = [looping(kind, there.url, "ping")]
            nodes.append(await stack.enter_async_context(running(manifests=manifests, config=config)))
        for node, line in zip(nodes, lines, strict=True):
            line.lead_to(node.port)
        envelope = await nodes[0].ask("ping", "echo", MARKER)
        assert "already" in json.dumps(envelope), envelope
        assert times_asked(lines[1]) <= 1  # b was asked once
        assert times_asked(lines[0]) <= 1  # and a refused what came back
