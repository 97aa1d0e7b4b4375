"""A tool call in rounds: while the agent asks, its questions go to the client, and the answers back to the agent.

Only clients of the handshake era are asked here, by requests on the stream of the very
call; those of the stateless era go round by themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import anyio
import mcp_types as types
import msgspec
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import BaseModel, ValidationError

from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.question import Answer, Answers, Question, QuestionKind, Questions
from a2a_fabric.doors.mcp.asker import Context, is_modern, visit_of
from a2a_fabric.doors.mcp.calling import ToolCall, UnknownTool
from a2a_fabric.doors.mcp.questions import (
    Response,
    Responses,
    answers_of,
    asked_during_a_call,
    input_required,
)
from a2a_fabric.doors.mcp.tasks import abilities
from a2a_fabric.doors.mcp.visit import Left

_log = logging.getLogger(__name__)

ROUNDS = 32
ANSWER_TIMEOUT = 300.0
WITHDRAW_TIMEOUT = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # before looking again at an agent that wants nothing but time

_REQUESTS: dict[QuestionKind, type[types.ElicitRequest | types.CreateMessageRequest | types.ListRootsRequest]] = {
    "form": types.ElicitRequest,
    "url": types.ElicitRequest,
    "sampling": types.CreateMessageRequest,
    "roots": types.ListRootsRequest,
}


class Interview:
    """Of one client, about one call."""

    def __init__(self, ctx: Context, call: ToolCall, arguments: Mapping[str, Any]) -> None:
        self._ctx = ctx
        self._call = call
        self._arguments = arguments
        self._pause = _FIRST_PAUSE

    async def run(self, emit: Emit | None) -> dict[str, Any]:
        """The result. Raises UnknownTool and Left."""
        visit = visit_of(self._ctx)
        told: dict[str, Any] | Questions
        told, visit.asked = visit.asked or await self._call.run(self._arguments, emit, self._brought()), None
        for _ in range(ROUNDS):
            if not isinstance(told, Questions):
                return told
            if not self._can_ask(told):
                break
            if is_modern(self._ctx):
                return input_required(told, self._call.trace)
            told = await self._call.run(self._arguments, emit, await self._asked(told))
        return self._call.unanswerable(told, self._arguments) if isinstance(told, Questions) else told

    def _brought(self) -> Answers | msgspec.UnsetType:
        """Answers that came with the request itself. Raises MCPError."""
        params = self._ctx.params or {}
        if not is_modern(self._ctx):
            return msgspec.UNSET
        try:
            responses = msgspec.convert(params.get("inputResponses"), Responses | None)
        except msgspec.ValidationError as exc:
            raise MCPError(types.INVALID_PARAMS, f"Bad inputResponses: {exc}"[:300]) from exc
        return answers_of(responses, params.get("requestState"))

    def _can_ask(self, asked: Questions) -> bool:
        is_reached = is_modern(self._ctx) or self._ctx.session.can_send_request
        return is_reached and abilities(self._ctx).cover(asked)

    async def _asked(self, asked: Questions) -> Answers:
        """Raises Left. Who leaves without an answer has cancelled; the agent is told before we go."""
        try:
            answers = await visit_of(self._ctx).work(self._answers(asked))
        except (asyncio.CancelledError, Left):
            if asked.questions:
                await self._withdraw(asked)
            raise
        return Answers(continuation=asked.continuation, answers=answers)

    async def _withdraw(self, asked: Questions) -> None:
        answers = {key: Answer(action="cancel") for key in asked.questions}
        with anyio.move_on_after(WITHDRAW_TIMEOUT, shield=True), suppress(UnknownTool, Left):
            await self._call.run(self._arguments, None, Answers(continuation=asked.continuation, answers=answers))

    async def _answers(self, asked: Questions) -> dict[str, Answer]:
        if not asked.questions:
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return {key: await self._answer(question) for key, question in asked.questions.items()}

    async def _answer(self, question: Question) -> Answer:
        return msgspec.convert(await response_to(self._ctx, question), Response).answer


async def response_to(ctx: Context, question: Question) -> dict[str, Any]:
    """In the client's own words. One that answers with an error has declined, whatever it was asked. Raises Left."""
    try:
        response = await ctx.session.send_request(
            _REQUESTS[question.kind].model_validate(asked_during_a_call(question), by_name=False),
            _result_type(question),
            request_read_timeout_seconds=ANSWER_TIMEOUT,
            metadata=ServerMessageMetadata(related_request_id=ctx.request_id),
        )
    except MCPError as error:
        if error.code == types.CONNECTION_CLOSED:
            raise Left from error
        return {"action": "cancel" if error.code == types.REQUEST_TIMEOUT else "decline"}
    except ValidationError as error:
        _log.warning("a question or its answer does not follow the protocol: %s", error.errors()[0]["msg"])
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
