"""Delegation chains, decided purely."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.core.errors import BadInput, DelegationRefused
from a2a_fabric.core.propagation import (
    DELEGATION_META_KEY,
    DelegationGuard,
    chain_from_header,
    chain_from_metadata,
    chain_to_metadata,
    check_chain,
    encode_chain_header,
    make_chain_entry,
    make_chain_name,
    pick_longer_chain,
)


@pytest.mark.parametrize("chain", [[], ["b"], ["b", "c"], ["a"], ["b", "a", "a"]])
def test_a_call_that_has_not_left_this_node_before_may_go_on(chain: list[str]) -> None:
    check_chain(chain, "a", 8)


@pytest.mark.parametrize("chain", [["a", "b"], ["b", "a", "c"], ["a", "b", "a"]])
def test_a_call_that_comes_back_is_a_loop(chain: list[str]) -> None:
    with pytest.raises(DelegationRefused) as refused:
        check_chain(chain, "a", 8)
    assert refused.value.details == {"reason": "LOOP", "delegation_chain": [*chain, "a"]}
    assert refused.value.reason == "loop"
    assert refused.value.falls_back
    assert refused.value.never_ran


def test_a_chain_may_be_so_long_and_no_longer() -> None:
    check_chain(["b", "c"], "a", 3)
    with pytest.raises(DelegationRefused, match="3 is the most") as refused:
        check_chain(["b", "c", "d"], "a", 3)
    assert refused.value.details["reason"] == "DEPTH"
    with pytest.raises(DelegationRefused):
        check_chain(["a"] * 8, "a", 8)


def test_nodes_without_a_name_are_told_apart() -> None:
    assert make_chain_name("lab") == "lab"
    assert make_chain_name("local") != make_chain_name("local")
    assert make_chain_name("local").startswith("local-")


ME, YOU = make_chain_entry("a", "me"), make_chain_entry("a", "you")
NAMES = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)


@pytest.mark.parametrize("chain", [[], ["b"], [YOU], ["b", YOU], [make_chain_entry("b", "me"), YOU, "a"]])
def test_the_agents_of_a_node_may_call_it_for_one_another(chain: list[str]) -> None:
    check_chain(chain, "a", 8, "me")


@pytest.mark.parametrize(
    "chain", [[ME], ["b", ME], [ME, YOU], [YOU, ME, "a"], [ME, "b"], [ME, make_chain_entry("b", "x")]]
)
def test_a_call_that_comes_back_for_the_same_agent_is_a_loop(chain: list[str]) -> None:
    with pytest.raises(DelegationRefused, match="already") as refused:
        check_chain(chain, "a", 8, "me")
    assert refused.value.details["reason"] == "LOOP"


def test_a_node_is_not_taken_for_one_whose_name_begins_alike() -> None:
    check_chain(["a/b", "ab", make_chain_entry("ab", "me"), "b"], "a", 8, "me")
    check_chain([make_chain_entry("a/b", "me"), "b"], "a", 8, "me")


def test_an_entry_does_not_tell_what_the_agent_is_called() -> None:
    assert "secret-agent" not in make_chain_entry("a", "secret-agent")
    assert make_chain_entry("a", "me") != make_chain_entry("b", "me").replace("b/", "a/")


@given(st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=30))
def test_work_among_the_agents_of_one_node_asks_each_of_them_once_at_most(asked: list[str]) -> None:
    """Whatever they do: a chain that a node extends never holds an entry twice."""
    node = DelegationGuard("a", 8)
    chain: tuple[str, ...] = ()
    for agent_id in asked:
        try:
            node.check(chain, agent_id)
            chain = node.extend(chain, agent_id)
        except DelegationRefused:
            break
    assert len(set(chain)) == len(chain)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), max_size=40))
def test_no_walk_over_nodes_and_agents_is_longer_than_the_most(walk: list[tuple[str, str]]) -> None:
    nodes = {name: DelegationGuard(name, 5) for name in "abc"}
    chain: tuple[str, ...] = ()
    for node, agent_id in walk:
        try:
            nodes[node].check(chain, agent_id)
            chain = nodes[node].extend(chain, agent_id)
        except DelegationRefused:
            break
    assert len(chain) <= 5
    assert len(set(chain)) == len(chain)


@given(st.lists(NAMES, min_size=1, max_size=64).map(tuple))
def test_a_chain_comes_out_of_headers_and_metadata_as_it_went_in(chain: tuple[str, ...]) -> None:
    assert encode_chain_header(chain).isascii()
    assert chain_from_header(encode_chain_header(chain)) == chain
    assert chain_from_metadata(chain_to_metadata(chain)[DELEGATION_META_KEY]) == chain


@pytest.mark.parametrize("given", ["x" * 257, "%00", ",".join(["n"] * 65), "x," * 10_000, "%0a"])
def test_what_is_no_header_of_a_chain_is_bad_input(given: str) -> None:
    with pytest.raises(BadInput, match="not a delegation chain"):
        chain_from_header(given)


@pytest.mark.parametrize("given", ["a", 1, {"a": 1}, [1], [""], [None], ["x" * 257], ["n"] * 65, [["a"]], ["\n"]])
def test_what_is_no_chain_in_metadata_is_bad_input(given: object) -> None:
    with pytest.raises(BadInput, match="not a delegation chain"):
        chain_from_metadata(given)


def test_nothing_is_no_chain_and_of_two_the_longer_counts() -> None:
    assert not chain_from_header(None)
    assert not chain_from_header(" , ")
    assert not chain_from_metadata(None)
    assert not chain_from_metadata([])
    assert pick_longer_chain(("a",), ("a", "b")) == ("a", "b")
    assert pick_longer_chain(("a", "b"), ("c",)) == ("a", "b")
    assert pick_longer_chain(chain_from_metadata(None), ("c",)) == ("c",)
