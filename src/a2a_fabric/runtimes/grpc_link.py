"""One channel to a gRPC agent, shared by all calls and opened on first use.

gRPC has one status for an agent that was not reached and for one that was lost in the
middle, and only the first may be asked elsewhere. So a channel that is not connected is
tried with a question about the agent's health; calls go out once it has been answered.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio

from a2a_fabric.core.errors import AgentOffline, ErrorTable, NotReached, translated
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.outbound.port import ConnectFailed
from a2a_fabric.runtimes.grpc_endpoint import GRPCEndpoint, Place, open_channel
from a2a_fabric.runtimes.grpc_status import is_nobody_there
from a2a_fabric.runtimes.proto.messages import HealthRequest
from a2a_fabric.runtimes.proto.service import Stub

_ERRORS: ErrorTable = {ConnectFailed: AgentOffline}
_CONNECT_WITHIN = 10.0


class Link:
    def __init__(self, place: Place, endpoint: GRPCEndpoint, guard: Guard | None, base: Path, reply_bytes: int) -> None:
        self.metadata = tuple(endpoint.metadata.items())
        self._place = place
        self._endpoint = endpoint
        self._guard = guard
        self._base = base
        self._reply_bytes = reply_bytes
        self._channel: grpc.aio.Channel | None = None
        self._stub: Stub | None = None
        self._turn = asyncio.Lock()
        self._is_doubtful = False
        self._is_closed = False

    async def connected(self, timeout: float) -> Stub:
        """Raises AgentOffline."""
        stub = self._connected_stub()
        return stub if stub is not None else await self._connect(min(timeout, _CONNECT_WITHIN))

    def doubt(self) -> None:
        """A request was lost. The channel may take a moment to notice why, and must not lose the next one too."""
        self._is_doubtful = True

    async def aclose(self) -> None:
        self._is_closed = True
        await self._let_go()

    def _connected_stub(self) -> Stub | None:
        if self._channel is None or self._is_doubtful:
            return None
        return self._stub if self._channel.get_state() is grpc.ChannelConnectivity.READY else None

    async def _connect(self, timeout: float) -> Stub:
        try:
            async with asyncio.timeout(timeout), self._turn:
                return self._connected_stub() or await self._greeted(timeout)
        except TimeoutError as exc:
            raise self._not_reached(timeout) from exc

    async def _greeted(self, timeout: float) -> Stub:
        stub = self._stub or await self._open()
        try:
            await stub.health(HealthRequest(), timeout=timeout, metadata=self.metadata)
        except grpc.aio.AioRpcError as exc:
            if exc.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise self._not_reached(timeout) from exc
            if is_nobody_there(exc):
                await self._forget_addresses()
                why = (exc.details() or exc.code().name)[:500]
                raise AgentOffline(f"{self._place.authority} cannot be reached: {why}") from exc
        self._is_doubtful = False  # any other answer is one: somebody is there
        return stub

    def _not_reached(self, timeout: float) -> NotReached:
        return NotReached(f"No connection to {self._place.authority} within {timeout:.1f} s")

    async def _open(self) -> Stub:
        if self._is_closed:
            raise AgentOffline("The connection is shut down with the node")
        addresses: list[str] = []
        if self._guard is not None:
            with translated(_ERRORS):
                addresses = await self._guard.addresses(self._place.host, self._place.port)
        self._channel = open_channel(self._place, self._endpoint, addresses, self._base, self._reply_bytes)
        self._stub = Stub(self._channel)
        return self._stub

    async def _forget_addresses(self) -> None:
        """A name may lead elsewhere by now, and where it leads is judged anew."""
        if self._guard is not None:
            await self._let_go()

    async def _let_go(self) -> None:
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            await channel.close()
