"""An MCP server's questions as `Question`s, the answers as MCP responses, and the SDK callbacks that take questions.

A server of the handshake era asks by requests during a call, a stateless server by a reply that
lists its questions. A stateless server remembers nothing between two calls, so the
continuation holds what is needed to answer it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import mcp_types as types
import msgspec
from mcp.client.session import ClientRequestContext
from pydantic import BaseModel, TypeAdapter, ValidationError

from a2a_fabric.core.errors import BadInput, UpstreamFailed
from a2a_fabric.core.pending_questions import unknown_continuation
from a2a_fabric.core.question import Answer, Answers, Question, QuestionKind, Questions
from a2a_fabric.core.result import Result, make_input_required
from a2a_fabric.protocols.mcp.questions import QUESTION_METHODS, question_from_request
from a2a_fabric.protocols.mcp.versions import INPUT_REQUIRED
from a2a_fabric.runtimes.mcp.content import ToolReply, UpstreamRpcError, summarize_validation_error

# The capabilities that Fabric declares as a client: which questions a server may ask.
CLIENT_CAPABILITIES: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}

_STATELESS_PREFIX = "s."

QuestionResponse = dict[str, Any]


class StatelessContinuation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state that a stateless server wants back, and the kind of each of its questions.

    `is_repeated` is for a server of the handshake era that wants URLs visited, and then
    the same call again.
    """

    kinds: dict[str, QuestionKind]
    state: str | None = None
    is_repeated: bool = False


def _read_question(request: Any) -> Question:
    """Raises UpstreamFailed for a request that is not a question."""
    question = question_from_request(request)
    if question is None:
        method = request.get("method") if isinstance(request, dict) else request
        raise UpstreamFailed(f"The MCP server asked a question that Fabric does not know: {str(method)[:100]!r}")
    return question


def result_from_input_required(reply: ToolReply) -> Result:
    """The questions in a reply, as a result. Raises UpstreamFailed if they cannot be read."""
    questions = {key: _read_question(request) for key, request in (reply.input_requests or {}).items()}
    return _build_question_result(questions, state=reply.request_state)


def result_from_url_error(error: UpstreamRpcError) -> Result | None:
    """The URLs to visit before the call is repeated, as questions; None if the error holds none."""
    listed = error.data.get("elicitations") if isinstance(error.data, dict) else None
    if error.code != types.URL_ELICITATION_REQUIRED or not isinstance(listed, list):
        return None
    url_params = [params for params in listed if isinstance(params, dict) and params.get("mode") == "url"]
    questions = {
        f"q{number}": _read_question({"method": "elicitation/create", "params": each})
        for number, each in enumerate(url_params, 1)
    }
    return _build_question_result(questions, is_repeated=True) if questions else None


def _build_question_result(
    questions: dict[str, Question], state: str | None = None, *, is_repeated: bool = False
) -> Result:
    kinds = {key: question.kind for key, question in questions.items()}
    encoded = msgspec.json.encode(StatelessContinuation(kinds=kinds, state=state, is_repeated=is_repeated))
    return make_input_required(questions, _STATELESS_PREFIX + base64.urlsafe_b64encode(encoded).decode())


def params_from_answers(answers: Answers) -> dict[str, Any]:
    """The parameters of the repeated `tools/call` beside its arguments. Raises BadInput."""
    continuation = _decode_continuation(answers.continuation)
    responses_by_key = {
        key: response_from_answer(key, kind, answers.answers[key])
        for key, kind in continuation.kinds.items()
        if key in answers.answers
    }
    if continuation.is_repeated:
        if declined := [
            key for key in continuation.kinds if (responses_by_key.get(key) or {}).get("action") != "accept"
        ]:
            raise BadInput(f"The tool cannot go on before the URL of {declined[0]!r} is visited", field="answers")
        return {}
    responses = {key: _require_response(key, response) for key, response in responses_by_key.items()}
    params: dict[str, Any] = {"inputResponses": responses} if responses else {}
    return params if continuation.state is None else {**params, "requestState": continuation.state}


def to_input_required(pending: Questions) -> dict[str, Any]:
    """Pending questions as a result of the stateless era."""
    requests: dict[str, Any] = {}
    for key, question in pending.questions.items():
        request: dict[str, Any] = {"method": QUESTION_METHODS[question.kind]}
        requests[key] = {**request, "params": question.params} if question.params else request
    return {"resultType": INPUT_REQUIRED, "inputRequests": requests, "requestState": pending.continuation}


def answers_from_params(params: Mapping[str, Any], continuation: str) -> Answers:
    """The responses in a repeated request, as answers."""
    raw_responses = params.get("inputResponses")
    responses = raw_responses if isinstance(raw_responses, Mapping) else {}
    return Answers(
        continuation=continuation, answers={key: _answer_from_response(response) for key, response in responses.items()}
    )


def _answer_from_response(response: Any) -> Answer:
    if isinstance(response, Mapping) and response.get("action") in ("accept", "decline", "cancel"):
        return Answer(action=response["action"], content=response.get("content"))
    return Answer(content=response)


def _decode_continuation(continuation: str) -> StatelessContinuation:
    try:
        if not continuation.startswith(_STATELESS_PREFIX):
            raise unknown_continuation()
        return msgspec.json.decode(
            base64.urlsafe_b64decode(continuation[len(_STATELESS_PREFIX) :]), type=StatelessContinuation
        )
    except (msgspec.DecodeError, binascii.Error, ValueError) as exc:
        raise unknown_continuation() from exc


def _require_response(key: str, response: QuestionResponse | None) -> QuestionResponse:
    if response is None:
        raise BadInput(f"The tool cannot go on: its question {key!r} to a model was declined", field=f"answers.{key}")
    return response


def response_from_answer(key: str, kind: QuestionKind, answer: Answer) -> QuestionResponse | None:
    """The answer as MCP's response; None if asking a model was declined. Raises BadInput if it does not fit."""
    response = _RESPONSE_BUILDERS[kind](answer)
    if response is not None:
        try:
            _RESPONSE_TYPES[kind].validate_python(response, by_name=False)
        except ValidationError as exc:
            raise BadInput(
                f"The answer to {key!r} does not fit the question: {summarize_validation_error(exc)}",
                field=f"answers.{key}",
            ) from exc
    return response


def _build_form_response(answer: Answer) -> QuestionResponse:
    if answer.action != "accept":
        return {"action": answer.action}
    return {"action": "accept", "content": {} if answer.content is None else answer.content}


def _build_url_response(answer: Answer) -> QuestionResponse:
    return {"action": answer.action}


def _build_sampling_response(answer: Answer) -> QuestionResponse | None:
    """The content may be text, a content block, or a whole message of the protocol."""
    if answer.action != "accept":
        return None
    content = {"type": "text", "text": answer.content} if isinstance(answer.content, str) else answer.content
    is_full_message = isinstance(content, Mapping) and "type" not in content
    message = content if is_full_message else {"content": content}
    return {"role": "assistant", "model": "unknown", **message}


def _build_roots_response(answer: Answer) -> QuestionResponse:
    """Without an accepted answer the list of roots is empty."""
    if answer.action != "accept" or answer.content is None:
        return {"roots": []}
    return dict(answer.content) if isinstance(answer.content, Mapping) else {"roots": answer.content}


_RESPONSE_BUILDERS: dict[QuestionKind, Callable[[Answer], QuestionResponse | None]] = {
    "form": _build_form_response,
    "url": _build_url_response,
    "sampling": _build_sampling_response,
    "roots": _build_roots_response,
}

_RESPONSE_TYPES: dict[QuestionKind, TypeAdapter[Any]] = {
    "form": TypeAdapter(types.ElicitResult),
    "url": TypeAdapter(types.ElicitResult),
    "sampling": TypeAdapter(types.CreateMessageResult | types.CreateMessageResultWithTools),
    "roots": TypeAdapter(types.ListRootsResult),
}


_MODEL_REQUEST_DECLINED = -1  # the specification's example for a declined request to a model

AskQuestion = Callable[[Question], Awaitable[QuestionResponse | None]]


class SessionCallbacks:
    """The SDK's three callbacks; `ask` puts the question to the right caller."""

    def __init__(self, ask: AskQuestion) -> None:
        self._ask = ask

    async def elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        response = await self._ask(_read_question({"method": "elicitation/create", "params": _dump_params(params)}))
        return types.ElicitResult.model_validate(response, by_name=False)

    async def sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        response = await self._ask(_read_question({"method": "sampling/createMessage", "params": _dump_params(params)}))
        if response is None:
            return types.ErrorData(code=_MODEL_REQUEST_DECLINED, message="The request to a model was declined")
        if isinstance(response.get("content"), list):
            return types.CreateMessageResultWithTools.model_validate(response, by_name=False)
        return types.CreateMessageResult.model_validate(response, by_name=False)

    async def list_roots(self, context: ClientRequestContext) -> types.ListRootsResult | types.ErrorData:
        return types.ListRootsResult.model_validate(
            await self._ask(_read_question({"method": "roots/list", "params": {}})), by_name=False
        )


def _dump_params(params: BaseModel) -> dict[str, Any]:
    """The parameters as the server sent them, without fields that concern only the session."""
    return params.model_dump(by_alias=True, mode="json", exclude_unset=True, exclude={"meta", "task"})
