"""The agent endpoints: cards of the agents that the caller may see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol
from urllib.parse import quote

from a2a_fabric.core.agent import Manifest, normalize_name
from a2a_fabric.core.call import Principal
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.edge import AnonymousPolicy
from a2a_fabric.doors.rest import models
from a2a_fabric.doors.rest.request_context import RestReply, RestRequestContext, RestRoute, build_next_link
from a2a_fabric.operations.views import render_agent


class CardReader(Protocol):
    """The caller of a request, and the URL of this node for it."""

    @property
    def principal(self) -> Principal: ...
    @property
    def base_url(self) -> str: ...


class RestAgents:
    def __init__(self, context: DoorContext, identify: AnonymousPolicy) -> None:
        self._registry = context.gateway.registry
        self.auth = models.Auth(type="none" if identify.is_open else "api_key")

    def list_endpoints(self) -> Sequence[RestRoute]:
        return (
            RestRoute(method="GET", path="/agents", handler=self.list, summary="List the agents.", tag="agents",
                reply=models.AgentCards, query=models.AgentsQuery),
            RestRoute(method="GET", path="/agents/{agent_id}", handler=self.show, summary="Show one agent.",
                tag="agents", reply=models.AgentCard),
        )  # fmt: skip

    async def list(self, context: RestRequestContext) -> RestReply:
        """The agents in order of their ids, so that pages stay consistent while agents come and go."""
        query: models.AgentsQuery = context.query
        agents = sorted(self.list_visible(context.principal, query.capability), key=lambda manifest: manifest.agent_id)
        remaining = [each for each in agents if query.tag is None or query.tag in each.tags]
        if query.cursor is not None:
            remaining = [each for each in remaining if each.agent_id > query.cursor]
        page = remaining[: query.limit]
        cursor = page[-1].agent_id if len(remaining) > len(page) else None
        cards = models.AgentCards(agents=tuple(self.build_card(each, context) for each in page), next_cursor=cursor)
        return RestReply(body=cards, headers=build_next_link(context, "/agents", cursor, query.limit))

    async def show(self, context: RestRequestContext) -> RestReply:
        return RestReply(body=self.build_card(self.find_agent(context.path["agent_id"], context.principal), context))

    def list_visible(self, principal: Principal, capability: str | None = None) -> Iterable[Manifest]:
        catalog = self._registry.visible_to(principal)
        return catalog.agents if capability is None else catalog.find_by_capability(normalize_name(capability))

    def find_agent(self, agent_id: str, principal: Principal) -> Manifest:
        """Raises AgentNotFound, Forbidden."""
        return self._registry.find_agent_for(principal, agent_id)

    def find_target(self, agent_id: str, principal: Principal) -> Manifest:
        """Find an agent or a built-in tool. Raises AgentNotFound, Forbidden."""
        return self._registry.find_for(principal, agent_id)

    def build_card(self, manifest: Manifest, context: CardReader) -> models.AgentCard:
        health = self._registry.health.get(manifest.agent_id)
        details = {"status": health.status, "trust_tier": manifest.trust_tier, "tags": list(manifest.tags)}
        return models.AgentCard(
            id=manifest.agent_id,
            name=manifest.display_name or manifest.agent_id,
            description=manifest.description,
            version=manifest.version or "0.0.0",
            capabilities=tuple(capability.name for capability in manifest.capabilities),
            endpoint=f"{context.base_url}/v1/agents/{quote(manifest.agent_id, safe='')}",
            auth=self.auth,
            metadata={**details, **render_agent(manifest, health, context.principal)["metadata"]},
        )
