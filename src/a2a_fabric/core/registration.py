"""Agents that were registered at run time, and the recorded health checks of every agent.

A registration belongs to the caller who made it and lives as long as its lease is
renewed. `revision` grows with every visible change, across all agents, so a node that
knows a revision can request the changes after it."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.agent import Manifest, Status, TrustTier
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


class IdHolder(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of an agent id, now or last. `lapsed_at` is None while the registration lives."""

    owner: str
    registered_at: float
    lapsed_at: float | None = None


class IdReservation(msgspec.Struct, frozen=True, kw_only=True):
    """How long an agent id that lapsed stays reserved for its owner, and how many of the owner's latest do."""

    seconds: float
    names: int


class AgentChange(msgspec.Struct, frozen=True, kw_only=True):
    """`registration` is None if the agent was removed."""

    revision: int
    agent_id: str
    registration: Registration | None = None


class RegistrationFilter(msgspec.Struct, frozen=True, kw_only=True):
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


class StoredDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent published about itself, encoded; `connection` is a digest of its address or command."""

    agent_id: str
    connection: str
    body: bytes
    seen_at: float


class HealthCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One look at one agent, from any source, by one node."""

    agent_id: str
    status: Status
    checked_at: float
    latency: float | None = None
    error: str | None = None
    node_id: str = "local"


def holder_from_registration(registration: Registration, now: float) -> IdHolder:
    """The holder of an id whose registration was not removed."""
    lapsed_at = None if registration.is_alive(now) else registration.lease_until
    return IdHolder(owner=registration.owner, registered_at=registration.registered_at, lapsed_at=lapsed_at)


def is_reserved(holder: IdHolder, owner: str, reservation: IdReservation | None, now: float) -> bool:
    """Whether another owner's lapsed id is young enough to be kept; that owner's later ones are still to be counted."""
    if reservation is None or holder.owner == owner or holder.lapsed_at is None:
        return False
    return now < holder.lapsed_at + reservation.seconds


def has_new_inbox(agent_id: str, holder: IdHolder | None, owner: str, reservation: IdReservation | None) -> bool:
    """Whether the owner must not get what waits in the inbox: it was sent to another owner, or to a mere name.

    A caller with the name of the agent could read the inbox before. Without a reservation it is the operator, who may
    read every inbox.
    """
    if holder is not None:
        return holder.owner != owner
    return reservation is not None and owner.partition(":")[2] != agent_id


def raise_reserved(agent_id: str) -> None:
    """Raises Forbidden."""
    raise Forbidden(
        f"The id '{agent_id}' is reserved for the caller who registered it before: take another one", agent_id=agent_id
    )


def make_registration(
    manifest: Manifest, owner: str, holder: IdHolder | None, lease: float | None, revision: int, now: float
) -> Registration:
    """The registration as it is written. Raises Forbidden if another owner's lease on the agent still runs."""
    if holder is not None and holder.lapsed_at is None and holder.owner != owner:
        raise _not_owner_error(manifest.agent_id)
    is_same_owner = holder is not None and holder.owner == owner
    return Registration(
        manifest=manifest,
        owner=owner,
        revision=revision,
        registered_at=holder.registered_at if is_same_owner and holder else now,
        updated_at=now,
        seen_at=now,
        lease_until=_lease_end(lease, now),
    )


def renew_registration(
    registration: Registration | None, agent_id: str, owner: str, lease: float | None, now: float
) -> Registration:
    """Raises AgentNotFound, or Forbidden if another owner registered the agent."""
    if registration is None:
        raise AgentNotFound(agent_id)
    check_owner(registration, owner)
    return replace(registration, seen_at=now, lease_until=_lease_end(lease, now))


def check_owner(registration: Registration, owner: str) -> None:
    """Raises Forbidden if another owner registered the agent."""
    if registration.owner != owner:
        raise _not_owner_error(registration.agent_id)


def _not_owner_error(agent_id: str) -> Forbidden:
    return Forbidden(f"Agent '{agent_id}' was registered by another owner", agent_id=agent_id)


def _lease_end(lease: float | None, now: float) -> float | None:
    return None if lease is None else now + lease
