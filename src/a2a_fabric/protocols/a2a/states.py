"""The states of an A2A task, in the words of 0.3, and how each dialect writes them."""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

from a2a_fabric.core.job import JobState, translate_state
from a2a_fabric.protocols.a2a.parts import Dialect

A2ATaskState = Literal[
    "submitted",
    "working",
    "completed",
    "failed",
    "canceled",
    "rejected",
    "input-required",
    "auth-required",
    "unknown",
]
RUNNING_TASK_STATES: frozenset[A2ATaskState] = frozenset({"submitted", "working"})
FINAL_TASK_STATES: frozenset[A2ATaskState] = frozenset({"completed", "failed", "canceled", "rejected"})
INTERRUPTED_TASK_STATES: frozenset[A2ATaskState] = frozenset({"input-required", "auth-required"})

_STATES: dict[str, A2ATaskState] = {state.replace("-", ""): state for state in get_args(A2ATaskState)} | {
    "cancelled": "canceled"
}


def task_state_from_job(state: JobState) -> A2ATaskState:
    return cast(A2ATaskState, translate_state(state, "a2a_0_3"))


def parse_state(value: Any) -> A2ATaskState:
    """Accepts `working`, `TASK_STATE_WORKING` and `Working` alike; a state of a later version is `unknown`."""
    folded = str(value or "").lower().removeprefix("task_state_").replace("_", "").replace("-", "")
    return _STATES.get(folded, "unknown")


def render_state(state: A2ATaskState, dialect: Dialect) -> str:
    if dialect == "0.3":
        return state
    if state == "canceled" and dialect == "0.3 proto":
        return "TASK_STATE_CANCELLED"
    return f"TASK_STATE_{state.upper().replace('-', '_')}"
