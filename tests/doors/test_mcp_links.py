"""Links to resources in the results of MCP servers' tools: they lead to the right server at `/mcp`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ResourceLink

from tests.fixtures.mcp_client import client
from tests.fixtures.mcp_servers.serving import serving
from tests.fixtures.node import Node, eventually, running

GUEST = "the-key-of-the-guest"
ERAS = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


def make(owner: str) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer(owner, version="1", log_level="ERROR")

    @server.resource("note://today")
    def today() -> str:
        return f"of {owner}"

    @server.tool(structured_output=False)
    def point() -> CallToolResult:
        links = [
            ResourceLink(name="today", uri="note://today", title="Today"),
            ResourceLink(name="page", uri="https://example.org/page"),
        ]
        return CallToolResult(content=list(links))

    return server


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with serving(make=lambda: make("ann")) as ann, serving(make=lambda: make("bob")) as bob:
        manifests = [
            {"agent_id": "ann", "runtime": "mcp", "endpoint": {"uri": ann.url}},
            {"agent_id": "bob", "runtime": "mcp", "endpoint": {"uri": bob.url}},
        ]
        async with running(manifests=manifests) as node:

            async def are_listed() -> bool:
                async with client(node, "legacy") as connected:
                    listed = {str(each.uri) for each in (await connected.list_resources()).resources}
                tools = str(await node.operation("fabric.tool.list", {}))
                owners = ("ann", "bob")
                has_resources = all(any(f"/{each}/resources/" in uri for uri in listed) for each in owners)
                return has_resources and all(f"{each}.point" in tools for each in owners)

            await eventually(are_listed)
            yield node


@ERAS
async def test_a_link_in_a_result_leads_to_the_resource_of_its_own_server(node: Node, mode: str) -> None:
    async with client(node, mode) as connected:
        for owner in ("ann", "bob"):
            result = await connected.call_tool(f"{owner}_point", {})
            note, page = [block for block in result.content if block.type == "resource_link"]
            assert str(page.uri) == "https://example.org/page"
            assert (note.title, dict(note.meta or {})["a2a-fabric/original"]) == ("Today", "note://today")
            contents = (await connected.read_resource(str(note.uri))).contents
            assert contents[0].model_dump()["text"] == f"of {owner}"


@ERAS
async def test_a_uri_that_several_servers_have_names_the_candidates(node: Node, mode: str) -> None:
    async with client(node, mode) as connected:
        with pytest.raises(MCPError) as caught:
            await connected.read_resource("note://today")
        assert "Several agents have the resource note://today" in str(caught.value)
        for owner in ("ann", "bob"):
            uri = f"fabric://agents/{owner}/resources/note%3A%2F%2Ftoday"
            assert uri in str(caught.value)
            assert (await connected.read_resource(uri)).contents[0].model_dump()["text"] == f"of {owner}"


@ERAS
async def test_an_agent_that_registers_itself_does_not_make_a_uri_ambiguous(mode: str) -> None:
    async with serving(make=lambda: make("ann")) as ann, serving(make=lambda: make("eve")) as eve:
        manifest = {"agent_id": "ann", "runtime": "mcp", "endpoint": {"uri": ann.url}}
        keys = [{"id": "guest", "key": GUEST, "scopes": ["register", "agent:*"]}]
        config = {"auth": {"keys": keys}, "registration": {"private": True}}
        async with running(manifests=[manifest], config=config) as node:
            registered = {"agent_id": "eve", "runtime": "mcp", "endpoint": {"uri": eve.url}}
            reply = await node.operation("fabric.agent.register", registered, token=GUEST)
            assert reply["ok"], reply

            async def are_listed() -> bool:
                async with client(node, "legacy") as connected:
                    listed = str([each.uri for each in (await connected.list_resources()).resources])
                return "/ann/resources/" in listed and "/eve/resources/" in listed

            await eventually(are_listed)
            async with client(node, mode) as connected:
                contents = (await connected.read_resource("note://today")).contents
                assert contents[0].model_dump()["text"] == "of ann"
