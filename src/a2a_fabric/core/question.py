"""Questions that an agent asks before it goes on, and the answers of the caller.

A call that needs input ends with a result that holds the questions. The follow-up is the
same call again with the continuation and the answers; it reaches the same agent."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from a2a_fabric.core.part import AnyJSON

QuestionKind = Literal["form", "url", "sampling", "roots"]


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`form`: fill in `schema`. `url`: visit one. `sampling`: ask a model. `roots`: which folders may be used.

    `params` are the fields of the agent's own protocol, for doors that speak it, too.
    """

    kind: QuestionKind
    message: str = ""
    schema: dict[str, Any] | None = None
    params: dict[str, Any] = {}


class Questions(msgspec.Struct, frozen=True, kw_only=True):
    """`continuation` is opaque to the caller, and brings the answers back to the agent."""

    questions: dict[str, Question]
    continuation: str

    @property
    def message(self) -> str:
        """All questions as one text for a person."""
        return "; ".join(question.message for question in self.questions.values() if question.message)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one question: `content` fills its form, or is the model's message, or the roots."""

    action: Annotated[Literal["accept", "decline", "cancel"], Meta(description="What the person decided.")] = "accept"
    content: Annotated[AnyJSON, Meta(description="The answer, if accepted.")] = None


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """Sent with the follow-up call: the continuation as it came, and an answer under each question's key."""

    continuation: str
    answers: dict[str, Answer] = {}
