"""What a caller may do, and what it may know of: pure answers from its trust tier and its scopes.

Every door, operation and step asks here. A scope is `*`, or a kind and a name such as `agent:percy`; a name that ends
with `*` stands for all that begin like it. `scp` is what the credentials allow, `cap` narrows it; a list that is None
limits nothing, an empty one allows nothing. A caller learns nothing of what it may not call: an agent outside its reach
is refused, or not found, in the very words that are said of an agent that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from a2a_fabric.core.agent import TRUST_RANK, Capability, Manifest, TrustTier, fold
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import Forbidden

EVERYTHING = "*"
METRICS = "metrics"
REGISTER = "register"
# What stands before the colon of a scope.
KINDS = ("agent", "tool", "capability", REGISTER, "message", "inbox", "topic", "publish", "subscribe")
# Scopes without a name. Other kinds need one: tokens of other issuers use such words for their own ends.
_BARE = (METRICS, REGISTER)
_SHOWN = 128

Reach = tuple[TrustTier, tuple[str, ...] | None, tuple[str, ...] | None]


_folded = lru_cache(maxsize=8192)(fold)  # for names of capabilities, which are short and often the same


class Scopes(msgspec.Struct, frozen=True):
    """A list of scopes, sorted by kind: whole names, and the beginnings of names."""

    everything: bool
    names: dict[str, frozenset[str]]
    beginnings: dict[str, tuple[str, ...]]

    @property
    def is_empty(self) -> bool:
        """Whether it allows nothing at all."""
        return not (self.everything or self.names or self.beginnings)

    def has(self, kind: str) -> bool:
        """Whether it allows something of this kind."""
        return self.everything or kind in self.names or kind in self.beginnings

    def grants(self, kind: str, name: str) -> bool:
        if self.everything or name in self.names.get(kind, ()):
            return True
        beginnings = self.beginnings.get(kind)
        return beginnings is not None and name.startswith(beginnings)

    def allows(self, folded: str) -> bool:
        """Whether this capability may be called of any agent that has it."""
        return self.has("capability") and self.grants("capability", folded)


@lru_cache(maxsize=4096)
def parsed(scopes: tuple[str, ...]) -> Scopes:
    """What is no scope of ours allows nothing."""
    names: dict[str, set[str]] = {}
    beginnings: dict[str, set[str]] = {}
    for scope in filter(is_scope, scopes):
        kind, _, name = scope.partition(":")
        name = fold(name) if kind == "capability" else name
        if kind == METRICS:
            names.setdefault(kind, set()).add("")
        elif not name or name.endswith("*"):
            beginnings.setdefault(kind, set()).add(name.removesuffix("*"))
        else:
            names.setdefault(kind, set()).add(name)
    return Scopes(
        everything=EVERYTHING in scopes,
        names={kind: frozenset(found) for kind, found in names.items()},
        beginnings={kind: tuple(sorted(found)) for kind, found in beginnings.items()},
    )


def is_scope(word: str) -> bool:
    """Whether it is one of ours."""
    kind, _, name = word.partition(":")
    return word == EVERYTHING or word in _BARE or (kind in KINDS and name != "")


def reach_of(principal: Principal) -> Reach:
    """The same for all callers who may do and see the same."""
    return principal.trust, principal.scp, principal.cap


def may_do_nothing(principal: Principal) -> bool:
    """Whether the credentials have no scope at all, or narrow what they have to nothing."""
    return any(limit.is_empty for limit in _limits(principal))


def is_limited(principal: Principal) -> bool:
    """Whether there may be anything that this caller must not know of."""
    if principal.scp is None and principal.cap is None:
        return principal.trust != "local"
    return principal.trust != "local" or not all(limit.everything for limit in _limits(principal))


def refusal(principal: Principal, manifest: Manifest, capability: str) -> str | None:
    """Why the call is refused, or None if it is allowed."""
    if (principal.scp is not None or principal.cap is not None) and not _covers(
        principal, "tool" if manifest.is_tool else "agent", manifest.agent_id, capability
    ):
        return _outside_scopes(manifest.agent_id, capability)
    if TRUST_RANK[principal.trust] > TRUST_RANK[manifest.trust_tier]:
        return _outside_tier(manifest.agent_id, principal)
    return None


def refusal_of_unknown(principal: Principal, agent_id: str, capability: str) -> str | None:
    """The same for an agent that does not exist; None: then the caller may be told so."""
    if not _covers(principal, "agent", agent_id, capability):
        return _outside_scopes(agent_id, capability)
    return None if principal.trust == "local" else _outside_tier(agent_id, principal)


def check_named(principal: Principal, agent_id: str) -> None:
    """May it know whether there is an agent of this id? Raises Forbidden if its scopes cover nothing of that name."""
    for limit in _limits(principal):
        if not limit.grants("agent", agent_id) and not limit.has("capability"):
            words = f"Refused by policy: agent '{agent_id[:_SHOWN]}' is outside the scopes of these credentials"
            raise Forbidden(words, agent_id=agent_id[:_SHOWN])


def narrowed(principal: Principal, manifest: Manifest) -> Manifest | None:
    """The agent as this caller sees it: with the capabilities that it may call; None if there is none of them."""
    return _narrowed(TRUST_RANK[principal.trust], _limits(principal), manifest)


def all_narrowed(principal: Principal, manifests: Iterable[Manifest]) -> list[Manifest]:
    """Those of many agents that the caller may call something of, each as it sees it."""
    rank, limits = TRUST_RANK[principal.trust], _limits(principal)
    return [seen for manifest in manifests if (seen := _narrowed(rank, limits, manifest)) is not None]


def _narrowed(rank: int, limits: tuple[Scopes, ...], manifest: Manifest) -> Manifest | None:
    if rank > TRUST_RANK[manifest.trust_tier]:
        return None
    kind, offered = "tool" if manifest.is_tool else "agent", manifest.capabilities
    for limit in limits:
        if limit.grants(kind, manifest.agent_id):
            continue
        if not limit.has("capability"):
            return None
        offered = tuple(each for each in offered if limit.allows(_folded(each.name)))
    if len(offered) == len(manifest.capabilities):  # also of an agent that has not said what it offers
        return manifest
    return msgspec.structs.replace(manifest, capabilities=offered) if offered else None


def is_visible(principal: Principal, manifest: Manifest) -> bool:
    """Whether this principal may know of the agent at all."""
    return narrowed(principal, manifest) is not None


def visible_tiers(principal: Principal) -> tuple[TrustTier, ...]:
    """The trust tiers of the agents that this principal may know of."""
    return tuple(tier for tier, rank in TRUST_RANK.items() if TRUST_RANK[principal.trust] <= rank)


def callable_of(principal: Principal, manifest: Manifest) -> tuple[Capability, ...]:
    """What this caller may ask of the agent."""
    seen = narrowed(principal, manifest)
    return () if seen is None else seen.capabilities


def has_kind(principal: Principal, *kinds: str) -> bool:
    """Whether it may do something of one of these kinds, whatever the name."""
    return not _must_be_told(principal) and all(any(map(limit.has, kinds)) for limit in _limits(principal))


def has_scope(principal: Principal, *wanted: str) -> bool:
    """Whether one of these scopes is granted. Callers of trust tier `public` have only what is said explicitly."""
    return not _must_be_told(principal) and all(
        any(limit.grants(*_divided(scope)) for scope in wanted) for limit in _limits(principal)
    )


def check_scope(principal: Principal, *wanted: str) -> None:
    """Raises Forbidden, which names the first of them."""
    if not has_scope(principal, *wanted):
        raise Forbidden(f"These credentials lack the scope `{wanted[0][:_SHOWN]}`", scope=wanted[0][:_SHOWN])


def check_metrics(principal: Principal) -> None:
    """Raises Forbidden. The metrics name agents of every tier, so they are for callers who may know of all tiers."""
    check_scope(principal, METRICS)
    if principal.trust != "local":
        raise Forbidden(f"The metrics are not for callers of trust tier '{principal.trust}': they name every agent")


def check_register(principal: Principal, agent_id: str) -> None:
    """Raises Forbidden."""
    if _must_be_told(principal):
        raise Forbidden(f"Callers of trust tier 'public' register agents only with the scope `{REGISTER}`")
    if not has_scope(principal, f"{REGISTER}:{agent_id}"):
        raise Forbidden(
            f"These credentials may not register agent '{agent_id[:_SHOWN]}': they lack the scope `{REGISTER}`"
        )


def check_send(principal: Principal, name: str, manifest: Manifest | None) -> None:
    """May it put a message into this inbox? `manifest` is the agent of that name, if there is one. Raises Forbidden.

    To bring an agent a message is to call it, so whoever may call all of it may write to it.
    """
    check_scope(principal, f"message:{name}", f"agent:{name}")
    tier = None if manifest is None else manifest.trust_tier
    if principal.trust != "local" and (tier is None or TRUST_RANK[principal.trust] > TRUST_RANK[tier]):
        raise Forbidden(f"Refused by policy: {_outside_tier(name, principal)}", agent_id=name[:_SHOWN])


def check_inbox(principal: Principal, name: str, *, is_own: bool) -> None:
    """May it read this inbox, if that belongs to it? A caller's own needs no scope of its own. Raises Forbidden."""
    if not is_own or _must_be_told(principal):
        check_scope(principal, f"inbox:{name}", f"{REGISTER}:{name}")


def check_publish(principal: Principal, topic: str) -> None:
    """Raises Forbidden."""
    check_scope(principal, f"topic:{topic}", f"publish:{topic}")


def check_subscribe(principal: Principal, topic: str) -> None:
    """Raises Forbidden."""
    check_scope(principal, f"topic:{topic}", f"subscribe:{topic}")


def may_know_topic(principal: Principal, topic: str) -> bool:
    return has_scope(principal, f"topic:{topic}", f"publish:{topic}", f"subscribe:{topic}")


def _limits(principal: Principal) -> tuple[Scopes, ...]:
    scp, cap = principal.scp, principal.cap
    if cap is None:
        return () if scp is None else (parsed(scp),)
    return (parsed(cap),) if scp is None else (parsed(scp), parsed(cap))


def _must_be_told(principal: Principal) -> bool:
    """A caller whom nobody vouches for has no rights beyond calling agents unless a scope says so."""
    return principal.trust == "public" and principal.scp is None


def _covers(principal: Principal, kind: str, agent_id: str, capability: str) -> bool:
    limits = _limits(principal)
    return not limits or all(limit.grants(kind, agent_id) or limit.allows(fold(capability)) for limit in limits)


def _divided(scope: str) -> tuple[str, str]:
    kind, _, name = scope.partition(":")
    return kind, fold(name) if kind == "capability" else name


def _outside_scopes(agent_id: str, capability: str) -> str:
    return (
        f"capability '{capability[:_SHOWN]}' of agent '{agent_id[:_SHOWN]}' is outside the scopes of these credentials"
    )


def _outside_tier(agent_id: str, principal: Principal) -> str:
    return f"there is no agent '{agent_id[:_SHOWN]}' for callers of trust tier '{principal.trust}'"
