"""Which agents fit a question, how well, and why: an inverted index, and a pure ranking on it.

A word counts by how rare it is and by where it stands: a whole name more than a word of
a name, that more than a tag or a trigger, and a description least. 100 is an agent that
has all that was asked in its names. Agents of each trust tier are indexed apart, so what a
caller may not see neither costs anything nor shows in the scores.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple

import msgspec

from a2a_fabric.core.agent import Manifest, TrustTier, fold
from a2a_fabric.core.postings import HEAD, NAMES, NOBODY, Field, Posting, Shelf, entry_of, texts_of, words_in
from a2a_fabric.core.words import asked

How = Literal["whole name", "word", "beginning", "filter"]
Word = tuple[str, str]  # as it was spelled, and its root

_BEGINNING = 0.6  # of what the whole word would count
_SHORTEST_BEGINNING = 3
_RARE = 50  # agents; of a word that so few have, longer words count too
_FEW = 10_000
_AWAY = 0.5  # of its score is left to an agent that is offline
_MOST_WORDS = 16
_SHOWN = 200  # characters of a text that has a word
_STRIDE = 5000  # agents that have not changed, in one step


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is empty does not narrow; of several of a kind any will do. `after` is the last hit that is known."""

    text: str = ""
    capabilities: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    tiers: tuple[TrustTier, ...] = ("local", "org", "public")
    limit: int = 10
    after: tuple[float, str] | None = None


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """`word` as it was asked, and the name or text of the agent that has it."""

    word: str
    field: Field
    value: str
    how: How


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    manifest: Manifest
    rank: float  # between 0 and 1; the score is its percentage
    reasons: tuple[Reason, ...]
    is_away: bool = False

    @property
    def score(self) -> int:
        return min(100, max(1, round(100 * self.rank)))

    @property
    def capabilities(self) -> list[str]:
        """Those that were found, to be called."""
        return list(dict.fromkeys(each.value for each in self.reasons if each.field == "capability"))


class Found(msgspec.Struct, frozen=True, kw_only=True):
    hits: tuple[Hit, ...]
    total: int
    has_more: bool


class _Term(NamedTuple):
    """A word of the question on one shelf: who has it, and those of them who are looked at for its sake."""

    posting: Posting
    head: Posting


class SearchIndex:
    """Follows the agents of a catalog: only what is else than before is read again."""

    def __init__(self) -> None:
        self._known: dict[str, Manifest] = {}
        self._shelves: dict[TrustTier, Shelf] = {"local": Shelf(), "org": Shelf(), "public": Shelf()}

    def __len__(self) -> int:
        return len(self._known)

    def follow(self, agents: Sequence[Manifest]) -> Iterator[None]:
        """Do what is to do in small steps; between two of them the index may be read."""
        here = {manifest.agent_id for manifest in agents}
        for agent_id in [agent_id for agent_id in self._known if agent_id not in here]:
            self._forget(agent_id)
        for number, manifest in enumerate(agents, 1):
            known = self._known.get(manifest.agent_id)
            if known is not manifest and known != manifest:
                if known is not None:
                    self._forget(manifest.agent_id)
                self._known[manifest.agent_id] = manifest
                self._shelves[manifest.trust_tier].put(manifest.agent_id, entry_of(manifest))
                yield
            elif number % _STRIDE == 0:
                yield

    def _forget(self, agent_id: str) -> None:
        manifest = self._known.pop(agent_id)
        self._shelves[manifest.trust_tier].take(agent_id, entry_of(manifest))

    def find(self, wanted: Wanted, away: Collection[str] = ()) -> Found:
        """The best first; those that are `away` come later than they would."""
        words = asked(wanted.text)[:_MOST_WORDS]
        shelves = [self._shelves[tier] for tier in wanted.tiers]
        fitting = _fitting(shelves, wanted)
        ranks = _ranks(shelves, words, fitting) if words else dict.fromkeys(_everyone(shelves, fitting), 1.0)
        for agent_id in away:
            if agent_id in ranks:
                ranks[agent_id] *= _AWAY
        page = _page(ranks, wanted)
        hits = tuple(
            Hit(
                manifest=self._known[agent_id],
                rank=-rank,
                reasons=tuple(_reasons(self._known[agent_id], words, wanted)),
                is_away=agent_id in away,
            )
            for rank, agent_id in page[: wanted.limit]
        )
        return Found(hits=hits, total=len(ranks), has_more=len(page) > wanted.limit)


def _ranks(shelves: Sequence[Shelf], words: Sequence[Word], fitting: set[str] | None) -> dict[str, float]:
    """A share of 1 for each, by what each word is worth: the rarer, the more."""
    number = sum(len(shelf.agents) for shelf in shelves)
    by_root = {root: _terms(shelves, root) for root in dict.fromkeys(root for _, root in words)}
    sizes = {root: sum(len(term.posting) for term in terms) for root, terms in by_root.items()}
    worth = {root: 1.0 + (math.log(number / size) if size else 0.0) for root, size in sizes.items()}
    whole = sum(worth.values())
    ranks: dict[str, float] = {}
    for at, shelf in enumerate(shelves):
        terms = {root: found[at] for root, found in by_root.items()}
        for agent_id in _candidates(list(terms.values()), fitting):
            rank = sum(term.posting.get(agent_id, 0.0) * worth[root] for root, term in terms.items())
            if rank:
                ranks[agent_id] = min(1.0, rank / whole)
        for agent_id in islice(shelf.names.get(" ".join(root for _, root in words), ()), HEAD):
            if fitting is None or agent_id in fitting:
                ranks[agent_id] = 1.0
    return ranks


def _candidates(terms: Sequence[_Term], fitting: set[str] | None) -> Collection[str]:
    """Who is looked at: the best for each word, and all who have both of the rarest, unless those are too many."""
    if fitting is not None and len(fitting) <= _FEW:
        return fitting
    found = {agent_id for term in terms for agent_id in term.head}
    rarest = sorted((term.posting for term in terms), key=len)[:2]
    if len(rarest) == 2 and len(rarest[0]) <= _FEW:
        found |= rarest[0].keys() & rarest[1].keys()
    return found if fitting is None else found & fitting


def _terms(shelves: Sequence[Shelf], root: str) -> list[_Term]:
    """Who has the word, on each shelf; if they are few, also who has one that begins like it."""
    exact = [_Term(shelf.words.get(root, NOBODY), shelf.head(root)) for shelf in shelves]
    if len(root) < _SHORTEST_BEGINNING or sum(len(term.posting) for term in exact) >= _RARE:
        return exact
    return [_Term(found, found) for found in (_beginning(shelf, root) for shelf in shelves)]


def _beginning(shelf: Shelf, root: str) -> Posting:
    found: Posting = {}
    for word in shelf.beginning(root):
        share = 1.0 if word == root else _BEGINNING
        for agent_id, weight in shelf.head(word).items():
            found[agent_id] = max(found.get(agent_id, 0.0), weight * share)
    return found


def _page(ranks: dict[str, float], wanted: Wanted) -> list[tuple[float, str]]:
    """One more than was asked for, if there is one."""
    places: Iterable[tuple[float, str]] = ((-rank, agent_id) for agent_id, rank in ranks.items())
    if wanted.after is not None:
        last = (-wanted.after[0], wanted.after[1])
        places = (place for place in places if place > last)
    return heapq.nsmallest(wanted.limit + 1, places)


def _fitting(shelves: Sequence[Shelf], wanted: Wanted) -> set[str] | None:
    """Who passes the filters; None if there are none."""
    sets: list[set[str]] = []
    if wanted.capabilities:
        names = {fold(name) for name in wanted.capabilities}
        sets.append({agent_id for shelf in shelves for name in names for agent_id in shelf.capabilities.get(name, ())})
    if wanted.tags:
        tags = {tag.casefold() for tag in wanted.tags}
        sets.append({agent_id for shelf in shelves for tag in tags for agent_id in shelf.tags.get(tag, ())})
    return set.intersection(*sets) if sets else None


def _everyone(shelves: Sequence[Shelf], fitting: set[str] | None) -> Iterable[str]:
    return fitting if fitting is not None else (agent_id for shelf in shelves for agent_id in shelf.agents)


def _reasons(manifest: Manifest, words: Sequence[Word], wanted: Wanted) -> Iterator[Reason]:
    """Each word once for each field, at the place where it counts most."""
    for name in wanted.capabilities:
        if (capability := manifest.capability(name)) is not None:
            yield Reason(word=name, field="capability", value=capability.name, how="filter")
    tags = {tag.casefold() for tag in wanted.tags}
    yield from (
        Reason(word=tag, field="tag", value=tag, how="filter") for tag in manifest.tags if tag.casefold() in tags
    )
    whole = " ".join(root for _, root in words)
    told: set[tuple[str, str, str]] = set()
    for field, text in texts_of(manifest) if words else ():
        own = words_in(text)
        if field in NAMES and " ".join(own) == whole:
            yield Reason(word=wanted.text.strip()[:_SHOWN], field=field, value=text[:_SHOWN], how="whole name")
            continue
        for word, root in words:
            how = _how(own, root)
            key = (word, field, text if field == "capability" else "")
            if how is not None and key not in told:
                told.add(key)
                yield Reason(word=word, field=field, value=text[:_SHOWN], how=how)


def _how(own: Collection[str], root: str) -> How | None:
    if root in own:
        return "word"
    if len(root) >= _SHORTEST_BEGINNING and any(each.startswith(root) for each in own):
        return "beginning"
    return None
