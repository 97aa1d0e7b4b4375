"""The gRPC server of the A2A door, on a port of its own, with the services of 1.0 and 0.3.

The SDK's request handler is implemented on the operations of the door: a proto message becomes the JSON of 1.0 and
back, so that every binding is parsed in one place. The target agent is the `tenant` of the request, or the metadata
`x-a2a-agent` where a version has no such field; without either, the request is for the gateway itself.

A request that the SDK cannot parse is reported as the caller's error; every other exception is ours and is logged.
A client that does not read its stream is disconnected after a time-out.

The server takes so many requests at a time, from all clients together. So a caller is identified before the message
is read, which has to arrive in time, and each caller has a share of the requests that wait for theirs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.server.context import ServerCallContext
from a2a.server.events.event_queue import Event
from a2a.server.request_handlers.grpc_handler import GrpcHandler, GrpcServerCallContextBuilder
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types import a2a_pb2 as pb
from a2a.types import a2a_pb2_grpc
from a2a.utils.errors import A2A_ERROR_REASONS, A2AError
from google.protobuf.any_pb2 import Any as AnyProto
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError, SerializeToJsonError
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # it has no stubs
from msgspec.structs import replace

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import ConfigError, FabricError, InternalError, RateLimited, Unauthenticated
from a2a_fabric.core.limits import FairLimit
from a2a_fabric.core.policy import is_loopback
from a2a_fabric.core.propagation import current_trace, new_trace
from a2a_fabric.core.recording import note_transport
from a2a_fabric.doors.a2a.errors import CODES_BY_REASON, A2AProtocolError, protocol_error_from
from a2a_fabric.doors.a2a.grpc_tls import GrpcListener
from a2a_fabric.doors.a2a.operations import A2ADoorState
from a2a_fabric.doors.a2a.requests import VERSION_HEADER, A2ARequestContext, parse_version, require_version
from a2a_fabric.doors.edge import BODY_TIMEOUT, RequestHead
from a2a_fabric.identity.failed_attempts import FailedAttempts
from a2a_fabric.identity.peer import Peer
from a2a_fabric.identity.resolver import Credentials
from a2a_fabric.protocols.a2a.models import A2AStreamEvent, A2AVersion, restore_integers
from a2a_fabric.protocols.a2a.render import RENDERERS

_log = logging.getLogger(__name__)

_STATUS_DETAILS_KEY = "grpc-status-details-bin"
_UNREADABLE_MESSAGE = "Invalid request: its fields do not follow the protocol"

ServicerContext: TypeAlias = grpc.aio.ServicerContext
Decode = Callable[[bytes], Any]
GrpcMethod = Callable[[Any, ServicerContext], Any]
ReadPeer = Callable[[ServicerContext], Peer]

_MAX_UNREAD = 2000  # requests that wait for their message
# The caller of this request, as it was admitted.
_admitted: ContextVar[tuple[RequestHead, Principal] | None] = ContextVar("_admitted", default=None)
request_was_parsed: ContextVar[bool] = ContextVar("request_was_parsed", default=False)  # by the SDK


Admit = Callable[[ServicerContext], Awaitable[Principal]]  # aborts the call of a caller who is refused


class GrpcEdgeInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # it has no stubs
    """Reads the one message of a request after its caller is admitted, within `message_timeout` seconds; translates
    errors; and aborts a stream if its client reads nothing for `read_timeout` seconds.
    """

    def __init__(
        self, read_timeout: float, admit: Admit, unread: FairLimit, message_timeout: float = BODY_TIMEOUT
    ) -> None:
        """`unread` counts the requests that wait for their message."""
        self._read_timeout = read_timeout
        self._admit = admit
        self._message_timeout = message_timeout
        self._unread = unread

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        decode, serializer = handler.request_deserializer, handler.response_serializer
        # As for a stream of messages, which are read when they are asked for; clients see no difference.
        if handler.response_streaming:
            streaming = self._wrap_streaming(handler.unary_stream, decode)
            return grpc.stream_stream_rpc_method_handler(streaming, None, serializer)
        return grpc.stream_unary_rpc_method_handler(self._wrap_unary(handler.unary_unary, decode), None, serializer)

    async def _read_message(self, context: ServicerContext, decode: Decode) -> Any:
        """Always returns a message; aborts the call if the caller is refused, or there is none."""
        caller = (await self._admit(context)).principal_id
        try:
            with self._unread.hold(caller):
                async with asyncio.timeout(self._message_timeout):
                    data = await context.read()
        except RateLimited as error:
            await abort_call(protocol_error_from(error, new_trace().trace_id), context)
        except TimeoutError:
            seconds = f"{self._message_timeout:g} seconds"
            await abort_call(
                A2AProtocolError("REQUEST_TIMEOUT", f"The message did not arrive within {seconds}"), context
            )
        if not isinstance(data, bytes):  # the end of the stream
            await abort_call(A2AProtocolError("INVALID_REQUEST", "Invalid request: it has no message"), context)
        try:
            return decode(data)
        except DecodeError:
            await abort_call(
                A2AProtocolError("INVALID_REQUEST", "Invalid request: the bytes are not a message of this method"),
                context,
            )

    def _wrap_unary(self, method: GrpcMethod, decode: Decode) -> GrpcMethod:
        async def respond(_: Any, context: ServicerContext) -> Any:
            request = await self._read_message(context, decode)
            return await _abort_on_error(context, lambda: method(request, context))

        return respond

    def _wrap_streaming(self, method: GrpcMethod, decode: Decode) -> Callable[[Any, ServicerContext], Awaitable[None]]:
        async def respond(_: Any, context: ServicerContext) -> None:
            request = await self._read_message(context, decode)

            async def send_events() -> None:
                async with aclosing(method(request, context)) as events:
                    await self._write_events(events, context)

            await _abort_on_error(context, send_events)

        return respond

    async def _write_events(self, events: AsyncIterable[Any], context: ServicerContext) -> None:
        """Raises A2AProtocolError if the client does not read in time; it learns that when it reads again."""
        async for each in events:
            try:
                async with asyncio.timeout(self._read_timeout):
                    await context.write(each)
            except TimeoutError as exc:
                raise A2AProtocolError(
                    "REQUEST_TIMEOUT", f"The client read nothing for {self._read_timeout:g} seconds"
                ) from exc


async def _abort_on_error(context: ServicerContext, work: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await work()
    except grpc.aio.AbortError:
        raise
    except A2AProtocolError as protocol_error:
        await abort_call(protocol_error, context)
    except Exception as exc:
        await abort_call(_protocol_error_from_exception(exc), context)


def _protocol_error_from_exception(exc: Exception) -> A2AProtocolError:
    if not request_was_parsed.get() and isinstance(exc, ValueError | TypeError | LookupError | AttributeError):
        return A2AProtocolError("INVALID_PARAMS", _UNREADABLE_MESSAGE)
    _log.error("A gRPC request failed inside the gateway", exc_info=exc)
    return protocol_error_from(InternalError(), current_trace.get().trace_id)


async def abort_call(protocol_error: A2AProtocolError, context: ServicerContext) -> NoReturn:
    """Always raises AbortError."""
    code = grpc.StatusCode[protocol_error.codes.grpc_status]
    status = status_pb2.Status(code=code.value[0], message=protocol_error.message)
    for detail in _pack_details(protocol_error):
        status.details.append(detail)
    trailers = [(_STATUS_DETAILS_KEY, status.SerializeToString())]
    await context.abort(code, protocol_error.message[:2000], tuple(trailers))
    raise AssertionError  # `abort` raises


def _pack_details(protocol_error: A2AProtocolError) -> list[AnyProto]:
    info = error_details_pb2.ErrorInfo(
        reason=protocol_error.reason, domain="a2a-protocol.org", metadata=protocol_error.metadata
    )
    packed = [AnyProto(), AnyProto()]
    packed[0].Pack(info)
    if protocol_error.field is None:
        return packed[:1]
    violation = error_details_pb2.BadRequest.FieldViolation(
        field=protocol_error.field, description=protocol_error.message
    )
    packed[1].Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    return packed


CONTEXT_STATE_KEY = "fabric.request_context"
EVENT_NUMBER_KEY = "a2a-fabric/number"
P = TypeVar("P", bound=Proto)


class SdkProtocolError(A2AError):
    """Carries an error of the door through the SDK."""

    def __init__(self, protocol_error: A2AProtocolError) -> None:
        super().__init__(protocol_error.message)
        self.protocol_error = protocol_error


def _handle_unary(operation: str, response: type[P]) -> Callable[..., Coroutine[Any, Any, P]]:
    """The method of the SDK's handler that runs an operation with a single reply."""

    async def handle(self: SdkRequestHandler, params: Proto, context: ServerCallContext) -> P:
        return await self._run_operation(operation, params, context, response())

    return handle


class SdkRequestHandler(RequestHandler):
    def __init__(self, state: A2ADoorState) -> None:
        self._state = state

    async def on_message_send(self, params: pb.SendMessageRequest, context: ServerCallContext) -> pb.Task | pb.Message:
        reply = await self._run_operation("SendMessage", params, context, pb.SendMessageResponse())
        return reply.task if reply.HasField("task") else reply.message

    async def on_message_send_stream(
        self, params: pb.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        async for event in self._stream_operation("SendStreamingMessage", params, context):
            yield event

    async def on_subscribe_to_task(
        self, params: pb.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        async for event in self._stream_operation("SubscribeToTask", params, context):
            yield event

    on_get_task = _handle_unary("GetTask", pb.Task)
    on_list_tasks = _handle_unary("ListTasks", pb.ListTasksResponse)
    on_cancel_task = _handle_unary("CancelTask", pb.Task)
    on_create_task_push_notification_config = _handle_unary(
        "CreateTaskPushNotificationConfig", pb.TaskPushNotificationConfig
    )
    on_get_task_push_notification_config = _handle_unary("GetTaskPushNotificationConfig", pb.TaskPushNotificationConfig)
    on_list_task_push_notification_configs = _handle_unary(
        "ListTaskPushNotificationConfigs", pb.ListTaskPushNotificationConfigsResponse
    )
    on_get_extended_agent_card = _handle_unary("GetExtendedAgentCard", pb.AgentCard)

    async def on_delete_task_push_notification_config(
        self, params: pb.DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        await self._run_operation("DeleteTaskPushNotificationConfig", params, context, pb.Task())

    async def _run_operation(self, operation: str, params: Proto, context: ServerCallContext, response: P) -> P:
        request_was_parsed.set(True)
        request_context: A2ARequestContext = context.state[CONTEXT_STATE_KEY]
        handler = self._state.plain_operations[operation]
        with self._log_request(operation, request_context):
            result = await translate_errors(
                request_context, lambda: handler(params_from_proto(params), request_context)
            )
            return fill_proto(response, result or {})

    @contextmanager
    def _log_request(self, operation: str, request_context: A2ARequestContext) -> Iterator[None]:
        """Logs the request, except for calls that succeeded: those are logged as calls."""
        started_at, protocol_error = time.perf_counter(), None
        try:
            yield
        except SdkProtocolError as sdk_error:
            protocol_error = sdk_error.protocol_error
            raise
        finally:
            if protocol_error is not None or not operation.startswith("Send"):
                code, message = (protocol_error.reason, protocol_error.message) if protocol_error else (None, None)
                status, seconds = (
                    protocol_error.codes.http_status if protocol_error else 200,
                    time.perf_counter() - started_at,
                )
                name = f"a2a.{operation}"
                self._state.context.log(
                    request_context.trace, name, code=code, message=message, seconds=seconds, status=status
                )

    async def _stream_operation(self, operation: str, params: Proto, context: ServerCallContext) -> AsyncGenerator[Any]:
        request_was_parsed.set(True)
        request_context: A2ARequestContext = context.state[CONTEXT_STATE_KEY]
        handler = self._state.streaming_operations[operation]
        try:
            with self._state.hold_stream(request_context):
                with self._log_request(operation, request_context):
                    events = await translate_errors(
                        request_context, lambda: handler(params_from_proto(params), request_context)
                    )
                async for each in self._send_events(events, request_context):
                    yield each
        except FabricError as error:
            raise SdkProtocolError(protocol_error_from(error, request_context.trace.trace_id)) from error

    async def _send_events(
        self, events: AsyncGenerator[A2AStreamEvent], request_context: A2ARequestContext
    ) -> AsyncGenerator[Any]:
        async with aclosing(events):
            self._state.context.acquire_stream(request_context.principal.principal_id)
            try:
                while (each := await translate_errors(request_context, lambda: anext(events, None))) is not None:
                    response = fill_proto(pb.StreamResponse(), _render_numbered(each))
                    yield getattr(response, response.WhichOneof("payload") or "task")
            finally:
                self._state.context.release_stream(request_context.principal.principal_id)


def _render_numbered(event: A2AStreamEvent) -> dict[str, Any]:
    """Puts the event's number into its metadata, so that a client can resume after it."""
    rendered: dict[str, Any] = RENDERERS["1.0"].render_response(event.update)
    if event.number is None or "message" in rendered:
        return rendered
    return {
        name: {**body, "metadata": {**body.get("metadata", {}), EVENT_NUMBER_KEY: event.number}}
        for name, body in rendered.items()
    }


R = TypeVar("R")


async def translate_errors(request_context: A2ARequestContext, work: Callable[[], Awaitable[R]]) -> R:
    """Raises every error as SdkProtocolError."""
    try:
        return await work()
    except SdkProtocolError:
        raise
    except A2AProtocolError as protocol_error:
        raise SdkProtocolError(protocol_error) from protocol_error
    except FabricError as error:
        raise SdkProtocolError(protocol_error_from(error, request_context.trace.trace_id)) from error
    except Exception as exc:
        current_trace.set(request_context.trace)
        _log.exception("A gRPC request failed inside the gateway")
        raise SdkProtocolError(protocol_error_from(InternalError(), request_context.trace.trace_id)) from exc


def params_from_proto(proto: Proto) -> dict[str, Any]:
    """Raises SdkProtocolError for values that JSON cannot hold, such as NaN."""
    try:
        fields: dict[str, Any] = restore_integers(MessageToDict(proto))
    except SerializeToJsonError as exc:
        raise SdkProtocolError(A2AProtocolError("INVALID_PARAMS", f"Invalid params: {exc}"[:300])) from exc
    return fields


def fill_proto(proto: P, fields: dict[str, Any]) -> P:
    """Raises SdkProtocolError for values that a proto cannot hold."""
    try:
        return ParseDict(fields, proto, ignore_unknown_fields=True)
    except ParseError as exc:
        raise SdkProtocolError(
            A2AProtocolError("INVALID_AGENT_RESPONSE", f"gRPC cannot carry the answer: {exc}"[:300])
        ) from exc


_AGENT_HEADER = b"x-a2a-agent"
_MESSAGE_OVERHEAD = 64 * 1024
_MAX_CONCURRENT_CALLS = 15_000  # streams included, and those that wait for their message or for their refusal


class _CallContextBuilder(GrpcServerCallContextBuilder):
    """Builds the request context from the gRPC metadata."""

    def __init__(self, state: A2ADoorState, version: A2AVersion, *, is_local: bool) -> None:
        self._state = state
        self._version: A2AVersion = version
        self._is_local = is_local  # whether only this machine reaches the port

    def build(self, context: grpc.aio.ServicerContext) -> ServerCallContext:
        """Raises SdkProtocolError."""
        admitted = _admitted.get()
        assert admitted is not None  # noqa: S101  # by the interceptor
        head, principal = admitted
        trace = head.trace or new_trace()
        current_trace.set(trace)
        agent_id = head.get(_AGENT_HEADER)
        try:
            request_context = self._state.build_context({}, head, agent_id, trace, principal)
            self._check_anonymous(request_context.principal)
            note_transport("grpc")
            if (version := head.get(VERSION_HEADER)) is not None:
                parse_version(version, self._state.versions)
        except FabricError as error:
            raise SdkProtocolError(protocol_error_from(error, trace.trace_id)) from error
        except A2AProtocolError as protocol_error:
            raise SdkProtocolError(protocol_error) from protocol_error
        return ServerCallContext(state={CONTEXT_STATE_KEY: replace(request_context, version=self._version)})

    def _check_anonymous(self, principal: Principal) -> None:
        """`auth.anonymous` may be set while the node runs, after the address was checked. Raises Unauthenticated."""
        if not self._is_local and principal.mode == "none" and principal.trust != "public":
            raise Unauthenticated


class _TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Verifies a caller's token before the request is handled."""

    def __init__(self, verify_token: Callable[[Credentials], Awaitable[None]]) -> None:
        self._verify_token = verify_token

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        await self._verify_token(_head_from_metadata(details.invocation_metadata).credentials)
        return await continuation(details)


class _SlowRefusals:
    failed_attempts: FailedAttempts
    read_peer: ReadPeer

    async def abort_context(self, error: A2AError, context: grpc.aio.ServicerContext) -> None:
        await self.failed_attempts.delay(error, _find_address(self.read_peer, context))
        await _abort_with_sdk_error(error, context)


def _find_address(read_peer: ReadPeer, context: ServicerContext) -> str:
    try:
        return read_peer(context).address
    except FabricError:  # its client has disconnected
        return ""


async def _admit(state: A2ADoorState, read_peer: ReadPeer, context: ServicerContext) -> Principal:
    """The caller, from the metadata alone; aborts the call if it is refused."""
    head = _head_from_metadata(context.invocation_metadata())
    try:
        head.peer = read_peer(context)
        principal = state.context.identify(head.credentials)
    except FabricError as error:
        await state.context.failed_attempts.delay(error, _find_address(read_peer, context))
        trace = head.trace or new_trace()
        await abort_call(protocol_error_from(error, trace.trace_id), context)
    _admitted.set((head, principal))
    return principal


class GrpcService10(_SlowRefusals, GrpcHandler):
    """The service of A2A 1.0."""

    def _build_call_context(self, context: grpc.aio.ServicerContext, request: Any) -> ServerCallContext:
        call_context = super()._build_call_context(context, request)
        if (version := _head_from_metadata(context.invocation_metadata()).get(VERSION_HEADER)) is not None:
            try:
                require_version("1.0", parse_version(version), "This service")
            except A2AProtocolError as protocol_error:
                raise SdkProtocolError(protocol_error) from protocol_error
        return call_context


class GrpcService03(_SlowRefusals, CompatGrpcHandler):
    """The service of A2A 0.3."""


@asynccontextmanager
async def serve_grpc(state: A2ADoorState, address: str) -> AsyncIterator[str]:
    """Yields the server's address while it listens. Raises ConfigError."""
    host = address.rpartition(":")[0].strip("[]")
    _check_listen_address(host, state)
    build_context = partial(_CallContextBuilder, state, is_local=is_loopback(host))
    listener = GrpcListener(address, state.context.tls, state.settings.grpc_client_certificates)
    if not state.context.is_serving:
        yield address
        return
    limit = state.body_limit.bytes
    state.body_limit.listeners.append(partial(_log_other_limit, limit))
    options = [
        ("grpc.max_receive_message_length", limit + _MESSAGE_OVERHEAD),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
    ]
    unread = FairLimit("gRPC requests that wait for their message", _MAX_UNREAD, state.context.caller_share)
    interceptors = [
        _TokenInterceptor(state.context.verify_credentials),
        GrpcEdgeInterceptor(state.settings.read_seconds, partial(_admit, state, listener.read_peer), unread),
    ]
    server = grpc.aio.server(options=options, interceptors=interceptors, maximum_concurrent_rpcs=_MAX_CONCURRENT_CALLS)
    handler = SdkRequestHandler(state)
    service = GrpcService10(handler, build_context("1.0"))
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]  # generated
    services: list[_SlowRefusals] = [service]
    if "0.3" in state.versions:
        service_0_3 = GrpcService03(handler, build_context("0.3"))
        a2a_v0_3_pb2_grpc.add_A2AServiceServicer_to_server(service_0_3, server)  # type: ignore[no-untyped-call]  # generated
        services.append(service_0_3)
    for each in services:
        each.failed_attempts, each.read_peer = state.context.failed_attempts, listener.read_peer
    async with listener.listen(server) as port:
        yield f"{address.rpartition(':')[0] or '127.0.0.1'}:{port}"


def _log_other_limit(limit: int, new_limit: int) -> None:
    """gRPC takes the size of its messages when the server is made."""
    if new_limit != limit:
        _log.warning("limits.body_bytes: the gRPC port takes up to %d bytes until the node is restarted", limit)


def _check_listen_address(host: str, state: A2ADoorState) -> None:
    """Without keys, callers are trusted because they are local, so the address must be. Raises ConfigError."""
    try:
        trust = state.context.identify(Credentials()).trust
    except FabricError:
        return
    if trust != "public" and not is_loopback(host):
        raise ConfigError(f"doors: a2a: grpc: without keys it may listen on loopback only, not on {host or 'all'}")


async def _abort_with_sdk_error(error: A2AError, context: grpc.aio.ServicerContext) -> None:
    if isinstance(error, SdkProtocolError):
        protocol_error = error.protocol_error
    else:
        reason = next((name for kind, name in A2A_ERROR_REASONS.items() if isinstance(error, kind)), "")
        protocol_error = A2AProtocolError(reason if reason in CODES_BY_REASON else "INTERNAL_ERROR", error.message)
    await abort_call(protocol_error, context)


def _head_from_metadata(metadata: Any) -> RequestHead:
    return RequestHead([(str(key).lower().encode(), _to_bytes(value)) for key, value in metadata or ()])


def _to_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("latin-1", "replace")
