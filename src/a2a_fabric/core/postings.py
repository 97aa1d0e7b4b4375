"""The words of agents turned around: from a word to the agents that have it, and how much it counts there.

A whole name counts most, a word of a name more than a tag or a trigger, and a description
least. What `core.search` ranks is read from here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Literal, NamedTuple

from a2a_fabric.core.agent import Manifest, fold
from a2a_fabric.core.words import roots

Field = Literal["agent_id", "display_name", "capability", "trigger", "tag", "description"]
Posting = dict[str, float]

NAMES: frozenset[Field] = frozenset({"agent_id", "display_name", "capability"})
HEAD = 1000  # agents that are looked at for the sake of one word
NOBODY: Posting = {}

_WEIGHTS: dict[Field, float] = {
    "agent_id": 0.8, "display_name": 0.8, "capability": 0.8, "trigger": 0.7, "tag": 0.7, "description": 0.4,
}  # fmt: skip
_MORE, _MOST = 0.05, 0.95  # for each further place, and altogether
_BEGINNINGS = 64
_LONGEST_TEXT = 4000
_MOST_CAPABILITIES = 1000


class Entry(NamedTuple):
    """One agent as the index sees it: the weight of each of its words, and what it is filtered by."""

    weights: Posting
    names: set[str]  # whole ones
    capabilities: set[str]
    tags: set[str]


class Shelf:
    """The agents of one trust tier."""

    def __init__(self) -> None:
        self.agents: set[str] = set()
        self.words: dict[str, Posting] = {}
        self.names: dict[str, set[str]] = {}
        self.capabilities: dict[str, set[str]] = {}
        self.tags: dict[str, set[str]] = {}
        self._heads: dict[str, Posting] = {}
        self._vocabulary: list[str] | None = None

    def put(self, agent_id: str, entry: Entry) -> None:
        self.agents.add(agent_id)
        for root, weight in entry.weights.items():
            if root not in self.words:
                self.words[root] = {}
                self._vocabulary = None
            self.words[root][agent_id] = weight
            self._heads.pop(root, None)
        for table, keys in self._facets(entry):
            for key in keys:
                table.setdefault(key, set()).add(agent_id)

    def take(self, agent_id: str, entry: Entry) -> None:
        self.agents.discard(agent_id)
        for root in entry.weights:
            self._heads.pop(root, None)
            del self.words[root][agent_id]
            if not self.words[root]:
                del self.words[root]
                self._vocabulary = None
        for table, keys in self._facets(entry):
            for key in keys:
                table[key].discard(agent_id)
                if not table[key]:
                    del table[key]

    def head(self, root: str) -> Posting:
        """Of those that have a word, the ones in which it counts most."""
        posting = self.words.get(root, NOBODY)
        if len(posting) <= HEAD:
            return posting
        if root not in self._heads:
            buckets: dict[float, list[str]] = {}
            for agent_id, weight in posting.items():
                buckets.setdefault(weight, []).append(agent_id)
            best = [
                (agent_id, weight) for weight in sorted(buckets, reverse=True) for agent_id in buckets[weight][:HEAD]
            ]
            self._heads[root] = dict(best[:HEAD])
        return self._heads[root]

    def beginning(self, root: str) -> list[str]:
        if self._vocabulary is None:
            self._vocabulary = sorted(self.words)
        start = bisect_left(self._vocabulary, root)
        return [word for word in self._vocabulary[start : start + _BEGINNINGS] if word.startswith(root)]

    def _facets(self, entry: Entry) -> Iterator[tuple[dict[str, set[str]], set[str]]]:
        yield self.names, entry.names
        yield self.capabilities, entry.capabilities
        yield self.tags, entry.tags


def texts_of(manifest: Manifest) -> Iterator[tuple[Field, str]]:
    yield "agent_id", manifest.agent_id
    yield "display_name", manifest.display_name
    yield from (("tag", tag) for tag in manifest.tags)
    yield "description", manifest.description
    for capability in manifest.capabilities[:_MOST_CAPABILITIES]:
        yield "capability", capability.name
        yield from (("trigger", trigger) for trigger in capability.triggers)
        yield "description", capability.description


def entry_of(manifest: Manifest) -> Entry:
    """A word that stands in several places counts a little more."""
    weights: Posting = {}
    names: set[str] = set()
    for field, text in texts_of(manifest):
        own, weight = words_in(text), _WEIGHTS[field]
        if field in NAMES and own:
            names.add(" ".join(own))
        for root in set(own):
            known = weights.get(root)
            weights[root] = weight if known is None else min(_MOST, max(known, weight) + _MORE)
    return Entry(
        weights,
        names,
        {fold(capability.name) for capability in manifest.capabilities},
        {tag.casefold() for tag in manifest.tags},
    )


def words_in(text: str) -> list[str]:
    """Their roots, as far as a text is read."""
    return roots(text[:_LONGEST_TEXT])
