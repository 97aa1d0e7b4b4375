"""The source that keeps up with other nodes' lists, before hosts that say what the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from a2a_fabric.core.agent import ListedAgent, Manifest, NodeListing, Status, is_imported, node_entry_of
from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.registry.changes import RegistryChanges
from a2a_fabric.registry.health import HealthPolicy, HealthTracker
from a2a_fabric.registry.registry import Registry
from a2a_fabric.registry.sources.nodes import NodeAgents
from tests.unit.made import Listed as Source
from tests.unit.made import agent, until


class Host:
    """A node: each listing waits for what the test puts in."""

    def __init__(self) -> None:
        self.says: asyncio.Queue[NodeListing | Exception] = asyncio.Queue()
        self.asked: list[str | None] = []

    async def list_agents(self, known: str | None) -> NodeListing:
        self.asked.append(known)
        said = await self.says.get()
        if isinstance(said, Exception):
            raise said
        return said

    def lists(self, *agents: Manifest, status: Status = "online", revision: str | None = "r1") -> None:
        listed = tuple(ListedAgent(manifest=each, status=status) for each in agents)
        self.says.put_nowait(NodeListing(agents=listed, revision=revision))


def node(agent_id: str = "lab", **about: Any) -> Manifest:
    return agent(agent_id, runtime="fabric", endpoint={"uri": "http://lab", "psk": "env:LAB"}, **about)


@asynccontextmanager
async def keeping_up(host: Host, *declared: Manifest) -> AsyncIterator[tuple[Registry, Source]]:
    book, file = HealthTracker(HealthPolicy()), Source("file", declared)

    async def host_of(manifest: Manifest) -> Host:
        return host

    nodes = NodeAgents(_is_node, host_of, book)
    registry = Registry([file, nodes], [], book)
    registry.add_listener(nodes.on_catalog_changed)
    await registry.load(file)
    watching = asyncio.ensure_future(nodes.watch(lambda: registry.load(nodes)))
    try:
        yield registry, file
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def _is_node(manifest: Manifest) -> bool:
    return manifest.runtime == "fabric" and not is_imported(manifest.agent_id)


async def test_an_imported_agent_is_what_it_says_and_reached_as_its_node_says() -> None:
    host = Host()
    entry = node(trust_tier="public", fallbacks=("near",), tags=("far",), metadata={"registered": "x"})
    async with keeping_up(host, entry) as (registry, _):
        about = {"description": "Thinks.", "trust_tier": "local", "fallbacks": ("its own",), "tags": ("t",)}
        host.lists(agent("percy", "reason", **about))
        await until(lambda: registry.catalog.get("lab/percy"))
        percy = registry.get_agent("lab/percy")
        assert percy.description == "Thinks."
        assert percy.find_capability("reason") is not None
        assert percy.endpoint == {"uri": "http://lab", "psk": "env:LAB", "agent": "percy"}
        assert (percy.trust_tier, percy.fallbacks, percy.tags) == ("public", ("near",), ("far", "t"))
        assert (percy.node_id, percy.metadata, node_entry_of(percy.agent_id)) == ("lab", {"registered": "x"}, "lab")
        await until(lambda: registry.health.get("lab/percy").status == "online")


async def test_a_node_that_is_lost_takes_its_agents_offline_until_it_is_back() -> None:
    host = Host()
    async with keeping_up(host, node()) as (registry, _):
        host.lists(agent("percy", "reason"))
        await until(lambda: registry.health.get("lab/percy").status == "online")
        host.says.put_nowait(AgentOffline("connection refused"))
        await until(lambda: registry.health.get("lab/percy").status == "offline")
        assert registry.health.get("lab").error == "connection refused"
        assert registry.health.get("lab/percy").error == "node 'lab' is away: connection refused"
        assert registry.catalog.get("lab/percy") is not None
        host.lists(agent("percy", "reason"))
        await until(lambda: registry.health.get("lab/percy").status == "online")
        assert host.asked[:3] == [None, "r1", None]


async def test_a_host_that_breaks_is_asked_again() -> None:
    host = Host()
    async with keeping_up(host, node()) as (registry, _):
        host.says.put_nowait(RuntimeError("a bug"))
        await until(lambda: registry.health.get("lab").status == "offline")
        host.lists(agent("percy", "reason"))
        await until(lambda: registry.catalog.get("lab/percy"))


async def test_what_was_marked_here_is_put_right_by_the_next_word_from_there() -> None:
    host = Host()
    async with keeping_up(host, node()) as (registry, _):
        host.lists(agent("percy", "reason"))
        await until(lambda: registry.health.get("lab/percy").status == "online")
        registry.health.set_status("lab/percy", "offline", "it seemed so")
        host.says.put_nowait(NodeListing(agents=None, revision="r1"))
        await until(lambda: registry.health.get("lab/percy").status == "online")


async def test_agents_leave_with_their_node_and_with_its_list() -> None:
    host = Host()
    async with keeping_up(host, node()) as (registry, file):
        host.lists(agent("percy", "reason"), agent("second", "reason"))
        await until(lambda: registry.catalog.get("lab/second"))
        host.lists(agent("percy", "reason"))
        await until(lambda: registry.catalog.get("lab/second") is None)
        assert registry.catalog.get("lab/percy") is not None
        file.held = ()
        await registry.load(file)
        await until(lambda: registry.catalog.get("lab/percy") is None)


async def test_news_wake_those_who_wait_for_them() -> None:
    news = RegistryChanges()
    waiting = asyncio.ensure_future(news.wait(news.revision, 30))
    await asyncio.sleep(0)
    news.notify()
    async with asyncio.timeout(30):
        await waiting
        await news.wait("an old one", 30)
        await news.wait(news.revision, 0.01)
        waiting = asyncio.ensure_future(news.wait(news.revision, 30))
        await asyncio.sleep(0)
        news.stop()
        await waiting
        await news.wait(news.revision, 30)
