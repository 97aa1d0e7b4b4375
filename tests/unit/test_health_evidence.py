"""What says something about an agent, and what does not: the pure parts, and the gate and the book that use them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.core.agent import Capability, Health, Manifest
from a2a_fabric.core.call import Call, ignore_event
from a2a_fabric.core.errors import (
    AgentBusy,
    AgentOffline,
    AllAttemptsFailed,
    BadInput,
    CallTimeout,
    FabricError,
    NotReached,
    RateLimited,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
    error_from_code,
)
from a2a_fabric.core.retry import (
    CLOSED_BREAKER,
    BreakerPolicy,
    admit,
    record_failure,
    record_inconclusive,
    record_reachable,
)
from a2a_fabric.registry.gate import Gate
from a2a_fabric.registry.health import (
    HealthPolicy,
    HealthTracker,
    apply_failure,
    apply_probe,
    apply_success,
    evidence_from_error,
)
from a2a_fabric.registry.runtime_pool import LiveRuntime, had_too_little_time
from a2a_fabric.testing import FakeClock, ScriptedRuntime, Turn
from tests.unit.made import agent, call

POLICY = HealthPolicy(failures=3, successes=2)
BREAKER = BreakerPolicy(failures=2, cool_down=5.0, max_cool_down=60.0)


def unasked(error: FabricError) -> FabricError:
    error.is_inconclusive = True
    return error


@pytest.mark.parametrize(
    ("error", "evidence"),
    [
        (AgentOffline("x"), "failing"),
        (NotReached("x"), "failing"),
        (CallTimeout(30), "failing"),
        (UpstreamFailed("HTTP 500"), "failing"),
        (UpstreamInterrupted("x"), "failing"),
        (UpstreamRefused("no"), "alive"),
        (UpstreamRefused("no", status=422), "alive"),
        (UpstreamRefused("no", status=404), None),
        (UpstreamRefused("no", status=410), None),
        (AgentBusy("x"), None),
        (RateLimited("x", 1), None),
        (BadInput("x"), None),
        (AllAttemptsFailed("percy", ["percy@a: x"]), None),
        (unasked(AgentOffline("x")), None),
    ],
)
def test_what_a_failed_call_says_about_the_agent(error: FabricError, evidence: str | None) -> None:
    assert evidence_from_error(error) == evidence


@pytest.mark.parametrize(
    ("error", "timeout_ms", "most_ms", "expected"),
    [
        (CallTimeout(0.001), 1, None, True),
        (CallTimeout(4.9), 4999, None, True),
        (CallTimeout(5), 5000, None, False),
        (CallTimeout(60), 60_000, None, False),
        (NotReached("still starting"), 100, None, True),
        (NotReached("still starting"), 60_000, None, False),
        (CallTimeout(1), 1000, 1000, False),  # its operator allows it no more
        (CallTimeout(0.9), 900, 1000, True),
        (AgentOffline("refused"), 1, None, False),
        (UpstreamFailed("HTTP 500"), 1, None, False),
    ],
)
def test_a_caller_who_gave_less_time_than_a_probe_has_cannot_say_that_an_agent_is_slow(
    error: FabricError, timeout_ms: int, most_ms: int | None, expected: bool
) -> None:
    manifest = Manifest(
        agent_id="percy", endpoint={}, capabilities=(Capability(name="reason", max_timeout_ms=most_ms),)
    )
    asked = call(timeout_ms=timeout_ms)
    assert had_too_little_time(error, asked, manifest, 5.0) is expected


def test_probes_do_not_make_an_agent_online_whose_calls_fail_but_an_answered_call_does() -> None:
    health = apply_success(Health(), POLICY, 0.1, 1.0)
    for _ in range(3):
        health = apply_failure(health, POLICY, "HTTP 500", has_run=True)
    seen = []
    for _ in range(5):
        health = apply_probe(health, POLICY, 2.0)
        seen.append(health.status)
    assert seen == ["offline", "degraded", "degraded", "degraded", "degraded"]
    assert health.error == "HTTP 500"
    assert apply_failure(health, POLICY, "HTTP 500", has_run=True).status == "offline"
    assert apply_success(health, POLICY, 0.1, 3.0).status == "online"


def test_failed_calls_add_up_though_probes_are_answered_in_between() -> None:
    health = apply_success(Health(), POLICY, 0.1, 1.0)
    for _ in range(2):
        health = apply_probe(apply_failure(health, POLICY, "HTTP 500", has_run=True), POLICY, 2.0)
        assert health.status == "online"
    assert apply_failure(health, POLICY, "HTTP 500", has_run=True).status == "offline"


def test_an_agent_that_could_not_be_reached_is_online_as_soon_as_its_probes_are_answered() -> None:
    health = apply_success(Health(), POLICY, 0.1, 1.0)
    for _ in range(3):
        health = apply_failure(health, POLICY, "refused")
    assert health.status == "offline"
    assert apply_probe(apply_probe(health, POLICY, 2.0), POLICY, 3.0).status == "online"


@given(st.lists(st.sampled_from("spfr"), max_size=40))
def test_an_agent_whose_calls_failed_lately_is_never_online(steps: list[str]) -> None:
    health, failing = Health(), 0
    for step in steps:
        if step == "s":
            health, failing = apply_success(health, POLICY, 0.1, 1.0), 0
        elif step == "p":
            health = apply_probe(health, POLICY, 1.0)
        else:
            failing += step == "r"
            health = apply_failure(health, POLICY, "x", has_run=step == "r")
        if failing >= POLICY.failures:
            assert health.status in ("degraded", "offline")


def test_changes_are_told_once_with_what_was_before_and_why() -> None:
    heard: list[Any] = []
    book = HealthTracker(POLICY, FakeClock(7.0), lambda *change: heard.append(change))
    book.record_probe_success("percy")
    book.record_probe_success("percy")
    for _ in range(4):
        book.record_failure("percy", UpstreamFailed("HTTP 500"))
    book.record_failure("percy", unasked(CallTimeout(0.001)))
    book.record_probe_success("percy")
    book.record_probe_success("percy")
    book.record_success("percy", 0.1)
    assert heard == [
        ("percy", "unknown", "online", "it answered a probe"),
        ("percy", "online", "degraded", "HTTP 500"),
        ("percy", "degraded", "online", "it answered a call"),
    ]


def test_an_agent_that_answered_calls_is_not_offline_because_its_server_knows_no_probes() -> None:
    book = HealthTracker(POLICY, FakeClock(7.0))
    absent = AgentOffline("Nothing is there", status=404)
    book.record_success("percy", 0.1)
    for _ in range(5):
        book.record_probe_failure("percy", absent)
    assert book.get("percy").status == "online"
    book.record_failure("percy", UpstreamRefused("Not found", status=404))
    for _ in range(3):
        book.record_probe_failure("percy", absent)
    assert book.get("percy").status == "offline"


def opened(*, may_have_run: bool) -> Any:
    breaker = CLOSED_BREAKER
    for _ in range(BREAKER.failures):
        breaker = record_failure(breaker, 0.0, BREAKER, may_have_run=may_have_run)
    return breaker


def test_a_call_that_another_agent_would_answer_is_no_trial_before_the_longest_pause_is_over() -> None:
    broken, away = opened(may_have_run=True), opened(may_have_run=False)
    assert [admit(broken, now, BREAKER)[1] for now in (4.9, 5.0)] == [False, True]
    assert [admit(broken, now, BREAKER, has_alternative=True)[1] for now in (5.0, 59.9, 60.0)] == [False, False, True]
    assert admit(away, 5.0, BREAKER, has_alternative=True)[1]


def test_an_answered_probe_lets_the_next_call_try_an_agent_that_was_away() -> None:
    assert admit(record_reachable(opened(may_have_run=False), 1.0), 1.0, BREAKER)[1]
    assert not admit(record_reachable(opened(may_have_run=True), 1.0), 1.0, BREAKER)[1]


def test_a_trial_that_said_nothing_leaves_the_next_call_to_be_one() -> None:
    trial, _ = admit(opened(may_have_run=True), 5.0, BREAKER)
    assert not admit(trial, 5.1, BREAKER)[1]
    assert admit(record_inconclusive(trial, 5.1), 5.1, BREAKER)[1]


def guarded(*script: Any, **manifest: Any) -> tuple[LiveRuntime, ScriptedRuntime, FakeClock]:
    clock = FakeClock()
    runtime = ScriptedRuntime(agent("percy", "reason", **manifest), script)
    return LiveRuntime(runtime.manifest, runtime, Gate("percy", 100, BREAKER, clock)), runtime, clock


async def outcome(handler: LiveRuntime, asked: Call | None = None) -> FabricError | None:
    try:
        await handler(asked or call(), ignore_event)
    except FabricError as error:
        return error
    return None


async def test_calls_without_time_never_open_the_breaker() -> None:
    handler, runtime, _ = guarded(CallTimeout(0.001), NotReached("still starting"))
    for _ in range(20):
        await outcome(handler, call(timeout_ms=1))
    assert handler.gate.breaker is CLOSED_BREAKER
    assert len(runtime.calls) == 20


async def test_all_calls_that_one_death_interrupts_count_as_one() -> None:
    handler, _, _ = guarded(Turn(answer=UpstreamInterrupted("it died"), delay=0.05))
    await asyncio.gather(*(outcome(handler) for _ in range(10)))
    assert handler.gate.breaker.failures == 1
    await outcome(handler)
    assert handler.gate.breaker.failures == 2


async def test_a_busy_answer_says_nothing_to_the_breaker() -> None:
    handler, runtime, _ = guarded(AgentBusy("429"))
    for _ in range(10):
        await outcome(handler)
    assert len(runtime.calls) == 10


async def test_the_refusal_of_an_open_breaker_says_nothing_new() -> None:
    handler, runtime, _ = guarded(UpstreamInterrupted("reset"))
    for _ in range(3):
        error = await outcome(handler)
    assert isinstance(error, AgentOffline)
    assert error.is_inconclusive
    assert len(runtime.calls) == 2


async def test_an_agent_that_answers_broken_is_asked_all_the_same_if_no_other_may_answer() -> None:
    """A caller whose input breaks it cannot take it away from the others."""
    handler, runtime, _ = guarded(UpstreamFailed("HTTP 500"))
    for _ in range(9):
        assert isinstance(await outcome(handler), UpstreamFailed)
    assert len(runtime.calls) == 9


def test_an_agent_that_answers_broken_is_degraded_and_not_offline() -> None:
    book = HealthTracker(POLICY, FakeClock(7.0))
    for _ in range(9):
        book.record_failure("percy", UpstreamFailed("HTTP 500"))
    assert book.get("percy").status == "degraded"
    for _ in range(3):
        book.record_failure("percy", UpstreamInterrupted("reset"))
    assert book.get("percy").status == "offline"


def test_a_busy_agent_is_told_apart_from_a_caller_who_asks_too_often_also_over_the_wire() -> None:
    busy = AgentBusy("busy with 3 calls", agent_id="percy", upstream=None)
    assert (busy.code, busy.reason, busy.falls_back, busy.never_ran) == ("RATE_LIMITED", "busy", True, True)
    assert busy.details == {"retry_after": 1.0, "agent_id": "percy", "reason": "busy"}
    back = error_from_code(busy.code, busy.message, busy.details)
    assert isinstance(back, AgentBusy)
    assert back.retry_after == 1.0
    assert type(error_from_code("RATE_LIMITED", "slow down", {})) is RateLimited
