"""The result of a call: one JSON object, its parts, and which agent answered."""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.part import Part
from a2a_fabric.core.question import Question, Questions


class Fallback(msgspec.Struct, frozen=True, kw_only=True):
    """Reports that another agent than the requested one answered, or that the answer is degraded."""

    requested: str
    used: str
    reason: str
    attempts: tuple[str, ...]
    degraded: str | None = None
    shared: bool | msgspec.UnsetType = msgspec.UNSET  # nothing failed; a less busy replica of the pool answered

    @property
    def note(self) -> str | None:
        """The note for a person or a model beside the answer; None where replicas merely share the load."""
        if self.shared is True:
            return None
        if self.used == self.requested:
            return f"Note: answered by '{self.used}' in a degraded mode ({self.degraded or 'retried'}): {self.reason}."
        return f"Note: answered by agent '{self.used}' instead of '{self.requested}' ({self.reason})."


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """`data` is the answer; `parts` hold content that JSON alone cannot: images, files, links.

    `notes` list what could not be sent, for example content that the agent's protocol cannot carry.
    With `asked` there is no answer yet: the agent has questions first, and `data` shows them.
    With `job_id` there is no answer yet either: the work continues as a job, and `data` shows it.
    """

    data: dict[str, Any]
    parts: tuple[Part, ...] = ()
    fallback: Fallback | None = None
    asked: Questions | None = None
    job_id: str | None = None
    notes: tuple[str, ...] = ()


def make_input_required(questions: dict[str, Question], continuation: str) -> Result:
    """The result of a call whose agent has questions first."""
    pending = Questions(questions=questions, continuation=continuation)
    data = {"message": pending.message, "questions": msgspec.to_builtins(questions), "continuation": continuation}
    return Result(data={"input_required": data}, asked=pending)


def to_json_object(answer: Any) -> dict[str, Any]:
    """Any JSON value as an object: text becomes `answer`, any other bare value `result`."""
    if isinstance(answer, dict):
        return answer
    if answer is None:
        return {}
    return {"answer": answer} if isinstance(answer, str) else {"result": answer}
