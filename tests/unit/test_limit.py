from __future__ import annotations

import asyncio

import pytest

from a2a_fabric.core.call import Handler, Principal, ignore_event
from a2a_fabric.core.errors import RateLimited
from a2a_fabric.core.limits import FairLimit, TokenBucket
from a2a_fabric.steps.entry import CallRateLimit, limit
from a2a_fabric.testing import FakeClock, ScriptedRuntime, Turn
from tests.unit.made import agent, call

ALICE, BOB = (Principal(mode="psk", principal_id=name, trust="local") for name in ("alice", "bob"))


def runtime(delay: float = 0.0) -> ScriptedRuntime:
    return ScriptedRuntime(agent("percy", "reason"), [Turn(answer={}, delay=delay)])


async def refused(handler: Handler, who: Principal = ALICE) -> RateLimited | None:
    try:
        await handler(call(auth=who), ignore_event)
    except RateLimited as error:
        return error
    return None


async def test_more_calls_a_minute_than_allowed_are_told_when_to_come_back() -> None:
    clock, percy = FakeClock(), runtime()
    handler = limit(FairLimit("calls", 100), CallRateLimit(60, clock))(percy)
    assert [await refused(handler) for _ in range(60)] == [None] * 60
    error = await refused(handler)
    assert error is not None
    assert error.code == "RATE_LIMITED"
    assert error.retry_after == pytest.approx(1.0)
    assert error.details["retry_after"] == 1.0
    clock.advance(error.retry_after)
    assert await refused(handler) is None
    assert await refused(handler) is not None
    assert len(percy.calls) == 61


async def test_one_principals_haste_costs_no_other_anything() -> None:
    handler = limit(FairLimit("calls", 100), CallRateLimit(2, FakeClock()))(runtime())
    for _ in range(5):
        await refused(handler)
    assert await refused(handler, ALICE) is not None
    assert await refused(handler, BOB) is None


async def test_a_principal_cannot_buy_a_new_budget_by_waiting_for_others_to_come() -> None:
    """When many are known the longest silent is forgotten, not the one who calls all the time."""
    handler = limit(FairLimit("calls", 100), CallRateLimit(2, FakeClock()))(runtime())
    for _ in range(3):
        await refused(handler, ALICE)
    for number in range(10_050):
        await refused(handler, Principal(principal_id=f"p{number}", trust="local"))
        if number % 1000 == 0:
            assert await refused(handler, ALICE) is not None
    assert await refused(handler, ALICE) is not None


async def test_the_node_takes_no_more_calls_at_a_time_than_it_can_bear() -> None:
    percy = runtime(delay=0.05)
    handler = limit(FairLimit("calls", 3))(percy)
    outcomes = await asyncio.gather(*(refused(handler) for _ in range(10)))
    assert outcomes.count(None) == 3
    error = next(outcome for outcome in outcomes if outcome)
    assert error.retry_after == 1.0
    assert "busy with 3 calls" in error.message
    assert await refused(handler) is None


async def test_a_call_that_fails_or_is_cancelled_gives_its_place_back() -> None:
    percy = ScriptedRuntime(agent("percy"), [RuntimeError("bug"), Turn(answer={}, delay=30), {}])
    handler = limit(FairLimit("calls", 1))(percy)
    with pytest.raises(RuntimeError):
        await handler(call(), ignore_event)
    percy.called.clear()
    task = asyncio.ensure_future(handler(call(), ignore_event))
    await asyncio.wait_for(percy.called.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await refused(handler) is None


async def test_a_call_refused_for_business_does_not_use_up_the_budget() -> None:
    clock, percy = FakeClock(), runtime(delay=0.05)
    handler = limit(FairLimit("calls", 1), CallRateLimit(2, clock))(percy)
    await asyncio.gather(*(refused(handler) for _ in range(10)))
    assert await refused(handler) is None


def test_a_bucket_never_holds_more_than_a_minute() -> None:
    bucket = TokenBucket(3, 0.0)
    assert [bucket.take(1e6) for _ in range(4)] == [0.0, 0.0, 0.0, pytest.approx(20.0)]
