"""Names of tools: safe for every model API, unique, and no agent that comes or goes changes another's."""

from __future__ import annotations

import re
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.doors.mcp import tool_names as tools
from a2a_fabric.doors.mcp.tool_list import ToolList, is_cursor
from a2a_fabric.doors.mcp.tool_names import ToolKey, ToolNames

SAFE = re.compile(r"[a-z][a-z0-9_]*")

# Few letters, so that names meet; and some that no model API would take.
words = st.text(alphabet=st.sampled_from("abAB01_-. éß分\n\ud800"), max_size=12) | st.text(max_size=300)
agents = st.dictionaries(st.tuples(st.integers(0, 30), words), words, max_size=30)


@given(agents)
def test_every_name_is_safe_and_no_two_are_alike(wanted: dict[tuple[int, str], str]) -> None:
    given_names = tools.assign_names(wanted, {})
    assert given_names.keys() == wanted.keys()
    assert all(SAFE.fullmatch(name) and len(name) <= tools.MAX_NAME_LENGTH for name in given_names.values())
    assert len({tools.fold_name(name) for name in given_names.values()}) == len(wanted)


@given(agents, agents)
def test_an_agent_that_joins_changes_no_other_name(
    first: dict[tuple[int, str], str], newcomers: dict[tuple[int, str], str]
) -> None:
    before = tools.assign_names(first, {})
    after = tools.assign_names({**newcomers, **first}, before)
    assert {key: after[key] for key in first} == before
    assert len({tools.fold_name(name) for name in after.values()}) == len(after)


@given(agents, st.data())
def test_an_agent_that_leaves_and_comes_back_changes_no_other_name(
    wanted: dict[tuple[int, str], str], data: st.DataObject
) -> None:
    stay = set(data.draw(st.lists(st.sampled_from(sorted(wanted)), unique=True))) if wanted else set()
    before = tools.assign_names(wanted, {})
    meanwhile = tools.assign_names({key: wanted[key] for key in stay}, before)
    known = tools.remember_names(meanwhile, before)
    assert meanwhile == {key: before[key] for key in stay}
    assert tools.assign_names(wanted, known) == before


@given(agents, st.randoms())
def test_nodes_that_meet_the_same_agents_in_any_order_agree(wanted: dict[tuple[int, str], str], chance: object) -> None:
    shuffled = list(wanted.items())
    chance.shuffle(shuffled)  # type: ignore[attr-defined]  # a random.Random
    assert tools.assign_names(dict(shuffled), {}) == tools.assign_names(wanted, {})


@pytest.mark.parametrize(
    ("dotted", "name"),
    [
        ("fabric.agent.list", "fabric_agent_list"),
        ("percy.reason", "percy_reason"),
        ("data-science.parseRecipe", "data_science_parse_recipe"),
        ("Élan.Résumé", "elan_resume"),
        ("7zip.pack", "t_7zip_pack"),
        ("分析", "t"),
        ("", "t"),
    ],
)
def test_names_stay_readable(dotted: str, name: str) -> None:
    assert tools.to_safe_name(dotted) == name


def test_the_second_of_two_that_are_alike_gets_a_short_tail() -> None:
    found = tools.assign_names({1: "a-b.c", 2: "a.b_c", 3: "ab.c"}, {})
    plain = [name for name in found.values() if name in ("a_b_c", "ab_c")]
    tailed = [name for name in found.values() if re.fullmatch(r"(a_b_c|ab_c)_[0-9a-f]{6}", name)]
    assert (len(plain), len(tailed)) == (1, 2)


def test_a_long_name_is_cut_and_told_apart_by_its_tail() -> None:
    one, other = tools.assign_names({1: "x" * 60 + "1", 2: "x" * 60 + "2"}, {}).values()
    assert len(one) == len(other) == tools.MAX_NAME_LENGTH
    assert one[:41] == other[:41]
    assert one != other


def test_names_of_those_who_left_are_forgotten_when_there_are_too_many() -> None:
    known = {number: f"n{number}" for number in range(10)}
    assert tools.remember_names({3: "n3"}, known, spare=2) == {8: "n8", 9: "n9", 3: "n3"}


def give(names: ToolNames, offered: dict[ToolKey, str], registered: Collection[ToolKey] = ()) -> None:
    for _ in names.assign(offered, registered):
        pass


tool_keys = st.tuples(st.text(alphabet="ab-_.", max_size=4), st.text(alphabet="ab-_.", max_size=4))
offers = st.dictionaries(tool_keys, words, max_size=20)


@given(offers)
def test_names_given_one_by_one_are_those_given_at_once(offered: dict[ToolKey, str]) -> None:
    names = ToolNames()
    give(names, offered)
    assert {key: names[key] for key in offered} == tools.assign_names(offered, {})


@given(offers, st.data())
def test_tools_that_come_and_go_never_share_a_name_and_get_theirs_back(
    offered: dict[ToolKey, str], data: st.DataObject
) -> None:
    names, present = ToolNames(["fabric_call"]), dict[ToolKey, str]()
    for _ in range(4 if offered else 0):
        some = set(data.draw(st.lists(st.sampled_from(sorted(offered)), unique=True)))
        before = {key: names[key] for key in present}
        names.release(present.keys() - some)
        give(names, {key: offered[key] for key in some - present.keys()})
        present = {key: offered[key] for key in some}
        given_names = {key: names[key] for key in present}
        assert len({tools.fold_name(name) for name in given_names.values()}) == len(given_names) == len(names)
        assert "fabriccall" not in map(tools.fold_name, given_names.values())
        assert all(given_names[key] == name for key, name in before.items() if key in given_names)


def test_a_registered_tool_gives_its_name_up_for_a_declared_one_and_takes_none_of_one_that_left() -> None:
    names = ToolNames()
    registered, declared, other = ("prod", "files_read"), ("prod-files", "read"), ("prod.files", "read")
    give(names, {registered: "prod.files_read"}, {registered})
    assert names[registered] == "prod_files_read"
    give(names, {declared: "prod-files.read"})
    assert names[declared] == "prod_files_read"
    assert re.fullmatch("prod_files_read_[0-9a-f]{6}", names[registered])
    names.release([declared])
    give(names, {other: "prod.files.read"}, {other})
    assert re.fullmatch("prod_files_read_[0-9a-f]{6}", names[other])
    give(names, {declared: "prod-files.read"})
    assert names[declared] == "prod_files_read"


def test_pages_of_a_long_list_continue_behind_the_last_tool_though_others_came_and_went() -> None:
    tools_before = [b'{"name":"%d","description":"%b"}' % (number, b"x" * 1000) for number in range(5000)]
    first = ToolList(tools_before).find_page(None)
    assert first.next_cursor is not None
    assert is_cursor(first.next_cursor)
    assert sum(map(len, first.tools)) <= 2 << 20
    later = ToolList([b'{"name":"new"}', *tools_before[10:]])
    assert later.find_page(first.next_cursor).tools[0] == tools_before[len(first.tools)]
    assert len(later.find_page(first.next_cursor, max_tools=7).tools) == 7
    assert ToolList(()).find_page(first.next_cursor) == ((), None)
    assert not is_cursor("x")
    assert ToolList(tools_before[:1]).encode_page(None) == b'"tools":[%b]' % tools_before[0]
