from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.core.agent import Health
from a2a_fabric.core.errors import (
    AgentBusy,
    AgentOffline,
    AllAttemptsFailed,
    BadInput,
    CallTimeout,
    FabricError,
    Forbidden,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.registry.health import HealthPolicy, HealthTracker, apply_failure, apply_success
from a2a_fabric.testing import FakeClock
from tests.marks import requirement

POLICY = HealthPolicy(failures=3, successes=2)


def book() -> HealthTracker:
    return HealthTracker(POLICY, FakeClock(7.0))


@requirement("001-47")
def test_one_bad_moment_is_not_an_outage_and_one_good_one_no_recovery() -> None:
    health = book()
    seen = [health.get("percy").status]
    for step in "+---++":
        health.record_success("percy", 0.1) if step == "+" else health.record_failure("percy", AgentOffline("gone"))
        seen.append(health.get("percy").status)
    assert seen == ["unknown", "online", "degraded", "degraded", "offline", "offline", "online"]


@requirement("001-47")
def test_an_agent_never_seen_alive_is_offline_at_its_first_failure_and_online_at_its_first_success() -> None:
    health = book()
    health.record_failure("percy", AgentOffline("nobody listens"))
    assert health.get("percy").status == "offline"
    health.record_success("percy")
    assert health.get("percy").status == "online"


def test_the_reason_stays_until_the_agent_is_back() -> None:
    health = book()
    health.record_success("percy")
    for _ in range(3):
        health.record_failure("percy", AgentOffline("nobody listens"))
    assert health.get("percy").error == "nobody listens"
    health.record_success("percy")
    assert health.get("percy").error == "nobody listens"
    health.record_success("percy")
    assert (health.get("percy").error, health.get("percy").seen_at) == (None, 7.0)


@pytest.mark.parametrize("error", [AgentOffline("x"), CallTimeout(1), UpstreamInterrupted("x")])
def test_what_speaks_against_the_agent_counts(error: FabricError) -> None:
    health = book()
    health.record_failure("percy", error)
    assert health.get("percy").failures == 1


@pytest.mark.parametrize(
    "error", [BadInput("x"), Forbidden("x"), AgentBusy("x"), AllAttemptsFailed("percy", ["percy@a: x"])]
)
def test_what_says_nothing_about_the_agent_changes_nothing(error: FabricError) -> None:
    health = book()
    health.record_failure("percy", error)
    assert health.get("percy") == Health()


def test_a_refusal_is_a_sign_of_life() -> None:
    health = book()
    health.record_failure("percy", AgentOffline("x"))
    health.record_failure("percy", UpstreamRefused("I will not"))
    assert health.get("percy").status == "online"


@requirement("001-47")
def test_a_call_reports_what_it_learned_and_listeners_are_told() -> None:
    health = book()
    before = health.epoch
    health.set_status("percy", "offline", "maintenance")
    assert (health.get("percy").status, health.get("percy").error) == ("offline", "maintenance")
    assert health.epoch > before
    again = health.epoch
    health.set_status("percy", "offline", "still")
    assert health.epoch == again


def test_who_left_is_forgotten() -> None:
    health = book()
    health.record_success("percy")
    before = health.epoch
    health.forget("percy")
    health.forget("nobody")
    assert health.get("percy") == Health()
    assert health.epoch == before + 1


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 5), st.integers(1, 5))
def test_offline_needs_a_row_of_failures_and_recovery_a_row_of_successes(
    observations: list[bool], failures: int, successes: int
) -> None:
    policy, row = HealthPolicy(failures=failures, successes=successes), 0
    health = Health(status="online", seen_at=0.0)
    last: bool | None = None
    for good in observations:
        row = row + 1 if good is last else 1
        last, was = good, health.status
        health = apply_success(health, policy, 0.1, 0.0) if good else apply_failure(health, policy, "x")
        if health.status == "offline" and was != "offline":
            assert not good
            assert row >= failures
        if was == "offline" and health.status == "online":
            assert good
            assert row >= successes
        assert (health.status == "degraded") <= (not good)
        assert health.failures == (0 if good else row)


def test_latency_follows_slowly_and_error_texts_are_bounded() -> None:
    health = apply_success(Health(), POLICY, 1.0, 0.0)
    health = apply_success(health, POLICY, 2.0, 0.0)
    assert health.latency == pytest.approx(1.2)
    health = apply_failure(health, POLICY, "x" * 10_000)
    assert health.latency == pytest.approx(1.2)
    assert len(health.error or "") == 500
