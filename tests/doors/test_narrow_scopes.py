"""A caller with few scopes, or of little trust: it learns nothing of agents that it may not call, wherever it asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.agent import Agent
from tests.doors.a2a_clients import message
from tests.doors.door_paths import paths_of, words_of
from tests.fixtures.mcp_raw import initialize
from tests.fixtures.node import WAIT_TIMEOUT, Node, Reply, running
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")

READER, CAPPER, STAFF, OUTSIDER = "the-key-of-reader", "the-key-of-capper", "the-key-of-staff", "the-key-of-outsider"
TOPICAL, LISTENER, SCRAPER, WRITER = "key-of-topical", "key-of-listener", "key-of-scraper", "key-of-writer"
KEYS = [
    {"id": "reader", "key": READER, "scopes": ["agent:percy"]},
    {"id": "capper", "key": CAPPER, "scopes": ["capability:reason"]},
    {"id": "staff", "key": STAFF, "trust": "org"},
    {"id": "outsider", "key": OUTSIDER, "trust": "public"},
    {"id": "topical", "key": TOPICAL, "scopes": ["topic:orders.*"]},
    {"id": "listener", "key": LISTENER, "scopes": ["subscribe:orders.new"]},
    {"id": "scraper", "key": SCRAPER, "scopes": ["metrics"]},
    {"id": "writer", "key": WRITER, "scopes": ["message:quaestor"]},
]
LIMITED = [READER, CAPPER, STAFF, OUTSIDER]
DOORS = [{"kind": kind} for kind in ("fabric", "mcp", "rest", "directory", "discovery", "a2a")]
HIDDEN = (b"quaestor", b"auditing", b"understudy")


def percy() -> Agent:
    agent = Agent("percy", trust_tier="public", fallbacks=("understudy",))

    @agent.capability
    async def reason(task: str) -> dict[str, str]:
        return {"answer": task}

    @agent.capability
    async def plan(task: str) -> dict[str, str]:
        return {"answer": task}

    return agent


def inner(agent_id: str, capability: str) -> Agent:
    """For callers of this machine only."""
    agent = Agent(agent_id, trust_tier="local")

    @agent.capability(name=capability)
    async def work(task: str) -> dict[str, str]:
        return {"answer": task}

    return agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    config = {"doors": DOORS, "auth": {"keys": KEYS}, "limits": {"connections": 500}}
    own: dict[str, dict[str, Any]] = {"rest": {"requests_per_minute": None}, "mcp": {"gateway_tools": "all"}}
    config["doors"] = [{**each, **own.get(each["kind"], {})} for each in DOORS]
    async with running(percy(), inner("quaestor", "auditing"), inner("understudy", "standing"), config=config) as found:
        yield found


def requests_about(agent_id: str) -> Iterator[tuple[str, str, Any]]:
    """Everything that can be asked about, or of, one agent."""
    x = {"agent_id": agent_id}
    for name, arguments in {
        "fabric.agent.describe": x,
        "fabric.agent.health": x,
        "fabric.agent.heartbeat": x,
        "fabric.agent.unregister": x,
        "fabric.agent.list": {"query": agent_id},
        "fabric.agent.search": {"query": agent_id},
        "fabric.job.list": x,
        "fabric.message.send": {"to_agent": agent_id, "payload": 1},
        "fabric.message.receive": {**x, "block_ms": 0},
        "fabric.message.queue_status": x,
        "fabric.message.acknowledge": {**x, "message_ids": [1]},
        "fabric.message.subscribe": {**x, "topic": "orders.new"},
        "fabric.message.publish": {"topic": "orders.new", "from_agent": agent_id},
        "fabric.task.send": {"request": {"id": "t", "type": "reason", "payload": {}, "routing": {"target": agent_id}}},
        "fabric.signal.send": {"from": agent_id, "to": agent_id, "type": "error"},
        "fabric.tool.list": {"query": agent_id},
        "fabric.tool.describe": {"tool_id": f"agent.{agent_id}.auditing"},
        "fabric.tool.call": {"tool_id": f"agent.{agent_id}.auditing"},
        f"fabric.tool.agent.{agent_id}.auditing": {"task": "x"},
        f"fabric.tool.agent.{agent_id}.reason": {"task": "x"},
    }.items():
        yield "POST", "/mcp/call", {"name": name, "arguments": arguments}
    for capability in ("auditing", "reason", "nothing"):
        for name in ("fabric.call", "fabric.route.preview"):
            arguments = {**x, "capability": capability, **({"task": "x"} if name == "fabric.call" else {})}
            yield "POST", "/mcp/call", {"name": name, "arguments": arguments}
    for path in (f"/mcp/agent/{agent_id}", f"/v1/agents/{agent_id}", f"/agents/{agent_id}/.well-known/agent-card.json",
                 f"/agents/{agent_id}/mcp/server-card", f"/a2a/agents/{agent_id}", f"/agents/{agent_id}/tasks",
                 f"/search?q={agent_id}"):  # fmt: skip
        yield "GET", path, None
    parts = {"parts": [{"type": "text", "content": "x"}]}
    yield "POST", "/v1/messages", {"recipient": {"id": agent_id, "type": "agent"}, **parts}
    yield "POST", f"/v1/agents/{agent_id}/messages", parts
    for more in ({}, {"capability": "auditing"}):
        yield "POST", "/v1/tasks", {"agentId": agent_id, "input": {"text": "x"}, **more}
    for method in ("sendMessage", "streamMessage"):
        yield "POST", "/", rpc(method, agentId=agent_id, parts=[{"type": "text", "content": "x"}])
    yield "POST", "/", rpc("executeTask", task={"agentId": agent_id, "name": "auditing", "input": {}})
    yield "POST", "/a2a", rpc("a2a/agent", agentId=agent_id)
    for action in ("auditing", "reason"):
        yield "POST", f"/a2a/agents/{agent_id}/rpc", rpc("a2a/task", action=action, input={}, taskId=f"t-{action}")
    yield "POST", f"/agents/{agent_id}", rpc("SendMessage", message=message("x", messageId="m"))
    yield "POST", "/gateway", rpc("SendMessage", tenant=agent_id, message=message("x", messageId="m"))
    yield "POST", "/gateway", rpc("GetExtendedAgentCard", tenant=agent_id)
    yield "POST", "/mcp", rpc("tools/call", name=f"{agent_id}_auditing", arguments={"task": "x"}, _meta=META)
    yield "POST", f"/agents/{agent_id}/mcp", initialize()


META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
MCP = {
    "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call",
}  # fmt: skip


def rpc(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def ask(node: Node, verb: str, path: str, body: Any, token: str) -> Reply:
    headers = {"A2A-Version": "1.0"} if path.startswith(("/agents", "/gateway")) else {}
    if path == "/mcp" and body is not None:
        headers = {**MCP, "Mcp-Name": body["params"].get("name", "")}
    elif path.endswith("/mcp"):
        headers = {"Accept": MCP["Accept"]}
    return await node.send(verb, path, token=token, headers=headers, **({} if body is None else {"json": body}))


async def call(node: Node, token: str, name: str, **arguments: Any) -> Any:
    return await node.operation(name, arguments, token=token)


@requirement("001-20", "001-41")
@pytest.mark.parametrize("token", LIMITED)
async def test_a_hidden_agent_is_answered_for_like_one_that_does_not_exist(node: Node, token: str) -> None:
    for here, gone in zip(requests_about("quaestor"), requests_about("ghost"), strict=True):
        replies = await ask(node, *here, token), await ask(node, *gone, token)
        told = words_of(replies[0], instead_of="quaestor"), words_of(replies[1], instead_of="ghost")
        assert told[0] == told[1], here


@requirement("001-20")
@pytest.mark.parametrize("token", LIMITED)
async def test_no_mistake_in_a_name_makes_the_node_suggest_a_hidden_agent(node: Node, token: str) -> None:
    for request in requests_about("quaestr"):
        reply = await ask(node, *request, token)
        assert b"quaestor" not in reply.body, (request, reply.body)


@requirement("001-02", "001-20")
@pytest.mark.parametrize("token", [*LIMITED, TOPICAL, SCRAPER, WRITER])
async def test_no_list_count_card_or_page_tells_of_a_hidden_agent(node: Node, token: str) -> None:
    for verb, path in dict.fromkeys(paths_of(node, "percy")):
        if verb != "GET" or path in ("/metrics", "/mcp/metrics", "/a2a/events", "/a2a/stream", "/stream", "/sse"):
            continue
        reply = await ask(node, verb, path, None, token)
        assert not [name for name in HIDDEN if name in reply.body], (path, reply.body)
    for operation in node.fabric.operations:
        arguments = {"block_ms": 0} if operation.name == "fabric.message.receive" else {}
        reply = await ask(node, "POST", "/mcp/call", {"name": operation.name, "arguments": arguments}, token)
        assert not [name for name in HIDDEN if name in reply.body], (operation.name, reply.body)
    for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
        reply = await node.send("POST", "/mcp", json=rpc(method, _meta=META), token=token,
                                headers={**MCP, "Mcp-Method": method})  # fmt: skip
        assert reply.status == 200, reply.body
        assert not [name for name in HIDDEN if name in reply.body], (method, reply.body)
    for request in (rpc("discover"), rpc("listTasks")):
        reply = await ask(node, "POST", "/", request, token)
        assert not [name for name in HIDDEN if name in reply.body], (request, reply.body)


@requirement("001-02")
async def test_what_is_listed_and_counted_is_what_may_be_called(node: Node) -> None:
    listed = (await call(node, CAPPER, "fabric.agent.list"))["result"]
    assert listed["count"] == 1
    assert [(a["agent_id"], [c["name"] for c in a["capabilities"]]) for a in listed["agents"]] == [
        ("percy", ["reason"])
    ]
    assert (await call(node, CAPPER, "fabric.agent.search"))["result"]["total"] == 1
    described = (await call(node, READER, "fabric.agent.describe", agent_id="percy"))["result"]["agent"]
    assert described["fallbacks"] == []
    assert [c["name"] for c in described["capabilities"]] == ["reason", "plan"]
    health = (await call(node, READER, "fabric.health"))["result"]
    assert (health["agents"]["count"], health["tools"]["builtin_count"]) == (1, 0)
    tools = (await call(node, CAPPER, "fabric.tool.list"))["result"]
    assert [tool["tool_id"] for tool in tools["tools"]] == ["agent.percy.reason"]
    everything = (await node.operation("fabric.agent.list"))["result"]
    assert everything["count"] == 3


async def test_the_operations_that_a_caller_lacks_a_scope_for_are_no_tools_of_mcp(node: Node) -> None:
    reply = await node.send("POST", "/mcp", json=rpc("tools/list", _meta=META), token=READER,
                            headers={**MCP, "Mcp-Method": "tools/list"})  # fmt: skip
    names = {tool["name"] for tool in reply.json["result"]["tools"]}
    assert {"percy_reason", "percy_plan", "fabric_message_send", "fabric_agent_list"} <= names
    assert names.isdisjoint({"fabric_message_publish", "fabric_message_subscribe", "fabric_agent_register"})


async def test_a_preview_names_only_agents_that_the_caller_may_call(node: Node) -> None:
    shown = (await call(node, READER, "fabric.route.preview", agent_id="percy", capability="reason"))["result"]
    assert (shown["selected_agent"], shown["fallbacks"], shown["refused"]) == ("percy", [], [])


@requirement("001-20")
async def test_topics_are_heard_and_filled_only_by_those_whose_scopes_name_them(node: Node) -> None:
    assert (await call(node, TOPICAL, "fabric.message.subscribe", topic="orders.new"))["ok"]
    assert (await call(node, LISTENER, "fabric.message.subscribe", topic="orders.new"))["ok"]
    assert (await node.operation("fabric.message.subscribe", {"topic": "salaries"}))["ok"]
    for token, operation, topic in (
        (READER, "subscribe", "orders.new"), (READER, "publish", "orders.new"), (TOPICAL, "subscribe", "salaries"),
        (TOPICAL, "publish", "order"), (LISTENER, "publish", "orders.new"), (LISTENER, "subscribe", "orders.newer"),
        (OUTSIDER, "subscribe", "orders.new"), (OUTSIDER, "publish", "orders.new"), (SCRAPER, "subscribe", "salaries"),
    ):  # fmt: skip
        refused = await call(node, token, f"fabric.message.{operation}", topic=topic)
        assert refused["error_code"] == "AUTH_DENIED", (token, operation, topic)
    published = (await call(node, TOPICAL, "fabric.message.publish", topic="orders.new", message={"n": 1}))["result"]
    assert published["recipients"] == 2
    heard = (await call(node, LISTENER, "fabric.message.receive", block_ms=0, auto_ack=True))["result"]["messages"]
    assert [each["payload"] for each in heard] == [{"n": 1}]
    for token, seen in ((TOPICAL, ["orders.new"]), (LISTENER, ["orders.new"])):
        topics = (await call(node, token, "fabric.message.topics"))["result"]
        assert [each["topic"] for each in topics["topics"]] == seen
    page = await node.send("GET", "/mcp/list_topics", token=READER)
    assert (page.status, page.json["error_code"]) == (403, "AUTH_DENIED")


@requirement("001-20")
async def test_inboxes_are_filled_and_read_only_by_those_whose_scopes_name_them(node: Node) -> None:
    assert (await call(node, READER, "fabric.message.send", to_agent="percy", payload=1))["ok"]
    assert (await call(node, WRITER, "fabric.message.send", to_agent="quaestor", payload=1))["ok"]
    for token, name in (
        (READER, "quaestor"),
        (WRITER, "percy"),
        (CAPPER, "percy"),
        (STAFF, "quaestor"),
        (OUTSIDER, "percy"),
    ):
        refused = await call(node, token, "fabric.message.send", to_agent=name, payload=1)
        assert refused["error_code"] == "AUTH_DENIED", (token, name)
    for token in (READER, WRITER, SCRAPER):  # one's own needs no scope of its own
        assert (await call(node, token, "fabric.message.receive", block_ms=0))["ok"]
        for name in ("percy", "quaestor"):
            refused = await call(node, token, "fabric.message.receive", agent_id=name, block_ms=0)
            assert refused["error_code"] == "AUTH_DENIED"
    mail = {"recipient": {"id": "staff", "type": "client"}, "parts": [{"type": "text", "content": "x"}]}
    assert (await node.send("POST", "/v1/messages", json=mail, token=READER)).status == 403


@requirement("001-43")
async def test_metrics_are_for_callers_with_that_scope(node: Node) -> None:
    for path in ("/metrics", "/mcp/metrics"):
        for token in (READER, CAPPER, TOPICAL, OUTSIDER, STAFF):
            refused = await node.send("GET", path, token=token)
            assert (refused.status, refused.json["error_code"]) == (403, "AUTH_DENIED")
        assert (await node.send("GET", path, token=SCRAPER)).status == 200
        assert (await node.send("GET", path)).status == 200


@requirement("001-20")
async def test_the_events_of_the_directory_tell_of_no_hidden_agent(node: Node) -> None:
    body = rpc("a2a/events", types=["agent"])
    headers = {"Authorization": f"Bearer {READER}", "Accept": "text/event-stream"}
    async with asyncio.timeout(WAIT_TIMEOUT), node.client.post(node.url + "/a2a", json=body, headers=headers) as stream:
        await stream.content.readuntil(b"\n\n")
        for agent_id in ("quaestor", "understudy", "percy"):
            status = "degraded" if node.fabric.registry.health.get(agent_id).status != "degraded" else "online"
            node.fabric.registry.update_health(agent_id, status)  # type: ignore[arg-type]  # one of the two
        told = await stream.content.readuntil(b"\n\n")
        assert b"percy" in told
        assert not [name for name in HIDDEN if name in told]
        stream.close()
