"""An MCP server's questions as `Question`s, the answers as MCP responses, and the SDK callbacks that take questions.

A server of the handshake era asks by requests during a call, a stateless server by a reply that
lists its questions. A stateless server remembers nothing between two calls, so the
continuation holds what is needed to answer it.

A request over a session buffers its events, so a slow reader never blocks the session that all calls share. It
runs in a task of its own, because it goes on while its caller looks for an answer. A request that
waits for an answer is found by its continuation until it is answered or expires."""

from __future__ import annotations

import asyncio
import base64
import binascii
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Literal

import mcp_types as types
import msgspec
from mcp.client.session import ClientRequestContext
from mcp.shared.dispatcher import ProgressFnT
from pydantic import BaseModel, TypeAdapter, ValidationError

from a2a_fabric.core.call import Emit, Principal, owner_from_principal
from a2a_fabric.core.errors import BadInput, UpstreamFailed
from a2a_fabric.core.pending_questions import MAX_PENDING, PendingQuestions, unknown_continuation
from a2a_fabric.core.result import (
    Answer,
    Answers,
    Event,
    Question,
    QuestionKind,
    Questions,
    Result,
    make_input_required,
)
from a2a_fabric.protocols.mcp.apps import UI_EXTENSION, UI_SETTINGS
from a2a_fabric.protocols.mcp.questions import QUESTION_METHODS, question_from_request
from a2a_fabric.protocols.mcp.wire import INPUT_REQUIRED, TASKS_EXTENSION
from a2a_fabric.runtimes.mcp.content import ProgressFilter, ToolReply, UpstreamRpcError, summarize_validation_error

_log = logging.getLogger(__name__)

_MAX_BUFFERED_EVENTS = 256  # for a slow reader; then the oldest are dropped, because only the newest progress matters
_MAX_QUESTIONS = 32  # at a time; more are declined
_CANCEL_TIMEOUT = 6.0  # for notifying the server
_GIVE_UP_GRACE = 5.0  # for a server whose question was cancelled to end its call by itself
_CLOSE_TIMEOUT = 2.0

# What Fabric declares as a client: it follows tasks, and which questions a server may ask if it may ask at all.
# A session and its list of tools are of all clients, so it declares user interfaces, too. Calls of a stateless server
# declare them only for clients that show them.
CLIENT_EXTENSIONS: dict[str, dict[str, Any]] = {TASKS_EXTENSION: {}, UI_EXTENSION: UI_SETTINGS}
_QUESTION_CAPABILITIES: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}


def make_call_capabilities(*, may_ask: bool, shows_apps: bool) -> dict[str, Any]:
    """What Fabric declares with one call of a stateless server."""
    extensions = CLIENT_EXTENSIONS if shows_apps else {TASKS_EXTENSION: {}}
    return {"extensions": extensions, **(_QUESTION_CAPABILITIES if may_ask else {})}


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


def read_question(request: Any) -> Question:
    """Raises UpstreamFailed for a request that is not a question."""
    question = question_from_request(request)
    if question is None:
        method = request.get("method") if isinstance(request, dict) else request
        raise UpstreamFailed(f"The MCP server asked a question that Fabric does not know: {str(method)[:100]!r}")
    return question


def result_from_input_required(reply: ToolReply) -> Result:
    """The questions in a reply, as a result. Raises UpstreamFailed if they cannot be read."""
    questions = {key: read_question(request) for key, request in (reply.input_requests or {}).items()}
    return _build_question_result(questions, state=reply.request_state)


def result_from_url_error(error: UpstreamRpcError) -> Result | None:
    """The URLs to visit before the call is repeated, as questions; None if the error holds none."""
    listed = error.data.get("elicitations") if isinstance(error.data, dict) else None
    if error.code != types.URL_ELICITATION_REQUIRED or not isinstance(listed, list):
        return None
    url_params = [params for params in listed if isinstance(params, dict) and params.get("mode") == "url"]
    questions = {
        f"q{number}": read_question({"method": "elicitation/create", "params": each})
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
        response = await self._ask(read_question({"method": "elicitation/create", "params": _dump_params(params)}))
        return types.ElicitResult.model_validate(response, by_name=False)

    async def sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        response = await self._ask(read_question({"method": "sampling/createMessage", "params": _dump_params(params)}))
        if response is None:
            return types.ErrorData(code=_MODEL_REQUEST_DECLINED, message="The request to a model was declined")
        if isinstance(response.get("content"), list):
            return types.CreateMessageResultWithTools.model_validate(response, by_name=False)
        return types.CreateMessageResult.model_validate(response, by_name=False)

    async def list_roots(self, context: ClientRequestContext) -> types.ListRootsResult | types.ErrorData:
        return types.ListRootsResult.model_validate(
            await self._ask(read_question({"method": "roots/list", "params": {}})), by_name=False
        )


def _dump_params(params: BaseModel) -> dict[str, Any]:
    """The parameters as the server sent them, without fields that concern only the session."""
    return params.model_dump(by_alias=True, mode="json", exclude_unset=True, exclude={"meta", "task"})


SessionReply = dict[str, Any] | UpstreamRpcError


class PendingMcpRequest:
    """One request over the shared session. `add_event` never waits, so a slow reader does not hold up the session."""

    __slots__ = (
        "_events",
        "_give_up_timer",
        "_is_given_up",
        "_numbers",
        "_open_questions",
        "_task",
        "_wake",
        "owner",
        "tool",
    )

    def __init__(self, principal: Principal, tool: str) -> None:
        self.owner = owner_from_principal(principal)
        self.tool = tool
        self._events: deque[Event] = deque(maxlen=_MAX_BUFFERED_EVENTS)
        self._wake = asyncio.Event()
        self._open_questions: dict[str, tuple[Question, asyncio.Future[QuestionResponse | None]]] = {}
        self._numbers = itertools.count(1)
        self._task: asyncio.Task[SessionReply]
        self._is_given_up = False
        self._give_up_timer: asyncio.TimerHandle | None = None

    @property
    def ended(self) -> asyncio.Future[SessionReply]:
        """Done when the request has ended."""
        return self._task

    @property
    def questions(self) -> dict[str, Question]:
        """The questions without an answer."""
        return {key: question for key, (question, _) in self._open_questions.items()}

    def start(self, request: Coroutine[Any, Any, SessionReply], on_end: Callable[[PendingMcpRequest], None]) -> None:
        """Start the request in the current context, from which the session knows whose call it is."""
        self._task = asyncio.ensure_future(request)
        self._task.add_done_callback(self._on_done)
        self._task.add_done_callback(lambda _: on_end(self))

    def add_event(self, event: Event) -> None:
        self._events.append(event)
        self._wake.set()

    async def relay_until_reply(self, emit: Emit) -> SessionReply | None:
        """Emit events until there is a reply, or a question (None). Cancelling ends the call."""
        is_complete = False
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._events:
                    await emit(self._events.popleft())
                if self._task.done() or self._open_questions:
                    is_complete = True
                    return self._task.result() if self._task.done() else None
        finally:
            if not is_complete:
                await self.cancel(_CANCEL_TIMEOUT)

    async def ask(self, question: Question) -> QuestionResponse | None:
        """Put the server's question to the caller, and return the response."""
        if self._is_given_up or self._task.done() or len(self._open_questions) >= _MAX_QUESTIONS:
            return response_from_answer("", question.kind, Answer(action="cancel"))
        key = f"q{next(self._numbers)}"
        response_future: asyncio.Future[QuestionResponse | None] = asyncio.get_running_loop().create_future()
        self._open_questions[key] = question, response_future
        self._wake.set()
        try:
            return await response_future
        finally:  # also when the server withdraws its question
            self._open_questions.pop(key, None)

    def answer(self, answers: Mapping[str, Answer]) -> None:
        """Raises BadInput if an answer does not fit its question; then the server gets none of them."""
        matching_keys = [key for key in answers if key in self._open_questions]
        responses = {
            key: response_from_answer(key, self._open_questions[key][0].kind, answers[key]) for key in matching_keys
        }
        for key, response in responses.items():
            self._resolve(key, response)
        if self._open_questions:
            self._wake.set()

    def resolve_all(self, action: Literal["decline", "cancel"]) -> None:
        """Answer all open questions with this action."""
        for key, (question, _) in list(self._open_questions.items()):
            self._resolve(key, response_from_answer(key, question.kind, Answer(action=action)))

    def give_up(self) -> None:
        """No answer will come: cancel the questions, and leave the server a moment to end the call by itself."""
        self._is_given_up = True
        self.resolve_all("cancel")
        if not self._task.done():
            self._give_up_timer = asyncio.get_running_loop().call_later(_GIVE_UP_GRACE, self._task.cancel)

    async def cancel(self, timeout: float) -> None:
        """Cancel the call; the session notifies the server."""
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=timeout)

    def _resolve(self, key: str, response: QuestionResponse | None) -> None:
        _, response_future = self._open_questions.pop(key)
        if not response_future.done():
            response_future.set_result(response)

    def _on_done(self, task: asyncio.Task[SessionReply]) -> None:
        self.resolve_all("cancel")
        if self._give_up_timer is not None:
            self._give_up_timer.cancel()
        if not task.cancelled():
            task.exception()  # so that it is not reported as never retrieved
        self._wake.set()


def make_progress_callback(pending: PendingMcpRequest) -> ProgressFnT:
    """The callback with which the session reports the server's progress."""

    progress_filter = ProgressFilter()

    async def report(progress: float, total: float | None, message: str | None) -> None:
        if (event := progress_filter.make_event(progress, total, message)) is not None:
            pending.add_event(event)

    return report


CanAnswer = Callable[[Mapping[str, Question]], bool]

CONTINUATION_PREFIX = "p."


class McpPendingQuestions:
    """The requests to one server that wait for answers to the server's questions."""

    def __init__(self, name: str, timeout: float, limit: int = MAX_PENDING, owner_tag: str = "") -> None:
        self._name = name
        self._limit = limit
        self._pending = PendingQuestions[PendingMcpRequest](
            name,
            timeout,
            PendingMcpRequest.give_up,
            limit=limit,
            prefix=CONTINUATION_PREFIX,
            owner_tag=owner_tag,
        )

    def __len__(self) -> int:
        return len(self._pending)

    async def wait_for_outcome(
        self, request: PendingMcpRequest, emit: Emit, can_answer: CanAnswer = lambda questions: True
    ) -> SessionReply | Result:
        """The server's reply, or its questions with the continuation under which the request waits.

        Questions that the client cannot answer are declined.
        """
        while (reply := await request.relay_until_reply(emit)) is None:
            if not can_answer(request.questions):
                request.resolve_all("decline")
            elif self._pending.is_full:
                _log.warning("%s: %d calls wait for answers already; a question was declined", self._name, self._limit)
                request.resolve_all("decline")
            else:
                return make_input_required(request.questions, self._pending.add(request, (request.owner, request.tool)))
        return reply

    def resume(self, answers: Answers, principal: Principal, tool: str) -> PendingMcpRequest:
        """Pass the answers to the request that waits for them. Raises BadInput; then the request goes on waiting."""
        request = self._pending.find(answers.continuation, (owner_from_principal(principal), tool))
        if request is None:
            raise unknown_continuation()
        request.answer(answers.answers)
        self._pending.remove(answers.continuation)
        return request

    async def aclose(self) -> None:
        await asyncio.gather(*(request.cancel(_CLOSE_TIMEOUT) for request in self._pending.close()))
