from __future__ import annotations

from typing import get_args

import pytest

from a2a_fabric.core.job import (
    FINAL_STATES,
    JOB_STATES,
    JobState,
    StateVocabulary,
    can_transition,
    is_final_state,
    states_from_word,
    translate_state,
)

VOCABULARIES: tuple[StateVocabulary, ...] = get_args(StateVocabulary)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_every_protocol_has_a_word_for_every_state_and_the_way_back_finds_it(vocabulary: StateVocabulary) -> None:
    for state in JOB_STATES:
        assert state in states_from_word(translate_state(state, vocabulary), vocabulary)
    assert states_from_word("no such word", vocabulary) == ()


def test_the_directory_says_completed_failed_cancelled_and_timeout() -> None:
    assert {translate_state(state, "directory") for state in FINAL_STATES} == {
        "completed",
        "failed",
        "cancelled",
        "timeout",
    }


def test_document_004_says_pending_running_completed_failed_and_cancelled() -> None:
    said = {translate_state(state, "rest") for state in JOB_STATES}
    assert said == {"pending", "running", "completed", "failed", "cancelled"}
    assert translate_state("timeout", "rest") == "failed"
    assert translate_state("input_required", "rest") == "running"


def test_document_003_says_its_six_words() -> None:
    said = {translate_state(state, "card") for state in JOB_STATES}
    assert said == {"pending", "in_progress", "completed", "failed", "cancelled", "input_required"}


def test_streams_say_queued_running_complete_and_error() -> None:
    assert {translate_state(state, "stream") for state in JOB_STATES} == {"queued", "running", "complete", "error"}


def test_only_the_rpc_client_and_the_standard_spell_canceled() -> None:
    spelt = {vocabulary: translate_state("cancelled", vocabulary).lower() for vocabulary in VOCABULARIES}
    assert {v for v, word in spelt.items() if word.endswith("canceled")} == {"rpc", "a2a", "a2a_0_3"}


def test_what_has_ended_stays_ended() -> None:
    for state in FINAL_STATES:
        assert is_final_state(state)
        assert not any(can_transition(state, following) for following in JOB_STATES)


@pytest.mark.parametrize(
    ("state", "following", "may"),
    [
        ("queued", "running", True),
        ("queued", "completed", False),
        ("queued", "input_required", False),
        ("running", "input_required", True),
        ("running", "queued", True),
        ("input_required", "queued", True),
        ("input_required", "completed", False),
    ],
)
def test_the_steps_of_a_job(state: JobState, following: JobState, may: bool) -> None:
    assert can_transition(state, following) is may


def test_every_state_can_be_reached_and_left() -> None:
    reachable: set[JobState] = {"queued"}
    for _ in JOB_STATES:
        reachable |= {after for before in reachable for after in JOB_STATES if can_transition(before, after)}
    assert reachable == set(JOB_STATES)
