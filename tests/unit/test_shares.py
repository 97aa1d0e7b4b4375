"""What one caller may hold of something limited, and what is left for the others."""

from __future__ import annotations

import pytest

from a2a_fabric.core.claiming import Places
from a2a_fabric.core.errors import RateLimited
from a2a_fabric.core.shares import Shares


def taken(shares: Shares, caller: str | None) -> int:
    """How many more this caller gets."""
    number = 0
    while shares.has_room(caller):
        shares.take(caller)
        number += 1
    with pytest.raises(RateLimited):
        shares.take(caller)
    return number


@pytest.mark.parametrize(("most", "alone"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (8, 6), (64, 48), (2000, 1500)])
def test_who_is_alone_gets_three_quarters(most: int, alone: int) -> None:
    assert taken(Shares("calls", most), "alice") == alone


def test_the_next_one_gets_its_part_of_what_is_left() -> None:
    shares = Shares("calls", 64)
    assert [taken(shares, caller) for caller in ("alice", "bob", "carol")] == [48, 12, 3]
    assert shares.has_room("dave")


def test_who_holds_much_gets_nothing_more_while_others_hold_the_rest() -> None:
    shares = Shares("calls", 8)
    assert (taken(shares, "alice"), taken(shares, "bob")) == (6, 2)
    shares.give_back("alice")
    assert not shares.has_room("alice")
    assert shares.has_room("bob")


def test_with_a_whole_share_one_may_have_all() -> None:
    assert taken(Shares("calls", 8, 1.0), "alice") == 8


def test_callers_without_an_identity_are_one() -> None:
    shares = Shares("calls", 8)
    assert (taken(shares, None), taken(shares, "")) == (6, 0)
    assert shares.held_by("anonymous") == 6


def test_what_is_given_back_can_be_taken_and_nobody_is_remembered_who_holds_nothing() -> None:
    shares = Shares("calls", 4)
    for number in range(1000):
        with shares.held(f"caller {number}"):
            assert shares.total == 1
    assert shares.total == 0
    assert shares._held == {}


def test_a_refusal_says_whether_it_is_the_share_or_the_node() -> None:
    shares = Shares("open streams", 4, retry_after=5.0)
    taken(shares, "alice")
    with pytest.raises(RateLimited, match="This caller has 3 of the node's 4 open streams, which is its share") as own:
        shares.check("alice")
    assert own.value.retry_after == 5.0
    shares.take("bob")
    with pytest.raises(RateLimited, match="The node is busy with 4 open streams"):
        shares.check("carol")


@pytest.mark.parametrize("most", [1, 2, 3, 4, 7, 64])
@pytest.mark.parametrize("others", [0, 1, 3])
def test_a_worker_claims_no_more_at_once_than_one_owner_may_have(most: int, others: int) -> None:
    shares, held = Shares("jobs", most), dict[str, int]()
    for number in range(others):
        if shares.has_room(f"owner {number}"):
            shares.take(f"owner {number}")
            held[f"owner {number}"] = 1
    if shares.total == most:
        assert Places(most, 0.75, held).at_once() == 0
        return
    for _ in range(Places(most, 0.75, held).at_once()):
        assert "greedy" not in Places(most, 0.75, held).held_back()
        shares.take("greedy")
        held["greedy"] = held.get("greedy", 0) + 1


def test_a_worker_holds_back_the_owner_who_has_its_share() -> None:
    assert Places(64, 0.75, {"greedy": 48, "honest": 1}).held_back() == ("greedy",)
    assert Places(64, 0.75, {"greedy": 40}).held_back() == ()
    assert Places(64, 1.0, {"greedy": 63}).held_back() == ()
    assert Places(4, 0.75, {"greedy": 4}).held_back() == ("greedy",)


def test_calls_that_became_jobs_take_no_more_than_their_owners_share_of_the_places() -> None:
    places = Places(4, 0.75, {"greedy": 100})
    assert (places.at_once(), places.held_back()) == (1, ("greedy",))
