"""Names that a registered agent may not have: reserved ones, and those that look like another agent's name.

A caller who reads `percy` in a list trusts the operator that it is percy. So an agent
that registers itself gets neither the id of a caller (a key, a token of an issuer) nor
the node's own id, nor one that could be mistaken for that of an agent which the operator
declared or another owner registered. `core.lookalike` defines what counts as alike.

The operator's own registrations are never refused for their names. The holder of a key may
register an agent under the id of the key: both have the same owner, and so one inbox."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.confusables import reduce_to_forms
from a2a_fabric.core.errors import Conflict
from a2a_fabric.core.job import owner_from_principal
from a2a_fabric.core.policy import is_visible

# Names of ours: the node in lists and logs, and callers who show no key or started the node themselves.
ALWAYS_RESERVED = ("fabric", "a2a-fabric", "anonymous", "operator", "stdio", "psk")
_DIRECTORY_ID = "directory_id"  # in the metadata: an id that is no plain name, as the directory shows it

# Which names of another agent must not be imitated: none, its id, or its display name, too. Of agents that callers
# registered only the ids count: any caller may have a "Weather".
LookalikeRule = Literal["free", "id", "all"]
Lookalike = tuple[str, Manifest]


class ReservedNames:
    """`keys` are the ids of callers with a key, `issuers` of those whose callers are called `ISSUER:SUBJECT`."""

    def __init__(self, *, keys: Iterable[str] = (), issuers: Iterable[str] = (), extra: Iterable[str] = ()) -> None:
        issuers = tuple(issuers)
        self._forms = _forms_of_all([*keys, *issuers, *extra, *ALWAYS_RESERVED])
        self._prefixes = _forms_of_all([*issuers, "psk"])

    def reserves(self, name: str, owner: str) -> bool:
        """Whether nobody but the key of that very name may be called so."""
        if owner == f"psk:{name}":
            return False
        prefix, colon, _ = name.partition(":")
        is_subject = bool(colon) and not self._prefixes.isdisjoint(reduce_to_forms(prefix))
        return is_subject or not self._forms.isdisjoint(reduce_to_forms(name))


class TakenNames:
    """The names of all known agents by their forms, kept up as agents come and go."""

    def __init__(self) -> None:
        self._manifests: dict[str, Manifest] = {}
        self._ids: dict[str, dict[str, Manifest]] = {}
        self._display_names: dict[str, dict[str, Manifest]] = {}

    def update(self, manifests: Iterable[Manifest]) -> None:
        """These and no others; of two with the same id the first."""
        current: dict[str, Manifest] = {}
        for manifest in manifests:
            current.setdefault(manifest.agent_id, manifest)
        for agent_id, previous in list(self._manifests.items()):
            if current.get(agent_id) is not previous:
                self._update_index(previous, add=False)
        for agent_id, manifest in current.items():
            if agent_id not in self._manifests:
                self._update_index(manifest, add=True)

    def find_lookalike(self, manifest: Manifest, rule_for: Callable[[Manifest], LookalikeRule]) -> Lookalike | None:
        """The field of the manifest whose value looks like the name of an agent that counts, and that agent."""
        ids = [("agent_id", name) for name in _ids_of(manifest)]
        for field, name in (*ids, ("display_name", manifest.display_name)):
            for form in reduce_to_forms(name):
                for existing in self._ids.get(form, {}).values():
                    if existing.agent_id != manifest.agent_id and rule_for(existing) != "free":
                        return field, existing
                for existing in self._display_names.get(form, {}).values():
                    if existing.agent_id != manifest.agent_id and rule_for(existing) == "all":
                        return field, existing
        return None

    def _update_index(self, manifest: Manifest, *, add: bool) -> None:
        agent_id = manifest.agent_id
        names = [(self._ids, name) for name in _ids_of(manifest)]
        for index, name in (*names, (self._display_names, manifest.display_name)):
            for form in reduce_to_forms(name):
                agents = index.setdefault(form, {})
                if add:
                    agents[agent_id] = manifest
                else:
                    agents.pop(agent_id, None)
                if not agents:
                    del index[form]
        if add:
            self._manifests[agent_id] = manifest
        else:
            del self._manifests[agent_id]


def refuse_reserved_name(manifest: Manifest, principal: Principal, reserved: ReservedNames) -> None:
    """Raises Conflict."""
    owner = owner_from_principal(principal)
    for field, name in (
        *(("agent_id", name) for name in _ids_of(manifest)),
        ("display_name", manifest.display_name),
    ):
        if reserved.reserves(name, owner):
            raise name_conflict(manifest, field, None, principal)


def name_conflict(manifest: Manifest, field: str, existing: Manifest | None, principal: Principal) -> Conflict:
    """Names the other agent only to a caller who may know of it."""
    field_label = "id" if field == "agent_id" else "display name"
    name = manifest.agent_id if field == "agent_id" else manifest.display_name
    if existing is not None and is_visible(principal, existing):
        reason = f"looks like agent '{existing.agent_id}'"
    else:
        reason = "is reserved on this node, or looks like a name that is"
    return Conflict(
        f"The {field_label} '{name[:128]}' {reason}: choose another one", agent_id=manifest.agent_id, field=field
    )


def is_reserved(manifest: Manifest, owner: str, reserved: ReservedNames) -> bool:
    return any(reserved.reserves(name, owner) for name in (*_ids_of(manifest), manifest.display_name))


def _ids_of(manifest: Manifest) -> list[str]:
    directory_id = manifest.metadata.get(_DIRECTORY_ID)
    return [manifest.agent_id, directory_id] if isinstance(directory_id, str) else [manifest.agent_id]


def _forms_of_all(names: Iterable[str]) -> frozenset[str]:
    return frozenset(form for name in names for form in reduce_to_forms(name))
