"""Conclusions from statements of the forms `all X are Y`, `no X are Y` and `N is a X`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_MOST_FACTS = 200
_LONGEST = 200  # characters of one statement
_FORMS = (
    (re.compile(r"^(?:all|every|each)\s+([\w\s-]+?)\s+(?:is|are)\s+(?:an?\s+)?([\w-]+)$", re.I), True),
    (re.compile(r"^no\s+([\w\s-]+?)\s+(?:is|are)\s+(?:an?\s+)?([\w-]+)$", re.I), False),
    (re.compile(r"^([A-Z][\w-]*)\s+(?:is|was)\s+not\s+(?:an?\s+)?([\w-]+)$"), False),
    (re.compile(r"^([A-Z][\w-]*)\s+(?:is|was)\s+(?:an?\s+)?([\w-]+)$"), True),
)


class Fact(NamedTuple):
    """What `subject` is, or is not."""

    subject: str
    what: str
    holds: bool

    def __str__(self) -> str:
        return f"{self.subject} {'is' if self.holds else 'is not'} {self.what}"


def facts_in(sentences: list[str]) -> list[Fact]:
    found = []
    for sentence in sentences:
        if len(sentence) > _LONGEST:
            continue
        for form, holds in _FORMS:
            if match := form.match(sentence.strip(" .!")):
                found.append(Fact(_singular(match[1]), _singular(match[2]), holds))
                break
    return found[:_MOST_FACTS]


def conclusions(facts: list[Fact]) -> Iterator[tuple[Fact, Fact, Fact]]:
    """Each new fact with the two that it follows from: X is Y and Y is (not) Z, so X is (not) Z."""
    known = dict.fromkeys(facts)
    queue = list(facts)
    while queue and len(known) < _MOST_FACTS:
        first = queue.pop(0)
        for second in list(known):
            for a, b in ((first, second), (second, first)):
                if a.holds and a.what == b.subject and a.subject != b.what:
                    new = Fact(a.subject, b.what, b.holds)
                    if new not in known:
                        known[new] = None
                        queue.append(new)
                        yield a, b, new


def _singular(name: str) -> str:
    name = " ".join(name.split())
    lower = name if name[0].isupper() and " " not in name and not name.isupper() and len(name) > 1 else name.lower()
    if lower[0].isupper():
        return lower
    if lower in _IRREGULAR:
        return _IRREGULAR[lower]
    return (
        lower[:-1]
        if lower.endswith("s") and not lower.endswith(("ss", "us", "is", "ous")) and len(lower) > 3
        else lower
    )


_IRREGULAR = {
    "men": "man",
    "women": "woman",
    "people": "person",
    "children": "child",
    "mice": "mouse",
    "geese": "goose",
}
