"""A prompt or a resource whose agent wants to know something first, for a client of the handshake era.

The agent's result lists its questions, as the stateless era has it. The client is asked
them by requests on the stream of its own request, which is then repeated with the responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec

from a2a_fabric.core.errors import BadInput, FabricError, UpstreamRefused
from a2a_fabric.core.question import Question, QuestionKind, Questions
from a2a_fabric.doors.mcp.asker import Context, is_modern, visit_of
from a2a_fabric.doors.mcp.interview import ROUNDS, WITHDRAW_TIMEOUT, response_to
from a2a_fabric.doors.mcp.tasks import abilities
from a2a_fabric.doors.mcp.visit import Left
from a2a_fabric.outbound.library import Query

Raw = dict[str, Any]
Ask = Callable[[Query], Awaitable[Raw]]

_KINDS: dict[str, QuestionKind] = {
    "elicitation/create": "form",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}


class Dialogue:
    """About one request. `ask` puts a query to the agent."""

    def __init__(self, ctx: Context, agent_id: str, ask: Ask) -> None:
        self._ctx = ctx
        self._agent_id = agent_id
        self._ask = ask

    async def run(self, query: Query) -> Raw:
        """The result; of a stateless client also the question. Raises FabricError and Left."""
        for _ in range(ROUNDS):
            raw = await visit_of(self._ctx).work(self._ask(query))
            if raw.get("resultType") != "input_required" or is_modern(self._ctx):
                return raw
            query = _answering(query, raw, await self._responses(query, raw))
        raise UpstreamRefused("The agent asks again and again", agent_id=self._agent_id)

    async def _responses(self, query: Query, raw: Raw) -> Raw:
        asked = {key: _question(request) for key, request in (raw.get("inputRequests") or {}).items()}
        if not self._can_ask({key: question for key, question in asked.items() if question}) or None in asked.values():
            words = "The agent needs more input, which this client has not said that it can be asked for"
            raise UpstreamRefused(words, agent_id=self._agent_id, input_requests=raw.get("inputRequests"))
        try:
            return {key: await self._response(question) for key, question in asked.items() if question}
        except (asyncio.CancelledError, Left, FabricError):
            await self._withdraw(_answering(query, raw, {key: {"action": "cancel"} for key in asked}))
            raise

    def _can_ask(self, asked: dict[str, Question]) -> bool:
        covered = abilities(self._ctx).cover(Questions(questions=asked, continuation=""))
        return self._ctx.session.can_send_request and covered

    async def _response(self, question: Question) -> Raw:
        response = await visit_of(self._ctx).work(response_to(self._ctx, question))
        if question.kind in ("form", "url") or "action" not in response:
            return response
        if question.kind == "roots":
            return {"roots": []}
        raise BadInput("It cannot go on: its question to a model was declined", agent_id=self._agent_id)

    async def _withdraw(self, query: Query) -> None:
        """The agent is told before we go; it may have waited."""
        with anyio.move_on_after(WITHDRAW_TIMEOUT, shield=True):
            try:
                await self._ask(query)
            except FabricError:
                return


def _answering(query: Query, raw: Raw, responses: Raw) -> Query:
    params = {name: value for name, value in query.params.items() if name not in ("inputResponses", "requestState")}
    if responses:
        params["inputResponses"] = responses
    if raw.get("requestState") is not None:
        params["requestState"] = raw["requestState"]
    return msgspec.structs.replace(query, params=params)


def _question(request: Any) -> Question | None:
    """None for what nobody here understands."""
    if not isinstance(request, dict) or not isinstance(params := request.get("params") or {}, dict):
        return None
    kind = _KINDS.get(str(request.get("method")))
    if kind == "form" and params.get("mode") == "url":
        kind = "url"
    return None if kind is None else Question(kind=kind, message=str(params.get("message", "")), params=params)
