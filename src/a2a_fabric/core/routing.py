"""Who answers a call, in which order, and why: a pure function from what is known to a plan.

The call itself and `fabric.route.preview` use the same plan. Tier a: the agent
that was asked for, then agents with the same capability (declared fallbacks
first, then by health, trust and latency). Tier b: the same agent without
streaming. Tier c: what policy refuses, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import TRUST_RANK, Capability, Health, Manifest, Status, fold
from a2a_fabric.core.budget import RetryBudget
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentNotFound, CapabilityNotFound, FabricError, Forbidden, UpstreamInterrupted
from a2a_fabric.core.policy import refusal
from a2a_fabric.core.ports import AgentIndex, HealthView

Tier = Literal["primary", "declared", "peer", "degraded"]

_HEALTH_RANK: dict[Status, int] = {"online": 0, "unknown": 1, "degraded": 2, "offline": 3}
_PEERS_CONSIDERED = 16  # so that a plan costs the same with ten peers and with a hundred thousand


class RoutingPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a call finds somebody to answer it."""

    fallback: Annotated[bool, Meta(description="Ask other agents with the same capability when one fails.")] = True
    max_attempts: Annotated[int, Meta(ge=1, le=16, description="How many candidates one call may try.")] = 4
    attempt_share: Annotated[
        float,
        Meta(gt=0, le=1, description="Part of the remaining time one attempt may use while others may still be asked."),
    ] = 0.6
    retries: RetryBudget = RetryBudget()
    max_delegations: Annotated[
        int, Meta(ge=1, le=64, description="How many nodes a call may have passed; one that comes back is refused.")
    ] = 8


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    manifest: Manifest
    capability: Capability | None  # None: the agent has not said what it offers, so it is asked
    tier: Tier
    reason: str
    stream: bool


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    reason: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    capability: str
    candidates: tuple[Candidate, ...]
    refused: tuple[Refusal, ...] = ()
    skipped: str | None = None  # why the agent that was asked for is not among the candidates


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller asked for, as far as routing is concerned."""

    agent_id: str
    capability: str
    principal: Principal
    stream: bool = False


class Planning(Protocol):
    """Who makes plans for calls and previews."""

    def __call__(self, agent_id: str, capability: str, principal: Principal, stream: bool) -> Plan:
        """Raises AgentNotFound, CapabilityNotFound or Forbidden when there is nobody to ask."""
        ...


def plan_route(wish: Wish, agents: AgentIndex, health: HealthView, policy: RoutingPolicy) -> Plan:
    """Raises AgentNotFound, CapabilityNotFound or Forbidden when there is nobody to ask."""
    asked = agents.get(wish.agent_id)
    if asked is None:
        raise AgentNotFound(wish.agent_id)
    why_not = refusal(wish.principal, asked, wish.capability)
    if why_not is not None:
        raise Forbidden(f"Refused by policy: {why_not}", agent_id=wish.agent_id, capability=wish.capability)
    peers, refused = _peers(wish, asked, agents, health) if policy.fallback else ([], [])
    primary = _primary(asked, wish)
    if primary is None and not peers:
        raise CapabilityNotFound(wish.agent_id, wish.capability, [c.name for c in asked.capabilities])
    ordered = _in_order(primary, peers, health, wish)
    return Plan(
        agent_id=wish.agent_id,
        capability=wish.capability,
        candidates=tuple(islice(ordered, policy.max_attempts)),
        refused=tuple(refused),
        skipped=None if primary else f"capability '{wish.capability}' is not offered by agent '{wish.agent_id}'",
    )


def only(plan: Plan, agent_id: str) -> Plan | None:
    """The plan with one agent alone, for an answer that nobody else waits for; None if it is not in the plan."""
    for candidate in plan.candidates:
        if candidate.manifest.agent_id == agent_id:
            return Plan(agent_id=plan.agent_id, capability=plan.capability, candidates=(candidate,))
    return None


def may_move_on(error: FabricError, capability: Capability | None, *, has_streamed: bool) -> bool:
    """Whether the next candidate may be asked after this failure.

    What the agent itself answered is the answer. What surely never ran may be repeated.
    What may have run is repeated as the capability's `idempotent` says; where that is
    unset, not if it writes, not after a lost answer, and not after words have reached the caller.
    """
    if error.is_answer or not error.falls_back:
        return False
    if error.never_ran:
        return True
    if capability is not None and capability.idempotent is not None:
        return capability.idempotent
    if capability is not None and capability.side_effects == "writes":
        return False
    return not has_streamed and not isinstance(error, UpstreamInterrupted)


def _primary(asked: Manifest, wish: Wish) -> Candidate | None:
    capability = asked.capability(wish.capability)
    if capability is None and asked.capabilities:
        return None
    stream = wish.stream and (capability is None or capability.streaming)
    return Candidate(manifest=asked, capability=capability, tier="primary", reason="asked for", stream=stream)


def _peers(
    wish: Wish, asked: Manifest, agents: AgentIndex, health: HealthView
) -> tuple[list[Candidate], list[Refusal]]:
    if asked.is_tool:
        return [], []
    found: list[Candidate] = []
    refused: list[Refusal] = []
    declared = [agents.get(agent_id) for agent_id in dict.fromkeys(asked.fallbacks) if agent_id != asked.agent_id]
    named = {asked.agent_id, *asked.fallbacks}
    for manifest in filter(None, declared):
        _judge(wish, manifest, "declared", f"declared fallback of {asked.agent_id}", found, refused)
    others: list[Candidate] = []
    for manifest in islice(agents.offering(fold(wish.capability)), _PEERS_CONSIDERED):
        if manifest.agent_id in named:
            continue
        if TRUST_RANK[manifest.trust_tier] > TRUST_RANK[asked.trust_tier]:
            why = f"trust tier '{manifest.trust_tier}' is below '{asked.trust_tier}' of {asked.agent_id}"
            refused.append(Refusal(agent_id=manifest.agent_id, reason=why))
        else:
            _judge(wish, manifest, "peer", f"offers '{wish.capability}' too", others, refused)
    others.sort(key=lambda peer: _preference(peer, health.of(peer.manifest.agent_id)))
    return found + others, refused


def _judge(
    wish: Wish, manifest: Manifest, tier: Tier, reason: str, found: list[Candidate], refused: list[Refusal]
) -> None:
    capability = manifest.capability(wish.capability)
    if capability is None and manifest.capabilities:
        why: str | None = f"does not offer '{wish.capability}'"
    else:
        why = refusal(wish.principal, manifest, wish.capability)
    if why is not None:
        refused.append(Refusal(agent_id=manifest.agent_id, reason=why))
        return
    stream = wish.stream and (capability is None or capability.streaming)
    found.append(Candidate(manifest=manifest, capability=capability, tier=tier, reason=reason, stream=stream))


def _preference(peer: Candidate, health: Health) -> tuple[int, bool, int, float]:
    known = health.latency if health.latency is not None else 1.0
    return (_HEALTH_RANK[health.status], not peer.stream, TRUST_RANK[peer.manifest.trust_tier], known)


def _in_order(primary: Candidate | None, peers: list[Candidate], health: HealthView, wish: Wish) -> Iterator[Candidate]:
    """Whoever is known to be offline comes last; nobody is left out, for it may be back."""
    everybody: Iterable[Candidate] = [*([primary] if primary else []), *peers]
    offline = []
    for candidate in everybody:
        if health.of(candidate.manifest.agent_id).status == "offline":
            offline.append(candidate)
        else:
            yield candidate
    yield from offline
    if primary and primary.stream and primary.capability and primary.capability.idempotent:
        yield Candidate(
            manifest=primary.manifest,
            capability=primary.capability,
            tier="degraded",
            reason="the same without streaming",
            stream=False,
        )
