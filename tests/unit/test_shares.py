"""What one caller may hold of something limited, and what is left for the others."""

from __future__ import annotations

import pytest

from a2a_fabric.core.errors import RateLimited
from a2a_fabric.core.job import WorkerSlots
from a2a_fabric.core.limits import FairLimit


def taken(shares: FairLimit, caller: str | None) -> int:
    """How many more this caller gets."""
    number = 0
    while shares.can_acquire(caller):
        shares.acquire(caller)
        number += 1
    with pytest.raises(RateLimited):
        shares.acquire(caller)
    return number


@pytest.mark.parametrize(("most", "alone"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (8, 6), (64, 48), (2000, 1500)])
def test_who_is_alone_gets_three_quarters(most: int, alone: int) -> None:
    assert taken(FairLimit("calls", most), "alice") == alone


def test_the_next_one_gets_its_part_of_what_is_left() -> None:
    shares = FairLimit("calls", 64)
    assert [taken(shares, caller) for caller in ("alice", "bob", "carol")] == [48, 12, 3]
    assert shares.can_acquire("dave")


def test_who_holds_much_gets_nothing_more_while_others_hold_the_rest() -> None:
    shares = FairLimit("calls", 8)
    assert (taken(shares, "alice"), taken(shares, "bob")) == (6, 2)
    shares.release("alice")
    assert not shares.can_acquire("alice")
    assert shares.can_acquire("bob")


def test_with_a_whole_share_one_may_have_all() -> None:
    assert taken(FairLimit("calls", 8, 1.0), "alice") == 8


def test_callers_without_an_identity_are_one() -> None:
    shares = FairLimit("calls", 8)
    assert (taken(shares, None), taken(shares, "")) == (6, 0)
    assert shares.count_held_by("anonymous") == 6


def test_what_is_given_back_can_be_taken_and_callers_that_hold_nothing_are_forgotten() -> None:
    shares = FairLimit("calls", 4)
    for number in range(1000):
        with shares.hold(f"caller {number}"):
            assert shares.in_use == 1
    assert shares.in_use == 0
    assert shares._held_by_caller == {}


def test_a_refusal_says_whether_it_is_the_share_or_the_node() -> None:
    shares = FairLimit("open streams", 4, retry_after=5.0)
    taken(shares, "alice")
    with pytest.raises(RateLimited, match="This caller has 3 of the node's 4 open streams, which is its share") as own:
        shares.check("alice")
    assert own.value.retry_after == 5.0
    shares.acquire("bob")
    with pytest.raises(RateLimited, match="The node is busy with 4 open streams"):
        shares.check("carol")


@pytest.mark.parametrize("most", [1, 2, 3, 4, 7, 64])
@pytest.mark.parametrize("others", [0, 1, 3])
def test_a_worker_claims_no_more_at_once_than_one_owner_may_have(most: int, others: int) -> None:
    shares, held = FairLimit("jobs", most), dict[str, int]()
    for number in range(others):
        if shares.can_acquire(f"owner {number}"):
            shares.acquire(f"owner {number}")
            held[f"owner {number}"] = 1
    if shares.in_use == most:
        assert WorkerSlots(most, 0.75, held).count_claimable() == 0
        return
    for _ in range(WorkerSlots(most, 0.75, held).count_claimable()):
        assert "greedy" not in WorkerSlots(most, 0.75, held).list_blocked_owners()
        shares.acquire("greedy")
        held["greedy"] = held.get("greedy", 0) + 1


def test_a_worker_holds_back_the_owner_who_has_its_share() -> None:
    assert WorkerSlots(64, 0.75, {"greedy": 48, "honest": 1}).list_blocked_owners() == ("greedy",)
    assert WorkerSlots(64, 0.75, {"greedy": 40}).list_blocked_owners() == ()
    assert WorkerSlots(64, 1.0, {"greedy": 63}).list_blocked_owners() == ()
    assert WorkerSlots(4, 0.75, {"greedy": 4}).list_blocked_owners() == ("greedy",)


def test_calls_that_became_jobs_take_no_more_than_their_owners_share_of_the_places() -> None:
    places = WorkerSlots(4, 0.75, {"greedy": 100})
    assert (places.count_claimable(), places.list_blocked_owners()) == (1, ("greedy",))
