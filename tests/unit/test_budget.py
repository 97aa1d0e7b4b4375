"""The budget of second attempts: pure sums, and what the route does with them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.errors import AgentOffline, AllAttemptsFailed, UpstreamFailed, UpstreamInterrupted
from a2a_fabric.core.retry import RetryAccount, RetryBudget, spend_retry, update_account
from a2a_fabric.steps.route import RetryTracker
from a2a_fabric.testing import FakeClock
from tests.marks import requirement
from tests.unit.made import Heard, agent, call
from tests.unit.scripted_route import ScriptedRoute

BUDGETS = st.builds(
    RetryBudget,
    share=st.floats(0, 2),
    floor=st.integers(0, 20).map(float),
    seconds=st.floats(0.1, 1000),
)
# What happens at one moment: how long after the one before, so many calls, so many retries for another attempt.
MOMENTS = st.lists(st.tuples(st.floats(0, 500), st.integers(0, 50), st.integers(0, 30)), max_size=40)


@given(BUDGETS, MOMENTS)
def test_there_are_never_more_than_the_share_of_all_calls_and_the_floor_as_often_as_it_comes_anew(
    budget: RetryBudget, moments: list[tuple[float, int, int]]
) -> None:
    account, now, calls, made = RetryAccount(), 0.0, 0, 0
    for later, new_calls, retries in moments:
        now += later
        calls += new_calls
        account = update_account(account, new_calls, now, budget)
        for _ in range(retries):
            after = spend_retry(account, budget)
            account, made = after or account, made + (after is not None)
    assert made <= budget.floor * (1 + now / budget.seconds) + budget.share * calls + 1e-6


@given(BUDGETS, st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e4), st.integers(0, 1000))
def test_time_alone_never_takes_an_attempt_away(
    budget: RetryBudget, calls: float, retries: float, later: float, new_calls: int
) -> None:
    account = update_account(RetryAccount(calls, retries), new_calls, later, budget)
    assert 0 <= account.retries <= retries
    assert 0 <= account.calls <= (calls + new_calls) * (1 + 1e-6) + 1e-6
    assert account.at == later


@given(BUDGETS, st.lists(st.tuples(st.floats(0, 100), st.integers(0, 50)), min_size=2, max_size=10))
def test_it_does_not_matter_how_often_one_looks(budget: RetryBudget, steps: list[tuple[float, int]]) -> None:
    """Looking in between changes nothing but when the calls are taken to have come."""
    account, now = RetryAccount(retries=5), 0.0
    for later, _ in steps:
        now += later
        account = update_account(account, 0, now, budget)
    assert account.retries == pytest.approx(update_account(RetryAccount(retries=5), 0, now, budget).retries)


def test_a_clock_that_goes_back_changes_nothing() -> None:
    account = RetryAccount(10, 3, at=100)
    assert update_account(account, 0, 90, RetryBudget()) == account


def test_an_hour_of_calls_is_no_licence_for_an_hour_of_retries() -> None:
    budget = RetryBudget(share=0.2, floor=0, seconds=60)
    busy = update_account(RetryAccount(), 360_000, 3600, budget)  # a hundred a second
    assert busy.calls == pytest.approx(6000, rel=0.01)


def test_the_floor_comes_back_with_time() -> None:
    clock = FakeClock()
    retries = RetryTracker(RetryBudget(share=0, floor=2, seconds=10), clock=clock)
    failed = UpstreamFailed("no")
    assert [retries.allow("a", failed) for _ in range(3)] == [True, True, False]
    clock.advance(7)  # half of it has faded
    assert [retries.allow("a", failed) for _ in range(2)] == [True, False]
    assert retries.allow("b", failed), "each agent has its own"


def test_told_of_what_was_made_and_what_was_not() -> None:
    heard: list[tuple[str, bool]] = []
    retries = RetryTracker(RetryBudget(share=0, floor=1), lambda *said: heard.append(said))
    for _ in range(2):
        retries.allow("a", UpstreamFailed("no"))
    retries.allow("a", AgentOffline("gone"))
    assert heard == [("a", True), ("a", False), ("a", True)]


def two_agents(budget: RetryBudget, *, first: object, second: object) -> ScriptedRoute:
    mine = agent("percy", Capability(name="reason", idempotent=True), fallbacks=("backup",))
    return ScriptedRoute((mine, first), (agent("backup", "reason"), second), budget=budget)


@requirement("001-38", "001-41")
async def test_when_the_budget_is_used_up_the_agents_own_error_says_so() -> None:
    route = two_agents(RetryBudget(share=0, floor=2), first=UpstreamFailed("no cheese"), second={"answer": "instead"})
    for _ in range(2):
        assert (await route()).data == {"answer": "instead"}
    error = await route.fails()
    assert error.code == "UPSTREAM_ERROR"
    assert error.message == "no cheese (no other agent was asked: the retry budget of agent 'percy' is used up)"
    assert error.details["not_retried"] == "the retry budget of agent 'percy' is used up"
    assert route.asked == {"percy": 3, "backup": 2}


@requirement("001-38")
async def test_a_bad_day_is_not_multiplied() -> None:
    """Hundreds of failing calls make so many attempts more, not twice or four times as many."""
    route = two_agents(RetryBudget(share=0.2, floor=10), first=UpstreamFailed("no"), second=UpstreamFailed("no"))
    for _ in range(500):
        await route.fails()
    assert route.asked["percy"] == 500
    assert 100 <= route.asked["backup"] <= 0.2 * 500 + 10


@requirement("001-38")
async def test_all_calls_move_on_from_an_agent_that_is_gone() -> None:
    """What never reached it was no work, so there is nothing to multiply."""
    route = two_agents(RetryBudget(share=0, floor=0), first=AgentOffline("gone"), second={})
    for _ in range(50):
        result = await route()
        assert result.fallback is not None
    assert route.asked == {"percy": 50, "backup": 50}


async def test_a_degraded_attempt_costs_as_much_as_any_other() -> None:
    alone = agent("percy", Capability(name="reason", streaming=True, idempotent=True))
    route = ScriptedRoute((alone, UpstreamInterrupted("cut")), budget=RetryBudget(share=0, floor=1))
    assert isinstance(await route.fails(call(stream=True), Heard()), AllAttemptsFailed)
    error = await route.fails(call(stream=True), Heard())
    assert "retry budget" in error.message
    assert route.asked == {"percy": 3}


async def test_what_may_not_be_repeated_costs_nothing() -> None:
    once = agent("percy", Capability(name="reason", idempotent=False), fallbacks=("backup",))
    route = ScriptedRoute(
        (once, UpstreamInterrupted("cut")), (agent("backup", "reason"), {}), budget=RetryBudget(floor=1)
    )
    for _ in range(5):
        assert "retry budget" not in (await route.fails()).message


def test_settling_is_monotone_in_time() -> None:
    budget = RetryBudget()
    levels = [update_account(RetryAccount(100, 100), 0, float(at), budget).retries for at in range(0, 300, 10)]
    assert all(earlier > later for earlier, later in pairwise(levels))
