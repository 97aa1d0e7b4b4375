"""Scopes: what credentials allow, decided purely.

A scope is `*`, or a kind and a name such as `agent:percy`; a name that ends with `*` is a prefix. `scp` is what the
credentials allow, `cap` narrows it; a list that is None limits nothing, an empty one allows nothing."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from a2a_fabric.core.agent import normalize_name

ALL_SCOPES = "*"
METRICS_SCOPE = "metrics"
REGISTER_SCOPE = "register"
# The part of a scope before the colon.
SCOPE_KINDS = (
    "agent", "tool", "capability", REGISTER_SCOPE, "message", "inbox", "topic", "publish", "subscribe", "console",
)  # fmt: skip
# Scopes without a name. Other kinds need one: tokens of other issuers use such words for their own ends.
_NAMELESS_SCOPES = (METRICS_SCOPE, REGISTER_SCOPE)
_COVERING_KINDS = {"publish": ("publish", "topic"), "subscribe": ("subscribe", "topic")}


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

    def covers(self, other: ScopeSet) -> bool:
        """Whether it allows all that the other one allows."""
        if self.allows_all:
            return True
        if other.allows_all:
            return False
        return all(
            any(self.grants(kind, name) for kind in _COVERING_KINDS.get(each, (each,)))
            for each, names in other.names.items()
            for name in names
        ) and all(
            any(prefix.startswith(self.prefixes.get(kind, ())) for kind in _COVERING_KINDS.get(each, (each,)))
            for each, prefixes in other.prefixes.items()
            for prefix in prefixes
        )

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


def covers_scopes(scopes: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether the scopes allow all that the others allow. An unknown scope among the others counts as more."""
    return all(map(is_known_scope, others)) and parse_scopes(scopes).covers(parse_scopes(others))


def scopes_from_cap(entries: Iterable[str]) -> tuple[str, ...]:
    """The scopes that a `cap` claim names: scopes as they are, and plain names of capabilities."""
    return tuple(entry if is_known_scope(entry) else f"capability:{entry}" for entry in entries if entry)


def split_scope(scope: str) -> tuple[str, str]:
    kind, _, name = scope.partition(":")
    return kind, normalize_name(name) if kind == "capability" else name
