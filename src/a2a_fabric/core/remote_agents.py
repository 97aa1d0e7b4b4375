"""The agents of another node, and how they appear in this node's catalog.

An agent `percy` of the node that is in the catalog as `lab` is known here as `lab/percy`.
The other node describes what the agent does. How it is reached, who may call it and its
fallbacks come from the catalog entry of the node."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.delegation import UNNAMED_NODE

AGENT_KEY = "agent"  # in an endpoint: which agent of the node is meant
_SEPARATOR = "/"  # declared ids cannot contain it


class ListedAgent(msgspec.Struct, frozen=True, kw_only=True):
    manifest: Manifest  # as the other node describes it
    status: Status = "unknown"
    error: str | None = None


class NodeListing(msgspec.Struct, frozen=True, kw_only=True):
    """`agents` is None if nothing has changed since the known revision."""

    agents: tuple[ListedAgent, ...] | None
    revision: str | None = None  # None if the node does not report revisions


def is_imported(agent_id: str) -> bool:
    """Whether the id is of another node's agent."""
    return _SEPARATOR in agent_id


def node_entry_of(agent_id: str) -> str:
    """The catalog entry through which the agent is reached: the node of an imported agent, else the agent itself."""
    return agent_id.partition(_SEPARATOR)[0]


def import_agent(node: Manifest, published: Manifest) -> Manifest:
    return replace(
        published,
        agent_id=f"{node.agent_id}{_SEPARATOR}{published.agent_id}",
        endpoint={**node.endpoint, AGENT_KEY: published.agent_id},
        runtime=node.runtime,
        node_id=published.node_id if published.node_id != UNNAMED_NODE else node.agent_id,
        trust_tier=node.trust_tier,
        audience=node.audience or published.audience,
        tags=tuple(dict.fromkeys((*node.tags, *published.tags))),
        fallbacks=node.fallbacks,
        pool=None,
        metadata={**published.metadata, **node.metadata},
    )
