"""The agents of the node as cards, to those who may know of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol
from urllib.parse import quote

from a2a_fabric.core.agent import Manifest, fold
from a2a_fabric.core.call import Principal
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.doorkeeper import Doorkeeper
from a2a_fabric.doors.rest import wire
from a2a_fabric.doors.rest.paging import next_page
from a2a_fabric.doors.rest.visit import Answer, Endpoint, Visit
from a2a_fabric.operations.views import agent_details


class Reader(Protocol):
    """Who asks, and under which address of ours."""

    @property
    def principal(self) -> Principal: ...
    @property
    def base(self) -> str: ...


class Agents:
    def __init__(self, context: DoorContext, identify: Doorkeeper) -> None:
        self._registry = context.gateway.registry
        self.auth = wire.Auth(type="none" if identify.is_open else "api_key")

    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint(verb="GET", path="/agents", handler=self.list, summary="List the agents.", tag="agents",
                     reply=wire.AgentCards, query=wire.AgentsQuery),
            Endpoint(verb="GET", path="/agents/{agent_id}", handler=self.show, summary="Show one agent.", tag="agents",
                     reply=wire.AgentCard),
        )  # fmt: skip

    async def list(self, visit: Visit) -> Answer:
        """In order of their ids, so that a page follows the one before whatever happens in between."""
        query: wire.AgentsQuery = visit.query
        found = sorted(self.known_to(visit.principal, query.capability), key=lambda manifest: manifest.agent_id)
        rest = [each for each in found if query.tag is None or query.tag in each.tags]
        if query.cursor is not None:
            rest = [each for each in rest if each.agent_id > query.cursor]
        page = rest[: query.limit]
        cursor = page[-1].agent_id if len(rest) > len(page) else None
        cards = wire.AgentCards(agents=tuple(self.card(each, visit) for each in page), next_cursor=cursor)
        return Answer(body=cards, headers=next_page(visit, "/agents", cursor, query.limit))

    async def show(self, visit: Visit) -> Answer:
        return Answer(body=self.card(self.one(visit.path["agent_id"], visit.principal), visit))

    def known_to(self, principal: Principal, capability: str | None = None) -> Iterable[Manifest]:
        catalog = self._registry.seen_by(principal)
        return catalog.agents if capability is None else catalog.offering(fold(capability))

    def one(self, agent_id: str, principal: Principal) -> Manifest:
        """Raises AgentNotFound, Forbidden."""
        return self._registry.agent_for(principal, agent_id)

    def target(self, agent_id: str, principal: Principal) -> Manifest:
        """Also a built-in tool, which is no agent, but does work all the same. Raises AgentNotFound, Forbidden."""
        return self._registry.find_for(principal, agent_id)

    def card(self, manifest: Manifest, visit: Reader) -> wire.AgentCard:
        health = self._registry.health.of(manifest.agent_id)
        told = {"status": health.status, "trust_tier": manifest.trust_tier, "tags": list(manifest.tags)}
        return wire.AgentCard(
            id=manifest.agent_id,
            name=manifest.display_name or manifest.agent_id,
            description=manifest.description,
            version=manifest.version or "0.0.0",
            capabilities=tuple(capability.name for capability in manifest.capabilities),
            endpoint=f"{visit.base}/v1/agents/{quote(manifest.agent_id, safe='')}",
            auth=self.auth,
            metadata={**told, **agent_details(manifest, health, visit.principal)["metadata"]},
        )
