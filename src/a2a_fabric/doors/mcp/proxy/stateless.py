"""Proxies requests of the stateless era to an agent's server over message streams, in either era.

A server of the same era gets the request as it is. For a server of the handshake era both sides are
translated. The stateless era ends a request with a question and repeats it with the answer, while a handshake
server waits; so the exchange stays pending, for a limited time and for the same principal."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import mcp_types as types
import msgspec
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundLadderRejection,
    classify_inbound_request,
    find_duplicated_routing_header,
    unsupported_protocol_version_rejection,
    validate_mcp_param_headers,
)
from mcp_types.methods import INPUT_REQUIRED_METHODS
from starlette.datastructures import Headers

from a2a_fabric.core.errors import (
    AgentBusy,
    AgentOffline,
    CallTimeout,
    FabricError,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.pending_questions import PendingQuestions
from a2a_fabric.core.propagation import chain_to_headers, format_traceparent
from a2a_fabric.core.tasks import DeadlineSweep
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.mcp.proxy.endpoint import ProxiedRequest
from a2a_fabric.doors.mcp.proxy.upstream import (
    JsonRpcMessage,
    PooledSession,
    UpstreamPool,
    UpstreamRequest,
    list_pages,
    read_tools,
    result_of,
)
from a2a_fabric.doors.mcp.request import McpReply
from a2a_fabric.doors.mcp.results import to_protocol_error
from a2a_fabric.protocols import jsonrpc
from a2a_fabric.protocols.mcp import eras, wire
from a2a_fabric.protocols.mcp.runtime_ports import TROUBLE_KEY
from a2a_fabric.protocols.mcp.wire import (
    HANDSHAKE_VERSION,
    LISTEN_METHOD,
    STATELESS_VERSION,
    VERSION_HEADER,
    McpProtocolError,
)

_LISTEN_TIMEOUT = 24 * 3600.0
_OWN_REQUEST_TIMEOUT = 30.0  # seconds, for requests that the proxy itself makes
_DEFAULT_STATUS = 200  # of error codes that have no HTTP status of their own
_encode = msgspec.json.Encoder().encode


class StatelessRequest:
    def __init__(self, request_id: str | int, method: str, params: Mapping[str, Any], headers: Headers) -> None:
        self.id = request_id
        self.method = method
        self.params = params
        self.headers = headers
        self.meta: Mapping[str, Any] = params["_meta"]
        capabilities = self.meta.get(types.CLIENT_CAPABILITIES_META_KEY)
        self.capabilities: Mapping[str, Any] = capabilities if isinstance(capabilities, dict) else {}

    @property
    def log_level(self) -> str | None:
        level = self.meta.get(types.LOG_LEVEL_META_KEY)
        return level if isinstance(level, str) else None

    @property
    def subject(self) -> tuple[Any, ...]:
        """The same for the first request and its repetition with answers."""
        return self.method, self.params.get("name"), self.params.get("uri")

    @property
    def needs_exclusive_session(self) -> bool:
        """Whether the server may send messages about this request that do not name it."""
        may_ask = self.method in INPUT_REQUIRED_METHODS and any(
            each in self.capabilities for each in eras.QUESTION_CAPABILITIES.values()
        )
        return self.method != LISTEN_METHOD and (may_ask or self.log_level is not None)

    def accepts_notification(self, method: str, params: Mapping[str, Any]) -> bool:
        """Whether a notification before the answer is for this client."""
        if method == "notifications/message":
            return self.log_level is not None
        if method == "notifications/progress":
            return params.get("progressToken") is not None
        return True

    @property
    def may_have_param_headers(self) -> bool:
        return self.method == "tools/call" and (
            bool(self.params.get("arguments")) or any(name.startswith("mcp-param-") for name in self.headers)
        )

    def check_param_headers(self, schema: Any) -> None:
        """Raises McpProtocolError if a header that repeats an argument has another value than the argument."""
        arguments = self.params.get("arguments")
        rejection = validate_mcp_param_headers(schema, arguments if isinstance(arguments, dict) else {}, self.headers)
        if rejection is not None:
            raise _error_from_rejection(rejection)


def parse_request(proxied: ProxiedRequest) -> StatelessRequest | None:
    """The request, checked against its headers; None for a notification. Raises McpProtocolError."""
    headers = Headers(raw=proxied.scope["headers"])
    if proxied.http_method != "POST":
        raise McpProtocolError(jsonrpc.INVALID_REQUEST, "The stateless era only has POST", status=405)
    accept = headers.get("accept", "*/*")
    if "*/*" not in accept and not ("application/json" in accept and "text/event-stream" in accept):
        raise McpProtocolError(jsonrpc.INVALID_REQUEST, "Accept application/json and text/event-stream", status=406)
    message = wire.parse_message(proxied.body)
    if message.method is msgspec.UNSET:
        raise McpProtocolError(jsonrpc.INVALID_REQUEST, "Only requests and notifications can be sent")
    if not message.is_request:
        rejection = unsupported_protocol_version_rejection(headers.get(VERSION_HEADER, ""))
        if rejection is not None:
            raise _error_from_rejection(rejection)
        return None
    params = msgspec.json.decode(message.params) if message.params else {}
    if (duplicate := find_duplicated_routing_header(headers.items())) is not None:
        raise McpProtocolError(wire.HEADER_MISMATCH, f"{duplicate} header appears more than once")
    classification = classify_inbound_request({"method": message.method, "params": params}, headers=dict(headers))
    if isinstance(classification, InboundLadderRejection):
        raise _error_from_rejection(classification)
    return StatelessRequest(message.id, message.method, params, headers)  # type: ignore[arg-type]  # a request's id is not null


def _error_from_rejection(rejection: InboundLadderRejection) -> McpProtocolError:
    return McpProtocolError(rejection.code, rejection.message, rejection.data, status=_http_status_of(rejection.code))


def _http_status_of(code: int) -> int:
    return ERROR_CODE_HTTP_STATUS.get(code, _DEFAULT_STATUS)


class UpstreamExchange:
    """One request to the server, through all rounds of questions. It holds its session until it ends."""

    def __init__(
        self, pool: UpstreamPool, session: PooledSession, request: StatelessRequest, upstream_request: UpstreamRequest
    ) -> None:
        self.request = request
        self.session = session
        self._pool = pool
        self._upstream_request = upstream_request
        self._questions: dict[str, types.JSONRPCRequest] = {}
        self._question_count = 0
        self._is_exclusive = request.needs_exclusive_session
        self._has_ended = False

    @property
    def questions(self) -> dict[str, Any]:
        """The open questions, as the stateless era has them."""
        return {
            key: {"method": each.method, "params": each.params} if each.params else {"method": each.method}
            for key, each in self._questions.items()
        }

    async def await_result(self, reply: McpReply) -> dict[str, Any] | None:
        """The result, or None if there are questions to answer first. Raises FabricError or McpProtocolError."""
        while True:
            message = await self._upstream_request.next_message()
            for each in (message, *self._upstream_request.take_buffered()):
                if (result := result_of(each)) is not None:
                    return result
                await self._handle(each, reply)
            if self._questions:
                return None

    async def send_answers(self, request: StatelessRequest) -> None:
        """Send the client's answers to the waiting server. Raises UpstreamInterrupted."""
        self.request = request
        self._upstream_request.progress_token = request.meta.get("progressToken")
        responses = request.params.get("inputResponses")
        answers: dict[str, Any] = responses if isinstance(responses, dict) else {}
        for key in [key for key in self._questions if isinstance(answers.get(key), dict)]:
            question = self._questions.pop(key)
            response = types.JSONRPCResponse(jsonrpc="2.0", id=question.id, result=answers[key])
            await self.session.send(response, self._headers)

    def end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self.session.forget(self._upstream_request)
            self._pool.release(self.session, exclusive=self._is_exclusive)

    async def cancel(self) -> None:
        """Tell the server that the answer is not needed any more. Never raises."""
        if not self._has_ended:
            await self.session.cancel(self._upstream_request, self._headers)
            self.end()

    @property
    def _headers(self) -> Mapping[str, str]:
        return {VERSION_HEADER: _version_of(self._pool, self.session)}

    async def _handle(self, message: JsonRpcMessage, reply: McpReply) -> None:
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


def _version_of(pool: UpstreamPool, session: PooledSession) -> str:
    if pool.era == "stateless":
        return STATELESS_VERSION
    return str(session.server_info.get("protocolVersion", HANDSHAKE_VERSION))


class _SessionForgotten(AgentOffline):
    """A server over HTTP no longer knows the session; the next request opens another."""


_TRANSPORT_ERRORS: dict[Any, type[FabricError]] = {
    "busy": AgentBusy,
    "gone": _SessionForgotten,
    "offline": AgentOffline,
    "failed": UpstreamFailed,
    "refused": UpstreamRefused,
}


class StatelessProxy:
    """Proxies to one agent."""

    def __init__(
        self,
        context: DoorContext,
        pool: UpstreamPool,
        pending: PendingQuestions[UpstreamExchange],
        ping_timers: DeadlineSweep,
    ) -> None:
        self._context = context
        self._pool = pool
        self._pending = pending
        self._ping_timers = ping_timers

    async def forward(self, proxied: ProxiedRequest) -> None:
        """Raises FabricError or McpProtocolError."""
        request = parse_request(proxied)
        if request is None:
            await proxied.send.send_reply(202, b"")
            return
        reply = McpReply(request.id, proxied.send, self._ping_timers, None, proxied.trace)
        timeout = _LISTEN_TIMEOUT if proxied.is_long_lived else self._context.gateway.longest_timeout
        try:
            with reply:
                async with asyncio.timeout(timeout):
                    result = await self._answer(request, proxied, reply)
            await reply.send_result(_encode(result))
        except McpProtocolError as error:
            error.status = _http_status_of(error.code)
            await reply.send_error(error)
        except TimeoutError as exc:
            await self._fail(CallTimeout(timeout, agent_id=self._pool.agent_id), proxied, reply, exc)
        except FabricError as error:
            await self._fail(error, proxied, reply, error.__cause__)

    async def _fail(
        self, error: FabricError, proxied: ProxiedRequest, reply: McpReply, cause: BaseException | None
    ) -> None:
        if proxied.send.has_started:
            await reply.send_error(to_protocol_error(error, proxied.trace))
        raise error from cause

    async def _answer(self, request: StatelessRequest, proxied: ProxiedRequest, reply: McpReply) -> dict[str, Any]:
        if not eras.is_stateless_method(request.method):
            raise McpProtocolError(jsonrpc.METHOD_NOT_FOUND, "Method not found", request.method)
        if "requestState" in request.params and self._pool.era == "handshake":
            return await self._continue_exchange(request, proxied, reply)
        try:
            return await self._start_exchange(request, proxied, reply)
        except _SessionForgotten:  # the server has not begun to work on it
            return await self._start_exchange(request, proxied, reply)

    async def _start_exchange(
        self, request: StatelessRequest, proxied: ProxiedRequest, reply: McpReply
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
        return await self._await_result(exchange, proxied, reply)

    async def _continue_exchange(
        self, request: StatelessRequest, proxied: ProxiedRequest, reply: McpReply
    ) -> dict[str, Any]:
        state = str(request.params["requestState"])
        exchange = self._pending.find(state, self._pending_key(request, proxied))
        if exchange is None:
            raise _unknown_state()
        self._pending.remove(state)
        try:
            await exchange.send_answers(request)
        except BaseException:
            await exchange.cancel()
            raise
        if exchange.questions:
            return await self._render_questions(exchange, proxied)
        return await self._await_result(exchange, proxied, reply)

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
        self, exchange: UpstreamExchange, proxied: ProxiedRequest, reply: McpReply
    ) -> dict[str, Any]:
        request, session = exchange.request, exchange.session
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
            return await self._render_questions(exchange, proxied)
        exchange.end()
        if request.method == "tools/list":
            self._pool.store_tool_schemas(read_tools(result))
        if self._pool.era == "handshake":
            return eras.complete_result(request.method, result, session.server_info.get("serverInfo"))
        return _restore_subscription_id(result, request)

    async def _render_questions(self, exchange: UpstreamExchange, proxied: ProxiedRequest) -> dict[str, Any]:
        if self._pending.is_full:
            await exchange.cancel()
            reason = "Too many questions of MCP servers wait for answers. Try again later."
            raise UpstreamInterrupted(reason, agent_id=self._pool.agent_id)
        state = self._pending.add(exchange, self._pending_key(exchange.request, proxied))
        return eras.make_input_required(exchange.questions, state, exchange.session.server_info.get("serverInfo"))

    def _pending_key(self, request: StatelessRequest, proxied: ProxiedRequest) -> tuple[Any, ...]:
        return self._pool.agent_id, proxied.principal, request.subject

    def _make_headers(
        self, session: PooledSession, request: StatelessRequest, proxied: ProxiedRequest
    ) -> dict[str, str]:
        """For servers over HTTP. Programs do not get headers."""
        trace = {"traceparent": format_traceparent(proxied.trace), **chain_to_headers(proxied.chain)}
        if self._pool.era == "stateless":
            return {**eras.make_stateless_headers(request.method, request.params), **trace}
        return {VERSION_HEADER: _version_of(self._pool, session), **trace}

    def _raise_transport_error(self, session: PooledSession, error: McpProtocolError) -> None:
        """Raises FabricError if our own transport made this error in the server's place."""
        trouble = error.data.get(TROUBLE_KEY) if isinstance(error.data, dict) else None
        if trouble == "gone":
            session.end()
        if trouble is not None:
            error_type = _TRANSPORT_ERRORS.get(trouble, UpstreamInterrupted)
            raise error_type(error.message, agent_id=self._pool.agent_id) from error

    # Requests that a server of the handshake era does not get, or gets in another form.

    async def _answer_locally(
        self, session: PooledSession, request: StatelessRequest, proxied: ProxiedRequest, reply: McpReply
    ) -> dict[str, Any] | None:
        if request.method == "server/discover":
            return eras.to_discover_result(session.server_info)
        if "requestState" in request.params:
            raise _unknown_state()
        if request.method == LISTEN_METHOD:
            return await self._listen(session, request, proxied, reply)
        return None

    async def _listen(
        self, session: PooledSession, request: StatelessRequest, proxied: ProxiedRequest, reply: McpReply
    ) -> dict[str, Any]:
        """Forward changes until the client disconnects or the session ends; then the client gets an error."""
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
        level, capabilities = request.log_level, session.server_info.get("capabilities") or {}
        if level is not None and level != session.log_level and "logging" in capabilities:
            await self._request_upstream(session, "logging/setLevel", {"level": level}, headers)
            session.log_level = level

    async def _request_upstream(
        self, session: PooledSession, method: str, params: Mapping[str, Any], headers: Mapping[str, str]
    ) -> dict[str, Any]:
        """A request of the proxy itself. Raises FabricError or McpProtocolError."""
        return await session.request(method, params, headers=headers, timeout=_OWN_REQUEST_TIMEOUT)

    # Headers that repeat arguments are checked against the tool's schema, as a server over HTTP would.

    async def _find_tool_schema(self, session: PooledSession, request: StatelessRequest) -> Any:
        name, schemas = request.params.get("name"), self._pool.tool_schemas
        if not isinstance(name, str):
            return None
        if name not in schemas:
            await self._load_tools(session, request)
            schemas.setdefault(name, None)
        return schemas[name]

    async def _load_tools(self, session: PooledSession, request: StatelessRequest) -> None:
        meta = {key: value for key, value in request.meta.items() if key != "progressToken"}

        async def request_page(page_params: dict[str, Any]) -> Mapping[str, Any]:
            params = {**page_params, "_meta": meta} if self._pool.era == "stateless" else page_params
            headers = eras.make_stateless_headers("tools/list", params)
            return await self._request_upstream(session, "tools/list", params, headers)

        with suppress(McpProtocolError):
            async for page in list_pages(request_page):
                self._pool.store_tool_schemas(read_tools(page))


def _unknown_state() -> McpProtocolError:
    reason = "This requestState is unknown, was used already, or has expired. Repeat the request without it."
    return McpProtocolError(jsonrpc.INVALID_PARAMS, reason)


async def _forward_change(
    message: JsonRpcMessage, subscription: Mapping[str, Any], meta: Mapping[str, Any], reply: McpReply
) -> None:
    if isinstance(message, types.JSONRPCNotification):
        params = message.params or {}
        if eras.is_subscribed(message.method, params, subscription):
            await reply.send_notification(message.method, {**params, "_meta": {**(params.get("_meta") or {}), **meta}})


def _restore_subscription_id(result: dict[str, Any], request: StatelessRequest) -> dict[str, Any]:
    """The result that ends a subscription, with the client's own id for it."""
    meta = result.get("_meta")
    if request.method == LISTEN_METHOD and isinstance(meta, dict) and eras.SUBSCRIPTION_ID in meta:
        return {**result, "_meta": {**meta, eras.SUBSCRIPTION_ID: request.id}}
    return result
