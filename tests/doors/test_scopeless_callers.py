"""Credentials without scopes may do nothing: every operation, every path and every method of every door says so.

The paths come from the doors themselves. A new one that answers such a caller, and is not listed here as public, fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
import websockets
from a2a.types import a2a_pb2 as pb

from a2a_fabric.agent import Agent
from tests.doors.door_paths import paths_of, words_of
from tests.doors.test_a2a_grpc import METHODS, NEW, STREAMS
from tests.fixtures.mcp_raw import initialize
from tests.fixtures.node import WAIT_TIMEOUT, Node, Reply, running
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOTHING = "the-key-of-nobody-at-all"
KEYS = [{"id": "nothing", "key": NOTHING, "scopes": []}]
DOORS = [{"kind": kind} for kind in ("fabric", "mcp", "rest", "directory", "discovery")]
# What anybody may read without credentials, and what therefore tells of no agent.
PUBLIC = {
    "/health", "/openapi.json", "/v1/openapi.json", "/docs", "/v1/docs", "/mcp/docs", "/mcp/docs/json",
    "/admin/openapi.json", "/doors/openapi.json", "/.well-known/agent.json",
}  # fmt: skip
UNSAID = (b"bystander", b"bystanding", b"unlock")  # what no request of this file names


def vault() -> Agent:
    agent = Agent("vault", trust_tier="org")

    @agent.capability
    async def unlock(task: str) -> dict[str, str]:
        return {"answer": "open"}

    return agent


def bystander() -> Agent:
    agent = Agent("bystander", trust_tier="org")

    @agent.capability
    async def bystanding(task: str) -> dict[str, str]:
        return {"answer": "here"}

    return agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    config = {"doors": [*DOORS, {"kind": "a2a", "grpc": "127.0.0.1:0"}], "auth": {"keys": KEYS}}
    async with running(vault(), bystander(), config=config) as found:
        yield found


def bodies(node: Node, path: str) -> Iterator[Any]:
    """What is sent there: a request of the right form, where the form is looked at first."""
    if path == "/mcp/call":
        yield from ({"name": op.name, "arguments": {}} for op in node.fabric.operations)
        yield {"name": "fabric.tool.math.calculate", "arguments": {"expression": "1"}}
        yield {"name": "fabric.tool.agent.vault.open", "arguments": {}}
        yield {"name": "fabric.nothing", "arguments": {}}
    elif path == "/mcp" or path.endswith("/mcp"):
        for method in ("tools/list", "tools/call", "prompts/list", "resources/list", "completion/complete", "ping"):
            yield {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"name": "vault_open"}}
        yield initialize()
    else:
        yield {"jsonrpc": "2.0", "id": 1, "method": "a2a/discover", "params": {}}


def check_nothing_is_told(reply: Reply) -> None:
    for name in UNSAID:
        assert name not in reply.body, reply.body


def is_refused(reply: Reply) -> bool:
    return reply.status in (401, 403)


@requirement("001-20", "001-43")
async def test_every_path_of_every_door_refuses_a_caller_without_scopes(node: Node) -> None:
    seen, wrong = 0, []
    for verb, path in dict.fromkeys(paths_of(node, "vault")):
        for body in bodies(node, path) if verb == "POST" else (None,):
            reply = await node.send(verb, path, token=NOTHING, **({} if body is None else {"json": body}))
            check_nothing_is_told(reply)
            seen += 1
            if path not in PUBLIC and not is_refused(reply) and reply.status != 405:
                wrong.append((verb, path, reply.status, reply.body[:200]))
    assert not wrong
    assert seen > 150


@requirement("001-43")
async def test_every_operation_is_refused_in_the_same_words(node: Node) -> None:
    names = [operation.name for operation in node.fabric.operations]
    assert len(names) > 25
    for name in names:
        reply = await node.send("POST", "/mcp/call", json={"name": name, "arguments": {}}, token=NOTHING)
        assert (reply.status, reply.json["error_code"]) == (403, "AUTH_DENIED"), name
        assert reply.json["error"] == "These credentials have no scopes on this node, so they may do nothing here"


async def test_an_agent_that_exists_and_one_that_does_not_get_the_same_answer(node: Node) -> None:
    for verb, path in dict.fromkeys(paths_of(node, "vault")):
        if "vault" not in path:
            continue
        for body in bodies(node, path) if verb == "POST" else (None,):
            more = {} if body is None else {"json": body}
            here = await node.send(verb, path, token=NOTHING, **more)
            gone = await node.send(verb, path.replace("vault", "ghost"), token=NOTHING, **more)
            assert words_of(here, instead_of="vault") == words_of(gone, instead_of="ghost"), (verb, path)


async def test_rpc_of_the_rest_door_refuses_each_of_its_methods(node: Node) -> None:
    found = [route for door in node.fabric.doors for route in door.routes if getattr(route, "path", "") == "/"]
    methods = list(found[0].endpoint._begin.args[1].table)  # type: ignore[attr-defined]  # only for their names
    assert "discover" in methods
    for method in methods:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"agentId": "vault", "taskId": "t"}}
        reply = await node.send("POST", "/", json=body, token=NOTHING)
        assert is_refused(reply), (method, reply.body)
        check_nothing_is_told(reply)


async def test_every_socket_is_refused_at_the_handshake(node: Node) -> None:
    sockets = [path for door in node.fabric.doors for path in door.sockets]
    assert set(sockets) == {"/mcp/call", "/mcp/ws"}
    headers = {"Authorization": f"Bearer {NOTHING}"}
    for path in sockets:
        with pytest.raises(websockets.InvalidStatus) as caught:
            await websockets.connect(node.url.replace("http", "ws") + path, additional_headers=headers)
        assert caught.value.response.status_code == 403


async def test_every_method_of_grpc_is_refused(node: Node) -> None:
    service = pb.DESCRIPTOR.services_by_name["A2AService"]
    assert {f"{NEW}/{method.name}" for method in service.methods} <= METHODS.keys()
    card = (await node.send("GET", "/.well-known/agent-card.json")).json
    [place] = {each["url"] for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC"}
    async with grpc.aio.insecure_channel(place) as line:
        for method in METHODS:
            for agent in ("vault", "ghost"):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await over_grpc(line, method, agent)
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED, method


async def over_grpc(line: grpc.aio.Channel, method: str, agent_id: str) -> None:
    metadata = (("authorization", f"Bearer {NOTHING}"), ("x-a2a-agent", agent_id))
    request = METHODS[method]().SerializeToString()
    async with asyncio.timeout(WAIT_TIMEOUT):
        if method not in STREAMS:
            await line.unary_unary(method)(request, metadata=metadata)
            return
        async for _ in line.unary_stream(method)(request, metadata=metadata):
            pass
