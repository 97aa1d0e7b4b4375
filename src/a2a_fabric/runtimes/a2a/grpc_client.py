"""The gRPC client for A2A agents of both versions, built on the SDK's generated stubs.

Imported only where grpc is installed. Requests and replies are converted to and from the JSON form of
their protos, so that the rest of the runtime does not need to know that this binding is not JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import grpc
import grpc.aio
import msgspec
from a2a.compat.v0_3 import a2a_v0_3_pb2, a2a_v0_3_pb2_grpc
from a2a.types import a2a_pb2, a2a_pb2_grpc
from a2a.utils.grpc_status import status_from_call
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message

from a2a_fabric.core.agent import Status
from a2a_fabric.core.errors import (
    AgentBusy,
    AgentOffline,
    BadInput,
    CallTimeout,
    FabricError,
    UpstreamFailed,
    UpstreamInterrupted,
    translated,
)
from a2a_fabric.outbound.client_tls import ClientTLSFiles
from a2a_fabric.outbound.grpc_tls import ChannelTLS
from a2a_fabric.outbound.guard import Guard, format_grpc_target
from a2a_fabric.protocols.a2a.card import A2AInterface
from a2a_fabric.protocols.a2a.decode import WireTaskList, reply_from_object, tasks_from_wire
from a2a_fabric.protocols.a2a.errors import UNSUPPORTED_REASONS, error_from_name, error_from_reason, upstream_reason
from a2a_fabric.protocols.a2a.models import A2AMessage, A2APushConfig, A2ATask, A2AUpdate, Dialect, SendOptions
from a2a_fabric.protocols.a2a.render import RENDERERS
from a2a_fabric.runtimes.a2a.client import TASK_PAGE_SIZE, RequestOptions, public_address
from a2a_fabric.runtimes.a2a.connection import A2AEndpoint
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.upstream import TRANSPORT_ERRORS

_CARD_TIMEOUT = 5.0
_PORTS = {"http": 80, "grpc": 80, "https": 443, "grpcs": 443}
_MAX_RECONNECT_BACKOFF_MS = 1000  # an agent that restarts is connected to again soon
_REASON_BY_STATUS = {
    "INVALID_ARGUMENT": "INVALID_PARAMS",
    "NOT_FOUND": "TASK_NOT_FOUND",
    "UNIMPLEMENTED": "METHOD_NOT_FOUND",
}
# Without a reason of the protocol, these mean that the agent's code raised, or that its reply was lost.
_AGENT_FAILURE_CODES = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)


class A2AGRPCClient:
    """With `tls`, the files of `endpoint.tls`, only addresses that begin with http:// are called without TLS."""

    def __init__(
        self,
        interface: A2AInterface,
        endpoint: A2AEndpoint,
        guard: Guard | None,
        reply_bytes: int,
        tls: ClientTLSFiles | None = None,
    ) -> None:
        self.dialect: Dialect = "1.0" if interface.version == "1.0" else "0.3 proto"
        self._interface = interface
        self._guard = guard
        self._reply_bytes = reply_bytes
        self._needs_tls = tls is not None
        self._tls = ChannelTLS(tls)
        self._protos: Any = a2a_pb2 if interface.version == "1.0" else a2a_v0_3_pb2
        self._metadata = _build_metadata(interface, endpoint)
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None
        self._open_lock = asyncio.Lock()

    async def send(self, message: A2AMessage, send_options: SendOptions, request_options: RequestOptions) -> A2AUpdate:
        request = self._build_request("SendMessageRequest", self._send_params(message, send_options))
        return reply_from_object(await self._call_unary("SendMessage", request, request_options), self.dialect)

    async def stream(
        self, message: A2AMessage, send_options: SendOptions, request_options: RequestOptions
    ) -> AsyncGenerator[A2AUpdate, None]:
        request = self._build_request("SendMessageRequest", self._send_params(message, send_options))
        async for parsed in self._stream_replies("SendStreamingMessage", request, request_options):
            yield parsed

    async def get(self, task_id: str, request_options: RequestOptions, *, with_history: bool = False) -> A2AUpdate:
        fields = self._task_fields(task_id)
        if self.dialect == "1.0" and not with_history:
            fields["historyLength"] = 0
        return reply_from_object(
            await self._call_unary("GetTask", self._build_request("GetTaskRequest", fields), request_options),
            self.dialect,
        )

    async def subscribe(self, task_id: str, request_options: RequestOptions) -> AsyncGenerator[A2AUpdate, None]:
        is_v1 = self.dialect == "1.0"
        request = self._build_request(
            "SubscribeToTaskRequest" if is_v1 else "TaskSubscriptionRequest", self._task_fields(task_id)
        )
        async for parsed in self._stream_replies(
            "SubscribeToTask" if is_v1 else "TaskSubscription", request, request_options
        ):
            yield parsed

    async def cancel(self, task_id: str, request_options: RequestOptions) -> None:
        await self._call_unary(
            "CancelTask", self._build_request("CancelTaskRequest", self._task_fields(task_id)), request_options
        )

    async def register_push(self, config: A2APushConfig, request_options: RequestOptions) -> None:
        is_v1 = self.dialect == "1.0"
        fields = RENDERERS[self.dialect].render_push_request(config)
        fields |= {"tenant": self._interface.tenant} if is_v1 else {}
        kind = "TaskPushNotificationConfig" if is_v1 else "CreateTaskPushNotificationConfigRequest"
        await self._call_unary("CreateTaskPushNotificationConfig", self._build_request(kind, fields), request_options)

    async def list_tasks(self, context_id: str, request_options: RequestOptions) -> list[A2ATask]:
        fields: dict[str, Any] = {"contextId": context_id, "pageSize": TASK_PAGE_SIZE, "historyLength": TASK_PAGE_SIZE}
        request = self._build_request("ListTasksRequest", {**fields, "tenant": self._interface.tenant})
        reply = await self._call_unary("ListTasks", request, request_options)
        return tasks_from_wire(msgspec.convert(reply, WireTaskList), self.dialect)

    async def fetch_card(self) -> dict[str, Any]:
        """The agent's card; an empty object if it has none for us."""
        is_v1 = self.dialect == "1.0"
        request = self._build_request("GetExtendedAgentCardRequest" if is_v1 else "GetAgentCardRequest", {})
        try:
            return await self._call_unary(
                "GetExtendedAgentCard" if is_v1 else "GetAgentCard", request, _CARD_REQUEST_OPTIONS
            )
        except (UpstreamInterrupted, CallTimeout) as exc:
            raise AgentOffline(exc.full_message, **exc.details) from exc
        except FabricError as exc:
            if upstream_reason(exc) not in UNSUPPORTED_REASONS | {
                "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
                "TASK_NOT_FOUND",
            }:
                raise
            return {}

    async def probe(self) -> Status:
        """Whether the agent accepts a connection."""
        await self._open()
        assert self._channel is not None  # noqa: S101  # just opened
        try:
            async with asyncio.timeout(_CARD_TIMEOUT):
                await self._channel.channel_ready()
        except TimeoutError as exc:
            upstream = public_address(self._interface.url)
            raise AgentOffline(f"No connection within {_CARD_TIMEOUT:g} s", upstream=upstream) from exc
        return "online"

    async def aclose(self) -> None:
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            await channel.close()
        await self._tls.aclose()

    def _send_params(self, message: A2AMessage, send_options: SendOptions) -> dict[str, Any]:
        return RENDERERS[self.dialect].render_send_params(message, send_options, self._interface.tenant)

    def _task_fields(self, task_id: str) -> dict[str, Any]:
        if self.dialect == "1.0":
            return {"id": task_id, "tenant": self._interface.tenant}
        return {"name": f"tasks/{task_id}"}

    def _build_request(self, kind: str, fields: dict[str, Any]) -> Message:
        message: Message = getattr(self._protos, kind)()
        try:
            return ParseDict(fields, message, ignore_unknown_fields=True)
        except (ParseError, ValueError, RecursionError) as exc:
            raise BadInput(f"The input cannot be sent by gRPC: {exc}"[:500]) from exc

    async def _call_unary(self, method: str, request: Message, request_options: RequestOptions) -> dict[str, Any]:
        await self._open()
        with _translate_rpc_errors(request_options, self._interface.url):
            reply = await self._stub_method(method)(
                request, metadata=self._call_metadata(request_options), timeout=request_options.timeout
            )
        return MessageToDict(reply)

    async def _stream_replies(
        self, method: str, request: Message, request_options: RequestOptions
    ) -> AsyncGenerator[A2AUpdate, None]:
        await self._open()
        replies = self._stub_method(method)(
            request, metadata=self._call_metadata(request_options), timeout=request_options.timeout
        )
        try:
            while True:
                with _translate_rpc_errors(request_options, self._interface.url):
                    reply = await replies.read()
                if reply is grpc.aio.EOF:
                    return
                yield reply_from_object(MessageToDict(reply), self.dialect)
        finally:
            replies.cancel()

    def _stub_method(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._stub, name)
        return method

    def _call_metadata(self, request_options: RequestOptions) -> list[tuple[str, str]]:
        headers = {name.lower(): value for name, value in request_options.headers.items()}
        return list({**dict(self._metadata), **headers}.items())

    async def _open(self) -> None:
        """Opens the channel, only to addresses that the guard allows. Raises AgentOffline."""
        if self._channel is not None and self._tls.has_changed():
            self._tls.close_when_idle(self._channel)
            self._channel = self._stub = None
        if self._stub is not None:
            return
        async with self._open_lock:
            if self._stub is None:
                with translated(TRANSPORT_ERRORS, upstream=public_address(self._interface.url)):
                    self._channel = await self._open_channel()
                stubs: Any = a2a_pb2_grpc if self.dialect == "1.0" else a2a_v0_3_pb2_grpc
                self._stub = stubs.A2AServiceStub(self._channel)

    async def _open_channel(self) -> grpc.aio.Channel:
        scheme, host, port = _split_address(self._interface.url)
        guard = self._guard
        addresses = await guard.resolve_addresses(host, port) if guard is not None else []
        target = format_grpc_target(addresses, port) if addresses else f"{f'[{host}]' if ':' in host else host}:{port}"
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", self._reply_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.initial_reconnect_backoff_ms", 200),  # a lost reply is searched for within a second
            ("grpc.max_reconnect_backoff_ms", _MAX_RECONNECT_BACKOFF_MS),
            ("grpc.min_reconnect_backoff_ms", 5000),  # also the connect time-out, which is 20 s by default
            ("grpc.enable_http_proxy", 0),  # a proxy would bypass the guard
            ("grpc.enable_retries", 0),  # a call that may have run must not be repeated
            ("grpc.default_authority", f"{host}:{port}"),
        ]
        if scheme not in ("https", "grpcs") and (scheme == "http" or not self._needs_tls):
            return grpc.aio.insecure_channel(target, options=options)
        options.append(("grpc.ssl_target_name_override", host))
        return grpc.aio.secure_channel(target, self._tls.load_credentials(), options=options)


_CARD_REQUEST_OPTIONS = RequestOptions(timeout=_CARD_TIMEOUT)


def _split_address(url: str) -> tuple[str, str, int]:
    """Scheme, host and port. Cards write addresses of gRPC as URLs, or as host and port only."""
    parts = urlsplit(url if "://" in url else f"grpc://{url}")
    scheme = parts.scheme.lower()
    port = parts.port or _PORTS.get(scheme, 443)
    return ("grpcs" if port == 443 else scheme), parts.hostname or "", port


def _build_metadata(interface: A2AInterface, endpoint: A2AEndpoint) -> tuple[tuple[str, str], ...]:
    fields = {"a2a-version": interface.version, **{name.lower(): value for name, value in endpoint.headers.items()}}
    if endpoint.extensions:
        fields["a2a-extensions" if interface.version == "1.0" else "x-a2a-extensions"] = ", ".join(endpoint.extensions)
    return tuple(fields.items())


@contextmanager
def _translate_rpc_errors(request_options: RequestOptions, url: str) -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as exc:
        raise _error_from_rpc_error(exc, request_options, url) from exc


def _error_from_rpc_error(exc: grpc.aio.AioRpcError, request_options: RequestOptions, url: str) -> FabricError:
    code, text = exc.code(), (exc.details() or "")[:500]
    upstream = public_address(url)
    match code:
        case grpc.StatusCode.UNAVAILABLE if _was_never_sent(text):
            return AgentOffline(text, upstream=upstream)
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
            return UpstreamInterrupted(text or code.name, upstream=upstream)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return CallTimeout(request_options.timeout, upstream=upstream)
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" not in text:
            return AgentBusy(f"The agent is busy: {text or code.name}", upstream=upstream)
    if (reason := _find_reason(exc)) is not None:
        return error_from_reason(reason, text)
    name, _, rest = text.partition(": ")
    if name.endswith("Error") and rest:  # the form of 0.3
        return error_from_name(name, rest)
    if code in _AGENT_FAILURE_CODES:
        return UpstreamFailed(text or f"gRPC {code.name}", upstream_code=code.name, upstream=url)
    return error_from_reason(_REASON_BY_STATUS.get(code.name, code.name), text)


def _was_never_sent(text: str) -> bool:
    """gRPC has one code for not reaching an agent and for losing it; only the text tells them apart."""
    return "failed to connect" in text.lower() or "name resolution" in text.lower()


def _find_reason(exc: grpc.aio.AioRpcError) -> str | None:
    try:
        status = status_from_call(exc)
        details = MessageToDict(status).get("details", []) if status is not None else []
    except (ValueError, TypeError):  # inconsistent, or of unknown types
        return None
    return next((str(each["reason"]) for each in details if "reason" in each), None)


def build(interface: A2AInterface, endpoint: A2AEndpoint, context: RuntimeContext) -> A2AGRPCClient:
    return A2AGRPCClient(interface, endpoint, context.guard, context.reply_bytes, context.tls)
