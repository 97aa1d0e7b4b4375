"""Seven public MCP servers behind one node, each seen whole by the SDKs of both languages, in both eras, and LangChain.

`make conformance` looks with more clients: CrewAI, the Inspector, Claude Code and Codex.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.fixtures.environments import NotInstalled
from tests.fixtures.mcp_clients.looks import QUICK_LOOKS, Look, find_faults
from tests.fixtures.public_servers import PublicServers, list_directly, node_with_public_servers
from tests.system.node import until


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PublicServers]:
    try:
        with node_with_public_servers(tmp_path_factory.mktemp("public")) as servers:
            yield servers
    except NotInstalled as missing:
        pytest.skip(f"the public servers cannot be installed here: {str(missing)[:300]}")


@pytest.fixture(scope="module")
def listed(servers: PublicServers) -> set[str]:
    return asyncio.run(list_directly(servers))


@pytest.mark.parametrize("look", QUICK_LOOKS.values(), ids=QUICK_LOOKS)
async def test_a_client_sees_every_tool_and_reaches_every_server(
    servers: PublicServers, listed: set[str], look: Look
) -> None:
    cancelled_before = servers.count_cancelled()
    try:
        seen = await look(servers)
    except NotInstalled as missing:
        pytest.skip(f"the client cannot be installed here: {str(missing)[:300]}")
    assert not find_faults(seen, servers, listed)
    until(lambda: servers.count_cancelled() == cancelled_before + 1, "the node to cancel the slow call")


def test_importing_needs_nothing_but_the_client_s_file(servers: PublicServers) -> None:
    agents = servers.node.json("agents")["agents"]
    assert {agent["agent_id"] for agent in agents} == {*servers.calls}
    assert {agent["status"] for agent in agents} == {"online"}
