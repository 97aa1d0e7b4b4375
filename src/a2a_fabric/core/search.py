"""Full-text search for agents: stemming, an inverted index, and a pure ranking with reasons.

`translateText`, `translate-text` and "Translating texts" have the same stems. Scripts without
spaces between words are read two characters at a time.

A word counts by how rare it is and by where it occurs: a whole name more than a word of a name,
that more than a tag or a trigger, and a description least. An agent scores 100 if its names
contain the whole query. Each trust tier has its own index, so agents that a caller may not see
neither cost anything nor influence the scores.

Why not a library: over 10,000 agents a search with its total takes 6 ms here, 17 ms in SQLite
FTS5 and 0.2 ms in bm25s. But bm25s brings 76 MB of packages, 0.25 s of import, and rebuilds its
index for a second when one agent changes (5 ms here). Neither of them can weigh words by the
agents that one caller may see, or say why an agent was found."""

from __future__ import annotations

import math
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain, islice
from operator import attrgetter, neg
from typing import Literal, NamedTuple

import msgspec

from a2a_fabric.core.agent import Manifest, TrustTier, normalize_name

_CAMEL_CASE = re.compile(r"[a-z0-9][A-Z]")
_CAMEL_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = re.compile(r"[^\W_]+")
_LOWER_ASCII_WORDS = "".join(chr(code).lower() if chr(code).isalnum() else " " for code in range(128))
# On the word families of agents' names they group like Snowball (PyStemmer), which would be a compiled dependency.
_SUFFIXES = (
    "ations", "ation", "ators", "ator", "ating", "ated", "ates", "ate",
    "ings", "ing", "ions", "ion", "ers", "er", "ors", "or", "es", "ed", "s", "e",
)  # fmt: skip
_MIN_STEM = 4  # letters that remain when a suffix is removed
_MAX_WORD = 64

# Words of a query that say nothing about what is searched for.
_STOP_WORDS = frozenset({
    "a", "an", "and", "any", "anyone", "are", "agent", "agents", "as", "at", "be", "by", "can", "could", "do",
    "does", "find", "for", "from", "get", "give", "have", "help", "how", "i", "if", "in", "is", "it", "me",
    "my", "need", "of", "on", "one", "or", "please", "show", "some", "somebody", "someone", "something", "than",
    "that", "the", "them", "then", "there", "these", "this", "to", "up", "us", "want", "we", "what", "which",
    "who", "will", "with", "would", "you", "your",
})  # fmt: skip


def stem_words(text: str) -> list[str]:
    """The stems of a text's words, in their order."""
    if not text.isascii():
        return [stem for _, stem in iter_words_and_stems(text)]
    if _CAMEL_CASE.search(text):
        text = _CAMEL_BOUNDARY.sub(" ", text)
    runs = text.translate(_LOWER_ASCII_WORDS).split()  # as `_WORD` finds them, at a tenth of the cost
    return [_stem(run[:_MAX_WORD]) for run in runs]


def parse_query(text: str) -> list[tuple[str, str]]:
    """Each word of a query as it was written, with its stem; stop words only if there are no others."""
    words_and_stems = list(dict.fromkeys(iter_words_and_stems(text)))
    significant = [(word, stem) for word, stem in words_and_stems if word not in _STOP_WORDS]
    return significant or words_and_stems


def iter_words_and_stems(text: str) -> Iterator[tuple[str, str]]:
    unaccented = text if text.isascii() else _strip_accents(text)
    for run in _WORD.findall(_CAMEL_BOUNDARY.sub(" ", unaccented)):
        word = run.casefold()[:_MAX_WORD]
        if word.isascii() or not _compile_unspaced().search(word):
            yield word, _stem(word)
        else:
            pairs = (word[at : at + 2] for at in range(max(1, len(word) - 1)))
            yield from ((pair, pair) for pair in pairs)


@cache
def _compile_unspaced() -> re.Pattern[str]:
    """Kana, Han and Hangul. Compiled for the first word that is not ASCII: such a class takes a while."""
    return re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]")


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= _MIN_STEM:
            return word[: -len(suffix)]
    return word


def _strip_accents(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text)
    return unicodedata.normalize("NFC", "".join(each for each in decomposed if not unicodedata.combining(each)))


SearchField = Literal["agent_id", "display_name", "capability", "trigger", "signal", "role", "tag", "description"]
Posting = dict[str, float]

NAME_FIELDS: frozenset[SearchField] = frozenset({"agent_id", "display_name", "capability"})
MAX_HEAD = 1000  # agents that are considered for one word
NO_POSTING: Posting = {}

_WEIGHTS: dict[SearchField, float] = {
    "agent_id": 0.8, "display_name": 0.8, "capability": 0.8, "trigger": 0.7, "signal": 0.7, "role": 0.7, "tag": 0.7,
    "description": 0.4,
}  # fmt: skip
_REPEAT_BONUS, _MAX_WEIGHT = 0.05, 0.95  # for each further occurrence, and in total
_MAX_PREFIX_MATCHES = 64
_MAX_TEXT = 4000
_MAX_CAPABILITIES = 1000


class IndexEntry(NamedTuple):
    """One agent in the index: the weight of each stem, and the values that filters compare."""

    weights: Posting
    names: set[str]  # whole names, as stems
    capabilities: set[str]
    tags: set[str]


class TierIndex:
    """The agents of one trust tier."""

    def __init__(self) -> None:
        self.agents: set[str] = set()
        self.postings: dict[str, Posting] = {}
        self.names: dict[str, set[str]] = {}
        self.capabilities: dict[str, set[str]] = {}
        self.tags: dict[str, set[str]] = {}
        self._heads_by_stem: dict[str, Posting] = {}
        self._vocabulary: list[str] | None = None

    def add(self, agent_id: str, entry: IndexEntry) -> None:
        self.agents.add(agent_id)
        for stem, weight in entry.weights.items():
            if stem not in self.postings:
                self.postings[stem] = {}
                self._vocabulary = None
            self.postings[stem][agent_id] = weight
            self._heads_by_stem.pop(stem, None)
        for table, keys in self._iter_facets(entry):
            for key in keys:
                table.setdefault(key, set()).add(agent_id)

    def remove(self, agent_id: str, entry: IndexEntry) -> None:
        self.agents.discard(agent_id)
        for stem in entry.weights:
            self._heads_by_stem.pop(stem, None)
            del self.postings[stem][agent_id]
            if not self.postings[stem]:
                del self.postings[stem]
                self._vocabulary = None
        for table, keys in self._iter_facets(entry):
            for key in keys:
                table[key].discard(agent_id)
                if not table[key]:
                    del table[key]

    def find_head(self, stem: str) -> Posting:
        """The agents that have a word, limited to those for which it counts most."""
        posting = self.postings.get(stem, NO_POSTING)
        if len(posting) <= MAX_HEAD:
            return posting
        if stem not in self._heads_by_stem:
            best = sorted(posting, key=posting.__getitem__, reverse=True)[:MAX_HEAD]
            self._heads_by_stem[stem] = dict(zip(best, map(posting.__getitem__, best), strict=True))
        return self._heads_by_stem[stem]

    def find_prefixed(self, stem: str) -> list[str]:
        if self._vocabulary is None:
            self._vocabulary = sorted(self.postings)
        start = bisect_left(self._vocabulary, stem)
        return [word for word in self._vocabulary[start : start + _MAX_PREFIX_MATCHES] if word.startswith(stem)]

    def _iter_facets(self, entry: IndexEntry) -> Iterator[tuple[dict[str, set[str]], set[str]]]:
        yield self.names, entry.names
        yield self.capabilities, entry.capabilities
        yield self.tags, entry.tags


def iter_texts(manifest: Manifest) -> Iterator[tuple[SearchField, str]]:
    yield "agent_id", manifest.agent_id
    yield "display_name", manifest.display_name
    yield from (("tag", tag) for tag in manifest.tags)
    if manifest.role:
        yield "role", manifest.role
    yield from (("signal", signal) for signal in manifest.signals)
    yield "description", manifest.description
    for capability in manifest.capabilities[:_MAX_CAPABILITIES]:
        yield "capability", capability.name
        yield from (("trigger", trigger) for trigger in capability.triggers)
        yield "description", capability.description


def build_entry(manifest: Manifest) -> IndexEntry:
    """A word that occurs in several texts counts a little more."""
    weights: Posting = {}
    names: set[str] = set()
    for field, text in iter_texts(manifest):
        stems, weight = stem_words(text[:_MAX_TEXT]), _WEIGHTS[field]
        if field in NAME_FIELDS and stems:
            names.add(" ".join(stems))
        for stem in set(stems):
            previous = weights.get(stem)
            weights[stem] = weight if previous is None else min(_MAX_WEIGHT, max(previous, weight) + _REPEAT_BONUS)
    return IndexEntry(
        weights,
        names,
        {normalize_name(capability.name) for capability in manifest.capabilities},
        {tag.casefold() for tag in manifest.tags},
    )


MatchKind = Literal["whole name", "word", "beginning", "filter"]
QueryWord = tuple[str, str]  # as it was written, and its stem

_PREFIX_FACTOR = 0.6  # of the weight that the whole word would have
_MIN_PREFIX = 3
_RARE_COUNT = 50  # agents; a word that fewer agents have also matches longer words
_MAX_CANDIDATES = 10_000
_OFFLINE_FACTOR = 0.5  # of its score, for an agent that is offline
_MAX_QUERY_WORDS = 16
_MAX_SHOWN = 200  # characters of a text in a reason
_RANKED_PER_STEP = 64
_SORTED_PER_STEP = 1000
_STRIDE = 5000  # unchanged agents that one step of an update passes


class SearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """An empty filter matches all agents, one with several values any. `after` is the last hit already shown."""

    text: str = ""
    capabilities: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    tiers: tuple[TrustTier, ...] = ("local", "org", "public")
    limit: int = 10
    after: tuple[float, str] | None = None


class MatchReason(msgspec.Struct, frozen=True, kw_only=True):
    """A word of the query as it was written, and the text of the agent that matches it."""

    word: str
    field: SearchField
    value: str
    how: MatchKind


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    manifest: Manifest
    rank: float  # between 0 and 1; the score is its percentage
    reasons: tuple[MatchReason, ...]
    is_offline: bool = False

    @property
    def score(self) -> int:
        return min(100, max(1, round(100 * self.rank)))

    @property
    def capabilities(self) -> list[str]:
        """The capabilities that matched."""
        return list(dict.fromkeys(each.value for each in self.reasons if each.field == "capability"))


class AgentSearchResult(msgspec.Struct, frozen=True, kw_only=True):
    hits: tuple[SearchHit, ...]
    total: int
    has_more: bool


class _Term(NamedTuple):
    """One stem in one tier: the agents that have it, and those of them that are considered for it."""

    posting: Posting
    head: Posting


class SearchIndex:
    """An index of a catalog's agents; an update reads only those that changed."""

    def __init__(self) -> None:
        self._manifests: dict[str, Manifest] = {}
        self._tier_indexes: dict[TrustTier, TierIndex] = {
            "local": TierIndex(),
            "org": TierIndex(),
            "public": TierIndex(),
        }

    def __len__(self) -> int:
        return len(self._manifests)

    def update(self, agents: Sequence[Manifest]) -> Generator[None]:
        """Update in small steps; between two of them the index can be read."""
        for agent_id in self._manifests.keys() - set(map(attrgetter("agent_id"), agents)):
            self._remove(agent_id)
            yield
        for number, manifest in enumerate(agents, 1):
            indexed = self._manifests.get(manifest.agent_id)
            if indexed is not manifest and indexed != manifest:
                if indexed is not None:
                    self._remove(manifest.agent_id)
                self._manifests[manifest.agent_id] = manifest
                self._tier_indexes[manifest.access_tier].add(manifest.agent_id, build_entry(manifest))
                yield
            elif number % _STRIDE == 0:
                yield

    def _remove(self, agent_id: str) -> None:
        manifest = self._manifests.pop(agent_id)
        self._tier_indexes[manifest.access_tier].remove(agent_id, build_entry(manifest))

    def find(self, query: SearchQuery, offline: Collection[str] = ()) -> AgentSearchResult:
        """As `find_in_steps`, at once."""
        steps = self.find_in_steps(query, offline)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: AgentSearchResult = end.value
                return result

    def find_in_steps(
        self, query: SearchQuery, offline: Collection[str] = ()
    ) -> Generator[None, None, AgentSearchResult]:
        """The best agents first; `offline` ones are ranked lower. Between two steps the index may be updated."""
        words = parse_query(query.text)[:_MAX_QUERY_WORDS]
        indexes = [self._tier_indexes[tier] for tier in query.tiers]
        allowed = _apply_filters(indexes, query)
        yield
        ranks = (
            (yield from _rank_agents(indexes, words, allowed))
            if words
            else dict.fromkeys(_all_candidates(indexes, allowed), 1.0)
        )
        for number, agent_id in enumerate(ranks.keys() & offline):
            ranks[agent_id] *= _OFFLINE_FACTOR
            if number % _RANKED_PER_STEP == 0:
                yield
        page, hits = (yield from _select_page(ranks, query)), list[SearchHit]()
        for rank, agent_id in page[: query.limit]:
            yield
            manifest = self._manifests.get(agent_id)
            if manifest is not None:  # else it has just left
                reasons = tuple(_explain_match(manifest, words, query))
                hits.append(SearchHit(manifest=manifest, rank=-rank, reasons=reasons, is_offline=agent_id in offline))
        return AgentSearchResult(hits=tuple(hits), total=len(ranks), has_more=bool(hits) and len(page) > query.limit)


def _rank_agents(
    indexes: Sequence[TierIndex], words: Sequence[QueryWord], allowed: set[str] | None
) -> Generator[None, None, dict[str, float]]:
    """A rank between 0 and 1 for each agent that has any of the words; a rare word counts more."""
    agent_count = sum(len(index.agents) for index in indexes)
    terms_by_stem = {stem: _find_terms(indexes, stem) for stem in dict.fromkeys(stem for _, stem in words)}
    sizes = {stem: sum(len(term.posting) for term in terms) for stem, terms in terms_by_stem.items()}
    weights = {stem: 1.0 + (math.log(agent_count / size) if size else 0.0) for stem, size in sizes.items()}
    total_weight = sum(weights.values())
    ranks: dict[str, float] = {}
    for at, index in enumerate(indexes):
        terms = {stem: tier_terms[at] for stem, tier_terms in terms_by_stem.items()}
        for number, agent_id in enumerate(_select_candidates(list(terms.values()), allowed)):
            if number % _RANKED_PER_STEP == 0:
                yield
            rank = sum(term.posting.get(agent_id, 0.0) * weights[stem] for stem, term in terms.items())
            if rank:
                ranks[agent_id] = min(1.0, rank / total_weight)
        for agent_id in islice(index.names.get(" ".join(stem for _, stem in words), ()), MAX_HEAD):
            if allowed is None or agent_id in allowed:
                ranks[agent_id] = 1.0
    return ranks


def _select_candidates(terms: Sequence[_Term], allowed: set[str] | None) -> Collection[str]:
    """The best agents for each word, and all that have both of the rarest words, unless those are too many."""
    if allowed is not None and len(allowed) <= _MAX_CANDIDATES:
        return allowed  # a set of this query alone, as all that is returned here
    candidates = set[str]().union(*(term.head for term in terms))
    rarest = sorted((term.posting for term in terms), key=len)[:2]
    if len(rarest) == 2 and len(rarest[0]) <= _MAX_CANDIDATES:
        candidates |= rarest[0].keys() & rarest[1].keys()
    return candidates if allowed is None else candidates & allowed


def _find_terms(indexes: Sequence[TierIndex], stem: str) -> list[_Term]:
    """The agents of each tier that have the word; if they are few, also those with a longer word."""
    exact = [_Term(index.postings.get(stem, NO_POSTING), index.find_head(stem)) for index in indexes]
    if len(stem) < _MIN_PREFIX or sum(len(term.posting) for term in exact) >= _RARE_COUNT:
        return exact
    return [_Term(posting, posting) for posting in (_match_prefix(index, stem) for index in indexes)]


def _match_prefix(index: TierIndex, stem: str) -> Posting:
    posting: Posting = {}
    for word in index.find_prefixed(stem):
        share = 1.0 if word == stem else _PREFIX_FACTOR
        for agent_id, weight in index.find_head(word).items():
            posting[agent_id] = max(posting.get(agent_id, 0.0), weight * share)
    return posting


def _select_page(ranks: dict[str, float], query: SearchQuery) -> Generator[None, None, list[tuple[float, str]]]:
    """The hits of this page, and one more if there is another page."""
    ranked: Iterable[tuple[float, str]] = zip(map(neg, ranks.values()), ranks, strict=True)
    if query.after is not None:
        ranked = filter((-query.after[0], query.after[1]).__lt__, ranked)
    page: list[tuple[float, str]] = []
    while part := list(islice(ranked, _SORTED_PER_STEP)):
        page = sorted(page + part)[: query.limit + 1]
        yield
    return page


def _apply_filters(indexes: Sequence[TierIndex], query: SearchQuery) -> set[str] | None:
    """The agents that pass the filters; None if there is no filter."""
    sets: list[set[str]] = []
    if query.capabilities:
        names = {normalize_name(name) for name in query.capabilities}
        sets.append(set().union(*(index.capabilities.get(name, ()) for index in indexes for name in names)))
    if query.tags:
        tags = {tag.casefold() for tag in query.tags}
        sets.append(set().union(*(index.tags.get(tag, ()) for index in indexes for tag in tags)))
    return set.intersection(*sets) if sets else None


def _all_candidates(indexes: Sequence[TierIndex], allowed: set[str] | None) -> Iterable[str]:
    return allowed if allowed is not None else chain.from_iterable(index.agents for index in indexes)


def _explain_match(manifest: Manifest, words: Sequence[QueryWord], query: SearchQuery) -> Iterator[MatchReason]:
    """Each word once for each field."""
    for name in query.capabilities:
        if (capability := manifest.find_capability(name)) is not None:
            yield MatchReason(word=name, field="capability", value=capability.name, how="filter")
    tags = {tag.casefold() for tag in query.tags}
    yield from (
        MatchReason(word=tag, field="tag", value=tag, how="filter") for tag in manifest.tags if tag.casefold() in tags
    )
    whole_query = " ".join(stem for _, stem in words)
    reported: set[tuple[str, str, str]] = set()
    for field, text in iter_texts(manifest) if words else ():
        stems = stem_words(text[:_MAX_TEXT])
        if field in NAME_FIELDS and " ".join(stems) == whole_query:
            yield MatchReason(
                word=query.text.strip()[:_MAX_SHOWN], field=field, value=text[:_MAX_SHOWN], how="whole name"
            )
            continue
        for word, stem in words:
            match_kind = _classify_match(stems, stem)
            key = (word, field, text if field == "capability" else "")
            if match_kind is not None and key not in reported:
                reported.add(key)
                yield MatchReason(word=word, field=field, value=text[:_MAX_SHOWN], how=match_kind)


def _classify_match(stems: Collection[str], stem: str) -> MatchKind | None:
    if stem in stems:
        return "word"
    if len(stem) >= _MIN_PREFIX and any(each.startswith(stem) for each in stems):
        return "beginning"
    return None
