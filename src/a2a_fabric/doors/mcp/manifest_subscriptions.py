"""Callbacks for changes of a single agent's manifest or health, for clients subscribed to `fabric://agents/ID`."""

from __future__ import annotations

from collections.abc import Callable

from a2a_fabric.core.agent import Health, Manifest
from a2a_fabric.core.ports import AgentIndex
from a2a_fabric.gateway import Gateway

OnChange = Callable[[], None]


class ManifestSubscriptions:
    """One for the whole door: whoever listens to a registry does so for good."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._callbacks: dict[str, list[OnChange]] = {}
        self._manifests: dict[str, Manifest | None] = {}
        gateway.registry.add_listener(self._compare_manifests)
        gateway.registry.health.add_listener(self._on_health)

    def subscribe(self, agent_id: str, on_change: OnChange) -> Callable[[], None]:
        """Until what is returned is called."""
        self._manifests.setdefault(agent_id, self._gateway.registry.catalog.get(agent_id))
        callbacks = self._callbacks.setdefault(agent_id, [])
        callbacks.append(on_change)

        def unsubscribe() -> None:
            if on_change in callbacks:
                callbacks.remove(on_change)
            if not callbacks and self._callbacks.get(agent_id) is callbacks:
                del self._callbacks[agent_id], self._manifests[agent_id]

        return unsubscribe

    def _compare_manifests(self, catalog: AgentIndex) -> None:
        for agent_id, previous in list(self._manifests.items()):
            current = catalog.get(agent_id)
            if current != previous:
                self._manifests[agent_id] = current
                self._notify(agent_id)

    def _on_health(self, agent_id: str, health: Health) -> None:
        if agent_id in self._callbacks:
            self._notify(agent_id)

    def _notify(self, agent_id: str) -> None:
        for on_change in list(self._callbacks.get(agent_id, ())):
            on_change()
