"""Delegation chains, decided purely."""

from __future__ import annotations

import pytest

from a2a_fabric.core.delegation import chain_name, check_chain
from a2a_fabric.core.errors import DelegationRefused


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
    assert chain_name("lab") == "lab"
    assert chain_name("local") != chain_name("local")
    assert chain_name("local").startswith("local-")
