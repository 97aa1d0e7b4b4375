"""gRPC on a port of its own: the services of 1.0 and 0.3, and how faults look there.

Whom a request is meant for stands in its `tenant`, which is an agent's id, or in the metadata
(`x-a2a-agent`) where a version has no such field; without, it is for the gateway itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.grpc_handler import GrpcHandler, GrpcServerCallContextBuilder
from a2a.types import a2a_pb2_grpc
from a2a.utils.errors import A2A_ERROR_REASONS, A2AError

from a2a_fabric.core.errors import ConfigError, FabricError
from a2a_fabric.core.hosts import is_loopback
from a2a_fabric.core.trace import current_trace, new_trace
from a2a_fabric.doors.a2a.faults import REASONS, Fault, fault_of
from a2a_fabric.doors.a2a.grpc_bridge import VISIT, Bridge, Refused
from a2a_fabric.doors.a2a.grpc_edge import Edge, abort
from a2a_fabric.doors.a2a.grpc_tls import credentials
from a2a_fabric.doors.a2a.house import House
from a2a_fabric.doors.a2a.versions import HEADER, needs, version_of
from a2a_fabric.doors.http import Head
from a2a_fabric.identity.credentials import Credentials

_AGENT = b"x-a2a-agent"
_GRACE = 2.0
_OVERHEAD = 64 * 1024
_MOST_AT_ONCE = 10_000  # requests, streams among them


class _Visitors(GrpcServerCallContextBuilder):
    """Who is calling, from the metadata."""

    def __init__(self, house: House) -> None:
        self._house = house

    def build(self, context: grpc.aio.ServicerContext) -> ServerCallContext:
        """Raises Refused."""
        head = _head(context.invocation_metadata())
        trace = head.trace or new_trace()
        current_trace.set(trace)
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


class _Introductions(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """A caller's token is looked into before somebody asks whose it is."""

    def __init__(self, introduce: Callable[[Credentials], Awaitable[None]]) -> None:
        self._introduce = introduce

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        await self._introduce(_head(details.invocation_metadata).credentials)
        return await continuation(details)


class Service(GrpcHandler):
    """Of 1.0."""

    def _build_call_context(self, context: grpc.aio.ServicerContext, request: Any) -> ServerCallContext:
        built = super()._build_call_context(context, request)
        if (version := _head(context.invocation_metadata()).get(HEADER)) is not None:
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
    _check_reach(address, house)
    secret = credentials(house.context.tls) if house.context.tls is not None else None
    limit = house.body_bytes + _OVERHEAD
    options = [
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
    ]
    interceptors = [_Introductions(house.context.introduce), Edge(house.settings.read_seconds)]
    server = grpc.aio.server(options=options, interceptors=interceptors, maximum_concurrent_rpcs=_MOST_AT_ONCE)
    bridge, visitors = Bridge(house), _Visitors(house)
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(Service(bridge, visitors), server)  # type: ignore[no-untyped-call]  # generated
    if "0.3" in house.versions:
        a2a_v0_3_pb2_grpc.add_A2AServiceServicer_to_server(OldService(bridge, visitors), server)  # type: ignore[no-untyped-call]  # generated
    try:
        port = server.add_secure_port(address, secret) if secret else server.add_insecure_port(address)
    except RuntimeError as exc:
        raise ConfigError(f"doors: a2a: grpc: cannot listen on {address}") from exc
    await server.start()
    try:
        yield f"{address.rpartition(':')[0] or '127.0.0.1'}:{port}"
    finally:
        await server.stop(_GRACE)


def _check_reach(address: str, house: House) -> None:
    """Whoever is trusted because they are on this machine must be. Raises ConfigError."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        trust = house.context.identify(Credentials()).trust
    except FabricError:
        return
    if trust != "public" and not is_loopback(host):
        raise ConfigError(f"doors: a2a: grpc: without any key it listens on loopback only, not on {host or 'all'}")


async def _abort(error: A2AError, context: grpc.aio.ServicerContext) -> None:
    await abort(error.fault if isinstance(error, Refused) else _fault_of(error), context)


def _fault_of(error: A2AError) -> Fault:
    """The SDK's own."""
    reason = next((name for kind, name in A2A_ERROR_REASONS.items() if isinstance(error, kind)), "")
    return Fault(reason if reason in REASONS else "INTERNAL_ERROR", error.message)


def _head(metadata: Any) -> Head:
    return Head([(str(key).lower().encode(), _bytes(value)) for key, value in metadata or ()])


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("latin-1", "replace")
