"""Questions between MCP and core: elicitation, sampling and roots as `Question`s, responses as `Answer`s.

A server of the handshake era asks its client by requests. A stateless server asks by a result that lists such
requests, and the client repeats its own request with the responses. Both doors and runtimes use this module,
on either side of such a conversation."""

from __future__ import annotations

from typing import Any, Literal
from uuid import uuid4

import msgspec
from msgspec import UNSET, Raw, UnsetType, field

from a2a_fabric.core.result import Answer, Answers, Question, QuestionKind, Questions
from a2a_fabric.protocols.mcp.apps import UI_EXTENSION
from a2a_fabric.protocols.mcp.wire import TASKS_EXTENSION

QUESTION_METHODS: dict[QuestionKind, str] = {
    "form": "elicitation/create",
    "url": "elicitation/create",
    "sampling": "sampling/createMessage",
    "roots": "roots/list",
}
_ROOTS_QUESTION = "Which folders may be used?"
_MAX_TEXT = 2000


class _ElicitationModes(msgspec.Struct, frozen=True):
    """A client that names no mode supports forms."""

    form: Any = None
    url: Any = None


class _Sampling(msgspec.Struct, frozen=True):
    tools: Any = None


class AnswerCapabilities(msgspec.Struct, frozen=True):
    """The capabilities of a client, as far as they decide what it can be sent."""

    elicitation: _ElicitationModes | None = None
    sampling: _Sampling | None = None
    roots: Any = None
    extensions: dict[str, Any] | None = None

    @property
    def accepts_tasks(self) -> bool:
        """Whether a job may be answered as a task."""
        return TASKS_EXTENSION in (self.extensions or {})

    @property
    def can_show_apps(self) -> bool:
        """Whether the client shows the user interfaces of servers."""
        return UI_EXTENSION in (self.extensions or {})

    def can_answer(self, questions: Questions) -> bool:
        return all(map(self.can_answer_one, questions.questions.values()))

    def can_answer_one(self, question: Question) -> bool:
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
    """Capabilities that cannot be read count as absent."""
    try:
        return _capabilities_decoder.decode(capabilities)
    except (msgspec.DecodeError, RecursionError):
        return AnswerCapabilities()


class ClientResponse(msgspec.Struct, frozen=True):
    """A client's response to one question. Its fields tell the kind: an action, roots, or a message."""

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
    """Unset for a request that answers nothing."""
    if not responses and state is None:
        return UNSET
    answers = {key: response.answer for key, response in (responses or {}).items()}
    return Answers(continuation=state or "", answers=answers)


def question_from_request(request: Any) -> Question | None:
    """The question in a server's request; None if the request is not one that asks a client."""
    if not isinstance(request, dict) or not isinstance(params := request.get("params") or {}, dict):
        return None
    match request.get("method"):
        case "elicitation/create" if params.get("mode") == "url":
            return Question(kind="url", message=str(params.get("message", "")), params=params)
        case "elicitation/create":
            schema = params.get("requestedSchema")
            form = schema if isinstance(schema, dict) else None
            return Question(kind="form", message=str(params.get("message", "")), schema=form, params=params)
        case "sampling/createMessage":
            return Question(kind="sampling", message=_read_sampling_text(params), params=params)
        case "roots/list":
            return Question(kind="roots", message=_ROOTS_QUESTION, params=params)
    return None


def _read_sampling_text(params: dict[str, Any]) -> str:
    """The last message to the model, for a person to read."""
    messages = params.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    content = last.get("content") if isinstance(last, dict) else None
    blocks = content if isinstance(content, list) else [content]
    texts = [str(block["text"]) for block in blocks if isinstance(block, dict) and "text" in block]
    return f"For a model: {' '.join(texts)}"[:_MAX_TEXT]


def request_from_question(question: Question) -> dict[str, Any]:
    """The request that asks, in the stateless era. A question that came from MCP keeps its own parameters."""
    params = dict(question.params)
    match question.kind:
        case "form":
            form = {"type": "object", "properties": {}, **(question.schema or {})}
            params = params or {"mode": "form", "message": question.message, "requestedSchema": form}
        case "url":
            params.pop("elicitationId", None)
            params = {"message": question.message, **params, "mode": "url"}
    request: dict[str, Any] = {"method": QUESTION_METHODS[question.kind]}
    return request if question.kind == "roots" and not params else {**request, "params": params}


def handshake_request_from_question(question: Question) -> dict[str, Any]:
    """The request that asks, in the handshake era, where a question with a URL has an id."""
    request = request_from_question(question)
    if question.kind == "url":
        request["params"] = {"elicitationId": question.params.get("elicitationId") or uuid4().hex, **request["params"]}
    return request
