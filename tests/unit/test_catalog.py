from __future__ import annotations

from a2a_fabric.core.agent import normalize_name
from a2a_fabric.registry.catalog import Catalog
from tests.marks import requirement
from tests.unit.made import agent


@requirement("001-09")
def test_capabilities_match_whatever_joins_their_words() -> None:
    cook, other = agent("cook", "parse-recipe"), agent("other", "Parse_Recipe")
    catalog = Catalog([cook, other])
    for name in ("parse_recipe", "parse-recipe", "PARSE RECIPE"):
        assert list(catalog.find_by_capability(name)) == [cook, other]
        found = cook.find_capability(name)
        assert found is not None
        assert found.name == "parse-recipe"
    assert catalog.find_by_capability("parserecipe") == ()


def test_an_exact_name_wins_over_a_folded_one() -> None:
    both = agent("a", "Do_It", "do-it")
    found = both.find_capability("do-it")
    assert found is not None
    assert found.name == "do-it"
    assert list(Catalog([both]).find_by_capability("do it")) == [both]


def test_the_first_source_that_names_an_agent_wins_with_all_it_says() -> None:
    first, second = agent("a", "x", tags=("one",)), agent("a", "y", tags=("two",))
    catalog = Catalog([first, second])
    assert catalog.get("a") is first
    assert len(catalog) == 1
    assert catalog.find_by_capability("y") == ()
    assert catalog.find_by_tag("two") == ()
    assert list(catalog.find_by_tag("one")) == [first]


def test_tools_are_found_by_id_but_never_stand_in_for_agents() -> None:
    tool = agent("math.calculate", "eval", category="math")
    catalog = Catalog([tool, agent("a", "eval")])
    assert catalog.get("math.calculate") is tool
    assert [m.agent_id for m in catalog.find_by_capability("eval")] == ["a"]
    assert [m.agent_id for m in catalog.agents] == ["a"]
    assert catalog.tools == (tool,)
    assert len(list(catalog)) == 2


def test_folding_is_stable() -> None:
    assert normalize_name(normalize_name("A  b--C__d")) == normalize_name("A  b--C__d") == "a_b_c_d"
