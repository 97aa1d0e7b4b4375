"""MCP Apps at `/mcp`: tools keep their user interfaces, whose addresses lead to the right server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from mcp import Client
from mcp.client.extension import ClientExtension
from mcp.shared.exceptions import MCPError

from tests.fixtures.mcp_client import client, socket_client, words
from tests.fixtures.mcp_raw import modern
from tests.fixtures.mcp_servers.clock_app import MEDIA_TYPE, VIEW, clock_program, make
from tests.fixtures.mcp_servers.serving import serving
from tests.fixtures.node import PSK, Node, eventually, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

UI = "io.modelcontextprotocol/ui"
OWNERS = {"ann": "ann", "bob": "bob", "pipe": "pipe"}
ERAS = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
READER = "the-key-of-the-reader"
STRANGER = "the-key-of-a-stranger"
CONFIG = {
    "views": [{"name": "reading", "tools": ["ann.get_time", "bob.sees_apps"]}],
    "auth": {
        "keys": [
            {"id": "reader", "key": READER, "view": "reading"},
            {"id": "stranger", "key": STRANGER, "scopes": ["agent:somebody-else"]},
        ]
    },
}


class Screen(ClientExtension):
    """A client that shows user interfaces."""

    identifier = UI

    def settings(self) -> dict[str, Any]:
        return {"mimeTypes": [MEDIA_TYPE]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    """Two servers over HTTP, one of each era, and one on stdio. All have the same tools and addresses."""
    async with AsyncExitStack() as stack:
        manifests: list[dict[str, Any]] = []
        for agent_id, era in (("ann", "handshake"), ("bob", "stateless")):
            server = await stack.enter_async_context(serving(era, make=lambda owner=agent_id: make(owner)))  # type: ignore[misc,arg-type]  # one of two eras
            manifests.append({"agent_id": agent_id, "runtime": "mcp", "endpoint": {"uri": server.url}})
        manifests.append({"agent_id": "pipe", "runtime": "mcp", "endpoint": {"command": clock_program()}})
        node = await stack.enter_async_context(running(manifests=manifests, config=CONFIG))

        async def are_listed() -> bool:
            async with client(node, "legacy") as connected:
                uris = {str(each.uri) for each in (await connected.list_resources()).resources}
                tools = await list_metas(connected)
            return all(public(owner) in uris and f"{owner}_refresh" in tools for owner in OWNERS)

        await eventually(are_listed)
        yield node


def public(agent_id: str) -> str:
    return f"ui://a2a-fabric/{agent_id}/resources/clock%2Fapp.html"


async def list_metas(connected: Client) -> dict[str, dict[str, Any]]:
    return {tool.name: dict(tool.meta or {}) for tool in (await connected.list_tools()).tools}


@ERAS
async def test_a_tool_names_the_user_interface_of_its_own_server(node: Node, mode: str) -> None:
    async with client(node, mode) as connected:
        metas = await list_metas(connected)
        for owner in OWNERS:
            meta = metas[f"{owner}_get_time"]
            assert meta["ui"]["resourceUri"] == meta["ui/resourceUri"] == public(owner)
            contents = (await connected.read_resource(meta["ui"]["resourceUri"])).contents[0].model_dump(by_alias=True)
            assert (contents["uri"], contents["mimeType"]) == (public(owner), MEDIA_TYPE)
            assert contents["text"] == f"<!doctype html><title>{owner}</title>"
            assert contents["_meta"]["ui"]["csp"] == {"connectDomains": ["https://example.org"]}
            assert contents["_meta"]["ui"]["permissions"] == {"camera": {}}


@ERAS
async def test_what_a_server_says_of_a_tool_reaches_the_client_but_never_passes_for_ours(node: Node, mode: str) -> None:
    async with client(node, mode) as connected:
        meta = (await list_metas(connected))["ann_get_time"]
        assert meta["vendor/colour"] == "red"
        assert (meta["a2a-fabric/agent"], meta["a2a-fabric/name"]) == ("ann", "fabric.tool.agent.ann.get_time")
        assert "a2a-fabric/trusted" not in meta
        result = await connected.call_tool("ann_show", {})
        assert dict(result.meta or {})["vendor/rows"] == [1, 2]
        assert dict(result.meta or {})["a2a-fabric/trace"] != "spoofed"


@ERAS
async def test_user_interfaces_in_lists_and_results_are_those_of_the_right_server(node: Node, mode: str) -> None:
    async with client(node, mode) as connected:
        listed = {str(each.uri): each for each in (await connected.list_resources()).resources}
        for owner in OWNERS:
            assert listed[public(owner)].mime_type == MEDIA_TYPE
            assert dict(listed[public(owner)].meta or {})["ui"]["permissions"] == {"camera": {}}
            _, embedded, link = [
                block.model_dump(by_alias=True, exclude_none=True)
                for block in (await connected.call_tool(f"{owner}_show", {})).content
            ]
            assert embedded["resource"]["uri"] == link["uri"] == public(owner)
            assert embedded["resource"]["mimeType"] == link["mimeType"] == MEDIA_TYPE
            assert embedded["resource"]["_meta"] == {"ui": {"prefersBorder": True}}
            for block in (embedded, link):
                assert block["_meta"] == {"a2a-fabric/agent": owner, "a2a-fabric/original": VIEW}
            prompt = await connected.get_prompt(f"{owner}_present")
            assert prompt.messages[0].content.model_dump()["uri"] == public(owner)


@ERAS
async def test_a_tool_for_apps_is_listed_to_the_client_and_not_found_by_models(node: Node, mode: str) -> None:
    async with client(node, mode) as connected:
        metas = await list_metas(connected)
        assert metas["ann_refresh"]["ui"] == {"resourceUri": public("ann"), "visibility": ["app"]}
        assert words(await connected.call_tool("ann_refresh", {})) == "refreshed ann"
        found = await connected.call_tool("fabric_tool_list", {"query": "ann"})
        assert "ann.get_time" in str(found.content)
        assert "ann.refresh" not in str(found.content)


@ERAS
async def test_a_user_interface_calls_and_reads_by_the_names_of_its_server_if_only_one_has_them(mode: str) -> None:
    async with serving(make=lambda: make("ann")) as server:
        manifest = {"agent_id": "ann", "runtime": "mcp", "endpoint": {"uri": server.url}}
        async with running(manifests=[manifest]) as node:

            async def is_listed() -> bool:
                async with client(node, "legacy") as connected:
                    return "ann_refresh" in await list_metas(connected)

            await eventually(is_listed)
            async with client(node, mode) as connected:
                assert words(await connected.call_tool("refresh", {})) == "refreshed ann"
                assert "<title>ann</title>" in str((await connected.read_resource(VIEW)).contents[0])
                with pytest.raises(MCPError, match="Unknown tool"):  # it is for models only
                    await connected.call_tool("explain", {})


@ERAS
@pytest.mark.parametrize("path", ["/mcp", "/agents/ann/mcp"])
async def test_a_user_interface_finds_a_tool_that_the_operator_renamed(mode: str, path: str) -> None:
    async with serving(make=lambda: make("ann")) as server:
        choice = {
            "rename": {"refresh": "update"},
            "derive": {"renew": {"from": "refresh"}},
            "exclude": ["get_time"],
        }
        manifest = {"agent_id": "ann", "runtime": "mcp", "endpoint": {"uri": server.url}, "tools": choice}
        async with running(manifests=[manifest]) as node:

            async def is_listed() -> bool:
                async with client(node, "legacy") as connected:
                    return "ann_update" in await list_metas(connected)

            await eventually(is_listed)
            async with client(node, mode, path=path) as connected:
                assert words(await connected.call_tool("refresh", {})) == "refreshed ann"
                for name in ("get_time", "explain_not"):  # what the operator left out stays out
                    with pytest.raises(MCPError, match="Unknown tool"):
                        await connected.call_tool(name, {})


@ERAS
async def test_a_name_that_several_servers_have_names_the_candidates(node: Node, mode: str) -> None:
    async with client(node, mode) as connected:
        refused = await connected.call_tool("refresh", {})
        assert refused.is_error
        assert "ann_refresh, bob_refresh, pipe_refresh" in str(refused.content)
        with pytest.raises(MCPError, match="Several agents have the resource"):
            await connected.read_resource(VIEW)


@ERAS
async def test_a_caller_of_some_tools_reads_their_user_interfaces_and_no_others(node: Node, mode: str) -> None:
    async with client(node, mode, token=READER) as connected:
        metas = await list_metas(connected)
        assert metas["ann_get_time"]["ui"]["resourceUri"] == public("ann")
        listed = {str(each.uri) for each in (await connected.list_resources()).resources}
        assert {uri for uri in listed if uri.startswith("ui://")} == {public("ann")}
        assert "<title>ann</title>" in str((await connected.read_resource(public("ann"))).contents[0])
        assert "<title>ann</title>" in str((await connected.read_resource(VIEW)).contents[0])
        for uri in (public("bob"), public("pipe"), public("nobody"), "ui://a2a-fabric/ann/resources/other"):
            with pytest.raises(MCPError, match="Unknown resource"):
                await connected.read_resource(uri)
        refused = await connected.call_tool("refresh", {})
        assert refused.is_error
        assert "ann_refresh" not in str(refused.content)
    async with client(node, mode, token=READER, path="/agents/ann/mcp") as connected:
        uri = (await list_metas(connected))["get_time"]["ui"]["resourceUri"]
        assert "<title>ann</title>" in str((await connected.read_resource(uri)).contents[0])
    async with client(node, mode, token=STRANGER) as connected:
        with pytest.raises(MCPError, match="Unknown resource"):
            await connected.read_resource(public("ann"))


@ERAS
async def test_one_agent_alone_is_seen_as_it_is(node: Node, mode: str) -> None:
    async with client(node, mode, path="/agents/ann/mcp") as connected:
        assert (await list_metas(connected))["get_time"]["ui"] == {"resourceUri": VIEW}
        assert str((await connected.read_resource(VIEW)).contents[0].uri) == VIEW


@ERAS
async def test_the_extension_is_declared_to_clients_and_for_clients_that_declare_it(node: Node, mode: str) -> None:
    async with client(node, extensions=[Screen()]) as connected:  # the SDK's handshake has no extensions of servers
        assert (connected.server_capabilities.extensions or {})[UI] == {"mimeTypes": [MEDIA_TYPE]}
    async with client(node, mode, extensions=[Screen()]) as connected:
        for owner in OWNERS:
            assert words(await connected.call_tool(f"{owner}_sees_apps", {})) == "apps: True"
    async with socket_client(node, mode, extensions=[Screen()]) as connected:
        assert words(await connected.call_tool("bob_sees_apps", {})) == "apps: True"
    async with client(node, mode) as connected:
        for owner in ("bob", "pipe"):  # stateless servers are told with each call
            assert words(await connected.call_tool(f"{owner}_sees_apps", {})) == "apps: False"


async def test_the_fast_path_and_the_slow_path_say_the_same(node: Node) -> None:
    meta = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {UI: {"mimeTypes": [MEDIA_TYPE]}}}}
    for _ in range(3):  # the first request of a client goes to the SDK, the others take the fast path
        headers, body = modern("tools/call", {"name": "bob_sees_apps", "arguments": {}}, meta=meta)
        assert "apps: True" in (await node.send("POST", "/mcp", json=body, headers=headers)).body.decode()


@ERAS
@pytest.mark.parametrize("era", ["handshake", "stateless"])
async def test_agents_of_another_node_bring_their_user_interfaces(mode: str, era: Any) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(era, make=lambda: make("ann")))
        manifest = {"agent_id": "ann", "runtime": "mcp", "endpoint": {"uri": server.url}}
        other = await stack.enter_async_context(running(manifests=[manifest]))

        async def is_listed(at: Node, *names: str) -> bool:
            async with client(at, "legacy") as connected:
                return set(names) <= set(await list_metas(connected))

        await eventually(lambda: is_listed(other, "ann_refresh"))
        endpoint = {"uri": other.url, "psk": PSK}
        here = [
            {"agent_id": "lab", "runtime": "fabric", "endpoint": endpoint},
            {"agent_id": "cilla", "runtime": "fabric", "endpoint": {**endpoint, "agent": "ann"}},
        ]
        node = await stack.enter_async_context(running(manifests=here))
        await eventually(lambda: is_listed(node, "lab_ann_refresh", "cilla_refresh"))
        async with client(node, mode) as connected:
            metas = await list_metas(connected)

            async def has_resources() -> bool:  # of agents that have been asked already
                listed = {str(each.uri) for each in (await connected.list_resources()).resources}
                return listed.issuperset(map(public, ("lab%2Fann", "cilla")))

            await eventually(has_resources)
            for agent_id in ("lab%2Fann", "cilla"):
                uri = public(agent_id)
                assert metas[f"{agent_id.replace('%2F', '_')}_get_time"]["ui"]["resourceUri"] == uri
                [content] = (await connected.read_resource(uri)).contents
                assert "<title>ann</title>" in str(content)
                assert (content.mime_type, str(content.uri)) == (MEDIA_TYPE, uri)
            with pytest.raises(MCPError, match="no other resources"):
                await connected.read_resource("ui://a2a-fabric/cilla/resources/another%2Fapp.html")
            assert words(await connected.call_tool("lab_ann_refresh", {})) == "refreshed ann"
