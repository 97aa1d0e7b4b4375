"""A runtime for agents that speak JSON lines over TCP.

The node sends one line and reads lines until the agent has answered:

    -> {"capability": "echo", "arguments": {"task": "hello"}}
    <- {"token": "hel"}                                        any number of these
    <- {"result": {"answer": "hello"}}                         or {"error": "I will not do that"}
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from a2a_fabric import RuntimeContext, complete_manifest, decode_endpoint
from a2a_fabric.core import (
    AgentOffline,
    Call,
    Capability,
    Emit,
    Manifest,
    Result,
    RuntimePlugin,
    Status,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
    bind_arguments,
    token,
)


class LineEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What operators write under `endpoint`."""

    host: str = "127.0.0.1"
    port: int


class LineReply(msgspec.Struct, frozen=True, kw_only=True):
    token: str | None = None
    result: dict[str, Any] | None = None
    error: str | None = None
    capabilities: tuple[str, ...] | None = None


class LineRuntime:
    def __init__(self, manifest: Manifest, endpoint: LineEndpoint, reply_bytes: int) -> None:
        self._manifest = manifest
        self._endpoint = endpoint
        self._reply_bytes = reply_bytes

    async def __call__(self, call: Call, emit: Emit) -> Result:
        capability = self._manifest.find_capability(call.target.capability)
        request = {"capability": call.target.capability, "arguments": bind_arguments(capability, call.input)}
        async for reply in self._exchange(request):
            if reply.token is not None:
                await emit(token(reply.token))
            elif reply.error is not None:
                raise UpstreamRefused(reply.error[:500])
            elif reply.result is not None:
                return Result(data=reply.result)
        raise UpstreamInterrupted("The agent closed the connection before its answer")

    async def health(self) -> Status:
        async with self._connect():
            return "online"

    async def describe(self) -> Manifest:
        async for reply in self._exchange({"describe": True}):
            capabilities = tuple(Capability(name=name) for name in reply.capabilities or ())
            published = Manifest(agent_id=self._manifest.agent_id, endpoint={}, capabilities=capabilities)
            return complete_manifest(self._manifest, published)
        raise UpstreamInterrupted("The agent closed the connection before its answer")

    async def aclose(self) -> None:
        """Each call has its own connection, so there is nothing to close."""

    async def _exchange(self, request: dict[str, Any]) -> AsyncIterator[LineReply]:
        async with self._connect() as (reader, writer):
            try:
                writer.write(msgspec.json.encode(request) + b"\n")
                await writer.drain()
                while line := await reader.readline():
                    yield msgspec.json.decode(line, type=LineReply)
            except OSError as exc:  # the agent has the request, so it may have run
                raise UpstreamInterrupted(f"The connection broke: {exc}") from exc
            except ValueError as exc:  # not JSON, or longer than the limit
                raise UpstreamFailed(f"The agent's answer cannot be read: {exc}"[:300]) from exc

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        endpoint = self._endpoint
        try:
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, limit=self._reply_bytes)
        except OSError as exc:  # the agent surely never got the request
            raise AgentOffline(f"No connection to {endpoint.host}:{endpoint.port}: {exc}") from exc
        try:
            yield reader, writer
        finally:  # also when the call is cancelled: the agent sees the end of the connection
            writer.close()


def build(manifest: Manifest, context: RuntimeContext) -> LineRuntime:
    """Raises BadInput for an endpoint that it cannot use."""
    return LineRuntime(manifest, decode_endpoint(manifest, LineEndpoint), context.reply_bytes)


plugin = RuntimePlugin(build=build)
