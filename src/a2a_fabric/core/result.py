"""What a call brings back: events on the way, then the result with its parts, or questions first.

A part is content of any kind as every protocol carries it: text, JSON, bytes or a link, with media
type and name. A call that needs input ends with a result that holds the questions. The follow-up is
the same call again with the continuation and the answers; it reaches the same agent.

An event of the kind `final` closes a stream on the wire and is never emitted inside."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

PartKind = Literal["text", "image", "audio", "video", "file", "json", "function_call", "function_result"]
# Spelled out for clients that take no schema without a type; nothing is narrower than `Any`.
ANY_JSON: dict[str, Any] = {
    "anyOf": [{"type": kind} for kind in ("object", "array", "string", "number", "boolean", "null")]
}
AnyJSON = Annotated[Any, Meta(extra_json_schema=ANY_JSON)]
PART_KINDS: frozenset[str] = frozenset(get_args(PartKind))


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Exactly one of text, data, blob and url holds the content; `blob` is base64."""

    kind: PartKind
    text: str | None = None
    data: Any = None
    blob: str | None = None
    url: str | None = None
    mime_type: str | None = None
    name: str | None = None
    meta: dict[str, Any] = {}


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


class PassedOnAnswer(Answer, frozen=True, kw_only=True):
    """An answer from a door that speaks the agent's own protocol, with the caller's message as it was written."""

    original: OriginalMessage | msgspec.UnsetType = msgspec.UNSET


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """Sent with the follow-up call: the continuation as it came, and an answer under each question's key."""

    continuation: str
    answers: dict[str, Answer] = {}
    is_trusted: bool | msgspec.UnsetType = msgspec.UNSET  # the node kept the continuation, so no caller wrote it


EventKind = Literal["status", "token", "tool_call", "progress", "artifact", "input_required"]
EVENT_KINDS: frozenset[str] = frozenset(get_args(EventKind))


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: EventKind
    data: dict[str, Any]
    number: int = 0  # its number in a job's log, if it was read from one
    at: float = 0.0  # when it was written there, in seconds since 1970


def format_timestamp(timestamp: float, precision: Literal["seconds", "milliseconds"] = "milliseconds") -> str:
    """A time on the wire: 2025-05-25T14:25:00.000Z"""
    second, microseconds = divmod(round(timestamp * 1_000_000), 1_000_000)
    if precision == "seconds":
        return f"{_format_second(second)}Z"
    return f"{_format_second(second)}.{microseconds // 1000:03d}Z"


@lru_cache(maxsize=64)
def _format_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat(timespec="seconds")[: -len("+00:00")]


def status(word: Literal["queued", "running", "complete", "error"], message: str | None = None, **more: Any) -> Event:
    return Event("status", {"status": word, "message": message, **more} if message else {"status": word, **more})


def token(text: str) -> Event:
    return Event("token", {"text": text})


def tool_call(tool: str, arguments: dict[str, Any]) -> Event:
    return Event("tool_call", {"tool": tool, "arguments": arguments})


def progress(percent: float, message: str | None = None) -> Event:
    """`percent` is clamped to 0 to 100."""
    bounded = min(100.0, max(0.0, percent))
    return Event("progress", {"percent": bounded, "message": message} if message else {"percent": bounded})


def artifact(content: dict[str, Any]) -> Event:
    return Event("artifact", content)


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


class OriginalMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message in the words of its own protocol, for a door and a runtime that both speak it.

    Everything else reads the call's input or the result, which say the same as far as all protocols can.
    """

    protocol: str
    content: dict[str, Any]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """`data` is the answer; `parts` hold content that JSON alone cannot: images, files, links.

    `notes` list what could not be sent, for example content that the agent's protocol cannot carry.
    With `asked` there is no answer yet: the agent has questions first, and `data` shows them.
    With `job_id` there is no answer yet either: the work continues as a job, and `data` shows it.
    `commit` is that of the agent's code, for an agent in a git repository.
    """

    data: dict[str, Any]
    parts: tuple[Part, ...] = ()
    fallback: Fallback | None = None
    asked: Questions | None = None
    job_id: str | None = None
    notes: tuple[str, ...] = ()
    original: OriginalMessage | msgspec.UnsetType = msgspec.UNSET
    commit: str | msgspec.UnsetType = msgspec.UNSET


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
