"""`/.well-known/agent.json`: the node as one agent with the capabilities of all its agents, for the RPC client.

The A2A standard once had its card at this path. It is now at `agent-card.json`, and at both names below each agent;
this path belongs to the RPC client in any order of the doors."""

from __future__ import annotations

import msgspec

from a2a_fabric.doors.edge import CycleEndpoint, HttpReply, compute_etag
from a2a_fabric.doors.rest import models
from a2a_fabric.doors.rest.agents import RestAgents
from a2a_fabric.doors.rest.http import RestDoorState, RestPageCycle, page_endpoint
from a2a_fabric.protocols.a2a.card import CARD_PATH
from a2a_fabric.version import __version__

_CACHE_HEADERS = [(b"cache-control", b"no-cache"), (b"vary", b"Authorization, X-API-Key")]


def node_card_endpoint(state: RestDoorState, agents: RestAgents) -> CycleEndpoint:
    """The RPC client sends no credentials here, so without valid ones the card shows what is public."""

    def build_page(cycle: RestPageCycle) -> HttpReply:
        body = msgspec.json.encode(_build_card(cycle, agents))
        return HttpReply(body=body, headers=_CACHE_HEADERS, etag=compute_etag(body))

    return page_endpoint(state, build_page)


def _build_card(cycle: RestPageCycle, agents: RestAgents) -> models.AgentCard:
    context, base_url = cycle.edge.context, cycle.base_url
    capabilities = [each.name for manifest in agents.list_visible(cycle.principal) for each in manifest.capabilities]
    metadata = {"agents": f"{base_url}/v1/agents", "openapi": f"{base_url}/openapi.json"}
    if "a2a" in context.door_kinds:  # where a client of the A2A standard finds its card
        metadata["a2a_agent_card"] = base_url + CARD_PATH
    return models.AgentCard(
        id=context.gateway.node_id,
        name="a2a-fabric",
        description="A gateway: its agents are listed at /v1/agents.",
        version=__version__,
        capabilities=tuple(dict.fromkeys(capabilities)),
        endpoint=base_url,
        auth=agents.auth,
        metadata=metadata,
    )
