"""How jobs are left and whether they are tried again: pure answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Input
from a2a_fabric.core.errors import (
    AgentNotFound,
    AgentOffline,
    AllAttemptsFailed,
    BadInput,
    CallTimeout,
    FabricError,
    Forbidden,
    InternalError,
    JobCancelled,
    JobNotFound,
    RateLimited,
    StoreUnavailable,
    UpstreamInterrupted,
    UpstreamRefused,
    error_from_code,
)
from a2a_fabric.core.job import Job, JobSummary, is_final_state, new_job_id
from a2a_fabric.core.result import Question, Result, make_input_required
from a2a_fabric.core.retry import RetryPolicy, compute_retry_pause
from a2a_fabric.jobs import run
from a2a_fabric.jobs.settings import JobOptions, JobSettings
from a2a_fabric.jobs.views import render_job, render_request, result_from_job
from tests.unit.made import call

POLICY = RetryPolicy(max_attempts=3, pause_seconds=1.0, factor=2.0, max_pause_seconds=5.0)


def summary(**about: Any) -> JobSummary:
    default: dict[str, Any] = {"state": "running", "attempt": 1, "run_at": 0.0, "created_at": 0.0, "updated_at": 0.0}
    named = {"job_id": new_job_id(), "owner": "psk:alice", "agent_id": "percy", "capability": "reason"}
    return JobSummary(**{**named, **default, **about})


def job(**about: Any) -> Job:
    made = summary(**{key: value for key, value in about.items() if key in JobSummary.__struct_fields__})
    rest = {key: value for key, value in about.items() if key not in JobSummary.__struct_fields__}
    known = {name: getattr(made, name) for name in JobSummary.__struct_fields__}
    return Job(**known, **{"call": call(), **rest})


@pytest.mark.parametrize(
    ("error", "unless_declared", "if_declared"),
    [
        (AgentOffline("x"), True, True),
        (AgentNotFound("x"), True, True),
        (CallTimeout(1), False, True),
        (UpstreamInterrupted("x"), False, True),
        (UpstreamRefused("x"), False, True),
        (AllAttemptsFailed("x", ["x: timeout"]), False, True),
        (BadInput("x"), False, False),
        (Forbidden("x"), False, False),
        (InternalError(), False, False),
    ],
)
def test_what_surely_never_ran_is_tried_again_and_what_may_have_run_only_if_declared(
    error: FabricError, unless_declared: bool, if_declared: bool
) -> None:
    for may_repeat, expected in ((False, unless_declared), (True, if_declared)):
        pause = compute_retry_pause(error, 1, POLICY, may_repeat=may_repeat, jitter=0.5)
        assert (pause is not None) == expected


def test_there_are_no_more_attempts_than_allowed_and_the_pauses_grow_to_a_limit() -> None:
    generous = RetryPolicy(max_attempts=10, pause_seconds=1.0, factor=2.0, max_pause_seconds=5.0)
    pauses = [
        compute_retry_pause(AgentOffline("x"), n, generous, may_repeat=False, jitter=0.5) for n in range(1, 11)
    ]  # fmt: skip
    assert pauses == [1.0, 2.0, 4.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, None]
    linear = RetryPolicy(max_attempts=10, pause_seconds=2.0, backoff="linear", max_pause_seconds=5.0)
    pauses = [compute_retry_pause(AgentOffline("x"), n, linear, may_repeat=False, jitter=0.5) for n in range(1, 4)]
    assert pauses == [2.0, 4.0, 5.0]


@given(st.floats(0, 1), st.integers(1, 2))
def test_jitter_spreads_a_pause_by_half_to_either_side(chance: float, attempt: int) -> None:
    pause = compute_retry_pause(AgentOffline("x"), attempt, POLICY, may_repeat=False, jitter=chance)
    assert pause is not None
    assert 0.5 * 2 ** (attempt - 1) <= pause <= 1.5 * 2 ** (attempt - 1)


def test_a_caller_who_asked_too_often_is_only_put_off() -> None:
    assert compute_retry_pause(RateLimited("x", 9.0), 99, POLICY, may_repeat=False, jitter=0.5) == 9.0


def test_to_be_put_off_is_no_attempt() -> None:
    for error, is_put_off, number in ((RateLimited("x", 1.0), True, 2), (AgentOffline("x"), False, 3)):
        outcome = run.decide_after_error(error, summary(attempt=2), POLICY, may_repeat=False, now=0.0, reset=False)
        assert (outcome.state, outcome.is_postponed) == ("queued", is_put_off)
        assert f"attempt {number} in" in outcome.events[0].data["message"]


def test_no_attempt_begins_after_the_job_has_expired() -> None:
    in_time = run.decide_after_error(
        AgentOffline("x"), summary(expires_at=100.0), POLICY, may_repeat=False, now=90.0, reset=False
    )
    too_late = run.decide_after_error(
        AgentOffline("x"), summary(expires_at=100.0), POLICY, may_repeat=False, now=99.9, reset=False
    )
    assert in_time.state == "queued"
    assert in_time.run_at is not None
    assert 90 < in_time.run_at < 92
    assert too_late.state == "failed"


@pytest.mark.parametrize(
    ("error", "state"),
    [(CallTimeout(1), "timeout"), (UpstreamRefused("no"), "failed"), (BadInput("no"), "rejected")],
)
def test_an_error_is_an_end_of_its_kind_and_the_log_says_so(error: FabricError, state: str) -> None:
    outcome = run.decide_after_error(error, summary(), POLICY, may_repeat=False, now=0.0, reset=False)
    assert outcome.state == state
    assert outcome.error is not None
    assert outcome.error.code == error.code
    assert outcome.events[-1].data == {"status": "error", "message": error.message, "state": state}


def test_an_error_that_holds_what_json_cannot_is_still_kept() -> None:
    error = UpstreamRefused("no", odd=object())
    outcome = run.decide_after_error(error, summary(), POLICY, may_repeat=False, now=0.0, reset=False)
    assert outcome.error is not None
    assert outcome.error.details == {}


def test_another_attempt_takes_back_the_words_of_the_one_before() -> None:
    outcome = run.decide_after_error(AgentOffline("x"), summary(), POLICY, may_repeat=True, now=0.0, reset=True)
    assert outcome.events[0].data["reset"] is True


@pytest.mark.parametrize(
    ("about", "may_repeat", "state"),
    [
        ({}, True, "queued"),
        ({}, False, "failed"),
        ({"attempt": 0}, False, "queued"),
        ({"cancel_requested": True}, True, "cancelled"),
        ({"expires_at": 5.0}, True, "timeout"),
    ],
)
def test_a_job_whose_worker_is_gone_begins_again_or_ends_and_its_log_says_which(
    about: dict[str, Any], may_repeat: bool, state: str
) -> None:
    outcome = run.decide_after_interruption(summary(**about), may_repeat=may_repeat, now=10.0)
    assert outcome.state == state
    assert outcome.events[-1].data["state"] == state
    assert (outcome.error is not None) == is_final_state(outcome.state)


def test_a_question_parks_and_its_answer_goes_back_with_the_continuation() -> None:
    asked = make_input_required({"name": Question(kind="form", message="Who?")}, "percy:c1")
    outcome = run.decide_after_result(asked)
    assert outcome.state == "input_required"
    assert outcome.question is not None
    assert outcome.question["continuation"] == "percy:c1"
    parked = job(question=outcome.question, answer={"name": {"action": "accept", "content": "Ann"}})
    again = run.call_from_job(parked)
    assert again.answers
    assert again.answers.continuation == "percy:c1"
    assert again.answers.answers["name"].content == "Ann"


def test_what_came_of_a_job_is_what_its_caller_would_have_heard() -> None:
    assert result_from_job(job(state="completed", result=Result(data={"answer": "42"}))).data == {"answer": "42"}
    with pytest.raises(JobCancelled):
        result_from_job(job(state="cancelled", error=run.CANCELLED))
    with pytest.raises(FabricError, match="no result yet"):
        result_from_job(job(state="running"))


def test_no_secret_is_in_a_view() -> None:
    shown = render_job(summary(meta={"webhook": {"url": "https://x.example/", "secret": "hush-hush"}}))
    assert "hush-hush" not in str(shown)


def test_what_was_asked_is_shown_as_far_as_a_glance_takes_it_in() -> None:
    asked = job(state="queued")
    small = replace(asked, call=replace(asked.call, input=Input(task="Think.", context={"depth": 2})))
    assert render_request(small) == {"task": "Think.", "context": {"depth": 2}}
    large = replace(asked, call=replace(asked.call, input=Input(task="x" * 9000, context={"book": "x" * 9000})))
    assert render_request(large) == {"task": "x" * 1000}
    silent = replace(asked, call=replace(asked.call, input=Input(task="", context={})))
    assert render_request(silent) == {}


def test_options_are_durable_as_soon_as_the_job_must_be_found_again() -> None:
    assert not JobOptions(job_after=1.0).is_durable
    assert all(each.is_durable for each in (JobOptions(at_once=True), JobOptions(key="k"), JobOptions(run_at=1.0)))


def test_a_capability_may_be_repeated_if_it_says_so_or_changes_nothing() -> None:
    assert Capability(name="x", idempotent=True).may_repeat
    assert Capability(name="x", side_effects="reads").may_repeat
    assert not Capability(name="x").may_repeat
    assert not Capability(name="x", idempotent=False, side_effects="none").may_repeat


def test_the_timeout_of_a_job_is_the_callers_within_the_nodes_limit() -> None:
    settings = JobSettings(timeout_ms=1000, max_timeout_ms=5000)
    assert [settings.clamp_timeout(timeout_ms) for timeout_ms in (None, 2000, 9000)] == [1000, 2000, 5000]
    with pytest.raises(BadInput):
        settings.clamp_timeout(0)


def test_errors_about_jobs_come_back_from_another_node_as_what_they_are() -> None:
    for kind in (JobNotFound, JobCancelled, StoreUnavailable):
        assert type(error_from_code(kind.code, "x")) is kind
