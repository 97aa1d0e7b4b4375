"""Source: the agents of other nodes, as each node lists them.

One catalog entry stands for a node. While it exists, a task follows that node's
list and reports the health of its agents. A node that cannot be reached is asked
again with growing pauses; its agents stay in the catalog as offline."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from operator import is_

from a2a_fabric.core.agent import ListedAgent, Manifest, NodeListing, Status, import_agent
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.ports import AgentHost
from a2a_fabric.core.tasks import cancel_and_wait, iterate_in_slices
from a2a_fabric.registry.catalog import Catalog
from a2a_fabric.registry.health import HealthTracker
from a2a_fabric.schemas.manifest_check import sanitize_discovered_manifest

_log = logging.getLogger(__name__)
_MIN_PAUSE = 0.1  # seconds between two lists; doubled while they change again and again
_MAX_PAUSE = 1.0
_POLL_INTERVAL = 3.0  # for nodes that cannot report changes
_FIRST_RETRY_PAUSE = 0.25
_MAX_RETRY_PAUSE = 10.0

OnChange = Callable[[], Awaitable[None]]


class NodeAgents:
    """`is_node` recognizes the entries of nodes; `host_of` returns their runtimes, or raises FabricError."""

    name = "other nodes"

    def __init__(
        self,
        is_node: Callable[[Manifest], bool],
        host_of: Callable[[Manifest], Awaitable[AgentHost]],
        health: HealthTracker,
    ) -> None:
        self._is_node = is_node
        self._host_of = host_of
        self._health = health
        self._catalog = Catalog()
        self._nodes: dict[str, Manifest] = {}
        self._listed_agents: dict[str, dict[str, ListedAgent]] = {}  # by node, then by the id that its agent has here
        self._manifests: dict[str, dict[str, Manifest]] = {}  # by node, then by id
        self._nodes_changed = asyncio.Event()

    def on_catalog_changed(self, catalog: Catalog) -> None:
        """The catalog changed, so nodes may have been added or removed."""
        previous, self._catalog = self._catalog, catalog
        for agent_id in catalog.changes_since(previous):
            self._check_agent(agent_id)

    def on_runtime_identified(self, agent_id: str) -> None:
        """It is known now how the agent is reached; it may be a node."""
        self._check_agent(agent_id)

    def _check_agent(self, agent_id: str) -> None:
        manifest = self._catalog.get(agent_id)
        if manifest is not None and not manifest.is_tool and self._is_node(manifest):
            self._nodes[agent_id] = manifest
            self._nodes_changed.set()
        elif self._nodes.pop(agent_id, None) is not None:
            self._nodes_changed.set()

    async def load(self) -> Sequence[Manifest]:
        return [*chain.from_iterable(agents.values() for agents in self._manifests.values())]

    async def watch(self, on_change: OnChange) -> None:
        tasks: dict[str, tuple[object, asyncio.Task[None]]] = {}
        try:
            while True:
                self._nodes_changed.clear()
                await self._stop_removed(tasks, on_change)
                for node, manifest in self._nodes.items():
                    if node not in tasks:
                        tasks[node] = (
                            _connection_key(manifest),
                            asyncio.create_task(self._follow_node(manifest, on_change)),
                        )
                await self._nodes_changed.wait()
        finally:
            await cancel_and_wait(*(task for _, task in tasks.values()))

    async def _stop_removed(self, tasks: dict[str, tuple[object, asyncio.Task[None]]], on_change: OnChange) -> None:
        """Stop following nodes that were removed or whose endpoint has changed."""
        removed = [
            node
            for node, (connection_key, _) in tasks.items()
            if node not in self._nodes or _connection_key(self._nodes[node]) != connection_key
        ]
        await cancel_and_wait(*(tasks.pop(node)[1] for node in removed))
        for node in removed:
            self._listed_agents.pop(node, None)
        if [self._manifests.pop(node) for node in removed if node in self._manifests]:
            await on_change()

    async def _follow_node(self, node: Manifest, on_change: OnChange) -> None:
        revision: str | None = None
        retry_pause, breath = _FIRST_RETRY_PAUSE, _MIN_PAUSE
        while True:
            requested_at = time.monotonic()
            try:
                listing = await (await self._host_of(node)).list_agents(revision)
                await self._apply_listing(node, listing, on_change)
            except FabricError as error:
                revision = None
                self._mark_offline(node.agent_id, error.full_message)
            except Exception as error:
                revision = None
                _log.exception("keeping up with the agents of node %s failed", node.agent_id)
                self._mark_offline(node.agent_id, f"{type(error).__name__}: {error}"[:300])
            else:
                revision, retry_pause = listing.revision, _FIRST_RETRY_PAUSE
                was_quiet = time.monotonic() - requested_at > breath
                breath = _MIN_PAUSE if was_quiet else min(2 * breath, _MAX_PAUSE)
                await asyncio.sleep(breath if revision is not None else _POLL_INTERVAL)
                continue
            await asyncio.sleep(retry_pause * random.uniform(0.8, 1.2))
            retry_pause = min(2 * retry_pause, _MAX_RETRY_PAUSE)

    async def _apply_listing(self, node: Manifest, listing: NodeListing, on_change: OnChange) -> None:
        if listing.agents is not None:
            listed: dict[str, ListedAgent] = {}
            manifests: dict[str, Manifest] = {}
            previous = self._manifests.get(node.agent_id, {})
            async for part in iterate_in_slices(listing.agents):
                for each in part:
                    manifest = import_agent(node, await sanitize_discovered_manifest(each.manifest))
                    known = previous.get(manifest.agent_id)
                    # The same object tells the registry that nothing changed.
                    manifests[manifest.agent_id] = known if known is not None and known == manifest else manifest
                    listed[manifest.agent_id] = each
            self._listed_agents[node.agent_id] = listed
            self._manifests[node.agent_id] = manifests
            if list(manifests) != list(previous) or not all(map(is_, manifests.values(), previous.values())):
                await on_change()
                _log.info("node %s lists %d %s", node.agent_id, len(listed), "agent" if len(listed) == 1 else "agents")
        self._set_health(node.agent_id, "online", None)
        async for health in iterate_in_slices(tuple(self._listed_agents.get(node.agent_id, {}).items())):
            for agent_id, each in health:
                self._set_health(agent_id, each.status, each.error)

    def _mark_offline(self, node: str, reason: str) -> None:
        if self._health.get(node).status != "offline":
            _log.warning("node %s cannot be asked for its agents: %s", node, reason)
        self._set_health(node, "offline", reason)
        for agent_id in self._listed_agents.get(node, {}):
            self._set_health(agent_id, "offline", f"node '{node}' is away: {reason}")

    def _set_health(self, agent_id: str, status: Status, error: str | None) -> None:
        current = self._health.get(agent_id)
        if (current.status, current.error) != (status, error):
            self._health.set_status(agent_id, status, error)


def _connection_key(manifest: Manifest) -> tuple[object, ...]:
    """The fields of an entry that the list of agents depends on, without those that the node publishes."""
    declared_fields = (manifest.trust_tier, manifest.audience, manifest.tags, manifest.fallbacks, manifest.metadata)
    return manifest.runtime, manifest.endpoint, declared_fields
