"""The result of a call: one JSON object, its parts, and which agent answered."""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.part import Part
from a2a_fabric.core.question import Question, Questions


class Fallback(msgspec.Struct, frozen=True, kw_only=True):
    """Said when the answer does not come from the agent, or not in the way, that was asked for."""

    requested: str
    used: str
    reason: str
    attempts: tuple[str, ...]
    degraded: str | None = None
    shared: bool | msgspec.UnsetType = msgspec.UNSET  # nothing failed: a replica of its pool was less busy

    @property
    def note(self) -> str | None:
        """What a person or a model is told beside the answer; None where replicas merely share the work."""
        if self.shared is True:
            return None
        if self.used == self.requested:
            return f"Note: answered by '{self.used}' in a degraded mode ({self.degraded or 'retried'}): {self.reason}."
        return f"Note: answered by agent '{self.used}' instead of '{self.requested}' ({self.reason})."


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """`data` is the answer; `parts` hold content that JSON alone cannot: images, files, links.

    `notes` say what was lost on the way, for example content that the agent's protocol cannot carry.
    With `asked` there is no answer yet: the agent wants to know something first, and `data` says so.
    With `job_id` there is none yet either: the work goes on as a job, and `data` shows it.
    """

    data: dict[str, Any]
    parts: tuple[Part, ...] = ()
    fallback: Fallback | None = None
    asked: Questions | None = None
    job_id: str | None = None
    notes: tuple[str, ...] = ()


def make_input_required(questions: dict[str, Question], continuation: str) -> Result:
    """The result of a call whose agent wants to know something first."""
    pending = Questions(questions=questions, continuation=continuation)
    data = {"message": pending.message, "questions": msgspec.to_builtins(questions), "continuation": continuation}
    return Result(data={"input_required": data}, asked=pending)


def to_json_object(answer: Any) -> dict[str, Any]:
    """Any JSON value as the object that a result is: words become `answer`, other bare values `result`."""
    if isinstance(answer, dict):
        return answer
    if answer is None:
        return {}
    return {"answer": answer} if isinstance(answer, str) else {"result": answer}
