from __future__ import annotations

from typing import get_args

import pytest

from a2a_fabric.core.states import (
    ENDED,
    JOB_STATES,
    JobState,
    Vocabulary,
    can_become,
    has_ended,
    states_meant,
    word_for,
)

VOCABULARIES: tuple[Vocabulary, ...] = get_args(Vocabulary)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_every_protocol_has_a_word_for_every_state_and_the_way_back_finds_it(vocabulary: Vocabulary) -> None:
    for state in JOB_STATES:
        assert state in states_meant(word_for(state, vocabulary), vocabulary)
    assert states_meant("no such word", vocabulary) == ()


def test_the_directory_says_completed_failed_cancelled_and_timeout() -> None:
    assert {word_for(state, "directory") for state in ENDED} == {"completed", "failed", "cancelled", "timeout"}


def test_document_004_says_pending_running_completed_failed_and_cancelled() -> None:
    said = {word_for(state, "rest") for state in JOB_STATES}
    assert said == {"pending", "running", "completed", "failed", "cancelled"}
    assert word_for("timeout", "rest") == "failed"
    assert word_for("input_required", "rest") == "running"


def test_document_003_says_its_six_words() -> None:
    said = {word_for(state, "card") for state in JOB_STATES}
    assert said == {"pending", "in_progress", "completed", "failed", "cancelled", "input_required"}


def test_streams_say_queued_running_complete_and_error() -> None:
    assert {word_for(state, "stream") for state in JOB_STATES} == {"queued", "running", "complete", "error"}


def test_only_the_rpc_client_and_the_standard_spell_canceled() -> None:
    spelt = {vocabulary: word_for("cancelled", vocabulary).lower() for vocabulary in VOCABULARIES}
    assert {v for v, word in spelt.items() if word.endswith("canceled")} == {"rpc", "a2a", "a2a_0_3"}


def test_what_has_ended_stays_ended() -> None:
    for state in ENDED:
        assert has_ended(state)
        assert not any(can_become(state, following) for following in JOB_STATES)


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
    assert can_become(state, following) is may


def test_every_state_can_be_reached_and_left() -> None:
    reachable: set[JobState] = {"queued"}
    for _ in JOB_STATES:
        reachable |= {after for before in reachable for after in JOB_STATES if can_become(before, after)}
    assert reachable == set(JOB_STATES)
