"""What gRPC's status codes mean here. An agent's own errors come as messages, and not by this way."""

from __future__ import annotations

import grpc
import grpc.aio

from a2a_fabric.core.errors import (
    AgentOffline,
    BadInput,
    CallTimeout,
    FabricError,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
)

# Of a request that was sent over an open connection. Everything else is a refusal.
_MEANINGS: dict[grpc.StatusCode, type[FabricError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: BadInput,
    grpc.StatusCode.OUT_OF_RANGE: BadInput,
    grpc.StatusCode.UNIMPLEMENTED: AgentOffline,  # somebody is there, but no agent of ours
    grpc.StatusCode.UNAVAILABLE: UpstreamInterrupted,  # the connection broke: it may have run
    grpc.StatusCode.CANCELLED: UpstreamInterrupted,
    grpc.StatusCode.INTERNAL: UpstreamInterrupted,
    grpc.StatusCode.DATA_LOSS: UpstreamInterrupted,
    grpc.StatusCode.UNKNOWN: UpstreamFailed,  # its code raised
}


def failure(exc: grpc.aio.AioRpcError, timeout: float, upstream: str) -> FabricError:
    code, words = exc.code(), (exc.details() or "").strip()[:500]
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return CallTimeout(timeout, grpc_status=code.name, upstream=upstream)
    kind = _MEANINGS.get(code, UpstreamRefused)
    told = f"gRPC {code.name}: {words}" if words else f"gRPC {code.name}"
    return kind(told, grpc_status=code.name, upstream=upstream)


def is_unknown(exc: grpc.aio.AioRpcError) -> bool:
    """Whether the server does not offer this method."""
    return bool(exc.code() is grpc.StatusCode.UNIMPLEMENTED)


def is_nobody_there(exc: grpc.aio.AioRpcError) -> bool:
    """Of the first request on a connection: whether there is none."""
    return exc.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
