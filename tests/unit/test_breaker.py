from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from a2a_fabric.core.call import ignore_event
from a2a_fabric.core.errors import (
    AgentOffline,
    BadInput,
    CallTimeout,
    FabricError,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.retry import CLOSED_BREAKER, Breaker, BreakerPolicy, admit, record_failure, record_success
from a2a_fabric.registry.gate import Gate
from a2a_fabric.registry.runtime_pool import LiveRuntime
from a2a_fabric.testing import FakeClock, ScriptedRuntime, Turn
from tests.unit.made import agent, call

POLICIES = st.builds(
    BreakerPolicy,
    failures=st.integers(1, 6),
    cool_down=st.floats(0.1, 200),
    max_cool_down=st.floats(0.1, 200),
    trials=st.integers(1, 3),
)


@given(POLICIES)
def test_it_opens_after_exactly_so_many_failures_in_a_row(policy: BreakerPolicy) -> None:
    breaker = CLOSED_BREAKER
    for count in range(1, policy.failures + 1):
        breaker, admitted = admit(breaker, 0.0, policy)
        assert admitted
        breaker = record_failure(breaker, 0.0, policy)
        assert (breaker.state == "open") is (count == policy.failures)


@given(POLICIES, st.integers(0, 5))
def test_a_success_in_between_starts_the_count_anew(policy: BreakerPolicy, before: int) -> None:
    breaker = CLOSED_BREAKER
    for _ in range(min(before, policy.failures - 1)):
        breaker = record_failure(breaker, 0.0, policy)
    assert record_success(breaker, policy) == CLOSED_BREAKER


@given(POLICIES)
def test_the_pause_doubles_up_to_its_bound_and_success_ends_it(policy: BreakerPolicy) -> None:
    breaker, now = Breaker("closed", policy.failures - 1), 0.0
    breaker = record_failure(breaker, now, policy)
    pauses = [breaker.cool_down]
    for _ in range(12):
        now = breaker.until
        breaker, admitted = admit(breaker, now, policy)
        assert admitted
        breaker = record_failure(breaker, now, policy)
        pauses.append(breaker.cool_down)
        assert breaker.until == now + breaker.cool_down
    assert max(pauses) <= policy.max_cool_down
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(policy.max_cool_down)
    for _ in range(policy.trials):
        breaker, admitted = admit(breaker, breaker.until, policy)
        assert admitted
        breaker = record_success(breaker, policy)
    assert breaker == CLOSED_BREAKER


class BreakerModel(RuleBasedStateMachine):
    """One agent, calls one after another and all at once, and a clock that only goes forward."""

    POLICY = BreakerPolicy(failures=3, cool_down=5.0, max_cool_down=20.0, trials=2)

    def __init__(self) -> None:
        super().__init__()
        self.breaker = CLOSED_BREAKER
        self.now = 0.0
        self.trial_until: float | None = None
        self.in_a_row = 0

    @rule(seconds=st.floats(0, 30))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def a_call_asks(self) -> None:
        before = self.breaker
        self.breaker, admitted = admit(self.breaker, self.now, self.POLICY)
        if before.state == "closed":
            assert admitted
        elif self.now < before.until:
            assert not admitted
            assert self.breaker == before
        else:
            assert admitted
            assert self.breaker.state == "trial"
            _, second = admit(self.breaker, self.now, self.POLICY)
            assert not second, "one trial at a time"

    @precondition(lambda self: self.breaker.state != "open")
    @rule()
    def a_call_fails(self) -> None:
        was = self.breaker
        self.breaker = record_failure(self.breaker, self.now, self.POLICY)
        self.in_a_row += 1
        if was.state == "trial":
            assert self.breaker.state == "open"
            assert self.breaker.until > self.now

    @precondition(lambda self: self.breaker.state != "open")
    @rule()
    def a_call_succeeds(self) -> None:
        self.breaker = record_success(self.breaker, self.POLICY)
        self.in_a_row = 0

    @rule()
    def a_straggler_fails(self) -> None:
        """A call admitted before the breaker opened comes back late."""
        if self.breaker.state == "open":
            self.breaker = record_failure(self.breaker, self.now, self.POLICY)

    @invariant()
    def it_is_never_closed_for_long(self) -> None:
        assert self.breaker.until <= self.now + self.POLICY.max_cool_down

    @invariant()
    def closed_means_few_failures(self) -> None:
        if self.breaker.state == "closed":
            assert self.breaker.failures < self.POLICY.failures


TestBreakerModel: Any = BreakerModel.TestCase


def guarded(*script: Any, failures: int = 2) -> tuple[LiveRuntime, ScriptedRuntime, FakeClock]:
    clock = FakeClock()
    runtime = ScriptedRuntime(agent("percy", "reason"), script)
    gate = Gate("percy", 100, BreakerPolicy(failures=failures, cool_down=5.0), clock)
    return LiveRuntime(runtime.manifest, runtime, gate), runtime, clock


async def ask(handler: LiveRuntime) -> FabricError | None:
    try:
        await handler(call(), ignore_event)
    except FabricError as error:
        return error
    return None


@pytest.mark.parametrize("error", [AgentOffline("down"), CallTimeout(1), UpstreamInterrupted("cut")])
async def test_an_agent_that_keeps_failing_is_left_alone_then_tried_once(error: FabricError) -> None:
    handler, runtime, clock = guarded(error, error, {})
    for _ in range(2):
        assert await ask(handler) is error
    refused = await ask(handler)
    assert isinstance(refused, AgentOffline)
    assert "failed 2 times in a row; next try in 5.0 s" in refused.message
    assert len(runtime.calls) == 2
    clock.advance(5)
    assert await ask(handler) is None
    assert await ask(handler) is None
    assert len(runtime.calls) == 4


@pytest.mark.parametrize("error", [UpstreamRefused("no"), BadInput("what?")])
async def test_an_agent_that_answers_no_is_alive(error: FabricError) -> None:
    handler, runtime, _ = guarded(error)
    for _ in range(10):
        assert await ask(handler) is error
    assert len(runtime.calls) == 10


async def test_only_one_trial_runs_at_a_time() -> None:
    handler, runtime, clock = guarded(AgentOffline("x"), AgentOffline("x"), Turn(answer={}, delay=0.05))
    await ask(handler)
    await ask(handler)
    clock.advance(5)
    outcomes = await asyncio.gather(*(ask(handler) for _ in range(20)))
    assert outcomes.count(None) == 1
    assert len(runtime.calls) == 3


async def test_a_trial_whose_caller_left_does_not_block_for_ever() -> None:
    handler, runtime, clock = guarded(AgentOffline("x"), AgentOffline("x"), Turn(answer={}, delay=30), {})
    await ask(handler)
    await ask(handler)
    clock.advance(5)
    runtime.called.clear()
    trial = asyncio.ensure_future(ask(handler))
    await asyncio.wait_for(runtime.called.wait(), 30)
    trial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trial
    clock.advance(5)
    assert await ask(handler) is None
