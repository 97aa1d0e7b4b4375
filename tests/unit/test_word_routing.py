"""Routing by words: the labelled set, and the rules one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.federation import WordRouting
from a2a_fabric.core.word_index import WordIndex
from a2a_fabric.core.word_routing import WordRouter, WordRules
from tests.fixtures.routing_set import find_mistakes, load_agents, load_requests, make_router
from tests.marks import requirement

FLOOR = 0.95  # of the labelled requests


def agent(agent_id: str, *signals: str, owner: str | None = None, **triggers: str) -> Manifest:
    return Manifest(
        agent_id=agent_id,
        endpoint={},
        signals=signals,
        capabilities=tuple(
            Capability(name=name.replace("_", "-"), triggers=(trigger,)) for name, trigger in triggers.items()
        ),
        metadata={} if owner is None else {"registered": {"owner": owner}},
    )


def route(text: str, *agents: Manifest, caller: str = "", **rules: object) -> tuple[str | None, str | None]:
    found = make_caller_router(*agents, caller=caller, **rules).route(text)
    return (None, None) if found is None else (found.agent_id, found.capability)


def make_caller_router(*agents: Manifest, caller: str = "", **rules: object) -> WordRouter:
    index = WordIndex()
    assert list(index.update(agents)) is not None
    return WordRouter(index, WordRules(WordRouting(**rules)), caller, lambda agent_id: "unknown")  # type: ignore[arg-type]  # from the test


@requirement("003-12", "003-19", "003-20", "003-28")
def test_most_requests_of_the_labelled_set_reach_the_agent_that_people_expect(
    record_property: Callable[[str, object], None],
) -> None:
    manifests, routing = load_agents()
    requests = load_requests()
    assert len(manifests) == 30
    assert len(requests) >= 200
    mistakes = find_mistakes(make_router(manifests, routing), requests)
    correct = len(requests) - len(mistakes)
    record_property(
        "routing_accuracy", f"{correct} of {len(requests)} labelled requests ({correct / len(requests):.1%})"
    )
    assert correct / len(requests) >= FLOOR, "\n".join(
        f"{request.expected} | {request.text} -> {actual}" for request, actual in mistakes
    )


@requirement("003-19")
def test_a_word_matches_only_as_a_whole() -> None:
    basil = agent("basil", "cook")
    assert route("I cook", basil) == ("basil", "message")
    assert route("I was cooking", basil) == ("basil", "message")
    assert route("A cookie, please", basil) == (None, None)
    assert route("the cooker", basil) == (None, None)


@requirement("003-12", "003-28")
def test_the_skill_index_decides_first_then_triggers_then_signals() -> None:
    signals = agent("signals", "dinner", "weekly meal")
    triggers = agent("triggers", plan="dinner for")
    indexed = agent("indexed", suggest_meal="unused words")
    text = "suggest meal ideas: a weekly meal dinner for two"
    agents = (signals, triggers, indexed)
    assert route(text, *agents, skill_index={"suggest-meal": "indexed"}) == ("indexed", "suggest-meal")
    assert route("dinner for two, weekly meal", *agents) == ("triggers", "plan")
    assert route("a weekly meal", *agents)[0] == "signals"
    # An index that names an agent without that skill, or no agent at all, chooses nothing.
    assert route("dangling skill", *agents, skill_index={"dangling-skill": "indexed"}) == (None, None)
    assert route("dangling skill", *agents, skill_index={"dangling-skill": "nobody"}) == (None, None)


@requirement("003-19", "003-20")
def test_the_first_signals_of_an_agent_are_its_most_specific() -> None:
    first = agent("first", "rare", "common")
    second = agent("second", "common", "rare")
    assert route("something common", first, second)[0] == "second"
    assert route("something rare", first, second)[0] == "first"
    longer = agent("longer", "else", "common word")
    assert route("a common word", second, longer)[0] == "longer"


@requirement("003-20")
def test_signals_choose_the_agent_and_triggers_its_skill() -> None:
    basil = agent("basil", "recipe", parse="from pinterest", suggest="dinner ideas")
    other = agent("other", "pinterest")
    assert route("dinner ideas", basil, other) == ("basil", "suggest")
    assert route("a recipe", basil, other)[0] == "basil"


def test_equal_agents_are_ordered_the_same_way_always() -> None:
    agents = [agent(f"agent-{letter}", "same") for letter in "cab"]
    for rotation in (agents, agents[::-1], agents[1:] + agents[:1]):
        assert route("the same", *rotation)[0] == "agent-a"


def test_words_of_a_stranger_reach_only_the_stranger() -> None:
    basil = agent("basil", "recipe")
    stolen = agent("thief", "recipe from", "recipe", owner="key:eve", steal="this recipe")
    assert route("this recipe", basil, stolen, caller="key:alice")[0] == "basil"
    assert route("this recipe", basil, stolen, caller="key:eve")[0] == "thief"


def test_words_never_choose_what_changes_something_unless_they_name_it() -> None:
    eraser = replace(
        agent("eraser", "files", "old"),
        capabilities=(Capability(name="erase-file", side_effects="writes", triggers=("wipe this",)),),
    )
    assert route("which old files are there", eraser) == (None, None)
    assert route("erase file x", eraser) == ("eraser", "erase-file")
    assert route("wipe this", eraser) == ("eraser", "erase-file")
    both = replace(eraser, capabilities=(*eraser.capabilities, Capability(name="list", side_effects="reads")))
    assert route("which old files are there", both) == ("eraser", "list")
    single = replace(eraser, capabilities=(Capability(name="delete", side_effects="writes"),))
    assert route("how do I delete a paragraph", single) == (None, None)


@requirement("003-12")
def test_signals_choose_a_declared_capability_with_typed_arguments_and_never_a_learnt_one() -> None:
    schema = {"type": "object", "properties": {"miles": {"type": "number"}}, "required": ["miles"]}
    units = replace(agent("units", "miles"), capabilities=(Capability(name="convert_length", input_schema=schema),))
    assert route("ten miles", units) == ("units", "convert_length")
    index = WordIndex(lambda agent_id: agent_id == "units")
    assert list(index.update([units])) is not None
    assert WordRouter(index, WordRules(WordRouting()), "", lambda agent_id: "unknown").route("ten miles") is None
    assert list(index.update([])) is not None
    assert not index.groups_for("")


@pytest.mark.parametrize(
    ("text", "agent_id", "rest"),
    [
        ("talk to Basil", "basil", ""),
        ("Please switch to basil.", "basil", ""),
        ("I want to talk to Basil, what's for dinner?", "basil", "what's for dinner?"),
        ("switch to basil and suggest a soup", "basil", "suggest a soup"),
        ("back to ada", None, ""),
        ("switch back", None, ""),
        ("switch to Ada", None, ""),
        ("go back to ada", None, ""),
    ],
)
@requirement("003-27")
def test_switch_commands_are_recognised(text: str, agent_id: str | None, rest: str) -> None:
    router = make_caller_router(agent("basil", "recipe"), orchestrator="ada")
    switch = router.find_switch(text)
    assert switch is not None
    assert tuple(switch) == (agent_id, rest)


@pytest.mark.parametrize(
    "text", ["switch to dark mode", "talk to basil about fish", "we talk to people", "basil", "back to the roots"]
)
def test_other_requests_are_no_switch_commands(text: str) -> None:
    assert make_caller_router(agent("basil", "recipe"), orchestrator="ada").find_switch(text) is None


@requirement("003-27")
def test_a_request_for_several_agents_is_divided_with_its_dependencies() -> None:
    agents = (agent("sam", "summarize"), agent("lexi", "translate"), agent("wim", "weather"))
    router = make_caller_router(*agents, multi_agent_triggers=("then", "and also"))
    parts = router.split("Summarize the news, then translate it and also tell me the weather")
    assert [(part.id, part.agent_id, part.text, part.depends_on) for part in parts] == [
        ("part1", "sam", "Summarize the news", ()),
        ("part2", "lexi", "translate it", ("part1",)),
        ("part3", "wim", "tell me the weather", ()),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "If you summarize it then translate it",
        "Summarize what people wrote back then",
        "summarize this then summarize that",
        'translate "summarize this, then translate it"',
        "then summarize",
        "summarize it, then go home",
        "translate then",
    ],
)
@requirement("003-27")
def test_ordinary_prose_is_not_divided(text: str) -> None:
    router = make_caller_router(agent("sam", "summarize"), agent("lexi", "translate"), multi_agent_triggers=("then",))
    assert router.split(text) == ()


def test_an_index_follows_its_catalog() -> None:
    index = WordIndex()
    before, after = agent("basil", "recipe", plan="dinner for two"), agent("basil", "soup")
    assert len(list(index.update([before]))) == 1
    assert len(list(index.update([after]))) == 1
    router = WordRouter(index, WordRules(WordRouting()), "", lambda agent_id: "unknown")
    assert router.route("a recipe, dinner for two") is None
    assert router.route("a soup") is not None
    list(index.update([]))
    assert router.route("a soup") is None
    assert index.groups_for("") == []


def test_a_phrase_of_very_many_agents_still_counts_for_the_one_that_another_phrase_found() -> None:
    crowd = [agent(f"agent-{number:04}", "report") for number in range(500)]
    chosen = agent("zz-last", "tide", "report")
    assert route("a report", *crowd, chosen)[0] == "agent-0000"
    assert route("a report of the tide", *crowd, chosen)[0] == "zz-last"
