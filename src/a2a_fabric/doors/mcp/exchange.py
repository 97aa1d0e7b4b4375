"""One request of a stateless client to a server of either era, until its answer or a question.

The stateless era ends a request with a question and begins it anew with the answer. A server
of the handshake era waits all the while, so the exchange with it is parked: for a time, and
for the principal whose request it was.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

import mcp_types as types

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import UpstreamInterrupted
from a2a_fabric.doors.mcp import eras, jsonrpc
from a2a_fabric.doors.mcp.jsonrpc import RPCError
from a2a_fabric.doors.mcp.line import Asked, Said
from a2a_fabric.doors.mcp.lines import Held, Lines
from a2a_fabric.doors.mcp.reply import Reply
from a2a_fabric.doors.mcp.request import Request

PARKED_FOR = 600.0  # seconds that a person may take for an answer
_PARKED_AT_MOST = 1000


class Exchange:
    """Lives on a line that it took, and gives back when it ends."""

    def __init__(self, lines: Lines, line: Held, request: Request, asked: Asked) -> None:
        self.request = request
        self._lines = lines
        self.line = line
        self._asked = asked
        self._questions: dict[str, types.JSONRPCRequest] = {}
        self._count = 0
        self._is_alone = request.needs_a_line
        self._has_ended = False

    @property
    def questions(self) -> dict[str, Any]:
        """As the stateless era has them."""
        return {
            key: {"method": each.method, "params": each.params} if each.params else {"method": each.method}
            for key, each in self._questions.items()
        }

    async def until_told(self, reply: Reply) -> dict[str, Any] | None:
        """The result, or None if there are questions to be answered first. Raises FabricError or RPCError."""
        while True:
            said = await self._asked.next()
            for each in (said, *self._asked.at_hand()):
                if isinstance(each, types.JSONRPCResponse):
                    return each.result
                if isinstance(each, types.JSONRPCError):
                    raise RPCError(each.error.code, each.error.message, each.error.data)
                await self._heard(each, reply)
            if self._questions:
                return None

    async def answer(self, request: Request) -> None:
        """What the client brought, for the server that waits. Raises UpstreamInterrupted."""
        self.request = request
        self._asked.token = request.meta.get("progressToken")
        responses = request.params.get("inputResponses")
        given: dict[str, Any] = responses if isinstance(responses, dict) else {}
        for key in [key for key in self._questions if isinstance(given.get(key), dict)]:
            question = self._questions.pop(key)
            response = types.JSONRPCResponse(jsonrpc="2.0", id=question.id, result=given[key])
            await self.line.say(response, self._headers)

    @property
    def waits_for_more(self) -> bool:
        return bool(self._questions)

    def end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self.line.forget(self._asked)
            self._lines.give_back(self.line, alone=self._is_alone)

    async def cancel(self) -> None:
        """Nobody waits any more. Never raises."""
        if not self._has_ended:
            await self.line.cancel(self._asked, self._headers)
            self.end()

    @property
    def _headers(self) -> Mapping[str, str]:
        if self._lines.era == "stateless":
            return {eras.VERSION_HEADER: eras.STATELESS}
        return {eras.VERSION_HEADER: str(self.line.about.get("protocolVersion", eras.HANDSHAKE))}

    async def _heard(self, said: Said, reply: Reply) -> None:
        if isinstance(said, types.JSONRPCRequest):
            await self._put(said)
        elif isinstance(said, types.JSONRPCNotification):
            if said.method == "notifications/cancelled":
                number = (said.params or {}).get("requestId")
                self._questions = {key: each for key, each in self._questions.items() if each.id != number}
            elif self.request.wants(said.method, said.params or {}):
                await reply.notify(said.method, said.params)

    async def _put(self, question: types.JSONRPCRequest) -> None:
        if eras.QUESTIONS.get(question.method) in self.request.capabilities:
            self._count += 1
            self._questions[f"{question.method.replace('/', '_')}_{self._count}"] = question
            return
        error = types.ErrorData(code=types.METHOD_NOT_FOUND, message="The client cannot be asked this")
        await self.line.say(types.JSONRPCError(jsonrpc="2.0", id=question.id, error=error), self._headers)


class Parking:
    """Exchanges between the visits of their clients. `state` brings a client back to its own."""

    def __init__(self) -> None:
        self._parked: dict[str, tuple[tuple[str, Principal], Exchange, asyncio.TimerHandle]] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def park(self, agent_id: str, principal: Principal, exchange: Exchange) -> str:
        """Raises UpstreamInterrupted if too many wait already."""
        if len(self._parked) >= _PARKED_AT_MOST:
            raise UpstreamInterrupted("Too many questions wait for an answer", agent_id=agent_id)
        state = secrets.token_urlsafe(24)
        due = asyncio.get_running_loop().call_later(PARKED_FOR, self._expire, state)
        self._parked[state] = ((agent_id, principal), exchange, due)
        return state

    def take(self, agent_id: str, principal: Principal, request: Request) -> Exchange:
        """Raises RPCError: for a state that is not ours, is over, or is another's."""
        state = str(request.params.get("requestState"))
        parked = self._parked.get(state)
        if parked is None or parked[0] != (agent_id, principal) or parked[1].request.what != request.what:
            raise RPCError(jsonrpc.INVALID_PARAMS, "Nobody waits for an answer with this requestState")
        del self._parked[state]
        parked[2].cancel()
        return parked[1]

    async def aclose(self) -> None:
        for state in list(self._parked):
            self._expire(state)
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=5)

    def _expire(self, state: str) -> None:
        parked = self._parked.pop(state, None)
        if parked is not None:
            parked[2].cancel()
            task = asyncio.ensure_future(parked[1].cancel())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
