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


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds an agent id, or held it last. `lapsed_at` is None while the registration lives."""

    owner: str
    registered_at: float
    lapsed_at: float | None = None


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """How long an agent id that lapsed stays reserved for its owner, and how many of the owner's latest do."""

    seconds: float
    names: int


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


def holder_of(row: Registration, now: float) -> Holder:
    """As the row of a registration that was not removed says."""
    lapsed_at = None if row.is_alive(now) else row.lease_until
    return Holder(owner=row.owner, registered_at=row.registered_at, lapsed_at=lapsed_at)


def is_reserved(holder: Holder, owner: str, reservation: Reservation | None, now: float) -> bool:
    """Whether another owner's lapsed id is young enough to be kept; that owner's later ones are still to be counted."""
    if reservation is None or holder.owner == owner or holder.lapsed_at is None:
        return False
    return now < holder.lapsed_at + reservation.seconds


def refuse_reserved(agent_id: str) -> None:
    """Raises Forbidden."""
    raise Forbidden(
        f"The id '{agent_id}' is reserved for the caller who registered it before: take another one", agent_id=agent_id
    )


def registered(
    manifest: Manifest, owner: str, holder: Holder | None, lease: float | None, revision: int, now: float
) -> Registration:
    """The registration as it is written. Raises Forbidden if the agent is somebody else's and still alive."""
    if holder is not None and holder.lapsed_at is None and holder.owner != owner:
        raise _of_another(manifest.agent_id)
    is_again = holder is not None and holder.owner == owner
    return Registration(
        manifest=manifest,
        owner=owner,
        revision=revision,
        registered_at=holder.registered_at if is_again and holder else now,
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
        raise _of_another(known.agent_id)


def _of_another(agent_id: str) -> Forbidden:
    return Forbidden(f"Agent '{agent_id}' was registered by somebody else", agent_id=agent_id)


def _until(lease: float | None, now: float) -> float | None:
    return None if lease is None else now + lease
