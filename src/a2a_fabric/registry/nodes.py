"""Source: the agents of other nodes, as each node lists them.

One entry in the catalog stands for a node. As long as it is there, a task of its own
keeps up with that node's list, and tells the book of health how its agents are. A
node that is away is asked again and again, ever more slowly; its agents stay, offline.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.listing import Listed, Listing, imported
from a2a_fabric.core.ports import AgentHost
from a2a_fabric.registry.catalog import Catalog
from a2a_fabric.registry.health import HealthBook
from a2a_fabric.schemas.joining import admit_learnt

_log = logging.getLogger(__name__)
_BREATH = 0.1  # seconds between two lists; doubled while they change again and again
_LONGEST_BREATH = 1.0
_LOOK_EVERY = 3.0  # at nodes that cannot say when something changes
_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 10.0

Changed = Callable[[], Awaitable[None]]


class NodeAgents:
    """`is_node` knows the entries that stand for nodes; `host_of` gives their runtimes, or raises FabricError."""

    name = "other nodes"

    def __init__(
        self,
        is_node: Callable[[Manifest], bool],
        host_of: Callable[[Manifest], Awaitable[AgentHost]],
        health: HealthBook,
    ) -> None:
        self._is_node = is_node
        self._host_of = host_of
        self._health = health
        self._nodes: dict[str, Manifest] = {}
        self._known: dict[str, dict[str, Listed]] = {}  # by node, then by the id that its agent has here
        self._manifests: dict[str, tuple[Manifest, ...]] = {}
        self._due = asyncio.Event()

    def follow(self, catalog: Catalog) -> None:
        """The catalog changed: nodes may have come or gone."""
        self._nodes = {manifest.agent_id: manifest for manifest in catalog.agents if self._is_node(manifest)}
        self._due.set()

    async def load(self) -> Sequence[Manifest]:
        return [manifest for agents in self._manifests.values() for manifest in agents]

    async def watch(self, changed: Changed) -> None:
        tasks: dict[str, tuple[object, asyncio.Task[None]]] = {}
        try:
            while True:
                self._due.clear()
                await self._let_go(tasks, changed)
                for node, manifest in self._nodes.items():
                    if node not in tasks:
                        tasks[node] = _reach(manifest), asyncio.create_task(self._keep_up(manifest, changed))
                await self._due.wait()
        finally:
            await _ended([task for _, task in tasks.values()])

    async def _let_go(self, tasks: dict[str, tuple[object, asyncio.Task[None]]], changed: Changed) -> None:
        """Of nodes that left, and of those that are reached in another way now."""
        gone = [
            node for node, (reach, _) in tasks.items() if node not in self._nodes or _reach(self._nodes[node]) != reach
        ]
        await _ended([tasks.pop(node)[1] for node in gone])
        for node in gone:
            self._known.pop(node, None)
        if [self._manifests.pop(node) for node in gone if node in self._manifests]:
            await changed()

    async def _keep_up(self, node: Manifest, changed: Changed) -> None:
        known: str | None = None
        pause, breath = _FIRST_PAUSE, _BREATH
        while True:
            asked_at = time.monotonic()
            try:
                listing = await (await self._host_of(node)).listing(known)
                await self._heard(node, listing, changed)
            except FabricError as error:
                known = None
                self._lost(node.agent_id, error.sentence)
            except Exception as error:
                known = None
                _log.exception("keeping up with the agents of node %s failed", node.agent_id)
                self._lost(node.agent_id, f"{type(error).__name__}: {error}"[:300])
            else:
                known, pause = listing.revision, _FIRST_PAUSE
                was_quiet = time.monotonic() - asked_at > breath
                breath = _BREATH if was_quiet else min(2 * breath, _LONGEST_BREATH)
                await asyncio.sleep(breath if known is not None else _LOOK_EVERY)
                continue
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _heard(self, node: Manifest, listing: Listing, changed: Changed) -> None:
        if listing.agents is not None:
            agents = [(imported(node, await admit_learnt(each.manifest)), each) for each in listing.agents]
            self._known[node.agent_id] = {manifest.agent_id: each for manifest, each in agents}
            manifests = tuple(manifest for manifest, _ in agents)
            if manifests != self._manifests.get(node.agent_id):
                self._manifests[node.agent_id] = manifests
                await changed()
                _log.info("node %s lists %d agents", node.agent_id, len(agents))
        self._tell(node.agent_id, "online", None)
        for agent_id, each in self._known.get(node.agent_id, {}).items():
            self._tell(agent_id, each.status, each.error)

    def _lost(self, node: str, why: str) -> None:
        if self._health.of(node).status != "offline":
            _log.warning("node %s cannot be asked for its agents: %s", node, why)
        self._tell(node, "offline", why)
        for agent_id in self._known.get(node, {}):
            self._tell(agent_id, "offline", f"node '{node}' is away: {why}")

    def _tell(self, agent_id: str, status: Status, error: str | None) -> None:
        known = self._health.of(agent_id)
        if (known.status, known.error) != (status, error):
            self._health.set_status(agent_id, status, error)


def _reach(manifest: Manifest) -> tuple[object, ...]:
    """What the list and its agents are made from; what the node says of itself is not."""
    own = (manifest.trust_tier, manifest.audience, manifest.tags, manifest.fallbacks, manifest.metadata)
    return manifest.runtime, manifest.endpoint, own


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
