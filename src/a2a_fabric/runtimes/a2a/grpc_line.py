"""A2A over gRPC, both versions, with the SDK's generated stubs; imported only where the library is installed.

Requests and replies are written and read as the JSON that their protos stand for, so that
nothing else here needs to know that this binding is not JSON.
"""

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

from a2a_fabric.a2a_wire.parts import Dialect
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
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.runtimes.a2a.card import Interface
from a2a_fabric.runtimes.a2a.endpoint import A2AEndpoint, public
from a2a_fabric.runtimes.a2a.jsonrpc import PAGE
from a2a_fabric.runtimes.a2a.line import Errand
from a2a_fabric.runtimes.a2a.outgoing import Manner, Outgoing, params_of
from a2a_fabric.runtimes.a2a.pushes import PushPlace, push_request
from a2a_fabric.runtimes.a2a.refusals import TRANSPORT_ERRORS, UNSUPPORTED, by_name, reason_of, refused
from a2a_fabric.runtimes.a2a.said import Said, TaskSaid
from a2a_fabric.runtimes.a2a.wire import WireTasks, read_object, tasks_said
from a2a_fabric.runtimes.context import RuntimeContext

_ASK_SECONDS = 5.0
_PORTS = {"http": 80, "grpc": 80, "https": 443, "grpcs": 443}
_TRIES_ANEW_WITHIN_MS = 1000  # an agent that was away is found again soon after it came back
_REASONS = {"INVALID_ARGUMENT": "INVALID_PARAMS", "NOT_FOUND": "TASK_NOT_FOUND", "UNIMPLEMENTED": "METHOD_NOT_FOUND"}
# Without a reason of the protocol these tell that the agent's code raised, or that its reply was lost.
_BREAKAGE = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)


class GRPCLine:
    def __init__(self, interface: Interface, endpoint: A2AEndpoint, guard: Guard | None, reply_bytes: int) -> None:
        self.dialect: Dialect = "1.0" if interface.version == "1.0" else "0.3 proto"
        self._interface = interface
        self._guard = guard
        self._reply_bytes = reply_bytes
        self._protos: Any = a2a_pb2 if interface.version == "1.0" else a2a_v0_3_pb2
        self._metadata = _metadata(interface, endpoint)
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None
        self._opening = asyncio.Lock()

    async def send(self, message: Outgoing, manner: Manner, errand: Errand) -> Said:
        request = self._request("SendMessageRequest", self._params(message, manner))
        return read_object(await self._ask("SendMessage", request, errand), self.dialect)

    async def stream(self, message: Outgoing, manner: Manner, errand: Errand) -> AsyncGenerator[Said, None]:
        request = self._request("SendMessageRequest", self._params(message, manner))
        async for said in self._events("SendStreamingMessage", request, errand):
            yield said

    async def get(self, task_id: str, errand: Errand, *, with_history: bool = False) -> Said:
        fields = self._of(task_id)
        if self.dialect == "1.0" and not with_history:
            fields["historyLength"] = 0
        return read_object(await self._ask("GetTask", self._request("GetTaskRequest", fields), errand), self.dialect)

    async def subscribe(self, task_id: str, errand: Errand) -> AsyncGenerator[Said, None]:
        is_new = self.dialect == "1.0"
        request = self._request("SubscribeToTaskRequest" if is_new else "TaskSubscriptionRequest", self._of(task_id))
        async for said in self._events("SubscribeToTask" if is_new else "TaskSubscription", request, errand):
            yield said

    async def cancel(self, task_id: str, errand: Errand) -> None:
        await self._ask("CancelTask", self._request("CancelTaskRequest", self._of(task_id)), errand)

    async def push_to(self, place: PushPlace, task_id: str, errand: Errand) -> None:
        is_new = self.dialect == "1.0"
        fields = push_request(place, task_id, self.dialect) | ({"tenant": self._interface.tenant} if is_new else {})
        kind = "TaskPushNotificationConfig" if is_new else "CreateTaskPushNotificationConfigRequest"
        await self._ask("CreateTaskPushNotificationConfig", self._request(kind, fields), errand)

    async def tasks(self, context_id: str, errand: Errand) -> list[TaskSaid]:
        fields: dict[str, Any] = {"contextId": context_id, "pageSize": PAGE, "historyLength": PAGE}
        request = self._request("ListTasksRequest", {**fields, "tenant": self._interface.tenant})
        found = await self._ask("ListTasks", request, errand)
        return tasks_said(_converted(found), self.dialect)

    async def card(self) -> dict[str, Any]:
        """What the agent tells of itself; nothing if it does not."""
        is_new = self.dialect == "1.0"
        request = self._request("GetExtendedAgentCardRequest" if is_new else "GetAgentCardRequest", {})
        try:
            return await self._ask("GetExtendedAgentCard" if is_new else "GetAgentCard", request, _LOOK)
        except (UpstreamInterrupted, CallTimeout) as exc:
            raise AgentOffline(exc.sentence, **exc.details) from exc
        except FabricError as exc:
            if reason_of(exc) not in UNSUPPORTED | {"EXTENDED_AGENT_CARD_NOT_CONFIGURED", "TASK_NOT_FOUND"}:
                raise
            return {}

    async def probe(self) -> Status:
        """Whether a connection can be made."""
        await self._open()
        assert self._channel is not None  # noqa: S101  # just opened
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                await self._channel.channel_ready()
        except TimeoutError as exc:
            upstream = public(self._interface.url)
            raise AgentOffline(f"No connection within {_ASK_SECONDS:g} s", upstream=upstream) from exc
        return "online"

    async def aclose(self) -> None:
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            await channel.close()

    def _params(self, message: Outgoing, manner: Manner) -> dict[str, Any]:
        return params_of(message, manner, self.dialect, self._interface.tenant)

    def _of(self, task_id: str) -> dict[str, Any]:
        if self.dialect == "1.0":
            return {"id": task_id, "tenant": self._interface.tenant}
        return {"name": f"tasks/{task_id}"}

    def _request(self, kind: str, fields: dict[str, Any]) -> Message:
        made: Message = getattr(self._protos, kind)()
        try:
            return ParseDict(fields, made)
        except (ParseError, ValueError, RecursionError) as exc:
            raise BadInput(f"What was given cannot be sent by gRPC: {exc}"[:500]) from exc

    async def _ask(self, method: str, request: Message, errand: Errand) -> dict[str, Any]:
        await self._open()
        with _understood(errand, self._interface.url):
            reply = await self._method(method)(request, metadata=self._told(errand), timeout=errand.timeout)
        return MessageToDict(reply)

    async def _events(self, method: str, request: Message, errand: Errand) -> AsyncGenerator[Said, None]:
        await self._open()
        replies = self._method(method)(request, metadata=self._told(errand), timeout=errand.timeout)
        try:
            while True:
                with _understood(errand, self._interface.url):
                    reply = await replies.read()
                if reply is grpc.aio.EOF:
                    return
                yield read_object(MessageToDict(reply), self.dialect)
        finally:
            replies.cancel()

    def _method(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._stub, name)
        return method

    def _told(self, errand: Errand) -> list[tuple[str, str]]:
        return [*self._metadata, *((name.lower(), value) for name, value in errand.headers.items())]

    async def _open(self) -> None:
        """Only to addresses that the guard lets pass. Raises AgentOffline."""
        if self._stub is not None:
            return
        async with self._opening:
            if self._stub is None:
                with translated(TRANSPORT_ERRORS, upstream=public(self._interface.url)):
                    self._channel = await _channel(self._interface.url, self._guard, self._reply_bytes)
                stubs: Any = a2a_pb2_grpc if self.dialect == "1.0" else a2a_v0_3_pb2_grpc
                self._stub = stubs.A2AServiceStub(self._channel)


_LOOK = Errand(timeout=_ASK_SECONDS)


async def _channel(url: str, guard: Guard | None, reply_bytes: int) -> grpc.aio.Channel:
    scheme, host, port = _place(url)
    addresses = await guard.addresses(host, port) if guard is not None else []
    target = _pinned(addresses, port) if addresses else f"{f'[{host}]' if ':' in host else host}:{port}"
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", reply_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_reconnect_backoff_ms", _TRIES_ANEW_WITHIN_MS),
        ("grpc.min_reconnect_backoff_ms", 5000),  # in truth how long it may take to be connected; else 20 s
        ("grpc.enable_http_proxy", 0),  # would lead around the guard
        ("grpc.enable_retries", 0),  # what may have run is not repeated behind our back
        ("grpc.default_authority", f"{host}:{port}"),
    ]
    if scheme not in ("https", "grpcs"):
        return grpc.aio.insecure_channel(target, options=options)
    options.append(("grpc.ssl_target_name_override", host))
    return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(), options=options)


def _place(url: str) -> tuple[str, str, int]:
    """Cards write addresses of gRPC as URLs, or as host and port alone."""
    parts = urlsplit(url if "://" in url else f"grpc://{url}")
    scheme = parts.scheme.lower()
    port = parts.port or _PORTS.get(scheme, 443)
    return ("grpcs" if port == 443 else scheme), parts.hostname or "", port


def _pinned(addresses: list[str], port: int) -> str:
    """Of one family: a target names no more."""
    if ":" in addresses[0]:
        return "ipv6:" + ",".join(f"[{each}]:{port}" for each in addresses if ":" in each)
    return "ipv4:" + ",".join(f"{each}:{port}" for each in addresses if ":" not in each)


def _metadata(interface: Interface, endpoint: A2AEndpoint) -> tuple[tuple[str, str], ...]:
    told = {"a2a-version": interface.version, **{name.lower(): value for name, value in endpoint.headers.items()}}
    if endpoint.extensions:
        told["a2a-extensions" if interface.version == "1.0" else "x-a2a-extensions"] = ", ".join(endpoint.extensions)
    return tuple(told.items())


def _converted(found: dict[str, Any]) -> WireTasks:
    return msgspec.convert(found, WireTasks)


@contextmanager
def _understood(errand: Errand, url: str) -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as exc:
        raise _ours(exc, errand, url) from exc


def _ours(exc: grpc.aio.AioRpcError, errand: Errand, url: str) -> FabricError:
    code, words = exc.code(), (exc.details() or "")[:500]
    upstream = public(url)
    match code:
        case grpc.StatusCode.UNAVAILABLE if _never_left(words):
            return AgentOffline(words, upstream=upstream)
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
            return UpstreamInterrupted(words or code.name, upstream=upstream)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return CallTimeout(errand.timeout, upstream=upstream)
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" not in words:
            return AgentBusy(f"The agent is busy: {words or code.name}", upstream=upstream)
    if (reason := _reason_in(exc)) is not None:
        return refused(reason, words)
    name, _, rest = words.partition(": ")
    if name.endswith("Error") and rest:  # as 0.3 says it
        return by_name(name, rest)
    if code in _BREAKAGE:
        return UpstreamFailed(words or f"gRPC {code.name}", upstream_code=code.name, upstream=url)
    return refused(_REASONS.get(code.name, code.name), words)


def _never_left(words: str) -> bool:
    """gRPC has one code for not reaching an agent and for losing it; only its words tell them apart."""
    return "failed to connect" in words.lower() or "name resolution" in words.lower()


def _reason_in(exc: grpc.aio.AioRpcError) -> str | None:
    try:
        status = status_from_call(exc)
        details = MessageToDict(status).get("details", []) if status is not None else []
    except (ValueError, TypeError):  # it contradicts itself, or holds what nobody here knows
        return None
    return next((str(each["reason"]) for each in details if "reason" in each), None)


def build(interface: Interface, endpoint: A2AEndpoint, context: RuntimeContext) -> GRPCLine:
    return GRPCLine(interface, endpoint, context.guard, context.reply_bytes)
