"""One conversation with an MCP server over a pair of message streams, which many requests may share.

Ids and progress tokens on it are ours, so what the server says finds the request it belongs
to. What names no request (a question, a log line) goes to the request that holds the line,
or else to the one asked last; news of changed lists go to whoever opened the line.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import mcp_types as types
from mcp.shared.message import ClientMessageMetadata, SessionMessage

from a2a_fabric.core.errors import AgentOffline, FabricError, UpstreamInterrupted
from a2a_fabric.doors.mcp.eras import SUBSCRIPTION_ID, is_news
from a2a_fabric.outbound.tunnel import Open

START_TIMEOUT = 30.0
CLOSE_TIMEOUT = 10.0
_SAY_TIMEOUT = 15.0
_KEPT = 1024  # messages for a slow reader; then the oldest are dropped

Said = types.JSONRPCMessage


class Asked:
    """One request under way. `token` is the progress token that its client gave, `client_id` the client's own id."""

    def __init__(self, number: int, token: Any, client_id: Any) -> None:
        self.number = number
        self.token = token
        self.client_id = client_id
        self._heard: deque[Said] = deque(maxlen=_KEPT)
        self._is_over = False
        self._news = asyncio.Event()

    def hear(self, said: Said) -> None:
        """Never waits: a slow reader holds up nobody else."""
        self._heard.append(said)
        self._news.set()

    def end(self) -> None:
        self._is_over = True
        self._news.set()

    async def next(self) -> Said:
        """What the server says next. Raises UpstreamInterrupted when it can say no more."""
        while not self._heard:
            if self._is_over:
                raise UpstreamInterrupted("The MCP server has ended")
            self._news.clear()
            await self._news.wait()
        return self._heard.popleft()

    def at_hand(self) -> list[Said]:
        """What has been said already."""
        said = list(self._heard)
        self._heard.clear()
        return said


class Line:
    """`news` hears what changed, `over` that the line is no more."""

    def __init__(
        self, agent_id: str, open_: Open, news: Callable[[Said], None], over: Callable[[Line], None] | None = None
    ) -> None:
        self.agent_id = agent_id
        self.is_over = False
        self.holder: Asked | None = None
        self.users = 0  # requests and listeners that need it
        self.idle_since = 0.0
        self._open = open_
        self._news = news
        self._over = over
        self._ids = itertools.count(1)
        self._asked: dict[int, Asked] = {}
        self._saying: Any = None
        self._life: asyncio.Task[None] | None = None
        self._is_ending = False

    async def open(self) -> None:
        """Raises AgentOffline."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._life = asyncio.ensure_future(self._live(opened))
        try:
            await asyncio.wait({opened, self._life}, return_when=asyncio.FIRST_COMPLETED, timeout=START_TIMEOUT)
        except asyncio.CancelledError:
            self.end()
            raise
        if not opened.done():
            self.end()
            error = self._life.exception() if self._life.done() and not self._life.cancelled() else None
            if isinstance(error, FabricError):
                raise error
            why = f"The MCP server did not start within {START_TIMEOUT:g} s"
            raise AgentOffline(why, agent_id=self.agent_id) from error

    def end(self) -> None:
        """Once: a second cancellation would hit the cleaning up after the first."""
        self.is_over = True
        if self._life is not None and not self._is_ending:
            self._is_ending = True
            self._life.cancel()

    async def aclose(self) -> None:
        self.end()
        if self._life is not None:
            await asyncio.wait({self._life}, timeout=CLOSE_TIMEOUT)

    async def ask(
        self, method: str, params: Mapping[str, Any], *, headers: Mapping[str, str] = {}, client_id: Any = None
    ) -> Asked:
        """Raises UpstreamInterrupted. Whoever asks also calls `forget` or `cancel`."""
        number = next(self._ids)
        meta = dict(params.get("_meta") or {})
        asked = Asked(number, meta.get("progressToken"), client_id)
        if asked.token is not None:
            params = {**params, "_meta": {**meta, "progressToken": number}}
        self._asked[number] = asked
        if self.is_over:
            asked.end()
        request = types.JSONRPCRequest(jsonrpc="2.0", id=number, method=method, params=dict(params))
        await self.say(request, headers)
        return asked

    def join(self, client_id: Any) -> Asked:
        """Somebody who asks nothing, and ends with the line."""
        asked = Asked(next(self._ids), None, client_id)
        self._asked[asked.number] = asked
        return asked

    async def say(self, message: Said, headers: Mapping[str, str] = {}) -> None:
        """Raises UpstreamInterrupted."""
        if self._saying is None or self.is_over:
            raise UpstreamInterrupted("The MCP server has ended", agent_id=self.agent_id)
        metadata = ClientMessageMetadata(headers=dict(headers)) if headers else None
        try:
            async with asyncio.timeout(_SAY_TIMEOUT):
                await self._saying.send(SessionMessage(message, metadata))
        except Exception as exc:  # a closed stream of the SDK's, or one that nobody reads
            self.end()
            raise UpstreamInterrupted("The MCP server does not listen", agent_id=self.agent_id) from exc

    def forget(self, asked: Asked) -> None:
        self._asked.pop(asked.number, None)

    async def cancel(self, asked: Asked, headers: Mapping[str, str] = {}) -> None:
        """Tell the server that nobody waits any more. Never raises."""
        if self._asked.pop(asked.number, None) is None or self.is_over:
            return
        params = {"requestId": asked.number, "reason": "The caller has gone"}
        note = types.JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params)
        try:
            await self.say(note, headers)
        except UpstreamInterrupted:
            pass

    async def _live(self, opened: asyncio.Future[None]) -> None:
        try:
            async with self._open() as (said, saying):
                self._saying = saying
                opened.set_result(None)
                async for message in said:
                    if isinstance(message, SessionMessage):
                        await self._hear(message.message)
        finally:
            self.is_over = True
            for asked in self._asked.values():
                asked.end()
            if self._over is not None:
                self._over(self)

    async def _hear(self, said: Said) -> None:
        if isinstance(said, types.JSONRPCResponse | types.JSONRPCError):
            asked = self._asked.get(said.id) if isinstance(said.id, int) else None
            if asked is not None:
                asked.hear(said)
        elif isinstance(said, types.JSONRPCRequest) and said.method == "ping":
            await self.say(types.JSONRPCResponse(jsonrpc="2.0", id=said.id, result={}))
        elif (asked := self._named(said)) is not None:
            asked.hear(_restored(said, asked))
        elif is_news(said.method):
            self._news(said)
        elif (asked := self.holder or next(reversed(self._asked.values()), None)) is not None:
            asked.hear(said)
        elif isinstance(said, types.JSONRPCRequest):
            error = types.ErrorData(code=types.METHOD_NOT_FOUND, message="Nobody is there to be asked")
            await self.say(types.JSONRPCError(jsonrpc="2.0", id=said.id, error=error))

    def _named(self, said: types.JSONRPCRequest | types.JSONRPCNotification) -> Asked | None:
        """The request that a message itself names."""
        params = said.params or {}
        number = params.get("progressToken") if said.method == "notifications/progress" else None
        if number is None:
            number = (params.get("_meta") or {}).get(SUBSCRIPTION_ID)
        return self._asked.get(number) if isinstance(number, int) else None


def _restored(said: Any, asked: Asked) -> Said:
    """With the client's own token and id."""
    params = dict(said.params or {})
    if said.method == "notifications/progress":
        params["progressToken"] = asked.token
    meta = params.get("_meta") or {}
    if SUBSCRIPTION_ID in meta:
        params["_meta"] = {**meta, SUBSCRIPTION_ID: asked.client_id}
    restored: Said = said.model_copy(update={"params": params})
    return restored
