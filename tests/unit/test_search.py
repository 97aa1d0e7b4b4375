"""The ranking of agents: a pure function of an index and a question."""

from __future__ import annotations

import string
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.policy import is_visible, list_visible_tiers
from a2a_fabric.core.search import AgentSearchResult, SearchIndex, SearchQuery, parse_query, stem_words
from tests.marks import requirement
from tests.unit.made import agent

TRANSLATOR = agent(
    "polyglot",
    Capability(name="translate-text", description="Turns a text into another language.", triggers=("in German",)),
    description="Knows languages.",
    tags=("language", "text"),
)
LAWYER = agent(
    "lawyer", "review_contract", description="Reads contracts, and can translate legal words.", tags=("law",)
)
COOK = agent("cook", "parse-recipe", display_name="Recipe Reader", trust_tier="public", tags=("food",))
SECRET = agent("vault", "translate-secrets", trust_tier="local")
ALL = (TRANSLATOR, LAWYER, COOK, SECRET)


def indexed(agents: Sequence[Manifest] = ALL) -> SearchIndex:
    index = SearchIndex()
    for _ in index.update(agents):
        pass
    return index


def search(
    text: str = "", away: Collection[str] = (), agents: Sequence[Manifest] = ALL, **wanted: object
) -> AgentSearchResult:
    return indexed(agents).find(SearchQuery(text=text, **wanted), away)  # type: ignore[arg-type]


def ids(found: AgentSearchResult) -> list[str]:
    return [hit.manifest.agent_id for hit in found.hits]


@pytest.mark.parametrize(
    "spellings",
    [
        ("translateText", "translate-text", "Translating texts", "translation_text", "TRANSLATES.TEXT"),
        ("Übersetzung", "ubersetzung"),
        ("naïve", "naive"),
    ],
)
def test_words_are_the_same_whatever_joins_and_ends_them(spellings: Sequence[str]) -> None:
    assert len({tuple(stem_words(each)) for each in spellings}) == 1


def test_scripts_without_spaces_are_read_in_pairs() -> None:
    assert stem_words("翻訳する") == ["翻訳", "訳す", "する"]
    found = search("翻訳", agents=[agent("ja", description="文書を翻訳するエージェント")])
    assert ids(found) == ["ja"]


def test_empty_words_do_not_count_unless_there_are_no_others() -> None:
    assert [word for word, _ in parse_query("please find me somebody who can translate")] == ["translate"]
    assert [word for word, _ in parse_query("who can help")] == ["who", "can", "help"]


@requirement("000-23")
def test_the_best_comes_first_and_says_why() -> None:
    found = search("translate a text into German")
    assert ids(found) == ["polyglot", "vault", "lawyer"]
    best = found.hits[0]
    assert best.score > found.hits[1].score > found.hits[2].score
    assert best.capabilities == ["translate-text"]
    told = {(reason.word, reason.field, reason.value, reason.how) for reason in best.reasons}
    assert ("translate", "capability", "translate-text", "word") in told
    assert ("german", "trigger", "in German", "word") in told
    assert ("text", "tag", "text", "word") in told


def test_a_whole_name_is_a_hundred() -> None:
    for text, expected in (
        ("cook", "cook"),
        ("recipe reader", "cook"),
        ("Parse Recipe", "cook"),
        ("review_contract", "lawyer"),
    ):
        hit = search(text).hits[0]
        assert (hit.manifest.agent_id, hit.score) == (expected, 100)
        assert any(reason.how == "whole name" for reason in hit.reasons)


def test_a_rare_word_counts_more_than_a_common_one() -> None:
    crowd = [agent(f"worker-{number}", description="handles invoices") for number in range(30)]
    rare = agent("one", description="handles whales")
    found = search("invoices whales", agents=[*crowd, rare])
    assert ids(found)[0] == "one"
    assert found.total == 31


def test_the_beginning_of_a_word_is_enough_but_counts_less() -> None:
    short, whole = search("langua"), search("language")
    assert ids(short) == ids(whole)
    assert short.hits[0].score < whole.hits[0].score
    assert short.hits[0].reasons[0].how == "beginning"
    assert not search("la").hits


def test_filters_narrow_and_are_told() -> None:
    found = search(capabilities=("Parse_Recipe",))
    assert ids(found) == ["cook"]
    assert (found.hits[0].reasons[0].how, found.hits[0].capabilities) == ("filter", ["parse-recipe"])
    assert ids(search(tags=("LAW", "food"))) == ["cook", "lawyer"]
    assert ids(search("translate", tags=("law",))) == ["lawyer"]
    assert ids(search(capabilities=("parse-recipe",), tags=("law",))) == []
    assert ids(search()) == ["cook", "lawyer", "polyglot", "vault"]


@pytest.mark.parametrize("trust", ["local", "org", "public"])
def test_tiers_that_a_caller_may_not_see_do_not_show_in_any_way(trust: str) -> None:
    principal = Principal(trust=trust)  # type: ignore[arg-type]
    seen = [manifest for manifest in ALL if is_visible(principal, manifest)]
    alone, among = (
        search("translate recipe", agents=seen),
        search("translate recipe", tiers=list_visible_tiers(principal)),
    )
    assert alone == among


def test_who_is_away_comes_later() -> None:
    there = search("translate")
    away = search("translate", away={there.hits[0].manifest.agent_id})
    assert ids(away)[0] != ids(there)[0]
    assert away.hits[-1].is_offline or away.hits[1].is_offline


def test_pages_show_each_hit_once() -> None:
    crowd = [
        agent(f"worker-{number:03}", description="sorts" if number % 3 else "sorts things") for number in range(95)
    ]
    index, seen = indexed(crowd), []
    after: tuple[float, str] | None = None
    while True:
        found = index.find(SearchQuery(text="sort things", limit=10, after=after))
        assert found.total == 95
        seen += ids(found)
        if not found.has_more:
            break
        after = (found.hits[-1].rank, found.hits[-1].manifest.agent_id)
    assert len(seen) == len(set(seen)) == 95


def test_of_a_word_that_everybody_has_only_the_best_are_ranked() -> None:
    crowd = [agent(f"worker-{number:05}", description="sorts mail") for number in range(3000)]
    named = [agent(f"x-{number}", "sort") for number in range(5)]
    found = search("sort", agents=[*crowd, *named], limit=5)
    assert ids(found) == [f"x-{number}" for number in range(5)]
    assert found.total < 1100
    both = agent("both", description="sorts mail from whales")
    assert ids(search("sort mail whales", agents=[*crowd, both]))[0] == "both"


def test_an_index_that_followed_is_the_same_as_a_new_one() -> None:
    index = indexed()
    changed = agent("cook", "boil-water", tags=("food", "water"), trust_tier="local")
    later = (TRANSLATOR, changed, agent("new", "sing"))
    for _ in index.update(later):
        pass
    assert len(index) == 3
    for text in ("translate", "recipe", "water", "boil-water", "law", "sing", "contract"):
        assert index.find(SearchQuery(text=text)) == indexed(later).find(SearchQuery(text=text))
    assert list(index.update(later)) == []  # nothing to do


names = st.text(string.ascii_letters + "-_ .ßé翻訳", max_size=12)


@given(st.lists(st.tuples(names, names, st.sampled_from(["local", "org", "public"])), max_size=12), names)
def test_any_words_can_be_searched_for(rows: list[tuple[str, str, str]], text: str) -> None:
    agents = [
        agent(f"a{number}", *([one] if one.strip() else []), description=two, trust_tier=tier)
        for number, (one, two, tier) in enumerate(rows)
    ]
    found = search(text, agents=agents, limit=100)
    assert all(1 <= hit.score <= 100 for hit in found.hits)
    assert [hit.rank for hit in found.hits] == sorted((hit.rank for hit in found.hits), reverse=True)
    assert all(hit.reasons for hit in found.hits) or not parse_query(text)
