"""The agents that this node offers to the mesh: its own, and none that it has from other nodes.

`revision` changes only if something of that changes, so news of other nodes do not travel in circles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from a2a_fabric.core.agent import Health, ListedAgent, Manifest, NodeListing, is_elsewhere
from a2a_fabric.core.tasks import iterate_in_slices
from a2a_fabric.mesh.agents import export_agent, is_shared
from a2a_fabric.mesh.settings import SharedAgents

WaitForChange = Callable[[str, float], Awaitable[None]]


class ExportedAgents:
    """`get_revision` and `wait_for_change` are those of the node's registry."""

    def __init__(
        self,
        node_id: str,
        site: str,
        shared: SharedAgents,
        *,
        list_agents: Callable[[], Sequence[Manifest]],
        get_health: Callable[[str], Health],
        get_revision: Callable[[], str],
        wait_for_change: WaitForChange,
    ) -> None:
        self._node_id = node_id
        self._site = site
        self._shared = shared
        self._list_agents = list_agents
        self._get_health = get_health
        self._get_revision = get_revision
        self._wait_for_change = wait_for_change
        self._seen_revision = ""
        self._sources: dict[str, Manifest] = {}
        self._listed: dict[str, ListedAgent] = {}
        self.revision = 0

    @property
    def count(self) -> int:
        return len(self._listed)

    async def refresh(self, timeout: float) -> bool:
        """Wait for a change of the registry, at most `timeout` seconds. True if what is offered has changed."""
        await self._wait_for_change(self._seen_revision, timeout)
        revision = self._get_revision()
        if revision == self._seen_revision:
            return False
        self._seen_revision = revision
        sources: dict[str, Manifest] = {}
        listed: dict[str, ListedAgent] = {}
        async for part in iterate_in_slices(tuple(self._list_agents())):
            for manifest in part:
                if is_elsewhere(manifest) or manifest.is_tool:
                    continue
                agent_id = manifest.agent_id
                sources[agent_id] = manifest
                listed[agent_id] = self._list_agent(manifest)
        if listed == self._listed:
            return False
        self._sources, self._listed = sources, listed
        self.revision += 1
        return True

    def list_for(self, site: str) -> NodeListing:
        """What a node of this site may see."""
        agents = self._listed.values()
        if site != self._site:
            agents = [each for each in agents if is_shared(self._shared, each.manifest)]  # type: ignore[assignment]
        return NodeListing(agents=tuple(agents), revision=str(self.revision))

    def _list_agent(self, manifest: Manifest) -> ListedAgent:
        """The same object as before if nothing changed."""
        health = self._get_health(manifest.agent_id)
        known = self._listed.get(manifest.agent_id)
        is_same = self._sources.get(manifest.agent_id) is manifest
        if known is not None and is_same and (known.status, known.error) == (health.status, health.error):
            return known
        exported = known.manifest if known is not None and is_same else export_agent(manifest, self._node_id)
        return ListedAgent(manifest=exported, status=health.status, error=health.error)
