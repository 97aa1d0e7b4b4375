"""The policy that is in force on a node now: binds callers to the rules that hold for them, and can be replaced.

A door's caller is bound when it is identified (`bind`). The step *authorize* binds again (`bind_call`): calls of jobs,
messages and long connections began earlier, when other rules held, and only a call says on whose behalf it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from a2a_fabric.core.call import Call, Principal, has_rules
from a2a_fabric.core.rules import CallerFacts, Entry, Policy, PolicyRule, RuleSet

_MAX_BOUND = 8192


class ActivePolicy:
    """`policy` is None while the node has no rules. Then nothing here is used (`is_used`), unless other nodes carry out
    its calls (`has_nodes`): their rules may name the door and the origin, so callers are bound to these.
    """

    def __init__(
        self, rules: Sequence[PolicyRule] = (), clock: Callable[[], float] = time.time, *, has_nodes: bool = False
    ) -> None:
        """Raises ConfigError."""
        self.policy: Policy | None = None
        self.is_used = has_nodes
        self._has_nodes = has_nodes
        self._clock = clock
        self._bound: dict[tuple[int, int, str, str, str], tuple[Principal, RuleSet | None, Principal]] = {}
        self.replace(rules)

    def replace(self, rules: Sequence[PolicyRule]) -> None:
        """Put other rules in force, from the next request on. Raises ConfigError, and keeps the old ones."""
        self.prepare(rules)()

    def prepare(self, rules: Sequence[PolicyRule]) -> Callable[[], None]:
        """Compile rules; the function puts them in force. Raises ConfigError."""
        policy = Policy(rules) if rules else None

        def take_effect() -> None:
            self.policy = policy
            self.is_used = policy is not None or self._has_nodes
            self._bound.clear()

        return take_effect

    def bind(self, principal: Principal, door: str, address: str, site: str, on_behalf_of: str = "") -> Principal:
        """The principal with the rules that hold for it now; the same object for the same caller and rules."""
        if not self.is_used:
            return msgspec.structs.replace(principal, entry=msgspec.UNSET) if principal.entry else principal
        policy, rules = self.policy, _NO_RULES
        if policy is not None:
            names_origin = policy.uses_origin
            facts = CallerFacts(
                principal.principal_id or "",
                principal.delegate_id or "",
                on_behalf_of if policy.uses_on_behalf_of else "",
                principal.trust,
                door,
                address if names_origin else "",
                site if names_origin else "",
            )
            rules = policy.select(facts, self._clock())
            if not names_origin and not self._has_nodes:
                address = site = ""
        known_entry = principal.entry
        if (
            known_entry
            and known_entry.rules is rules
            and (known_entry.door, known_entry.address, known_entry.site) == (door, address, site)
        ):
            return principal
        key = (id(principal), id(rules), door, address, site)
        known = self._bound.get(key)
        if known is not None:
            return known[2]
        entry = Entry(door, address, site)
        entry.rules = rules
        bound = msgspec.structs.replace(principal, entry=entry)
        if len(self._bound) >= _MAX_BOUND:
            self._bound.clear()
        self._bound[key] = principal, rules, bound  # keeps both, so that their ids stay their own
        return bound

    def bind_call(self, call: Call) -> Call:
        auth, reported = call.auth, call.on_behalf_of
        if self.policy is None and not has_rules(auth):
            return call
        entry = auth.entry or _NO_ENTRY
        behalf = (reported.principal_id or "") if reported else ""
        bound = self.bind(auth, entry.door, entry.address, entry.site, behalf)
        return call if bound is auth else msgspec.structs.replace(call, auth=bound)


_NO_ENTRY = Entry()
_NO_RULES: RuleSet | None = None
