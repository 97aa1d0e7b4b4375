"""Access policy: what a caller may do and see, decided purely from its trust tier and its scopes.

Every door, operation and step uses these functions. A scope is `*`, or a kind and a name such as `agent:percy`; a
name that ends with `*` is a prefix. `scp` is what the credentials allow, `cap` narrows it; a list that is None limits
nothing, an empty one allows nothing. A caller learns nothing about agents that it may not call: the refusal (or
"not found") has the same wording as for an agent that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address

import msgspec

from a2a_fabric.core.agent import TRUST_RANK, Capability, Manifest, TrustTier, normalize_name
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import Forbidden

ALL_SCOPES = "*"
METRICS_SCOPE = "metrics"
REGISTER_SCOPE = "register"
# The part of a scope before the colon.
SCOPE_KINDS = ("agent", "tool", "capability", REGISTER_SCOPE, "message", "inbox", "topic", "publish", "subscribe")
# Scopes without a name. Other kinds need one: tokens of other issuers use such words for their own ends.
_NAMELESS_SCOPES = (METRICS_SCOPE, REGISTER_SCOPE)
_MAX_SHOWN = 128

AccessKey = tuple[TrustTier, tuple[str, ...] | None, tuple[str, ...] | None]


_normalize_cached = lru_cache(maxsize=8192)(normalize_name)  # names of capabilities are short and often the same


class ScopeSet(msgspec.Struct, frozen=True):
    """A list of scopes, sorted by kind: whole names, and the beginnings of names."""

    allows_all: bool
    names: dict[str, frozenset[str]]
    prefixes: dict[str, tuple[str, ...]]

    @property
    def is_empty(self) -> bool:
        """Whether the scopes allow nothing at all."""
        return not (self.allows_all or self.names or self.prefixes)

    def has_kind(self, kind: str) -> bool:
        """Whether it allows something of this kind."""
        return self.allows_all or kind in self.names or kind in self.prefixes

    def grants(self, kind: str, name: str) -> bool:
        if self.allows_all or name in self.names.get(kind, ()):
            return True
        prefixes = self.prefixes.get(kind)
        return prefixes is not None and name.startswith(prefixes)

    def allows_capability(self, normalized_name: str) -> bool:
        """Whether this capability may be called of any agent that has it."""
        return self.has_kind("capability") and self.grants("capability", normalized_name)


@lru_cache(maxsize=4096)
def parse_scopes(scopes: tuple[str, ...]) -> ScopeSet:
    """Unknown scopes allow nothing."""
    names: dict[str, set[str]] = {}
    prefixes: dict[str, set[str]] = {}
    for scope in filter(is_known_scope, scopes):
        kind, _, name = scope.partition(":")
        name = normalize_name(name) if kind == "capability" else name
        if kind == METRICS_SCOPE:
            names.setdefault(kind, set()).add("")
        elif not name or name.endswith("*"):
            prefixes.setdefault(kind, set()).add(name.removesuffix("*"))
        else:
            names.setdefault(kind, set()).add(name)
    return ScopeSet(
        allows_all=ALL_SCOPES in scopes,
        names={kind: frozenset(members) for kind, members in names.items()},
        prefixes={kind: tuple(sorted(members)) for kind, members in prefixes.items()},
    )


def is_known_scope(scope: str) -> bool:
    """Whether Fabric defines this scope."""
    kind, _, name = scope.partition(":")
    return scope == ALL_SCOPES or scope in _NAMELESS_SCOPES or (kind in SCOPE_KINDS and name != "")


def make_access_key(principal: Principal) -> AccessKey:
    """A key that is equal for callers with the same access."""
    return principal.trust, principal.scp, principal.cap


def has_no_rights(principal: Principal) -> bool:
    """Whether the credentials have no scope at all, or narrow what they have to nothing."""
    return any(limit.is_empty for limit in _limits(principal))


def is_limited(principal: Principal) -> bool:
    """Whether there may be anything that this caller must not know of."""
    if principal.scp is None and principal.cap is None:
        return principal.trust != "local"
    return principal.trust != "local" or not all(limit.allows_all for limit in _limits(principal))


def find_refusal(principal: Principal, manifest: Manifest, capability: str) -> str | None:
    """Why the call is refused, or None if it is allowed."""
    if (principal.scp is not None or principal.cap is not None) and not _covers(
        principal, "tool" if manifest.is_tool else "agent", manifest.agent_id, capability
    ):
        return _outside_scopes_message(manifest.agent_id, capability)
    if TRUST_RANK[principal.trust] > TRUST_RANK[manifest.trust_tier]:
        return _outside_tier_message(manifest.agent_id, principal)
    return None


def find_refusal_of_unknown(principal: Principal, agent_id: str, capability: str) -> str | None:
    """The same for an agent that does not exist; None means that the caller may learn that."""
    if not _covers(principal, "agent", agent_id, capability):
        return _outside_scopes_message(agent_id, capability)
    return None if principal.trust == "local" else _outside_tier_message(agent_id, principal)


def check_agent_name(principal: Principal, agent_id: str) -> None:
    """Raises Forbidden if the caller may not learn whether there is an agent of this id."""
    for limit in _limits(principal):
        if not limit.grants("agent", agent_id) and not limit.has_kind("capability"):
            message = f"Refused by policy: agent '{agent_id[:_MAX_SHOWN]}' is outside the scopes of these credentials"
            raise Forbidden(message, agent_id=agent_id[:_MAX_SHOWN])


def narrow_manifest(principal: Principal, manifest: Manifest) -> Manifest | None:
    """The agent as this caller sees it: with the capabilities that it may call; None without any."""
    return _narrow(TRUST_RANK[principal.trust], _limits(principal), manifest)


def narrow_manifests(principal: Principal, manifests: Iterable[Manifest]) -> list[Manifest]:
    """The agents that the caller may call, each with the capabilities that it may call."""
    rank, limits = TRUST_RANK[principal.trust], _limits(principal)
    return [view for manifest in manifests if (view := _narrow(rank, limits, manifest)) is not None]


def _narrow(rank: int, limits: tuple[ScopeSet, ...], manifest: Manifest) -> Manifest | None:
    if rank > TRUST_RANK[manifest.trust_tier]:
        return None
    kind, offered = "tool" if manifest.is_tool else "agent", manifest.capabilities
    for limit in limits:
        if limit.grants(kind, manifest.agent_id):
            continue
        if not limit.has_kind("capability"):
            return None
        offered = tuple(each for each in offered if limit.allows_capability(_normalize_cached(each.name)))
    if len(offered) == len(manifest.capabilities):  # also for an agent that has not published its capabilities
        return manifest
    return msgspec.structs.replace(manifest, capabilities=offered) if offered else None


def is_visible(principal: Principal, manifest: Manifest) -> bool:
    """Whether this principal may know of the agent at all."""
    return narrow_manifest(principal, manifest) is not None


def list_visible_tiers(principal: Principal) -> tuple[TrustTier, ...]:
    """The trust tiers of the agents that this principal may know of."""
    return tuple(tier for tier, rank in TRUST_RANK.items() if TRUST_RANK[principal.trust] <= rank)


def list_callable_capabilities(principal: Principal, manifest: Manifest) -> tuple[Capability, ...]:
    """The capabilities of the agent that this caller may call."""
    view = narrow_manifest(principal, manifest)
    return () if view is None else view.capabilities


def has_scope_kind(principal: Principal, *kinds: str) -> bool:
    """Whether it may do something of one of these kinds, whatever the name."""
    return not _needs_explicit_scope(principal) and all(any(map(limit.has_kind, kinds)) for limit in _limits(principal))


def has_scope(principal: Principal, *scopes: str) -> bool:
    """Whether one of these scopes is granted. Callers of trust tier `public` have only explicit scopes."""
    return not _needs_explicit_scope(principal) and all(
        any(limit.grants(*_split_scope(scope)) for scope in scopes) for limit in _limits(principal)
    )


def check_scope(principal: Principal, *scopes: str) -> None:
    """Raises Forbidden, which names the first of them."""
    if not has_scope(principal, *scopes):
        raise Forbidden(f"These credentials lack the scope `{scopes[0][:_MAX_SHOWN]}`", scope=scopes[0][:_MAX_SHOWN])


def check_metrics(principal: Principal) -> None:
    """Raises Forbidden. The metrics name agents of every tier, so they are for callers who may know of all tiers."""
    check_scope(principal, METRICS_SCOPE)
    if principal.trust != "local":
        raise Forbidden(f"The metrics are not for callers of trust tier '{principal.trust}': they name every agent")


def check_register(principal: Principal, agent_id: str) -> None:
    """Raises Forbidden."""
    if _needs_explicit_scope(principal):
        raise Forbidden(f"Callers of trust tier 'public' register agents only with the scope `{REGISTER_SCOPE}`")
    if not has_scope(principal, f"{REGISTER_SCOPE}:{agent_id}"):
        raise Forbidden(
            f"These credentials may not register agent '{agent_id[:_MAX_SHOWN]}': "
            f"they lack the scope `{REGISTER_SCOPE}`"
        )


def check_send(principal: Principal, name: str, manifest: Manifest | None) -> None:
    """Raises Forbidden if the caller may not send to this inbox. `manifest` is the agent of that name, if there is one.

    Delivering a message to an agent calls it, so a caller that may call the whole agent may send to it.
    """
    check_scope(principal, f"message:{name}", f"agent:{name}")
    tier = None if manifest is None else manifest.trust_tier
    if principal.trust != "local" and (tier is None or TRUST_RANK[principal.trust] > TRUST_RANK[tier]):
        raise Forbidden(f"Refused by policy: {_outside_tier_message(name, principal)}", agent_id=name[:_MAX_SHOWN])


def check_inbox(principal: Principal, name: str, *, is_own: bool) -> None:
    """Raises Forbidden if the caller may not read this inbox. A caller's own inbox needs no scope."""
    if not is_own or _needs_explicit_scope(principal):
        check_scope(principal, f"inbox:{name}", f"{REGISTER_SCOPE}:{name}")


def check_publish(principal: Principal, topic: str) -> None:
    """Raises Forbidden."""
    check_scope(principal, f"topic:{topic}", f"publish:{topic}")


def check_subscribe(principal: Principal, topic: str) -> None:
    """Raises Forbidden."""
    check_scope(principal, f"topic:{topic}", f"subscribe:{topic}")


def may_know_topic(principal: Principal, topic: str) -> bool:
    return has_scope(principal, f"topic:{topic}", f"publish:{topic}", f"subscribe:{topic}")


def _limits(principal: Principal) -> tuple[ScopeSet, ...]:
    scp, cap = principal.scp, principal.cap
    if cap is None:
        return () if scp is None else (parse_scopes(scp),)
    return (parse_scopes(cap),) if scp is None else (parse_scopes(scp), parse_scopes(cap))


def _needs_explicit_scope(principal: Principal) -> bool:
    """A public caller has no rights beyond calling agents, unless a scope grants them."""
    return principal.trust == "public" and principal.scp is None


def _covers(principal: Principal, kind: str, agent_id: str, capability: str) -> bool:
    limits = _limits(principal)
    return not limits or all(
        limit.grants(kind, agent_id) or limit.allows_capability(normalize_name(capability)) for limit in limits
    )


def _split_scope(scope: str) -> tuple[str, str]:
    kind, _, name = scope.partition(":")
    return kind, normalize_name(name) if kind == "capability" else name


def _outside_scopes_message(agent_id: str, capability: str) -> str:
    name = f"capability '{capability[:_MAX_SHOWN]}' of agent '{agent_id[:_MAX_SHOWN]}'"
    return f"{name} is outside the scopes of these credentials"


def _outside_tier_message(agent_id: str, principal: Principal) -> str:
    return f"there is no agent '{agent_id[:_MAX_SHOWN]}' for callers of trust tier '{principal.trust}'"


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"  # a name such as `127.evil.example` is not an address
