"""The pages beside `/mcp/call`, as the documents and the published clients expect them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from tests.fixtures.node import Node, check_envelope, eventually, running
from tests.fixtures.percy import Percy
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    percy = Percy(display_name="Percy", tags=["thinker"])
    gone = {"agent_id": "dotted.name-1", "endpoint": {"uri": "http://127.0.0.1:9/"}, "capabilities": [{"name": "act"}]}
    async with running(percy.agent, manifests=[gone]) as found:
        yield found


@requirement("000-04", "000-20", "000-21", "000-28")
async def test_health_is_as_the_document_says_and_a_little_more(node: Node) -> None:
    reply = await node.send("GET", "/health", token=None)
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.json["status"] == "ok"
    assert reply.json["version"] == "af-mcp-0.1"
    assert datetime.fromisoformat(reply.json["timestamp"]).tzinfo is not None


@requirement("000-23", "001-02")
@pytest.mark.parametrize(
    ("query", "body", "found"),
    [
        ("", None, ["percy", "dotted.name-1"]),
        ("?capability=reason", None, ["percy"]),
        ("?tag=thinker", None, ["percy"]),
        ("?capability=nothing", None, []),
        ("", {"capability": "act"}, ["dotted.name-1"]),
        ("", {"tag": "thinker", "status": None}, ["percy"]),
        ("", {}, ["percy", "dotted.name-1"]),
        ("?unknown=1", None, ["percy", "dotted.name-1"]),
    ],
)
async def test_agents_are_listed_by_query_or_by_a_body_in_the_get(
    node: Node, query: str, body: Any, found: list[str]
) -> None:
    reply = await node.send("GET", f"/mcp/list_agents{query}", json=body)
    assert reply.status == 200
    check_envelope(reply.json)
    assert [agent["agent_id"] for agent in reply.json["agents"]] == found
    assert reply.json["count"] == len(found) == reply.json["result"]["count"]


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/mcp/list_agents?status=bogus", None),
        ("/mcp/list_agents", b"[]"),
        ("/mcp/list_agents", b"{"),
        ("/mcp/list_agents", b"[" * 100_000),
        ("/mcp/list_agents", b'{"capability": 5}'),
        ("/mcp/list_agents", b"\xff\xfe"),
        ("/mcp/list_agents?filter=x", None),
        ("/mcp/list_tools", b'{"category": []}'),
        ("/mcp/health", b"nonsense"),
    ],
)
async def test_bad_filters_are_refused(node: Node, path: str, data: bytes | None) -> None:
    reply = await node.send("GET", path, data=data)
    assert reply.status == 400
    check_envelope(reply.json)
    assert reply.json["error_code"] == "BAD_INPUT"


@requirement("000-17")
async def test_tools_are_listed_with_what_they_do_to_the_world(node: Node) -> None:
    tools = {tool["tool_id"]: tool for tool in (await node.send("GET", "/mcp/list_tools")).json["tools"]}
    assert tools["math.calculate"]["side_effects"] == "none"
    assert tools["io.write_file"]["side_effects"] == "writes"
    assert tools["agent.percy.reason"]["category"] == "agent:percy"
    only = (await node.send("GET", "/mcp/list_tools", json={"category": "math"})).json["tools"]
    assert {tool["tool_id"] for tool in only} == {"math.calculate", "math.statistics"}
    by_query = (await node.send("GET", "/mcp/list_tools?category=math")).json["tools"]
    assert by_query == only


@requirement("001-03")
async def test_one_agent_is_shown_bare_and_wrapped(node: Node) -> None:
    reply = await node.send("GET", "/mcp/agent/percy")
    check_envelope(reply.json)
    assert (reply.json["agent_id"], reply.json["display_name"]) == ("percy", "Percy")
    assert reply.json["agent"]["agent_id"] == "percy"
    assert (await node.send("GET", "/mcp/agent/dotted.name-1")).json["agent_id"] == "dotted.name-1"


@pytest.mark.parametrize("agent_id", ["nobody", "a/b/c", "%00", "%ff", "..%2f..", "x" * 4000, "", "math.calculate"])
async def test_an_unknown_agent_is_a_404_that_names_it(node: Node, agent_id: str) -> None:
    reply = await node.send("GET", f"/mcp/agent/{agent_id}")
    assert reply.status == 404
    check_envelope(reply.json)
    assert reply.json["error_code"] == "AGENT_NOT_FOUND"
    assert len(reply.body) < 1000


@requirement("001-06", "001-47")
async def test_the_snapshot_tells_of_registry_runtimes_and_tools(node: Node) -> None:
    async def all_are_known() -> bool:
        return not (await node.send("GET", "/mcp/health")).json["runtimes"]["unknown"]

    await eventually(all_are_known)
    snapshot = (await node.send("GET", "/mcp/health")).json
    check_envelope(snapshot)
    assert snapshot["registry"] == "ok"
    assert snapshot["runtimes"]["online"] == 1
    assert snapshot["tools"]["builtin_count"] >= 23
    assert "math.calculate" in snapshot["tools"]["available"]
    assert snapshot["agents"]["errors"].keys() == {"dotted.name-1"}


async def test_the_status_is_as_the_published_client_reads_it(node: Node) -> None:
    status = (await node.send("GET", "/monitoring/status")).json
    assert status.keys() == {"schema_version", "timestamp", "fabric_version", "services", "endpoints"}
    agents = status["services"]["agents"]
    assert agents["count"] == 2
    assert {"percy", "dotted.name-1"} == {agent["agent_id"] for agent in agents["all"]}
    assert all(isinstance(agent["endpoint"], str) for agent in agents["all"])
    assert status["services"]["tools"]["count"] >= 23
    assert status["endpoints"]["mcp"] == f"{node.url}/mcp/call"
    health = (await node.send("GET", "/monitoring/health")).json
    assert health["status"] in ("healthy", "degraded")
    assert {"timestamp", "checks", "metadata"} <= health.keys()


async def test_metrics_are_prometheus_text(node: Node) -> None:
    await node.ask("percy", "reason")
    reply = await node.send("GET", "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b"fabric_calls_total{" in reply.body
    assert b"fabric_agent_status{" in reply.body


async def test_metrics_can_be_switched_off() -> None:
    async with running(config={"metrics": False}) as node:
        assert (await node.send("GET", "/metrics")).status == 404


@requirement("000-18")
async def test_pages_continue_a_trace_too(node: Node) -> None:
    hexed = uuid4().hex
    reply = await node.send("GET", "/mcp/health", headers={"traceparent": f"00-{hexed}-00f067aa0ba902b7-01"})
    assert reply.json["trace"]["trace_id"].replace("-", "") == hexed


@pytest.mark.parametrize(
    "path", ["/health", "/mcp/health", "/mcp/list_agents", "/mcp/agent/percy", "/monitoring/status"]
)
@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT"])
async def test_pages_are_only_read(node: Node, path: str, method: str) -> None:
    reply = await node.send(method, path)
    assert reply.status == 405
    assert "GET" in reply.headers["allow"]
    check_envelope(reply.json)
    assert reply.json["error_code"] == "METHOD_NOT_ALLOWED"


async def test_the_front_page_says_where_to_go(node: Node) -> None:
    front = (await node.send("GET", "/", token=None)).json
    assert front["call"] == f"{node.url}/mcp/call"
