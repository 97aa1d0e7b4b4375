"""No caller registers an agent that could be taken for another's: through every door where agents register."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.agent import Agent
from tests.fixtures.mcp_client import client
from tests.fixtures.node import PSK, Node, eventually, running
from tests.matrix.agents.listening import NOWHERE, listening

KEYS = [
    *({"id": name, "key": f"the-key-of-{name}"} for name in ("alice", "mallory")),
    {"id": "guest", "key": "the-key-of-guest", "trust": "public", "scopes": ["register", "agent:*"]},
]
CONFIG: dict[str, Any] = {
    "store": "memory:",
    "node_id": "home-1",
    "auth": {"keys": KEYS},
    "health": {"interval": 0},
    "doors": [{"kind": "fabric"}, {"kind": "mcp"}, {"kind": "directory"}, {"kind": "rest"}],
}


def declared() -> list[Agent]:
    agents = [
        Agent("prod_files", display_name="Production Files", trust_tier="org"),
        Agent("secret-agent", trust_tier="local"),
        Agent("open-agent", trust_tier="public"),
    ]
    for agent in agents:

        @agent.capability(name="read")
        async def read(task: str) -> dict[str, Any]:
            return {"answer": "declared"}

    return agents


@asynccontextmanager
async def node_with(*agents: Agent, **config: Any) -> AsyncIterator[Node]:
    async with running(*(agents or declared()), config={**CONFIG, **config}) as node:
        yield node


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with node_with() as found:
        yield found


async def register(node: Node, agent_id: str, who: str = "mallory", **more: Any) -> dict[str, Any]:
    token = PSK if who == "operator" else f"the-key-of-{who}"
    given = {"agent_id": agent_id, "endpoint": NOWHERE, **more}
    envelope: dict[str, Any] = await node.operation("fabric.agent.register", given, token=token)
    return envelope


IMITATIONS = ("Prod_Files", "prod-files", "prod.files", "prodfiles", "PROD_FILES", "prod_fi1es", "prod_fiIes")
RESERVED = (
    "alice",
    "Alice",
    "a-lice",
    "a.l.i.c.e",
    "psk",
    "fabric",
    "Fabric",
    "anonymous",
    "home-1",
    "home_1",
    "operator",
)


@pytest.mark.parametrize("agent_id", IMITATIONS)
async def test_a_look_alike_of_a_declared_agent_is_refused(node: Node, agent_id: str) -> None:
    refused = await register(node, agent_id)
    assert refused["error_code"] == "CONFLICT"
    assert "looks like agent 'prod_files'" in refused["error"]
    assert refused["error_details"]["field"] == "agent_id"


@pytest.mark.parametrize("agent_id", RESERVED)
async def test_names_of_keys_and_of_the_node_are_reserved(node: Node, agent_id: str) -> None:
    refused = await register(node, agent_id)
    assert refused["error_code"] == "CONFLICT"
    assert "reserved" in refused["error"]


@pytest.mark.parametrize("agent_id", ["corp", "Corp"])
async def test_names_of_issuers_are_reserved(agent_id: str, tmp_path: Path) -> None:
    issuer = {"id": "corp", "issuer": "https://corp.example", "secret": "x" * 32, "audience": ["fabric"]}
    async with running(config={**CONFIG, "auth": {"keys": KEYS, "issuers": [issuer]}}, base=tmp_path) as node:
        assert (await register(node, agent_id))["error_code"] == "CONFLICT"
        told = await directory(node, "corp:somebody", "Somebody")
        assert "reserved" in told["error"]["message"]


async def directory(node: Node, agent_id: str, name: str, who: str = "mallory") -> dict[str, Any]:
    params = {"agentId": agent_id, "name": name, "capabilities": ["read"], "endpoint": NOWHERE}
    body = {"jsonrpc": "2.0", "id": 1, "method": "a2a/register", "params": params}
    reply = await node.send("POST", "/a2a", json=body, token=f"the-key-of-{who}")
    told: dict[str, Any] = reply.json
    return told


@pytest.mark.parametrize(
    ("agent_id", "name"),
    [
        ("Prod-Files", "Mine"),
        ("pr\u043ed_files", "Mine"),  # a Cyrillic o: such an id is shown as it was given
        ("mine", "Prod Files"),
        ("mine", "Pr\u043eduction Files"),
        ("mine", "Alice"),
        ("psk:psk", "Mine"),
    ],
)
async def test_the_directory_refuses_them_too(node: Node, agent_id: str, name: str) -> None:
    told = await directory(node, agent_id, name)
    assert "error" in told, told
    assert "choose another" in json.dumps(told["error"])


async def test_the_plain_registration_page_refuses_them_too(node: Node) -> None:
    given = {"agent_id": "prod-files", "endpoint": {"transport": "http", "uri": NOWHERE}}
    reply = await node.send("POST", "/mcp/register_agent", json=given, token="the-key-of-mallory")
    assert reply.status == 409 or reply.json["error_code"] == "CONFLICT"


async def test_an_mcp_client_is_refused_too(node: Node) -> None:
    async with client(node, token="the-key-of-mallory") as mcp:
        result = await mcp.call_tool("fabric_agent_register", {"agent_id": "prod-files", "endpoint": NOWHERE})
    assert result.is_error
    assert "looks like" in result.content[0].text  # type: ignore[union-attr]  # it is text


@pytest.mark.parametrize("display_name", ["prod_files", "Production Files", "Pr\u043educti\u043en  Files", "ALICE"])
async def test_a_display_name_that_looks_like_another_s_is_refused(node: Node, display_name: str) -> None:
    refused = await register(node, "mine", display_name=display_name)
    assert refused["error_code"] == "CONFLICT"
    assert refused["error_details"]["field"] == "display_name"
    assert (await register(node, "mine", display_name="Weather"))["ok"]


async def test_a_look_alike_of_an_agent_that_the_caller_may_not_see_is_refused_without_naming_it(node: Node) -> None:
    refused = await register(node, "secret_agent", "guest", trust_tier="public")
    assert refused["error_code"] == "CONFLICT"
    assert "secret-agent" not in json.dumps(refused)
    assert "open-agent" in (await register(node, "open_agent", "guest", trust_tier="public"))["error"]


async def test_a_look_alike_of_a_built_in_tool_is_refused(node: Node) -> None:
    assert (await register(node, "math-calculate"))["error_code"] == "CONFLICT"


async def test_a_look_alike_of_another_owner_s_agent_is_refused_but_not_of_one_s_own(node: Node) -> None:
    assert (await register(node, "weather-north", "alice", display_name="Weather"))["ok"]
    assert (await register(node, "Weather_North"))["error_code"] == "CONFLICT"
    assert (await register(node, "mine", display_name="weather north"))["error_code"] == "CONFLICT"
    assert (await register(node, "mine", display_name="Weather"))["ok"]  # any caller may have one
    assert (await register(node, "weather_north", "alice"))["ok"]


async def test_the_holder_of_a_key_may_register_under_its_very_name(node: Node) -> None:
    assert (await register(node, "alice", "alice"))["ok"]
    assert (await register(node, "Alice", "alice"))["error_code"] == "CONFLICT"


async def test_the_operator_may_register_any_name(node: Node) -> None:
    assert (await register(node, "prod-files", "operator"))["ok"]
    assert (await node.operation("fabric.agent.describe", {"agent_id": "prod-files"}))["ok"]


async def test_an_agent_declared_later_wins_and_the_registered_look_alike_is_hidden(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'fabric.db'}"
    async with running(config={**CONFIG, "store": store}, base=tmp_path) as node:
        assert (await register(node, "prod-files"))["ok"]
    agent = Agent("prod_files")
    async with running(agent, config={**CONFIG, "store": store}, base=tmp_path) as node:
        listed = (await node.operation("fabric.agent.list"))["result"]["agents"]
        assert [each["agent_id"] for each in listed] == ["prod_files"]
        assert (await node.operation("fabric.agent.describe", {"agent_id": "prod-files"}))["ok"] is False

        async def is_logged() -> bool:
            lines = node.log.getvalue().splitlines()
            return any("prod-files" in line and "is hidden" in line for line in lines)

        await eventually(is_logged)
    async with running(config={**CONFIG, "store": store}, base=tmp_path) as node:
        assert (await node.operation("fabric.agent.describe", {"agent_id": "prod-files"}))["ok"]


async def test_a_key_added_later_hides_the_agent_of_another_owner_with_its_name(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'fabric.db'}"
    async with running(config={**CONFIG, "store": store}) as node:
        assert (await register(node, "bob"))["ok"]
    more = {"keys": [*KEYS, {"id": "bob", "key": "the-key-of-bob"}]}
    async with running(config={**CONFIG, "store": store, "auth": more}) as node:
        assert (await node.operation("fabric.agent.describe", {"agent_id": "bob"}))["ok"] is False
        given = {"agent_id": "bob", "block_ms": 0}
        receive = "fabric.message.receive"
        assert (await node.operation(receive, given, token="the-key-of-mallory"))["error_code"] == "AUTH_DENIED"
        assert (await node.operation(receive, given, token="the-key-of-bob"))["ok"]


async def test_a_registered_agent_does_not_publish_a_look_alike_name_of_itself_later(node: Node) -> None:
    """An agent that is asked about itself may say anything; a display name that is another's is left out."""
    impostor = Agent("mine", display_name="Production Files", description="asked")

    @impostor.capability
    async def read(task: str) -> dict[str, Any]:
        return {"answer": "registered"}

    async with listening(impostor.app) as uri:
        assert (await register(node, "mine", endpoint=uri))["ok"]

        async def is_described() -> bool:
            shown = (await node.operation("fabric.agent.describe", {"agent_id": "mine"}))["result"]["agent"]
            assert shown["display_name"] == "mine"
            return bool(shown["description"] == "asked")

        await eventually(is_described)
        assert (await node.ask("mine", "read"))["result"] == {"answer": "registered"}


async def test_tools_of_a_declared_agent_keep_their_names_when_others_register(tmp_path: Path) -> None:
    """`prod` with the capability `files_read` would be listed as `prod_files_read`, as the declared agent's tool is."""
    store = f"sqlite:{tmp_path / 'fabric.db'}"
    for _ in range(2):  # also after a restart, when all of them come at once
        async with running(*declared(), config={**CONFIG, "store": store}) as node:
            assert (await register(node, "prod", capabilities=["files_read"]))["ok"]

            async def is_listed() -> bool:
                return node.fabric.registry.catalog.get("prod") is not None

            await eventually(is_listed)
            async with client(node) as mcp:
                result = await mcp.call_tool("prod_files_read", {"task": "x"})
                assert result.structured_content == {"answer": "declared"}
                names = [tool.name for tool in (await mcp.list_tools()).tools if tool.name.startswith("prod")]
            assert len(names) == 2


async def test_the_dotted_tool_name_of_a_declared_agent_is_never_another_s() -> None:
    """`prod.files` with the capability `read` has the same dotted name as `prod` with `files.read`."""
    agent = Agent("prod")

    @agent.capability(name="files.read")
    async def read(task: str) -> dict[str, Any]:
        return {"answer": "declared"}

    async with node_with(agent) as node:
        assert (await register(node, "prod.files", capabilities=["read"]))["ok"]
        done = await node.operation("fabric.tool.agent.prod.files.read", {"task": "x"})
        assert done["result"] == {"answer": "declared"}
        async with client(node) as mcp:
            result = await mcp.call_tool("fabric.tool.agent.prod.files.read", {"task": "x"})
            assert result.structured_content == {"answer": "declared"}
