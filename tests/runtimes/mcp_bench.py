"""What the tests of the MCP runtime share: a place to build runtimes, closed after the test."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.mcp.runtime import McpRuntime, build
from tests.fixtures.mcp_servers.serving import EVERYDAY, serving

E = TypeVar("E", bound=Exception)


class Bench:
    """Builds runtimes; keeps what they tell of changes."""

    def __init__(self, stack: AsyncExitStack, base: Path) -> None:
        self._stack = stack
        self.changes: asyncio.Queue[str] = asyncio.Queue()
        http = OutboundClient()
        stack.push_async_callback(http.aclose)
        self.context = RuntimeContext(
            http=http, base=base, environ=dict(os.environ), on_capabilities_changed=self.changes.put_nowait
        )

    def runtime(self, *capabilities: Capability, **endpoint: Any) -> McpRuntime:
        manifest = Manifest(agent_id="tested", endpoint=endpoint, capabilities=capabilities)
        runtime = build(manifest, self.context)
        self._stack.push_async_callback(runtime.aclose)
        return runtime

    async def server(self, kind: str, **endpoint: Any) -> McpRuntime:
        """`stdio-handshake`, `http-stateless`…: a runtime in front of a running everyday server."""
        transport, _, era = kind.partition("-")
        if transport == "stdio":
            return self.runtime(command=EVERYDAY, era=era, **endpoint)
        server = await self._stack.enter_async_context(serving(era))  # type: ignore[arg-type]  # one of two
        return self.runtime(uri=server.url, **endpoint)


async def failure_of(work: Awaitable[Any], kind: type[E]) -> E:
    with pytest.raises(kind) as caught:
        await work
    return caught.value
