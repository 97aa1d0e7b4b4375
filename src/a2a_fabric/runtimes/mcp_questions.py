"""A server's questions in our words, and our answers in the words that the server waits for.

Both eras ask for the same things: the old one by requests of its own during a call, the
new one by a reply that lists them. A stateless server remembers nothing between the two
calls, so the continuation holds what is needed to answer it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

import mcp_types as types
import msgspec
from pydantic import TypeAdapter, ValidationError

from a2a_fabric.core.errors import BadInput, UpstreamFailed
from a2a_fabric.core.question import Answer, Answers, Question, QuestionKind, Questions
from a2a_fabric.core.result import Result, asking
from a2a_fabric.runtimes.mcp_content import RPCError, ToolReply

# What we tell servers that they may ask.
OFFERED: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}

_PREFIX = "s."
_WORDS = 2000
_WHICH_ROOTS = "Which folders may be used?"

_METHODS: dict[QuestionKind, str] = {
    "form": "elicitation/create",
    "url": "elicitation/create",
    "sampling": "sampling/createMessage",
    "roots": "roots/list",
}

Response = dict[str, Any]


class Continuation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a stateless server wants back, and of which kind each of its questions was.

    `is_repeated` is for a server of the handshake era that wants URLs visited and then
    simply to be asked again.
    """

    kinds: dict[str, QuestionKind]
    state: str | None = None
    is_repeated: bool = False


def question_of(method: str, params: dict[str, Any]) -> Question:
    """Raises UpstreamFailed for a question that nobody here understands."""
    match method:
        case "elicitation/create" if params.get("mode") == "url":
            return Question(kind="url", message=str(params.get("message", "")), params=params)
        case "elicitation/create":
            schema = params.get("requestedSchema")
            known = schema if isinstance(schema, dict) else None
            return Question(kind="form", message=str(params.get("message", "")), schema=known, params=params)
        case "sampling/createMessage":
            return Question(kind="sampling", message=_last_words(params), params=params)
        case "roots/list":
            return Question(kind="roots", message=_WHICH_ROOTS, params=params)
    raise UpstreamFailed(f"The MCP server asks what we do not understand: {method[:100]!r}")


def _last_words(params: dict[str, Any]) -> str:
    """What the model is asked, for a person to read."""
    messages = params.get("messages")
    content = messages[-1].get("content") if isinstance(messages, list) and messages else None
    blocks = content if isinstance(content, list) else [content]
    texts = [str(block["text"]) for block in blocks if isinstance(block, dict) and "text" in block]
    return f"For a model: {' '.join(texts)}"[:_WORDS]


def asked_by(reply: ToolReply) -> Result:
    """A reply that asks instead of answering. Raises UpstreamFailed if it cannot be read."""
    questions = {}
    for key, request in (reply.input_requests or {}).items():
        if not isinstance(request, dict) or not isinstance(params := request.get("params") or {}, dict):
            raise UpstreamFailed("The MCP server's question cannot be read")
        questions[key] = question_of(str(request.get("method")), params)
    return _asking(questions, state=reply.request_state)


def asked_by_error(error: RPCError) -> Result | None:
    """URLs to be visited before the call is repeated; None if the error says nothing of the kind."""
    listed = error.data.get("elicitations") if isinstance(error.data, dict) else None
    if error.code != types.URL_ELICITATION_REQUIRED or not isinstance(listed, list):
        return None
    wanted = [params for params in listed if isinstance(params, dict) and params.get("mode") == "url"]
    questions = {f"q{number}": question_of("elicitation/create", each) for number, each in enumerate(wanted, 1)}
    return _asking(questions, is_repeated=True) if questions else None


def _asking(questions: dict[str, Question], state: str | None = None, *, is_repeated: bool = False) -> Result:
    kinds = {key: question.kind for key, question in questions.items()}
    whole = msgspec.json.encode(Continuation(kinds=kinds, state=state, is_repeated=is_repeated))
    return asking(questions, _PREFIX + base64.urlsafe_b64encode(whole).decode())


def further_params(answers: Answers) -> dict[str, Any]:
    """What the repeated `tools/call` carries besides its arguments. Raises BadInput."""
    continuation = _read(answers.continuation)
    given = {
        key: response_of(key, kind, answers.answers[key])
        for key, kind in continuation.kinds.items()
        if key in answers.answers
    }
    if continuation.is_repeated:
        if refused := [key for key in continuation.kinds if (given.get(key) or {}).get("action") != "accept"]:
            raise BadInput(f"The tool cannot go on before the URL of {refused[0]!r} is visited", field="answers")
        return {}
    responses = {key: _spoken(key, response) for key, response in given.items()}
    params: dict[str, Any] = {"inputResponses": responses} if responses else {}
    return params if continuation.state is None else {**params, "requestState": continuation.state}


def put_by(asked: Questions) -> dict[str, Any]:
    """A parked question as the stateless era has it: a result that lists what is wanted."""
    requests: dict[str, Any] = {}
    for key, question in asked.questions.items():
        request: dict[str, Any] = {"method": _METHODS[question.kind]}
        requests[key] = {**request, "params": question.params} if question.params else request
    return {"resultType": "input_required", "inputRequests": requests, "requestState": asked.continuation}


def answers_in(params: Mapping[str, Any], continuation: str) -> Answers:
    """The responses that a repeated request brings."""
    given = params.get("inputResponses")
    responses = given if isinstance(given, Mapping) else {}
    return Answers(continuation=continuation, answers={key: _answer(said) for key, said in responses.items()})


def _answer(said: Any) -> Answer:
    if isinstance(said, Mapping) and said.get("action") in ("accept", "decline", "cancel"):
        return Answer(action=said["action"], content=said.get("content"))
    return Answer(content=said)


def is_answerable(client: Mapping[str, Any], question: Question) -> bool:
    """Whether a client that says it can do this can be asked that."""
    modes = client.get("elicitation")
    match question.kind:
        case "form":
            return isinstance(modes, Mapping) and ("form" in modes or "url" not in modes)
        case "url":
            return isinstance(modes, Mapping) and "url" in modes
        case "sampling" | "roots":
            return question.kind in client


def unknown_continuation() -> BadInput:
    """For a continuation that is nobody's, was used already, is over, or belongs to somebody else."""
    why = "Nobody waits for an answer with this continuation: it is unknown, was used already, or its time is over"
    return BadInput(why, field="continuation")


def _read(continuation: str) -> Continuation:
    try:
        if not continuation.startswith(_PREFIX):
            raise unknown_continuation()
        return msgspec.json.decode(base64.urlsafe_b64decode(continuation[len(_PREFIX) :]), type=Continuation)
    except (msgspec.DecodeError, binascii.Error, ValueError) as exc:
        raise unknown_continuation() from exc


def _spoken(key: str, response: Response | None) -> Response:
    if response is None:
        raise BadInput(f"The tool cannot go on: its question {key!r} to a model was declined", field=f"answers.{key}")
    return response


def response_of(key: str, kind: QuestionKind, answer: Answer) -> Response | None:
    """The answer as the protocol has it; None for a model that was declined. Raises BadInput if it does not fit."""
    response = _RESPONSES[kind](answer)
    if response is not None:
        try:
            _SHAPES[kind].validate_python(response, by_name=False)
        except ValidationError as exc:
            raise BadInput(
                f"The answer to {key!r} does not fit the question: {_brief(exc)}", field=f"answers.{key}"
            ) from exc
    return response


def _filled_in(answer: Answer) -> Response:
    if answer.action != "accept":
        return {"action": answer.action}
    return {"action": "accept", "content": {} if answer.content is None else answer.content}


def _visited(answer: Answer) -> Response:
    return {"action": answer.action}


def _message(answer: Answer) -> Response | None:
    """Words alone will do, or a content block; whoever speaks the protocol gives the whole message."""
    if answer.action != "accept":
        return None
    content = {"type": "text", "text": answer.content} if isinstance(answer.content, str) else answer.content
    is_whole = isinstance(content, Mapping) and "type" not in content
    message = content if is_whole else {"content": content}
    return {"role": "assistant", "model": "unknown", **message}


def _folders(answer: Answer) -> Response:
    """Who shows none shows an empty list."""
    if answer.action != "accept" or answer.content is None:
        return {"roots": []}
    return dict(answer.content) if isinstance(answer.content, Mapping) else {"roots": answer.content}


_RESPONSES: dict[QuestionKind, Callable[[Answer], Response | None]] = {
    "form": _filled_in,
    "url": _visited,
    "sampling": _message,
    "roots": _folders,
}

_SHAPES: dict[QuestionKind, TypeAdapter[Any]] = {
    "form": TypeAdapter(types.ElicitResult),
    "url": TypeAdapter(types.ElicitResult),
    "sampling": TypeAdapter(types.CreateMessageResult | types.CreateMessageResultWithTools),
    "roots": TypeAdapter(types.ListRootsResult),
}


def _brief(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(str(step) for step in first['loc'])}: {first['msg']}"[:300]
