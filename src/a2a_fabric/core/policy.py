"""Access policy: what a caller may do and see, decided purely from its trust tier, its scopes, its views, and the
operator's rules that hold for it (`core.rules`).

Every door, operation and step uses these functions. A caller learns nothing about agents that it may not call: the
refusal (or "not found") has the same wording as for an agent that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import Literal

import msgspec
from msgspec import UNSET

from a2a_fabric.core.agent import MAX_CAPABILITY_NAME, TRUST_RANK, Capability, Manifest, TrustTier, normalize_name
from a2a_fabric.core.call import Principal
from a2a_fabric.core.disclosure import acts_as_operator, administers
from a2a_fabric.core.errors import Forbidden, OperatorText, OutOfScope
from a2a_fabric.core.rules import RuleSet, Verdict
from a2a_fabric.core.scopes import METRICS_SCOPE, REGISTER_SCOPE, ScopeSet, parse_scopes, split_scope
from a2a_fabric.core.view import EVERY_CAPABILITY, View

_MAX_SHOWN = 128

AccessKey = tuple[
    TrustTier,
    tuple[str, ...] | None,
    tuple[str, ...] | None,
    tuple[tuple[str, ...], ...] | msgspec.UnsetType,
    tuple[View, ...] | msgspec.UnsetType,
    RuleSet | None,
]


# Modes in which a caller is the same object in all its requests, so that what it may do is remembered by its identity.
LASTING_MODES = ("psk", "none")
MAX_REMEMBERED = 2048  # of such decisions, until the catalog changes

# Whether views include a capability of an agent, as long as its manifest stays the same.
_viewed: dict[tuple[tuple[View, ...], str, str], tuple[Manifest, bool]] = {}
_MAX_VIEWED = 8192
_normalize_cached = lru_cache(maxsize=8192)(normalize_name)  # names of capabilities are short and often the same


def make_access_key(principal: Principal) -> AccessKey:
    """A key that is equal for callers with the same access."""
    rules = principal.entry.rules if principal.entry else None
    return principal.trust, principal.scp, principal.cap, principal.narrowed_by, principal.views, rules


def has_no_rights(principal: Principal) -> bool:
    """Whether the credentials have no scope at all, or narrow what they have to nothing."""
    return any(limit.is_empty for limit in _limits(principal))


def is_limited(principal: Principal) -> bool:
    """Whether there may be anything that this caller must not know of."""
    if principal.entry and (rules := principal.entry.rules) is not None and rules.has_denials:
        return True
    if principal.scp is None and principal.cap is None:
        return principal.trust != "local" or principal.views is not UNSET
    is_narrowed = principal.trust != "local" or principal.views is not UNSET
    return is_narrowed or not all(limit.allows_all for limit in _limits(principal))


def find_refusal(principal: Principal, manifest: Manifest, capability: str) -> str | None:
    """Why the call is refused, or None if it is allowed."""
    if (principal.scp is not None or principal.cap is not None) and not allows_by_scope(
        principal, "tool" if manifest.is_tool else "agent", manifest.agent_id, capability
    ):
        return _outside_scopes_message(manifest.agent_id, capability)
    is_outside_tier = TRUST_RANK[principal.trust] > TRUST_RANK[manifest.access_tier]
    if principal.views is not UNSET and (is_outside_tier or not _is_viewed(principal.views, manifest, capability)):
        return _outside_view_message(manifest.agent_id, capability, principal.views)
    if is_outside_tier:
        return _outside_tier_message(manifest.agent_id, principal)
    if principal.entry and (rules := principal.entry.rules) is not None and rules.denies(manifest, capability):
        return _denied_message(rules, manifest, capability)
    return None


def find_verdict(principal: Principal, manifest: Manifest, capability: str) -> Verdict | None:
    """What the operator's rules say of a call, for the operator's eyes; None if no rule holds for this caller."""
    rules = principal.entry.rules if principal.entry else None
    return None if rules is None else rules.decide(manifest, capability)


def find_refusal_of_unknown(principal: Principal, agent_id: str, capability: str) -> str | None:
    """The same for an agent that does not exist; None means that the caller may learn that."""
    if not allows_by_scope(principal, "agent", agent_id, capability):
        return _outside_scopes_message(agent_id, capability)
    if principal.views:
        return _outside_view_message(agent_id, capability, principal.views)
    if principal.trust != "local":
        return _outside_tier_message(agent_id, principal)
    rule = find_denial_by_name(principal, agent_id, capability)
    return None if rule is None else _rule_message(rule, agent_id, capability)


def check_agent_name(principal: Principal, agent_id: str) -> None:
    """Raises Forbidden if the caller may not learn whether there is an agent of this id."""
    for limit in _limits(principal):
        if not limit.grants("agent", agent_id) and not limit.has_kind("capability"):
            message = f"Refused by policy: agent '{agent_id[:_MAX_SHOWN]}' is outside the scopes of these credentials"
            raise OutOfScope(message, f"agent:{agent_id}", agent_id=agent_id[:_MAX_SHOWN])
    rule = find_denial_by_name(principal, agent_id, None)
    if rule is not None:
        message = f"Refused by policy: rule '{rule}' keeps agent '{agent_id[:_MAX_SHOWN]}' from this caller"
        raise Forbidden(message, agent_id=agent_id[:_MAX_SHOWN], rule=rule)


def refuse_call(principal: Principal, reason: str, agent_id: str, capability: str) -> Forbidden:
    """The error for a call, with the reason of `find_refusal` or `find_refusal_of_unknown`.

    Tools are agents here: a scope of their own kind would tell that there is such a tool.
    """
    message, details = f"Refused by policy: {reason}", {"agent_id": agent_id[:128], "capability": capability[:128]}
    if isinstance(reason, OperatorText):
        message = OperatorText(message, f"Refused by policy: {reason.public}")
    if allows_by_scope(principal, "agent", agent_id, capability):
        shown = reason.public if isinstance(reason, OperatorText) else reason
        rule = shown.split("'", 2)[1] if shown.startswith(_RULE_MARK) else None  # names of rules have no quotes
        return Forbidden(message, **details, rule=rule)
    return OutOfScope(message, f"agent:{agent_id}", **details)


def is_scoped(principal: Principal) -> bool:
    """Whether more scopes would allow more."""
    return principal.scp is not None or principal.cap is not None


def narrow_manifest(principal: Principal, manifest: Manifest) -> Manifest | None:
    """The agent as this caller sees it: with the capabilities that it may call; None without any."""
    rules = principal.entry.rules if principal.entry else None
    return _narrow(TRUST_RANK[principal.trust], _limits(principal), principal.views or (), rules, manifest)


def narrow_manifests(principal: Principal, manifests: Iterable[Manifest]) -> list[Manifest]:
    """The agents that the caller may call, each with the capabilities that it may call."""
    rank, limits, views = TRUST_RANK[principal.trust], _limits(principal), principal.views or ()
    rules = principal.entry.rules if principal.entry else None
    narrowed = (_narrow(rank, limits, views, rules, manifest) for manifest in manifests)
    return [manifest for manifest in narrowed if manifest is not None]


def _narrow(
    rank: int, limits: tuple[ScopeSet, ...], views: tuple[View, ...], rules: RuleSet | None, manifest: Manifest
) -> Manifest | None:
    if rank > TRUST_RANK[manifest.access_tier]:
        return None
    kind, offered = "tool" if manifest.is_tool else "agent", manifest.capabilities
    for limit in limits:
        if limit.grants(kind, manifest.agent_id):
            continue
        if not limit.has_kind("capability"):
            return None
        offered = tuple(each for each in offered if limit.allows_capability(_normalize_cached(each.name)))
    for view in views:
        if not view.may_include(manifest):
            return None
        offered = tuple(each for each in offered if view.includes(manifest, each.name))
    if rules is not None and rules.has_denials:
        if not manifest.capabilities and rules.hides_unlisted(manifest):
            return None
        offered = tuple(each for each in offered if not rules.denies(manifest, each.name))
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
        any(limit.grants(*split_scope(scope)) for scope in scopes) for limit in _limits(principal)
    )


def check_scope(principal: Principal, *scopes: str) -> None:
    """Raises Forbidden, which names the first of them."""
    if not has_scope(principal, *scopes):
        shown = scopes[0][:_MAX_SHOWN]
        raise OutOfScope(f"These credentials lack the scope `{shown}`", scopes[0], scope=shown)


def check_metrics(principal: Principal) -> None:
    """Raises Forbidden. The metrics name agents of every tier, so they are for callers who may know of all tiers."""
    check_scope(principal, METRICS_SCOPE)
    if principal.trust != "local":
        raise Forbidden(f"The metrics are not for callers of trust tier '{principal.trust}': they name every agent")
    if principal.views:
        raise Forbidden(
            f"The metrics are not for callers of the view '{principal.views[0].name}': they name every agent"
        )


def check_register(principal: Principal, agent_id: str) -> None:
    """Raises Forbidden."""
    if _needs_explicit_scope(principal):
        message = f"Callers of trust tier 'public' register agents only with the scope `{REGISTER_SCOPE}`"
        raise OutOfScope(message, REGISTER_SCOPE)
    if not has_scope(principal, f"{REGISTER_SCOPE}:{agent_id}"):
        raise OutOfScope(
            f"These credentials may not register agent '{agent_id[:_MAX_SHOWN]}': "
            f"they lack the scope `{REGISTER_SCOPE}`",
            f"{REGISTER_SCOPE}:{agent_id}",
        )


def check_send(principal: Principal, name: str, manifest: Manifest | None) -> None:
    """Raises Forbidden if the caller may not send to this inbox. `manifest` is the agent of that name, if there is one.

    Delivering a message to an agent calls it, so a caller that may call the whole agent may send to it.
    """
    check_scope(principal, f"message:{name}", f"agent:{name}")
    tier = None if manifest is None else manifest.access_tier
    if principal.trust != "local" and (tier is None or TRUST_RANK[principal.trust] > TRUST_RANK[tier]):
        raise Forbidden(f"Refused by policy: {_outside_tier_message(name, principal)}", agent_id=name[:_MAX_SHOWN])
    if principal.views and (manifest is None or not _is_viewed(principal.views, manifest, EVERY_CAPABILITY)):
        reason = _outside_view_message(name, EVERY_CAPABILITY, principal.views)
        raise Forbidden(f"Refused by policy: {reason}", agent_id=name[:_MAX_SHOWN])
    rules = principal.entry.rules if principal.entry else None
    if rules is not None and manifest is not None and rules.denies(manifest, EVERY_CAPABILITY):
        raise refuse_call(principal, _denied_message(rules, manifest, EVERY_CAPABILITY), name, "*")
    if manifest is None and (rule := find_denial_by_name(principal, name, EVERY_CAPABILITY)) is not None:
        raise refuse_call(principal, _rule_message(rule, name, EVERY_CAPABILITY), name, "*")


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
    if principal.narrowed_by:
        scope_lists = (scp, cap, *principal.narrowed_by)
        return tuple(parse_scopes(scopes) for scopes in scope_lists if scopes is not None)
    if cap is None:
        return () if scp is None else (parse_scopes(scp),)
    return (parse_scopes(cap),) if scp is None else (parse_scopes(scp), parse_scopes(cap))


def _needs_explicit_scope(principal: Principal) -> bool:
    """A public caller has no rights beyond calling agents, unless a scope grants them."""
    return principal.trust == "public" and principal.scp is None


def allows_by_scope(principal: Principal, kind: str, agent_id: str, capability: str) -> bool:
    limits = _limits(principal)
    return not limits or all(
        limit.grants(kind, agent_id) or limit.allows_capability(normalize_name(capability)) for limit in limits
    )


def _is_viewed(views: tuple[View, ...], manifest: Manifest, capability: str) -> bool:
    """Compared with the patterns once; every call of a caller with a view asks this twice."""
    if len(capability) > MAX_CAPABILITY_NAME:  # callers choose it, so what is kept is bounded
        return False
    key = (views, manifest.agent_id, capability)
    known = _viewed.get(key)
    if known is None or known[0] is not manifest:
        if len(_viewed) >= _MAX_VIEWED:
            _viewed.clear()
        known = _viewed[key] = manifest, all(view.includes(manifest, capability) for view in views)
    return known[1]


def _outside_scopes_message(agent_id: str, capability: str) -> str:
    name = f"capability '{capability[:_MAX_SHOWN]}' of agent '{agent_id[:_MAX_SHOWN]}'"
    return f"{name} is outside the scopes of these credentials"


def _outside_view_message(agent_id: str, capability: str, views: tuple[View, ...]) -> str:
    names = " and ".join(f"'{view.name}'" for view in views)
    name = f"capability '{capability[:_MAX_SHOWN]}' of agent '{agent_id[:_MAX_SHOWN]}'"
    return f"{name} is outside the view {names} of this caller"


_RULE_MARK = "rule "


def _rule_message(rule: str, agent_id: str, capability: str) -> str:
    name = f"capability '{capability[:_MAX_SHOWN]}' of agent '{agent_id[:_MAX_SHOWN]}'"
    return f"{_RULE_MARK}'{rule}' denies this caller {name}"


def _denied_message(rules: RuleSet, manifest: Manifest, capability: str) -> str:
    """The operator reads which rule it was. Others read the one that names alone suggest; see `core.rules`."""
    rule, agent_id = str(rules.decide(manifest, capability).rule), manifest.agent_id
    shown_rule = rules.find_denial_by_name(agent_id, capability) or rule
    message = _rule_message(shown_rule, agent_id, capability)
    return message if rule == shown_rule else OperatorText(_rule_message(rule, agent_id, capability), message)


def find_denial_by_name(principal: Principal, agent_id: str, capability: str | None) -> str | None:
    """The rule that a refusal names, whether there is such an agent or not.

    The operator may know which agents there are; its rules are its own.
    """
    rules = principal.entry.rules if principal.entry else None
    if rules is None or acts_as_operator(principal):
        return None
    return rules.find_denial_by_name(agent_id, capability)


def _outside_tier_message(agent_id: str, principal: Principal) -> str:
    return f"there is no agent '{agent_id[:_MAX_SHOWN]}' for callers of trust tier '{principal.trust}'"


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"  # a name such as `127.evil.example` is not an address


ConsoleRole = Literal["viewer", "operator"]
VIEWER_SCOPE, OPERATOR_SCOPE = "console:view", "console:operate"


def find_console_role(principal: Principal) -> ConsoleRole | None:
    """What the caller may do in the console and the admin API: look, or also change things.

    The operator may do everything. Other callers need a scope that names the console: `*` is about agents. Whatever a
    token says, its holder only looks: no issuer makes a caller the operator.
    """
    if administers(principal):
        return "operator"
    limits = _limits(principal)
    if principal.trust != "local" or principal.views or not limits:
        return None
    names = set.intersection(*({"view", "operate"} & limit.names.get("console", frozenset()) for limit in limits))
    if "operate" in names and principal.mode == "psk":
        return "operator"
    return "viewer" if names else None


def check_console_role(principal: Principal, role: ConsoleRole) -> None:
    """Raises Forbidden."""
    found = find_console_role(principal)
    if found is None:
        raise OutOfScope(
            f"These credentials may not open the console. Use the node's own key, or one with the scope {VIEWER_SCOPE}",
            VIEWER_SCOPE,
        )
    if role == "operator" and found != "operator":
        raise OutOfScope(
            f"Viewers may not change anything. Use the node's own key, or one with the scope {OPERATOR_SCOPE}",
            OPERATOR_SCOPE,
        )
