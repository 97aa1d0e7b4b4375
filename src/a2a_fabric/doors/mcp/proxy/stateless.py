"""Proxies requests of the stateless era to an agent's server over message streams, in either era.

A server of the same era gets the request as it is. For a server of the handshake era both sides are
translated. The stateless era ends a request with a question and repeats it with the answer, while a handshake
server waits; so the exchange stays pending, for a limited time and for the same principal."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

import mcp_types as types

from a2a_fabric.core.call import Principal
from a2a_fabric.core.delegation import chain_to_headers
from a2a_fabric.core.errors import (
    AgentBusy,
    AgentOffline,
    CallTimeout,
    FabricError,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.trace import format_traceparent
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.mcp.errors import to_protocol_error
from a2a_fabric.doors.mcp.proxy import eras
from a2a_fabric.doors.mcp.proxy.endpoint import ProxiedRequest
from a2a_fabric.doors.mcp.proxy.stateless_http import StatelessReply, StatelessRequest, http_status_for, parse_request
from a2a_fabric.doors.mcp.proxy.upstream import JsonRpcMessage, PooledSession, UpstreamPool, UpstreamRequest
from a2a_fabric.protocols import jsonrpc
from a2a_fabric.protocols.mcp.frames import McpProtocolError
from a2a_fabric.protocols.mcp.runtime_ports import TROUBLE_KEY
from a2a_fabric.protocols.mcp.versions import LISTEN_METHOD

ANSWER_TIMEOUT = 600.0  # seconds that a person may take for an answer
_MAX_PENDING = 1000


class UpstreamExchange:
    """Lives on a line that it took, and gives back when it ends."""

    def __init__(
        self, pool: UpstreamPool, session: PooledSession, request: StatelessRequest, upstream_request: UpstreamRequest
    ) -> None:
        self.request = request
        self._pool = pool
        self.session = session
        self._upstream_request = upstream_request
        self._questions: dict[str, types.JSONRPCRequest] = {}
        self._question_count = 0
        self._is_exclusive = request.needs_exclusive_session
        self._has_ended = False

    @property
    def questions(self) -> dict[str, Any]:
        """As the stateless era has them."""
        return {
            key: {"method": each.method, "params": each.params} if each.params else {"method": each.method}
            for key, each in self._questions.items()
        }

    async def await_result(self, reply: StatelessReply) -> dict[str, Any] | None:
        """The result, or None if there are questions to be answered first. Raises FabricError or RPCError."""
        while True:
            message = await self._upstream_request.next_message()
            for each in (message, *self._upstream_request.take_buffered()):
                if isinstance(each, types.JSONRPCResponse):
                    return each.result
                if isinstance(each, types.JSONRPCError):
                    raise McpProtocolError(each.error.code, each.error.message, each.error.data)
                await self._handle(each, reply)
            if self._questions:
                return None

    async def send_answers(self, request: StatelessRequest) -> None:
        """What the client brought, for the server that waits. Raises UpstreamInterrupted."""
        self.request = request
        self._upstream_request.progress_token = request.meta.get("progressToken")
        responses = request.params.get("inputResponses")
        answers: dict[str, Any] = responses if isinstance(responses, dict) else {}
        for key in [key for key in self._questions if isinstance(answers.get(key), dict)]:
            question = self._questions.pop(key)
            response = types.JSONRPCResponse(jsonrpc="2.0", id=question.id, result=answers[key])
            await self.session.send(response, self._headers)

    @property
    def has_open_questions(self) -> bool:
        return bool(self._questions)

    def end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self.session.forget(self._upstream_request)
            self._pool.release(self.session, exclusive=self._is_exclusive)

    async def cancel(self) -> None:
        """Nobody waits any more. Never raises."""
        if not self._has_ended:
            await self.session.cancel(self._upstream_request, self._headers)
            self.end()

    @property
    def _headers(self) -> Mapping[str, str]:
        if self._pool.era == "stateless":
            return {eras.VERSION_HEADER: eras.STATELESS_VERSION}
        return {eras.VERSION_HEADER: str(self.session.server_info.get("protocolVersion", eras.HANDSHAKE_VERSION))}

    async def _handle(self, message: JsonRpcMessage, reply: StatelessReply) -> None:
        if isinstance(message, types.JSONRPCRequest):
            await self._add_question(message)
        elif isinstance(message, types.JSONRPCNotification):
            if message.method == "notifications/cancelled":
                question_id = (message.params or {}).get("requestId")
                self._questions = {key: each for key, each in self._questions.items() if each.id != question_id}
            elif self.request.accepts_notification(message.method, message.params or {}):
                await reply.send_notification(message.method, message.params)

    async def _add_question(self, question: types.JSONRPCRequest) -> None:
        if eras.QUESTION_CAPABILITIES.get(question.method) in self.request.capabilities:
            self._question_count += 1
            self._questions[f"{question.method.replace('/', '_')}_{self._question_count}"] = question
            return
        error = types.ErrorData(code=types.METHOD_NOT_FOUND, message="The client cannot be asked this")
        await self.session.send(types.JSONRPCError(jsonrpc="2.0", id=question.id, error=error), self._headers)


class PendingExchanges:
    """Exchanges between the visits of their clients. `state` brings a client back to its own."""

    def __init__(self) -> None:
        self._pending: dict[str, tuple[tuple[str, Principal], UpstreamExchange, asyncio.TimerHandle]] = {}
        self._cancelling: set[asyncio.Task[None]] = set()

    def add(self, agent_id: str, principal: Principal, exchange: UpstreamExchange) -> str:
        """Raises UpstreamInterrupted if too many wait already."""
        if len(self._pending) >= _MAX_PENDING:
            raise UpstreamInterrupted("Too many questions wait for an answer", agent_id=agent_id)
        state = secrets.token_urlsafe(24)
        timer = asyncio.get_running_loop().call_later(ANSWER_TIMEOUT, self._expire, state)
        self._pending[state] = ((agent_id, principal), exchange, timer)
        return state

    def take(self, agent_id: str, principal: Principal, request: StatelessRequest) -> UpstreamExchange:
        """Raises RPCError: for a state that is not ours, is over, or is another's."""
        state = str(request.params.get("requestState"))
        entry = self._pending.get(state)
        if entry is None or entry[0] != (agent_id, principal) or entry[1].request.subject != request.subject:
            raise McpProtocolError(jsonrpc.INVALID_PARAMS, "Nobody waits for an answer with this requestState")
        del self._pending[state]
        entry[2].cancel()
        return entry[1]

    async def aclose(self) -> None:
        for state in list(self._pending):
            self._expire(state)
        if self._cancelling:
            await asyncio.wait(self._cancelling, timeout=5)

    def _expire(self, state: str) -> None:
        entry = self._pending.pop(state, None)
        if entry is not None:
            entry[2].cancel()
            task = asyncio.ensure_future(entry[1].cancel())
            self._cancelling.add(task)
            task.add_done_callback(self._cancelling.discard)


_MAX_TIMEOUT_MS = 1 << 31  # milliseconds; the node's own limit is smaller
_LISTEN_TIMEOUT = 24 * 3600.0
_OWN_REQUEST_TIMEOUT = 30.0  # for questions of our own
_MAX_PAGES = 100


class _SessionForgotten(AgentOffline):
    """A server over HTTP no longer knows our session; the next request begins another."""


_TRANSPORT_ERRORS: dict[Any, type[FabricError]] = {
    "busy": AgentBusy,
    "gone": _SessionForgotten,
    "offline": AgentOffline,
    "failed": UpstreamFailed,
    "refused": UpstreamRefused,
}


class StatelessProxy:
    """To one agent."""

    def __init__(self, context: DoorContext, pool: UpstreamPool, pending: PendingExchanges) -> None:
        self._context = context
        self._pool = pool
        self._pending = pending

    async def forward(self, proxied: ProxiedRequest) -> None:
        """Raises FabricError or RPCError."""
        request = parse_request(proxied)
        if request is None:
            await proxied.send.send_reply(202, b"")
            return
        reply = StatelessReply(request.id, proxied.send)
        timeout = (
            _LISTEN_TIMEOUT if proxied.is_long_lived else self._context.gateway.clamp_timeout(_MAX_TIMEOUT_MS) / 1000
        )
        try:
            with reply:
                async with asyncio.timeout(timeout):
                    result = await self._answer(request, proxied, reply)
            await reply.send_result(result)
        except McpProtocolError as error:
            error.status = http_status_for(error.code)
            await reply.send_error(error)
        except TimeoutError as exc:
            await self._fail(CallTimeout(timeout, agent_id=self._pool.agent_id), proxied, reply, exc)
        except FabricError as error:
            await self._fail(error, proxied, reply, error.__cause__)

    async def _fail(
        self, error: FabricError, proxied: ProxiedRequest, reply: StatelessReply, cause: BaseException | None
    ) -> None:
        if proxied.send.has_started:
            await reply.send_error(to_protocol_error(error, proxied.trace))
        raise error from cause

    async def _answer(
        self, request: StatelessRequest, proxied: ProxiedRequest, reply: StatelessReply
    ) -> dict[str, Any]:
        principal = proxied.principal
        if not eras.is_stateless_method(request.method):
            raise McpProtocolError(jsonrpc.METHOD_NOT_FOUND, "Method not found", request.method)
        if "requestState" in request.params and self._pool.era == "handshake":
            exchange = self._pending.take(self._pool.agent_id, principal, request)
            return await self._continue_exchange(exchange, request, proxied, reply)
        try:
            return await self._start_exchange(request, proxied, reply)
        except _SessionForgotten:  # it did not get as far as the server's own work
            return await self._start_exchange(request, proxied, reply)

    async def _start_exchange(
        self, request: StatelessRequest, proxied: ProxiedRequest, reply: StatelessReply
    ) -> dict[str, Any]:
        session = await self._pool.acquire(proxied.principal, request.meta, exclusive=request.needs_exclusive_session)
        try:
            if self._pool.era == "handshake" and (
                result := await self._answer_locally(session, request, proxied, reply)
            ):
                self._pool.release(session, exclusive=request.needs_exclusive_session)
                return result
            exchange = await self._send_upstream(session, request, proxied)
        except BaseException:
            self._pool.release(session, exclusive=request.needs_exclusive_session)
            raise
        return await self._await_result(exchange, session, proxied, reply)

    async def _continue_exchange(
        self, exchange: UpstreamExchange, request: StatelessRequest, proxied: ProxiedRequest, reply: StatelessReply
    ) -> dict[str, Any]:
        try:
            await exchange.send_answers(request)
        except BaseException:
            await exchange.cancel()
            raise
        if exchange.has_open_questions:
            return self._render_questions(exchange, proxied)
        return await self._await_result(exchange, exchange.session, proxied, reply)

    async def _send_upstream(
        self, session: PooledSession, request: StatelessRequest, proxied: ProxiedRequest
    ) -> UpstreamExchange:
        if request.may_have_param_headers and (schema := await self._find_tool_schema(session, request)) is not None:
            request.check_param_headers(schema)
        params, headers = request.params, self._make_headers(session, request, proxied)
        if self._pool.era == "handshake":
            params = eras.remove_envelope(params)
            await self._set_log_level(session, request, headers)
        upstream_request = await session.send_request(request.method, params, headers=headers, client_id=request.id)
        if request.needs_exclusive_session:
            session.exclusive_request = upstream_request
        return UpstreamExchange(self._pool, session, request, upstream_request)

    async def _await_result(
        self, exchange: UpstreamExchange, session: PooledSession, proxied: ProxiedRequest, reply: StatelessReply
    ) -> dict[str, Any]:
        request = exchange.request
        try:
            result = await exchange.await_result(reply)
        except McpProtocolError as error:
            exchange.end()
            self._raise_transport_error(session, error)
            error.code = eras.to_stateless_error_code(request.method, error.code)
            raise
        except BaseException:
            await exchange.cancel()
            raise
        if result is None:
            return self._render_questions(exchange, proxied)
        exchange.end()
        if request.method == "tools/list":
            self._store_tool_schemas(result)
        if self._pool.era == "handshake":
            return eras.complete_result(request.method, result, session.server_info.get("serverInfo"))
        return _restore_subscription_id(result, request)

    def _render_questions(self, exchange: UpstreamExchange, proxied: ProxiedRequest) -> dict[str, Any]:
        state = self._pending.add(self._pool.agent_id, proxied.principal, exchange)
        return eras.make_input_required(exchange.questions, state, exchange.session.server_info.get("serverInfo"))

    def _make_headers(
        self, session: PooledSession, request: StatelessRequest, proxied: ProxiedRequest
    ) -> dict[str, str]:
        """For servers over HTTP; on pipes nobody sees them."""
        trace = {"traceparent": format_traceparent(proxied.trace), **chain_to_headers(proxied.chain)}
        if self._pool.era == "stateless":
            return {**eras.make_stateless_headers(request.method, request.params), **trace}
        version = str(session.server_info.get("protocolVersion", eras.HANDSHAKE_VERSION))
        return {eras.VERSION_HEADER: version, **trace}

    def _raise_transport_error(self, session: PooledSession, error: McpProtocolError) -> None:
        """What a server over HTTP did not say itself. Raises FabricError."""
        trouble = error.data.get(TROUBLE_KEY) if isinstance(error.data, dict) else None
        if trouble == "gone":
            session.end()
        if trouble is not None:
            raise _TRANSPORT_ERRORS.get(trouble, UpstreamInterrupted)(
                error.message, agent_id=self._pool.agent_id
            ) from error

    # What a server of the handshake era is not asked, or asked otherwise.

    async def _answer_locally(
        self, session: PooledSession, request: StatelessRequest, proxied: ProxiedRequest, reply: StatelessReply
    ) -> dict[str, Any] | None:
        if request.method == "server/discover":
            return eras.to_discover_result(session.server_info)
        if "requestState" in request.params:
            raise McpProtocolError(jsonrpc.INVALID_PARAMS, "Nobody waits for an answer with this requestState")
        if request.method == LISTEN_METHOD:
            return await self._listen(session, request, proxied, reply)
        return None

    async def _listen(
        self, session: PooledSession, request: StatelessRequest, proxied: ProxiedRequest, reply: StatelessReply
    ) -> dict[str, Any]:
        """Until the client leaves or the line ends; then the client is told that it was the end."""
        requested = request.params.get("notifications")
        accepted = eras.accept_subscription(
            requested if isinstance(requested, dict) else {}, session.server_info.get("capabilities") or {}
        )
        meta = {eras.SUBSCRIPTION_ID: request.id}
        listener = session.add_listener(request.id)
        stop = self._pool.listen(proxied.principal, listener.deliver)
        headers = self._make_headers(session, request, proxied)
        uris = accepted.get("resourceSubscriptions", ())
        try:
            for uri in uris:
                await self._request_upstream(session, "resources/subscribe", {"uri": uri}, headers)
            await reply.send_notification(
                "notifications/subscriptions/acknowledged", {"notifications": accepted, "_meta": meta}
            )
            while True:
                await _forward_change(await listener.next_message(), accepted, meta, reply)
        finally:
            stop()
            session.forget(listener)
            for uri in uris:
                await self._unsubscribe(session, uri, headers)

    async def _unsubscribe(self, session: PooledSession, uri: str, headers: Mapping[str, str]) -> None:
        if not session.has_ended:
            upstream_request = await session.send_request("resources/unsubscribe", {"uri": uri}, headers=headers)
            session.forget(upstream_request)

    async def _set_log_level(
        self, session: PooledSession, request: StatelessRequest, headers: Mapping[str, str]
    ) -> None:
        level = request.log_level
        if (
            level is not None
            and level != session.log_level
            and "logging" in (session.server_info.get("capabilities") or {})
        ):
            await self._request_upstream(session, "logging/setLevel", {"level": level}, headers)
            session.log_level = level

    async def _request_upstream(
        self, session: PooledSession, method: str, params: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """A question of our own. Raises FabricError or RPCError."""
        upstream_request = await session.send_request(method, params, headers=headers)
        try:
            async with asyncio.timeout(_OWN_REQUEST_TIMEOUT):
                while True:
                    message = await upstream_request.next_message()
                    if isinstance(message, types.JSONRPCResponse):
                        return message.result
                    if isinstance(message, types.JSONRPCError):
                        raise McpProtocolError(message.error.code, message.error.message, message.error.data)
        finally:
            session.forget(upstream_request)

    # Headers that mirror arguments are checked against the tool's schema, as a server over HTTP would.

    async def _find_tool_schema(self, session: PooledSession, request: StatelessRequest) -> Any:
        name = request.params.get("name")
        if isinstance(name, str) and name not in self._pool.tool_schemas:
            await self._load_tools(session, request)
            self._pool.tool_schemas.setdefault(name, None)
        return self._pool.tool_schemas.get(name) if isinstance(name, str) else None

    async def _load_tools(self, session: PooledSession, request: StatelessRequest) -> None:
        cursor: Any = None
        meta = {"_meta": dict(request.meta)} if self._pool.era == "stateless" else {}
        meta.get("_meta", {}).pop("progressToken", None)
        for _ in range(_MAX_PAGES):
            params = {**meta, "cursor": cursor} if cursor is not None else meta
            try:
                page = await self._request_upstream(
                    session, "tools/list", params, eras.make_stateless_headers("tools/list", params)
                )
            except McpProtocolError:
                return
            self._store_tool_schemas(page)
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str):
                return

    def _store_tool_schemas(self, page: Mapping[str, Any]) -> None:
        for tool in page.get("tools") or ():
            if isinstance(tool, dict) and isinstance(tool.get("name"), str):
                self._pool.tool_schemas[tool["name"]] = tool.get("inputSchema")


async def _forward_change(
    message: JsonRpcMessage, subscription: Mapping[str, Any], meta: Mapping[str, Any], reply: StatelessReply
) -> None:
    if isinstance(message, types.JSONRPCNotification):
        params = message.params or {}
        if eras.is_subscribed(message.method, params, subscription):
            await reply.send_notification(message.method, {**params, "_meta": {**(params.get("_meta") or {}), **meta}})


def _restore_subscription_id(result: dict[str, Any], request: StatelessRequest) -> dict[str, Any]:
    """The end of a subscription names it."""
    meta = result.get("_meta")
    if request.method == LISTEN_METHOD and isinstance(meta, dict) and eras.SUBSCRIPTION_ID in meta:
        return {**result, "_meta": {**meta, eras.SUBSCRIPTION_ID: request.id}}
    return result
