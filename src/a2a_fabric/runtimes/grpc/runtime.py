"""Runtime: an agent that serves `proto/agent.proto` over gRPC, in any language.

    {agent_id: adder, runtime: grpc, endpoint: {uri: "grpc://127.0.0.1:50051"}}

The deadline of the RPC is the call's, cancelling the call cancels the RPC, and the
trace is sent as metadata."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

try:
    import grpc
    import grpc.aio
except ModuleNotFoundError as exc:
    raise ImportError("it needs grpcio, which comes with: pip install 'a2a-fabric[grpc]'") from exc

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import bind_arguments
from a2a_fabric.core.delegation import make_propagation_headers
from a2a_fabric.core.errors import AgentOffline, FabricError, UpstreamInterrupted
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.plugin import RuntimePlugin
from a2a_fabric.core.result import Result
from a2a_fabric.runtimes.context import RuntimeContext, complete_manifest, decode_endpoint
from a2a_fabric.runtimes.grpc.channel import (
    GRPCConnection,
    GRPCEndpoint,
    error_from_rpc,
    is_unimplemented,
    is_unreachable,
    read_address,
)
from a2a_fabric.runtimes.grpc.conversion import (
    event_from_message,
    manifest_from_description,
    request_from_call,
    result_from_outcome,
)
from a2a_fabric.runtimes.proto.messages import DescribeRequest, HealthRequest, Outcome, StreamItem
from a2a_fabric.runtimes.remote_work import OutputLimit

_PROBE_TIMEOUT = 5.0
_STATUS: dict[str, Status] = {"online": "online", "degraded": "degraded", "offline": "offline"}


class GRPCRuntime:
    def __init__(self, manifest: Manifest, connection: GRPCConnection, upstream: str, reply_bytes: int) -> None:
        self._manifest = manifest
        self._connection = connection
        self._upstream = upstream
        self._reply_bytes = reply_bytes

    async def __call__(self, call: Call, emit: Emit) -> Result:
        arguments = bind_arguments(self._manifest.find_capability(call.target.capability), call.input)
        request, timeout = request_from_call(call, arguments), call.target.timeout_ms / 1000
        ends_at = time.monotonic() + timeout
        with self._translate_errors(timeout):
            stub = await self._connection.get_stub(timeout)
            options: dict[str, Any] = {
                "timeout": max(0.001, ends_at - time.monotonic()),
                "metadata": (*make_propagation_headers(call).items(), *self._connection.metadata),
            }
            if call.response.stream:
                return result_from_outcome(await self._read_stream(stub.stream(request, **options), emit))
            return result_from_outcome(await stub.call(request, **options))

    async def _read_stream(self, rpc: Any, emit: Emit) -> Outcome:
        output_limit = OutputLimit(self._reply_bytes)
        try:
            while (message := await rpc.read()) is not grpc.aio.EOF:
                item: StreamItem = message
                if item.HasField("outcome"):
                    return item.outcome
                event = event_from_message(item.event)
                if event is not None:
                    await emit(output_limit.check(event))
        finally:
            rpc.cancel()  # no effect if the RPC has ended
        raise UpstreamInterrupted("The agent's stream ended before its outcome")

    async def health(self) -> Status:
        with self._translate_errors(_PROBE_TIMEOUT):
            stub = await self._connection.get_stub(_PROBE_TIMEOUT)
            try:
                reply = await stub.health(HealthRequest(), timeout=_PROBE_TIMEOUT, metadata=self._connection.metadata)
            except grpc.aio.AioRpcError as exc:
                if is_unimplemented(exc):
                    return "online"  # the agent has no health method, but it answers
                raise
        return _STATUS.get(reply.status, "online")

    async def describe(self) -> Manifest:
        """The manifest with the agent's description; unchanged if the agent has none."""
        with self._translate_errors(_PROBE_TIMEOUT):
            stub = await self._connection.get_stub(_PROBE_TIMEOUT)
            try:
                description = await stub.describe(
                    DescribeRequest(), timeout=_PROBE_TIMEOUT, metadata=self._connection.metadata
                )
            except grpc.aio.AioRpcError as exc:
                if is_unimplemented(exc):
                    return self._manifest
                raise
            self._manifest = complete_manifest(self._manifest, manifest_from_description(description, self._manifest))
        return self._manifest

    async def aclose(self) -> None:
        await self._connection.aclose()

    @contextmanager
    def _translate_errors(self, timeout: float) -> Iterator[None]:
        try:
            yield
        except FabricError as error:
            error.details.setdefault("upstream", self._upstream)
            raise
        except grpc.aio.AioRpcError as exc:
            if is_unreachable(exc):
                self._connection.mark_doubtful()
            raise error_from_rpc(exc, timeout, self._upstream) from exc
        except grpc.aio.UsageError as exc:
            raise AgentOffline(f"The connection is closed: {exc}", upstream=self._upstream) from exc
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise UpstreamInterrupted("The connection was shut down", upstream=self._upstream) from exc


def build(manifest: Manifest, context: RuntimeContext) -> GRPCRuntime:
    """Raises BadInput."""
    endpoint = decode_endpoint(manifest, GRPCEndpoint)
    address = read_address(manifest, endpoint)
    connection = GRPCConnection(address, endpoint, context.guard, context.base, context.reply_bytes)
    return GRPCRuntime(manifest, connection, address.authority, context.reply_bytes)


plugin = RuntimePlugin(build=build)
