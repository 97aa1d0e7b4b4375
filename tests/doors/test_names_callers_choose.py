"""What callers write instead of names is bounded: none of it stays in the node, its log or its metrics."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from mcp.server import MCPServer

from a2a_fabric.agent import Agent
from tests.fixtures.mcp_servers.serving import serving
from tests.fixtures.node import PSK, Node, eventually, running

READER, KEEPER = "the-key-of-the-reader", "the-key-of-the-keeper"
LONG = 100_000  # characters
TIMES = 40
KEPT = LONG * TIMES // 4  # bytes: far more than what a few dozen requests leave, far less than what they sent
CONFIG = {
    "doors": [{"kind": kind} for kind in ("fabric", "mcp", "a2a", "directory", "rest")],
    "views": [{"name": "reading", "tools": ["files.read_*"]}, {"name": "tagged", "tags": ["code"]}],
    "auth": {"keys": [{"id": "reader", "key": READER, "view": "reading"}, {"id": "keeper", "key": KEEPER}]},
}


def make_files() -> Agent:
    agent = Agent("files")

    @agent.capability
    async def read_file(path: str) -> str:
        return path

    return agent


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with running(make_files(), config=CONFIG) as found:
        yield found


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def stretch(number: int = 0) -> str:
    """A name that is `read_file` for those who count a row of separators once."""
    return f"read{'_' * (LONG + number)}file"


@pytest.mark.parametrize("token", [PSK, READER], ids=["operator", "view"])
async def test_a_capability_with_a_name_as_long_as_a_request_is_refused(node: Node, token: str) -> None:
    call = {"agent_id": "files", "capability": stretch(), "task": "a"}
    replies = [
        await node.send("POST", "/mcp/call", token=token, json={"name": "fabric.call", "arguments": call}),
        await node.send("POST", "/v1/tasks", token=token, json={"agentId": "files", "capability": stretch()}),
        await node.send(
            "POST", "/a2a/task", token=token, json={"taskId": "t", "agentId": "files", "action": stretch()}
        ),
    ]
    for reply in replies:
        assert not reply.json.get("ok", False)
        assert "256" in reply.body.decode(), reply.body[:300]
        assert len(reply.body) < 2000
    assert len(node.log.getvalue()) < LONG
    assert (await node.ask("files", "Read---file", "a"))["result"] == {"answer": "a"}


Send = Callable[[Node, int], Awaitable[Any]]


async def call_it(node: Node, number: int) -> None:
    await node.ask("files", stretch(number))


async def call_it_in_a_view(node: Node, number: int) -> None:
    call = {"agent_id": "files", "capability": stretch(number), "task": "a"}
    await node.operation("fabric.call", call, token=READER)


async def preview_it_in_a_view(node: Node, number: int) -> None:
    await node.operation("fabric.route.preview", {"agent_id": "files", "capability": stretch(number)}, token=READER)


async def register(node: Node, **fields: Any) -> None:
    manifest = {"agent_id": "mine", "endpoint": "http://127.0.0.1:9/", "capabilities": ["go"], **fields}
    await node.operation("fabric.agent.register", manifest, token=KEEPER)
    await node.operation("fabric.agent.list", headers={"X-Fabric-View": "tagged"})


async def register_a_display_name(node: Node, number: int) -> None:
    await register(node, display_name=stretch(number))


async def register_a_tag(node: Node, number: int) -> None:
    await register(node, tags=[stretch(number)])


async def register_a_directory_id(node: Node, number: int) -> None:
    await register(node, metadata={"directory_id": stretch(number)})


async def write_the_key_in_another_way(node: Node, number: int) -> None:
    for times in range(4):
        spaces = " " * (25_000 + 4 * number + times)
        await node.operation("fabric.health", headers={"Authorization": f"Bearer{spaces}{PSK}"})


@pytest.mark.parametrize(
    "send",
    [
        call_it,
        call_it_in_a_view,
        preview_it_in_a_view,
        register_a_display_name,
        register_a_tag,
        register_a_directory_id,
        write_the_key_in_another_way,
    ],
    ids=lambda send: send.__name__,
)
async def test_nothing_of_it_stays(traced: None, send: Send) -> None:
    config = {**CONFIG, "doors": [{"kind": "fabric"}]}  # the directory keeps its last events, up to so many bytes
    async with running(make_files(), config=config) as node:
        await send(node, TIMES)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0] - len(node.log.getvalue())
        for number in range(TIMES):
            await send(node, number)
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0] - len(node.log.getvalue()) - before
    assert kept < KEPT


async def test_what_a_registered_agent_says_about_itself_is_bounded_as_its_manifest_is() -> None:
    """Else a thousand registrations of one server with a long list would fill the node's memory."""

    def make() -> MCPServer[Any]:
        server: MCPServer[Any] = MCPServer("wordy")
        for number in range(40):
            server.add_tool(make_wordy_tool(number), name=f"tool_{number}", description="x" * 1000)
        return server

    config = {"registration": {"max_bytes": 20_000}, "auth": {"keys": [{"id": "keeper", "key": KEEPER}]}}
    async with serving(make=make) as server, running(config=config) as node:
        manifest = {"agent_id": "wordy", "endpoint": server.url, "runtime": "mcp"}
        assert (await node.operation("fabric.agent.register", manifest, token=KEEPER))["ok"]

        async def is_refused() -> bool:
            agent = (await node.operation("fabric.agent.describe", {"agent_id": "wordy"}))["result"]["agent"]
            assert agent["capabilities"] == []
            return "describes itself in more than 20000 bytes" in (agent["health"]["error"] or "")

        await eventually(is_refused)


def make_wordy_tool(number: int) -> Callable[[], str]:
    def tool() -> str:
        return str(number)

    return tool
