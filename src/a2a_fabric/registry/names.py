"""Which names a registered agent may not have: those reserved on this node, and those that look like another's.

A caller who reads `percy` in a list trusts the operator that it is percy. So an agent
that registers by itself gets neither the id of a caller (a key, a token of an issuer),
nor the node's own, nor one that could be taken for that of an agent which the operator
declared or another owner registered. What counts as alike says `core.lookalike`.

The operator's own registrations are never refused for their looks. The holder of a key may
register an agent under the very id of the key: both have the same owner, and so one inbox.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import Conflict
from a2a_fabric.core.job import owner_of
from a2a_fabric.core.lookalike import forms_of
from a2a_fabric.core.policy import is_visible

# Names of ours: the node in lists and logs, and callers who show no key or started the node themselves.
ALWAYS = ("fabric", "a2a-fabric", "anonymous", "operator", "stdio", "psk")
_DIRECTORY_ID = "directory_id"  # in the metadata: an id that is no plain name, as the directory shows it

# Which names of another agent must not be imitated: none, its id, or its display name, too. Of agents that callers
# registered only the ids count: any caller may have a "Weather".
Likeness = Literal["free", "id", "all"]
Found = tuple[str, Manifest]


class ReservedNames:
    """`keys` are the ids of callers with a key, `issuers` of those whose callers are called `ISSUER:SUBJECT`."""

    def __init__(self, *, keys: Iterable[str] = (), issuers: Iterable[str] = (), others: Iterable[str] = ()) -> None:
        issuers = tuple(issuers)
        self._forms = _forms([*keys, *issuers, *others, *ALWAYS])
        self._prefixes = _forms([*issuers, "psk"])

    def holds(self, name: str, owner: str) -> bool:
        """Whether nobody but the key of that very name may be called so."""
        if owner == f"psk:{name}":
            return False
        prefix, colon, _ = name.partition(":")
        is_subject = bool(colon) and not self._prefixes.isdisjoint(forms_of(prefix))
        return is_subject or not self._forms.isdisjoint(forms_of(name))


class TakenNames:
    """The names of all known agents by their forms, kept up as agents come and go."""

    def __init__(self) -> None:
        self._known: dict[str, Manifest] = {}
        self._ids: dict[str, dict[str, Manifest]] = {}
        self._display_names: dict[str, dict[str, Manifest]] = {}

    def follow(self, manifests: Iterable[Manifest]) -> None:
        """These and no others; of two with the same id the first."""
        wanted: dict[str, Manifest] = {}
        for manifest in manifests:
            wanted.setdefault(manifest.agent_id, manifest)
        for agent_id, known in list(self._known.items()):
            if wanted.get(agent_id) is not known:
                self._change(known, add=False)
        for agent_id, manifest in wanted.items():
            if agent_id not in self._known:
                self._change(manifest, add=True)

    def find_lookalike(self, manifest: Manifest, judge: Callable[[Manifest], Likeness]) -> Found | None:
        """The field of the manifest whose value looks like the name of an agent that counts, and that agent."""
        named = [("agent_id", name) for name in _ids_of(manifest)]
        for field, name in (*named, ("display_name", manifest.display_name)):
            for form in forms_of(name):
                for other in self._ids.get(form, {}).values():
                    if other.agent_id != manifest.agent_id and judge(other) != "free":
                        return field, other
                for other in self._display_names.get(form, {}).values():
                    if other.agent_id != manifest.agent_id and judge(other) == "all":
                        return field, other
        return None

    def _change(self, manifest: Manifest, *, add: bool) -> None:
        agent_id = manifest.agent_id
        names = [(self._ids, name) for name in _ids_of(manifest)]
        for index, name in (*names, (self._display_names, manifest.display_name)):
            for form in forms_of(name):
                here = index.setdefault(form, {})
                if add:
                    here[agent_id] = manifest
                else:
                    here.pop(agent_id, None)
                if not here:
                    del index[form]
        if add:
            self._known[agent_id] = manifest
        else:
            del self._known[agent_id]


def refuse_reserved_name(manifest: Manifest, principal: Principal, reserved: ReservedNames) -> None:
    """Raises Conflict."""
    owner = owner_of(principal)
    for field, name in (
        *(("agent_id", name) for name in _ids_of(manifest)),
        ("display_name", manifest.display_name),
    ):
        if reserved.holds(name, owner):
            raise refusal(manifest, field, None, principal)


def refusal(manifest: Manifest, field: str, other: Manifest | None, principal: Principal) -> Conflict:
    """Names the other agent only to a caller who may know of it."""
    what = "id" if field == "agent_id" else "display name"
    name = manifest.agent_id if field == "agent_id" else manifest.display_name
    if other is not None and is_visible(principal, other):
        why = f"looks like agent '{other.agent_id}'"
    else:
        why = "is reserved on this node, or looks like a name that is"
    return Conflict(f"The {what} '{name[:128]}' {why}: choose another one", agent_id=manifest.agent_id, field=field)


def is_reserved(manifest: Manifest, owner: str, reserved: ReservedNames) -> bool:
    return any(reserved.holds(name, owner) for name in (*_ids_of(manifest), manifest.display_name))


def _ids_of(manifest: Manifest) -> list[str]:
    shown = manifest.metadata.get(_DIRECTORY_ID)
    return [manifest.agent_id, shown] if isinstance(shown, str) else [manifest.agent_id]


def _forms(names: Iterable[str]) -> frozenset[str]:
    return frozenset(form for name in names for form in forms_of(name))
