"""Requests of the stateless era to an agent that is reached by lines: a program, or a server that shakes hands.

Nothing is lost on the way: to a server of the same era a request goes as it is, and for one of
the handshake era each side hears the other in its own words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import mcp_types as types

from a2a_fabric.core.delegation import in_headers
from a2a_fabric.core.errors import (
    AgentOffline,
    CallTimeout,
    FabricError,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.trace import traceparent
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.mcp import eras, jsonrpc
from a2a_fabric.doors.mcp.checkpoint import as_rpc
from a2a_fabric.doors.mcp.exchange import Exchange, Parking
from a2a_fabric.doors.mcp.jsonrpc import RPCError
from a2a_fabric.doors.mcp.line import Said
from a2a_fabric.doors.mcp.lines import Held, Lines
from a2a_fabric.doors.mcp.passing import LISTEN, Passing
from a2a_fabric.doors.mcp.reply import Reply
from a2a_fabric.doors.mcp.request import Request, read, status_of
from a2a_fabric.outbound.tunnel import TROUBLE

_LONGEST = 1 << 31  # milliseconds; the node's own limit is smaller
_STANDING = 24 * 3600.0
_SHORT = 30.0  # for questions of our own
_PAGES = 100


class _Forgotten(AgentOffline):
    """A server over HTTP no longer knows our session; the next request begins another."""


_TROUBLES: dict[Any, type[FabricError]] = {
    "gone": _Forgotten,
    "offline": AgentOffline,
    "failed": UpstreamFailed,
    "refused": UpstreamRefused,
}


class StatelessWay:
    """To one agent."""

    def __init__(self, context: DoorContext, lines: Lines, parking: Parking) -> None:
        self._context = context
        self._lines = lines
        self._parking = parking

    async def go(self, passing: Passing) -> None:
        """Raises FabricError or RPCError."""
        request = read(passing)
        if request is None:
            await passing.send.whole(202, b"")
            return
        reply = Reply(request.id, passing.send)
        timeout = _STANDING if passing.is_standing else self._context.gateway.time_for(_LONGEST) / 1000
        try:
            with reply:
                async with asyncio.timeout(timeout):
                    result = await self._answered(request, passing, reply)
            await reply.result(result)
        except RPCError as error:
            error.status = status_of(error.code)
            await reply.error(error)
        except TimeoutError as exc:
            await self._failed(CallTimeout(timeout, agent_id=self._lines.agent_id), passing, reply, exc)
        except FabricError as error:
            await self._failed(error, passing, reply, error.__cause__)

    async def _failed(self, error: FabricError, passing: Passing, reply: Reply, cause: BaseException | None) -> None:
        if passing.send.has_begun:
            await reply.error(as_rpc(error, passing))
        raise error from cause

    async def _answered(self, request: Request, passing: Passing, reply: Reply) -> dict[str, Any]:
        principal = passing.principal
        if not eras.is_known_to_stateless(request.method):
            raise RPCError(jsonrpc.METHOD_NOT_FOUND, "Method not found", request.method)
        if "requestState" in request.params and self._lines.era == "handshake":
            exchange = self._parking.take(self._lines.agent_id, principal, request)
            return await self._continued(exchange, request, passing, reply)
        try:
            return await self._asked_anew(request, passing, reply)
        except _Forgotten:  # it did not get as far as the server's own work
            return await self._asked_anew(request, passing, reply)

    async def _asked_anew(self, request: Request, passing: Passing, reply: Reply) -> dict[str, Any]:
        line = await self._lines.take(passing.principal, request.meta, alone=request.needs_a_line)
        try:
            if self._lines.era == "handshake" and (told := await self._for_us(line, request, passing, reply)):
                self._lines.give_back(line, alone=request.needs_a_line)
                return told
            exchange = await self._begun(line, request, passing)
        except BaseException:
            self._lines.give_back(line, alone=request.needs_a_line)
            raise
        return await self._heard(exchange, line, passing, reply)

    async def _continued(self, exchange: Exchange, request: Request, passing: Passing, reply: Reply) -> dict[str, Any]:
        try:
            await exchange.answer(request)
        except BaseException:
            await exchange.cancel()
            raise
        if exchange.waits_for_more:
            return self._asking(exchange, passing)
        return await self._heard(exchange, exchange.line, passing, reply)

    async def _begun(self, line: Held, request: Request, passing: Passing) -> Exchange:
        if request.mirrors_arguments and (schema := await self._schema(line, request)) is not None:
            request.check_params(schema)
        params, headers = request.params, self._headers(line, request, passing)
        if self._lines.era == "handshake":
            params = eras.without_envelope(params)
            await self._set_level(line, request, headers)
        asked = await line.ask(request.method, params, headers=headers, client_id=request.id)
        if request.needs_a_line:
            line.holder = asked
        return Exchange(self._lines, line, request, asked)

    async def _heard(self, exchange: Exchange, line: Held, passing: Passing, reply: Reply) -> dict[str, Any]:
        request = exchange.request
        try:
            result = await exchange.until_told(reply)
        except RPCError as error:
            exchange.end()
            self._note_session(line, error)
            error.code = eras.error_code(request.method, error.code)
            raise
        except BaseException:
            await exchange.cancel()
            raise
        if result is None:
            return self._asking(exchange, passing)
        exchange.end()
        if request.method == "tools/list":
            self._learn(result)
        if self._lines.era == "handshake":
            return eras.completed(request.method, result, line.about.get("serverInfo"))
        return _with_subscription(result, request)

    def _asking(self, exchange: Exchange, passing: Passing) -> dict[str, Any]:
        state = self._parking.park(self._lines.agent_id, passing.principal, exchange)
        return eras.input_required(exchange.questions, state, exchange.line.about.get("serverInfo"))

    def _headers(self, line: Held, request: Request, passing: Passing) -> dict[str, str]:
        """For servers over HTTP; on pipes nobody sees them."""
        trace = {"traceparent": traceparent(passing.trace), **in_headers(passing.chain)}
        if self._lines.era == "stateless":
            return {**eras.stateless_headers(request.method, request.params), **trace}
        version = str(line.about.get("protocolVersion", eras.HANDSHAKE))
        return {eras.VERSION_HEADER: version, **trace}

    def _note_session(self, line: Held, error: RPCError) -> None:
        """What a server over HTTP did not say itself. Raises FabricError."""
        trouble = error.data.get(TROUBLE) if isinstance(error.data, dict) else None
        if trouble == "gone":
            line.end()
        if trouble is not None:
            raise _TROUBLES.get(trouble, UpstreamInterrupted)(error.message, agent_id=self._lines.agent_id) from error

    # What a server of the handshake era is not asked, or asked otherwise.

    async def _for_us(self, line: Held, request: Request, passing: Passing, reply: Reply) -> dict[str, Any] | None:
        if request.method == "server/discover":
            return eras.as_discover(line.about)
        if "requestState" in request.params:
            raise RPCError(jsonrpc.INVALID_PARAMS, "Nobody waits for an answer with this requestState")
        if request.method == LISTEN:
            return await self._listen(line, request, passing, reply)
        return None

    async def _listen(self, line: Held, request: Request, passing: Passing, reply: Reply) -> dict[str, Any]:
        """Until the client leaves or the line ends; then the client is told that it was the end."""
        wanted = request.params.get("notifications")
        told = eras.honoured(wanted if isinstance(wanted, dict) else {}, line.about.get("capabilities") or {})
        meta = {eras.SUBSCRIPTION_ID: request.id}
        news = line.join(request.id)
        stop = self._lines.listen(passing.principal, news.hear)
        headers = self._headers(line, request, passing)
        watched = told.get("resourceSubscriptions", ())
        try:
            for uri in watched:
                await self._asked(line, "resources/subscribe", {"uri": uri}, headers)
            await reply.notify("notifications/subscriptions/acknowledged", {"notifications": told, "_meta": meta})
            while True:
                await _pass_on(await news.next(), told, meta, reply)
        finally:
            stop()
            line.forget(news)
            for uri in watched:
                await self._unsubscribe(line, uri, headers)

    async def _unsubscribe(self, line: Held, uri: str, headers: Mapping[str, str]) -> None:
        if not line.is_over:
            asked = await line.ask("resources/unsubscribe", {"uri": uri}, headers=headers)
            line.forget(asked)

    async def _set_level(self, line: Held, request: Request, headers: Mapping[str, str]) -> None:
        level = request.log_level
        if level is not None and level != line.level and "logging" in (line.about.get("capabilities") or {}):
            await self._asked(line, "logging/setLevel", {"level": level}, headers)
            line.level = level

    async def _asked(
        self, line: Held, method: str, params: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """A question of our own. Raises FabricError or RPCError."""
        asked = await line.ask(method, params, headers=headers)
        try:
            async with asyncio.timeout(_SHORT):
                while True:
                    said = await asked.next()
                    if isinstance(said, types.JSONRPCResponse):
                        return said.result
                    if isinstance(said, types.JSONRPCError):
                        raise RPCError(said.error.code, said.error.message, said.error.data)
        finally:
            line.forget(asked)

    # Headers that mirror arguments are checked against the tool's schema, as a server over HTTP would.

    async def _schema(self, line: Held, request: Request) -> Any:
        name = request.params.get("name")
        if isinstance(name, str) and name not in self._lines.schemas:
            await self._look(line, request)
            self._lines.schemas.setdefault(name, None)
        return self._lines.schemas.get(name) if isinstance(name, str) else None

    async def _look(self, line: Held, request: Request) -> None:
        cursor: Any = None
        meta = {"_meta": dict(request.meta)} if self._lines.era == "stateless" else {}
        meta.get("_meta", {}).pop("progressToken", None)
        for _ in range(_PAGES):
            params = {**meta, "cursor": cursor} if cursor is not None else meta
            try:
                page = await self._asked(line, "tools/list", params, eras.stateless_headers("tools/list", params))
            except RPCError:
                return
            self._learn(page)
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str):
                return

    def _learn(self, page: Mapping[str, Any]) -> None:
        for tool in page.get("tools") or ():
            if isinstance(tool, dict) and isinstance(tool.get("name"), str):
                self._lines.schemas[tool["name"]] = tool.get("inputSchema")


async def _pass_on(said: Said, wanted: Mapping[str, Any], meta: Mapping[str, Any], reply: Reply) -> None:
    if isinstance(said, types.JSONRPCNotification):
        params = said.params or {}
        if eras.is_wanted(said.method, params, wanted):
            await reply.notify(said.method, {**params, "_meta": {**(params.get("_meta") or {}), **meta}})


def _with_subscription(result: dict[str, Any], request: Request) -> dict[str, Any]:
    """The end of a subscription names it."""
    meta = result.get("_meta")
    if request.method == LISTEN and isinstance(meta, dict) and eras.SUBSCRIPTION_ID in meta:
        return {**result, "_meta": {**meta, eras.SUBSCRIPTION_ID: request.id}}
    return result
