"""Word of changes of single agents, for clients that watch `fabric://agents/ID`: another manifest, another status."""

from __future__ import annotations

from collections.abc import Callable

from a2a_fabric.core.agent import Health, Manifest
from a2a_fabric.core.ports import AgentIndex
from a2a_fabric.gateway import Gateway

Told = Callable[[], None]


class ManifestNews:
    """One for the whole door: whoever listens to a registry does so for good."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._watchers: dict[str, list[Told]] = {}
        self._known: dict[str, Manifest | None] = {}
        gateway.registry.listen(self._follow)
        gateway.registry.health.listen(self._note)

    def watch(self, agent_id: str, told: Told) -> Callable[[], None]:
        """Until what is returned is called."""
        self._known.setdefault(agent_id, self._gateway.registry.catalog.get(agent_id))
        watchers = self._watchers.setdefault(agent_id, [])
        watchers.append(told)

        def leave() -> None:
            if told in watchers:
                watchers.remove(told)
            if not watchers and self._watchers.get(agent_id) is watchers:
                del self._watchers[agent_id], self._known[agent_id]

        return leave

    def _follow(self, catalog: AgentIndex) -> None:
        for agent_id, known in list(self._known.items()):
            now = catalog.get(agent_id)
            if now != known:
                self._known[agent_id] = now
                self._tell(agent_id)

    def _note(self, agent_id: str, health: Health) -> None:
        if agent_id in self._watchers:
            self._tell(agent_id)

    def _tell(self, agent_id: str) -> None:
        for told in list(self._watchers.get(agent_id, ())):
            told()
