"""gRPC on a port of its own: the services of 1.0 and 0.3, and how faults look there.

Whom a request is meant for stands in its `tenant`, which is an agent's id, or in the metadata
(`x-a2a-agent`) where a version has no such field; without, it is for the gateway itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.grpc_handler import GrpcHandler, GrpcServerCallContextBuilder
from a2a.types import a2a_pb2_grpc
from a2a.utils.errors import A2AError
from google.protobuf.any_pb2 import Any as AnyProto
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # it has no stubs

from a2a_fabric.core.errors import ConfigError, FabricError
from a2a_fabric.core.trace import new_trace
from a2a_fabric.doors.a2a.faults import Fault, fault_of
from a2a_fabric.doors.a2a.grpc_bridge import VISIT, Bridge, Refused
from a2a_fabric.doors.a2a.house import House
from a2a_fabric.doors.a2a.versions import HEADER, needs, version_of
from a2a_fabric.doors.http import Head

_AGENT = b"x-a2a-agent"
_DETAILS = "grpc-status-details-bin"
_GRACE = 2.0
_OVERHEAD = 64 * 1024


class _Visitors(GrpcServerCallContextBuilder):
    """Who is calling, from the metadata."""

    def __init__(self, house: House) -> None:
        self._house = house

    def build(self, context: grpc.aio.ServicerContext) -> ServerCallContext:
        """Raises Refused."""
        head = Head([(str(key).lower().encode(), _bytes(value)) for key, value in context.invocation_metadata() or ()])
        trace = head.trace or new_trace()
        agent_id = head.get(_AGENT)
        try:
            visit = self._house.visit({}, head, agent_id, trace)
            if (told := head.get(HEADER)) is not None:
                version_of(told, self._house.versions)
        except FabricError as error:
            raise Refused(fault_of(error, trace.trace_id)) from error
        except Fault as fault:
            raise Refused(fault) from fault
        return ServerCallContext(state={VISIT: visit})


class Service(GrpcHandler):
    """Of 1.0."""

    def _build_call_context(self, context: grpc.aio.ServicerContext, request: Any) -> ServerCallContext:
        built = super()._build_call_context(context, request)
        told = Head([(str(key).lower().encode(), _bytes(value)) for key, value in context.invocation_metadata() or ()])
        if (version := told.get(HEADER)) is not None:
            try:
                needs("1.0", version_of(version), "This service")
            except Fault as fault:
                raise Refused(fault) from fault
        return built

    async def abort_context(self, error: A2AError, context: grpc.aio.ServicerContext) -> None:
        await _abort(error, context)


class OldService(CompatGrpcHandler):
    """Of 0.3."""

    async def abort_context(self, error: A2AError, context: grpc.aio.ServicerContext) -> None:
        await _abort(error, context)


@asynccontextmanager
async def serving(house: House, address: str) -> AsyncIterator[str]:
    """Its address, while it listens. Raises ConfigError."""
    limit = house.context.body_bytes + _OVERHEAD
    options = [
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.aio.server(options=options)
    bridge, visitors = Bridge(house), _Visitors(house)
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(Service(bridge, visitors), server)  # type: ignore[no-untyped-call]  # generated
    if "0.3" in house.versions:
        a2a_v0_3_pb2_grpc.add_A2AServiceServicer_to_server(OldService(bridge, visitors), server)  # type: ignore[no-untyped-call]  # generated
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as exc:
        raise ConfigError(f"doors: a2a: grpc: cannot listen on {address}") from exc
    await server.start()
    try:
        yield f"{address.rpartition(':')[0] or '127.0.0.1'}:{port}"
    finally:
        await server.stop(_GRACE)


async def _abort(error: A2AError, context: grpc.aio.ServicerContext) -> None:
    fault = error.fault if isinstance(error, Refused) else Fault("INTERNAL_ERROR", error.message)
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


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("latin-1", "replace")
