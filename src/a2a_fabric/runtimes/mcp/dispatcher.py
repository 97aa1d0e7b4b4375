"""JSON-RPC with an MCP server over any transport: requests are matched with replies, the server's requests answered.

Calls go straight through `request`. Rare things (negotiation, typed answers to the server's questions, streams of
subscriptions) are left to the SDK's session, for which this is a dispatcher like its own.

Invariants:
- A request is in `_requests` exactly while its caller waits. The first reply resolves it, later ones find nothing.
- A reply counts for the request that its id names; one with a strange id counts for the request in whose reply it came.
- `receive` never waits: a slow caller or an open question does not hold up the other messages of the server.
- When the dispatcher is closed, every request ends with CONNECTION_CLOSED, also those that come later."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

import anyio
import mcp_types as types
import msgspec
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest, ProgressFnT, coerce_request_id
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import handler_exception_to_error_data
from mcp.shared.transport_context import TransportContext
from msgspec import UNSET, Raw

from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.protocols.jsonrpc import DECODE_ERRORS
from a2a_fabric.protocols.mcp.wire import McpMessage, decode_or_none
from a2a_fabric.runtimes.mcp.content import UpstreamRpcError
from a2a_fabric.runtimes.mcp.transports import McpTransport, RequestId, RpcRequest

_log = logging.getLogger(__name__)

_CANCEL_TIMEOUT = 5.0  # seconds for telling the server that a request is cancelled
_MAX_SERVER_REQUESTS = 256  # at a time; more are refused
_CLOSED = UpstreamRpcError(types.CONNECTION_CLOSED, "Connection closed")
_encode = msgspec.json.Encoder().encode

RawReply = Raw | UpstreamRpcError
OnNotification = Callable[[str, dict[str, Any], RpcRequest | None], Awaitable[None]]

# The call for which a request is sent, or to which a request of the server belongs.
current_request: ContextVar[Any] = ContextVar("mcp_asking", default=None)


class McpDispatcher:
    """`on_notification` gets the server's notifications that belong to no request's progress."""

    on_stream_exception = None  # the SDK's hook for errors of its own transports

    def __init__(self, transport: McpTransport, on_notification: OnNotification) -> None:
        self._transport = transport
        self._on_notification = on_notification
        self._ids = itertools.count(1)
        self._requests: dict[RequestId, RpcRequest] = {}
        self._answers: dict[asyncio.Task[None], RequestId] = {}  # to requests of the server, by their ids
        self._on_request: OnRequest | None = None
        self._intercept: OnNotifyIntercept | None = None
        self._closed = asyncio.Event()

    def start_request(
        self,
        method: str,
        params: Mapping[str, Any],
        headers: Mapping[str, str],
        on_progress: ProgressFnT | None = None,
        request_id: RequestId | None = None,
        call: Any = None,
    ) -> RpcRequest:
        """Send a request. The caller waits for its `reply`, and calls `finish`."""
        if request_id is None:
            request_id = next(self._ids)
            while request_id in self._requests:
                request_id = next(self._ids)
        elif coerce_request_id(request_id) in self._requests:
            raise ValueError(f"request id {request_id!r} is already in flight")
        if on_progress is not None:
            params = {**params, "_meta": {**(params.get("_meta") or {}), "progressToken": request_id}}
        request = RpcRequest(request_id, method, on_progress, call)
        if self._closed.is_set():
            request.reply.set_result(_CLOSED)
            return request
        self._requests[coerce_request_id(request_id)] = request
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        if not params:
            del message["params"]
        request.task = self._transport.start(method, _encode(message), headers, request)
        return request

    def finish(self, request: RpcRequest) -> None:
        """Forget the request. A reply that is still on its way is dropped."""
        self._requests.pop(coerce_request_id(request.id), None)
        if request.task is not None and not request.task.done():
            request.task.cancel()

    async def cancel(self, request: RpcRequest, reason: str = "caller cancelled") -> None:
        """Tell the server that the request is cancelled. Never raises an error."""
        has_reply = request.reply.done() and not request.reply.cancelled()
        if self._closed.is_set() or self._transport.cancels_by_closing or has_reply:
            return
        try:
            async with asyncio.timeout(_CANCEL_TIMEOUT):
                await self.notify("notifications/cancelled", {"requestId": request.id, "reason": reason})
        except TimeoutError:
            _log.debug("The cancellation of %s was not sent in time", request.method)

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        headers: Mapping[str, str] = {},
        *,
        on_progress: ProgressFnT | None = None,
        request_id: RequestId | None = None,
        may_cancel: bool = True,
    ) -> RawReply:
        """Send a request and wait for its reply. Cancelling tells the server, too."""
        request = self.start_request(method, params, headers, on_progress, request_id, current_request.get())
        return await self.wait_for_reply(request, may_cancel=may_cancel)

    async def wait_for_reply(self, request: RpcRequest, *, may_cancel: bool = True) -> RawReply:
        try:
            reply: RawReply = await request.reply
        except asyncio.CancelledError:
            if may_cancel:
                await self.cancel(request)
            raise
        finally:
            self.finish(request)
        return reply

    async def aclose(self) -> None:
        """Closed for good; nothing is sent any more."""
        self.close()
        await cancel_and_wait(*self._answers)

    def close(self) -> None:
        """End all requests: the server sends nothing more."""
        self._closed.set()
        for request in self._requests.values():
            self.fail(request, _CLOSED)

    # What the transport calls

    async def receive(self, message: McpMessage, request: RpcRequest | None) -> None:
        if message.method is UNSET:
            self._resolve(message, request)
        elif message.id is UNSET:
            try:
                await self._take_notification(message.method, _decode_params(message.params), request)
            except Exception:  # of a listener; the messages that follow must not suffer
                _log.exception("the notification %s of an MCP server was dropped", message.method)
        elif message.id is not None:
            self._start_answer(message.method, message.id, message.params, request)

    def fail(self, request: RpcRequest, error: UpstreamRpcError) -> None:
        if not request.reply.done():
            request.reply.set_result(error)

    # What the SDK's session calls

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        self._on_request, self._intercept = on_request, on_notify_intercept
        task_status.started()
        try:
            await self._closed.wait()
        finally:
            self.close()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        options = opts or {}
        try:
            async with asyncio.timeout(options.get("timeout")):
                reply = await self.request(
                    method,
                    params or {},
                    options.get("headers") or {},
                    on_progress=options.get("on_progress"),
                    request_id=options.get("request_id"),
                    may_cancel=options.get("cancel_on_abandon", True),
                )
        except TimeoutError:
            raise MCPError(code=types.REQUEST_TIMEOUT, message=f"Request {method!r} timed out") from None
        if isinstance(reply, UpstreamRpcError):
            raise MCPError(code=reply.code, message=reply.message, data=reply.data)
        return decode_result(reply)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        message = {"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params})
        await self._send(method, message, (opts or {}).get("headers") or {})

    async def _send(self, method: str, message: Mapping[str, Any], headers: Mapping[str, str] = {}) -> None:
        if not self._closed.is_set():
            task = self._transport.start(method, _encode(message), headers)
            if task is not None:
                await task

    def _resolve(self, message: McpMessage, request: RpcRequest | None) -> None:
        by_id = None if message.id is None or message.id is UNSET else self._requests.get(coerce_request_id(message.id))
        target = by_id or request
        if target is None or target.reply.done():
            _log.debug("dropped a reply to a request that has ended: %r", message.id)
            return
        if message.result:
            target.reply.set_result(message.result)
            return
        error: UpstreamRpcError | None = decode_or_none(message.error, UpstreamRpcError)
        target.reply.set_result(error or UpstreamRpcError(types.PARSE_ERROR, "The error of the reply cannot be read"))

    async def _take_notification(self, method: str, params: dict[str, Any], request: RpcRequest | None) -> None:
        if method == "notifications/cancelled":
            key = to_request_key(params.get("requestId"))
            for answer in [each for each, answered in self._answers.items() if answered == key]:
                answer.cancel()
        elif method == "notifications/progress":
            target = self._requests.get(to_request_key(params.get("progressToken")))
            if target is not None and target.on_progress is not None:
                await report_progress(target.on_progress, params)
                return
        if self._intercept is None or not self._intercept(method, params):
            await self._on_notification(method, params, request)

    def _start_answer(self, method: str, request_id: RequestId, params: Raw, request: RpcRequest | None) -> None:
        if len(self._answers) >= _MAX_SERVER_REQUESTS:
            _log.warning("%s: dropped, because %d requests of the server are open", method, _MAX_SERVER_REQUESTS)
            return
        task = asyncio.get_running_loop().create_task(self._answer(method, request_id, params, request))
        self._answers[task] = coerce_request_id(request_id)
        task.add_done_callback(self._answers.pop)

    async def _answer(self, method: str, request_id: RequestId, params: Raw, request: RpcRequest | None) -> None:
        """Answer a request of the server. One that the server cancels gets no answer."""
        current_request.set(request.call if request is not None else None)
        try:
            if self._on_request is None:
                raise MCPError(code=types.METHOD_NOT_FOUND, message="Method not found", data=method)
            result = await self._on_request(
                _ServerRequest(request_id),  # type: ignore[arg-type]  # all that the SDK's session reads of it
                method,
                _decode_params(params),
            )
        except Exception as exc:
            error = handler_exception_to_error_data(exc)
            if error is None:
                _log.exception("answering %s failed", method)
                error = types.ErrorData(code=0, message=str(exc))
            reply: dict[str, Any] = {"error": error.model_dump(by_alias=True, mode="json", exclude_none=True)}
        else:
            reply = {"result": result}
        await self._send("", {"jsonrpc": "2.0", "id": request_id, **reply})


class _ServerRequest:
    """What the SDK's session wants to know about a request of the server."""

    transport = TransportContext(kind="jsonrpc", can_send_request=False)

    def __init__(self, request_id: RequestId) -> None:
        self.request_id = request_id


async def report_progress(on_progress: ProgressFnT, params: Mapping[str, Any]) -> None:
    """Report the progress in a notification; one without a number says nothing."""
    done, total, message = params.get("progress"), params.get("total"), params.get("message")
    if isinstance(done, int | float):
        known_total = float(total) if isinstance(total, int | float) else None
        await on_progress(float(done), known_total, message if isinstance(message, str) else None)


def _decode_params(params: Raw) -> dict[str, Any]:
    """Parameters that cannot be read count as absent."""
    return decode_or_none(params, dict[str, Any]) or {} if params else {}


def to_request_key(value: Any) -> RequestId:
    """The key under which a request with this id would be found."""
    return coerce_request_id(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def decode_result(result: Raw) -> dict[str, Any]:
    """Raises MCPError for a result that is not an object."""
    try:
        return msgspec.json.decode(result, type=dict[str, Any])
    except DECODE_ERRORS as exc:
        raise MCPError(code=types.PARSE_ERROR, message=f"The MCP server's answer cannot be read: {exc}"[:300]) from exc
