"""Names that a registered agent may not have: reserved ones, and those that look like another agent's name.

A caller who reads `percy` in a list trusts the operator that it is percy. So an agent
that registers itself gets neither the id of a caller (a key, a token of an issuer) nor
the node's own id, nor one that could be mistaken for that of an agent which the operator
declared or another owner registered.

The operator's own registrations are never refused for their names. The holder of a key may
register an agent under the id of the key: both have the same owner, and so one inbox.

Names that look alike: a name is reduced to its forms, and two names that share a form look
alike. The forms ignore case, accents, separators (dots, dashes, underscores, slashes, spaces;
except between two digits, because `1.10` is not `11.0`), invisible characters and
compatibility characters (full-width, mathematical and ligature letters). They treat as equal:

- Cyrillic, Greek and some further letters and the Latin ones that they look like (`_TABLE`);
- `0` and `o`; `1`, `l`, `I` and `|`; `rn` and `m`; `vv` and `w`.

This is not the full Unicode table of confusables: letters of other scripts are compared as they are."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Literal

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.errors import Conflict
from a2a_fabric.core.policy import is_visible

# Reserved names: the node in lists and logs, callers without a key, and the user who started the node.
ALWAYS_RESERVED = ("fabric", "a2a-fabric", "anonymous", "operator", "stdio", "psk")
_DIRECTORY_ID = "directory_id"  # in the metadata: an id that is no plain name, as the directory shows it

# Which names of another agent must not be imitated: none, its id, or its display name, too. Of agents that callers
# registered only the ids count: any caller may have a "Weather".
LookalikeRule = Literal["free", "id", "all"]
Lookalike = tuple[str, Manifest]


class ReservedNames:
    """`keys` are the ids of callers with a key; the callers of `issuers` are named `ISSUER:SUBJECT`."""

    def __init__(self, *, keys: Iterable[str] = (), issuers: Iterable[str] = (), extra: Iterable[str] = ()) -> None:
        self._extra = tuple(extra)
        self.set_callers(keys=keys, issuers=issuers)

    def set_callers(self, *, keys: Iterable[str], issuers: Iterable[str]) -> None:
        issuers = tuple(issuers)
        self._forms = _forms_of_all([*keys, *issuers, *self._extra, *ALWAYS_RESERVED])
        self._prefixes = _forms_of_all([*issuers, "psk"])

    def reserves(self, name: str, owner: str) -> bool:
        """Whether only the holder of the key with that name may use it."""
        if owner == f"psk:{name}":
            return False
        prefix, colon, _ = name.partition(":")
        is_subject = bool(colon) and not self._prefixes.isdisjoint(reduce_to_forms(prefix))
        return is_subject or not self._forms.isdisjoint(reduce_to_forms(name))


class TakenNames:
    """The names of all known agents by their forms, updated when agents are added or removed."""

    def __init__(self) -> None:
        self._manifests: dict[str, Manifest] = {}
        self._ids: dict[str, dict[str, Manifest]] = {}
        self._display_names: dict[str, dict[str, Manifest]] = {}

    def replace(self, agent_id: str, manifest: Manifest | None) -> set[str]:
        """This agent has these names now, or left; the forms that it has now and had not, or the reverse."""
        previous = self._manifests.get(agent_id)
        if previous is manifest:
            return set()
        before, after = self.list_forms(agent_id), set[str]()
        if previous is not None:
            self._update_index(previous, add=False)
        if manifest is not None:
            self._update_index(manifest, add=True)
            after = self.list_forms(agent_id)
        return before ^ after

    def list_forms(self, agent_id: str) -> set[str]:
        manifest = self._manifests.get(agent_id)
        if manifest is None:
            return set()
        return {form for name in (*_ids_of(manifest), manifest.display_name) for form in reduce_to_forms(name)}

    def find_sharing(self, forms: Iterable[str]) -> set[str]:
        """The ids of the agents that have one of these forms."""
        return {
            agent_id for form in forms for index in (self._ids, self._display_names) for agent_id in index.get(form, ())
        }

    def find_lookalike(self, manifest: Manifest, rule_for: Callable[[Manifest], LookalikeRule]) -> Lookalike | None:
        """The field of the manifest that imitates the name of a protected agent, and that agent."""
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


_MAX_CHARS = 512  # characters; the rest of a longer name is ignored

_LATIN_LOOKALIKES = {
    # Cyrillic
    "а": "a", "в": "b", "е": "e", "ё": "e", "з": "3", "и": "u", "і": "i", "ї": "i", "ј": "j", "к": "k", "м": "m",
    "н": "h", "о": "o", "п": "n", "р": "p", "с": "c", "т": "t", "у": "y", "ү": "y", "х": "x", "ѕ": "s", "ԁ": "d",
    "ԛ": "q", "ԝ": "w", "һ": "h", "ӏ": "l", "ь": "b", "г": "r", "ѵ": "v", "є": "e", "ғ": "f", "ԍ": "g",
    # Greek
    "α": "a", "β": "b", "γ": "y", "ε": "e", "ζ": "z", "η": "n", "ι": "i", "κ": "k", "μ": "u", "ν": "v", "ο": "o",
    "ρ": "p", "σ": "o", "ς": "c", "τ": "t", "υ": "u", "χ": "x", "ω": "w", "ϲ": "c", "ϳ": "j", "ϱ": "p",
    # Armenian, Latin and other letters that pass for plain ones
    "օ": "o", "ս": "u", "հ": "h", "ո": "n", "զ": "q", "ց": "g", "ı": "i", "ȷ": "j", "ł": "l", "ø": "o", "đ": "d",
    "ħ": "h", "ŧ": "t", "ɑ": "a", "ɡ": "g", "ɩ": "i", "ɪ": "i", "ʟ": "l", "ɴ": "n", "ʀ": "r", "ʏ": "y", "ǀ": "l",
    "ᴀ": "a", "ʙ": "b", "ᴄ": "c", "ᴅ": "d", "ᴇ": "e", "ᴊ": "j", "ᴋ": "k", "ᴍ": "m", "ᴏ": "o", "ᴘ": "p", "ᴛ": "t",
    "ᴜ": "u", "ᴠ": "v", "ᴡ": "w", "ᴢ": "z", "ꜱ": "s", "ẟ": "d", "ⅼ": "l", "∣": "l", "|": "l",
}  # fmt: skip
_TABLE = str.maketrans(_LATIN_LOOKALIKES)
# Capital letters whose lower case looks different. Letters that look like a capital I also look like an l.
_CAPITALS = str.maketrans(
    {"В": "b", "Н": "h", "Р": "p", "С": "c", "Т": "t", "У": "y", "Х": "x", "Β": "b", "Η": "h", "Μ": "m", "Ν": "n",
     "Ρ": "p", "Υ": "y", "Χ": "x", "Ζ": "z", "Σ": "e", "І": "l", "Ӏ": "l", "Ι": "l", "I": "l", "П": "n"}
)  # fmt: skip
_SEPARATOR = r"[\W_]+"
_BETWEEN_DIGITS = re.compile(rf"(?<=\d){_SEPARATOR}(?=\d)")
_OTHER_SEPARATORS = re.compile(rf"(?!\x1f){_SEPARATOR}")
_DIGIT_SEPARATOR = "\x1f"


def reduce_to_forms(name: str) -> frozenset[str]:
    """The forms of a name; two names that share one look alike. Empty for a name without letters and digits."""
    return _reduce_short(name[:_MAX_CHARS])


def find_lookalike(name: str, others: Iterable[str]) -> str | None:
    """The first of the others that looks like the name, or is the same."""
    forms = reduce_to_forms(name)
    return next((other for other in others if not forms.isdisjoint(reduce_to_forms(other))), None)


@lru_cache(maxsize=65_536)
def _reduce_short(name: str) -> frozenset[str]:
    normalized = unicodedata.normalize("NFKC", name)
    # One form in lower case, in which I is i, and one unchanged, in which I is l.
    capitals = normalized.replace("I", "l") if normalized.isascii() else normalized.translate(_CAPITALS)
    return frozenset(form for text in (normalized, capitals) if (form := _reduce(text)))


def _reduce(text: str) -> str:
    lowercase = text.casefold()
    latin = lowercase.replace("|", "l") if lowercase.isascii() else _to_latin(lowercase)
    joined = _OTHER_SEPARATORS.sub("", _BETWEEN_DIGITS.sub(_DIGIT_SEPARATOR, latin))
    return joined.replace("0", "o").replace("1", "l").replace("rn", "m").replace("vv", "w").strip(_DIGIT_SEPARATOR)


def _to_latin(text: str) -> str:
    """The text without accents and invisible characters, in the Latin letters that it looks like."""
    letters = unicodedata.normalize("NFKD", text.translate(_TABLE))
    return "".join(c for c in letters if unicodedata.category(c) not in ("Mn", "Me", "Cf")).translate(_TABLE)
