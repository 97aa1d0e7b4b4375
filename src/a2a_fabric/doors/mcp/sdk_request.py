"""An MCP request received through the SDK: its caller, era and transport, its notifications, and its questions.

Clients of the handshake era are asked what an agent wants to know by requests on the stream of their own request,
which is then repeated with their responses. Clients of the stateless era repeat their request themselves.
`ToolElicitation` serves tool calls, `QueryElicitation` prompts and resources."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, get_args

import anyio
import mcp_types as types
import msgspec
from mcp.server.connection import Connection, allowed_log_levels
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import INVALID_PARAMS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError
from starlette.requests import Request as WebRequest

from a2a_fabric.core.call import Emit
from a2a_fabric.core.errors import BadInput, FabricError, UpstreamRefused
from a2a_fabric.core.propagation import Trace
from a2a_fabric.core.result import Answer, Answers, Event, Question, QuestionKind, Questions
from a2a_fabric.doors.mcp.request import McpCallerDisconnected, McpRequestContext
from a2a_fabric.doors.mcp.results import LogLevel, McpEventWriter, render_input_required
from a2a_fabric.doors.mcp.tool_calls import ToolCall, UnknownTool
from a2a_fabric.protocols.mcp.apps import UI_EXTENSION, UI_SETTINGS
from a2a_fabric.protocols.mcp.questions import (
    AnswerCapabilities,
    ClientResponse,
    ClientResponses,
    answers_from_responses,
    handshake_request_from_question,
    parse_capabilities,
    question_from_request,
)
from a2a_fabric.protocols.mcp.runtime_ports import PromptResourceQuery
from a2a_fabric.protocols.mcp.wire import RESOURCE_NOT_FOUND

REQUEST_CONTEXT_KEY = "fabric.mcp.request_context"  # in the scope of an HTTP request

SdkContext = ServerRequestContext[Any, Any]

# The capabilities of a client that let a server ask it something.
_ASKABLE = {"elicitation", "roots", "sampling"}


# Set while a message with a passport or a mandate of its own is handled.
delegated_context: ContextVar[McpRequestContext | None] = ContextVar("mcp_delegated_context", default=None)


def get_request_context(ctx: SdkContext) -> McpRequestContext:
    """HTTP requests carry the context in their scope, text sessions with each message."""
    if (own := delegated_context.get()) is not None:
        return own
    request = ctx.request
    request_context = request.scope[REQUEST_CONTEXT_KEY] if isinstance(request, WebRequest) else request
    assert isinstance(request_context, McpRequestContext)  # noqa: S101  # every way in sets it
    return request_context


def get_connection(ctx: SdkContext) -> Connection:
    """The connection outlives the request. The SDK has no public way to it."""
    return ctx.session._connection


def is_stateless_era(ctx: SdkContext) -> bool:
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def resource_not_found_code(ctx: SdkContext) -> int:
    return INVALID_PARAMS if is_stateless_era(ctx) else RESOURCE_NOT_FOUND


def get_askable_capabilities(ctx: SdkContext) -> dict[str, Any]:
    """The questions that the client can answer, and whether it shows user interfaces.

    In the handshake era requests must be able to reach it.
    """
    declared = ctx.session.client_capabilities if is_stateless_era(ctx) or ctx.session.can_send_request else None
    if declared is None:
        return {}
    askable = declared.model_dump(by_alias=True, mode="json", exclude_none=True, include=_ASKABLE)
    can_show_apps = get_answer_capabilities(ctx).can_show_apps
    return {**askable, "extensions": {UI_EXTENSION: UI_SETTINGS}} if can_show_apps else askable


def get_answer_capabilities(ctx: SdkContext) -> AnswerCapabilities:
    declared = ctx.session.client_capabilities
    return (
        AnswerCapabilities()
        if declared is None
        else parse_capabilities(declared.model_dump_json(by_alias=True).encode())
    )


_LOG_LEVELS: tuple[str, ...] = get_args(LogLevel)
_LOG_LEVEL_KEY = "fabric.log_level"
_NOTIFICATION_TYPES: dict[str, type[types.ProgressNotification | types.LoggingMessageNotification]] = {
    "notifications/progress": types.ProgressNotification,
    "notifications/message": types.LoggingMessageNotification,
}


def make_emitter(ctx: SdkContext, trace: Callable[[], Trace]) -> Emit | None:
    """None if the client wants neither progress nor log messages; then the call need not be streamed."""
    writer = McpEventWriter((ctx.meta or {}).get("progress_token"), _find_log_level(ctx))
    if not writer.has_recipient:
        return None

    async def emit(event: Event) -> None:
        for method, params in writer.to_notifications(event, trace()):
            notification = _NOTIFICATION_TYPES[method].model_validate({"method": method, "params": params})
            await ctx.session.send_notification(notification, related_request_id=ctx.request_id)

    return emit


def set_log_level(ctx: SdkContext, level: str) -> None:
    """Set the level of a session of the handshake era."""
    get_connection(ctx).state[_LOG_LEVEL_KEY] = level


def _find_log_level(ctx: SdkContext) -> str | None:
    """Each request asks for logs in the stateless era; in the handshake era the session does."""
    if not is_stateless_era(ctx):
        level: str | None = get_connection(ctx).state.get(_LOG_LEVEL_KEY)
        return level
    allowed = allowed_log_levels(ctx.protocol_version, ctx.meta)
    return next((level for level in _LOG_LEVELS if level in allowed), None)


_log = logging.getLogger(__name__)

MAX_ROUNDS = 32
ANSWER_TIMEOUT = 300.0
WITHDRAW_TIMEOUT = 5.0
_FIRST_PAUSE, _MAX_PAUSE = 0.05, 2.0  # seconds, before an agent that only needs time is asked again

_REQUEST_TYPES: dict[QuestionKind, type[types.ElicitRequest | types.CreateMessageRequest | types.ListRootsRequest]] = {
    "form": types.ElicitRequest,
    "url": types.ElicitRequest,
    "sampling": types.CreateMessageRequest,
    "roots": types.ListRootsRequest,
}


class ToolElicitation:
    """Asks one client the questions of one call."""

    def __init__(self, ctx: SdkContext, call: ToolCall, arguments: Mapping[str, Any]) -> None:
        self._ctx = ctx
        self._call = call
        self._arguments = arguments
        self._pause = _FIRST_PAUSE

    async def run(self, emit: Emit | None) -> dict[str, Any]:
        """The result. Raises UnknownTool and McpCallerDisconnected."""
        request_context = get_request_context(self._ctx)
        response: dict[str, Any] | Questions
        response, request_context.pending_questions = (
            request_context.pending_questions or await self._call.run(self._arguments, emit, self._read_answers()),
            None,
        )
        for _ in range(MAX_ROUNDS):
            if not isinstance(response, Questions):
                return response
            if not self._can_ask(response):
                break
            if is_stateless_era(self._ctx):
                return render_input_required(response, self._call.trace)
            response = await self._call.run(self._arguments, emit, await self._ask(response))
        return (
            self._call.render_unanswerable(response, self._arguments) if isinstance(response, Questions) else response
        )

    def _read_answers(self) -> Answers | msgspec.UnsetType:
        """Answers that came with the request itself. Raises MCPError."""
        params = self._ctx.params or {}
        if not is_stateless_era(self._ctx):
            return msgspec.UNSET
        try:
            responses = msgspec.convert(params.get("inputResponses"), ClientResponses | None)
        except msgspec.ValidationError as exc:
            raise MCPError(types.INVALID_PARAMS, f"Bad inputResponses: {exc}"[:300]) from exc
        return answers_from_responses(responses, params.get("requestState"))

    def _can_ask(self, questions: Questions) -> bool:
        is_reachable = is_stateless_era(self._ctx) or self._ctx.session.can_send_request
        return is_reachable and get_answer_capabilities(self._ctx).can_answer(questions)

    async def _ask(self, questions: Questions) -> Answers:
        """A client that disconnects has cancelled, and the agent is told so. Raises McpCallerDisconnected."""
        try:
            answers = await get_request_context(self._ctx).run_cancellable(self._collect_answers(questions))
        except (asyncio.CancelledError, McpCallerDisconnected):
            if questions.questions:
                await self._withdraw(questions)
            raise
        return Answers(continuation=questions.continuation, answers=answers)

    async def _withdraw(self, questions: Questions) -> None:
        answers = {key: Answer(action="cancel") for key in questions.questions}
        with anyio.move_on_after(WITHDRAW_TIMEOUT, shield=True), suppress(UnknownTool, McpCallerDisconnected):
            await self._call.run(self._arguments, None, Answers(continuation=questions.continuation, answers=answers))

    async def _collect_answers(self, questions: Questions) -> dict[str, Answer]:
        if not questions.questions:
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, _MAX_PAUSE)
        return {
            key: msgspec.convert(await ask_client(self._ctx, question), ClientResponse).answer
            for key, question in questions.questions.items()
        }


async def ask_client(ctx: SdkContext, question: Question) -> dict[str, Any]:
    """The client's response. A client that answers with an error has declined. Raises McpCallerDisconnected."""
    try:
        response = await ctx.session.send_request(
            _REQUEST_TYPES[question.kind].model_validate(handshake_request_from_question(question), by_name=False),
            _result_type(question),
            request_read_timeout_seconds=ANSWER_TIMEOUT,
            metadata=ServerMessageMetadata(related_request_id=ctx.request_id),
        )
    except MCPError as error:
        if error.code == types.CONNECTION_CLOSED:
            raise McpCallerDisconnected from error
        return {"action": "cancel" if error.code == types.REQUEST_TIMEOUT else "decline"}
    except ValidationError as error:
        _log.warning("A question or its answer does not follow the protocol: %s", error.errors()[0]["msg"])
        return {"action": "cancel"}
    return response.model_dump(by_alias=True, mode="json", exclude_none=True)


def _result_type(question: Question) -> type[BaseModel]:
    match question.kind:
        case "form" | "url":
            return types.ElicitResult
        case "sampling":
            return types.CreateMessageResultWithTools if "tools" in question.params else types.CreateMessageResult
        case "roots":
            return types.ListRootsResult


JsonObject = dict[str, Any]
SendQuery = Callable[[PromptResourceQuery], Awaitable[JsonObject]]


class QueryElicitation:
    """Asks one client the questions of one request. `send_query` sends the request to the agent."""

    def __init__(self, ctx: SdkContext, agent_id: str, send_query: SendQuery) -> None:
        self._ctx = ctx
        self._agent_id = agent_id
        self._send_query = send_query

    async def run(self, query: PromptResourceQuery) -> JsonObject:
        """The result; for a stateless client also the questions. Raises FabricError and McpCallerDisconnected."""
        for _ in range(MAX_ROUNDS):
            result = await get_request_context(self._ctx).run_cancellable(self._send_query(query))
            if result.get("resultType") != "input_required" or is_stateless_era(self._ctx):
                return result
            query = _with_responses(query, result, await self._collect_responses(query, result))
        raise UpstreamRefused(
            f"The agent asked questions {MAX_ROUNDS} times without giving a result", agent_id=self._agent_id
        )

    async def _collect_responses(self, query: PromptResourceQuery, result: JsonObject) -> JsonObject:
        questions = {
            key: question_from_request(request) for key, request in (result.get("inputRequests") or {}).items()
        }
        if (
            not self._can_ask({key: question for key, question in questions.items() if question})
            or None in questions.values()
        ):
            message = "The agent needs more input, and this client has not declared that it can give it"
            raise UpstreamRefused(message, agent_id=self._agent_id, input_requests=result.get("inputRequests"))
        try:
            return {key: await self._ask_client(question) for key, question in questions.items() if question}
        except (asyncio.CancelledError, McpCallerDisconnected, FabricError):
            await self._withdraw(_with_responses(query, result, {key: {"action": "cancel"} for key in questions}))
            raise

    def _can_ask(self, questions: dict[str, Question]) -> bool:
        can_answer = get_answer_capabilities(self._ctx).can_answer(Questions(questions=questions, continuation=""))
        return self._ctx.session.can_send_request and can_answer

    async def _ask_client(self, question: Question) -> JsonObject:
        response = await get_request_context(self._ctx).run_cancellable(ask_client(self._ctx, question))
        if question.kind in ("form", "url") or "action" not in response:
            return response
        if question.kind == "roots":
            return {"roots": []}
        raise BadInput("The agent cannot go on: its question to a model was declined", agent_id=self._agent_id)

    async def _withdraw(self, query: PromptResourceQuery) -> None:
        """Tell the agent, which may be waiting, that no answer will come."""
        with anyio.move_on_after(WITHDRAW_TIMEOUT, shield=True):
            try:
                await self._send_query(query)
            except FabricError:
                return


def _with_responses(query: PromptResourceQuery, result: JsonObject, responses: JsonObject) -> PromptResourceQuery:
    params = {name: value for name, value in query.params.items() if name not in ("inputResponses", "requestState")}
    if responses:
        params["inputResponses"] = responses
    if result.get("requestState") is not None:
        params["requestState"] = result["requestState"]
    return msgspec.structs.replace(query, params=params)
