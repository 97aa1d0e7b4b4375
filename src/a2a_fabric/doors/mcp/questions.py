"""An agent's questions in MCP's words, and the client's responses as answers.

A client of the stateless era gets all questions as one result, and repeats its call with
the responses. One of the handshake era is asked during the call (`interview`). A client that
has not said that it can answer gets an error that holds the question and the way to answer
it by another call: its model may know the answer, or ask its user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal
from uuid import uuid4

import msgspec
from msgspec import UNSET, Raw, UnsetType, field

from a2a_fabric.core.errors import CallerError
from a2a_fabric.core.question import Answer, Answers, Question, Questions
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.mcp import answer
from a2a_fabric.doors.mcp.shelf import Shelf

TASKS = "io.modelcontextprotocol/tasks"
_ANSWERED_BY = "fabric_call"
_OPTIONS = {"stream", "timeout_ms", "trace", "continuation", "answers", "format"}
_encode = msgspec.json.Encoder().encode


class InputRequired(CallerError):
    """Only here is a question an error: the client cannot be asked."""

    code = "INPUT_REQUIRED"

    def __init__(self, asked: Questions, repeated: dict[str, Any]) -> None:
        answers = {key: {"action": "accept", "content": None} for key in asked.questions}
        call = {**repeated, "continuation": asked.continuation, "answers": answers}
        super().__init__(
            f"The agent wants to know something first: {asked.words or 'see the questions'}. To answer, call the tool "
            f"{_ANSWERED_BY} with the arguments below and the answers filled in as `content`, or declined by `action`",
            questions=msgspec.to_builtins(asked.questions),
            continuation=asked.continuation,
            answer_with={"tool": _ANSWERED_BY, "arguments": call},
        )


class _Modes(msgspec.Struct, frozen=True):
    """Of elicitation; who names none means forms."""

    form: Any = None
    url: Any = None


class _Sampling(msgspec.Struct, frozen=True):
    tools: Any = None


class Abilities(msgspec.Struct, frozen=True):
    """What a client has said it can answer: its capabilities, as far as they matter here."""

    elicitation: _Modes | None = None
    sampling: _Sampling | None = None
    roots: Any = None
    extensions: dict[str, Any] | None = None

    @property
    def has_tasks(self) -> bool:
        """Whether a job may be told as a task."""
        return TASKS in (self.extensions or {})

    def cover(self, asked: Questions) -> bool:
        return all(map(self._covers, asked.questions.values()))

    def _covers(self, question: Question) -> bool:
        match question.kind:
            case "form":
                modes = self.elicitation
                return modes is not None and (modes.form is not None or modes.url is None)
            case "url":
                return self.elicitation is not None and self.elicitation.url is not None
            case "sampling":
                with_tools = not question.params.keys().isdisjoint(("tools", "toolChoice"))
                return self.sampling is not None and (self.sampling.tools is not None or not with_tools)
            case "roots":
                return self.roots is not None


_abilities = msgspec.json.Decoder(Abilities)


def abilities_of(capabilities: Raw | bytes) -> Abilities:
    """What cannot be read is not offered."""
    try:
        return _abilities.decode(capabilities)
    except (msgspec.DecodeError, RecursionError):
        return Abilities()


class Response(msgspec.Struct, frozen=True):
    """What a client answers to one question: which fields are there says to what kind."""

    action: Literal["accept", "decline", "cancel"] | UnsetType = UNSET
    content: Any = UNSET
    roots: list[dict[str, Any]] | UnsetType = UNSET
    role: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    stop_reason: str | UnsetType | None = field(name="stopReason", default=UNSET)

    def __post_init__(self) -> None:
        is_message = self.role is not UNSET and self.model is not UNSET and self.content is not UNSET
        if self.action is UNSET and self.roots is UNSET and not is_message:
            raise ValueError("a response is an action, roots, or a message")

    @property
    def answer(self) -> Answer:
        if self.action is not UNSET:
            return Answer(action=self.action, content=None if self.content is UNSET else self.content)
        if self.roots is not UNSET:
            return Answer(content={"roots": self.roots})
        return Answer(content=msgspec.to_builtins(self))


Responses = dict[str, Response]


def answers_of(responses: Responses | None, state: str | None) -> Answers | UnsetType:
    """Unset for a call that answers nothing."""
    if not responses and state is None:
        return UNSET
    answers = {key: response.answer for key, response in (responses or {}).items()}
    return Answers(continuation=state or "", answers=answers)


def input_required(asked: Questions, trace: Trace) -> dict[str, Any]:
    """The result that asks, since 2026."""
    told: dict[str, Any] = {"resultType": "input_required", "_meta": {answer.TRACE_KEY: trace}}
    if asked.questions:
        told["inputRequests"] = requests_of(asked)
    return {**told, "requestState": asked.continuation}


def requests_of(asked: Questions) -> dict[str, Any]:
    return {key: _request(question) for key, question in asked.questions.items()}


def unanswerable(asked: Questions, trace: Trace, repeated: dict[str, Any]) -> dict[str, Any]:
    """The error that holds the question; models read only the words, so these hold all of it."""
    told = answer.failure(InputRequired(asked, repeated), trace)
    details = told["structuredContent"]["error"]["details"]
    told["content"].append({"type": "text", "text": _encode(details).decode()})
    return told


def asked_during_a_call(question: Question) -> dict[str, Any]:
    """The request that asks, before 2026, when the visit of a URL had an id."""
    request = _request(question)
    if question.kind == "url":
        request["params"] = {"elicitationId": question.params.get("elicitationId") or uuid4().hex, **request["params"]}
    return request


def _request(question: Question) -> dict[str, Any]:
    """In the asking protocol's own words, if that is ours too."""
    params = dict(question.params)
    match question.kind:
        case "form":
            form = {"type": "object", "properties": {}, **(question.schema or {})}
            params = params or {"mode": "form", "message": question.message, "requestedSchema": form}
            return {"method": "elicitation/create", "params": params}
        case "url":
            params.pop("elicitationId", None)
            return {"method": "elicitation/create", "params": {"message": question.message, **params, "mode": "url"}}
        case "sampling":
            return {"method": "sampling/createMessage", "params": params}
        case "roots":
            return {"method": "roots/list", "params": params} if params else {"method": "roots/list"}


def repeated_call(shelf: Shelf, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same call as arguments of `fabric.call`."""
    behind = shelf.behind(name)
    if behind is None and isinstance(tool_id := arguments.get("tool_id"), str):  # called through fabric.tool.call
        behind, arguments = shelf.behind(f"fabric.tool.{tool_id}"), arguments.get("parameters") or {}
    given = {key: value for key, value in arguments.items() if key not in _OPTIONS}
    if behind is None:
        return given
    task = given.pop("task") if isinstance(given.get("task"), str) else ""
    return {"agent_id": behind[0], "capability": behind[1], "task": task, "context": given}
