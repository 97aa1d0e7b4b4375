"""May this principal ask that agent for this? A pure answer, shared by the authorize step and the planner."""

from __future__ import annotations

from a2a_fabric.core.agent import TRUST_RANK, Manifest, TrustTier, fold
from a2a_fabric.core.call import Principal


def refusal(principal: Principal, manifest: Manifest, capability: str) -> str | None:
    """Why the call is refused, or None if it is allowed."""
    if TRUST_RANK[principal.trust] > TRUST_RANK[manifest.trust_tier]:
        return (
            f"agent '{manifest.agent_id}' is reserved for callers of trust tier '{manifest.trust_tier}', "
            f"and this one has '{principal.trust}'"
        )
    if principal.scp is None and principal.cap is None:
        return None
    if not in_scope(principal.scp, manifest, capability) or not in_scope(principal.cap, manifest, capability):
        return f"capability '{capability}' of agent '{manifest.agent_id}' is outside the scopes of these credentials"
    return None


def is_visible(principal: Principal, manifest: Manifest) -> bool:
    """Whether this principal may know of the agent at all."""
    return TRUST_RANK[principal.trust] <= TRUST_RANK[manifest.trust_tier]


def visible_tiers(principal: Principal) -> tuple[TrustTier, ...]:
    """The trust tiers of the agents that this principal may know of; `is_visible` for many at once."""
    return tuple(tier for tier, rank in TRUST_RANK.items() if TRUST_RANK[principal.trust] <= rank)


def in_scope(scopes: tuple[str, ...] | None, manifest: Manifest, capability: str) -> bool:
    """No list of scopes means no limit; an empty one allows nothing."""
    if scopes is None:
        return True
    kind = "tool" if manifest.is_tool else "agent"
    wanted = {"*", f"{kind}:*", f"{kind}:{manifest.agent_id}", f"capability:{fold(capability)}"}
    return any(_folded(scope) in wanted for scope in scopes)


def _folded(scope: str) -> str:
    kind, _, name = scope.partition(":")
    return f"capability:{fold(name)}" if kind == "capability" else scope
