"""The HTTP endpoint of /agents/{id}/mcp: authorizes, limits and logs each request, then hands it to a proxy.

`tools/call` is a call like any other: it passes the steps and is logged as a call. Other requests pass the
agent's gate only. Long-lived streams, the end of a session, and answers to the agent's own questions take no
slot of the gate. The outcome of a call is read from its reply while that is forwarded; nothing is delayed and
little is buffered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Raw

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call, Input, Target
from a2a_fabric.core.errors import (
    AgentOffline,
    BadInput,
    FabricError,
    InternalError,
    UpstreamRefused,
)
from a2a_fabric.core.forwarding import IDENTITY_META_KEY, CallSigner
from a2a_fabric.core.json_text import SHORT, find_json_problem
from a2a_fabric.core.propagation import (
    DELEGATION_META_KEY,
    MANDATE_META_KEY,
    PASSPORT_META_KEY,
    MaybeChain,
    Trace,
    as_header_and_json,
    current_trace,
)
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.doors.edge import (
    JSON_MEDIA_TYPE,
    SHORTCUT_KEY,
    ClientDisconnected,
    RequestHead,
    Shortcut,
    build_error_headers,
    head_from_scope,
    may_be_json,
    replay_body,
    run_until_disconnect,
)
from a2a_fabric.doors.mcp.request import DirectRequestContext, McpRequestContext
from a2a_fabric.doors.mcp.results import to_protocol_error
from a2a_fabric.protocols import jsonrpc
from a2a_fabric.protocols.mcp import wire
from a2a_fabric.protocols.mcp.wire import LISTEN_METHOD, McpProtocolError, decode_or_none

_MAX_EVENT_BYTES = 1 << 20  # of one event; the outcome of a call with a longer one is not read
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n")


class _CallCancelled(UpstreamRefused):
    """The caller cancelled the call, so its reply was ended."""

    code = "CANCELLED"


_ERROR_TYPES: dict[int, type[FabricError]] = {
    jsonrpc.INVALID_PARAMS: BadInput,
    wire.REQUEST_CANCELLED: _CallCancelled,
}


class _ReplyError(msgspec.Struct):
    code: int = 0
    message: str = ""


class _ReplyResult(msgspec.Struct):
    is_error: bool = msgspec.field(name="isError", default=False)


class _ReplyMessage(msgspec.Struct):
    result: _ReplyResult | None = None
    error: _ReplyError | None = None


_reply_decoder = msgspec.json.Decoder(_ReplyMessage)
_EMPTY_REPLY = _ReplyMessage()


class ReplyOutcome:
    """The outcome of a call, read from its reply while that is forwarded."""

    _is_stream = False
    _buffer = b""  # the unfinished event, or the body so far
    _last_event = b""
    _is_too_long = False

    def start(self, *, is_stream: bool) -> None:
        self._is_stream = is_stream

    def feed(self, chunk: bytes) -> None:
        if not chunk or self._is_too_long:
            return
        self._buffer += chunk
        if self._is_stream:
            self._split_events()
        if len(self._buffer) > _MAX_EVENT_BYTES and self._is_stream:
            self._buffer, self._is_too_long = b"", True

    def _split_events(self) -> None:
        """Keep the data of the last complete event, and the bytes after it."""
        end = max(self._buffer.rfind(mark) + len(mark) if mark in self._buffer else 0 for mark in _EVENT_ENDS)
        if end:
            complete, self._buffer = self._buffer[:end], self._buffer[end:]
            start = max(complete.rfind(b"\ndata:"), 0 if complete.startswith(b"data:") else -1)
            if start >= 0:
                self._last_event = complete[start:].lstrip(b"\n").removeprefix(b"data:").strip()

    @property
    def has_answer(self) -> bool:
        """Whether the answer has been forwarded."""
        answer = self._decode_answer()
        return answer.result is not None or answer.error is not None

    def find_error(self) -> FabricError | None:
        answer = self._decode_answer()
        if answer.error is not None:
            return _ERROR_TYPES.get(answer.error.code, UpstreamRefused)(answer.error.message[:500])
        if answer.result is not None and answer.result.is_error:
            return UpstreamRefused("The tool answered with an error")
        return None

    def _decode_answer(self) -> _ReplyMessage:
        try:
            return _reply_decoder.decode(self._last_event if self._is_stream else self._buffer)
        except jsonrpc.DECODE_ERRORS:
            return _EMPTY_REPLY


_EVENT_STREAM = b"text/event-stream"


class _Meta(msgspec.Struct, frozen=True):
    traceparent: Any = None
    progress_token: Any = msgspec.field(name="progressToken", default=None)
    chain: Any = msgspec.field(name=DELEGATION_META_KEY, default=None)
    passport: Any = msgspec.field(name=PASSPORT_META_KEY, default=None)
    mandate: Any = msgspec.field(name=MANDATE_META_KEY, default=None)


class _Params(msgspec.Struct):
    meta: _Meta | None = msgspec.field(name="_meta", default=None)
    name: Any = None
    arguments: Any = None


class ObservedSend:
    """The caller's `send`, which passes the reply to the outcome of the call too."""

    status = 499  # the client disconnected before there was an answer

    def __init__(self, send: Send, outcome: ReplyOutcome | None) -> None:
        self._send = send
        self._outcome = outcome

    @property
    def has_started(self) -> bool:
        return self.status != 499

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._outcome is not None:
                self._outcome.start(is_stream=_is_event_stream(message["headers"]))
        elif self._outcome is not None:
            self._outcome.feed(message.get("body", b""))
        await self._send(message)

    async def send_reply(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        length = (b"content-length", str(len(body)).encode())
        await self({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        await self({"type": "http.response.body", "body": body})


class ProxiedRequest:
    """One request to be proxied. `method` and `id` are those of the message, or None if it cannot be read.

    `chain` is the delegation chain for the agent, `signed_call` the call for which the request is signed.
    """

    signed_call: Call | None = None

    def __init__(
        self, scope: Any, receive: Receive, send: Send, request_context: McpRequestContext, body: bytes
    ) -> None:
        self.scope = scope
        self._receive = receive
        self._request_context = request_context
        self.chain: MaybeChain = msgspec.UNSET
        self.principal = request_context.principal
        self.body = body
        self.http_method: str = scope["method"]
        self.head = head_from_scope(scope)
        message = request_context.message
        self.method = (message and message.method) or None
        self.id = message.id if message is not None and message.id is not msgspec.UNSET else None
        self._params = (decode_or_none(message.params, _Params) if message and message.params else None) or _Params()
        # Notifications, and answers to the agent's questions, are no requests: nothing waits for a reply to them.
        self.is_request = self.http_method == "POST" and self.method is not None and self.id is not None
        self.is_call = self.is_request and self.method == "tools/call" and isinstance(self._params.name, str)
        # Streams that wait for changes, in either era.
        self.is_long_lived = self.http_method == "GET" or (self.is_request and self.method == LISTEN_METHOD)
        self.outcome = ReplyOutcome() if self.is_call else None
        self.send = ObservedSend(send, self.outcome)
        self.late_disconnect: asyncio.CancelledError | None = None  # the caller disconnected after it had its answer
        meta = self._params.meta
        self.trace = request_context.trace_from_meta({"traceparent": meta.traceparent} if meta is not None else None)

    @property
    def receive(self) -> Receive:
        """The ASGI function, which returns the body first."""
        return replay_body(self.body, self._receive)

    def read_chain(self) -> MaybeChain:
        """The delegation chain that came with the request. Raises BadInput."""
        meta = self._params.meta
        if meta is None:
            return self._request_context.chain_from_meta(None)
        if meta.passport is not None or meta.mandate is not None:  # they would reach the agent
            raise BadInput(
                "This address passes `_meta` on to the agent. Send a passport as the header X-Agent-Passport and a "
                "mandate as Authorization, or call the agent's tools at /mcp"
            )
        return self._request_context.chain_from_meta(meta.chain)

    @property
    def progress_token(self) -> Any:
        meta = self._params.meta
        return None if meta is None else meta.progress_token

    def write_chain(self) -> None:
        """Write the chain into the message, because message streams have no headers."""
        if self.chain and self.is_request:
            self.write_meta(DELEGATION_META_KEY, Raw(as_header_and_json(self.chain)[1]))

    def sign(self, signer: CallSigner, call: Call) -> None:
        """Write the identity of a call into the message, bound to its arguments. Raises BadInput."""
        self.signed_call = call
        identity = signer.sign_content(call, call.input.context, call.target.capability)
        self.write_meta(IDENTITY_META_KEY, Raw(_encode(identity)))

    def write_meta(self, key: str, value: Raw) -> None:
        """Write one entry into the metadata of the message."""
        message = decode_or_none(self.body, dict[str, Any])
        params = message.get("params") or {} if message else None
        if not isinstance(params, dict):
            return
        meta = params.get("_meta")
        new_meta = {**(meta if isinstance(meta, dict) else {}), key: value}
        self.body = msgspec.json.encode({**message, "params": {**params, "_meta": new_meta}})

    def to_call(self, agent_id: str) -> Call:
        arguments = self._params.arguments
        return Call(
            trace=self.trace,
            auth=self.principal,
            target=Target(agent_id=agent_id, capability=str(self._params.name)),
            input=Input(context=arguments if isinstance(arguments, dict) else {}),
            delegation_chain=self.read_chain(),
        )


class _CallParams(msgspec.Struct):
    name: str
    arguments: dict[str, Any] = {}
    meta: _Meta = msgspec.field(name="_meta", default=_Meta())


class _CallMessage(msgspec.Struct):
    """A whole `tools/call`, decoded in one pass."""

    id: str | int
    params: _CallParams
    jsonrpc: Literal["2.0"]
    method: Literal["tools/call"]


_call_decoder = msgspec.json.Decoder(_CallMessage)


class DirectSend(ObservedSend):
    """Sends to a client of our own server, with the trace. A reply that is no stream is sent without waiting."""

    def __init__(self, send: Send, outcome: ReplyOutcome, shortcut: Shortcut, trace: Trace) -> None:
        super().__init__(send, outcome)
        self._shortcut = shortcut
        self._trace_id = trace.trace_id.encode()

    async def __call__(self, message: Any) -> None:
        is_start = message["type"] == "http.response.start"
        if is_start and all(name != b"x-trace-id" for name, _ in message["headers"]):
            message = {**message, "headers": [*message["headers"], (b"x-trace-id", self._trace_id)]}
        await super().__call__(message)
        if is_start and _is_event_stream(message["headers"]):  # the first event may be long in coming
            await self._send({"type": "http.response.body", "body": b"", "more_body": True})

    async def send_reply(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.status = status
        assert self._outcome is not None  # noqa: S101
        self._outcome.feed(body)
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        self._shortcut.reply(status, b"%bx-trace-id: %b\r\n" % (lines, self._trace_id), body)


class ProxiedCall(ProxiedRequest):
    """A plain `tools/call` to our own server: decoded once, and its reply is sent by the shortcut."""

    http_method = "POST"
    method = "tools/call"
    is_request = is_call = True
    is_long_lived = False
    chain: MaybeChain = msgspec.UNSET
    late_disconnect = None

    def __init__(
        self,
        scope: Any,
        receive: Receive,
        send: Send,
        context: DirectRequestContext,
        body: bytes,
        message: _CallMessage,
    ) -> None:
        self.scope = scope
        self._receive = receive
        self._request_context = context
        self.principal = context.principal
        self.body = body
        self.head = head_from_scope(scope)
        self.id = message.id
        self._params = message.params
        self.trace = context.trace_from_header(message.params.meta.traceparent)
        self.outcome = ReplyOutcome()
        self.send = DirectSend(send, self.outcome, scope[SHORTCUT_KEY], self.trace)

    def write_meta(self, key: str, value: Raw) -> None:
        """The message is on one line then. The arguments stay as they are, if they are on one line."""
        if b"\n" in self.body or b"\r" in self.body:
            super().write_meta(key, value)
            return
        params = _raw_params_decoder.decode(self.body).params
        meta = _raw_meta_decoder.decode(params["_meta"]) if "_meta" in params else {}
        meta[key] = value
        message = {"jsonrpc": "2.0", "id": self.id, "method": self.method, "params": {**params, "_meta": meta}}
        self.body = _encode(message)


class _RawParams(msgspec.Struct):
    params: dict[str, Raw]


_raw_params_decoder = msgspec.json.Decoder(_RawParams)
_raw_meta_decoder = msgspec.json.Decoder(dict[str, Raw])
_encode = msgspec.json.Encoder().encode


def parse_call(head: RequestHead, body: bytes) -> _CallMessage | None:
    """A plain call; None for any other message, and for one that has to be looked at more closely."""
    if not may_be_json(head.get(b"content-type")) or (len(body) > SHORT and find_json_problem(body)):
        return None
    try:
        call = _call_decoder.decode(body)
    except (*jsonrpc.DECODE_ERRORS, UnicodeError):
        return None
    traceparent = call.params.meta.traceparent
    return call if traceparent is None or isinstance(traceparent, str) else None


class AgentProxy(Protocol):
    """Proxies to one agent. Raises FabricError or McpProtocolError; a reply that has started is ended first."""

    async def forward(self, proxied: ProxiedRequest) -> None: ...


def _is_event_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name.lower() == b"content-type" and value.startswith(_EVENT_STREAM) for name, value in headers)


_log = logging.getLogger(__name__)


class LongLivedStreams:
    """Long-lived streams, which `stop` ends so that the node can shut down."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[None]] = set()

    async def __call__(self, work: Awaitable[None]) -> bool:
        """Run `work`. Returns whether it ended by itself, and not because the node stops."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        try:
            await asyncio.wait({task})
        finally:
            self._tasks.discard(task)
            task.cancel()
        if not task.cancelled():
            task.result()
        return not task.cancelled()

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()


class ProxyEndpoint:
    """The endpoint of one agent."""

    def __init__(
        self,
        context: DoorContext,
        manifest: Manifest,
        proxy: AgentProxy,
        streams: LongLivedStreams,
        signer: CallSigner | None = None,
    ) -> None:
        """`signer` signs the calls that are forwarded to the agent, where the operator asked for it."""
        self._signer = signer
        self._context = context
        self._manifest = manifest
        self._proxy = proxy
        self._streams = streams

    async def serve(self, scope: Any, receive: Receive, send: Send, request_context: McpRequestContext) -> None:
        """Serve one HTTP request. If the caller disconnects, the request to the agent is cancelled."""
        body = (await receive())["body"]
        await self._serve(ProxiedRequest(scope, receive, send, request_context, body), receive)

    async def serve_call(self, proxied: ProxiedCall, receive: Receive) -> None:
        """Serve a call of a client of our own server, which cancels this task if the client disconnects."""
        await self._serve(proxied, receive)

    async def _serve(self, proxied: ProxiedRequest, receive: Receive) -> None:
        started_at = time.monotonic()
        failure: FabricError | None = None
        try:
            if SHORTCUT_KEY in proxied.scope:
                await self._run_steps(proxied)
            else:
                await run_until_disconnect(proxied.scope, receive, lambda: self._run_steps(proxied))
        except ClientDisconnected:
            pass
        except FabricError as error:
            failure = error
            if not proxied.send.has_started:
                await self._send_error(proxied, error)
        finally:
            if failure is None or not failure.is_logged:
                self._log_request(proxied, failure, time.monotonic() - started_at)

    async def _run_steps(self, proxied: ProxiedRequest) -> None:
        """Raises FabricError."""
        steps, manifest = self._context.proxy_steps, self._manifest

        async def work() -> None:
            if steps is not None:
                proxied.chain = steps.extend_chain(proxied.read_chain(), manifest)
            await self._forward(proxied)

        if steps is not None and not proxied.is_call:
            steps.extend_chain(proxied.read_chain(), manifest)  # before the gate: it concerns the caller
        if proxied.is_request and proxied.is_long_lived:
            if not await self._streams(work()):
                await self._end_stream(proxied)
        elif steps is None or not proxied.is_request:
            await work()
        elif proxied.is_call:
            call = proxied.to_call(manifest.agent_id)
            await steps.run_call(call, manifest, work if self._signer is None else self._sign(proxied, call, work))
            if proxied.late_disconnect is not None:
                raise proxied.late_disconnect
        else:
            await steps.run_request(manifest, work, proxied.principal.principal_id)

    def _sign(
        self, proxied: ProxiedRequest, call: Call, work: Callable[[], Awaitable[None]]
    ) -> Callable[[], Awaitable[None]]:
        async def sign_and_work() -> None:
            if self._signer is not None:
                proxied.sign(self._signer, call)
            await work()

        return sign_and_work

    async def _forward(self, proxied: ProxiedRequest) -> None:
        """Raises FabricError, also for an error that the agent sent to the caller itself."""
        try:
            await self._proxy.forward(proxied)
        except asyncio.CancelledError as disconnect:
            if proxied.outcome is None or not proxied.outcome.has_answer:
                raise
            # Clients disconnect as soon as they have the answer, before the stream ends. The call was not cancelled.
            proxied.late_disconnect = disconnect
        except McpProtocolError as error:
            raise _ProtocolRefusal(error) from error
        except FabricError:
            raise
        except Exception as exc:
            current_trace.set(proxied.trace)
            _log.exception("A request to agent %s failed inside the gateway", self._manifest.agent_id)
            raise InternalError from exc
        call_error = proxied.outcome.find_error() if proxied.outcome is not None else None
        if call_error is not None:
            raise call_error

    async def _end_stream(self, proxied: ProxiedRequest) -> None:
        if not proxied.send.has_started:
            raise AgentOffline("The node is shutting down", agent_id=self._manifest.agent_id)
        await proxied.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_error(self, proxied: ProxiedRequest, error: FabricError) -> None:
        rpc_error = error.rpc_error if isinstance(error, _ProtocolRefusal) else to_protocol_error(error, proxied.trace)
        headers = [(b"content-type", JSON_MEDIA_TYPE), *build_error_headers(error, rpc_error.status)]
        await proxied.send.send_reply(rpc_error.status, wire.render_error(rpc_error, proxied.id), headers)

    def _log_request(self, proxied: ProxiedRequest, failure: FabricError | None, seconds: float) -> None:
        """Log the request. Calls are logged by the steps."""
        if proxied.is_call and self._context.proxy_steps is not None:
            return
        self._context.log(
            proxied.trace,
            f"{proxied.scope['path']} {proxied.method or proxied.http_method}",
            code=failure.code if failure else None,
            message=failure.full_message if failure else None,
            seconds=seconds,
            status=proxied.send.status,
        )


class _ProtocolRefusal(BadInput):
    """The request is not valid MCP; `rpc_error` is the answer."""

    def __init__(self, rpc_error: McpProtocolError) -> None:
        super().__init__(rpc_error.message)
        self.rpc_error = rpc_error
