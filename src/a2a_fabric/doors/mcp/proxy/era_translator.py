"""Translates between a client of the handshake era and a server of the stateless era.

The handshake is answered from `server/discover`. Each request gets the envelope that the stateless era
requires; a result that asks for input becomes questions to the client, whose answers go back with the
repeated request; change notifications come from a subscription."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import mcp_types as types
from mcp.shared.inbound import mcp_param_headers, x_mcp_header_map
from mcp.shared.message import ServerMessageMetadata, SessionMessage

from a2a_fabric.core.errors import FabricError
from a2a_fabric.doors.mcp.proxy.upstream import JsonRpcMessage, ServerMessage, UpstreamSession, list_pages, read_tools
from a2a_fabric.protocols import jsonrpc
from a2a_fabric.protocols.mcp import eras, wire
from a2a_fabric.protocols.mcp.wire import INPUT_REQUIRED, McpProtocolError

_MAX_ROUNDS = 32
ANSWER_TIMEOUT = 600.0  # seconds; a person may have to answer
_LISTEN_TIMEOUT = 10.0

SendToClient = Callable[[SessionMessage], Awaitable[None]]


class EraTranslator:
    """`send_to_client` sends a message to the client. `handle` never waits; `aclose` ends everything that runs."""

    def __init__(self, upstream: UpstreamSession, send_to_client: SendToClient, timeout: float) -> None:
        self._upstream = upstream
        self._send_to_client = send_to_client
        self._timeout = timeout
        self._client_info: Mapping[str, Any] = {}
        self._server_info: Mapping[str, Any] = {}
        self._log_level: str | None = None
        self._subscribed_uris: set[str] = set()
        self._running: dict[types.RequestId, asyncio.Task[None]] = {}
        self._ids = itertools.count(1)
        self._pending_answers: dict[types.RequestId, asyncio.Future[JsonRpcMessage]] = {}
        self._listen_task: asyncio.Task[None] | None = None
        self._header_maps: dict[str, Mapping[tuple[str, ...], str]] = {}

    def handle(self, message: JsonRpcMessage) -> None:
        if isinstance(message, types.JSONRPCRequest):
            task = asyncio.ensure_future(self._answer_request(message))
            self._running[message.id] = task
            task.add_done_callback(lambda _: self._running.pop(message.id, None))
        elif isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            future = self._pending_answers.pop(message.id, None) if message.id is not None else None
            if future is not None and not future.done():
                future.set_result(message)
        elif (cancelled_id := eras.find_cancelled_id(message)) is not None and (
            running_task := self._running.get(cancelled_id)
        ) is not None:
            running_task.cancel()

    async def aclose(self) -> None:
        tasks = [*self._running.values(), *([self._listen_task] if self._listen_task else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)

    async def _answer_request(self, request: types.JSONRPCRequest) -> None:
        answer: JsonRpcMessage = eras.make_cancelled_error(request.id)
        try:
            result = await self._handle_request(request, request.params or {})
            answer = types.JSONRPCResponse(jsonrpc="2.0", id=request.id, result=dict(result))
        except McpProtocolError as error:
            data = types.ErrorData(code=error.code, message=error.message, data=error.data)
            answer = types.JSONRPCError(jsonrpc="2.0", id=request.id, error=data)
        except (FabricError, TimeoutError) as error:
            reason = error.message if isinstance(error, FabricError) else f"No answer within {self._timeout:g} s"
            error_data = types.ErrorData(code=types.INTERNAL_ERROR, message=reason)
            answer = types.JSONRPCError(jsonrpc="2.0", id=request.id, error=error_data)
        finally:
            await self._send_to_client(SessionMessage(answer))

    async def _handle_request(self, request: types.JSONRPCRequest, params: Mapping[str, Any]) -> Mapping[str, Any]:
        match request.method:
            case "initialize":
                return await self._initialize(params)
            case "ping":
                return {}
            case "logging/setLevel":
                self._log_level = params.get("level")
                return {}
            case "resources/subscribe" | "resources/unsubscribe":
                return await self._set_subscription(
                    str(params.get("uri")), is_subscribed=request.method.endswith("/subscribe")
                )
        return await self._run_rounds(request, params)

    async def _initialize(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        self._client_info = params
        self._server_info = await self._request_upstream("server/discover", {}, None)
        await self._restart_listening()
        return eras.to_initialize_result(self._server_info, params.get("protocolVersion"))

    async def _set_subscription(self, uri: str, *, is_subscribed: bool) -> Mapping[str, Any]:
        (self._subscribed_uris.add if is_subscribed else self._subscribed_uris.discard)(uri)
        await self._restart_listening()
        return {}

    async def _run_rounds(self, request: types.JSONRPCRequest, params: Mapping[str, Any]) -> Mapping[str, Any]:
        round_params = params
        for _ in range(_MAX_ROUNDS):
            result = await self._request_upstream(request.method, round_params, request.id)
            if request.method == "tools/list":
                self._store_header_maps(result)
            if result.get("resultType") != INPUT_REQUIRED:
                return result
            round_params = {
                **params,
                "inputResponses": await self._ask_client(result.get("inputRequests") or {}, request.id),
            }
            if result.get("requestState") is not None:
                round_params["requestState"] = result["requestState"]
        raise McpProtocolError(jsonrpc.INTERNAL_ERROR, f"The MCP server asked for input {_MAX_ROUNDS} times")

    async def _ask_client(self, questions: Mapping[str, Any], request_id: types.RequestId) -> dict[str, Any]:
        """The client's answers to all questions, which are asked at the same time."""
        answers = await asyncio.gather(*(self._ask_question(each, request_id) for each in questions.values()))
        return dict(zip(questions, answers, strict=True))

    async def _ask_question(self, question: Mapping[str, Any], request_id: types.RequestId) -> Mapping[str, Any]:
        question_id = f"fabric-{next(self._ids)}"
        future = self._pending_answers[question_id] = asyncio.get_running_loop().create_future()
        method = str(question.get("method"))
        request = types.JSONRPCRequest(jsonrpc="2.0", id=question_id, method=method, params=question.get("params"))
        try:
            await self._send_to_client(SessionMessage(request, ServerMessageMetadata(related_request_id=request_id)))
            async with asyncio.timeout(ANSWER_TIMEOUT):
                answer = await future
        finally:
            self._pending_answers.pop(question_id, None)
        if isinstance(answer, types.JSONRPCResponse):
            return answer.result
        assert isinstance(answer, types.JSONRPCError)  # noqa: S101  # the only other kind of answer
        if method == "elicitation/create":
            return {"action": "cancel"}
        raise McpProtocolError(answer.error.code, answer.error.message, answer.error.data)

    async def _request_upstream(
        self, method: str, params: Mapping[str, Any], request_id: types.RequestId | None
    ) -> Mapping[str, Any]:
        """Raises McpProtocolError, FabricError or TimeoutError."""
        try:
            return await self._request_upstream_once(method, params, request_id)
        except McpProtocolError as error:
            if error.code != wire.HEADER_MISMATCH or method != "tools/call":
                raise
        await self._load_tools()  # the schema says which arguments must be repeated in headers
        return await self._request_upstream_once(method, params, request_id)

    async def _request_upstream_once(
        self, method: str, params: Mapping[str, Any], request_id: types.RequestId | None
    ) -> Mapping[str, Any]:
        async def forward(message: ServerMessage) -> None:
            if isinstance(message, types.JSONRPCNotification) and request_id is not None:
                metadata = ServerMessageMetadata(related_request_id=request_id)
                await self._send_to_client(SessionMessage(message, metadata))

        full_params = eras.add_envelope(params, self._client_info, self._log_level)
        headers = {**eras.make_stateless_headers(method, full_params), **self._make_param_headers(method, full_params)}
        return await self._upstream.request(
            method, full_params, headers=headers, timeout=self._timeout, on_message=forward
        )

    async def _restart_listening(self) -> None:
        """Subscribe to the changes that a handshake client expects. The old subscription ends after that."""
        previous, capabilities = self._listen_task, self._server_info.get("capabilities") or {}
        subscription = eras.make_subscription(capabilities, self._subscribed_uris)
        if subscription:
            ready = asyncio.Event()
            self._listen_task = asyncio.ensure_future(self._forward_changes(subscription, ready))
            await asyncio.wait(
                {self._listen_task, asyncio.ensure_future(ready.wait())},
                timeout=_LISTEN_TIMEOUT,
                return_when=asyncio.FIRST_COMPLETED,
            )
            ready.set()
        if previous is not None:
            previous.cancel()

    async def _forward_changes(self, subscription: Mapping[str, Any], ready: asyncio.Event) -> None:
        params = eras.add_envelope({"notifications": subscription}, self._client_info)
        headers = eras.make_stateless_headers("subscriptions/listen", params)
        upstream_request = await self._upstream.send_request("subscriptions/listen", params, headers=headers)
        try:
            while True:
                message = await upstream_request.next_message()
                ready.set()
                if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
                    return
                if isinstance(message, types.JSONRPCNotification) and eras.is_change(message.method):
                    await self._send_to_client(SessionMessage(_drop_subscription_id(message)))
        except FabricError:
            return  # the session with the server has ended
        finally:
            await self._upstream.cancel(upstream_request, headers)

    def _make_param_headers(self, method: str, params: Mapping[str, Any]) -> Mapping[str, str]:
        header_map = self._header_maps.get(str(params.get("name"))) if method == "tools/call" else None
        return mcp_param_headers(header_map, params.get("arguments") or {}) if header_map else {}

    async def _load_tools(self) -> None:
        async for page in list_pages(lambda params: self._request_upstream_once("tools/list", params, None)):
            self._store_header_maps(page)

    def _store_header_maps(self, page: Mapping[str, Any]) -> None:
        for tool in read_tools(page):
            if header_map := x_mcp_header_map(tool.get("inputSchema")):
                self._header_maps[tool["name"]] = header_map


def _drop_subscription_id(notification: types.JSONRPCNotification) -> types.JSONRPCNotification:
    """The notification without the subscription id, which the client does not know."""
    params = dict(notification.params or {})
    meta = {key: value for key, value in (params.pop("_meta", None) or {}).items() if key != eras.SUBSCRIPTION_ID}
    return notification.model_copy(update={"params": {**params, "_meta": meta} if meta else (params or None)})
