"""Runtime `mcp`: servers made with the official SDK, as a program and over HTTP, each of one era only."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.fixtures.mcp_servers.matrix import make
from tests.fixtures.mcp_servers.serving import HERE, Era, Gate
from tests.matrix.agents.kind import Kind, Started
from tests.matrix.agents.listening import NOWHERE, listening


class MCPProgram(Kind):
    runtime = "mcp"

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Started]:
        endpoint = {"command": [sys.executable, str(HERE / "matrix.py")], "era": "handshake"}
        yield Started(manifests=[self.manifest(endpoint), self.away({"command": ["./no-such-program"]})])


class MCPServer(Kind):
    runtime = "mcp"

    def __init__(self, name: str, era: Era) -> None:
        super().__init__(name)
        self._era = era

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Started]:
        async with listening(Gate(make().streamable_http_app(), self._era)) as url:
            yield Started(manifests=[self.manifest({"uri": f"{url}/mcp"}), self.away({"uri": f"{NOWHERE}mcp"})])
