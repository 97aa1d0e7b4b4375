"""The lines to one agent for callers of the stateless era: which era it speaks itself, and which line is free.

Requests of one principal share a line. A server that shakes hands was told then who asks and
what its client can do, so there each client has lines of its own. Whoever may be asked or
told something that names no request has its line alone, so that it reaches nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

import mcp_types as types
import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.delegation import META_KEY, from_metadata, in_headers
from a2a_fabric.core.errors import AgentOffline, UpstreamInterrupted
from a2a_fabric.doors.mcp import eras
from a2a_fabric.doors.mcp.line import START_TIMEOUT, Asked, Line, Said
from a2a_fabric.doors.mcp.open_sessions import OpenSession, OpenSessions
from a2a_fabric.outbound.tunnel import Open

_PROBE_TIMEOUT = 3.0  # for a server that ignores what it does not know; then it is asked in the old way too

Era = Literal["handshake", "stateless"]
Listener = Callable[[Said], None]


class Held(Line):
    """A line with what is known about it."""

    principal: Principal
    client: bytes = b""  # what its client said of itself, if hands were shaken
    about: Mapping[str, Any] = {}  # what the server said of itself then
    level: str | None = None  # of its log, as last asked for
    is_taken = False
    place: OpenSession


class Lines:
    def __init__(self, agent_id: str, open_: Open, *, idle: float, most: int, era: Era | None = None) -> None:
        self.agent_id = agent_id
        self.opens = open_
        self.era = era
        self.schemas: dict[str, Any] = {}  # of tools, by name
        self._idle = idle
        self._lines: list[Held] = []
        self._open_lines = OpenSessions(f"conversations with agent '{agent_id}'", most)
        self._opening = asyncio.Lock()
        self._listeners: dict[Principal, set[Listener]] = {}

    async def take(self, principal: Principal, meta: Mapping[str, Any], *, alone: bool) -> Held:
        """Raises RateLimited or AgentOffline. Whoever takes a line gives it back."""
        line = self._free(principal, meta, alone=alone)
        if line is None:
            async with self._opening:  # one at a time: those who can share the new one do
                line = self._free(principal, meta, alone=alone) or await self._open(principal, meta)
        line.users += 1
        line.place.requests += 1
        line.is_taken = line.is_taken or alone
        return line

    def give_back(self, line: Held, *, alone: bool) -> None:
        line.users -= 1
        self._open_lines.answered(line.place)
        if alone:
            line.is_taken, line.holder = False, None
        if not line.users:
            loop = asyncio.get_running_loop()
            line.idle_since = loop.time()
            loop.call_later(self._idle, self._end_if_idle, line, line.idle_since)

    def listen(self, principal: Principal, listener: Listener) -> Callable[[], None]:
        """Until the returned function is called."""
        listeners = self._listeners.setdefault(principal, set())
        listeners.add(listener)

        def stop() -> None:
            listeners.discard(listener)
            if not listeners:
                self._listeners.pop(principal, None)

        return stop

    def end(self) -> None:
        for line in self._lines:
            line.end()

    async def aclose(self) -> None:
        await asyncio.gather(*(line.aclose() for line in list(self._lines)))

    def _free(self, principal: Principal, meta: Mapping[str, Any], *, alone: bool) -> Held | None:
        client = self._client(meta)
        fitting = [each for each in self._lines if each.principal == principal and each.client == client]
        fitting = [
            each for each in fitting if each.place.is_open and not each.is_over and not (alone and each.is_taken)
        ]
        return min(fitting, key=lambda each: each.is_taken, default=None)

    def _client(self, meta: Mapping[str, Any]) -> bytes:
        if self.era != "handshake":
            return b""
        return msgspec.json.encode(eras.initialize_params(meta), order="sorted")

    async def _open(self, principal: Principal, meta: Mapping[str, Any]) -> Held:
        """Raises RateLimited if all there may be are in use."""
        try:
            return await self._opened(principal, meta)
        except UpstreamInterrupted as error:
            if self.era is not None:
                raise AgentOffline(error.message, agent_id=self.agent_id) from error
            self.era = "handshake"  # it died of a question that it did not know
            return await self._opened(principal, meta)

    async def _opened(self, principal: Principal, meta: Mapping[str, Any]) -> Held:
        line = Held(self.agent_id, self.opens, lambda said: self._tell(principal, said), self._over)
        line.principal = principal
        line.place = place = await self._open_lines.open(principal.principal_id)
        place.close = line.aclose
        try:
            await line.open()
        except BaseException:
            self._open_lines.end(place)
            raise
        self._lines.append(line)
        try:
            async with asyncio.timeout(START_TIMEOUT):
                self.era, line.about = await agree(line, meta, self.era)
        except TimeoutError as exc:
            line.end()
            why = f"The MCP server did not answer within {START_TIMEOUT:g} s of its start"
            raise AgentOffline(why, agent_id=self.agent_id) from exc
        except BaseException:
            line.end()
            raise
        finally:
            self._open_lines.answered(place)
        line.client = self._client(meta)
        return line

    def _tell(self, principal: Principal, said: Said) -> None:
        if isinstance(said, types.JSONRPCNotification) and said.method == "notifications/tools/list_changed":
            self.schemas.clear()
        for listener in list(self._listeners.get(principal, ())):
            listener(said)

    def _over(self, line: Line) -> None:
        with suppress(ValueError):
            self._lines.remove(line)  # type: ignore[arg-type]  # all of ours are held
            self._open_lines.end(line.place)  # type: ignore[attr-defined]  # as above

    def _end_if_idle(self, line: Held, since: float) -> None:
        if not line.users and line.idle_since == since:
            line.end()


async def agree(line: Line, meta: Mapping[str, Any], era: Era | None) -> tuple[Era, Mapping[str, Any]]:
    """The era that the server speaks, and what it says of itself. Raises FabricError, or TimeoutError."""
    if era == "stateless":
        return era, {}
    passed = in_headers(from_metadata(meta.get(META_KEY)))
    discover = None if era == "handshake" else await _discover(line, meta, passed)
    if discover is not None:
        answer = await _within(_PROBE_TIMEOUT, _answer(discover))
        if isinstance(answer, types.JSONRPCResponse):
            return "stateless", answer.result
        discover = None if isinstance(answer, types.JSONRPCError) else discover
    initialize = await line.ask("initialize", eras.initialize_params(meta), headers=passed)
    answer = await _answer(initialize)
    line.forget(initialize)
    if isinstance(answer, types.JSONRPCResponse):
        version = str(answer.result.get("protocolVersion", eras.HANDSHAKE))
        ready = types.JSONRPCNotification(jsonrpc="2.0", method="notifications/initialized")
        await line.say(ready, {eras.VERSION_HEADER: version, **passed})
        return "handshake", answer.result
    if discover is not None:  # a stateless server that was slow to start: it answers now what it was asked before
        late = await _answer(discover)
        if isinstance(late, types.JSONRPCResponse):
            return "stateless", late.result
    raise AgentOffline(f"The MCP server refused to begin: {answer.error.message}"[:500], agent_id=line.agent_id)


async def _discover(line: Line, meta: Mapping[str, Any], passed: Mapping[str, str]) -> Asked:
    params = eras.enveloped({}, eras.initialize_params(meta))
    return await line.ask(
        "server/discover", params, headers={**eras.stateless_headers("server/discover", params), **passed}
    )


async def _answer(asked: Asked) -> types.JSONRPCResponse | types.JSONRPCError:
    while True:
        said = await asked.next()
        if isinstance(said, types.JSONRPCResponse | types.JSONRPCError):
            return said


async def _within(
    seconds: float, answer: Awaitable[types.JSONRPCResponse | types.JSONRPCError]
) -> types.JSONRPCResponse | types.JSONRPCError | None:
    try:
        async with asyncio.timeout(seconds):
            return await answer
    except TimeoutError:
        return None
