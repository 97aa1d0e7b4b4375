"""Lists without a cliff: what is listed, what is hidden beyond the limit, and where that is said."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.server.mcpserver import MCPServer
from typer.testing import CliRunner

from a2a_fabric.agent import Agent
from a2a_fabric.cli.program import app
from tests.fixtures.mcp_client import MODES, client
from tests.fixtures.mcp_servers.serving import serving
from tests.fixtures.node import PSK, eventually, running
from tests.fixtures.percy import Percy

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
MINIMAL = ["fabric_tool_list", "fabric_tool_describe", "fabric_tool_call", "fabric_call"]
JOBS = ["fabric_job_status", "fabric_job_result", "fabric_job_cancel", "fabric_job_answer"]


def offering(agent_id: str, count: int, **fields: Any) -> dict[str, Any]:
    tools = [{"name": f"tool_{n}", "description": f"Does number {n}.", "input_schema": SCHEMA} for n in range(count)]
    endpoint = {"transport": "http", "uri": "http://127.0.0.1:9/"}
    return {"agent_id": agent_id, "runtime": "http", "endpoint": endpoint, "capabilities": tools, **fields}


def door(**settings: Any) -> dict[str, Any]:
    return {"doors": [{"kind": "fabric"}, {"kind": "mcp", **settings}], "health": {"interval": 0}}


def echoing(agent_id: str, count: int) -> Agent:
    agent = Agent(agent_id)

    async def echo(path: str = "") -> dict[str, Any]:
        """Repeat the path."""
        return {"path": path}

    for number in range(count):
        agent.capability(name=f"tool_{number}")(echo)
    return agent


async def names(connected: Client) -> list[str]:
    return [tool.name for tool in (await connected.list_tools()).tools]


@pytest.mark.parametrize("mode", MODES)
async def test_all_tools_of_all_agents_are_listed_first_and_in_a_stable_order(mode: str) -> None:
    manifests = [offering("memory", 9), offering("files", 60), offering("git", 60)]
    async with running(manifests=manifests, config=door()) as node, client(node, mode) as connected:
        expected = [f"{m['agent_id']}_tool_{n}" for m in manifests for n in range(len(m["capabilities"]))]
        assert await names(connected) == [*expected, *MINIMAL]
        assert await names(connected) == [*expected, *MINIMAL]
        assert "not listed to MCP clients" not in (connected.instructions or "")


async def test_the_gateways_own_tools_cost_at_most_six_kilobytes() -> None:
    agent = Agent("slow")

    async def work(task: str) -> dict[str, Any]:
        """Take long."""
        return {"task": task}

    agent.capability(name="work", job_after_ms=1000)(work)
    for agents, expected in (((), MINIMAL), ((agent,), [*MINIMAL, *JOBS])):
        async with running(*agents, config=door()) as node, client(node, "2026-07-28") as connected:
            own = [tool for tool in (await connected.list_tools()).tools if tool.name.startswith("fabric_")]
            assert [tool.name for tool in own] == expected
            encoded = [tool.model_dump_json(by_alias=True, exclude_none=True) for tool in own]
            assert sum(map(len, encoded)) <= 6 * 1024


@pytest.mark.parametrize("mode", MODES)
async def test_own_tools_can_be_switched_off_or_all_be_listed(mode: str) -> None:
    async with running(Percy().agent, config=door(gateway_tools="none")) as node, client(node, mode) as connected:
        assert all(name.startswith("percy_") for name in await names(connected))
        unlisted = await connected.call_tool("fabric_agent_list", {})
        assert unlisted.structured_content["agents"][0]["agent_id"] == "percy"
    async with running(Percy().agent, config=door(gateway_tools="all")) as node, client(node, mode) as connected:
        assert {"fabric_agent_list", "fabric_message_send", *MINIMAL, *JOBS} <= set(await names(connected))


@pytest.mark.parametrize("mode", MODES)
async def test_beyond_the_limit_pinned_and_recently_used_tools_stay_listed(mode: str) -> None:
    config = door(max_listed=40, pinned=["last.tool_1"])
    config["auth"] = {"keys": [{"id": "other", "key": "the-key-of-another"}]}
    agents = [echoing("first", 60), echoing("last", 60)]
    async with running(*agents, config=config) as node, client(node, mode) as connected:
        before = await names(connected)
        assert len(before) == 40 + len(MINIMAL)
        assert before[:39] == [f"first_tool_{n}" for n in range(39)]
        assert before[39] == "last_tool_1"
        assert (await connected.call_tool("last_tool_50", {"path": "a"})).structured_content == {"path": "a"}
        by_search = {"tool_id": "agent.last.tool_51", "parameters": {"path": "b"}}
        assert (await connected.call_tool("fabric_tool_call", by_search)).structured_content == {"path": "b"}
        after = await names(connected)
        assert len(after) == len(before)
        assert after[-7:] == ["last_tool_1", "last_tool_50", "last_tool_51", *MINIMAL]
        async with client(node, mode, token="the-key-of-another") as stranger:
            assert await names(stranger) == before
        found = await connected.call_tool("fabric_tool_list", {"query": "repeat last", "limit": 5})
        assert found.structured_content["count"] == 5
        assert found.structured_content["total"] == 60


async def test_a_smallest_list_searches_describes_and_calls() -> None:
    async with running(echoing("first", 3), config=door(disclosure="search")) as node, client(node) as connected:
        assert await names(connected) == MINIMAL[:3]
        assert "find them with fabric_tool_list" in (connected.instructions or "")
        assert (await connected.call_tool("first_tool_1", {"path": "x"})).structured_content == {"path": "x"}


@pytest.mark.parametrize("mode", MODES)
async def test_clients_that_search_themselves_are_shown_all_tools(mode: str) -> None:
    claude = types.Implementation(name="claude-code", version="2")
    async with running(manifests=[offering("big", 300)], config=door()) as node:
        async with client(node, mode) as connected:
            assert len(await names(connected)) == 250 + len(MINIMAL)
        for _ in range(2):  # the second time the envelope is known, and the fast path answers
            async with client(node, mode, client_info=claude) as connected:
                assert len(await names(connected)) == 300 + len(MINIMAL)
                assert len(await names(connected)) == 300 + len(MINIMAL)
        async with client(node, mode, headers={"X-Fabric-Tools": "all"}) as connected:
            assert len(await names(connected)) == 300 + len(MINIMAL)


async def test_hidden_tools_are_told_of_wherever_an_operator_or_a_client_looks() -> None:
    async with running(manifests=[offering("big", 2000)], config=door()) as node:
        sentence = "1750 of 2000 tools are not listed to MCP clients, because max_listed of the door mcp is 250."
        for mode in ("legacy", "auto"):  # a client that is told its version asks for no instructions
            async with client(node, mode) as connected:
                assert sentence in (connected.instructions or "")
        (notice,) = (await node.operation("fabric.health"))["result"]["notices"]
        assert notice.startswith(sentence)

        async def is_logged() -> bool:
            return sentence in node.log.getvalue()

        await eventually(is_logged)
        assert node.log.getvalue().count(sentence) == 1
        done = await asyncio.to_thread(CliRunner().invoke, app, ["agents", "--url", node.url, "--token", PSK])
        assert f"Note: {sentence}" in done.stderr


async def test_the_check_tells_of_hidden_tools(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "agents.yaml").write_text(json.dumps([offering("big", 2000)]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    done = await asyncio.to_thread(CliRunner().invoke, app, ["check"])
    assert done.exit_code == 0, done.stderr
    assert "1750 of 2000 tools are not listed to MCP clients" in done.stderr


async def test_a_limited_caller_learns_nothing_of_tools_that_it_may_not_call() -> None:
    config = door() | {"auth": {"keys": [{"id": "small", "key": "a-small-key", "scopes": ["agent:few"]}]}}
    async with running(manifests=[offering("big", 2000), offering("few", 3)], config=config) as node:
        async with client(node, token="a-small-key") as connected:
            assert [name for name in await names(connected) if "tool_" in name and "fabric" not in name] == [
                f"few_tool_{n}" for n in range(3)
            ]
            assert "2000" not in (connected.instructions or "")
        assert "notices" not in (await node.operation("fabric.health", token="a-small-key"))["result"]


async def test_two_servers_with_the_same_tools_are_told_apart() -> None:
    agents = [echoing("one", 60), echoing("two", 60)]
    async with running(*agents, config=door()) as node, client(node) as connected:
        listed = [name for name in await names(connected) if not name.startswith("fabric_")]
        assert len(listed) == len(set(listed)) == 120
        for agent_id in ("one", "two"):
            result = await connected.call_tool(f"{agent_id}_tool_59", {"path": agent_id})
            assert result.structured_content == {"path": agent_id}


@pytest.mark.parametrize("mode", MODES)
async def test_a_server_with_two_thousand_tools_is_listed_whole_where_the_operator_wants_that(mode: str) -> None:
    async with running(echoing("big", 2000), config=door(max_listed=5000)) as node, client(node, mode) as connected:
        for _ in range(3):
            assert await names(connected) == [*(f"big_tool_{n}" for n in range(2000)), *MINIMAL]
        assert (await connected.call_tool("big_tool_1999", {"path": "z"})).structured_content == {"path": "z"}


async def test_titles_are_the_servers_own_and_the_dotted_name_is_in_meta() -> None:
    server: MCPServer[Any] = MCPServer("shelves", log_level="ERROR")

    @server.tool(title="Look it up")
    def find(word: str) -> str:
        """Find a word."""
        return word

    @server.tool()
    def plain(word: str) -> str:
        """Repeat a word."""
        return word

    async with serving("both", make=lambda: server) as upstream:
        manifest = {"agent_id": "shelves", "runtime": "mcp", "endpoint": {"uri": upstream.url}}
        async with running(manifests=[manifest]) as node, client(node, "2026-07-28") as connected:

            async def is_known() -> bool:
                return "shelves_find" in await names(connected)

            await eventually(is_known)
            tools = {tool.name: tool for tool in (await connected.list_tools()).tools}
            assert tools["shelves_find"].title == "Look it up"
            assert tools["shelves_plain"].title is None
            assert (tools["shelves_find"].meta or {})["a2a-fabric/name"] == "fabric.tool.agent.shelves.find"
