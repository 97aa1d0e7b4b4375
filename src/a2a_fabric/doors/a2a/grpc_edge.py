"""The edge of gRPC, around every method of both services.

What the SDK cannot read is the caller's mistake and is told as such; whatever else it raises is ours, and is
logged. A reader of a stream who takes nothing is given up after a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyProto
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # it has no stubs

from a2a_fabric.core.errors import InternalError
from a2a_fabric.core.trace import current_trace
from a2a_fabric.doors.a2a.faults import Fault, fault_of

_log = logging.getLogger(__name__)

_DETAILS = "grpc-status-details-bin"
_UNREADABLE = "Invalid request: its fields are not those of the protocol"

Context: TypeAlias = grpc.aio.ServicerContext
Behaviour = Callable[[Any, Context], Any]

was_read: ContextVar[bool] = ContextVar("was_read", default=False)  # by the SDK: the rest is up to us


class Edge(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # it has no stubs
    """`read_within`: seconds in which a reader has to take something."""

    def __init__(self, read_within: float) -> None:
        self._read_within = read_within

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        reading, writing = _lenient(handler.request_deserializer), handler.response_serializer
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._streaming(handler.unary_stream), reading, writing)
        return grpc.unary_unary_rpc_method_handler(_plain(handler.unary_unary), reading, writing)

    def _streaming(self, behaviour: Behaviour) -> Callable[[Any, Context], Awaitable[None]]:
        async def answered(request: Any, context: Context) -> None:
            async def passed_on() -> None:
                async with aclosing(behaviour(request, context)) as told:
                    await self._write(told, context)

            await _in_their_words(request, context, passed_on)

        return answered

    async def _write(self, told: AsyncIterable[Any], context: Context) -> None:
        """Raises Fault; to tell it takes until the reader reads after all, or leaves."""
        async for each in told:
            try:
                async with asyncio.timeout(self._read_within):
                    await context.write(each)
            except TimeoutError as exc:
                raise Fault("REQUEST_TIMEOUT", f"Nothing was read for {self._read_within:g} seconds") from exc


def _plain(behaviour: Behaviour) -> Behaviour:
    async def answered(request: Any, context: Context) -> Any:
        return await _in_their_words(request, context, lambda: behaviour(request, context))

    return answered


async def _in_their_words(request: Any, context: Context, work: Callable[[], Awaitable[Any]]) -> Any:
    if isinstance(request, _Garbage):
        await abort(Fault("INVALID_REQUEST", "Invalid request: it is no message of this method"), context)
    try:
        return await work()
    except grpc.aio.AbortError:
        raise
    except Fault as fault:
        await abort(fault, context)
    except Exception as exc:
        await abort(_fault_of(exc), context)


def _fault_of(exc: Exception) -> Fault:
    if not was_read.get() and isinstance(exc, ValueError | TypeError | LookupError | AttributeError):
        return Fault("INVALID_PARAMS", _UNREADABLE)
    _log.error("a request failed inside the gateway", exc_info=exc)
    return fault_of(InternalError(), current_trace.get().trace_id)


class _Garbage:
    """Bytes that are no message."""


def _lenient(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decoded(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError:
            return _Garbage()

    return decoded


async def abort(fault: Fault, context: Context) -> None:
    """Raises AbortError, always."""
    code = grpc.StatusCode[fault.words.grpc]
    status = status_pb2.Status(code=code.value[0], message=fault.message)
    for detail in _details(fault):
        status.details.append(detail)
    trailing = [(_DETAILS, status.SerializeToString())]
    await context.abort(code, fault.message[:2000], tuple(trailing))


def _details(fault: Fault) -> list[AnyProto]:
    info = error_details_pb2.ErrorInfo(reason=fault.reason, domain="a2a-protocol.org", metadata=fault.about)
    packed = [AnyProto(), AnyProto()]
    packed[0].Pack(info)
    if fault.field is None:
        return packed[:1]
    violation = error_details_pb2.BadRequest.FieldViolation(field=fault.field, description=fault.message)
    packed[1].Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    return packed
