"""The states of a job, what may follow what, and the words that each protocol has for them.

A job waits (`queued`), is worked on (`running`), waits for its caller's answer
(`input_required`), and ends in one of five ways. Doors and runtimes translate
through the one table below and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

JobState = Literal["queued", "running", "input_required", "completed", "failed", "cancelled", "timeout", "rejected"]
Vocabulary = Literal["stream", "directory", "card", "rest", "rpc", "a2a", "a2a_0_3", "mcp", "acp"]

JOB_STATES: tuple[JobState, ...] = get_args(JobState)
ENDED: frozenset[JobState] = frozenset({"completed", "failed", "cancelled", "timeout", "rejected"})

_NEXT: Mapping[JobState, frozenset[JobState]] = {
    "queued": frozenset({"running", "failed", "cancelled", "timeout", "rejected"}),
    "running": ENDED | {"queued", "input_required"},
    "input_required": frozenset({"queued", "running", "failed", "cancelled", "timeout"}),
    **dict.fromkeys(ENDED, frozenset()),
}

# stream: documents 000 and 001; directory: 002; card: 003; rest: 004; rpc: the platform of 004 (its RPC client);
# a2a: the Linux Foundation's, 1.0 and 0.3; mcp: the tasks extension; acp: the Agent Communication Protocol.
# 002 has words for ends only, so work that goes on keeps ours; 004 says `running` and explains in its metadata.
_VOCABULARIES: tuple[Vocabulary, ...] = get_args(Vocabulary)
_WORDS: Mapping[JobState, tuple[str, ...]] = {
    "queued": ("queued", "queued", "pending", "pending", "submitted",
               "TASK_STATE_SUBMITTED", "submitted", "working", "created"),
    "running": ("running", "running", "in_progress", "running", "working",
                "TASK_STATE_WORKING", "working", "working", "in-progress"),
    "input_required": ("running", "input_required", "input_required", "running", "input_required",
                       "TASK_STATE_INPUT_REQUIRED", "input-required", "input_required", "awaiting"),
    "completed": ("complete", "completed", "completed", "completed", "completed",
                  "TASK_STATE_COMPLETED", "completed", "completed", "completed"),
    "failed": ("error", "failed", "failed", "failed", "failed",
               "TASK_STATE_FAILED", "failed", "failed", "failed"),
    "cancelled": ("error", "cancelled", "cancelled", "cancelled", "canceled",
                  "TASK_STATE_CANCELED", "canceled", "cancelled", "cancelled"),
    "timeout": ("error", "timeout", "failed", "failed", "failed",
                "TASK_STATE_FAILED", "failed", "failed", "failed"),
    "rejected": ("error", "failed", "failed", "failed", "rejected",
                 "TASK_STATE_REJECTED", "rejected", "failed", "failed"),
}  # fmt: skip

_SPOKEN: Mapping[Vocabulary, Mapping[JobState, str]] = {
    vocabulary: {state: words[at] for state, words in _WORDS.items()} for at, vocabulary in enumerate(_VOCABULARIES)
}
_MEANT: Mapping[Vocabulary, Mapping[str, tuple[JobState, ...]]] = {
    vocabulary: {
        word: tuple(state for state in JOB_STATES if spoken[state] == word) for word in dict.fromkeys(spoken.values())
    }
    for vocabulary, spoken in _SPOKEN.items()
}


def has_ended(state: JobState) -> bool:
    return state in ENDED


def can_become(state: JobState, following: JobState) -> bool:
    """Whether a job may go from the one state to the other in one step."""
    return following in _NEXT[state]


def word_for(state: JobState, vocabulary: Vocabulary) -> str:
    """What this protocol calls the state."""
    return _SPOKEN[vocabulary][state]


def states_meant(word: str, vocabulary: Vocabulary) -> tuple[JobState, ...]:
    """The states that a protocol's word may stand for, as a filter needs them; none for a word it does not have."""
    return _MEANT[vocabulary].get(word, ())
