"""The runtime with a real agent behind it, through the contract suite that comes with Fabric."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from line_runtime import build

from a2a_fabric import RuntimeContext
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.testing.runtime_contract import RuntimeCase, RuntimeContract
from a2a_fabric.testing.values import make_call, make_manifest


async def serve_agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An agent with the capabilities `echo`, `refuse` and `sleep`."""
    if line := await reader.readline():
        request = json.loads(line)
        match request.get("capability"):
            case "echo":
                replies = [{"token": "hel"}, {"token": "lo"}, {"result": {"answer": request["arguments"]["task"]}}]
            case "refuse":
                replies = [{"error": "I will not do that"}]
            case "sleep":
                replies = []
                await reader.read()  # until the caller has left
            case _:
                replies = [{"capabilities": ["echo", "refuse", "sleep"]}]
        writer.writelines(json.dumps(reply).encode() + b"\n" for reply in replies)
    writer.close()


class TestLineRuntime(RuntimeContract):
    @pytest_asyncio.fixture
    async def case(self, tmp_path: Path) -> AsyncIterator[RuntimeCase]:
        server = await asyncio.start_server(serve_agent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        context = RuntimeContext(http=OutboundClient(), base=tmp_path)
        manifest = make_manifest("line", runtime="line", endpoint={"port": port})
        async with server:
            yield RuntimeCase(
                runtime=build(manifest, context),
                manifest=manifest,
                call=make_call("line", "echo", task="hello"),
                answer={"answer": "hello"},
                refused_call=make_call("line", "refuse"),
                slow_call=make_call("line", "sleep"),
                absent=build(make_manifest("away", endpoint={"port": 9}), context),
            )
