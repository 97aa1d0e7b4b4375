"""One agent alone at `/agents/{id}/mcp`: its capabilities under their own names."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from a2a_fabric.agent import Agent
from a2a_fabric.doors.mcp.http import McpHttpEndpoint
from a2a_fabric.doors.mcp.sessions import OpenSessions
from tests.fixtures.mcp_client import MODES, client
from tests.fixtures.mcp_raw import modern
from tests.fixtures.node import Node, eventually, running
from tests.fixtures.percy import Percy
from tests.marks import requirement

eras = pytest.mark.parametrize("mode", MODES)


@pytest.fixture
async def percy() -> Percy:
    return Percy(display_name="Percy the wise")


@pytest.fixture
async def node(percy: Percy) -> AsyncIterator[Node]:
    other = Agent("data-Science")

    @other.capability(name="Parse-Recipe")
    async def parse(task: str) -> dict[str, Any]:
        return {"parsed": task}

    keys = [
        {"id": "outsider", "key": "outsider-key", "trust": "public"},
        {"id": "narrow", "key": "narrow-key-1", "scopes": ["capability:reason"]},
    ]
    async with running(percy.agent, other, config={"auth": {"keys": keys}}) as found:
        yield found


@requirement("001-52")
@eras
async def test_its_capabilities_are_tools_under_their_own_names(node: Node, percy: Percy, mode: str) -> None:
    async with client(node, mode, path="/agents/percy/mcp") as connected:
        tools = {tool.name: tool for tool in (await connected.list_tools()).tools}
        assert set(tools) == {capability.name for capability in percy.agent.manifest().capabilities}
        assert (tools["reason"].meta or {})["a2a-fabric/name"] == "fabric.tool.agent.percy.reason"
        result = await connected.call_tool("reason", {"task": "alone"})
        assert result.structured_content == {"answer": "alone", "depth": 1}
        assert [str(each.uri) for each in (await connected.list_resources()).resources] == ["fabric://agents/percy"]


@eras
async def test_the_server_is_the_agent(node: Node, mode: str) -> None:
    async with client(node, mode, path="/agents/percy/mcp") as connected:
        await connected.list_tools()
        about = connected.server_info
        if mode != "2026-07-28":  # the client did not ask there
            assert about is not None
            assert (about.name, about.title, about.version) == ("percy", "Percy the wise", "2.1.0")
            assert connected.instructions == "Thinks before it speaks."


@eras
async def test_names_that_are_not_safe_stay_as_they_are(node: Node, mode: str) -> None:
    async with client(node, mode, path="/agents/data-Science/mcp") as connected:
        assert [tool.name for tool in (await connected.list_tools()).tools] == ["Parse-Recipe"]
        for name in ("Parse-Recipe", "parse_recipe"):
            assert (await connected.call_tool(name, {"task": "x"})).structured_content == {"parsed": "x"}


@eras
async def test_other_agents_and_the_gateway_are_not_there(node: Node, percy: Percy, mode: str) -> None:
    async with client(node, mode, path="/agents/data-Science/mcp") as connected:
        for name in ("percy_reason", "fabric.tool.agent.percy.reason", "fabric_agent_list", "reason"):
            with pytest.raises(MCPError):
                await connected.call_tool(name, {"task": "x"})
        with pytest.raises(MCPError):
            await connected.read_resource("fabric://agents/percy")
    assert percy.calls == []


async def test_an_agent_that_is_not_there_is_a_404(node: Node) -> None:
    head, body = modern("tools/list")
    for agent_id in ("nobody", "math.calculate", "%00", "x" * 300):
        reply = await node.send("POST", f"/agents/{agent_id}/mcp", json=body, headers=head)
        assert reply.status == 404
        assert reply.json["error"]["data"]["error"]["code"] == "AGENT_NOT_FOUND"
        assert reply.json["error"]["data"]["trace"]["trace_id"]


async def test_an_agent_one_may_not_know_of_is_a_404_too(node: Node) -> None:
    head, body = modern("tools/list")
    reply = await node.send(
        "POST", "/agents/percy/mcp", json=body, headers={**head, "Authorization": "Bearer outsider-key"}
    )
    assert reply.status == 404


async def test_only_what_the_key_may_call_is_listed(node: Node) -> None:
    async with client(node, path="/agents/percy/mcp", token="narrow-key-1") as connected:
        assert [tool.name for tool in (await connected.list_tools()).tools] == ["reason"]
        assert (await connected.call_tool("plan", {"task": "x"})).is_error


@eras
async def test_it_streams_like_the_gateway(node: Node, mode: str) -> None:
    heard: list[str | None] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async with client(node, mode, path="/agents/percy/mcp") as connected:
        await connected.call_tool("plan", {"task": "a b"}, progress_callback=listen)
    assert heard[1:3] == ["a", "b"]


async def test_our_own_mistake_is_told_with_the_trace_under_which_the_log_has_it(node: Node) -> None:
    async def break_down(scope: Any, principal: Any) -> Any:
        raise RuntimeError("a secret of ours")

    endpoint = McpHttpEndpoint(node.fabric.doors[1].hot["/mcp"]._context, OpenSessions("sessions", 1), break_down)  # type: ignore[attr-defined]
    head, body = modern("tools/list")
    headers = [(name.lower().encode(), value.encode()) for name, value in head.items()]
    arriving = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        return arriving.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    await endpoint({"method": "POST", "path": "/x", "headers": headers}, receive, send)
    reply = json.loads(sent[1]["body"])
    assert (sent[0]["status"], reply["id"], reply["error"]["code"]) == (500, 1, -32603)
    assert "secret" not in sent[1]["body"].decode()
    trace_id = reply["error"]["data"]["trace"]["trace_id"]

    async def is_written() -> bool:
        lines = [line for line in node.log.getvalue().splitlines() if trace_id in line]
        return any("a secret of ours" in line for line in lines)

    await eventually(is_written)


@pytest.mark.parametrize("body", [b"{", b"", b'{"id": {}}', b'{"id": 1, "pad": "' + b"x" * 100_000 + b'"}'])
async def test_a_refusal_without_an_id_that_can_be_read_has_none(node: Node, body: bytes) -> None:
    reply = await node.send("POST", "/agents/percy/mcp", data=body, token="wrong")
    assert (reply.status, reply.json["id"]) == (401, None)
