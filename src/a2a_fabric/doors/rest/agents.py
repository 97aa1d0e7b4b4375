"""The agent endpoints: cards of the agents that the caller may see, and the card of the node.

`/.well-known/agent.json` shows the node as one agent with the capabilities of all its agents, for the RPC client. The
A2A standard once had its card at this path. It is now at `agent-card.json`, and at both names below each agent; this
path belongs to the RPC client in any order of the doors."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from a2a_fabric.core.agent import Manifest, normalize_name
from a2a_fabric.core.call import Principal
from a2a_fabric.core.tasks import iterate_in_slices
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.edge import AnonymousPolicy, CycleEndpoint, DoorEdge, HttpReply, RequestCycle, compute_etag
from a2a_fabric.doors.rest import models
from a2a_fabric.doors.rest.http import (
    RestCycle,
    RestPageCycle,
    RestReply,
    RestRoute,
    build_next_link,
    page_endpoint,
)
from a2a_fabric.operations.pages import MAX_ITEMS
from a2a_fabric.operations.views import render_metadata, render_profile_metadata
from a2a_fabric.protocols.a2a.card import CARD_PATH
from a2a_fabric.version import __version__


class RestAgents:
    def __init__(self, context: DoorContext, identify: AnonymousPolicy) -> None:
        self._registry = context.gateway.registry
        self._identify = identify

    @property
    def auth(self) -> models.Auth:
        return models.Auth(type="none" if self._identify.is_open else "api_key")

    def list_endpoints(self) -> Sequence[RestRoute]:
        return (
            RestRoute(method="GET", path="/agents", handler=self.list, summary="List the agents.", tag="agents",
                reply=models.AgentCards, query=models.AgentsQuery),
            RestRoute(method="GET", path="/agents/{agent_id}", handler=self.show, summary="Show one agent.",
                tag="agents", reply=models.AgentCard),
        )  # fmt: skip

    async def list(self, context: RestCycle) -> RestReply:
        """The agents in order of their ids, so that pages stay consistent while agents come and go."""
        query: models.AgentsQuery = context.query
        await self._registry.statuses.refresh()
        catalog = await self._registry.prepare_view(context.principal)
        agents = catalog.agents if query.capability is None else catalog.find_by_capability(query.capability)
        page: list[Manifest] = []
        async for manifests in iterate_in_slices(catalog.sort_by_id(agents, query.cursor)):
            page += [each for each in manifests if query.tag is None or query.tag in each.tags]
            if len(page) > query.limit:
                break
        cursor = page[query.limit - 1].agent_id if len(page) > query.limit else None
        cards: list[models.AgentCard] = []
        async for manifests in iterate_in_slices(page[: query.limit]):
            cards += [self.build_card(each, context) for each in manifests]
        body = models.AgentCards(agents=tuple(cards), next_cursor=cursor)
        return RestReply(body=body, headers=build_next_link(context, "/agents", cursor, query.limit))

    async def show(self, context: RestCycle) -> RestReply:
        manifest = self._registry.find_agent_for(context.principal, context.path["agent_id"])
        await self._registry.statuses.refresh()
        return RestReply(body=self.build_card(manifest, context))

    async def list_visible(
        self, principal: Principal, capability: str | None = None, after: str | None = None
    ) -> Sequence[Manifest]:
        """All agents that this caller may see, or those with one capability; `after` one in order of their ids."""
        catalog = await self._registry.prepare_view(principal)
        agents = catalog.agents if capability is None else catalog.find_by_capability(normalize_name(capability))
        return agents if after is None and len(agents) <= MAX_ITEMS else catalog.sort_by_id(agents, after)

    def build_card(self, manifest: Manifest, context: RequestCycle) -> models.AgentCard:
        health = self._registry.statuses.get(manifest.agent_id)
        details = {"status": health.status, "trust_tier": manifest.trust_tier, "tags": list(manifest.tags)}
        return models.AgentCard(
            id=manifest.agent_id,
            name=manifest.display_name or manifest.agent_id,
            description=manifest.description,
            version=manifest.version or "0.0.0",
            capabilities=tuple(capability.name for capability in manifest.capabilities),
            endpoint=f"{context.base_url}/v1/agents/{quote(manifest.agent_id, safe='')}",
            auth=self.auth,
            metadata={
                **details,
                **render_profile_metadata(manifest),
                **render_metadata(manifest, context.principal),
            },
        )


_CACHE_HEADERS = [(b"cache-control", b"no-cache"), (b"vary", b"Authorization, X-API-Key")]


def node_card_endpoint(state: DoorEdge, agents: RestAgents) -> CycleEndpoint:
    """The RPC client sends no credentials here, so without valid ones the card shows what is public."""

    async def build_page(cycle: RestPageCycle) -> HttpReply:
        body = msgspec.json.encode(await _build_card(cycle, agents))
        return HttpReply(body=body, headers=_CACHE_HEADERS, etag=compute_etag(body))

    return page_endpoint(state, build_page)


async def _build_card(cycle: RestPageCycle, agents: RestAgents) -> models.AgentCard:
    context, base_url = cycle.edge.context, cycle.base_url
    capabilities: dict[str, None] = {}
    async for manifests in iterate_in_slices(await agents.list_visible(cycle.principal)):
        capabilities.update((each.name, None) for manifest in manifests for each in manifest.capabilities)
    metadata = {"agents": f"{base_url}/v1/agents", "openapi": f"{base_url}/openapi.json"}
    if "a2a" in context.door_kinds:  # where a client of the A2A standard finds its card
        metadata["a2a_agent_card"] = base_url + CARD_PATH
    return models.AgentCard(
        id=context.gateway.node_id,
        name="a2a-fabric",
        description="A gateway: its agents are listed at /v1/agents.",
        version=__version__,
        capabilities=tuple(capabilities),
        endpoint=base_url,
        auth=agents.auth,
        metadata=metadata,
    )
