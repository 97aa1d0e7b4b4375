"""Between a client and a program of the same era: messages go to and fro as they are.

On a pipe nothing says to which request a question or a log line belongs, so it goes to
the stream of its progress token, or of the request asked last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import mcp_types as types
from mcp.shared.message import ServerMessageMetadata, SessionMessage

from a2a_fabric.doors.mcp import eras


class NoHandshake(Exception):
    """The server would not, or died of it; `greeting` is what the client said."""

    def __init__(self, greeting: types.JSONRPCRequest | None) -> None:
        super().__init__("the server does not shake hands")
        self.greeting = greeting


class Straight:
    """`said` and `saying` are the program's streams, `answering` leads to the client; `over` hears of the end."""

    def __init__(self, said: Any, saying: Any, answering: Any, timeout: float, over: Callable[[], None]) -> None:
        self._said = said
        self._saying = saying
        self._answering = answering
        self._timeout = timeout
        self._over = over
        self._asked: dict[types.RequestId, str | int | None] = {}  # in flight, with their progress tokens
        self._greeting: types.JSONRPCRequest | None = None  # the handshake, until it is answered
        self._overdue: asyncio.Queue[types.RequestId] = asyncio.Queue()  # filled by a timer, which is no task

    async def run(self, heard: Any) -> None:
        """Until the program ends. Raises NoHandshake while there is still another way."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._inward, heard)
            group.start_soon(self._give_up_in_time)
            is_refused = await self._outward()
            group.cancel_scope.cancel()
        if is_refused:
            raise NoHandshake(self._greeting)
        self._over()
        for request_id in list(self._asked):
            await self._fail(request_id, types.CONNECTION_CLOSED, "The MCP server has ended")

    def run_out(self, request_id: types.RequestId | None) -> None:
        """No program may take longer for an answer than the node allows."""
        if request_id is not None and request_id in self._asked:
            self._overdue.put_nowait(request_id)

    async def _give_up_in_time(self) -> None:
        while True:
            request_id = await self._overdue.get()
            if request_id in self._asked:
                await self._give_up(request_id)

    async def _give_up(self, request_id: types.RequestId) -> None:
        params = {"requestId": request_id, "reason": "It took too long"}
        note = types.JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params)
        await self._fail(request_id, types.REQUEST_TIMEOUT, f"No answer within {self._timeout:g} s")
        await self._saying.send(SessionMessage(note))

    async def _fail(self, request_id: types.RequestId, code: int, why: str) -> None:
        self._asked.pop(request_id, None)
        error = types.ErrorData(code=code, message=why)
        await self._answering.send(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error)))

    async def _inward(self, heard: Any) -> None:
        async for message in heard:
            if not isinstance(message, SessionMessage):
                continue
            asked = message.message
            if isinstance(asked, types.JSONRPCRequest):
                self._asked[asked.id] = ((asked.params or {}).get("_meta") or {}).get("progressToken")
                if asked.method == "initialize":
                    self._greeting = asked
            await self._saying.send(SessionMessage(asked))
            if (given_up := eras.cancelled(asked)) is not None and given_up in self._asked:
                del self._asked[given_up]  # on pipes nobody answers it any more, and its stream would stay open
                await self._answering.send(SessionMessage(eras.cancellation(given_up)))

    async def _outward(self) -> bool:
        """Whether it ended because the server does not shake hands."""
        async for message in self._said:
            if isinstance(message, SessionMessage):
                if self._is_refusal(message.message):
                    return True
                if not self._is_late(message.message):
                    await self._answering.send(self._addressed(message.message))
        return self._greeting is not None

    def _is_refusal(self, said: types.JSONRPCMessage) -> bool:
        """Of the handshake."""
        if self._greeting is None or getattr(said, "id", None) != self._greeting.id:
            return False
        if isinstance(said, types.JSONRPCError):
            return True
        self._greeting = None
        return False

    def _is_late(self, said: types.JSONRPCMessage) -> bool:
        """An answer that nobody waits for any more."""
        return isinstance(said, types.JSONRPCResponse | types.JSONRPCError) and said.id not in self._asked

    def _addressed(self, said: types.JSONRPCMessage) -> SessionMessage:
        if isinstance(said, types.JSONRPCResponse | types.JSONRPCError):
            if said.id is not None:
                self._asked.pop(said.id, None)
            return SessionMessage(said)
        if eras.is_news(said.method) or not self._asked:
            return SessionMessage(said)
        return SessionMessage(said, ServerMessageMetadata(related_request_id=self._about(said)))

    def _about(self, said: types.JSONRPCRequest | types.JSONRPCNotification) -> types.RequestId:
        if said.method == "notifications/progress":
            token = (said.params or {}).get("progressToken")
            for request_id, given in self._asked.items():
                if given == token:
                    return request_id
        return next(reversed(self._asked))
