"""When agents join or leave, clients of both eras are told, and names stay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import mcp_types as types
import msgspec
import pytest
import websockets
from mcp import Client

from a2a_fabric.core.agent import Manifest
from tests.fixtures.mcp_client import client, socket_client
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually, running
from tests.fixtures.percy import Percy

Connect = Callable[..., AbstractAsyncContextManager[Client]]
ways = pytest.mark.parametrize("connect", [client, socket_client])


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with running(Percy().agent) as found:
        yield found


def joins(node: Node, agent_id: str, *capabilities: str, **about: Any) -> None:
    endpoint = {"uri": "http://127.0.0.1:9/"}
    offered = [{"name": name} for name in capabilities or ("act",)]
    manifest = {"agent_id": agent_id, "endpoint": endpoint, "capabilities": offered, **about}
    node.fabric.registry.register_agent(msgspec.convert(manifest, Manifest))


async def names(connected: Client) -> list[str]:
    return [tool.name for tool in (await connected.list_tools(cache_mode="bypass")).tools]


class Told:
    """What a client of the handshake era was told."""

    def __init__(self) -> None:
        self.methods: list[str] = []
        self.both = asyncio.Event()

    async def __call__(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification | types.ResourceListChangedNotification):
            self.methods.append(message.method)
            if len(set(self.methods)) == 2:
                self.both.set()


@ways
async def test_sessions_of_the_handshake_era_are_told(node: Node, connect: Connect) -> None:
    told = Told()
    async with connect(node, "legacy", message_handler=told) as connected:
        capabilities = connected.server_capabilities
        assert capabilities.tools is not None
        assert capabilities.tools.list_changed is True
        joined = 0

        async def is_told() -> bool:
            """Over HTTP the client opens its stream for news after the handshake, in its own time."""
            nonlocal joined
            joins(node, f"newcomer{joined}")
            joined += 1
            return told.both.is_set()

        await eventually(is_told)
        assert "newcomer0_act" in await names(connected)


@ways
async def test_listeners_of_the_stateless_era_are_told(node: Node, connect: Connect) -> None:
    async with connect(node, "2026-07-28") as connected, connected.listen(tools_list_changed=True) as news:
        joins(node, "newcomer")
        async with asyncio.timeout(WAIT_TIMEOUT):
            event = await anext(aiter(news))
        assert type(event).__name__ == "ToolsListChanged"
        assert "newcomer_act" in await names(connected)


async def test_a_burst_of_changes_is_told_once(node: Node) -> None:
    told = Told()
    async with socket_client(node, "legacy", message_handler=told) as connected:
        await connected.list_tools()
        for number in range(50):
            joins(node, f"agent{number}")
        async with asyncio.timeout(WAIT_TIMEOUT):
            await told.both.wait()
        await connected.list_tools()
    assert told.methods == ["notifications/tools/list_changed", "notifications/resources/list_changed"]


async def test_a_tool_that_was_there_for_a_moment_only_is_told_of(node: Node) -> None:
    """A client may have read the list just then."""
    async with client(node, "2026-07-28") as connected, connected.listen(tools_list_changed=True) as news:
        joins(node, "percy2")
        async with asyncio.timeout(WAIT_TIMEOUT):
            await anext(listening := aiter(news))
            joins(node, "percy2", "act", "wave")
            joins(node, "percy2")
            await anext(listening)


async def test_what_changes_nothing_is_not_told(node: Node) -> None:
    async def is_told() -> bool:
        return node.fabric.doors[1].servers._notify_timer is None  # type: ignore[attr-defined]

    async def is_quiet() -> bool:
        """Everybody has been looked at, and what came of it has been told."""
        health = node.fabric.registry.health
        looked_at = all(health.get(each).status != "unknown" for each in ("percy", "newcomer"))
        return looked_at and await is_told()

    told = Told()
    joins(node, "newcomer")
    await eventually(is_quiet)
    async with socket_client(node, "legacy", message_handler=told) as connected:
        joins(node, "newcomer")
        await eventually(is_told)
        await connected.list_tools()
    assert told.methods == []


async def test_no_name_changes_when_others_come_and_go(node: Node) -> None:
    async with client(node) as connected:
        joins(node, "a-b", "c")
        assert "a_b_c" in await names(connected)
        joins(node, "a", "b_c")
        listed = await names(connected)
        assert "a_b_c" in listed
        (tailed,) = [name for name in listed if name.startswith("a_b_c_")]
        tools = (await connected.list_tools()).tools
        found = {tool.name: (tool.meta or {})["a2a-fabric/name"] for tool in tools}
        assert found["a_b_c"] == "fabric.tool.agent.a-b.c"
        assert found[tailed] == "fabric.tool.agent.a.b_c"


async def test_a_session_that_ended_is_forgotten(node: Node) -> None:
    async with socket_client(node, "legacy"):
        pass
    async with client(node, "legacy"):
        pass
    server = await node.fabric.doors[1].servers.get_gateway_server()  # type: ignore[attr-defined]

    async def no_session_is_left() -> bool:
        return not server.notifier._sessions

    await eventually(no_session_is_left)
    joins(node, "newcomer")


async def test_an_agent_that_describes_itself_later_gets_its_tools_then(node: Node) -> None:
    async with client(node) as connected:
        joins(node, "late")
        assert "late_act" in await names(connected)
        joins(node, "late", "act", "think")
        assert {"late_act", "late_think"} <= set(await names(connected))


async def test_a_client_that_never_reads_its_notifications_delays_no_other(node: Node) -> None:
    url = node.url.replace("http", "ws", 1) + "/mcp/ws"
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "silent", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}
    key = {"Authorization": f"Bearer {PSK}"}
    async with (
        asyncio.timeout(WAIT_TIMEOUT),
        websockets.connect(url, additional_headers=key, max_queue=1) as silent,
    ):
        await silent.send(msgspec.json.encode(hello).decode())
        await silent.recv()
        await silent.send('{"jsonrpc":"2.0","method":"notifications/initialized"}')
        for number in range(3):
            told = Told()
            async with socket_client(node, "legacy", message_handler=told) as connected:
                await names(connected)
                for each in range(20):
                    joins(node, f"guest-{number}-{each}")
                await told.both.wait()
                assert f"guest_{number}_19_act" in await names(connected)
        seen = []
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(0.5):
                    seen.append(await silent.recv())
        assert 0 < len(seen) <= 12, "changes within a short time are one notification for each list"
