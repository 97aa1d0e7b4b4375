"""Tool names that every model behind an MCP client takes, and that nobody else's coming or going changes.

The canonical names are dotted, and most model APIs refuse dots; one bad name hides
a whole list. So a tool is listed as lower-case letters, digits and underscores, at
most 48 of them, starting with a letter. Names that are alike but for underscores
count as the same: whoever comes second gets a short tail, made from what it is, and
whoever has a name keeps it.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Hashable, Mapping
from typing import TypeVar

LONGEST = 48

_TAIL = 6  # hexadecimal digits
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ELSE = re.compile(r"[^a-z0-9]+")

Key = TypeVar("Key", bound=Hashable)


def safe(words: str) -> str:
    """`percy.parse-Recipe` as `percy_parse_recipe`; as long as the words are."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", words) if not unicodedata.combining(c))
    name = _ELSE.sub("_", _CAMEL.sub("_", plain).lower()).strip("_")
    return name if name[:1].isalpha() else f"t_{name}".rstrip("_")


def fold(name: str) -> str:
    """Two names with the same fold are too much alike."""
    return name.replace("_", "")


def assign(wanted: Mapping[Key, str], known: Mapping[Key, str]) -> dict[Key, str]:
    """A name for each key from its words; `known` are the names given before, which stay.

    Newcomers are served in an order of their own, so that two nodes that meet the
    same agents give the same names.
    """
    names = {key: known[key] for key in wanted if key in known}
    taken = {fold(name) for name in known.values()}
    newcomers = [(words, str(key), key) for key, words in wanted.items() if key not in known]
    for words, text, key in sorted(newcomers, key=lambda each: (_is_bent(each[0]), *each[:2])):
        names[key] = name = _free(safe(words), text, taken)
        taken.add(fold(name))
    return {key: names[key] for key in wanted}


def assign_in_order(first: Mapping[Key, str], others: Mapping[Key, str], known: Mapping[Key, str]) -> dict[Key, str]:
    """Names for both, of which `first` have the first choice: they take a name even from another that has it already.

    So a tool of an agent that the operator declared has the same name whichever agents register themselves.
    """
    given = assign(first, {key: name for key, name in known.items() if key in first})
    taken = {fold(name) for name in given.values()}
    left = {key: name for key, name in known.items() if key not in given and fold(name) not in taken}
    return {**given, **assign(others, {**left, **given})}


def remembered(names: Mapping[Key, str], known: Mapping[Key, str], spare: int = 10_000) -> dict[Key, str]:
    """`names`, and those of agents that left and may come back, as long as there is room for them."""
    gone = [key for key in known if key not in names]
    kept = {key: known[key] for key in gone[max(0, len(gone) - spare) :]}
    return {**kept, **names}


def _is_bent(words: str) -> bool:
    """Whether the safe name says less than the words did; such a one gives way to one that says all."""
    return safe(words) != words.replace(".", "_")


def _free(name: str, key: str, taken: set[str]) -> str:
    if len(name) <= LONGEST and fold(name) not in taken:
        return name
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    for digits in range(_TAIL, LONGEST - 1):
        tailed = f"{name[: LONGEST - digits - 1].rstrip('_')}_{digest[:digits]}"
        if fold(tailed) not in taken:
            return tailed
    raise AssertionError("two tools have the same hash")
