"""What one node tells another of its agents, and what becomes of them in the other's catalog.

An agent `percy` of the node that stands in the catalog as `lab` is known here as
`lab/percy`. What it does is its own to say; how it is reached, who may reach it and
who stands in for it is said by the entry of its node.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.delegation import UNNAMED

AGENT = "agent"  # in the endpoint of a node's entry: which of its agents is meant
_BETWEEN = "/"  # no id that is written down by hand has one


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    manifest: Manifest  # as the node has it
    status: Status = "unknown"
    error: str | None = None


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """`agents` is None if nothing has changed since the revision that was named."""

    agents: tuple[Listed, ...] | None
    revision: str | None = None  # None: the node cannot tell whether something has changed


def is_imported(agent_id: str) -> bool:
    """Whether it is another node's agent, known from that node's list."""
    return _BETWEEN in agent_id


def node_of(agent_id: str) -> str:
    """The entry through which it is reached: the node of an imported agent, else itself."""
    return agent_id.partition(_BETWEEN)[0]


def imported(node: Manifest, published: Manifest) -> Manifest:
    return replace(
        published,
        agent_id=f"{node.agent_id}{_BETWEEN}{published.agent_id}",
        endpoint={**node.endpoint, AGENT: published.agent_id},
        runtime=node.runtime,
        node_id=published.node_id if published.node_id != UNNAMED else node.agent_id,
        trust_tier=node.trust_tier,
        audience=node.audience or published.audience,
        tags=tuple(dict.fromkeys((*node.tags, *published.tags))),
        fallbacks=node.fallbacks,
        pool=None,
        metadata={**published.metadata, **node.metadata},
    )
