"""Views: a named set of agents and tools. It narrows every door, by address, by header, by query and by key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from a2a_fabric.agent import Agent
from a2a_fabric.app import Fabric
from a2a_fabric.cli.program import app
from a2a_fabric.config import Config
from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.view import View
from a2a_fabric.node.exposure import list_view_warnings
from tests.fixtures.mcp_client import MODES, client, words
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually, running
from tests.fixtures.percy import Percy

READER = "the-key-of-the-reader"
VIEWS = [
    {"name": "reading", "tools": ["github.get_*", "percy.reason"]},
    {"name": "forge", "agents": ["github"]},
    {"name": "tagged", "tags": ["cod*"]},
    {"name": "nothing", "agents": ["no-such-agent"]},
    {"name": "everything"},
    {"name": "careful", "exclude": ["*.delete*"]},
]
CONFIG = {"views": VIEWS, "auth": {"keys": [{"id": "reader", "key": READER, "view": "reading"}]}}


def github() -> Agent:
    agent = Agent("github", description="Keeps code.", tags=["code"])

    async def act(number: int = 1) -> dict[str, Any]:
        """Do it."""
        return {"number": number}

    for name in ("get_issue", "get_file", "delete_repo"):
        agent.capability(name=name)(act)
    return agent


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with running(Percy().agent, github(), config=CONFIG) as found:
        yield found


async def listed(node: Node, mode: str = "2026-07-28", **how: Any) -> set[str]:
    async with client(node, mode, **how) as connected:
        return {tool.name for tool in (await connected.list_tools()).tools if not tool.name.startswith("fabric_")}


READING = {"github_get_issue", "github_get_file", "percy_reason"}
FORGE = {"github_get_issue", "github_get_file", "github_delete_repo"}


@pytest.mark.parametrize("mode", MODES)
async def test_a_view_has_its_own_address(node: Node, mode: str) -> None:
    assert await listed(node, mode, path="/views/reading/mcp") == READING
    assert await listed(node, mode, path="/views/forge/mcp") == FORGE
    assert await listed(node, mode) > READING | FORGE
    async with client(node, mode, path="/views/reading/mcp") as connected:
        assert (await connected.call_tool("github_get_issue", {"number": 7})).structured_content == {"number": 7}
        refused = await connected.call_tool("github_delete_repo", {})
        assert refused.is_error
        assert "github_delete_repo" in words(refused)


async def test_a_header_or_a_query_narrows_one_request(node: Node) -> None:
    assert await listed(node, headers={"X-Fabric-View": "forge"}) == FORGE
    assert await listed(node, path="/mcp?view=forge") == FORGE
    assert await listed(node, path="/mcp?view=forge", headers={"X-Fabric-View": "reading"}) == FORGE & READING
    assert await listed(node, path="/views/forge/mcp?view=reading") == FORGE & READING
    assert await listed(node, path="/views/tagged/mcp") == FORGE
    assert "github_delete_repo" not in await listed(node, path="/views/careful/mcp")


async def test_of_two_headers_each_narrows_the_request(node: Node) -> None:
    """A proxy may add one, in front of the client's or behind it."""
    for first, second in (("forge", "everything"), ("everything", "forge")):
        head = f"GET /v1/agents HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {PSK}\r\nConnection: close\r\n"
        views = f"X-Fabric-View: {first}\r\nX-Fabric-View: {second}\r\n\r\n"
        async with asyncio.timeout(WAIT_TIMEOUT), node.raw((head + views).encode()) as (reader, _):
            body = (await reader.read()).partition(b"\r\n\r\n")[2]
        assert b'"github"' in body
        assert b'"percy"' not in body


async def test_an_unknown_view_is_refused_and_nothing_is_shown(node: Node) -> None:
    reply = await node.send("GET", "/v1/agents", headers={"X-Fabric-View": "no-such-view"})
    assert reply.status == 400
    assert "This node has no view 'no-such-view'. Its views are: reading" in reply.body.decode()
    refused = await node.send("GET", "/v1/agents", token=READER, headers={"X-Fabric-View": "no-such-view"})
    assert refused.status == 400
    assert "forge" not in refused.body.decode()
    assert (await node.send("GET", "/views/no-such-view/v1/agents")).status == 400
    assert (await node.send("GET", "/views/a%0d%0ax-evil:%201/v1/agents")).status == 400
    assert (await node.send("GET", "/views/forge/nowhere")).status == 404


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"headers": {"X-Fabric-View": "everything"}},
        {"path": "/mcp?view=everything"},
        {"path": "/views/everything/mcp"},
        {"headers": {"X-Fabric-View": "reading"}},
    ],
)
async def test_a_key_that_is_bound_to_a_view_never_gets_out_of_it(node: Node, how: dict[str, Any]) -> None:
    assert await listed(node, token=READER, **how) == READING
    async with client(node, "legacy", token=READER, **how) as connected:
        for name in ("github_delete_repo", "fabric.tool.agent.github.delete_repo", "percy_plan"):
            assert (await connected.call_tool(name, {})).is_error


async def test_every_door_keeps_a_bound_key_in_its_view(node: Node) -> None:
    async def operation(name: str, **arguments: Any) -> Any:
        return await node.operation(name, arguments, token=READER, headers={"X-Fabric-View": "everything"})

    assert {a["agent_id"] for a in (await operation("fabric.agent.list"))["result"]["agents"]} == {"github", "percy"}
    tools = (await operation("fabric.tool.list"))["result"]["tools"]
    assert {tool["tool_id"] for tool in tools} == {
        "agent.github.get_issue", "agent.github.get_file", "agent.percy.reason",
    }  # fmt: skip
    for spelling in ("delete_repo", "Delete-Repo", "DELETE REPO"):
        refused = await operation("fabric.call", agent_id="github", capability=spelling, task="go")
        assert refused["error_code"] == "AUTH_DENIED"
    unknown = await operation("fabric.call", agent_id="gitlab", capability="delete_repo", task="go")
    assert unknown["error"] == refused["error"].replace("github", "gitlab").replace("DELETE REPO", "delete_repo")
    assert not (await operation("fabric.tool.call", tool_id="agent.github.delete_repo"))["ok"]
    assert not (await operation("fabric.tool.call", tool_id="math.calculate", parameters={"expression": "1"}))["ok"]
    found = await operation("fabric.agent.search", query="delete repo")
    assert all("delete_repo" not in hit["capabilities"] for hit in found["result"]["results"])
    assert (await operation("fabric.message.send", to_agent="github", payload=1))["error_code"] == "AUTH_DENIED"
    card = (await node.send("GET", "/agents/github/.well-known/agent-card.json", token=READER)).json
    assert {skill["id"] for skill in card["skills"]} == {"get_issue", "get_file"}
    assert (await node.send("GET", "/metrics", token=READER)).status == 403
    task = {"agentId": "github", "capability": "delete_repo", "input": {}}
    assert (await node.send("POST", "/v1/tasks", token=READER, json=task)).status == 404


async def test_listings_of_other_doors_have_the_addresses_of_the_view(node: Node) -> None:
    rest = (await node.send("GET", "/views/forge/v1/agents")).json
    assert "github" in str(rest)
    assert "percy" not in str(rest)
    card = (await node.send("GET", "/views/forge/agents/github/.well-known/agent-card.json")).json
    assert f"{node.url}/views/forge/agents/github" in str(card)
    own = (await node.send("GET", "/views/forge/.well-known/agent-card.json")).json
    assert "percy" not in str(own)
    assert f"{node.url}/views/forge" in str(own)
    assert (await node.send("GET", "/views/forge/agents/percy/.well-known/agent-card.json")).status in (403, 404)


@pytest.mark.parametrize("path", ["/views/forge/agents/github/message:send", "/agents/github/message:send?view=forge"])
async def test_paths_of_a2a_over_http_work_below_a_view(node: Node, path: str) -> None:
    parts = [{"data": {"number": 7}}]
    message = {"messageId": "m", "role": "ROLE_USER", "parts": parts, "metadata": {"skill": "get_issue"}}
    reply = await node.send("POST", path, json={"message": message}, headers={"A2A-Version": "1.0"})
    assert reply.status == 200, reply.body
    assert reply.json["task"]["artifacts"][0]["parts"] == parts
    hidden = await node.send(
        "POST", path.replace("github", "percy"), json={"message": message}, headers={"A2A-Version": "1.0"}
    )
    assert "Agent 'percy' not found" in hidden.json["error"]["message"]


async def test_a_view_that_matches_nothing_lists_nothing(node: Node) -> None:
    assert await listed(node, path="/views/nothing/mcp") == set()
    assert await listed(node, path="/views/everything/mcp") == await listed(node)


async def test_an_agent_never_sees_the_view_of_its_caller() -> None:
    percy = Percy()
    async with running(percy.agent, config=CONFIG) as node:
        async with client(node, "2026-07-28", token=READER) as connected:
            await connected.call_tool("percy_reason", {"task": "think"})
        assert [call.auth.principal_id for call in percy.calls] == ["reader"]


async def test_a_job_of_a_bound_caller_keeps_its_view(node: Node) -> None:
    arguments = {"agent_id": "percy", "capability": "reason", "task": "think", "async": True}
    accepted = await node.operation("fabric.call", arguments, token=READER)
    job_id = accepted["result"]["job_id"]

    async def is_done() -> bool:
        status = await node.operation("fabric.job.status", {"job_id": job_id}, token=READER)
        return bool(status["result"]["state"] == "completed")

    await eventually(is_done)
    stored = await node.fabric.store.jobs.get(job_id)
    assert stored is not None
    assert [view.name for view in stored.call.auth.views or ()] == ["reading"]


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"auth": {"keys": [{"id": "a", "key": "12345678", "view": "x"}]}}, "there is no view 'x'"),
        ({"views": [{"name": "x"}, {"name": "x"}]}, "two views named 'x'"),
    ],
)
def test_a_mistake_in_views_stops_the_start(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Fabric(msgspec.convert(config, Config), psk=PSK)


def test_whether_a_view_includes_all_of_an_agent_is_never_guessed_too_widely() -> None:
    manifest = Manifest(agent_id="git-hub", endpoint={}, tags=("code",), capabilities=(Capability(name="Get-File"),))
    for patterns, some, every in [
        (("git-hub.*",), True, True), (("*",), True, True), (("git-hub.get*",), True, False),
        (("git-hub.?",), False, False), (("other.*",), False, False), (("*.get_file",), True, False),
    ]:  # fmt: skip
        view = View(name="v", tools=patterns)
        assert view.includes(manifest, "*") is every, patterns
        assert view.includes(manifest, "get file") is some, patterns
    assert not View(name="v", exclude=("git-hub.delete",)).includes(manifest, "*")
    assert View(name="v", exclude=("other.delete",)).includes(manifest, "*")
    assert not View(name="v", agents=()).may_include(manifest)
    assert not View(name="v", tiers=("public",)).may_include(manifest)


async def test_the_check_warns_of_views_that_match_nothing_or_everything(node: Node) -> None:
    warnings = list_view_warnings(node.fabric.config.views, node.fabric.registry.catalog)
    assert [warning.partition(" matches ")[0] for warning in warnings[::2]] == [
        "views: 'nothing'",
        "views: 'everything'",
    ]
    assert warnings[1].startswith("views: 'nothing': agents: 'no-such-agent' matches nothing (there are: percy, github")


async def test_the_command_lists_the_tools_of_a_view(node: Node) -> None:
    command = ["tools", "list", "--view", "forge", "--json", "--url", node.url, "--token", PSK]
    done = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert {tool["tool_id"] for tool in json.loads(done.stdout)["tools"]} == {
        "agent.github.get_issue", "agent.github.get_file", "agent.github.delete_repo",
    }  # fmt: skip
    wrong = await asyncio.to_thread(CliRunner().invoke, app, [*command[:3], "gone", *command[4:]])
    assert wrong.exit_code == 1
    assert "no view 'gone'" in wrong.stdout
