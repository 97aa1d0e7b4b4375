"""Agents that registered while the node was running, and what was seen of every agent's health.

A registration belongs to whoever made it and lives as long as its lease is
renewed. Its `revision` grows with every change that callers could notice, over
all agents, so a node that knows a revision can ask for what came after it.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.agent import Manifest, Status, TrustTier, fold
from a2a_fabric.core.errors import AgentNotFound, Forbidden


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    manifest: Manifest
    owner: str
    revision: int
    registered_at: float
    updated_at: float
    seen_at: float  # the last sign of life: registering, renewing
    lease_until: float | None = None  # None: until it is removed

    @property
    def agent_id(self) -> str:
        return self.manifest.agent_id

    def is_alive(self, now: float) -> bool:
        return self.lease_until is None or self.lease_until > now


class AgentChange(msgspec.Struct, frozen=True, kw_only=True):
    """`registration` is None when the agent has gone."""

    revision: int
    agent_id: str
    registration: Registration | None = None


class AgentFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which registrations to list; what is None does not narrow. `capability` in any spelling."""

    owner: str | None = None
    capability: str | None = None
    tag: str | None = None
    runtime: str | None = None
    node_id: str | None = None
    trust_tier: TrustTier | None = None
    realm: str | None = None
    cog_id: str | None = None
    delegate_id: str | None = None


class HealthCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One look at one agent, from any source, by one node."""

    agent_id: str
    status: Status
    checked_at: float
    latency: float | None = None
    error: str | None = None
    node_id: str = "local"


def matches(manifest: Manifest, owner: str, wish: AgentFilter) -> bool:
    wanted = (
        (wish.owner, owner),
        (wish.runtime, manifest.runtime),
        (wish.node_id, manifest.node_id),
        (wish.trust_tier, manifest.trust_tier),
        (wish.realm, manifest.realm),
        (wish.cog_id, manifest.cog_id),
        (wish.delegate_id, manifest.delegate_id),
    )
    if any(asked is not None and asked != has for asked, has in wanted):
        return False
    if wish.tag is not None and wish.tag not in manifest.tags:
        return False
    return wish.capability is None or fold(wish.capability) in {fold(each.name) for each in manifest.capabilities}


def registered(
    manifest: Manifest, owner: str, known: Registration | None, lease: float | None, revision: int, now: float
) -> Registration:
    """The registration as it is written. Raises Forbidden if the agent is somebody else's and still alive."""
    if known is not None and known.is_alive(now):
        refuse_stranger(known, owner)
    is_again = known is not None and known.owner == owner
    return Registration(
        manifest=manifest,
        owner=owner,
        revision=revision,
        registered_at=known.registered_at if is_again and known else now,
        updated_at=now,
        seen_at=now,
        lease_until=_until(lease, now),
    )


def renewed(known: Registration | None, agent_id: str, owner: str, lease: float | None, now: float) -> Registration:
    """Raises AgentNotFound, or Forbidden if the agent is somebody else's."""
    if known is None:
        raise AgentNotFound(agent_id)
    refuse_stranger(known, owner)
    return replace(known, seen_at=now, lease_until=_until(lease, now))


def refuse_stranger(known: Registration, owner: str) -> None:
    """Raises Forbidden if the agent is somebody else's."""
    if known.owner != owner:
        raise Forbidden(f"Agent '{known.agent_id}' was registered by somebody else", agent_id=known.agent_id)


def _until(lease: float | None, now: float) -> float | None:
    return None if lease is None else now + lease
