"""Runtime: an agent that serves `proto/agent.proto` over gRPC, in whatever language.

    {agent_id: adder, runtime: grpc, endpoint: {uri: "grpc://127.0.0.1:50051"}}

The deadline of the RPC is the call's, cancelling the call cancels the RPC, and the
trace goes along as metadata.
"""

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
from a2a_fabric.core.arguments import arguments_for
from a2a_fabric.core.call import Call
from a2a_fabric.core.delegation import journey_headers
from a2a_fabric.core.errors import AgentOffline, FabricError, UpstreamInterrupted
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.result import Result
from a2a_fabric.runtimes.context import RuntimeContext, decode_endpoint
from a2a_fabric.runtimes.grpc_endpoint import GRPCEndpoint, place_of
from a2a_fabric.runtimes.grpc_link import Link
from a2a_fabric.runtimes.grpc_status import failure, is_nobody_there, is_unknown
from a2a_fabric.runtimes.grpc_words import event_of, published_in, request_of, result_of
from a2a_fabric.runtimes.proto.messages import DescribeRequest, HealthRequest, Outcome, StreamItem
from a2a_fabric.runtimes.published import complete
from a2a_fabric.runtimes.room import Room

_ASK_SECONDS = 5.0
_STATUS: dict[str, Status] = {"online": "online", "degraded": "degraded", "offline": "offline"}


class GRPCRuntime:
    def __init__(self, manifest: Manifest, link: Link, upstream: str, reply_bytes: int) -> None:
        self._manifest = manifest
        self._link = link
        self._upstream = upstream
        self._reply_bytes = reply_bytes

    async def __call__(self, call: Call, emit: Emit) -> Result:
        arguments = arguments_for(self._manifest.capability(call.target.capability), call.input)
        request, timeout = request_of(call, arguments), call.target.timeout_ms / 1000
        ends_at = time.monotonic() + timeout
        with self._translated(timeout):
            stub = await self._link.connected(timeout)
            about: dict[str, Any] = {
                "timeout": max(0.001, ends_at - time.monotonic()),
                "metadata": (*journey_headers(call).items(), *self._link.metadata),
            }
            if call.response.stream:
                return result_of(await self._streamed(stub.stream(request, **about), emit))
            return result_of(await stub.call(request, **about))

    async def _streamed(self, rpc: Any, emit: Emit) -> Outcome:
        room = Room(self._reply_bytes)
        try:
            while (read := await rpc.read()) is not grpc.aio.EOF:
                item: StreamItem = read
                if item.HasField("outcome"):
                    return item.outcome
                event = event_of(item.event)
                if event is not None:
                    await emit(room.check(event))
        finally:
            rpc.cancel()  # nothing if it has ended
        raise UpstreamInterrupted("The agent's stream ended before its outcome")

    async def health(self) -> Status:
        with self._translated(_ASK_SECONDS):
            stub = await self._link.connected(_ASK_SECONDS)
            try:
                reply = await stub.health(HealthRequest(), timeout=_ASK_SECONDS, metadata=self._link.metadata)
            except grpc.aio.AioRpcError as exc:
                if is_unknown(exc):
                    return "online"  # it does not know the word, but it answers
                raise
        return _STATUS.get(reply.status, "online")

    async def describe(self) -> Manifest:
        """The manifest as it is if the agent does not tell of itself."""
        with self._translated(_ASK_SECONDS):
            stub = await self._link.connected(_ASK_SECONDS)
            try:
                told = await stub.describe(DescribeRequest(), timeout=_ASK_SECONDS, metadata=self._link.metadata)
            except grpc.aio.AioRpcError as exc:
                if is_unknown(exc):
                    return self._manifest
                raise
            self._manifest = complete(self._manifest, published_in(told, self._manifest))
        return self._manifest

    async def aclose(self) -> None:
        await self._link.aclose()

    @contextmanager
    def _translated(self, timeout: float) -> Iterator[None]:
        try:
            yield
        except FabricError as error:
            error.details.setdefault("upstream", self._upstream)
            raise
        except grpc.aio.AioRpcError as exc:
            if is_nobody_there(exc):
                self._link.doubt()
            raise failure(exc, timeout, self._upstream) from exc
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
    place = place_of(manifest, endpoint)
    link = Link(place, endpoint, context.guard, context.base, context.reply_bytes)
    return GRPCRuntime(manifest, link, place.authority, context.reply_bytes)
