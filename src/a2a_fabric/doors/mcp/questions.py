"""An agent's questions as MCP requests for input, and the client's responses as answers.

A client of the stateless era gets all questions in one result and repeats its call with the responses. A
client of the handshake era is asked during the call (see `elicitation`). A client that did not declare that
it can answer gets an error that holds the questions and a `fabric_call` with which they can be answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal
from uuid import uuid4

import msgspec
from msgspec import UNSET, Raw, UnsetType, field

from a2a_fabric.core.errors import CallerError
from a2a_fabric.core.question import Answer, Answers, Question, Questions
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.mcp import results
from a2a_fabric.doors.mcp.tools import ToolCatalog

TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
_ANSWER_TOOL = "fabric_call"
_CALL_OPTIONS = {"stream", "timeout_ms", "trace", "continuation", "answers", "format"}
_encode = msgspec.json.Encoder().encode


class InputRequired(CallerError):
    """Only here is a question an error: the client cannot be asked."""

    code = "INPUT_REQUIRED"

    def __init__(self, questions: Questions, call_arguments: dict[str, Any]) -> None:
        answers = {key: {"action": "accept", "content": None} for key in questions.questions}
        call = {**call_arguments, "continuation": questions.continuation, "answers": answers}
        super().__init__(
            f"The agent wants to know something first: {questions.message or 'see the questions'}. To answer, call the tool "
            f"{_ANSWER_TOOL} with the arguments below and the answers filled in as `content`, or declined by `action`",
            questions=msgspec.to_builtins(questions.questions),
            continuation=questions.continuation,
            answer_with={"tool": _ANSWER_TOOL, "arguments": call},
        )


class _ElicitationModes(msgspec.Struct, frozen=True):
    """Of elicitation; who names none means forms."""

    form: Any = None
    url: Any = None


class _Sampling(msgspec.Struct, frozen=True):
    tools: Any = None


class AnswerCapabilities(msgspec.Struct, frozen=True):
    """What a client has said it can answer: its capabilities, as far as they matter here."""

    elicitation: _ElicitationModes | None = None
    sampling: _Sampling | None = None
    roots: Any = None
    extensions: dict[str, Any] | None = None

    @property
    def accepts_tasks(self) -> bool:
        """Whether a job may be told as a task."""
        return TASKS_EXTENSION in (self.extensions or {})

    def can_answer(self, questions: Questions) -> bool:
        return all(map(self._can_answer_one, questions.questions.values()))

    def _can_answer_one(self, question: Question) -> bool:
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


_capabilities_decoder = msgspec.json.Decoder(AnswerCapabilities)


def parse_capabilities(capabilities: Raw | bytes) -> AnswerCapabilities:
    """What cannot be read is not offered."""
    try:
        return _capabilities_decoder.decode(capabilities)
    except (msgspec.DecodeError, RecursionError):
        return AnswerCapabilities()


class ClientResponse(msgspec.Struct, frozen=True):
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


ClientResponses = dict[str, ClientResponse]


def answers_from_responses(responses: ClientResponses | None, state: str | None) -> Answers | UnsetType:
    """Unset for a call that answers nothing."""
    if not responses and state is None:
        return UNSET
    answers = {key: response.answer for key, response in (responses or {}).items()}
    return Answers(continuation=state or "", answers=answers)


def render_input_required(questions: Questions, trace: Trace) -> dict[str, Any]:
    """The result that asks, since 2026."""
    result: dict[str, Any] = {"resultType": "input_required", "_meta": {results.TRACE_KEY: trace}}
    if questions.questions:
        result["inputRequests"] = render_requests(questions)
    return {**result, "requestState": questions.continuation}


def render_requests(questions: Questions) -> dict[str, Any]:
    return {key: _render_request(question) for key, question in questions.questions.items()}


def render_unanswerable_error(questions: Questions, trace: Trace, call_arguments: dict[str, Any]) -> dict[str, Any]:
    """The error that holds the question; models read only the words, so these hold all of it."""
    result = results.render_error(InputRequired(questions, call_arguments), trace)
    details = result["structuredContent"]["error"]["details"]
    result["content"].append({"type": "text", "text": _encode(details).decode()})
    return result


def render_handshake_request(question: Question) -> dict[str, Any]:
    """The request that asks, before 2026, when the visit of a URL had an id."""
    request = _render_request(question)
    if question.kind == "url":
        request["params"] = {"elicitationId": question.params.get("elicitationId") or uuid4().hex, **request["params"]}
    return request


def _render_request(question: Question) -> dict[str, Any]:
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


def to_fabric_call(catalog: ToolCatalog, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same call as arguments of `fabric.call`."""
    target = catalog.find_target(name)
    if target is None and isinstance(tool_id := arguments.get("tool_id"), str):  # called through fabric.tool.call
        target, arguments = catalog.find_target(f"fabric.tool.{tool_id}"), arguments.get("parameters") or {}
    remaining = {key: value for key, value in arguments.items() if key not in _CALL_OPTIONS}
    if target is None:
        return remaining
    task = remaining.pop("task") if isinstance(remaining.get("task"), str) else ""
    return {"agent_id": target[0], "capability": target[1], "task": task, "context": remaining}
